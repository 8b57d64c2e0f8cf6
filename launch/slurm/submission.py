"""Handing batch scripts to Slurm: each once, all of a chain or none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from launch.errors import Problem, UserError
from launch.lifecycle.lock import Holder, held_file, holder_of, lock_path
from launch.slurm.ask import Answer, ask, ask_once
from launch.slurm.jobs import JobFolder, living

_PAUSES = (2.0, 5.0)  # seconds before another try at sbatch
_SETTLE = 3.0  # seconds in which a job shows up whose sbatch got no answer


def check_script(folder: JobFolder) -> None:
    """Ask Slurm whether it would take the script. Raises UserError (`sbatch_refused`, `no_slurm`, `slurm_silent`)."""
    answer = ask(["sbatch", "--test-only", str(folder.script)])
    if answer.status:
        raise UserError(_refused(answer, folder.script))


def submit_chain(
    links: Sequence[tuple[JobFolder, Path]], say: Callable[[str], None], settle: float = _SETTLE
) -> list[str]:
    """Submit the scripts, each to start when the one before has ended well; their job ids. `links`: with the run
    folder of each. When one fails, those before it are cancelled.

    Raises UserError (`already_submitted`, `run_is_locked`, `sbatch_refused`, `no_slurm`, `slurm_silent`).
    """
    ids: list[str] = []
    try:
        for folder, run in links:
            with held_file(folder.path / "submit.lock", _being_submitted, say):
                _refuse_alive(folder, run)
                ids.append(_submit(folder, ids[-1] if ids else None, settle))
                folder.remember(ids[-1])
    except BaseException:
        if ids:
            _cancel(ids, say)
        raise
    return ids


def _being_submitted(holder: Holder, age: float) -> Problem:
    return Problem("already_submitted", f"another `submit` of this run is at work: {holder}", None, "wait for it")


def _refuse_alive(folder: JobFolder, run: Path) -> None:
    jobs = living(folder)
    if jobs:
        told = "; ".join(str(job) for job in jobs)
        cure = f"wait for it, or `scancel {jobs[0].job_id}` first"
        raise UserError(Problem("already_submitted", f"this run is submitted already: {told}", None, cure))
    holder = holder_of(lock_path(run))
    if holder:
        message = f"another launcher holds {run}: {holder[0]}"
        raise UserError(Problem("run_is_locked", message, None, "wait for it, end it, or say another name="))


def _submit(folder: JobFolder, after: str | None, settle: float) -> str:
    words = ["sbatch", "--parsable"]
    if after is not None:  # without the second option a dependant of a failed job waits for ever
        words += [f"--dependency=afterok:{after}", "--kill-on-invalid-dep=yes"]
    for pause in (*_PAUSES, None):
        answer = ask_once([*words, str(folder.script)])
        if answer.status == 0:
            return answer.output.strip().split(";")[0]
        if not answer.passing:
            raise UserError(_refused(answer, folder.script))
        time.sleep(settle)  # it may have been taken all the same: nothing is submitted twice
        jobs = living(folder)
        if jobs:
            return jobs[0].job_id
        if pause is None or answer.status is None:
            break
        time.sleep(pause)
    message = f"Slurm does not answer sbatch: {answer.words}"
    cure = "see what `squeue --me` shows before you try again"
    raise UserError(Problem("slurm_silent", message, None, cure))


def _refused(answer: Answer, script: Path) -> Problem:
    cure = "cluster.KEY=VALUE says it otherwise; docs/clusters.md has them all"
    return Problem("sbatch_refused", f"Slurm refuses the job: {answer.words}", str(script), cure)


def _cancel(ids: Sequence[str], say: Callable[[str], None]) -> None:
    try:
        done = ask(["scancel", *ids]).status == 0
    except UserError:
        done = False
    said = f"cancelled {', '.join(ids)}, submitted before that"
    say(said if done else f"jobs {', '.join(ids)} were submitted before that and could not be cancelled: scancel them")
