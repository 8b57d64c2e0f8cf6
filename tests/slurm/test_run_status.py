"""The status of a run that is a Slurm job: without a Slurm, from what squeue would print."""

from __future__ import annotations

import json
import os
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest

from launch.api.tables import status_table
from launch.commands.run_parsers import build_status_parser
from launch.commands.runs import logs, status
from launch.commands.stop import stop
from launch.errors import UserError
from launch.execution.record.folder import RunFolder
from launch.execution.record.lock import run_lock
from launch.execution.record.outcome import Outcome
from launch.files import append_json
from launch.planning.find_runs import resolve_run
from launch.slurm.allocation import read_allocation
from launch.slurm.job_status import list_job_statuses, read_job_status
from launch.slurm.jobs import (
    JobFolder,
    find_job_folder,
    find_job_folders,
    find_job_ids,
    find_jobs,
    note_jobs,
)
from launch.slurm.queue import QueuedJob, find_tag, folder_tag, list_user_jobs
from launch.slurm.slurm_cli import parse_duration, query_slurm
from tests.execution.record.records import write_run
from tests.messages import names, values_of

DENIED = "Access/permission denied"
PENDING = QueuedJob("12", "PENDING", "Resources", 3600.0, 0.0, 0, 2, "", "OWN")
RUNNING = replace(PENDING, state="RUNNING", reason="None", used=100.0, left=3500.0, hosts="n[1-2]")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was submitted as job 12 and has not begun, and a job folder that was only
    rendered.
    """
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    for name in ("waits", "rendered"):
        JobFolder.of(runs, "sft", name).write_script("#!/bin/bash\n")
    JobFolder.of(runs, "sft", "waits").record_submission("12")
    return runs


def queue(runs: Path, *jobs: QueuedJob) -> list[QueuedJob]:
    """The jobs with the tag of the run that waits in place of OWN."""
    own = folder_tag(JobFolder.of(runs, "sft", "waits").path)
    return [replace(job, tag=job.tag.replace("OWN", own)) for job in jobs]


def state(runs: Path, *jobs: QueuedJob) -> str:
    return read_job_status(runs / "sft" / "waits", runs, queue(runs, *jobs)).state


def finished(runs: Path, code: int, seconds_ago: float) -> None:
    folder = write_run(runs / "sft" / "waits", steps=2)
    RunFolder(folder).finish(Outcome(code, 1.0, 2, 1.0, cause="no luck" if code else None))
    when = time.time() - seconds_ago
    os.utime(folder / ("FAILED" if code else "DONE"), (when, when))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("29:58", 1798),
        ("1:00:00", 3600),
        ("1-12", 129600),
        ("2-00:00:01", 172801),
        ("1-2:30", 95400),
        ("0:00", 0),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_what_is_no_time() -> None:
    assert parse_duration("UNLIMITED") == parse_duration("infinite") == float("inf")
    assert [parse_duration(text) for text in ("N/A", "NOT_SET", "INVALID", "")] == [None] * 4


def test_a_run_that_has_not_begun(runs: Path) -> None:
    assert state(runs, PENDING) == "pending"
    assert state(runs, replace(PENDING, restarts=1)) == "requeued"
    assert state(runs, RUNNING) == "starting"
    assert state(runs, replace(RUNNING, state="REQUEUED")) == "requeued"
    assert state(runs, replace(RUNNING, state="FAILED")) == state(runs) == "ended"
    assert read_job_status(runs / "sft" / "waits", runs, None).state == "submitted"
    # of another run, and of another cluster that counts from 1 as well
    assert state(runs, replace(PENDING, job_id="13", tag="elsewhere")) == "ended"
    assert state(runs, replace(PENDING, tag="elsewhere")) == "ended"
    assert state(runs, replace(PENDING, tag="", submitted="1763740800")) == "ended"


def test_a_job_that_was_submitted_by_hand_is_known_by_its_comment(runs: Path) -> None:
    assert [job_status.run.name for job_status in list_job_statuses(runs, [])] == ["sft/waits"]
    folder = JobFolder.of(runs, "sft", "rendered")
    by_hand = replace(PENDING, job_id="20_3", tag=folder_tag(folder.path))
    assert [job_status.job_id for job_status in list_job_statuses(runs, [by_hand])] == [
        "20_3",
        "12",
    ]
    (folder.path / "21.0").mkdir()
    (folder.path / "21_2.1-1763740800").mkdir()
    assert find_job_ids(folder) == ["21", "21_2"]


def line_of(job: QueuedJob) -> str:
    """What squeue prints of a job that runs."""
    last = f"{job.submitted}|{job.cluster}|{job.user or 'me'}|{job.tag}|"
    return f"{job.job_id}|RUNNING|None|1:00|1:00|{job.restarts}|1|n1|N/A|{last}"


def test_a_job_without_the_comment_is_known_once_it_is_noted_and_not_by_its_id_alone(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another script, or on a cluster that changes or empties comments."""
    folder = JobFolder.of(runs, "sft", "rendered")
    own = replace(RUNNING, job_id="21", tag="", submitted="1763740800", cluster="alpha")
    squeue(
        tmp_path, monkeypatch, f"echo '{line_of(own)}'; echo '{line_of(replace(own, job_id='22'))}'"
    )
    assert find_jobs(folder, [own]) == []
    note_jobs({"21": folder})
    later = replace(own, submitted="1763749999")
    assert find_jobs(folder, [own]) == [own]
    # requeued, which renews the time of submission
    assert find_jobs(folder, [again := replace(later, state="PENDING", restarts=1)]) == [again]
    # the id, used again: on this cluster, set up anew; on another one; by a job of another run
    for other in (
        later,
        replace(own, cluster="beta"),
        replace(later, restarts=1, tag=folder_tag(JobFolder.of(runs, "sft", "waits").path)),
    ):
        assert find_jobs(folder, [other]) == []


def test_a_comment_that_is_emptied_later_does_not_lose_the_job(runs: Path) -> None:
    folder = JobFolder.of(runs, "sft", "waits")
    tagged = replace(PENDING, tag=folder_tag(folder.path), submitted="1763740800")
    assert read_job_status(runs / "sft" / "waits", runs, [tagged]).state == "pending"
    emptied = replace(tagged, tag="")
    assert read_job_status(runs / "sft" / "waits", runs, [emptied]).state == "pending"
    again = replace(emptied, restarts=1, submitted="1763740900")
    assert read_job_status(runs / "sft" / "waits", runs, [again]).state == "requeued"


@pytest.mark.parametrize(
    ("comment", "tag"),
    [
        ("launch:0123456789ab", "launch:0123456789ab"),
        ("mine | of x launch:0123456789ab", "launch:0123456789ab"),
        ("launch:0123456789ab; added by a plugin", "launch:0123456789ab"),
        ("prelaunch:0123456789ab", ""),
        ("launch:0123456789abc", ""),
        ("(null)", ""),
    ],
)
def test_the_tag_in_a_comment(comment: str, tag: str) -> None:
    assert find_tag(comment) == tag


def test_without_an_answer_no_job_is_taken_for_the_one_that_began(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = JobFolder.of(runs, "sft", "rendered")
    squeue(tmp_path, monkeypatch, "exit 1")
    note_jobs({"21": folder})
    (folder.path / "job-22.json").write_text('{"job_id": "22"', encoding="utf-8")  # cut short
    jobs = [replace(RUNNING, job_id=job_id, tag="") for job_id in ("21", "22")]
    assert find_jobs(folder, jobs) == []


def test_what_a_job_of_the_same_id_left_is_not_in_the_folder_of_this_one(runs: Path) -> None:
    folder = JobFolder.of(runs, "sft", "waits")
    environ = {"SLURM_JOB_ID": "12", "SLURM_NODEID": "1", "LAUNCH_HOSTS": "n1 n2"}
    starts = ["", "9", "10"]
    met = []
    for started in starts:
        allocation = read_allocation({**environ, "LAUNCH_STARTED": started})
        met.append(folder.attempt(allocation.job_id, allocation.restarts, allocation.started))
        met[-1].mkdir()
    assert [path.name for path in met] == ["12.0", "12.0-9", "12.0-10"]
    folder.attempt("12", 1, "11").mkdir()
    assert folder.attempts("12", 0) == met and folder.attempts("1", 0) == []
    assert read_allocation({**environ, "LAUNCH_STARTED": "../x"}).started == ""


def test_a_folder_of_runs_may_have_two_names(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(runs)
    linked = folder_tag(tmp_path / "link/.jobs/sft/waits")
    assert state(runs, replace(PENDING, tag=linked)) == "pending"
    [job_status] = list_job_statuses(tmp_path / "link", queue(runs, PENDING))
    assert job_status.state == "pending"


def test_a_job_that_only_tokenises_never_has_a_run_folder(runs: Path) -> None:
    folder = JobFolder.of(runs, "sft", "waits.tokenize")
    folder.write_script("#!/bin/bash\n")
    folder.log("14").write_text("tokenised\n", encoding="utf-8")
    job = replace(RUNNING, job_id="14", tag=folder_tag(folder.path))
    assert read_job_status(runs / "sft/waits.tokenize", runs, [job]).state == "running"
    ended = read_job_status(runs / "sft/waits.tokenize", runs, [replace(job, state="COMPLETED")])
    assert (ended.state, ended.cause) == ("ended", None)
    assert (
        read_job_status(runs / "sft/waits.tokenize", runs, [replace(job, state="FAILED")]).cause
        == "tokenised"
    )


def test_a_task_of_an_array_is_known_by_its_id_and_the_array(runs: Path) -> None:
    folder = JobFolder.of(runs, "sft", "rendered")
    folder.record_submission("30_1", Path("/a/array.sbatch"))
    with (folder.path / "jobs.jsonl").open("a") as file:
        file.write('{"job_id": "31')  # cut short
    tag = folder_tag(Path("/a"))
    tasks = [replace(PENDING, job_id=f"30_{index}", tag=tag) for index in range(3)]
    assert [job.job_id for job in find_jobs(folder, tasks)] == ["30_1"]


def test_a_run_that_has_begun(runs: Path) -> None:
    folder = write_run(runs / "sft" / "waits", steps=2, total=4)
    assert state(runs) == "unfinished"
    assert state(runs, replace(PENDING, restarts=1)) == "requeued"
    with run_lock(folder, pytest.fail):
        assert state(runs, RUNNING) == "running"
    finished(runs, 1, seconds_ago=1000)
    assert state(runs) == "failed"
    assert state(runs, RUNNING) == "starting"  # it failed before this job began
    finished(runs, 1, seconds_ago=50)
    assert state(runs, RUNNING) == "failed"
    assert state(runs, replace(RUNNING, state="COMPLETING")) == "failed"


def test_the_living_job_counts(runs: Path) -> None:
    JobFolder.of(runs, "sft", "waits").record_submission("9")
    jobs = queue(runs, PENDING, replace(PENDING, job_id="9", state="CANCELLED"))
    job_status = read_job_status(runs / "sft" / "waits", runs, jobs)
    assert (job_status.job_id, job_status.state) == ("12", "pending")


def test_the_table_has_jobs_where_there_are_any(runs: Path) -> None:
    write_run(runs / "sft" / "alone", steps=2)
    log = JobFolder.of(runs, "sft", "waits").log("12")
    rows = [
        " ".join(line.split())
        for line in status_table(list_job_statuses(runs, queue(runs, PENDING)))[1]
    ]
    assert rows[0] == "run state step loss tokens/s left since job nodes job left"
    assert rows[2].startswith("sft/waits pending (Resources)") and rows[2].endswith("12 2 1 h")
    log.write_text("launch: no such thing [no_such]\n\n", encoding="utf-8")
    ended = replace(RUNNING, state="FAILED")
    rows = [
        " ".join(line.split())
        for line in status_table(list_job_statuses(runs, queue(runs, ended)))[1]
    ]
    assert (
        rows[2].startswith("sft/waits ended (failed)")
        and rows[3] == "launch: no such thing [no_such]"
    )


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("Dependency", "cancelled before it started: a job that it waited for failed"),
        ("Priority", "cancelled before it started"),
    ],
)
def test_a_job_that_was_cancelled_while_it_waited(runs: Path, reason: str, cause: str) -> None:
    [ended] = queue(runs, replace(PENDING, state="CANCELLED", reason=reason, used=0.0))
    shown = read_job_status(runs / "sft" / "waits", runs, [ended])
    assert (shown.state, shown.cause) == ("ended", cause)


SLURM_ENDS_IT = """srun: error: n1: task 0: Exited with exit code 2
srun: launch/slurm: _step_signal: Terminating StepId=11.0
slurmstepd-n1: error: *** STEP 11.0 ON n1 CANCELLED AT 2026-11-21T13:00:00 ***
srun: Force Terminated StepId=11.0
"""
MISSING_PROGRAM = (
    "slurmstepd-n1: error: execve(): /home/me/.venv/bin/python: No such file or directory\n"
)


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            "launch: no hosts; say so [no_allocation]\nn2: bye\n" + SLURM_ENDS_IT,
            "launch: no hosts; say so [no_allocation]",
        ),
        ("launch: made the demo's data\nKeyError: 'x'\n\n" + SLURM_ENDS_IT, "KeyError: 'x'"),
        (MISSING_PROGRAM + SLURM_ENDS_IT, MISSING_PROGRAM.strip()),
        (SLURM_ENDS_IT, SLURM_ENDS_IT.splitlines()[0]),
        ("\n", None),
    ],
)
def test_the_cause_of_a_job_that_never_began(runs: Path, log: str, cause: str | None) -> None:
    JobFolder.of(runs, "sft", "waits").log("12").write_text(log, encoding="utf-8")
    [ended] = queue(runs, replace(RUNNING, state="FAILED"))
    assert read_job_status(runs / "sft" / "waits", runs, [ended]).cause == cause


def test_runs_that_wait_are_dated_by_their_submission(runs: Path) -> None:
    with pytest.raises(UserError, match="ambiguous_run") as refused:
        resolve_run("sft", runs, list(find_job_folders(runs)))
    [problem] = refused.value.problems
    assert time.strftime("%Y-", time.localtime()) in str(problem), problem
    assert "1970" not in str(problem) and "1969" not in str(problem), problem


def test_the_folder_of_runs_may_be_in_quotes(tmp_path: Path) -> None:
    for argument in ('runs="/a b"', "runs='/a b'", "runs=/a b"):
        assert build_status_parser().parse([argument]).runs == Path("/a b")


def test_a_lost_launcher_is_not_one_that_starts(runs: Path) -> None:
    folder = JobFolder.of(runs, "sft", "waits")
    heartbeat = folder.attempt("12", 0, "1") / "node-0.json"
    heartbeat.parent.mkdir()
    assert state(runs, RUNNING) == "starting"
    heartbeat.write_text("{}", encoding="utf-8")
    assert state(runs, RUNNING) == "starting"
    long_ago = time.time() - 3600
    os.utime(heartbeat, (long_ago, long_ago))
    assert state(runs, RUNNING) == "lost"


def test_a_folder_elsewhere_has_no_job(runs: Path, tmp_path: Path) -> None:
    assert find_job_folder(write_run(tmp_path / "other" / "sft" / "waits", steps=1), runs) is None


def squeue(folder: Path, monkeypatch: pytest.MonkeyPatch, does: str) -> Path:
    """A squeue that does what the line says, and records its calls."""
    calls = folder / "calls"
    binary = folder / "bin" / "squeue"
    binary.parent.mkdir()
    binary.write_text(f'#!/bin/sh\necho "$@" >>{calls}\n{does}\n', encoding="utf-8")
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(binary.parent), prepend=os.pathsep)
    return calls


def test_slurm_is_asked_once_for_all(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    JobFolder.of(runs, "sft", "rendered").record_submission("13_1", Path("/a/b"))
    own = folder_tag(JobFolder.of(runs, "sft", "waits").path)
    array = folder_tag(Path("/a"))
    lines = f"12|PENDING|Priority|1:00:00|0:00|0|2||N/A|1763740800|lab|me|{own}|\\n"
    lines += f"13_1|RUNNING|None|UNLIMITED|0:10|2|1|n1|2026|1763740800|lab|me|a | b {array}|"
    calls = squeue(tmp_path, monkeypatch, f"printf '{lines}'")
    assert status(["--json"]) == 0
    second, first = json.loads(capsys.readouterr().out)
    assert len(calls.read_text().splitlines()) == 1
    assert (first["run"], first["state"], first["schema_version"], first["job_id"]) == (
        "sft/waits",
        "pending",
        1,
        "12",
    )
    assert first["job"] == {
        "id": "12",
        "state": "PENDING",
        "reason": "Priority",
        "seconds_left": 3600.0,
        "restarts": 0,
        "nodes": 2,
        "hosts": None,
    }
    assert (second["state"], second["job"]["hosts"], second["job"]["seconds_left"]) == (
        "starting",
        "n1",
        None,
    )


def test_stop_cancels_the_job_whose_script_uses_the_folder_and_no_other(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = JobFolder.of(runs, "sft", "waits")
    listed, script, admitted = (tmp_path / name for name in ("listed", "script", "admitted"))
    listed.write_text(line_of(*queue(runs, RUNNING)) + "\n", encoding="utf-8")
    calls = squeue(tmp_path, monkeypatch, f"cat {listed}")
    for name, does in (
        ("scontrol", f"cat {script}"),
        (
            "scancel",
            (
                f'[ -e {admitted} ] || {{ echo "scancel: error: {DENIED}" >&2; exit 1; }}\n'
                f'echo "cancel $@" >>{calls}; : >{listed}'
            ),
        ),
    ):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
    script.write_text("mkdir -p /elsewhere/.jobs/sft/waits\n", encoding="utf-8")
    with pytest.raises(UserError, match="job_mismatch"):
        stop(["waits"])
    script.write_text(f"mkdir -p {own.path.absolute()}\n", encoding="utf-8")
    with pytest.raises(UserError) as refused:
        stop(["waits"])
    [problem] = refused.value.problems
    assert problem.id == "scancel_refused" and problem.message.endswith(DENIED)
    assert "12" in values_of(problem.message)
    admitted.touch()
    assert stop(["waits"]) == 0
    assert [call for call in calls.read_text().splitlines() if call.startswith("cancel")] == [
        "cancel 12"
    ]
    assert capsys.readouterr().out.splitlines() == [
        "cancelled job 12, running on n1",
        "sft/waits is stopped",
    ]


def test_a_job_of_somebody_else_is_named_and_not_cancelled(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = JobFolder.of(runs, "sft", "waits")
    append_json(folder.path / "jobs.jsonl", {"job_id": "12", "user": "daemon"})
    line = line_of(replace(*queue(runs, RUNNING), user="daemon"))
    calls = squeue(tmp_path, monkeypatch, f'case "$*" in *daemon*) echo "{line}" ;; esac')
    with pytest.raises(UserError, match="not_running") as refused:
        stop(["waits"])
    [problem] = refused.value.problems
    assert all(names(str(problem), value) for value in ("12", "daemon", "scancel"))
    assert len(calls.read_text().splitlines()) == 2


@pytest.mark.parametrize(("end", "lives"), [("N/A", "REQUEUED"), ("1763740900", "COMPLETING")])
def test_a_completing_job_without_an_end_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, lives: str
) -> None:
    # whatever the user has chosen, and in every time zone
    format = '[ "$SLURM_TIME_FORMAT" = %s ] || exit 1'
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    squeue(
        tmp_path,
        monkeypatch,
        f"{format}; echo '12|COMPLETING|None|0:00|0:10|0|2|n[1-2]|{end}|1|lab|me|x|'",
    )
    assert [(job.state, job.is_requeued) for job in list_user_jobs()] == [
        (lives, lives == "REQUEUED")
    ]


def test_a_silent_slurm_is_said_and_not_fatal(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    squeue(
        tmp_path,
        monkeypatch,
        "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1",
    )
    assert status([]) == 0
    shown = capsys.readouterr()
    assert "Unable to contact slurm controller" in shown.err and "[slurm_unresponsive]" in shown.err
    assert " ".join(shown.out.splitlines()[1].split()).startswith("sft/waits submitted")
    with pytest.raises(UserError, match="slurm_unresponsive"):
        stop(["waits"])
    with pytest.raises(UserError, match="not_running"):
        stop(["rendered"])  # of which there never was a job


# what Slurm's clients say on a machine of no cluster
NO_CLUSTER = (
    "error: fetch_config: DNS SRV lookup failed\nfatal: Could not establish a configuration source"
)


def test_a_machine_of_no_cluster_is_not_refused_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = squeue(tmp_path, monkeypatch, f"echo '{NO_CLUSTER}' >&2; exit 1")
    with pytest.raises(UserError, match="Could not establish") as caught:
        query_slurm(["squeue", "--noheader"])
    [problem] = caught.value.problems
    assert problem.id == "slurm_unresponsive" and "login node" in str(problem.cure)
    assert len(calls.read_text().splitlines()) == 1  # asking again would not help


def test_logs_of_a_run_that_waits_and_of_one_that_never_began(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    squeue(tmp_path, monkeypatch, 'read line <"$QUEUE"; echo "$line"')
    listed = tmp_path / "queue"
    monkeypatch.setenv("QUEUE", str(listed))
    own = folder_tag(JobFolder.of(runs, "sft", "waits").path)
    listed.write_text(
        f"12|PENDING|Priority|1:00:00|0:00|0|2||N/A|1763740800|lab|me|{own}|\n", encoding="utf-8"
    )
    assert logs(["waits"]) == 0
    assert capfd.readouterr().out.startswith(
        "sft/waits has not started: job 12, pending (Priority)\n"
    )
    asking = tmp_path / "bin" / "squeue"
    answering = asking.read_text()
    asking.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    assert logs(["waits"]) == 0
    assert capfd.readouterr().out.startswith(
        "sft/waits has not started: job 12, about which Slurm reports nothing\n"
    )
    asking.write_text(answering, encoding="utf-8")
    listed.write_text("\n", encoding="utf-8")
    JobFolder.of(runs, "sft", "waits").log("12").write_text(
        "no module named launch\n", encoding="utf-8"
    )
    assert logs(["waits", "--follow"]) == 0
    assert (
        capfd.readouterr().out
        == "no module named launch\nsft/waits has not started: job 12 no longer exists\n"
    )
    assert logs(["waits", "--job"]) == 0
    assert capfd.readouterr().out == "no module named launch\n"
    write_run(runs / "sft" / "alone", steps=1)
    with pytest.raises(UserError, match="no_job_log"):
        logs(["alone", "--job"])
