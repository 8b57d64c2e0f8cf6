"""Runs a small trainer with a fault under the real supervisor and the real worker, and holds
faults.md to it.

With LAUNCH_UPDATE_FAULTS set, the measured times are written into the table.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import textwrap
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from launch import resources
from launch.config.guards import GuardsConfig
from launch.config.schema import Device, Mode
from launch.execution.diagnosis.advice import Situation
from launch.execution.display import PlainDisplay
from launch.execution.record.folder import RunFolder
from launch.execution.record.outcome import Outcome
from launch.execution.supervise.supervisor import Execution, supervise
from launch.execution.supervise.watch import WatchConfig
from launch.planning.batch_split import Batch
from launch.planning.estimate.out_of_memory import RunSettings
from tests.paths import ROOT

TABLE = ROOT / "docs" / "reference" / "faults.md"
PLAN = Situation(
    trainer="finetune",
    settings=RunSettings(batch=Batch(32, 8, 2, 2), mode=Mode.ddp, device=Device.cpu),
)
# seconds that a machine which others load may take; the trainers here wait for 600
_PATIENCE = 300.0
TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")

PRELUDE = """
import json, os, signal, sys, time
RANK = int(os.environ.get("RANK", "0"))
_events = os.open(f"{os.environ['LAUNCH_CHANNEL']}/rank-{RANK}.events", os.O_WRONLY | os.O_NONBLOCK)
def event(kind, **data):
    whole = {"schema_version": 1, "kind": kind, "time": time.time(), "rank": RANK, **data}
    os.write(_events, json.dumps(whole).encode() + b"\\n")
def step(number, **values):
    event("step", step=number, **{"loss": 1.0, "lr": 1e-5, **values})
def fault():
    open("fault", "w").write(str(time.time()))
def group(seconds):
    import datetime, torch.distributed as dist
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))
    return dist
"""


@dataclass(frozen=True)
class Row:
    """A row of the table. `sees`: what the terminal shows, `...` for what differs; `seconds`: from
    fault to the end.
    """

    fault: str
    sees: str
    id: str
    exit_code: int
    seconds: float


@dataclass(frozen=True)
class Fault:
    """What came of a run with a fault in it."""

    outcome: Outcome
    folder: RunFolder
    shown: str


def run(
    home: Path,
    body: str,
    row: str | None,
    *,
    before_body: str = "",
    ranks: int = 1,
    guards: GuardsConfig | None = None,
    watch_config: WatchConfig | None = None,
    env: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> Fault:
    """Runs `body`, which calls fault() where the fault happens, under the worker in `home`, and
    holds `row` to it.
    """
    script = home / "trainer.py"
    script.write_text(PRELUDE + before_body + textwrap.dedent(body), encoding="utf-8")
    worker = (str(resources.WORKER), "--script", str(script), "--")
    folder = RunFolder(home / "run")
    folder.create()
    shown = io.StringIO()
    watched = watch_config or WatchConfig(guards=guards or GuardsConfig(), situation=PLAN)
    execution = Execution(
        argv=(python, *(TWO_RANKS if ranks == 2 else ()), *worker),
        env={"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **(env or {})},
        watch_config=replace(
            watched, guard_context=replace(watched.guard_context, ranks=tuple(range(ranks)))
        ),
    )
    with contextlib.chdir(home):
        outcome = supervise(execution, folder, PlainDisplay(shown))
    folder.finish(outcome)
    if row:
        marker = home / "fault"
        check(row, shown.getvalue(), outcome.exit_code, time.time() - float(marker.read_text()))
    return Fault(outcome, folder, shown.getvalue())


def rows() -> dict[str, Row]:
    """The table, by the name of the fault."""
    found = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and re.fullmatch(r"\d+(\.\d+)?", cells[4]):
            sees = cells[1].strip("`")
            found[cells[0]] = Row(
                cells[0], sees, cells[2].strip("`"), int(cells[3]), float(cells[4])
            )
    return found


def check(name: str, shown: str, exit_code: int, seconds: float) -> None:
    """Hold the row `name` to what happened: the exit code, the text, and that it was not the
    trainer's own end.
    """
    row = rows()[name]
    assert exit_code == row.exit_code, shown
    pattern = ".*?".join(re.escape(part) for part in row.sees.split("..."))
    assert re.search(pattern, shown, re.DOTALL), f"{row.sees!r} is not in:\n{shown}"
    if row.id != "-":
        assert f"[{row.id}]" in shown, f"[{row.id}] is not in:\n{shown}"
    if os.environ.get("LAUNCH_UPDATE_FAULTS"):
        _write(row, seconds)
    else:
        assert seconds <= row.seconds + _PATIENCE, (
            f"it took {seconds:.1f} s, and the table says {row.seconds}"
        )


def _write(row: Row, seconds: float) -> None:
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    for at, line in enumerate(lines):
        if line.startswith(f"| {row.fault} |"):
            lines[at] = re.sub(r"\| [\d.]+ \|$", f"| {seconds:.1f} |", line)
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")
