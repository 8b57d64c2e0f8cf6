"""The translation of another tool's file in progress, and its values as numbers and overrides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.config.other_tool_files import LINE
from launch.config.quoting import quote_if_needed
from launch.config.typed_values import is_sweep, write_value
from launch.planning.local_rows import LocalRows
from launch.worker.finding import Fix


@dataclass
class Translation:
    """A file of another tool, and the overrides that it is translated into."""

    tool: str
    file: Path
    settings: dict[str, Any]  # what is still to be translated
    ranks: int
    overrides: dict[str, str] = field(default_factory=dict)  # the stage first
    batch: str = ""  # the arithmetic of the global batch
    differences: list[str] = field(default_factory=list)  # what differs, and what that changes
    missing: list[str] = field(default_factory=list)  # what only the reader knows
    left_out: list[str] = field(default_factory=list)  # what changes no number of the training
    unneeded: list[str] = field(default_factory=list)  # settings that the line is the same without
    # values for keys that the trainer may not support with the first one
    alternatives: dict[str, str] = field(default_factory=dict)
    rows: LocalRows | None = None  # of its data, where that is a file here
    given: dict[str, str] = field(default_factory=dict)  # overrides of the line, by key
    plans: bool = False  # whether the line plans, with what is missing left to the stage

    def take(self, *names: str) -> Any:
        """Remove settings of these names, and return the first value."""
        values = [self.settings.pop(name, None) for name in names]
        return next((value for value in values if has_content(value)), None)

    def set(self, key: str, value: Any) -> None:
        text = str(value) if is_sweep(value) else as_override(value)
        self.overrides[key] = write_value(key, text)

    @property
    def lines(self) -> list[str]:
        return [f"{key}={value}" for key, value in self.overrides.items()]

    @property
    def remarks(self) -> list[str]:
        """The arithmetic of the line, what differs in it, and what it leaves out."""
        remarks = []
        if self.batch:
            grows = ""
            if self.ranks == 1 and self.tool != LINE:
                grows = f"; `launch plan {self.file} gpus=N` prints the line for N GPUs"
            remarks.append(f"{self.batch}{grows}")
        if self.differences:
            remarks.append(f"what differs: {'; '.join(self.differences)}")
        if self.left_out:
            remarks.append(f"left out, as it changes no number: {', '.join(self.left_out)}")
        if self.unneeded:
            remarks.append(f"what needs no key of its own here: {', '.join(self.unneeded)}")
        return remarks

    def explain(self, command: str) -> Fix:
        """Return the line with its arithmetic, what is missing of it, and what differs."""
        missing = "; ".join(self.missing)
        if self.missing and self.plans:
            opening = f"this is missing, and the stage's own stands in for it: {missing}"
            opening += ". the command without it: {0}"
        elif self.missing:
            opening = f"it cannot be planned yet, because this is missing: {missing}"
            opening += ". the command without it: {0}"
        elif self.tool == LINE:
            opening = (
                "the equivalent command, with the stage's own values for all that it omits: {0}"
            )
        else:
            opening = "the equivalent command: {0}"
        return Fix.of(". ".join([opening, *self.remarks]), f"$ {command}")


def has_content(value: Any) -> bool:
    return value is not None and value not in ("", [], {})


def as_number(value: Any) -> float:
    """Return a number; 0 for anything else. YAML reads `2e-4` as a text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


def as_override(value: Any) -> str:
    """Return a value as an override has it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{','.join(map(as_override, value))}]"
    return quote_if_needed(str(value))


def entry_text(entry: Mapping[str, Any]) -> str:
    """Return an entry of data.mix as an override has it."""
    parts = [f"name: {as_override(entry['name'])}"]
    split = entry.get("split") or "train"
    if split != "train":
        parts.append(f"split: {as_override(split)}")
    share = entry.get("share") or 1
    if share != 1:
        parts.append(f"share: {share}")
    return f"{{{', '.join(parts)}}}"


def shorten_value(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
