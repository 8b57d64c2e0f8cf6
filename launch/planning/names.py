"""Names and models that the trainer looks up only while it runs: a wrong one would end it minutes after its start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from launch.config.schema import TrainerConfig
from launch.errors import Problem, UserError, did_you_mean
from launch.planning.flags import Flag
from launch.planning.packing import SFT, TRAINER
from launch.upstream.pin.lock import locked_schema
from launch.upstream.trainers import TRL

Registries = Mapping[str, Sequence[str]]
_SCHEDULER = "lr_scheduler_type"
PRESETS = "olmo_presets"  # the hub ids that OLMo-core's trainers have a preset for (olmo_core_utils.py:367-385)


def check_names(trainer: TrainerConfig, flags: Mapping[str, Flag], registries: Registries) -> None:
    """Check the flags' values against what open-instruct looks them up in. Raises UserError: unknown_name.

    An unknown chat template is no error upstream: the tokenizer's own is silently used (dataset_transformation.py:841).
    """
    if trainer.name not in TRL:
        problems = list(_unknown_names(trainer, flags, registries))
        if problems:
            raise UserError(problems)


def _unknown_names(trainer: TrainerConfig, flags: Mapping[str, Flag], registries: Registries) -> Iterator[Problem]:
    looked_up = {flag: known for flag, known in registries.items() if flag != PRESETS}
    names = {**looked_up, _SCHEDULER: _schedulers(trainer)}
    for flag_name, known in names.items():
        flag = flags.get(flag_name)
        values = [] if flag is None else flag.value if isinstance(flag.value, list) else [flag.value]
        for value in values:
            if isinstance(value, str) and value not in known:
                cure = did_you_mean(value, known) or f"choose from {', '.join(known)}"
                message = f"{trainer.name} has no --{flag_name} '{value}'"
                yield Problem("unknown_name", message, flag.provenance.where if flag else None, cure)


def _schedulers(trainer: TrainerConfig) -> Sequence[str]:
    """Return the schedules that a trainer knows: those that its recipe lists, else finetune.py's."""
    mapping = trainer.recipe.get("lr_scheduler")
    if isinstance(mapping, Mapping):  # olmo_core_utils.py, build_scheduler
        return [str(flags[_SCHEDULER]) for flags in mapping.values() if _SCHEDULER in flags]
    return locked_schema("finetune").fields[_SCHEDULER].choices or ()


def check_model_preset(trainer: str, flags: Mapping[str, Flag], checkout: Path | None, registries: Registries) -> None:
    """Reject a model without a preset, which upstream does only once the data is tokenised (olmo_core_utils.py:410).

    Checks nothing without a checkout, or where its presets are unknown. Raises UserError: no_olmo_preset.
    """
    if trainer not in (TRAINER, SFT) or checkout is None:
        return
    if "config_name" in flags and flags["config_name"].value:
        return
    model = flags["model_name_or_path"]
    presets = registries.get(PRESETS, ())
    if not presets or str(model.value) in presets:
        return
    near = did_you_mean(str(model.value), sorted(presets))
    families = "OLMo-2, Olmo-3, OLMoE and Qwen3"
    message = f"{trainer} has no preset for {model.value}: it builds {families}"
    cure = f"{near + ' ' if near else ''}set model=olmo2_1b, or flags.config_name=PRESET for a model of that shape"
    raise UserError(Problem("no_olmo_preset", message, model.provenance.where, cure))
