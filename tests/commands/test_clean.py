"""`clean` lists what can go, and removes it after a yes and not before; what is needed stays."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launch.api.cleaning import find_removable, remove
from launch.commands.clean import clean
from launch.execution.merge import RECORD
from launch.execution.record.folder import RunFolder
from launch.execution.record.written import record_found
from launch.files import write_json
from tests.execution.files import trl_checkpoint
from tests.execution.report.folders import DONE, PLAN, write_run
from tests.paths import ROOT

HOLD = """
import sys
from pathlib import Path
from launch.execution.record.lock import run_lock
with run_lock(Path(sys.argv[1]), print):
    print("ready", flush=True)
    sys.stdin.read()
"""


def make_run(folder: Path, steps: tuple[int, ...], *, done: bool, **recipe: int) -> Path:
    """A TRL run of one process, with complete checkpoints that it has recorded."""
    plan = {**PLAN, "batch": {"width": 1}, "parallel": {"zero_stage": None}}
    write_run(folder, [{"loss": 2.0}], DONE if done else None, plan=plan)
    RunFolder(folder).write_config({"trainer": {"family": "trl"}, "recipe": recipe})
    for step in steps:
        checkpoint = folder / "model" / f"checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        trl_checkpoint(checkpoint, step)
        record_found(folder, checkpoint)
    return folder


def make_cache(runs: Path, *names: str) -> None:
    for name in names:
        folder = runs / ".cache" / name
        folder.mkdir(parents=True)
        (folder / "rows").write_bytes(b"x" * 10_000)


def listed(runs: Path, name: str | None = None) -> set[str]:
    found = find_removable(runs, name)
    return {str(item.path.relative_to(runs)) for item in found.removable}


@contextmanager
def running(folder: Path) -> Iterator[None]:
    """Another process holds the run's lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield
        process.communicate()


@pytest.fixture(autouse=True)
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "config"
    (folder / "stage").mkdir(parents=True)
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(folder))
    return folder


def test_what_can_go_of_runs_and_caches(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    make_run(runs / "sft" / "whole", (10, 20), done=True)
    make_run(runs / "sft" / "half", (10, 20, 30), done=False)
    make_run(runs / "sft" / "best", (10, 20), done=False, early_stop=2)
    (runs / "sft" / "half" / "model" / "checkpoint-40").mkdir()  # half-written
    merged = runs / "sft" / "whole" / "merged"
    merged.mkdir()
    write_json(merged / RECORD, {})
    make_cache(runs, "data/a", "tokenized/b", "demo/model-c", "other/d")
    notes = runs / "sft" / "notes" / "model" / "checkpoint-10"  # no run
    notes.mkdir(parents=True)
    (runs / ".cache" / "data" / "link").symlink_to(notes, target_is_directory=True)
    assert listed(runs) == {
        "sft/whole/model/checkpoint-10",
        "sft/whole/model/checkpoint-20",
        "sft/whole/merged",
        "sft/half/model/checkpoint-10",
        "sft/half/model/checkpoint-20",
        ".cache/data/a",
        ".cache/tokenized/b",
        ".cache/demo/model-c",
    }
    assert listed(runs, "half") == {
        "sft/half/model/checkpoint-10",
        "sft/half/model/checkpoint-20",
    }


@pytest.mark.parametrize("place", ["stage", "run", "pipeline"])
def test_what_a_stage_a_run_or_a_pipeline_names_is_kept(
    place: str, tmp_path: Path, user_folder: Path
) -> None:
    runs = tmp_path / "runs"
    whole = make_run(runs / "sft" / "whole", (10, 20), done=True)
    make_cache(runs, "demo/model-c")
    names = [str(whole / "model" / "checkpoint-10"), str(runs / ".cache" / "demo" / "model-c")]
    if place == "stage":
        (user_folder / "stage" / "mine.yaml").write_text(f"model:\n  path: {names}\n")
    elif place == "run":
        other = make_run(runs / "dpo" / "after", (), done=True)
        RunFolder(other).write_config({"model": {"path": names}})
    else:
        (runs / "pipelines" / "two").mkdir(parents=True)
        write_json(runs / "pipelines" / "two" / "pipeline.json", {"models": names})
    found = find_removable(runs)
    assert {item.path.name for item in found.removable} == {"checkpoint-20"}
    assert [str(path) for path, _ in found.kept] == names


@pytest.mark.parametrize("place", ["stage", "run", "pipeline", "unfinished run"])
def test_what_is_named_after_the_list_was_made_is_kept(
    place: str, tmp_path: Path, user_folder: Path
) -> None:
    runs = tmp_path / "runs"
    whole = make_run(runs / "sft" / "whole", (10, 20), done=True)
    other = make_run(runs / "dpo" / "after", (), done=place != "unfinished run")
    make_cache(runs, "demo/model-c", "data/a", "data/b")
    found = find_removable(runs)
    assert len(found.removable) == 5
    checkpoint = str(whole / "model" / "checkpoint-10")
    kept = [str(runs / ".cache" / "demo" / "model-c")]
    if place == "unfinished run":
        kept.append(str(runs / ".cache" / "data" / "a"))
    names = [checkpoint, *kept]
    if place == "stage":
        (user_folder / "stage" / "mine.yaml").write_text(f"model:\n  path: {names}\n")
    elif place == "pipeline":
        (runs / "pipelines" / "two").mkdir(parents=True)
        write_json(runs / "pipelines" / "two" / "pipeline.json", {"models": names})
    else:
        RunFolder(other).write_config({"model": {"path": names}})
    cleaned = remove(found)
    assert {str(path) for path, _ in cleaned.kept} == {checkpoint, *kept}
    assert all(Path(name).is_dir() for name in names)
    assert len(cleaned.removed) == 5 - len(names)
    assert not any(path.exists() for path in cleaned.removed)


def test_the_cache_of_an_unfinished_run_is_kept(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    half = make_run(runs / "sft" / "half", (), done=False)
    make_cache(runs, "data/a", "data/b")
    write_json(half / "plan.json", {**PLAN, "command": [str(runs / ".cache" / "data" / "a")]})
    assert listed(runs) == {".cache/data/b"}


def test_nothing_of_a_running_run_or_of_the_caches_goes(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    folder = make_run(runs / "sft" / "half", (10, 20), done=False)
    make_cache(runs, "data/a")
    found = find_removable(runs)
    assert len(found.removable) == 2
    with running(folder):  # it begins after the list was made
        assert listed(runs) == set()
        cleaned = remove(found)
    assert cleaned.removed == ()
    assert {path.name for path, _ in cleaned.kept} == {"checkpoint-10", "a"}
    assert (folder / "model" / "checkpoint-10").is_dir()
    assert (runs / ".cache" / "data" / "a" / "rows").is_file()
    assert len(remove(find_removable(runs)).removed) == 2


def test_a_checkpoint_that_was_broken_meanwhile_makes_the_one_before_it_stay(
    tmp_path: Path,
) -> None:
    folder = make_run(tmp_path / "runs" / "sft" / "half", (10, 20), done=False)
    found = find_removable(tmp_path / "runs")
    (folder / "model" / "checkpoint-20" / "optimizer.pt").unlink()
    assert remove(found).removed == ()
    assert (folder / "model" / "checkpoint-10").is_dir()


@pytest.mark.parametrize(
    "case",
    [
        ([], None, False),
        ([], "no", False),
        ([], "yes", True),
        (["--yes"], None, True),
        (["--json"], None, False),
        (["--json", "--yes"], None, True),
    ],
)
def test_nothing_goes_without_a_yes(
    case: tuple[list[str], str | None, bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options, answer, goes = case
    runs = tmp_path / "runs"
    make_run(runs / "sft" / "whole", (10,), done=True)
    make_cache(runs, "data/a")
    monkeypatch.setattr("sys.stdin.isatty", lambda: answer is not None, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: answer)
    assert clean([f"runs={runs}", *options]) == 0
    left = [folder.exists() for folder in (runs / ".cache/data/a", runs / "sft/whole/model")]
    assert left == [not goes, True]
    printed = capsys.readouterr().out
    if "--json" in options:
        shown = json.loads(printed)
        assert [item["removed"] for item in shown["items"]] == [goes, goes]
        assert shown["bytes"] >= 10_000
    else:
        assert "sft/whole/model/checkpoint-10" in printed and "KiB" in printed
