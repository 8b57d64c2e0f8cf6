"""Resolves a run before it has a name: everything that its identity is a digest of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.config.compose import Composed
from launch.config.origins import Origins
from launch.config.schema import Family, RootConfig
from launch.planning.adapter import Adapter
from launch.planning.attention import AttentionChoice, choose_attention
from launch.planning.batch_split import Batch, share_batch
from launch.planning.chat_template import STAGED, TEMPLATE_FLAG, ChatTemplate, find_template
from launch.planning.command import choose_options, choose_patches
from launch.planning.data import read_local_data
from launch.planning.environment import build_environment
from launch.planning.estimate.shape import ModelShape
from launch.planning.flag_sources import build_flags
from launch.planning.flags import Flags
from launch.planning.folders import NAME, cache_folder, machine_places, run_folder, runs_folder
from launch.planning.identity import InputContent, read_content
from launch.planning.inputs import Inputs, resolve_inputs
from launch.planning.lengths import lengths_file
from launch.planning.lora import resolve_lora
from launch.planning.machine import Machine
from launch.planning.olmo_preset import LISTED, needed_preset
from launch.planning.parallel import resolve_parallel, resolve_width
from launch.planning.rlvr import uses_vllm
from launch.planning.rule_facts import PlanFacts, find_by_rules
from launch.planning.rules.plan_rule import SettingsCase
from launch.planning.rules.register import check_settings
from launch.planning.saved_model import check_model_folder
from launch.planning.stage_model import continues_adapter, model_shape, model_tensors
from launch.planning.validation import check_validation
from launch.resources import user_cache
from launch.upstream.trl_templates import TemplateFinder
from launch.worker.finding import Finding

if TYPE_CHECKING:
    from launch.data.structure import DataStructure


@dataclass(frozen=True)
class PendingModel:
    """What is known of a model that another run is still to make."""

    shape: ModelShape | None = None
    adapter: Adapter | None = None  # None: that run trains all weights


NOTHING_PENDING = PendingModel()


@dataclass(frozen=True)
class Sources:
    """What a run starts from: its chat template, its model and its data."""

    config: RootConfig  # with the name of the chat template that was found
    runs: Path
    cache: Path
    finder: TemplateFinder
    template: ChatTemplate | None
    inputs: Inputs
    warnings: Sequence[Finding]  # about a local model's folder


@dataclass(frozen=True)
class UnnamedRun:
    """A run before it has a name: everything that its identity is a digest of.

    `NAME` stands for the name in the path of the model that it writes.
    """

    sources: Sources
    settings: SettingsCase
    batch: Batch
    data: tuple[DataStructure | None, ...]
    content: InputContent
    built: Flags
    attention: AttentionChoice | None
    patches: tuple[str, ...]
    options: tuple[str, ...]
    lengths_file: Path | None
    env: Mapping[str, str]
    warnings: tuple[Finding, ...]


def resolve_unnamed_run(
    composed: Composed,
    machine: Machine,
    template_digests: Mapping[str, str],
    pending: PendingModel,
    *,
    reads_rows: bool,
) -> UnnamedRun:
    """Resolve the settings of a run, and build its flags and its environment. Raises UserError."""
    check_validation(composed.config, composed.origins)
    sources = _find_sources(composed.config, composed.origins, machine, template_digests)
    config = sources.config
    inputs = sources.inputs
    settings = _resolve_settings(sources, composed.origins, machine.environ, pending)
    parallel = settings.parallel
    facts = PlanFacts(config, composed.plain, composed.origins, parallel)
    setting_warnings = check_settings(settings, find_by_rules(facts, with_flags=False))
    batch = share_batch(config, composed.origins, parallel)
    not_read = (None,) * len(inputs.mixture)
    data = read_local_data(config, inputs, batch) if reads_rows else not_read
    content = read_content(
        config, inputs, parallel, machine.cwd, machine.digests.of, template=sources.template
    )

    built = _build_flags(sources, settings, batch, content, plain=composed.plain, machine=machine)
    attention = choose_attention(config, parallel, built.flags, machine)
    lengths = _locate_lengths(sources, built, content, machine)
    lengths_option = () if lengths is None else (f"lengths={lengths}",)
    patches = choose_patches(config, parallel, inputs, built)
    options = choose_options(config, parallel, inputs, built)
    if config.trainer.family == Family.trl:
        options += lengths_option
    else:
        patches += lengths_option
    env = build_environment(
        config.trainer,
        parallel,
        machine.upstream.checkout,
        sources.cache / content.reference,
        machine.environ,
        expandable_segments=config.expandable_segments and not uses_vllm(config),
    )
    return UnnamedRun(
        sources=sources,
        settings=settings,
        batch=batch,
        data=data,
        content=content,
        built=built,
        attention=attention,
        patches=patches,
        options=options,
        lengths_file=lengths,
        env=env,
        warnings=(*sources.warnings, *built.warnings, *setting_warnings),
    )


def _find_sources(
    config: RootConfig, origins: Origins, machine: Machine, template_digests: Mapping[str, str]
) -> Sources:
    """Find the chat template, the model and the data. Raises UserError."""
    cwd = machine.cwd
    digest = machine.digests.of
    runs = runs_folder(config, cwd)
    cache = cache_folder(config, cwd)
    finder = _template_finder(machine, cache, template_digests)
    upstream_templates = machine.registries.get(TEMPLATE_FLAG, ())
    template = find_template(config, origins, cwd, upstream_templates, finder)
    config = _with_template(config, template)
    inputs = resolve_inputs(config, origins, cache, cwd, digest)
    warnings = check_model_folder(config, origins, inputs.model, digest, machine.environ)
    return Sources(config, runs, cache, finder, template, inputs, warnings)


def _resolve_settings(
    sources: Sources, origins: Origins, environ: Mapping[str, str], pending: PendingModel
) -> SettingsCase:
    """Resolve how the ranks share the model and what is trained of it. Raises UserError."""
    config = sources.config
    width = resolve_width(config, origins)
    parallel = resolve_parallel(config, config.trainer, width)
    continued = _continued_adapter(config, sources.inputs, pending)
    lora = resolve_lora(config, continued)
    shape = model_shape(config, sources.inputs.model) or pending.shape
    tensors = None
    if lora is not None and (lora.modules_to_save or lora.target_parameters):
        tensors = model_tensors(sources.inputs.model, shape)
    return SettingsCase(
        config=config,
        origins=origins,
        parallel=parallel,
        environ=environ,
        lora=lora,
        continued=continued,
        shape=shape,
        tensors=tensors,
        mixture=sources.inputs.mixture,
    )


def _build_flags(
    sources: Sources,
    settings: SettingsCase,
    batch: Batch,
    content: InputContent,
    *,
    plain: Mapping[str, Any],
    machine: Machine,
) -> Flags:
    """Build the flags, with NAME in the place of the run's name. Raises UserError."""
    trainer = sources.config.trainer
    presets = machine.registries.get(LISTED, ())
    return build_flags(
        sources.config,
        plain,
        settings.origins,
        batch=batch,
        parallel=settings.parallel,
        inputs=sources.inputs,
        paths={
            "output": model_path(sources.runs, settings.origins.stage, NAME),
            "tokenized_cache": str(sources.cache / content.tokenized),
        },
        lora=settings.lora,
        template=sources.template,
        preset=needed_preset(trainer, sources.inputs.model, settings.shape, presets),
    )


def model_path(runs: Path, stage: str, name: str) -> str:
    """Return the path of the model that a run writes."""
    return str(run_folder(runs, stage, name) / "model")


def _locate_lengths(
    sources: Sources, built: Flags, content: InputContent, machine: Machine
) -> Path | None:
    """Return the file of the data's lengths; None for a trainer that writes none."""
    return lengths_file(
        sources.config.trainer,
        built.flags,
        subset=built.mixture or built.subset,
        commit=machine.upstream.commit,
        cache=sources.cache,
        places=machine_places(sources.runs, sources.cache),
        content=content.digests,
    )


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
