"""Jobs to submit: of a run, of the tokenisation ahead of it, of a width of a rollout; and their job
folders.
"""

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
from launch.planning.rlvr import refuse_untried
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
        """stage/name, as in `status` and `logs`."""
        return self.folder.place[1]

    @property
    def run(self) -> Path:
        """The run folder; a tokenising job never creates one."""
        return Path(*self.folder.place)

    @property
    def is_singleton(self) -> bool:
        """Whether no other job of the same name may run at the same time: two of them would
        tokenise the same data.
        """
        return self.plan.config.cache_only

    @property
    def trains(self) -> bool:
        """Whether the job is a run, and not what comes before or after one."""
        return self.script.verb == "node" and not self.is_singleton


def plan_job(plan: Plan, folder: JobFolder, overrides: Sequence[str], **script: Any) -> PlannedJob:
    """Plan a job from the overrides of `launch node` on each of its nodes, or from another verb's
    arguments; `script`: what its batch script has otherwise than that of the plan's run.
    """
    exports = {
        name: str(Path(os.environ[name]).absolute())
        for name in _EXPORTED_FOLDERS
        if os.environ.get(name)
    }
    width, nodes = plan.parallel.width, plan.parallel.width.nodes
    ranks = f"{width.local} {'GPUs' if width.device == Device.cuda else 'CPU processes'}"
    of_run = BatchScript(
        name=re.sub(r"[^\w.-]", "_", f"{plan.stage}-{plan.name}"),
        title=f"{plan.stage} with {plan.trainer}: {nodes} node{'s' * (nodes > 1)} of {ranks}, "
        f"global {plan.batch}",
        width=width,
        cluster=plan.config.cluster,
        overrides=tuple(overrides),
        cwd=str(Path.cwd()),
        python=plan.config.cluster.python or sys.executable,
        folder=str(folder.path),
        output=folder.log_pattern(),
        exports={**exports, "LAUNCH_PLAN": plan.identity},
    )
    return PlannedJob(plan, folder, replace(of_run, **script))


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
    plan, cluster = job.plan, job.plan.config.cluster
    other_partition = cluster.tokenize_partition not in (None, cluster.partition)
    per_node = (
        None if cluster.cpus_per_rank is None else cluster.cpus_per_rank * plan.parallel.width.local
    )
    tokenize_cluster = replace(
        cluster,
        partition=cluster.tokenize_partition or cluster.partition,
        time=cluster.tokenize_time or cluster.time,
        cpus_per_rank=cluster.tokenize_cpus or per_node,
        constraint=None if other_partition else cluster.constraint,
        reservation=None if other_partition else cluster.reservation,
        exclusive=False,
    )
    config = replace(plan.config, cache_only=True)
    overrides = (*job.script.overrides, *(() if plan.config.cache_only else ("cache_only=true",)))
    title = f"{plan.stage} with {plan.trainer}: tokenises its data on the CPUs of one node"
    tokenizing = replace(plan_cache_pass(plan), config=config)
    name, folder = f"tokenize-{tokenizing.name}", JobFolder.of_plan(plan, TOKENIZE_SUFFIX)
    return plan_job(tokenizing, folder, overrides, name=name, title=title, cluster=tokenize_cluster)


def plan_evaluation_job(job: PlannedJob) -> PlannedJob:
    """Plan the job that evaluates the model of a run, on one GPU, or on the CPUs of a run without
    GPUs.
    """
    plan, tasks = job.plan, job.plan.config.stage.tasks
    run = f"{plan.stage}/{plan.name}"
    return plan_job(
        plan,
        JobFolder.of_plan(plan, EVALUATE_SUFFIX),
        [run, *([f"tasks={','.join(tasks)}"] if tasks else []), f"runs={plan.runs}"],
        name=f"evaluate-{plan.stage}-{plan.name}",
        title=f"evaluates the model of {run}",
        verb="eval",
        width=Width(plan.parallel.width.device, 1),
        # a requeued one goes on with what is left
        cluster=replace(plan.config.cluster, exclusive=False, warn_before=0),
    )


def node_overrides(overrides: Sequence[str]) -> list[str]:
    """The overrides for `launch node`, without those that only shape the batch script."""
    return [
        override
        for override in overrides
        if (key := override_key(override)) in _NODE_KEYS or not key.startswith("cluster.")
    ]


def job_problems(job: PlannedJob) -> list[Finding]:
    """Find what keeps a job from being submitted to its cluster. Raises UserError:
    untried_trainer, other_format.
    """
    plan = job.plan
    if not plan.config.cache_only:
        refuse_other_format(plan)
    refuse_untried(plan.config)
    cluster = plan.config.cluster
    folders = {"runs": plan.runs, "cache": plan.cache, "the current folder": Path.cwd()}
    problems = [*cluster_problems(cluster, plan.origins), *unshared_folders(cluster, folders)]
    unmounted = unmounted_folders(
        cluster, {**folders, **folders_in_container(plan, os.environ)}, os.environ
    )
    problems += [problem for problem in unmounted if problem.id not in plan.config.allow]
    problems += _unquotable(plan, [str(plan.runs), *job.script.overrides])
    return problems


def _unquotable(plan: Plan, texts: Sequence[str]) -> list[Finding]:
    """Find what would break out of its line of the batch script: neither #SBATCH lines nor comments
    have an escape.
    """
    if any(not text.isprintable() for text in texts):
        return [
            Finding.error(
                "unquotable",
                "a line break or control character cannot be in a batch script",
                "command line",
            )
        ]
    if '"' in str(plan.runs):
        where = plan.origins.of("runs").where
        return [
            Finding.error(
                "unquotable",
                f"runs={plan.runs}: an #SBATCH line cannot hold a quote",
                where,
                "rename it",
            )
        ]
    return []


def write_job_folder(job: PlannedJob) -> None:
    """Write the batch script, the plan, the configuration and the command with its environment."""
    plan, folder = job.plan, RunFolder(job.folder.path)
    job.folder.write_script(render_sbatch(job.script))
    folder.write_json("plan.json", plan)
    folder.write_config(plan.resolved)
    folder.write_command(plan.command, plan.env, plan.unset)
