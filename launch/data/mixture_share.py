"""The share of one data set in a mixture, by rows and by tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class MixtureShare:
    """What one data set contributes to an epoch."""

    name: str
    tokens_per_row: float  # learnt in a row, on average over the tokenised ones
    rows: int | None  # that an epoch trains on; None where they are not known
    available: int | None = None  # rows of the data set, of which `rows` are a share
    row_share: float | None = None  # None where the rows of a data set are not known
    token_share: float | None = None

    def describe(self) -> str:
        """Return `a.jsonl: 40 rows (50.0%), about 1,200 tokens learnt (12.5%)`."""
        if self.rows is None:
            learnt = f"about {self.tokens_per_row:,.0f} tokens learnt in each"
            return f"{self.name}: rows not counted, {learnt}"
        tokens = self.rows * self.tokens_per_row
        facts = (f"{self.rows:,} rows", f"about {tokens:,.0f} tokens learnt")
        if self.row_share is None or self.token_share is None:
            return f"{self.name}: {', '.join(facts)}"
        return (
            f"{self.name}: {facts[0]} ({self.row_share:.1%}), {facts[1]} ({self.token_share:.1%})"
        )


def find_shares_of_rows(
    mixture: Sequence[MixtureShare], proportion: Sequence[float]
) -> tuple[float, ...] | None:
    """Return the share of each data set's rows whose learnt tokens stand in `proportion`, the largest
    ones that take no row twice; None where rows or tokens of one are not known.
    """
    needed = []
    for data_set, part in zip(mixture, proportion, strict=True):
        tokens = (data_set.available or 0) * data_set.tokens_per_row
        if not tokens:
            return None
        needed.append(part / tokens)
    return tuple(share / max(needed) for share in needed)
