"""Counts the labels of KTO's rows, and balances their weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.data.row_errors import parse_json

LABEL = "label"  # the column of a staged row
MOST_OF_ONE_KIND = 0.5  # the largest share of steps whose rows all have the same label


@dataclass
class LabelCount:
    """Counts the good and the bad answers of converted rows."""

    good: int = 0
    bad: int = 0

    def add(self, columns: Mapping[str, Any]) -> None:
        """Count a converted row; one without a label is not counted."""
        if LABEL in columns:
            self.good += columns[LABEL] is True
            self.bad += columns[LABEL] is False

    def share_of_one_kind(self, batch: int) -> float:
        """Return the expected share of shuffled steps of so many rows that have one label only. There
        are labels.
        """
        good = self.good / (self.good + self.bad)
        return float(good**batch + (1 - good) ** batch)

    def note(self) -> str | None:
        """Describe how many answers are good; None where no row has a label."""
        if not self.good + self.bad:
            return None
        return f"{self.good:,} answers are labelled good, {self.bad:,} bad"


def count_labels(file: Path) -> LabelCount:
    """Count the labels of a staged file."""
    count = LabelCount()
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            row = parse_json(line)
            if isinstance(row, dict):
                count.add(row)
    return count


# The largest advised ratio of the good answers' total weight to that of the bad ones
# (arXiv:2402.01306, equation 8, as in trl/trainer/kto_trainer.py:1165).
LARGEST_RATIO = 1.33
_USUAL_RATIO = 1.15  # in the middle of 1 and LARGEST_RATIO


def measure_balance(count: LabelCount, desirable: float, undesirable: float) -> float:
    """Return the total weight of the good answers divided by that of the bad ones; infinite if the
    latter is 0.
    """
    bad = count.bad * undesirable
    return count.good * desirable / bad if bad else math.inf


def balance_weights(
    count: LabelCount, desirable: float = 1.0, undesirable: float = 1.0
) -> tuple[str, float]:
    """Return the recipe key of the weight to raise, and the weight that balances the labels.

    Both labels have rows. The weight has two digits, and the ratio stays within the advice.
    """
    if measure_balance(count, desirable, undesirable) > LARGEST_RATIO:
        weight = count.good * (desirable or 1.0) / count.bad / _USUAL_RATIO
        return "undesirable_weight", float(f"{weight:.2g}")
    weight = count.bad * (undesirable or 1.0) / count.good * _USUAL_RATIO
    return "desirable_weight", float(f"{weight:.2g}")
