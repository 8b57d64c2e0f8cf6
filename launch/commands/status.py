"""`status`: the runs that there are, and how each one stands."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from launch.commands.arguments import run_words
from launch.errors import EXIT_DONE
from launch.runtime.progress import duration
from launch.runtime.runs import Standing, find_runs, resolve_run, standing

USAGE = "launch status [RUN ...] [runs=DIR] [--json]"


def status(words: list[str]) -> int:
    """Print how the runs stand, all of them or those named; one JSON object a run with `--json`.

    Raises UserError (`unknown_run`, `ambiguous_run`).
    """
    said = run_words("status", words, {"--json": False}, USAGE)
    folders = [resolve_run(name, said.runs) for name in said.names] or find_runs(said.runs)
    standings = [standing(folder) for folder in folders]
    if "--json" in said.options:
        print(json.dumps([one.as_json() for one in standings], indent=2, ensure_ascii=False))
    elif not standings:
        print(f"no runs in {said.runs}")
    else:
        print("\n".join(table(standings, time.time())))
    return EXIT_DONE


def table(standings: Sequence[Standing], now: float) -> list[str]:
    """A header and a line for each run; a failed one's cause below it."""
    rows: list[tuple[str, ...]] = [("run", "state", "step", "loss", "tokens/s", "left", "since")]
    rows += [_row(one, now) for one in standings]
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    told = [lines[0]]
    for one, line in zip(standings, lines[1:], strict=True):
        told.append(line)
        if one.outcome and one.outcome.cause:
            told.append(f"  {one.outcome.cause}")
    return told


def _row(one: Standing, now: float) -> tuple[str, ...]:
    step = "" if one.step is None else f"{one.step}" + (f"/{one.total}" if one.total else "")
    state = one.state
    if one.holder:
        state += f", process {one.holder.pid} on {one.holder.host}, heartbeat {one.heartbeat:.0f} s ago"
    elif one.outcome and one.outcome.exit_code:
        state += f" ({one.outcome.exit_code})"
    return (
        one.name,
        state,
        step or (one.phase or ""),
        "" if one.loss is None else f"{one.loss:.4f}",
        "" if one.rate is None else f"{one.rate:,.0f}",
        "" if one.left is None else duration(one.left),
        duration(now - one.since) if one.holder else time.strftime("%m-%d %H:%M", time.localtime(one.since)),
    )
