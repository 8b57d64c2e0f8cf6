"""Checks, writes and submits the steps of one command."""

from __future__ import annotations

from collections.abc import Sequence

from launch.check.machine.rules import RULES, inspect
from launch.check.machine.upstream import inputs_exist
from launch.errors import Problem, UserError
from launch.slurm.limits import limit_problems
from launch.slurm.planned_jobs import PlannedJob
from launch.slurm.schedule import SubmissionStep
from launch.slurm.submission import check_script, submission_locks, submit_all
from launch.terminal import notify


def submit_steps(steps: Sequence[SubmissionStep], *, dry_run: bool) -> list[str]:
    """Check all steps, write their job folders and submit them; return the job ids, none with `dry_run`.

    Raises UserError if a step cannot be submitted; then none is, and no file that a job reads is written.
    """
    if not dry_run:
        jobs = [job for step in steps for job in step.jobs]
        problems = [problem for job in jobs if job.trains for problem in _preflight(job)]
        problems += limit_problems([job.plan for job in jobs])
        if problems:
            raise UserError(list(dict.fromkeys(problems)))
    submissions = [step.submission() for step in steps]
    with submission_locks(submissions, notify, dry_run=dry_run):
        for step in steps:
            step.write()
        if dry_run:
            return []
        for step in steps:
            allowed = all("sbatch_refused" in job.plan.config.allow for job in step.jobs)
            check_script(step.folder, notify, allowed=allowed)
        return submit_all(submissions, notify)


def _preflight(job: PlannedJob) -> list[Problem]:
    rules = [rule for rule in RULES if rule.on_login_node and not (job.pending_model and rule is inputs_exist)]
    return [finding.problem() for finding in inspect(job.plan, rules) if finding.stops]
