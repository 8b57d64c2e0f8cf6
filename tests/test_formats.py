"""A run folder or a trial of another format: every verb names it, and none trains over it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launch.execution.resume import clear_run_folder, decide_start, is_finished
from launch.planning.build import plan_on_this_machine
from tests.conftest import Launch, composed
from tests.fixtures.pack import unpack

RUN = ("stage=demo", "trainer=trl_sft", "device=cpu", "recipe.max_steps=4")
TRIAL = ("stage=demo", "trainer=trl_sft", "name=small")
NAME = "demo/cpu1-7f7f03e5"  # of the recorded run
# what stands in plan.json, or in the trial's record, instead of this format's number
OTHERS: dict[str, dict[str, Any]] = {"a later one": {"schema_version": 2}, "none": {}}


@dataclass(frozen=True)
class Case:
    """A line of a verb that meets a folder of another format."""

    argv: tuple[str, ...]
    code: int = 2
    kind: str = "trl_sft"  # the recorded folder
    file: str = "plan.json"  # of it, which has another format
    cure: str = "use the version of launch that wrote it"


OVER = "restart=true archives it and starts over"
PIPELINE = ("demo:trainer=trl_sft", "device=cpu", "demo:recipe.max_steps=4")
VERBS = {
    "run": Case(("run", *RUN), cure=OVER),
    "run --json": Case(("run", *RUN, "--json"), cure=OVER),
    "submit": Case(("submit", *RUN, "dry_run=true"), cure=OVER),
    "sweep": Case(("run", *RUN, "sweep=true", "recipe.seed=0,1"), cure=OVER),
    "pipeline": Case(("run", "pipeline=demo,demo_dpo", *PIPELINE), cure=OVER),
    "bench": Case(
        ("bench", *TRIAL, "device=cpu", "--", "--", "recipe.per_device_batch_size=8"),
        kind="bench",
        file="bench.json",
        cure=OVER,
    ),
    "rollout": Case(
        ("rollout", *TRIAL, "device=cpu", "processes=1,2"),
        kind="rollout",
        file="rollout.json",
        cure=OVER,
    ),
    "tune": Case(("tune", *TRIAL, "device=cpu"), kind="tune", file="tune.json", cure=OVER),
    "eval": Case(("eval", NAME)),
    "generate": Case(("generate", NAME, "a prompt")),
    "merge": Case(("merge", NAME)),
    "clean": Case(("clean",), code=0),
    "compare": Case(("compare", NAME, NAME)),
    "status": Case(("status",), code=0),
    "status --json": Case(("status", "--json"), code=0),
    "report": Case(("report", NAME), code=0),
    "report of a bench": Case(
        ("report", "demo/bench-small"), code=0, kind="bench", file="bench.json"
    ),
}


def give_other_format(path: Path, other: dict[str, Any]) -> None:
    """Replace the format's number in a JSON file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["schema_version"]
    path.write_text(json.dumps({**content, **other}), encoding="utf-8")


def contents(folder: Path) -> dict[Path, bytes]:
    """The files of a folder, without the page that `report` writes."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files if path.name != "report.html"}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_of_another_format_is_named_and_left_as_it_is(
    verb: str, other: str, tmp_path: Path, launch: Launch
) -> None:
    case = VERBS[verb]
    folder = unpack(case.kind, tmp_path)
    give_other_format(folder / case.file, OTHERS[other])
    before = contents(folder)
    done = launch(*case.argv)
    page = folder / "report.html"
    shown = done.stdout + done.stderr + (page.read_text(encoding="utf-8") if page.exists() else "")
    assert done.returncode == case.code, shown
    assert "other_format" in shown and f"{folder.name}/{case.file} is not in format 1" in shown
    assert case.cure in shown and "Traceback" not in shown
    assert contents(folder) == before
    assert list(folder.parent.iterdir()) == [folder], "nothing is archived, no other run begins"


def test_restart_archives_a_run_of_another_format(tmp_path: Path, launch: Launch) -> None:
    folder = unpack("trl_sft", tmp_path)
    give_other_format(folder / "plan.json", OTHERS["a later one"])
    launch("status")  # changes to the folder
    config = composed(*RUN, "restart=true")
    plan = plan_on_this_machine(config)
    assert plan.folder == folder and not is_finished(plan)
    lines: list[str] = []
    clear_run_folder(plan, decide_start(plan), lines.append)
    (archive,) = folder.parent.iterdir()
    assert archive.name.startswith(f"{folder.name}.{time.strftime('%Y')}")
    assert str(archive) in lines[0] and (archive / "DONE").exists()
