"""Chooses the rows that are held out for validation, by a hash of each row's content.

The choice depends on nothing but the rows: it is the same in every run, and equal rows stay together, so that none of
them is trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def hash_row(content: bytes) -> int:
    """Return 64 bits."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")


def choose_limit(hashes: Sequence[int], share: float) -> int:
    """Return the hash up to which a row is held out, so that `share` of the rows is.

    Raises ValueError with the reason if one of the two sides would be empty.
    """
    rows = len(hashes)
    held_out = round(share * rows)
    if held_out < 1:
        raise ValueError(f"{share:g} of {rows:,} rows is less than one row")
    if held_out >= rows:
        raise ValueError(f"{share:g} of {rows:,} rows leaves none to train on")
    ordered = sorted(hashes)
    if ordered[0] == ordered[-1]:
        raise ValueError(f"all {rows:,} rows are equal")
    limit = ordered[held_out - 1]
    return limit if limit < ordered[-1] else max(value for value in ordered if value < limit)
