"""Plan the stages of a pipeline in order, here and for Slurm: each starts from the model of the one
before.

A stage is planned before the model that it starts from exists, as it will be planned then:
`model.trained_by` identifies the model by the run that makes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launch.config.compose import compose_once
from launch.config.line import MULTIRUN, STAGE_KEY, CommandLine, override_key, quote_text
from launch.config.schema import Kind
from launch.errors import UserError, refusal
from launch.execution.earlier_runs import note_earlier_run
from launch.execution.record.outcome import folder_status
from launch.execution.record.run import Run
from launch.execution.resume import is_finished
from launch.planning.chat_template import brings_template, find_template_name, refuse_other_template
from launch.planning.estimate.forecast import planned_shape
from launch.planning.find_runs import run_name
from launch.planning.flags import values_of
from launch.planning.inputs import continues_adapter
from launch.planning.machine import this_machine
from launch.planning.plan import PendingModel, Plan, build_plan
from launch.planning.saved_model import find_short_context
from launch.worker.finding import Finding, Fix, Way

# kinds whose model no stage can start from, and what it is: a score has the place of its output
# layer
FINAL_KINDS = {Kind.rm: "a reward model"}
FOLDER = "pipelines"  # below the folder of runs
# keys that a cure tells to set, as far as they may differ between the stages
_OF_STAGE = re.compile(
    r"^(?:trainer|parallel|gpus|processes|python|allow|restart|(?:recipe|flags|model)\.[\w.]+)="
)
_CONTINUES = "recipe.lora.start=continue"
_SET_BY_PIPELINE = ("stage", "model.trained_by", "runs", "detach")  # not for one of its stages


@dataclass(frozen=True)
class PipelineRequest:
    """The stages of a command line, and the line without the keys of a pipeline."""

    stages: tuple[str, ...]  # none: the line is of one stage
    line: CommandLine
    stop_if_worse: bool = False

    def overrides(self, stage: str) -> list[str]:
        """Return the overrides of one stage: its own `STAGE:key=value`, and the shared ones of keys
        that it does not set itself.
        """
        own = [
            override.partition(":")[2]
            for override in self.line.argv
            if override.startswith(f"{stage}:")
        ]
        own_keys = {override_key(override) for override in own}
        shared = [
            override for override in self.line.argv if override.partition(":")[0] not in self.stages
        ]
        return [*(override for override in shared if override_key(override) not in own_keys), *own]

    @contextlib.contextmanager
    def cures_for(self, stage: str) -> Iterator[None]:
        """Name the stage in the overrides of the cures of what is raised: `sft:trainer=trl_sft`."""
        try:
            yield
        except UserError as error:
            raise UserError(
                [self.name_stage(problem, stage) for problem in error.problems]
            ) from error

    def name_stage(self, problem: Finding, stage: str) -> Finding:
        """Return a problem of one stage, whose cure names that stage; not what replaces a key of
        all stages.
        """
        if not isinstance(problem.cure, Fix):
            return problem
        ways = [self._name_in(way, stage) for way in problem.cure.ways]
        return replace(problem, cure=Fix.of(problem.cure.sentence, *ways))

    def _name_in(self, way: Way, stage: str) -> Way:
        # which has no adapter to train further
        if way.sets == (_CONTINUES,) and stage == self.stages[0]:
            return replace(way, sets=tuple(f"{later}:{_CONTINUES}" for later in self.stages[1:]))
        if way.removes and self.line.sets(way.removes):
            return way
        sets = tuple(_OF_STAGE.sub(rf"{stage}:\g<0>", override) for override in way.sets)
        return replace(way, sets=sets, removes=way.removes and f"{stage}:{way.removes}")


@dataclass(frozen=True)
class Pipeline:
    """A pipeline whose stages are planned."""

    request: PipelineRequest
    name: str
    plans: tuple[Plan, ...]

    @property
    def folder(self) -> Path:
        return self.plans[0].runs / FOLDER / self.name


def read_request(line: CommandLine) -> PipelineRequest:
    """Split the keys of a pipeline off a line.

    Raises UserError: bad_value, duplicate_stage, pipeline_conflict, submit_conflict,
    not_in_pipeline, duplicate_override.
    """
    stop_if_worse, line = line.pop_flag("stop_if_worse")
    values, rest = line.pop_overrides(("pipeline",))
    stages = tuple(
        name for name in values.get("pipeline", "").strip("[]").replace(" ", "").split(",") if name
    )
    problems = []
    if stop_if_worse and line.verb == "submit":
        message = "on Slurm no run waits for an evaluation"
        problems.append(
            Finding.error("submit_conflict", message, "override stop_if_worse", "remove it")
        )
    if "pipeline" in values and not stages:
        cure = "write the names of its stages: pipeline=sft,dpo"
        problems.append(
            Finding.error("bad_value", "pipeline= names no stage", "override pipeline", cure)
        )
    for stage in sorted({stage for stage in stages if stages.count(stage) > 1}):
        cure = "give the second one a stage file with a name of its own"
        message = f"'{stage}' is in the pipeline {stages.count(stage)} times"
        problems.append(Finding.error("duplicate_stage", message, "override pipeline", cure))
    problems += [problem for override in rest.argv for problem in _conflicts(override, stages)]
    if problems:
        raise UserError(problems)
    return PipelineRequest(stages, rest, stop_if_worse)


def _conflicts(override: str, stages: Sequence[str]) -> list[Finding]:
    match = STAGE_KEY.match(override)
    stage, key, where = (
        match[1] if match else "",
        override_key(match[2] if match else override),
        f"override {override}",
    )
    if stage and stage not in stages:
        message = f"{stage} is not a stage of this pipeline"
        cure = f"it has {', '.join(stages)}" if stages else "remove it, or set pipeline=STAGE,STAGE"
        return [Finding.error("not_in_pipeline", message, where, cure)]
    if not stages:
        return []
    message, cure = "", "remove it: the pipeline sets it"
    if key in _SET_BY_PIPELINE if stage else key in ("stage", "model.trained_by"):
        message = f"{key} is not for {'one stage' if stage else 'the stages'} of a pipeline"
    elif key == "model.path" and stage != stages[0]:
        message = "each stage starts from the model of the one before"
        cure = f"remove it, or set {stages[0]}:model.path, where the pipeline starts"
    elif key == "cache_only":
        message, cure = (
            "a stage's data is tokenised once its model exists",
            "remove it; for Slurm: tokenize_first=true",
        )
    elif override.startswith("-"):
        message, cure = (
            f"a pipeline takes no {'sweep' if override in MULTIRUN else override}",
            "remove it: each key has one value, and stages run in turn",
        )
    return [Finding.error("pipeline_conflict", message, where, cure)] if message else []


def plan_pipeline(line: CommandLine, notify: Callable[[str], None]) -> Pipeline | None:
    """Plan the stages in order, compare each with the one before, and look at the runs that are
    there. None for the line of one stage.

    Raises UserError for a stage that cannot work, those of read_request, and: pipeline_model,
    nothing_to_continue, adapter_settings, other_chat_template, other_tokenizer, other_vocabulary,
    short_context, pipeline_changed, stale_stage.
    """
    request = read_request(line)
    if not request.stages:
        return None
    plans: list[Plan] = []
    for stage in request.stages:
        plans.append(plan_link(request, stage, plans[-1] if plans else None, notify))
    digest = hashlib.sha256(" ".join(plan.identity for plan in plans).encode()).hexdigest()[:8]
    names = {plan.config.name for plan in plans}
    given = names.pop() if len(names) == 1 else None
    pipeline = Pipeline(request, given or "-".join((*request.stages, digest)), tuple(plans))
    if request.stop_if_worse and (
        silent := [plan.stage for plan in plans if not plan.config.evaluate]
    ):
        message = f"stop_if_worse=true judges evaluations, and {', '.join(silent)} has none"
        raise refusal("pipeline_conflict", message, "override stop_if_worse", "set evaluate=true")
    return _compare_runs(pipeline)


def plan_link(
    request: PipelineRequest, stage: str, before: Plan | None, notify: Callable[[str], None]
) -> Plan:
    """Plan one stage, which starts from the model that the run of `before` makes. Raises
    UserError.
    """
    argv, pending = (f"stage={stage}", *request.overrides(stage)), PendingModel()
    with request.cures_for(stage):
        if before is not None:
            _refuse_start(before, stage)
            adapter = before.lora.as_adapter(before.model_dir) if before.lora else None
            trained = str(adapter.merged if adapter else before.model_dir)
            quoted = trained if re.fullmatch(r"[\w./-]+", trained) else quote_text(trained)
            argv = (*argv, f"model.path={quoted}", f"model.trained_by='{before.identity}'")
            pending = PendingModel(planned_shape(before, os.environ), adapter)
        composed = compose_once(replace(request.line, argv=argv))
        machine = this_machine(composed, starts_trainer=request.line.verb != "plan")
        plan = build_plan(composed, machine, pending=pending)
        note_earlier_run(plan, notify)
        if before is not None:
            _check_link(plan, before)
    return plan


def _refuse_start(before: Plan, stage: str) -> None:
    """Raise UserError (pipeline_model) if no stage can start from what `before` makes."""
    message, cure = "", "end the pipeline there"
    if before.config.stage.kind in FINAL_KINDS:
        message = (
            f"{stage} cannot start from {before.stage}, which trains "
            f"{FINAL_KINDS[before.config.stage.kind]}"
        )
    elif before.config.trainer.leaves != "config.json":
        message = f"{before.trainer} writes no model that {stage} can start from"
        cure = f"set {before.stage}:trainer= to another one"
    if message:
        raise refusal("pipeline_model", message, "override pipeline", cure)


def _check_link(plan: Plan, before: Plan) -> None:
    """Compare a stage with the stage before it, whose run may not exist yet, as its own plan will
    compare them then.

    Raises UserError: nothing_to_continue, adapter_settings, other_chat_template, other_tokenizer,
    other_vocabulary, short_context.
    """
    allow = plan.config.allow
    trained, template = (
        find_template_name(values_of(each.flags), [*each.options, *each.patches])
        for each in (before, plan)
    )
    if template and plan.config.stage.kind != Kind.sft and "other_chat_template" not in allow:
        is_own = (
            trained is None
            and brings_template(before.inputs.model.local, template, plan.finder) is not False
        )
        if not is_own:
            refuse_other_template(
                template, trained or "its tokenizer's own", f"stage {before.stage}", plan.origins
            )
    if problems := [problem for problem in _link_problems(plan, before) if problem.id not in allow]:
        raise UserError(problems)


def _link_problems(plan: Plan, before: Plan) -> list[Finding]:
    problems = []
    if continues_adapter(plan.config) and before.lora is None:
        message = (
            "recipe.lora.start=continue resumes training an adapter, and stage "
            f"{before.stage} trains none"
        )
        where = plan.origins.of("recipe.lora.start").where
        problems.append(
            Finding.error(
                "nothing_to_continue", message, where, Fix.of("remove {0}", "~recipe.lora.start")
            )
        )
    own, other = (each.config.flags.get("tokenizer_name_or_path") for each in (plan, before))
    if own and own not in (other or before.inputs.model.reference, str(before.model_dir)):
        message = f"{plan.stage} tokenizes with {own}, and {before.stage} trained the model with "
        message += str(other or before.inputs.model.reference)
        cure = Fix.of(
            "remove it: the model brings its tokenizer; or set {0}", "allow=[other_tokenizer]"
        )
        problems.append(
            Finding.error(
                "other_tokenizer", message, f"{plan.stage}: flags.tokenizer_name_or_path", cure
            )
        )
    models = [each.origins.choices.get("model") for each in (plan, before)]
    sizes = [each.config.model.shape.vocabulary for each in (plan, before)]
    if None not in sizes and sizes[0] != sizes[1]:
        message = (
            f"{plan.stage} is written for model={models[0]} with a vocabulary of "
            f"{sizes[0]:,}, and starts from "
        )
        message += f"the model of {before.stage}, model={models[1]} with {sizes[1]:,}"
        cure = Fix.of("set model= for both, or {0}", "allow=[other_vocabulary]")
        problems.append(
            Finding.error("other_vocabulary", message, plan.origins.of("model").where, cure)
        )
    made = f"the model that {before.stage} trains"
    return [
        *problems,
        *find_short_context(plan.config, plan.origins, before.inputs.model, made, os.environ),
    ]


def _compare_runs(pipeline: Pipeline) -> Pipeline:
    """Refuse runs of other plans in the stages' folders, and runs that started from another model
    than is there now; return the pipeline with what is still pending.

    Raises UserError: name_taken, other_width, other_format; pipeline_changed, stale_stage.
    """
    # the run of the stage before; whether its model is still to be made
    source, changes = ("", False)
    problems, plans = [], []
    for index, plan in enumerate(pipeline.plans):
        plans.append(replace(plan, is_pending=changes))
        try:
            finished = is_finished(plan)
        except UserError as error:
            is_new = not (pipeline.folder / "pipeline.json").is_file()
            if is_new or error.problems[0].id == "other_format":
                raise
            later = [
                run_name(each.folder)
                for each in pipeline.plans[index + 1 :]
                if each.folder.exists()
            ]
            message = (
                f"{error.problems[0].message}: since this pipeline began, {plan.stage} has changed"
            )
            message += f", so {' and '.join(later)} would be stale" if later else ""
            cure = "set another name=, or leave it out, for a new pipeline"
            raise refusal("pipeline_changed", message, f"pipeline {pipeline.name}", cure) from error
        started_from = Run(plan.folder).plan.get("started_from")
        differs = (
            None not in (started_from, plan.started_from) and started_from != plan.started_from
        )
        is_stale = bool(source) and folder_status(plan.folder) != "absent" and (changes or differs)
        if is_stale and not plan.config.restart:
            message = (
                f"{run_name(plan.folder)} is stale: it was trained from another model of {source}"
            )
            message += (
                " than the one that is to be trained now"
                if changes
                else " than the one that is there now"
            )
            cure = f"{plan.stage}:restart=true archives it and trains it again"
            problems.append(
                Finding.error("stale_stage", message, f"pipeline {pipeline.name}", cure)
            )
        source, changes = run_name(plan.folder), changes or is_stale or not finished
    if problems:
        raise UserError(problems)
    return replace(pipeline, plans=tuple(plans))
