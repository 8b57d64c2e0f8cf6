"""Builds a plan: from a command line, everything that is needed to run a stage.

`plan_line` takes a command line, and `plan_on_this_machine` a configuration that is composed
already. Both end in `build_plan`, which is given the machine as a value. It resolves everything
that the identity is a digest of (`launch.planning.unnamed_run`), then names the run, completes its
flags and renders its command (`_build`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.config.compose import Composed, compose_once
from launch.config.line import CommandLine
from launch.errors import UserError
from launch.planning.attention import attention_flags
from launch.planning.chat_template import TEMPLATE_FLAG, ChatTemplate, find_earlier_texts
from launch.planning.checks import check_flags
from launch.planning.command import build_command
from launch.planning.find_runs import runs_of_stage
from launch.planning.flags import Flag, replace_computed_values
from launch.planning.folders import NAME, default_name, tracked_name
from launch.planning.identity import RunIdentity, identify_run
from launch.planning.library_key_check import check_library_files
from launch.planning.machine import Machine, this_machine
from launch.planning.other_width import find_continued_run
from launch.planning.plan import Plan
from launch.planning.recipe import find_fallbacks, replace_recipe_values
from launch.planning.rules.plan_rule import FlagsCase
from launch.planning.rules.register import check_flags_together, find_plan_warnings
from launch.planning.tracking import add_tracking_flags, tracking_environment
from launch.planning.tuned_overlay import locate_in_overlay
from launch.planning.unnamed_run import (
    NOTHING_PENDING,
    PendingModel,
    UnnamedRun,
    model_path,
    resolve_unnamed_run,
)
from launch.worker.finding import Finding


def plan_line(line: CommandLine) -> Plan:
    """Plan the one run of a command line on this machine. Raises UserError."""
    return plan_on_this_machine(compose_once(line))


def plan_on_this_machine(
    composed: Composed,
    *,
    starts_trainer: bool = True,
    await_digests: Callable[[], None] | None = None,
    reads_rows: bool = True,
    pending: PendingModel = NOTHING_PENDING,
    is_swept: bool = False,
) -> Plan:
    """Plan a composed stage on this machine. Raises UserError.

    See `this_machine` for `starts_trainer` and `await_digests`, and `build_plan` for the others.
    """
    machine = this_machine(
        composed.config, composed.origins, await_digests, starts_trainer=starts_trainer
    )
    return build_plan(composed, machine, reads_rows=reads_rows, pending=pending, is_swept=is_swept)


def build_plan(
    composed: Composed,
    machine: Machine,
    *,
    reads_rows: bool = True,
    pending: PendingModel = NOTHING_PENDING,
    is_swept: bool = False,
) -> Plan:
    """Plan a composed stage: resolve its settings, render the command, identify the run by what was
    rendered.

    Pure: the same configuration, source and inputs give the same plan, byte for byte. Local data is
    not read without `reads_rows`. `pending` is a model that another run is still to make. A plan of
    a sweep (`is_swept`), which may compare widths, continues no run of another width. Raises
    UserError for settings that cannot work.
    """
    try:
        supported, replaced = _use_fallback_values(composed)

        def build(template_digests: Mapping[str, str]) -> Plan:
            return _build(
                supported,
                machine,
                replaced=replaced,
                template_digests=template_digests,
                reads_rows=reads_rows,
                pending=pending,
            )

        plan = build({})
        plan = _plan_with_earlier_text(plan, build) or plan
        plan = plan if is_swept else _in_folder_of_other_width(plan)
        plan = replace(plan, warnings=(*plan.warnings, *find_plan_warnings(plan)))
    except UserError as error:
        machine.digests.save(create_folder=False)  # a refused plan creates none
        problems = [locate_in_overlay(problem, composed.origins) for problem in error.problems]
        raise UserError(problems) from error
    machine.digests.save()
    if plan.trl_template is not None:
        plan.finder.keep(plan.trl_template)
    return plan


def _build(
    composed: Composed,
    machine: Machine,
    *,
    replaced: Mapping[str, Any],
    template_digests: Mapping[str, str],
    reads_rows: bool,
    pending: PendingModel,
) -> Plan:
    """Build a plan, from the inputs to the command. Raises UserError.

    `template_digests` are those of the chat template of TRL's that an earlier run began with, by
    the names of the template's forms; empty for the installed one.
    """
    unnamed = resolve_unnamed_run(
        composed, machine, template_digests, pending, reads_rows=reads_rows
    )
    sources = unnamed.sources
    settings = unnamed.settings
    identity = _identify(unnamed, machine)
    name = composed.config.name or default_name(settings.parallel.width, identity.run)
    flags = _name_flags(unnamed, composed.stage, name)
    flag_warnings = _check_flags(unnamed, flags, machine)
    files_checked = check_library_files(settings.parallel.library_files, machine.packages)
    return Plan(
        stage=composed.stage,
        name=name,
        identity=identity.run,
        training_identity=identity.training,
        config=sources.config,
        resolved=composed.plain,
        origins=composed.origins,
        replaced=replaced,
        machine=machine,
        runs=sources.runs,
        cache=sources.cache,
        inputs=sources.inputs,
        content=unnamed.content,
        input_digests=identity.digests,
        data=unnamed.data,
        shape=settings.shape,
        lora=settings.lora,
        template=sources.template,
        finder=sources.finder,
        parallel=settings.parallel,
        batch=unnamed.batch,
        flags=flags,
        patches=unnamed.patches,
        options=unnamed.options,
        attention=unnamed.attention,
        command=_render_command(unnamed, flags, machine),
        env=_add_tracking(unnamed, composed.stage, name, machine),
        lengths_file=unnamed.lengths_file,
        files_checked=files_checked,
        warnings=(*unnamed.warnings, *flag_warnings),
    )


def _identify(unnamed: UnnamedRun, machine: Machine) -> RunIdentity:
    """Return the run's identities, and the digests of its local inputs."""
    return identify_run(
        unnamed.sources.config,
        machine,
        inputs=unnamed.sources.inputs,
        content=unnamed.content,
        template=unnamed.sources.template,
        parallel=unnamed.settings.parallel,
        batch=unnamed.batch,
        flags=unnamed.built.flags,
        env=unnamed.env,
        patches=unnamed.patches,
        options=unnamed.options,
    )


def _name_flags(unnamed: UnnamedRun, stage: str, name: str) -> dict[str, Flag]:
    """Return the flags with the run's name, and those that its identity does not cover: the kernel
    of attention and the tracking.
    """
    runs = unnamed.sources.runs
    model_paths = {model_path(runs, stage, NAME): model_path(runs, stage, name)}
    flags = replace_computed_values(unnamed.built.flags, model_paths)
    flags |= attention_flags(unnamed.attention)
    settings = unnamed.settings
    tracked = tracked_name(stage, name)
    return add_tracking_flags(flags, settings.config, settings.origins, settings.environ, tracked)


def _check_flags(unnamed: UnnamedRun, flags: Mapping[str, Flag], machine: Machine) -> list[Finding]:
    """Check the flags by the trainer's parser and by the rules. Returns warnings, and raises
    UserError.
    """
    sources = unnamed.sources
    origins = unnamed.settings.origins
    trainer = sources.config.trainer
    check_flags(machine.schemas[trainer.name], trainer, origins, flags)
    case = FlagsCase(
        config=sources.config,
        origins=origins,
        parallel=unnamed.settings.parallel,
        machine=machine,
        inputs=sources.inputs,
        batch=unnamed.batch,
        data=unnamed.data,
        flags=flags,
        options=(*unnamed.options, *unnamed.patches),
        names=_known_names(machine, sources.template),
        finder=sources.finder,
    )
    return check_flags_together(case)


def _render_command(
    unnamed: UnnamedRun, flags: Mapping[str, Flag], machine: Machine
) -> tuple[str, ...]:
    return build_command(
        unnamed.sources.config,
        machine,
        unnamed.settings.parallel,
        unnamed.batch,
        flags=flags,
        patches=unnamed.patches,
        options=unnamed.options,
        mixture=unnamed.sources.inputs.mixture,
    )


def _add_tracking(unnamed: UnnamedRun, stage: str, name: str, machine: Machine) -> dict[str, str]:
    """Return the environment with the variables of the tracking, which have the run's name."""
    sources = unnamed.sources
    tracking = tracking_environment(sources.config, sources.runs, stage, name, machine.environ)
    return {**unnamed.env, **tracking}


def _use_fallback_values(composed: Composed) -> tuple[Composed, dict[str, Any]]:
    """Replace values of a shipped stage that the trainer lacks.

    Returns the configuration, and the replaced values by key.
    """
    config = composed.config
    recipe = composed.plain["recipe"]
    fallbacks = find_fallbacks(config.trainer, recipe, composed.origins)
    if not fallbacks:
        return composed, {}
    replaced = {key: recipe[key] for key in fallbacks}
    config = replace(config, recipe=replace_recipe_values(config.recipe, fallbacks))
    plain = {**composed.plain, "recipe": {**recipe, **fallbacks}}
    return replace(composed, config=config, plain=plain), replaced


def _known_names(machine: Machine, template: ChatTemplate | None) -> dict[str, Sequence[str]]:
    """Return the names that flags may take, by flag: those of the checkout, and of this plan's own
    template.
    """
    known = dict(machine.registries)
    if template is not None:
        known[TEMPLATE_FLAG] = (*known.get(TEMPLATE_FLAG, ()), template.short_name)
    return known


def _plan_with_earlier_text(plan: Plan, build: Callable[[Mapping[str, str]], Plan]) -> Plan | None:
    """Return the plan of an unfinished run that began with another text of TRL's template, where
    only the text differs and is still on this machine: an update of TRL changes no run that has
    begun. `build` plans with the digests of a text.
    """
    template = plan.trl_template
    if template is None or plan.config.restart:
        return None
    for run, identity, digests in find_earlier_texts(plan.finder, template, _runs_to_resume(plan)):
        earlier = build(digests)
        if (earlier.folder, earlier.identity) == (run, identity):
            return earlier
    return None


def _in_folder_of_other_width(plan: Plan) -> Plan:
    """Return the plan in the folder of the run that it continues, if that began at another width.

    With restart=true it is the run that is archived. A run that the user names or only tokenises for
    has a folder of its own.
    """
    config = plan.config
    if config.name is not None or config.cache_only or plan.folder.exists():
        return plan
    name = find_continued_run(plan.folder.parent, plan.identity, plan.training_identity)
    if name is None:
        return plan
    return replace(plan.renamed(name), config=config, resolved=plan.resolved)


def _runs_to_resume(plan: Plan) -> list[Path]:
    """Return the folders of the unfinished runs that the command line may mean: of its `name=`,
    else of every name that its stage's identities give, unless the plan's own run has begun.
    """
    if plan.config.name is not None:
        return [plan.folder]
    if plan.folder.exists():
        return []
    return [run for run in runs_of_stage(plan.folder.parent) if not (run / "DONE").exists()]
