"""Searches over settings that were measured on four H200s: what `tune` would have chosen, and after
how many probes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from launch import resources
from launch.config.kinds import Kind
from launch.config.trials import TuneConfig
from launch.planning.lengths import Histogram, Lengths
from launch.trials.tune.engine import search
from launch.trials.tune.predict import Prediction, Probe, predict
from launch.trials.tune.record import TuneRecord
from tests.trials.tune.searches import measured, record_in

BENCHMARKS = resources.ROOT / "benchmarks"
FAST = (
    "stage=sft",
    "gpus=4",
    "recipe.liger=true",
    "recipe.gradient_checkpointing=false",
    "recipe.packing=flatten",
)
HELD = (*FAST, "recipe.balanced=true")
RECIPE = "zero3-1x32"  # written by hand, padded and checkpointed when it was measured
ENOUGH, PROBES = 0.97, 6  # of the best measured rate, in at most so many probes


def measured_rates() -> dict[str, float]:
    """Tokens/s of the settings of the fast region, by mode and per-device batch, and of the
    recipe.
    """
    rows = json.loads((BENCHMARKS / "h200x4_sft_8b_region.json").read_text(encoding="utf-8"))[
        "settings"
    ]
    rates = {
        f"{row['parallel']}-{row['per_device']}x{row['accumulation']}": row["tokens_per_second"]
        for row in rows
    }
    bench = json.loads((BENCHMARKS / "h200x4_bench_sft_8b.json").read_text(encoding="utf-8"))
    return rates | {RECIPE: bench["a"]["median"]["per_second"]}


def chats() -> Lengths:
    """The lengths of the data of these runs, about 640 tokens on average."""
    chance = random.Random(0)
    lengths = [min(2964, max(10, 1.3 * chance.lognormvariate(5.7, 1.0))) for _ in range(2400)]
    return Lengths(Kind.sft, Histogram.of(round(length) for length in lengths), None)


@pytest.fixture
def region(tmp_path: Path) -> TuneRecord:
    record = record_in(
        tmp_path, *HELD, lengths=chats(), limits=TuneConfig(probes=PROBES, minutes=1e6)
    )
    rates = measured_rates()
    record.workload = replace(record.workload, flash=True)
    kept = [prediction for prediction in record.predictions if key(prediction) in rates]
    record.predictions = [predict(prediction.candidate, record.workload) for prediction in kept]
    assert {key(prediction) for prediction in record.predictions} == set(rates)
    return record


def key(prediction: Prediction) -> str:
    return "-".join(prediction.label.split("-")[:2])


def replay(record: TuneRecord, rates: Mapping[str, float]) -> list[str]:
    """Search with the measured rates; return the settings that were probed to find the best."""
    probed: list[str] = []

    def take(probe: Probe) -> None:
        probed.append(key(probe.prediction))
        vars(probe).update(
            vars(
                measured(
                    probe.prediction,
                    probe.prediction.step.load.tokens / rates[key(probe.prediction)],
                )
            )
        )

    search(record, take, lambda best: [])
    return probed


def test_the_best_of_the_measured_region_is_found_in_six_probes(region: TuneRecord) -> None:
    rates = measured_rates()
    probed = replay(region, rates)
    assert region.best is not None and len(probed) <= PROBES
    assert rates[key(region.best.prediction)] >= ENOUGH * max(rates.values())


@pytest.mark.parametrize("mode", ["zero1", "zero2"])
def test_it_is_found_when_the_predicted_best_mode_turns_out_slow(
    region: TuneRecord, mode: str
) -> None:
    """As on a machine whose network hardly carries what that mode sends."""
    rates = {
        name: rate * (0.4 if name.startswith(mode) else 1.0)
        for name, rate in measured_rates().items()
    }
    probed = replay(region, rates)
    assert region.best is not None and len(probed) <= PROBES
    assert rates[key(region.best.prediction)] >= ENOUGH * max(rates.values())
