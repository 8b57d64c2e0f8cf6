"""Submitting without a Slurm: what Ctrl-C leaves, and what a Slurm that is away prints."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.files import append_json
from launch.slurm.jobs import JobFolder
from launch.slurm.planned_jobs import write_job_folder
from launch.slurm.queue import folder_tag
from launch.slurm.schedule import SubmissionStep
from launch.slurm.slurm_cli import query_slurm
from launch.slurm.submission import check_script, submit_all, submit_steps
from tests.messages import names
from tests.slurm.test_schedule import SFT, planned_job


def stand_in(folder: Path, name: str, does: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{does}\n")
    (folder / name).chmod(0o755)


def test_ctrl_c_while_slurm_accepts_the_job_cancels_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    binaries = tmp_path / "bin"
    stand_in(binaries, "sbatch", "kill -INT $PPID; sleep 0.2; echo 12")
    stand_in(binaries, "scancel", f'echo "$@" >{tmp_path}/cancelled')
    monkeypatch.setenv("PATH", f"{binaries}{os.pathsep}{os.environ['PATH']}")
    folder = JobFolder(tmp_path / "jobs")
    folder.write_script("#!/bin/bash\n")
    job = replace(planned_job(tmp_path, *SFT), folder=folder)
    with pytest.raises(KeyboardInterrupt):
        submit_all([SubmissionStep((job,))])
    assert (tmp_path / "cancelled").read_text() == "12\n"
    assert capsys.readouterr().err == "launch: cancelled job 12, which was already submitted\n"


def test_what_check_warns_of_is_printed_before_the_job_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan's interpreter is not on this machine, which `allow` makes a warning."""
    binaries = tmp_path / "bin"
    stand_in(binaries, "sbatch", "echo 12")
    stand_in(binaries, "squeue", "true")
    monkeypatch.setenv("PATH", f"{binaries}{os.pathsep}{os.environ['PATH']}")
    job = planned_job(tmp_path, *SFT, "allow=[no_interpreter,disk_full]")
    assert submit_steps([SubmissionStep((job,))], dry_run=False) == ["12"]
    printed = capsys.readouterr().err
    assert "launch: warning: python: " in printed and "[no_interpreter], allowed" in printed


def test_a_job_of_somebody_else_is_found_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both submitted the same run into one folder; the second must not overwrite its files."""
    binaries = tmp_path / "bin"
    job = planned_job(tmp_path, *SFT, "allow=[no_interpreter,disk_full]")
    write_job_folder(job)
    script = job.folder.script.read_text()
    append_json(job.folder.path / "jobs.jsonl", {"job_id": "12", "user": "daemon"})
    tag = folder_tag(job.folder.path)
    line = f"12|RUNNING|None|1:00|1:00|0|1|n1|N/A|1763740800|lab|daemon|{tag}|"
    stand_in(binaries, "squeue", f'case "$1" in *,daemon) echo "{line}" ;; esac')
    monkeypatch.setenv("PATH", f"{binaries}{os.pathsep}{os.environ['PATH']}")
    changed = replace(job, script=replace(job.script, title="of the second"))
    with pytest.raises(UserError) as refused:
        submit_steps([SubmissionStep((changed,))], dry_run=False)
    [problem] = refused.value.problems
    assert problem.id == "already_submitted"
    assert names(problem.message, "daemon") and names(problem.message, "12")
    assert job.folder.script.read_text() == script


@pytest.mark.parametrize(
    ("printed", "away", "outcome"),
    [
        ("Invalid feature specification", "", "launch plan stage=sft --cfg job"),
        ("Requested node configuration is not available", "", "sinfo --Node --long"),
        ("Requested node configuration is not available", "n2", None),
    ],
)
def test_what_sbatch_refuses(
    printed: str, away: str, outcome: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cure names the stage; nodes that are only away make it a warning."""
    stand_in(tmp_path, "sbatch", f"echo 'allocation failure: {printed}' >&2; exit 1")
    stand_in(tmp_path, "sinfo", f"echo '{away}'")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    step = SubmissionStep((planned_job(tmp_path, *SFT),))
    if outcome is None:
        check_script(step, allowed=False)
        return
    with pytest.raises(UserError) as refused:
        check_script(step, allowed=False)
    [problem] = refused.value.problems
    assert problem.id == "sbatch_refused" and printed in problem.message
    assert outcome in str(problem.cure)


def test_a_slurm_that_is_away_is_reported_at_the_first_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(tmp_path, "squeue", "echo 'error: Unable to contact slurm controller' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("launch.slurm.slurm_cli._PAUSES", (0.0,))
    with pytest.raises(UserError, match="slurm_unresponsive"):
        query_slurm(["squeue"])
    [line] = capsys.readouterr().err.splitlines()
    assert names(line, "squeue") and "Unable to contact slurm controller" in line
