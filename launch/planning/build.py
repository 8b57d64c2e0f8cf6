"""Builds a plan: the way from a command line to everything that is needed to run a stage.

`plan_line` takes a command line, and `plan_on_this_machine` a configuration that is composed
already. Both end in `build_plan`, which is given the machine as a value, and whose steps `_build`
lists from top to bottom.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch.config.compose import Composed, compose_once
from launch.config.line import CommandLine
from launch.config.schema import Family, RootConfig
from launch.errors import UserError
from launch.planning.adapter import Adapter
from launch.planning.attention import attention_flags, choose_attention
from launch.planning.chat_template import (
    STAGED,
    TEMPLATE_FLAG,
    ChatTemplate,
    find_earlier_texts,
    find_template,
)
from launch.planning.checks import check_flags
from launch.planning.command import build_command, choose_options, choose_patches
from launch.planning.data import read_local_data
from launch.planning.environment import build_environment
from launch.planning.estimate.shape import ModelShape
from launch.planning.flag_sources import build_flags
from launch.planning.flags import replace_computed_values
from launch.planning.folders import (
    NAME,
    cache_folder,
    default_name,
    machine_places,
    run_folder,
    runs_folder,
    tracked_name,
)
from launch.planning.identity import identify_run, read_content
from launch.planning.inputs import Inputs, resolve_inputs
from launch.planning.lengths import lengths_file
from launch.planning.library_key_check import check_library_files
from launch.planning.lora import resolve_lora
from launch.planning.machine import Machine, this_machine
from launch.planning.olmo_preset import LISTED, needed_preset
from launch.planning.other_width import find_continued_run
from launch.planning.parallel import resolve_parallel, resolve_width, share_batch
from launch.planning.plan import Plan
from launch.planning.recipe import find_fallbacks, replace_recipe_values
from launch.planning.rlvr import uses_vllm
from launch.planning.rule_facts import PlanFacts, find_by_rules
from launch.planning.rules.plan_rule import FlagsCase, SettingsCase
from launch.planning.rules.register import check_flags_together, check_settings, find_warnings
from launch.planning.saved_model import check_model_folder
from launch.planning.stage_model import continues_adapter, model_shape
from launch.planning.tracking import add_tracking_flags, tracking_environment
from launch.planning.tuned_overlay import locate_in_overlay
from launch.planning.validation import check_validation
from launch.resources import user_cache
from launch.upstream.trl_templates import TemplateFinder


@dataclass(frozen=True)
class PendingModel:
    """What is known of a model that another run is still to make."""

    shape: ModelShape | None = None
    adapter: Adapter | None = None  # None: that run trains all weights


_NOTHING_PENDING = PendingModel()


def plan_line(line: CommandLine) -> Plan:
    """Plan the one run of a command line on this machine. Raises UserError."""
    return plan_on_this_machine(compose_once(line))


def plan_on_this_machine(
    composed: Composed,
    *,
    starts_trainer: bool = True,
    await_digests: Callable[[], None] | None = None,
    reads_rows: bool = True,
    pending: PendingModel = _NOTHING_PENDING,
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
    pending: PendingModel = _NOTHING_PENDING,
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
    """Build a plan step by step, from the inputs to the command. Raises UserError.

    `template_digests` are those of the chat template of TRL's that an earlier run began with, by
    the names of the template's forms; empty for the installed one.
    """
    origins = composed.origins
    trainer = composed.config.trainer
    cwd = machine.cwd
    environ = machine.environ
    runs = runs_folder(composed.config, cwd)
    cache = cache_folder(composed.config, cwd)

    # The inputs: chat template, model and data.
    check_validation(composed.config, origins)
    finder = _template_finder(machine, cache, template_digests)
    upstream_templates = machine.registries.get(TEMPLATE_FLAG, ())
    template = find_template(composed.config, origins, cwd, upstream_templates, finder)
    config = _with_template(composed.config, template)
    inputs = resolve_inputs(config, origins, cache, cwd, machine.digests.of)
    model_warnings = check_model_folder(config, origins, inputs.model, machine.digests.of, environ)

    # How the ranks share the model and the global batch.
    width = resolve_width(config, origins)
    parallel = resolve_parallel(config, trainer, width)
    shape = model_shape(config, inputs.model) or pending.shape
    continued = _continued_adapter(config, inputs, pending)
    lora = resolve_lora(config, continued)
    facts = PlanFacts(config, composed.plain, origins, parallel)
    settings = SettingsCase(
        config, origins, parallel, environ, lora, continued, shape, inputs.mixture
    )
    setting_warnings = check_settings(settings, find_by_rules(facts, with_flags=False))
    batch = share_batch(config, origins, parallel)

    # The content of what is on this machine.
    not_read = (None,) * len(inputs.mixture)
    data = read_local_data(config, inputs, batch) if reads_rows else not_read
    content = read_content(config, inputs, parallel, cwd, machine.digests.of, template=template)

    # Flags, patches, options and environment. The run has no name yet, so NAME stands for it.
    unnamed_output = str(run_folder(runs, composed.stage, NAME) / "model")
    built = build_flags(
        config,
        composed.plain,
        origins,
        batch=batch,
        parallel=parallel,
        inputs=inputs,
        paths={"output": unnamed_output, "tokenized_cache": str(cache / content.tokenized)},
        lora=lora,
        template=template,
        preset=needed_preset(trainer, inputs.model, shape, machine.registries.get(LISTED, ())),
    )
    attention = choose_attention(config, parallel, built.flags, machine)
    patches = choose_patches(config, parallel, inputs, built)
    options = choose_options(config, parallel, inputs, built)
    lengths = lengths_file(
        trainer,
        built.flags,
        subset=built.mixture or built.subset,
        commit=machine.upstream.commit,
        cache=cache,
        places=machine_places(runs, cache),
        content=content.digests,
    )
    if lengths is not None and trainer.family == Family.trl:
        options += (f"lengths={lengths}",)
    elif lengths is not None:
        patches += (f"lengths={lengths}",)
    env = build_environment(
        trainer,
        parallel,
        machine.upstream.checkout,
        cache / content.reference,
        environ,
        expandable_segments=config.expandable_segments and not uses_vllm(config),
    )

    # The identity, a digest of all of that, and the name that follows from it.
    identity = identify_run(
        config,
        machine,
        inputs=inputs,
        content=content,
        template=template,
        parallel=parallel,
        batch=batch,
        flags=built.flags,
        env=env,
        patches=patches,
        options=options,
    )
    name = composed.config.name or default_name(width, identity.run)
    folder = run_folder(runs, composed.stage, name)

    # The flags with the name, and the command.
    flags = replace_computed_values(built.flags, {unnamed_output: str(folder / "model")})
    flags |= attention_flags(attention)
    flags = add_tracking_flags(flags, config, origins, environ, tracked_name(composed.stage, name))
    check_flags(machine.schemas[trainer.name], trainer, origins, flags)
    flag_warnings = check_flags_together(
        FlagsCase(
            config,
            origins,
            parallel,
            machine,
            inputs,
            batch,
            data,
            flags,
            (*options, *patches),
            _known_names(machine, template),
            finder,
        )
    )
    files_checked = check_library_files(parallel.library_files, machine.packages)
    command = build_command(
        config,
        machine,
        parallel,
        batch,
        flags=flags,
        patches=patches,
        options=options,
        mixture=inputs.mixture,
    )

    plan = Plan(
        stage=composed.stage,
        name=name,
        identity=identity.run,
        training_identity=identity.training,
        config=config,
        resolved=composed.plain,
        origins=origins,
        replaced=replaced,
        machine=machine,
        runs=runs,
        cache=cache,
        inputs=inputs,
        content=content,
        input_digests=identity.digests,
        data=data,
        shape=shape,
        lora=lora,
        template=template,
        finder=finder,
        parallel=parallel,
        batch=batch,
        flags=flags,
        patches=patches,
        options=options,
        attention=attention,
        command=command,
        env={**env, **tracking_environment(config, folder)},
        lengths_file=lengths,
        files_checked=files_checked,
        warnings=(*model_warnings, *built.warnings, *setting_warnings, *flag_warnings),
    )
    return replace(plan, warnings=(*plan.warnings, *find_warnings(plan)))


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


def _with_template(config: RootConfig, template: ChatTemplate | None) -> RootConfig:
    """Return the configuration with a user's template by its absolute path, and without one that is
    the tokenizer's own.
    """
    name = template.name if template is not None else None
    return replace(config, recipe=replace(config.recipe, chat_template=name))


def _template_finder(
    machine: Machine, cache: Path, template_digests: Mapping[str, str]
) -> TemplateFinder:
    """Return what finds TRL's chat templates in the packages of this machine, or what an earlier
    command kept of them.
    """
    packages = (*machine.packages, *machine.own_packages)
    kept = user_cache(machine.environ) / "templates"
    return TemplateFinder(packages, kept, cache / STAGED, template_digests)


def _continued_adapter(config: RootConfig, inputs: Inputs, pending: PendingModel) -> Adapter | None:
    """Return the adapter that is trained further; None if a new one, or none, is trained."""
    if not continues_adapter(config):
        return None
    return inputs.model.adapter or pending.adapter


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

    A run that the user names, starts over or only tokenises for has a folder of its own.
    """
    config = plan.config
    if config.name is not None or config.restart or config.cache_only or plan.folder.exists():
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
    stage_folder = plan.folder.parent
    return [run for run in stage_folder.glob("*/") if not (run / "DONE").exists()]
