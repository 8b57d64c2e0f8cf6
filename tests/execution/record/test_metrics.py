from __future__ import annotations

import json
import math

from launch.execution.record.events import Event, Metrics


def step(number: int, time: float, rank: int = 0, **data: object) -> Event:
    return Event("step", time, rank, {"step": number, **data})


def test_sums_become_differences() -> None:
    metrics = Metrics()
    metrics.training_began(100.0)
    first = metrics.add(
        step(5, 102.0, loss=3.0, lr=1e-3, total_tokens=200, total_tokens_including_padding=300)
    )
    second = metrics.add(
        step(10, 103.0, loss=2.0, lr=5e-4, total_tokens=500, total_tokens_including_padding=700)
    )
    assert first == {
        "schema_version": 1, "step": 5, "loss": 3.0, "lr": 1e-3, "seconds": 2.0, "tokens": 200, "tokens_padded": 300,
        "tokens_per_second": 100.0, "tokens_per_second_total": 100.0, "padding_share": 0.333333,
    }  # fmt: skip
    assert second is not None
    assert (second["tokens_per_second_total"], second["padding_share"]) == (166.667, 0.25)
    assert (second["tokens"], second["tokens_padded"], second["tokens_per_second"]) == (
        300,
        400,
        300.0,
    )
    assert metrics.last_loss == 2.0


def test_values_of_the_worker_are_kept() -> None:
    metrics = Metrics()
    values = metrics.add(
        step(
            1,
            50.0,
            loss=0.69,
            lr=1e-6,
            tokens=100,
            seconds=0.5,
            memory_gib=2.5,
            grad_norm=1.5,
            note="x",
        )
    )
    assert values == {
        "schema_version": 1, "step": 1, "loss": 0.69, "lr": 1e-6, "tokens": 100, "seconds": 0.5, "memory_gib": 2.5,
        "tokens_per_second": 200.0, "tokens_per_second_total": 200.0, "grad_norm": 1.5,
    }  # fmt: skip


def test_a_step_counts_once_and_of_rank_0_only() -> None:
    metrics = Metrics()
    assert metrics.add(step(1, 1.0, loss=1.0)) is not None
    assert metrics.add(step(1, 1.1, loss=9.0)) is None
    assert metrics.add(step(0, 1.2, loss=9.0)) is None
    assert metrics.add(step(2, 1.3, rank=1, loss=9.0)) is None
    assert metrics.add(step(2, 2.0, loss=0.5)) is not None
    assert metrics.last_loss == 0.5


def test_values_that_a_trainer_does_not_log_are_absent() -> None:
    assert Metrics().add(step(1, 1.0)) == {"schema_version": 1, "step": 1}


def test_a_nan_is_strict_json() -> None:
    metrics = Metrics()
    values = metrics.add(step(1, 1.0, loss=math.nan, grad_norm=math.inf))
    assert json.loads(json.dumps(values, allow_nan=False)) == {
        "schema_version": 1, "step": 1, "loss": None, "loss_text": "nan", "grad_norm": None, "grad_norm_text": "inf",
    }  # fmt: skip
    assert metrics.last_loss is not None
    assert math.isnan(metrics.last_loss)
