"""What bench, rollout and tune have in common when they are called, fail, and are called again."""

from __future__ import annotations

import io
import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.config.line import parse_line
from launch.config.trials import TuneConfig
from launch.errors import UserError
from launch.execution.display import PlainDisplay
from launch.execution.record.outcome import Outcome
from launch.planning.plan import Plan
from launch.trials.bench.engine import read_bench_request as read_bench
from launch.trials.bench.engine import run_in_turn
from launch.trials.measurement import archive_earlier_try
from launch.trials.record import State, TrialRecord
from launch.trials.rollout.engine import run_widths
from launch.trials.rollout.request import read_rollout_request as read_rollout
from launch.trials.trial import Runner
from launch.trials.tune.engine import read_tune_line as read_tune
from launch.trials.tune.engine import search
from launch.worker.finding import Finding
from tests.conftest import composed
from tests.integration import warm
from tests.integration.demo_kit import give_demo
from tests.integration.reports import read_report
from tests.thorough import mark_others
from tests.trials.bench import benches
from tests.trials.records import check, read
from tests.trials.rollout import plans
from tests.trials.tune.searches import record_in

Ending = Callable[[Plan, int], object]  # what a run of so many steps leaves
DONE = Outcome(exit_code=0, seconds=9.0, steps=5, last_loss=2.5)


def fine(plan: Plan, count: int) -> None:
    plans.leave_run(plan, DONE, plans.steps([3.0 - 0.1 * step for step in range(count)]))


def dead(plan: Plan, count: int) -> None:
    plans.leave_run(
        plan, replace(DONE, exit_code=1, steps=1, cause="rank 1: no luck"), plans.steps([3.0])
    )


def interrupted(plan: Plan, count: int) -> None:
    plans.leave_run(
        plan,
        replace(DONE, exit_code=130, steps=1, cause="interrupted by SIGINT"),
        plans.steps([3.0]),
    )


def refused(plan: Plan, count: int) -> None:
    raise UserError(Finding.error("gpus_busy", "GPU 0 is held by somebody", None, "wait"))


def plan_bench(home: Path, count: int) -> TrialRecord:
    return benches.planned(home, *benches.WORDS, "name=x", f"steps={count}")


def plan_rollout(home: Path, count: int) -> TrialRecord:
    return plans.record_of(plans.planned(home, *benches.WORDS[:-1], "gpus=1,2,4"), steps=count)


def plan_tune(home: Path, count: int) -> TrialRecord:
    return replace(
        record_in(home, limits=TuneConfig(steps=count, probes=4, minutes=1e6)), steps=count
    )


def run_tune(runner: Any, restart: bool) -> int:
    def place(probe: Any) -> None:
        probe.plan = runner.record.plan.renamed(f"tune-it/{probe.label}")

    runner.prepare, runner.raises = place, False
    search(runner.record, runner.take, lambda best: [])
    return 130 if runner.record.state == State.interrupted else 0


KINDS: dict[str, tuple[Callable[[Path, int], TrialRecord], Callable[[Any, bool], int]]] = {
    "bench": (plan_bench, lambda runner, restart: run_in_turn(runner)),
    "rollout": (plan_rollout, lambda runner, restart: run_widths(runner, cards=8, restart=restart)),
    "tune": (plan_tune, run_tune),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def call(
    kind: str,
    home: Path,
    ends: Mapping[int, Ending] | None = None,
    *,
    restart: bool = False,
    count: int = 5,
) -> tuple[TrialRecord, int, list[str]]:
    """Call a trial whose runs are made up, `ends` by their place; its record, exit code and what
    was really run.
    """
    plan, run_all = KINDS[kind]
    record, ran = plan(home, count), []

    def start(run: Any, seconds: float | None) -> None:
        archive_earlier_try(run.plan)
        ran.append(run.label)
        place = next(index for index, other in enumerate(record.runs) if other is run)
        (ends or {}).get(place, fine)(run.plan, count)

    runner = Runner(record, PlainDisplay(io.StringIO()), start, reuse=not restart)
    return record, run_all(runner, restart), ran


@every_kind
def test_what_was_measured_is_kept_and_restart_measures_it_again(kind: str, tmp_path: Path) -> None:
    record, code, ran = call(kind, tmp_path)
    assert (
        (code, record.state) == (0, State.done)
        and ran == [run.label for run in record.runs]
        and len(ran) > 1
    )
    again, code, nothing = call(kind, tmp_path)
    assert (code, nothing) == (0, []) and [run.label for run in again.runs if run.reused] == ran
    assert call(kind, tmp_path, restart=True)[2] == ran


@every_kind
def test_more_steps_are_run_and_fewer_are_in_what_there_is(kind: str, tmp_path: Path) -> None:
    ran = call(kind, tmp_path)[2]
    fewer, code, nothing = call(kind, tmp_path, count=4)
    assert (
        (code, nothing) == (0, [])
        and fewer.runs[0].measured is not None
        and fewer.runs[0].measured.last_step == 4
    )
    assert call(kind, tmp_path, count=7)[2] == ran


@every_kind
def test_a_run_that_dies_is_reported_with_its_cause_and_run_again_by_the_next_call(
    kind: str, tmp_path: Path
) -> None:
    record, code, ran = call(kind, tmp_path, {1: dead})
    assert [run.state for run in record.runs[:2]] == [State.done, State.failed]
    assert "rank 1: no luck" in str(read(record))
    if kind != "tune":  # a search goes on with other settings
        assert (
            code == 3
            and len(ran) == 2
            and {run.state for run in record.runs[2:]} == {State.planned}
        )
    again, code, rest = call(kind, tmp_path)
    assert code == 0 and again.state == State.done and ran[1] in rest and ran[0] not in rest
    tries = [
        path
        for path in record.folder.iterdir()
        if path.name.startswith(record.runs[1].plan.folder.name)
    ]
    assert len(tries) == 2  # the failed try is beside the good one


@every_kind
def test_an_interrupt_ends_it_and_the_next_call_goes_on(kind: str, tmp_path: Path) -> None:
    record, code, ran = call(kind, tmp_path, {1: interrupted})
    assert (code, record.state, len(ran)) == (130, State.interrupted, 2)
    assert [run.state for run in record.runs[:2]] == [State.done, State.interrupted]
    again, code, rest = call(kind, tmp_path)
    assert (code, again.state) == (0, State.done) and ran[1] in rest and ran[0] not in rest


@every_kind
def test_a_later_run_that_cannot_start_loses_nothing(kind: str, tmp_path: Path) -> None:
    record, code, ran = call(kind, tmp_path, {1: refused})
    assert [run.state for run in record.runs[:2]] == [State.done, State.failed]
    assert "held by somebody" in str(record.runs[1].message) and "[gpus_busy]" in str(
        record.runs[1].message
    )
    assert code == (0 if kind == "tune" else 3) and ran[0] not in call(kind, tmp_path)[2]


@pytest.mark.parametrize("kind", ["bench", "rollout"])
def test_a_first_run_that_cannot_start_is_the_users_mistake(kind: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="gpus_busy"):
        call(kind, tmp_path, {0: refused})


@every_kind
def test_a_run_of_other_packages_is_run_again(kind: str, tmp_path: Path) -> None:
    record, _, ran = call(kind, tmp_path)
    (record.runs[1].plan.folder / "versions.json").write_text('{"packages": {"torch": "0.1"}}')
    assert call(kind, tmp_path)[2] == [ran[1]]


REQUESTS = {
    "bench": (read_bench, ("--", "--")),
    "rollout": (read_rollout, ("gpus=1,2",)),
    "tune": (read_tune, ()),
}


@pytest.mark.parametrize("word", ["detach=true", "cache_only=true", "nodes=2", "--multirun"])
@pytest.mark.parametrize("verb", REQUESTS)
def test_what_a_trial_cannot_do_is_refused(verb: str, word: str) -> None:
    read_request, more = REQUESTS[verb]
    with pytest.raises(UserError) as error:
        read_request(parse_line([verb, "stage=sft", word, *more], [verb]))
    assert [problem.id for problem in error.value.problems] == [f"{verb}_alone"]


@pytest.mark.parametrize(
    "word",
    [
        *(
            "bench.steps=0",
            "bench.warmup=-1",
            "bench.repeats=0",
            "bench.max_minutes=0",
            "bench.loss_tolerance=5",
        ),
        *(
            "rollout.steps=0",
            "rollout.steps=-1",
            "rollout.price_per_gpu_hour=-1",
            "tune.steps=0",
            "tune.probes=0",
        ),
        *("tune.minutes=0", "tune.skip=-1", "tune.room=1.0"),
    ],
)
def test_a_number_that_measures_nothing_is_refused(word: str) -> None:
    with pytest.raises(UserError, match=rf"{word.partition('=')[0]}.*\[out_of_range\]"):
        composed("stage=sft", word)


DEMO = ("stage=demo", "trainer=trl_sft", "device=cpu")
KILLED: dict[str, tuple[str, ...]] = {
    "bench": (*DEMO, "steps=4", "repeats=1", "--", "--", "recipe.per_device_batch_size=4"),
    "rollout": (*DEMO[:2], "device=cpu", "processes=1,2", "steps=4"),
    "tune": (*DEMO, "steps=4", "probes=2"),
    "sweep": (
        *DEMO,
        "recipe.max_steps=40",
        "recipe.checkpoint_steps=2",
        "recipe.learning_rate=1e-3,2e-3",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", mark_others(list(KILLED), ["rollout"]))
def test_a_trial_that_was_killed_goes_on(
    kind: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed in its second run and called again: the first is kept, and the second is measured or
    resumed.
    """
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    give_demo(tmp_path_factory, tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    command = [
        warm.python(),
        "-m",
        "launch",
        "trial" if kind == "sweep" else kind,
        "--json",
        *KILLED[kind],
    ]

    def runs() -> list[dict[str, Any]]:
        found = [
            json.loads(path.read_text(encoding="utf-8"))
            for path in tmp_path.glob(f"runs/demo/*/{kind}.json")
        ]
        return found[0]["runs"] if found else []

    def is_in_its_second_run() -> bool:
        states = [run["state"] for run in runs()[:2]]
        # checkpoint-2 is whole when 4 begins
        needed = "model/checkpoint-[4-8]" if kind == "sweep" else "command.sh"
        return states == ["done", "running"] and bool(list(Path(runs()[1]["folder"]).glob(needed)))

    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        until = time.monotonic() + 300
        while time.monotonic() < until and running.poll() is None and not is_in_its_second_run():
            time.sleep(0.2)
        running.kill()
    before = runs()
    assert [run["state"] for run in before[:2]] == ["done", "running"]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    check(document)
    first, second = document["runs"][:2]
    assert [run["label"] for run in (first, second)] == [run["label"] for run in before[:2]]
    assert [(run["state"], run["reused"]) for run in (first, second)] == [
        ("done", True),
        ("done", False),
    ]
    assert first["measured"]["losses"] == before[0]["measured"]["losses"]
    page = read_report(
        Path(document["runs"][0]["folder"]).parent
        if kind != "sweep"
        else next(tmp_path.glob("runs/demo/sweep-*"))
    )
    curves = [curve["label"].partition(" (")[0] for curve in page.data[0]["lines"]]
    assert {run["label"] for run in (first, second)} <= set(curves)
    if kind == "sweep":
        assert (
            "resumes from checkpoint-" in ran.stderr
            and first["measured"]["steps"] == second["measured"]["steps"] == 40
        )
