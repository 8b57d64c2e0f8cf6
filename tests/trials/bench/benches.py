"""Benches whose runs are made up: what a real run would leave is written into its folder."""

from __future__ import annotations

import functools
import io
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launch.config.line import parse_line
from launch.config.recipe_keys import Precision
from launch.config.schema import Device
from launch.execution.display import PlainDisplay
from launch.execution.record.outcome import Outcome
from launch.planning.build import build_plan
from launch.trials.bench.engine import plan_bench, read_bench_request, run_in_turn
from launch.trials.bench.record import BenchRecord, BenchRun
from launch.trials.card_rate import CardRate
from launch.trials.measurement import archive_earlier_try
from launch.trials.trial import Runner, probe_line
from tests.conftest import composed, fixed_machine
from tests.trials.rollout.plans import leave_run

WORDS = ("stage=sft", "trainer=trl_sft", "data.mix=[{name: some/data}]", "gpus=1")
A, B = ("recipe.per_device_batch_size=4",), ("recipe.per_device_batch_size=8",)
RATE = CardRate("NVIDIA H200", Device.cuda, Precision.bf16, 790.0, 8192, "2.11.0")

# composing is most of a test's time, and nothing changes what it gives
_composed = functools.cache(composed)


def planned(home: Path, *words: str, a: Sequence[str] = A, b: Sequence[str] = B) -> BenchRecord:
    """What `bench WORDS -- A -- B` plans in the folder `home`."""
    count = () if any(word.startswith("steps=") for word in words) else ("steps=5",)
    request = read_bench_request(
        parse_line(["bench", *words, *count, "--", *a, "--", *b], ["bench"])
    )
    machine = fixed_machine(cwd=home)
    record = plan_bench(
        request, lambda line: build_plan(_composed(*probe_line(line).argv), machine)
    )
    record.sides[0].rate = record.sides[1].rate = RATE
    return record


def steps(
    count: int = 5, seconds: float = 1.0, loss: float = 3.0, **more: Any
) -> list[dict[str, Any]]:
    """metrics.jsonl of a run; the first step takes nine times as long."""
    return [
        {
            "schema_version": 1,
            "step": number,
            "loss": loss - 0.1 * number,
            "tokens": 1000 + number,
            "tokens_padded": 1500,
            "memory_gib": 40.0,
            "memory_reserved_gib": 44.0,
            "seconds": 9 * seconds if number == 1 else seconds,
            **more,
        }
        for number in range(1, count + 1)
    ]


DONE = Outcome(exit_code=0, seconds=60.0, steps=5, last_loss=2.5)


def made_up(
    run: BenchRun, metrics: Sequence[dict[str, Any]] | None = None, outcome: Outcome = DONE
) -> None:
    """Leave what a run of a bench leaves."""
    metrics = (
        metrics if metrics is not None else steps(seconds=2.0 if run.side.label == "A" else 1.0)
    )
    archive_earlier_try(run.plan)
    leave_run(run.plan, outcome, metrics)


def benched(
    home: Path,
    *words: str,
    run: Callable[[BenchRun], None] = made_up,
    reuse: bool = True,
    clock: Callable[[], float] | None = None,
    rate: CardRate = RATE,
    **sides: Sequence[str],
) -> tuple[BenchRecord, int, list[str]]:
    """A bench that has run: its record, its exit code and the runs that were run, in order."""
    record = planned(home, *WORDS, *words, **sides)
    record.sides[0].rate = record.sides[1].rate = rate
    ran: list[str] = []

    def start(bench_run: BenchRun, seconds: float | None) -> None:
        assert (seconds is None) == (record.config.max_minutes is None or not ran)
        ran.append(bench_run.label)
        run(bench_run)

    runner = Runner(
        record, PlainDisplay(io.StringIO()), start, reuse=reuse, clock=clock or time.monotonic
    )
    return record, run_in_turn(runner), ran
