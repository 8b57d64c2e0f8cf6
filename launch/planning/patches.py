"""The patches that a run needs, and the options of launch's own entry. The worker checks both again."""

from __future__ import annotations

from collections.abc import Mapping

from launch import resources
from launch.config.schema import Device, Family, LossAveraging, RootConfig
from launch.planning.flags import Flags
from launch.planning.inputs import Inputs, continues_adapter
from launch.planning.parallel import Parallel
from launch.worker.patches import PATCHES, PlanFacts
from launch.worker.trl_entry import OPTIONS


def choose_patches(config: RootConfig, parallel: Parallel, inputs: Inputs, flags: Flags) -> tuple[str, ...]:
    """Return the ids of the trainer's patches that this run wants, with `=VALUE` where a patch takes a value.

    The order is that of the trainer's file, and that of their application.
    """
    facts = _gather_facts(config, parallel, inputs, flags)
    return _with_values({name: PATCHES[name].wanted(facts) for name in config.trainer.patches})


def choose_options(config: RootConfig, parallel: Parallel, inputs: Inputs, flags: Flags) -> tuple[str, ...]:
    """Return the options of launch's entry for TRL that this run wants, likewise; none for another trainer."""
    if config.trainer.family != Family.trl:
        return ()
    facts = _gather_facts(config, parallel, inputs, flags)
    return _with_values({name: option.wanted(facts) for name, option in OPTIONS.items()})


def _with_values(wanted: Mapping[str, bool | str | None]) -> tuple[str, ...]:
    return tuple(f"{name}={value}" if isinstance(value, str) else name for name, value in wanted.items() if value)


def _gather_facts(config: RootConfig, parallel: Parallel, inputs: Inputs, flags: Flags) -> PlanFacts:
    values = {name: flag.value for name, flag in flags.flags.items()}
    template = f"{resources.ROOT}/launch/templates/{flags.chat_template}.jinja" if flags.chat_template else None
    return PlanFacts(
        on_cpu=parallel.width.device == Device.cpu,
        world_size=parallel.width.world_size,
        zero_stage=parallel.zero_stage or 0,
        local_model=inputs.model.local is not None,
        adapter=continues_adapter(config),
        packs=config.trainer.always_packs or values.get("packing") is True,
        balanced=config.recipe.balanced,
        token_weighting=config.recipe.loss_averaging == LossAveraging.tokens,
        early_stop=None if config.recipe.early_stop is None else str(config.recipe.early_stop),
        held_out=None if inputs.held_out is None else repr(inputs.held_out),
        subset=flags.subset,
        template_file=template,
        flags=values,
    )
