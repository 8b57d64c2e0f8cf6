"""What the run's record gets of batches balanced by length: figures of each logged step, and
evidence each time their number doubled.
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

from launch.worker.channel import EventWriter
from launch.worker.global_batches import BatchLayout, GlobalBatchSampler
from launch.worker.patches.batches import BalanceReport


def log(balance: BalanceReport, every: int = 1) -> dict[str, float]:
    metrics: dict[str, float] = {}
    balance.add_logged({"args": SimpleNamespace(logging_steps=every), "metrics_to_log": metrics})
    return metrics


def test_figures_of_logged_steps() -> None:
    reading, writing = os.pipe()
    batches = GlobalBatchSampler(range(8), BatchLayout(2, 0, 2, 1), [9, 8, 1, 2, 5, 5, 5, 5])
    batches.balanced = True
    balance = BalanceReport(EventWriter(writing, 0))
    balance.follow(batches)
    list(batches)  # a pass that nobody logs
    epoch = iter(batches)
    next(epoch)
    # 17 and 3 tokens where 10 are the mean
    assert log(balance) == {"imbalance": 1.0, "imbalance_upstream": 1.7}
    assert log(balance) == {}  # nothing more was dealt
    list(epoch)
    assert log(balance) == {"imbalance": 1.0, "imbalance_upstream": 1.0}
    list(batches)
    assert log(balance, every=2) == {"imbalance": 1.0, "imbalance_upstream": 1.35}
    os.close(writing)
    with os.fdopen(reading) as stream:
        events: list[dict[str, Any]] = [json.loads(line) for line in stream]
    assert [(event["what"], event["value"]) for event in events] == [
        ("balance", "1.000, upstream's order 1.700"),
        ("balance", "1.000, upstream's order 1.350"),
        ("balance", "1.000, upstream's order 1.350"),
    ]
    assert events[-1]["note"] == "largest micro batch 10, upstream's order 17 tokens; 4 steps"
