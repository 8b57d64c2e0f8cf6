"""Plans the runs of one command as jobs: of one stage or a sweep, or the stages of a pipeline."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from launch.config.compose import Composed, compose
from launch.config.line import CommandLine, override_key, quote_text
from launch.config.schema import Kind
from launch.errors import EXIT_DONE, Problem, UserError
from launch.execution.same_run import place_run
from launch.planning.chat_template import find_template_name, refuse_other_template
from launch.planning.flags import values_of
from launch.planning.inputs import continues_adapter
from launch.planning.lora import MERGED, settings_to_keep
from launch.planning.machine import this_machine
from launch.planning.plan import Plan, build_plan
from launch.slurm.planned_jobs import PlannedJob, job_problems, plan_run_job, plan_tokenize_job
from launch.terminal import notify


def plan_pipeline(line: CommandLine, stages: Sequence[str]) -> list[PlannedJob]:
    """Plan and check the jobs of `stages` in order, each from the model of the one before.

    Raises UserError: pipeline_model (a stage's trainer writes no model that the next stage can start from),
    nothing_to_continue, adapter_settings, other_chat_template.
    """
    jobs: list[PlannedJob] = []
    model_overrides: tuple[str, ...] = ()
    for stage in stages:
        pending_model = jobs[-1].plan.model_dir if jobs else None
        argv = (f"stage={stage}", *_stage_overrides(stage, stages, line), *model_overrides)
        jobs += plan_jobs(replace(line, argv=argv), pending_model)
        plan = jobs[-1].plan
        if len(jobs) > 1:
            check_chained(plan, jobs[-2].plan)
        if plan.config.trainer.leaves != "config.json" and stage != stages[-1]:
            message = f"{plan.trainer} writes no model that the next stage can start from"
            raise UserError(Problem("pipeline_model", message, stage, "set another trainer="))
        trained = str(plan.folder / MERGED if plan.lora else plan.model_dir)
        quoted = trained if re.fullmatch(r"[\w./-]+", trained) else quote_text(trained)
        model_overrides = (f"model.path={quoted}", f"model.trained_by='{plan.identity}'")
    return jobs


def check_chained(plan: Plan, before: Plan) -> None:
    """Compare a stage with the stage before it, whose run does not exist yet, as its own plan will compare them then.

    Raises UserError: nothing_to_continue, adapter_settings, other_chat_template.
    """
    name, template = (find_template_name(values_of(each.flags), each.options) for each in (before, plan))
    if name and template and plan.config.stage.kind != Kind.sft and "other_chat_template" not in plan.config.allow:
        refuse_other_template(template, name, f"stage {before.stage}", plan.origins)
    if not continues_adapter(plan.config) or plan.lora is None:
        return
    where = plan.origins.of("recipe.lora.start").where
    if before.lora is None:
        message = f"recipe.lora.start=continue resumes training an adapter, and stage {before.stage} trains none"
        raise UserError(Problem("nothing_to_continue", message, where, "remove recipe.lora.start"))
    own, requested = settings_to_keep(before.lora), settings_to_keep(plan.lora)
    differing = [key for key, value in own.items() if requested[key] != value]
    if differing:
        kept = " and ".join(f"{key} {own[key]}" for key in differing)
        message = f"{plan.stage} resumes training the adapter of {before.stage}, which keeps its own {kept}"
        message += f", got {' and '.join(requested[key] for key in differing)}"
        cure = " ".join(f"{plan.stage}:recipe.lora.{key}={own[key]}" for key in differing)
        raise UserError(Problem("adapter_settings", message, where, f"set {cure}"))


def plan_jobs(line: CommandLine, pending_model: Path | None = None) -> list[PlannedJob]:
    """Plan and check the job of every run that `line` composes, each from `pending_model`, which does not exist yet.
    Raises UserError."""
    jobs: list[PlannedJob] = []

    def add(composed: Composed) -> int:
        plan = place_run(build_plan(composed, this_machine(composed)), notify, "submit")
        job = plan_run_job(plan, pending_model)
        problems = job_problems(job)
        if problems:
            raise UserError(problems)
        jobs.append(plan_tokenize_job(job) if composed.config.cache_only else job)
        return EXIT_DONE

    compose(line, add)
    return jobs


def _stage_overrides(stage: str, stages: Sequence[str], line: CommandLine) -> list[str]:
    """The overrides of one stage: `STAGE:key=value` without its stage, and those without a stage whose key it does not
    set."""
    parts = [word.partition(":") for word in line.argv]
    own = [override for name, colon, override in parts if colon and name == stage]
    own_keys = {override_key(override) for override in own}
    shared = [word for word, (name, colon, _) in zip(line.argv, parts, strict=True) if not colon or name not in stages]
    return [*(override for override in shared if override_key(override) not in own_keys), *own]
