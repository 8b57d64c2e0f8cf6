"""Plans the jobs to submit: a run, its tokenisation, its evaluation; and writes their folders."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch.config.line import override_key
from launch.config.schema import Device
from launch.execution.caches import plan_cache_pass
from launch.execution.record.folder import RunFolder
from launch.execution.resume import refuse_other_format
from launch.planning.parallel import Width
from launch.planning.plan import Plan
from launch.planning.rlvr import refuse_untested_trainer
from launch.planning.vllm_server import server_gpus
from launch.resources import USER_DIR_VARIABLE
from launch.slurm.cluster import (
    cluster_problems,
    folders_in_container,
    unmounted_folders,
    unshared_folders,
)
from launch.slurm.jobs import EVALUATE_SUFFIX, TOKENIZE_SUFFIX, JobFolder
from launch.slurm.script import BatchScript, render_sbatch
from launch.worker.finding import Finding
from launch.worker.json_codec import versioned
from launch.worker.wording import count_of

_NODE_KEYS = ("cluster.heartbeat", "cluster.requeues", "cluster.retries", "cluster.warn_before")
_EXPORTED_FOLDERS = (USER_DIR_VARIABLE, "OPEN_INSTRUCT_DIR")  # the plan depends on them


@dataclass(frozen=True)
class PlannedJob:
    """A job to submit."""

    plan: Plan
    folder: JobFolder
    script: BatchScript

    @property
    def name(self) -> str:
        """The run of the job as stage/name, which `status` and `logs` show and take."""
        return self.folder.place[1]

    @property
    def run(self) -> Path:
        """The run folder; a tokenising job never creates one."""
        return Path(*self.folder.place)

    @property
    def is_singleton(self) -> bool:
        """Whether no other job of the same name may run at the same time.

        Two of them would tokenise the same data.
        """
        return self.plan.config.cache_only

    @property
    def trains(self) -> bool:
        """Whether the job is a run, and not what comes before or after one."""
        return self.script.verb == "node" and not self.is_singleton


def plan_job(plan: Plan, folder: JobFolder, overrides: Sequence[str], **script: Any) -> PlannedJob:
    """Plan a job from the overrides of `launch node`, or from another verb's arguments.

    `script` has the fields of the batch script that differ from those of the plan's run.
    """
    exports = {}
    for variable in _EXPORTED_FOLDERS:
        if os.environ.get(variable):
            exports[variable] = str(Path(os.environ[variable]).absolute())
    exports["LAUNCH_PLAN"] = plan.identity
    if plan.training_identity is not None:  # Slurm may start it again with fewer nodes
        exports["LAUNCH_TRAINING"] = plan.training_identity
    width = plan.parallel.width
    nodes = count_of(width.nodes, "node")
    device = "GPUs" if width.device == Device.cuda else "CPU processes"
    run_script = BatchScript(
        name=re.sub(r"[^\w.-]", "_", f"{plan.stage}-{plan.name}"),
        title=f"{plan.stage} with {plan.trainer}: {nodes} of {width.local} {device}, "
        f"global {plan.batch}",
        width=width,
        server_gpus=server_gpus(plan),
        cluster=plan.config.cluster,
        overrides=tuple(overrides),
        cwd=str(Path.cwd()),
        python=plan.config.cluster.python or sys.executable,
        folder=str(folder.path),
        output=folder.log_pattern(),
        exports=exports,
    )
    return PlannedJob(plan, folder, replace(run_script, **script))


def plan_run_job(plan: Plan) -> PlannedJob:
    """Plan the job of a run."""
    overrides = node_overrides(plan.origins.overrides)
    if "name" not in map(override_key, overrides):
        overrides.append(f"name={plan.name}")
    return plan_job(plan, JobFolder.of_plan(plan), overrides)


def plan_tokenize_job(job: PlannedJob) -> PlannedJob:
    """Plan the job that builds a run's tokenised data ahead of it, on the CPUs of one node.

    In another partition (`cluster.tokenize_partition`) constraint and reservation do not apply.

    Raises UserError: no_cache_pass.
    """
    plan = job.plan
    cluster = plan.config.cluster
    in_other_partition = cluster.tokenize_partition not in (None, cluster.partition)
    cpus = cluster.tokenize_cpus
    if not cpus and cluster.cpus_per_rank is not None:
        cpus = cluster.cpus_per_rank * plan.parallel.width.local
    tokenize_cluster = replace(
        cluster,
        partition=cluster.tokenize_partition or cluster.partition,
        time=cluster.tokenize_time or cluster.time,
        cpus_per_rank=cpus,
        constraint=None if in_other_partition else cluster.constraint,
        reservation=None if in_other_partition else cluster.reservation,
        exclusive=False,
    )
    tokenize_plan = replace(plan_cache_pass(plan), config=replace(plan.config, cache_only=True))
    overrides = list(job.script.overrides)
    if not plan.config.cache_only:
        overrides.append("cache_only=true")
    return plan_job(
        tokenize_plan,
        JobFolder.of_plan(plan, TOKENIZE_SUFFIX),
        overrides,
        name=f"tokenize-{tokenize_plan.name}",
        title=f"{plan.stage} with {plan.trainer}: tokenises its data on the CPUs of one node",
        cluster=tokenize_cluster,
    )


def plan_evaluation_job(job: PlannedJob) -> PlannedJob:
    """Plan the job that evaluates a run's model, on one GPU, or on CPUs if the run has no GPUs."""
    plan = job.plan
    run = f"{plan.stage}/{plan.name}"
    arguments = [run]
    if plan.config.stage.tasks:
        arguments.append(f"tasks={','.join(plan.config.stage.tasks)}")
    arguments.append(f"runs={plan.runs}")
    return plan_job(
        plan,
        JobFolder.of_plan(plan, EVALUATE_SUFFIX),
        arguments,
        name=f"evaluate-{plan.stage}-{plan.name}",
        title=f"evaluates the model of {run}",
        verb="eval",
        width=Width(plan.parallel.width.device, 1),
        # Without a warning: a requeued evaluation continues with the tasks that are left.
        cluster=replace(plan.config.cluster, exclusive=False, warn_before=0),
    )


def warning_time(job: PlannedJob) -> int | None:
    """Return how many seconds before its time limit Slurm warns a job; 0: never.

    None is returned if the user's own option or variable of sbatch sets the signal.
    """
    options = job.script.cluster.options
    if any(option.startswith("--signal") for option in options) or "SBATCH_SIGNAL" in os.environ:
        return None
    return job.script.cluster.warn_before


def node_overrides(overrides: Sequence[str]) -> list[str]:
    """Return the overrides for `launch node`, without those that only shape the batch script."""

    def is_for_nodes(override: str) -> bool:
        key = override_key(override)
        return key in _NODE_KEYS or not key.startswith("cluster.")

    return [override for override in overrides if is_for_nodes(override)]


def job_problems(job: PlannedJob) -> list[Finding]:
    """Find what keeps a job from being submitted to its cluster.

    Raises UserError: untested_trainer, other_format.
    """
    plan = job.plan
    if not plan.config.cache_only:
        refuse_other_format(plan)
    refuse_untested_trainer(plan.config)
    cluster = plan.config.cluster
    shared_folders = {"runs": plan.runs, "cache": plan.cache, "the current folder": Path.cwd()}
    read_folders = {**shared_folders, **folders_in_container(plan, os.environ)}
    problems = cluster_problems(cluster, plan.origins)
    problems += unshared_folders(cluster, shared_folders)
    unmounted = unmounted_folders(cluster, read_folders, os.environ)
    problems += [problem for problem in unmounted if problem.id not in plan.config.allow]
    problems += _unquotable(plan, job.script.overrides)
    return problems


def _unquotable(plan: Plan, overrides: Sequence[str]) -> list[Finding]:
    """Find what would break out of its line of the batch script.

    Neither #SBATCH lines nor comments have an escape.
    """
    if not all(text.isprintable() for text in (str(plan.runs), *overrides)):
        message = "a line break or control character cannot be in a batch script"
        return [Finding.error("unquotable", message, "command line")]
    if '"' in str(plan.runs):
        where = plan.origins.of("runs").where
        message = f"runs={plan.runs}: an #SBATCH line cannot hold a quote"
        return [Finding.error("unquotable", message, where, "rename it")]
    return []


def write_job_folder(job: PlannedJob) -> None:
    """Write the batch script, the plan, the configuration and the command with its environment."""
    plan = job.plan
    folder = RunFolder(job.folder.path)
    job.folder.write_script(render_sbatch(job.script))
    folder.write_json("plan.json", versioned(plan))
    folder.write_config(plan.resolved)
    folder.write_command(plan.command, plan.env, plan.unset)
