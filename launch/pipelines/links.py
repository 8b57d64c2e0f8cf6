"""Plan the stages of a pipeline in order: each starts from the model of the previous stage.

A stage is planned before the model that it starts from exists. Its plan is the same once the model
exists, because `model.trained_by` identifies the model by the run that trains it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launch.config.compose import compose_once
from launch.config.kinds import Kind
from launch.config.line import MULTIRUN, STAGE_KEY, CommandLine, override_key
from launch.config.quoting import quote_if_needed
from launch.digests import digest_text
from launch.errors import UserError, refusal
from launch.execution.earlier_runs import note_earlier_run
from launch.execution.record.outcome import folder_status
from launch.execution.record.run import Run
from launch.execution.resume import is_finished
from launch.planning.build import plan_on_this_machine
from launch.planning.chat_template import (
    brings_template,
    find_template_name,
    other_template_problem,
)
from launch.planning.estimate.planned_shape import planned_shape
from launch.planning.find_runs import run_name
from launch.planning.flags import values_of
from launch.planning.plan import Plan
from launch.planning.saved_model import find_short_context
from launch.planning.stage_model import continues_adapter
from launch.planning.unnamed_run import PendingModel
from launch.worker.finding import Action, Finding, Fix

# {kind of stage whose model no stage can start from: what that model is}. Its output is a score.
FINAL_KINDS = {Kind.rm: "a reward model"}
FOLDER = "pipelines"  # folder below the folder of runs
# The overrides in a cure whose keys may differ between the stages.
_OF_STAGE = re.compile(
    r"^(?:trainer|parallel|gpus|processes|python|allow|restart|(?:recipe|flags|model)\.[\w.]+)="
)
_CONTINUES = "recipe.lora.start=continue"
# The keys that the pipeline itself sets, so that neither the line nor a single stage may set them.
_SET_FOR_ALL = ("stage", "model.trained_by")
_SET_FOR_STAGE = (*_SET_FOR_ALL, "runs", "detach")


@dataclass(frozen=True)
class PipelineRequest:
    """The stages of a command line, and the line without the keys of a pipeline."""

    stages: tuple[str, ...]  # empty if the line is of a single stage
    line: CommandLine
    stop_if_worse: bool = False

    def overrides(self, stage: str) -> list[str]:
        """Return the overrides of one stage.

        They are the shared ones, and the stage's own `STAGE:key=value`, which take precedence.
        """
        shared: list[str] = []
        own: list[str] = []
        for override in self.line.argv:
            prefix, _, rest = override.partition(":")
            if prefix == stage:
                own.append(rest)
            elif prefix not in self.stages:
                shared.append(override)
        own_keys = {override_key(override) for override in own}
        inherited = [override for override in shared if override_key(override) not in own_keys]
        return [*inherited, *own]

    @contextlib.contextmanager
    def cures_for(self, stage: str) -> Iterator[None]:
        """Name the stage in the cures of the problems that are raised: `sft:trainer=trl_sft`."""
        try:
            yield
        except UserError as error:
            problems = [self.name_stage(problem, stage) for problem in error.problems]
            raise UserError(problems) from error

    def name_stage(self, problem: Finding, stage: str) -> Finding:
        """Return a problem of one stage with a cure that names the stage.

        A cure that replaces an override of all stages stays as it is.
        """
        if not isinstance(problem.cure, Fix):
            return problem
        actions = [self._prefix_with_stage(action, stage) for action in problem.cure.actions]
        return replace(problem, cure=Fix.of(problem.cure.sentence, *actions))

    def _prefix_with_stage(self, action: Action, stage: str) -> Action:
        # The first stage has no adapter to train further, but those behind it do.
        if action.sets == (_CONTINUES,) and stage == self.stages[0]:
            return replace(action, sets=tuple(f"{later}:{_CONTINUES}" for later in self.stages[1:]))
        if action.removes and self.line.sets(action.removes):
            return action
        sets = tuple(_OF_STAGE.sub(rf"{stage}:\g<0>", override) for override in action.sets)
        return replace(action, sets=sets, removes=action.removes and f"{stage}:{action.removes}")


@dataclass(frozen=True)
class Pipeline:
    """A pipeline whose stages are planned."""

    request: PipelineRequest
    name: str
    plans: tuple[Plan, ...]

    @property
    def folder(self) -> Path:
        return self.plans[0].runs / FOLDER / self.name


def read_pipeline_request(line: CommandLine) -> PipelineRequest:
    """Split the keys of a pipeline off a line.

    Raises UserError: bad_value, duplicate_stage, pipeline_conflict, submit_conflict,
    not_in_pipeline, duplicate_override.
    """
    stop_if_worse, line = line.pop_flag("stop_if_worse")
    values, rest = line.pop_overrides(("pipeline",))
    names = values.get("pipeline", "").strip("[]").replace(" ", "").split(",")
    stages = tuple(name for name in names if name)
    problems = []
    if stop_if_worse and line.verb == "submit":
        message = "on Slurm no run waits for an evaluation"
        where = "override stop_if_worse"
        problems.append(Finding.error("submit_conflict", message, where, "remove it"))
    if "pipeline" in values and not stages:
        message = "pipeline= names no stage"
        cure = "write the names of its stages: pipeline=sft,dpo"
        problems.append(Finding.error("bad_value", message, "override pipeline", cure))
    for stage in sorted({stage for stage in stages if stages.count(stage) > 1}):
        cure = "give the second one a stage file with a name of its own"
        message = f"'{stage}' is in the pipeline {stages.count(stage)} times"
        problems.append(Finding.error("duplicate_stage", message, "override pipeline", cure))
    for override in rest.argv:
        problems += _conflicts(override, stages)
    if problems:
        raise UserError(problems)
    return PipelineRequest(stages, rest, stop_if_worse)


def _conflicts(override: str, stages: Sequence[str]) -> list[Finding]:
    """Find the problems of an override that a pipeline does not accept."""
    where = f"override {override}"
    match = STAGE_KEY.match(override)
    stage = match[1] if match else ""
    if stage and stage not in stages:
        message = f"{stage} is not a stage of this pipeline"
        cure = f"it has {', '.join(stages)}" if stages else "remove it, or set pipeline=STAGE,STAGE"
        return [Finding.error("not_in_pipeline", message, where, cure)]
    if not stages:
        return []
    key = override_key(match[2] if match else override)
    cure = "remove it: the pipeline sets it"
    if stage and key in _SET_FOR_STAGE:
        message = f"{key} is not for one stage of a pipeline"
    elif not stage and key in _SET_FOR_ALL:
        message = f"{key} is not for the stages of a pipeline"
    elif key == "model.path" and stage != stages[0]:
        message = "each stage starts from the model of the previous stage"
        cure = f"remove it, or set {stages[0]}:model.path, where the pipeline starts"
    elif key == "cache_only":
        message = "a stage's data is tokenised once its model exists"
        cure = "remove it; for Slurm: tokenize_first=true"
    elif override.startswith("-"):
        option = "sweep" if override in MULTIRUN else override
        message = f"a pipeline takes no {option}"
        cure = "remove it: each key has one value, and stages run in turn"
    else:
        return []
    return [Finding.error("pipeline_conflict", message, where, cure)]


def plan_pipeline(line: CommandLine, notify: Callable[[str], None]) -> Pipeline | None:
    """Plan the stages in order, and compare each with the previous stage and with existing runs.

    None is returned for a line without a pipeline.

    Raises UserError for a stage that cannot work, those of read_request, and: pipeline_model,
    nothing_to_continue, adapter_settings, other_chat_template, other_tokenizer, other_vocabulary,
    short_context, pipeline_changed, stale_stage.
    """
    request = read_pipeline_request(line)
    if not request.stages:
        return None
    plans: list[Plan] = []
    for stage in request.stages:
        plans.append(plan_link(request, stage, plans[-1] if plans else None, notify))
    digest = digest_text(" ".join(plan.identity for plan in plans))[:8]
    names = {plan.config.name for plan in plans}
    name = names.pop() if len(names) == 1 else None
    pipeline = Pipeline(request, name or "-".join((*request.stages, digest)), tuple(plans))
    not_evaluated = [plan.stage for plan in plans if not plan.config.evaluate]
    if request.stop_if_worse and not_evaluated:
        message = f"stop_if_worse=true judges evaluations, and {', '.join(not_evaluated)} has none"
        raise refusal("pipeline_conflict", message, "override stop_if_worse", "set evaluate=true")
    return _compare_runs(pipeline)


def plan_link(
    request: PipelineRequest, stage: str, before: Plan | None, notify: Callable[[str], None]
) -> Plan:
    """Plan one stage, which starts from the model that the run of `before` makes.

    Raises UserError.
    """
    argv = [f"stage={stage}", *request.overrides(stage)]
    pending = PendingModel()
    with request.cures_for(stage):
        if before is not None:
            _refuse_start(before, stage)
            adapter = before.lora.as_adapter(before.model_dir) if before.lora else None
            model_path = str(adapter.merged if adapter else before.saved_model)
            argv.append(f"model.path={quote_if_needed(model_path)}")
            argv.append(f"model.trained_by='{before.identity}'")
            pending = PendingModel(planned_shape(before, os.environ), adapter)
        composed = compose_once(replace(request.line, argv=tuple(argv)))
        starts_trainer = request.line.verb != "plan"
        plan = plan_on_this_machine(composed, starts_trainer=starts_trainer, pending=pending)
        note_earlier_run(plan, notify)
        if before is not None:
            _check_link(plan, before)
    return plan


def _refuse_start(before: Plan, stage: str) -> None:
    """Raise UserError (pipeline_model) if no stage can start from what `before` makes."""
    kind = before.config.stage.kind
    if kind in FINAL_KINDS:
        message = f"{stage} cannot start from {before.stage}, which trains {FINAL_KINDS[kind]}"
        cure = "end the pipeline there"
        raise refusal("pipeline_model", message, "override pipeline", cure)
    output = before.config.trainer.output_glob
    if "*" in output or not output.endswith("config.json"):
        message = f"{before.trainer} writes no model that {stage} can start from"
        cure = f"set {before.stage}:trainer= to another one"
        raise refusal("pipeline_model", message, "override pipeline", cure)


def _check_link(plan: Plan, before: Plan) -> None:
    """Compare a stage with the previous stage, whose run may not exist yet.

    The plan of the stage will compare them once more when that run is done.

    Raises UserError: nothing_to_continue, adapter_settings, other_chat_template, other_tokenizer,
    other_vocabulary, short_context.
    """
    allow = plan.config.allow
    if plan.config.stage.kind != Kind.sft and "other_chat_template" not in allow:
        _check_template(plan, before)
    problems = [problem for problem in _link_problems(plan, before) if problem.id not in allow]
    if problems:
        raise UserError(problems)


def _check_template(plan: Plan, before: Plan) -> None:
    """Check that a stage uses the chat template that its model was trained with.

    Raises UserError: other_chat_template.
    """
    template = _template_name(plan)
    if not template:
        return
    trained_with = _template_name(before)
    if trained_with is None:
        model = before.inputs.model.local
        if brings_template(model, template, plan.finder) is not False:
            return
    trained_with = trained_with or "its tokenizer's own"
    problem = other_template_problem(template, trained_with, f"stage {before.stage}", plan.origins)
    if problem is not None:
        raise UserError(problem)


def _template_name(plan: Plan) -> str | None:
    return find_template_name(values_of(plan.flags), [*plan.options, *plan.patches])


def _link_problems(plan: Plan, before: Plan) -> list[Finding]:
    model = f"the model that {before.stage} trains"
    return [
        *_adapter_problems(plan, before),
        *_tokenizer_problems(plan, before),
        *_vocabulary_problems(plan, before),
        *find_short_context(plan.config, plan.origins, before.inputs.model, model, os.environ),
    ]


def _adapter_problems(plan: Plan, before: Plan) -> Iterator[Finding]:
    if continues_adapter(plan.config) and before.lora is None:
        message = (
            "recipe.lora.start=continue resumes training an adapter, "
            f"and stage {before.stage} trains none"
        )
        where = plan.origins.of("recipe.lora.start").where
        cure = Fix.of("remove {0}", "~recipe.lora.start")
        yield Finding.error("nothing_to_continue", message, where, cure)


def _tokenizer_problems(plan: Plan, before: Plan) -> Iterator[Finding]:
    flag = "tokenizer_name_or_path"
    tokenizer = plan.config.flags.get(flag)
    trained_with = before.config.flags.get(flag) or before.inputs.model.reference
    if tokenizer and tokenizer not in (trained_with, str(before.saved_model)):
        message = (
            f"{plan.stage} tokenizes with {tokenizer}, "
            f"and {before.stage} trained the model with {trained_with}"
        )
        sentence = "remove it: the model brings its tokenizer; or set {0}"
        cure = Fix.of(sentence, "allow=[other_tokenizer]")
        yield Finding.error("other_tokenizer", message, f"{plan.stage}: flags.{flag}", cure)


def _vocabulary_problems(plan: Plan, before: Plan) -> Iterator[Finding]:
    sizes = [of_stage.config.model.shape.vocabulary for of_stage in (plan, before)]
    if None not in sizes and sizes[0] != sizes[1]:
        models = [of_stage.origins.choices.get("model") for of_stage in (plan, before)]
        message = (
            f"{plan.stage} is written for model={models[0]} with a vocabulary of {sizes[0]:,}, "
            f"and starts from the model of {before.stage}, model={models[1]} with {sizes[1]:,}"
        )
        where = plan.origins.of("model").where
        cure = Fix.of("set model= for both, or {0}", "allow=[other_vocabulary]")
        yield Finding.error("other_vocabulary", message, where, cure)


def _compare_runs(pipeline: Pipeline) -> Pipeline:
    """Compare the stages with the runs in their folders; return which stages are still pending.

    Runs of other plans are refused, and so are runs that started from another model than the
    previous stage has now.

    Raises UserError: name_taken, other_width, other_format; pipeline_changed, stale_stage.
    """
    source = ""  # the name of the previous stage's run
    changes = False  # whether the model of that run is yet to be trained
    problems: list[Finding] = []
    plans: list[Plan] = []
    for index, plan in enumerate(pipeline.plans):
        plans.append(replace(plan, is_pending=changes))
        try:
            finished = is_finished(plan)
        except UserError as error:
            is_new = not (pipeline.folder / "pipeline.json").is_file()
            if is_new or error.problems[0].id == "other_format":
                raise
            raise _pipeline_changed(pipeline, index, error) from error
        is_stale = False
        if source and folder_status(plan.folder) != "absent":
            is_stale = changes or _started_from_other_model(plan)
        if is_stale and not plan.config.restart:
            which = "is to be trained now" if changes else "is there now"
            message = (
                f"{run_name(plan.folder)} is stale: it was trained from another model of {source} "
                f"than the one that {which}"
            )
            cure = f"{plan.stage}:restart=true archives it and trains it again"
            where = f"pipeline {pipeline.name}"
            problems.append(Finding.error("stale_stage", message, where, cure))
        source = run_name(plan.folder)
        changes = changes or is_stale or not finished
    if problems:
        raise UserError(problems)
    return replace(pipeline, plans=tuple(plans))


def _started_from_other_model(plan: Plan) -> bool:
    """Return whether the recorded run of a stage started from another model than the plan."""
    recorded = Run(plan.folder).plan.get("started_from")
    if recorded is None or plan.started_from is None:
        return False
    return bool(recorded != plan.started_from)


def _pipeline_changed(pipeline: Pipeline, index: int, error: UserError) -> UserError:
    """Return the refusal of a stage that has changed since the pipeline began."""
    later = [run_name(plan.folder) for plan in pipeline.plans[index + 1 :] if plan.folder.exists()]
    stage = pipeline.plans[index].stage
    message = f"{error.problems[0].message}: since this pipeline began, {stage} has changed"
    if later:
        message += f", so {' and '.join(later)} would be stale"
    cure = "set another name=, or leave it out, for a new pipeline"
    return refusal("pipeline_changed", message, f"pipeline {pipeline.name}", cure)
