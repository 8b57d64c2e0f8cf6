"""Recognise a run folder or the record of a trial in another format, which is reported and never
overwritten.

All JSON files below `runs/` have one format. Its number, SCHEMA_VERSION, is the `schema_version` in
each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.worker.finding import Finding, Fix
from launch.worker.json_codec import SCHEMA_VERSION


def format_problem(
    path: Path, record: Mapping[str, Any], verb: str | None = None
) -> Finding | None:
    """Return the problem of the record in the file `path` if it has another format; None if it has
    the format that this version of launch reads and writes.

    `verb`: the verb that a trial's record must name.
    """
    expected: dict[str, object] = {"schema_version": SCHEMA_VERSION}
    if verb is not None:
        expected["verb"] = verb
    for key, value in expected.items():
        found = record.get(key)
        if type(found) is type(value) and found == value:
            continue
        fault = f"its {key} is {found!s:.40}" if key in record else f"it has no {key}"
        message = f"{path} is not in format {SCHEMA_VERSION}, which this version reads: {fault}"
        return Finding.error(
            "other_format", message, None, "use the version of launch that wrote it"
        )
    return None


def add_restart_cure(problem: Finding) -> Finding:
    """Return the problem of a folder in another format that a run is to use, with its cure."""
    cure = Fix.of("{0} archives it and starts over; {1} leaves it", "restart=true", "name=NAME")
    return Finding.error("other_format", problem.message, None, cure)
