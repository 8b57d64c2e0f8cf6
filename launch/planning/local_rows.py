"""Reads the first rows of a data file before a stage is chosen, and finds which stage they fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from launch.config.kinds import Kind
from launch.data.columns import TEXT
from launch.data.draft import MAX_ROWS
from launch.data.first_rows import FirstRows
from launch.data.rl_draft import choose_verifier
from launch.data.rows import read_rows
from launch.data.sources import find_files
from launch.data.stage_kind import choose_kind
from launch.data.truths import find_truth
from launch.errors import UserError

_TRUTHS = ("ground_truth", "answer", "solution", "target", "label", "expected", "output")


@dataclass(frozen=True)
class LocalRows:
    """The first rows of a file or a folder of data as one, and the number of rows."""

    first: Mapping[str, Any]
    count: int  # at most MAX_ROWS

    @property
    def kind(self) -> Kind:
        """The kind of stage that the rows are for; SFT where answers have unknown names, which its
        plan reports.
        """
        try:
            return choose_kind(self.first, None, "")
        except UserError:
            return Kind.sft

    @property
    def is_text(self) -> bool:
        return set(self.first) == {TEXT}

    @property
    def truth(self) -> str | None:
        """The column with the answer that a verifier compares; None without one."""
        if find_truth(self.first) is not None:
            return "ground_truth"
        return next((name for name in _TRUTHS if name in self.first), None)

    @property
    def verifier(self) -> str | None:
        """The verifier that fits the answers; None without answers."""
        if self.truth is None:
            return None
        if find_truth(self.first) is not None:
            return choose_verifier(self.first, Path.cwd())
        return choose_verifier({**self.first, "ground_truth": self.first[self.truth]}, Path.cwd())


def read_local_rows(path: Path) -> LocalRows | None:
    """Read the rows of a local file or folder; None if it can't be read, which the plan reports."""
    try:
        files = find_files(path, "train", "--data")
        rows = [row for file in files for row in islice(read_rows(file), MAX_ROWS)]
    except (UserError, OSError):
        return None
    if not rows or not isinstance(rows[0].value, dict):
        return None
    return LocalRows(FirstRows.of(rows, {}).columns, len(rows))
