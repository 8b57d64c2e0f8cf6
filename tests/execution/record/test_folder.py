from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.execution.record.folder import (
    RunFolder,
    read_git_state,
    read_versions,
    render_command_script,
)
from launch.execution.record.outcome import Outcome, folder_status, read_outcome
from launch.files import append_json


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "runs" / "demo" / "x")
    folder.create()
    return folder


def test_the_status_of_a_folder_from_absent_to_done(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder_status(folder.path) == "absent"
    folder.path.mkdir()
    assert folder_status(folder.path) == "absent"
    folder.create()
    assert folder_status(folder.path) == "unfinished"
    folder.finish(Outcome(1, 2.0, 5, math.nan, cause="rank 0: out of memory", detail=("a", "b")))
    assert folder_status(folder.path) == "failed"
    outcome = read_outcome(folder.path)
    assert outcome is not None
    assert (outcome.exit_code, outcome.steps, outcome.cause, outcome.detail) == (
        1,
        5,
        "rank 0: out of memory",
        ("a", "b"),
    )
    assert outcome.last_loss is not None
    assert math.isnan(outcome.last_loss)
    folder.create()
    assert folder_status(folder.path) == "unfinished"
    folder.finish(Outcome(0, 2.0, 5, 0.5))
    assert folder_status(folder.path) == "done"
    assert read_outcome(folder.path) == Outcome(0, 2.0, 5, 0.5)


def test_done_is_an_object_with_a_version(folder: RunFolder) -> None:
    folder.finish(Outcome(0, 12.3456, 50, 3.67, ended_processes=1))
    content = json.loads((folder.path / "DONE").read_text(encoding="utf-8"))
    finished = content.pop("finished")
    assert content == {
        "schema_version": 1, "exit_code": 0, "seconds": 12.346, "steps": 50, "last_loss": 3.67, "ended_processes": 1
    }  # fmt: skip
    assert finished.endswith("Z")


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_damaged_mark_has_no_outcome(folder: RunFolder, content: str) -> None:
    (folder.path / "DONE").write_text(content, encoding="utf-8")
    assert read_outcome(folder.path) is None
    assert folder_status(folder.path) == "unfinished"


def test_writing_is_atomic(folder: RunFolder) -> None:
    folder.write_json("plan.json", {"schema_version": 1, "a": 1})
    with pytest.raises(TypeError):
        folder.write_json("plan.json", {"a": object()})
    assert json.loads((folder.path / "plan.json").read_text(encoding="utf-8")) == {
        "schema_version": 1,
        "a": 1,
    }
    assert [path.name for path in folder.path.iterdir() if path.name.startswith(".")] == []


def test_the_script_runs_with_the_same_arguments(tmp_path: Path, folder: RunFolder) -> None:
    report = (
        "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd(), "
        "os.environ.get('A'), sorted(os.environ)]))"
    )
    arguments = [
        "--name",
        "two words",
        "--lr=-1e-5",
        "-5",
        "--quote",
        'it\'s "$HOME" `x`',
        "--data",
        "a",
        "1.0",
        "",
        "*",
    ]
    folder.write_command(
        [sys.executable, "-c", report, *arguments], {"A": "x y's"}, ["BEAKER_*", "GONE"]
    )
    script = folder.path / "command.sh"
    assert os.access(script, os.X_OK)
    environ = {**os.environ, "BEAKER_JOB_ID": "1", "GONE": "1"}
    process = subprocess.run(
        [str(script)], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    received, cwd, value, names = json.loads(process.stdout)
    assert (received, cwd, value) == (arguments, str(tmp_path), "x y's")
    assert "BEAKER_JOB_ID" not in names
    assert "GONE" not in names


def test_a_script_with_a_secret_requires_it_from_the_environment(tmp_path: Path) -> None:
    text = render_command_script(["true"], {"HF_TOKEN": "swordfish"}, [])
    assert "swordfish" not in text
    path = tmp_path / "x.sh"
    path.write_text(text, encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if name != "HF_TOKEN"}
    without = subprocess.run(
        ["bash", str(path)], env=environ, capture_output=True, text=True, check=False
    )
    assert without.returncode != 0
    assert "HF_TOKEN" in without.stderr
    assert (
        subprocess.run(
            ["bash", str(path)], env={**environ, "HF_TOKEN": "x"}, check=False
        ).returncode
        == 0
    )


def test_a_line_of_the_script_holds_a_flag_and_its_values() -> None:
    text = render_command_script(
        ["python", "-m", "x", "--lr", "1e-5", "--data", "a", "1.0"], {}, []
    )
    assert text.endswith("python \\\n    -m x \\\n    --lr 1e-5 \\\n    --data a 1.0\n")


def test_versions_come_from_the_interpreter_named(folder: RunFolder) -> None:
    folder.write_versions(sys.executable)
    content = json.loads((folder.path / "versions.json").read_text(encoding="utf-8"))
    assert content["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "psutil" in content["packages"]
    assert content["schema_version"] == 1


def test_an_interpreter_that_is_missing_is_a_problem_not_an_error() -> None:
    assert read_versions("/no/such/python")["problems"] == ["packages: not found"]


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_git_state(tmp_path: Path) -> None:
    assert read_git_state(tmp_path)["commit"] is None
    assert read_git_state(tmp_path / "missing")["why"]
    git(tmp_path, "init", "-q")
    assert read_git_state(tmp_path)["commit"] is None
    (tmp_path / "file").write_text("1", encoding="utf-8")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-qm", "first")
    state = read_git_state(tmp_path)
    assert (len(state["commit"]), state["dirty"]) == (40, False)
    (tmp_path / "file").write_text("2", encoding="utf-8")
    assert read_git_state(tmp_path)["dirty"] is True
    below = tmp_path / "below"
    below.mkdir()
    assert read_git_state(below) == {
        "commit": None,
        "dirty": None,
        "why": "not the top of a git work tree",
    }
    assert read_git_state(tmp_path, must_hold="other")["commit"] is None


RECORDS = ["events.jsonl", "metrics.jsonl", "logs", "model", "stacks", "checkpoints", "DONE", "new"]


@pytest.mark.parametrize(
    "name",
    [
        *RECORDS,
        "logs/rank-0.log",
        "logs/launch.log",
        "stacks/rank-1.txt",
        "model/config.json",
        "model/checkpoint-2/optimizer.pt",
        "model/wandb",
        "evaluation/digests.json",
        "incomplete",
    ],
)
def test_a_link_in_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    run, victim = RunFolder(tmp_path / "run"), tmp_path / "victim"
    victim.mkdir()
    link = run.path / name
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    with pytest.raises(UserError, match=rf"{name}\b.*\[linked_record\]"):
        run.create()
    assert list(victim.iterdir()) == [] and not (run.path / "outcome.reserved").exists()


@pytest.mark.parametrize("place", ["model/wandb", "converted/checkpoint-2"])
def test_links_that_are_written_by_the_run_are_its_own(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "run" / place
    folder.mkdir(parents=True)
    (folder / "latest-run").symlink_to(tmp_path)
    RunFolder(tmp_path / "run").create()


def test_the_folder_of_runs_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "scratch")
    RunFolder(tmp_path / "runs" / "sft" / "a").create()
    assert (tmp_path / "scratch" / "sft" / "a" / "logs").is_dir()


def test_a_link_that_comes_later_is_not_followed(folder: RunFolder, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    for path in (folder.events, folder.path / "plan.json", folder.path / "outcome.reserved"):
        path.unlink(missing_ok=True)
        path.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        append_json(folder.events, {"a": 1})
    folder.write_json("plan.json", {"a": 1})  # takes the place of the link
    folder.finish(Outcome(0, 2.0, 5, 0.5))
    assert victim.read_text() == "untouched"
    assert folder_status(folder.path) == "done" and not (folder.path / "plan.json").is_symlink()


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\u2028"])
def test_a_cause_is_one_line(folder: RunFolder, ending: str) -> None:
    text = f"out of memory{ending}other-run  done"
    folder.finish(Outcome(1, 2.0, 5, 0.5, cause=text, detail=(text,), cure=text, cause_id=text))
    outcome = read_outcome(folder.path)
    assert outcome is not None and outcome.finding is not None
    assert outcome.cause == outcome.detail[0] == "out of memory other-run  done"
    assert (
        len(str(outcome.finding).splitlines()) == 1
        and len((outcome.cure_line or "").splitlines()) == 1
    )
