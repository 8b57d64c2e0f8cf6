"""Turns planned jobs into submissions: a chain, or arrays of the jobs that have the same shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from launch.config.schema import Device
from launch.digests import digest_text
from launch.errors import refusal
from launch.execution.caches import find_tokenized_data, supports_cache_pass
from launch.slurm.jobs import JobFolder
from launch.slurm.planned_jobs import (
    PlannedJob,
    plan_evaluation_job,
    plan_tokenize_job,
    write_job_folder,
)
from launch.slurm.script import render_array_sbatch
from launch.terminal import notify


class TokenizeFirst(StrEnum):
    """Whether a separate job tokenises a run's data first.

    `auto` does so if GPUs, or other runs, would wait for the tokenisation.
    """

    auto = "auto"
    always = "true"
    never = "false"


@dataclass(frozen=True)
class SubmissionStep:
    """One submission: a job, or several as the tasks of an array."""

    jobs: tuple[PlannedJob, ...]
    after: tuple[int, ...] = ()  # indices of the steps that must succeed first

    @property
    def folder(self) -> JobFolder:
        """The folder of the script that is submitted."""
        if not self.is_array:
            return self.jobs[0].folder
        folders = [str(job.folder.path) for job in self.jobs]
        name = digest_text("\n".join(folders))[:8]
        runs, _ = self.jobs[0].folder.place
        return replace(JobFolder.of(Path(runs), "arrays", name), file="array.sbatch")

    @property
    def is_array(self) -> bool:
        return len(self.jobs) > 1

    @property
    def is_taskwise(self) -> bool:
        """Whether each task waits only for the task of the same number in the array before."""
        return self.is_array and not self.jobs[0].trains

    def job_ids(self, submitted_id: str) -> list[str]:
        """Return the id of each job, in Slurm's notation, from the id that sbatch returned."""
        if not self.is_array:
            return [submitted_id]
        return [f"{submitted_id}_{index}" for index in range(len(self.jobs))]

    def write(self) -> None:
        """Write the job folders, and the array's script."""
        for job in self.jobs:
            write_job_folder(job)
        if not self.is_array:
            return
        stages = ", ".join(sorted({job.plan.stage for job in self.jobs}))
        array = replace(
            self.jobs[0].script,
            name=f"{stages.replace(', ', '-')}-{self.folder.path.name}",
            title=f"{len(self.jobs)} runs of {stages}",
            folder=str(self.folder.path),
            output=self.folder.log_pattern("%A_%a"),
        )
        paths = [job.folder.script.absolute() for job in self.jobs]
        self.folder.write_script(render_array_sbatch(array, paths))


def drop_duplicates(jobs: Sequence[PlannedJob]) -> list[PlannedJob]:
    """Drop the jobs that equal an earlier one, with a notice.

    Raises UserError: name_taken (two different jobs have the same folder).
    """
    kept: dict[Path, PlannedJob] = {}
    for job in jobs:
        first = kept.setdefault(job.folder.path, job)
        if first is job:
            continue
        same_identity = first.plan.identity == job.plan.identity
        if same_identity and first.plan.resolved == job.plan.resolved:
            notify(f"{job.name} is requested twice and submitted once")
            continue
        message = (
            f"two jobs would have the name {job.name}: "
            f"{_describe(first, job)}, and {_describe(job, first)}"
        )
        cure = "remove name=, or set one for each"
        if same_identity:
            cure = "a run has one job: remove one of them"
        raise refusal("name_taken", message, "name", cure)
    return list(kept.values())


def _describe(job: PlannedJob, other: PlannedJob) -> str:
    """Describe a run by its identity and the overrides that `other` lacks."""
    shared = other.plan.origins.overrides
    differing = [override for override in job.plan.origins.overrides if override not in shared]
    if not differing:
        return job.plan.identity
    return f"{job.plan.identity} with {' '.join(differing)}"


def as_chain(jobs: Sequence[PlannedJob], tokenize_first: TokenizeFirst) -> list[SubmissionStep]:
    """Chain the jobs: each waits for the previous job and for the one that tokenises its data."""
    chain: list[PlannedJob] = []
    for job in jobs:
        if needs_tokenize_job(job, tokenize_first):
            chain.append(plan_tokenize_job(job))
        chain.append(job)
    steps = [SubmissionStep((chain[0],))] if chain else []
    steps.extend(SubmissionStep((job,), (index,)) for index, job in enumerate(chain[1:]))
    return steps


def as_arrays(jobs: Sequence[PlannedJob], tokenize_first: TokenizeFirst) -> list[SubmissionStep]:
    """Group jobs that request the same of Slurm into arrays, without order among them.

    Several groups are explained by a notice. Data that several runs share is tokenised once, before
    them.
    """
    # The key of a run's data is the same for the same tokens.
    data_keys = [job.plan.lengths_file or Path(job.plan.identity) for job in jobs]
    steps: list[SubmissionStep] = []
    tokenizing_steps: dict[Path, int] = {}  # data key -> index of the step that tokenises it
    groups: dict[str, list[int]] = {}  # what a job requests of Slurm -> indices of the jobs
    for index, job in enumerate(jobs):
        key = data_keys[index]
        is_shared = data_keys.count(key) > 1
        if key not in tokenizing_steps and needs_tokenize_job(
            job, tokenize_first, shared=is_shared
        ):
            tokenizing_steps[key] = len(steps)
            steps.append(SubmissionStep((plan_tokenize_job(job),)))
        requested = f"{job.script.width} {job.script.cluster}"
        groups.setdefault(requested, []).append(index)
    if len(groups) > 1:
        widths = [(jobs[members[0]].script.width, len(members)) for members in groups.values()]
        shapes = ", ".join(f"{width}: {count}" for width, count in widths)
        notify(f"the runs have {len(groups)} different shapes, and an array has one: {shapes}")
    for members in groups.values():
        keys = {data_keys[index] for index in members}
        after = sorted(tokenizing_steps[key] for key in keys if key in tokenizing_steps)
        steps.append(SubmissionStep(tuple(jobs[index] for index in members), tuple(after)))
    return steps


def add_evaluations(
    steps: Sequence[SubmissionStep], finished: Sequence[PlannedJob]
) -> list[SubmissionStep]:
    """Append the evaluations of the runs with evaluate=true, each after its run.

    Those of `finished` runs wait for nothing. No run waits for an evaluation, so that a failed one
    stops nothing.
    """
    evaluated = [job for job in finished if job.plan.config.evaluate]
    evaluations = [SubmissionStep((plan_evaluation_job(job),)) for job in evaluated]
    for index, step in enumerate(steps):
        if all(job.trains and job.plan.config.evaluate for job in step.jobs):
            jobs = tuple(plan_evaluation_job(job) for job in step.jobs)
            evaluations.append(SubmissionStep(jobs, after=(index,)))
    return [*steps, *evaluations]


def needs_tokenize_job(
    job: PlannedJob, tokenize_first: TokenizeFirst, *, shared: bool = False
) -> bool:
    """Return whether a separate job has to tokenise a run's data, which is not tokenised yet.

    `shared` is whether other runs need the same data.
    """
    plan = job.plan
    if job.is_singleton or tokenize_first == TokenizeFirst.never:
        return False
    if tokenize_first == TokenizeFirst.auto:
        if not supports_cache_pass(plan):
            return False
        on_gpus = plan.parallel.width.device == Device.cuda
        if not (on_gpus or shared or plan.config.trainer.tokenized_first):
            return False
    return plan.is_pending or find_tokenized_data(plan) is None
