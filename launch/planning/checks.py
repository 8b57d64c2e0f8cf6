"""Checks the flags of a plan before anything runs.

It finds flags that the trainer's parser or its `__post_init__` would refuse, names that the trainer
would look up minutes after its start, and a length with which OLMo-core's packing fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from launch.config.origins import Origins
from launch.config.recipe_keys import KEYS, mapping_of, recipe_flags_of
from launch.config.schema import TrainerConfig
from launch.errors import UserError, did_you_mean, refusal
from launch.planning.flags import Flag, values_of
from launch.upstream.pin.lock import locked_schema
from launch.upstream.rules.contradictions import find_contradictions
from launch.upstream.rules.values import check_values, flag_field, render_flag, unverified_message
from launch.upstream.schema import Schema
from launch.upstream.trainers import OLMO_CORE_SFT, TRL, flags_named_in
from launch.worker.finding import Finding, Fix, Way


def check_flags(
    schema: Schema, trainer: TrainerConfig, origins: Origins, flags: Mapping[str, Flag]
) -> None:
    """Check the flags against what the trainer's parser, and the trainer itself, refuse.

    Raises UserError, with all problems: those of the schema (unknown_flag, bad_type, bad_choice,
    ...), contradiction, and stale_allowlist for a flag in the trainer's YAML that the trainer no
    longer has.
    """
    stale = set()
    problems = []
    for name, key in named_flags(trainer).items():
        if name not in schema.fields and not schema.is_unverified(name):
            stale.add(name)
            problems.append(_stale_problem(trainer, name, key, origins))
    known_flags = {name: flag for name, flag in flags.items() if name not in stale}
    problems += _value_problems(schema, trainer, known_flags)
    if not problems:
        problems += _contradictions(schema, flags)
    if problems:
        raise UserError(problems)


def render_argv(schema: Schema, flags: Mapping[str, Flag]) -> list[str]:
    """Render flags that are checked as the arguments that the trainer's parser accepts."""
    argv: list[str] = []
    for name, flag in flags.items():
        field = flag_field(schema, name, flag.value)
        if field:
            argv += render_flag(field, flag.value)
    return argv


def unverified_warnings(schema: Schema, flags: Mapping[str, Flag]) -> tuple[Finding, ...]:
    """Return a warning for each given flag that only the trainer's own parser can verify."""
    cure = Fix.of(
        "{0} where its packages are asks its parser, as the job does first", "$ launch check"
    )
    warnings = []
    for name, flag in flags.items():
        if flag.value is not None and schema.is_unverified(name):
            message = unverified_message(schema, name)
            warnings.append(Finding.warning("unverified", message, flag.provenance.where, cure))
    return tuple(warnings)


def named_flags(trainer: TrainerConfig) -> dict[str, str]:
    """Return every flag that the table of recipe keys or a trainer's YAML names, with the first key
    that names it: `recipe.epochs`, or `trainer.flags`.
    """
    named: dict[str, str] = {}
    for flag, recipe_key, _ in recipe_flags_of(trainer):
        named.setdefault(flag, f"{_RECIPE}{recipe_key}")
    for flag, path, _ in flags_named_in(vars(trainer)):
        named.setdefault(flag, f"trainer.{'.'.join(path[:2])}")
    return named


def _stale_problem(trainer: TrainerConfig, flag: str, key: str, origins: Origins) -> Finding:
    message = f"{trainer.name} no longer has --{flag}, which {key} names"
    of_table = KEYS.get(key.removeprefix(_RECIPE))
    where = of_table.place if of_table else origins.of(key).where or key
    cure = "upstream changed: correct this line"
    return Finding.error("stale_allowlist", message, where, cure)


def _value_problems(
    schema: Schema, trainer: TrainerConfig, flags: Mapping[str, Flag]
) -> list[Finding]:
    """Return the problems that the schema finds. An unknown flag is explained by upstream's
    history.
    """
    problems = []
    for error in check_values(schema, values_of(flags), complete=True):
        name = str(error.where)
        flag = flags.get(name)
        where = flag.provenance.where if flag else None
        problem = replace(error, where=where or f"flags.{name}")
        if error.id == "unknown_flag":
            problem = _explain_unknown_flag(schema, trainer, name, flags[name], problem)
        problems.append(problem)
    return problems


def _explain_unknown_flag(
    schema: Schema, trainer: TrainerConfig, name: str, flag: Flag, problem: Finding
) -> Finding:
    """Return the problem with what upstream's history says about the flag, if it knows the flag."""
    # the history is read only where a flag is unknown
    from launch.upstream.pin.ledger import explain_unknown_flag

    past = explain_unknown_flag(trainer.name, name, schema.fields)
    if past is None:
        return problem
    override = past.instead.get(str(flag.value))
    cure: Fix | str = f"use flags.{past.use}" if past.use else "leave it out"
    if past.write or past.otherwise:
        cure = past.replacement(str(flag.value)) or cure
    if override:
        cure = Fix.of("set {0} in its place", Way((override,), f"flags.{name}"))
    message = f"{problem.message}: {past.message}"
    return Finding.error(problem.id, message, problem.where, cure)


def _contradictions(schema: Schema, flags: Mapping[str, Flag]) -> list[Finding]:
    """Return the errors that the trainer's own `__post_init__` would raise on every machine."""
    problems = []
    for contradiction in find_contradictions(schema, values_of(flags)):
        if not contradiction.certain:
            continue
        places = []
        for name in contradiction.flags:
            where = flags[name].provenance.where if name in flags else None
            if where:
                places.append(where)
        # an override is named before a line of a file
        places.sort(key=lambda where: not where.startswith("override"))
        message = f"{contradiction.message} ({contradiction.where})"
        problems.append(Finding.error("contradiction", message, next(iter(places), None)))
    return problems


Registries = Mapping[str, Sequence[str]]
_SCHEDULER = "lr_scheduler_type"
_RECIPE = "recipe."
# The registry of the hub ids that OLMo-core's trainers have a preset for
# (olmo_core_utils.py:367-385).
PRESETS = "olmo_presets"


def check_names(trainer: TrainerConfig, flags: Mapping[str, Flag], registries: Registries) -> None:
    """Check the flags' values against the registries in which open-instruct looks them up.

    Upstream does not reject an unknown chat template: it silently uses the tokenizer's own
    (dataset_transformation.py:841). Raises UserError: unknown_name.
    """
    if trainer.name in TRL:
        return
    known_names = {name: known for name, known in registries.items() if name != PRESETS}
    known_names[_SCHEDULER] = _schedulers(trainer)
    problems = []
    for name, known in known_names.items():
        if name in flags:
            problems += _unknown_names(trainer, name, flags[name], known)
    if problems:
        raise UserError(problems)


def _unknown_names(
    trainer: TrainerConfig, name: str, flag: Flag, known: Sequence[str]
) -> list[Finding]:
    """Return the problems of a flag whose value, or an item of it, is not a known name."""
    problems = []
    values = flag.value if isinstance(flag.value, list) else [flag.value]
    for value in values:
        if not isinstance(value, str) or value in known:
            continue
        cure = did_you_mean(value, known) or f"choose from {', '.join(known)}"
        message = f"{trainer.name} has no --{name} '{value}'"
        problems.append(Finding.error("unknown_name", message, flag.provenance.where, cure))
    return problems


def _schedulers(trainer: TrainerConfig) -> Sequence[str]:
    """Return the schedules that a trainer knows: those that the table of keys lists, else
    finetune.py's.
    """
    mapping = mapping_of(trainer, "lr_scheduler")
    if isinstance(mapping, Mapping):  # olmo_core_utils.py, build_scheduler
        return [str(flags[_SCHEDULER]) for flags in mapping.values() if _SCHEDULER in flags]
    return locked_schema("finetune").fields[_SCHEDULER].choices or ()


def check_model_preset(
    trainer: TrainerConfig, flags: Mapping[str, Flag], checkout: Path | None, registries: Registries
) -> None:
    """Reject a model without a preset, which upstream does only once the data is tokenised
    (olmo_core_utils.py:410).

    Checks nothing without a checkout, or where its presets are unknown. Raises UserError:
    no_olmo_preset.
    """
    if trainer.model_presets is None or checkout is None:
        return
    if "config_name" in flags and flags["config_name"].value:
        return
    model = flags["model_name_or_path"]
    presets = registries.get(PRESETS, ())
    if not presets or str(model.value) in presets:
        return
    message = f"{trainer.name} has no preset for {model.value}: it builds {trainer.model_presets}"
    near = did_you_mean(str(model.value), sorted(presets))
    sentence = "set {0}, or {1} for a model of that shape"
    if near is not None:
        sentence = f"{near} {sentence}"
    cure = Fix.of(sentence, "model=olmo2_1b", "flags.config_name=PRESET")
    raise refusal("no_olmo_preset", message, model.provenance.where, cure)


def check_packed_length(trainer: str, flags: Mapping[str, Flag]) -> None:
    """Refuse rows whose length is not a power of 2, which OLMo-core's packing needs for the tree in
    which it looks for space (olmo_core/data/utils.py:795). Raises UserError: packing_length.
    """
    flag = flags.get("max_seq_length")
    length = flag.value if flag else None
    is_packed = trainer == OLMO_CORE_SFT
    if not is_packed or flag is None or not isinstance(length, int) or not length & (length - 1):
        return
    message = (
        f"{OLMO_CORE_SFT} packs into rows of a power of 2 of tokens, got max_seq_length={length}"
    )
    lower = 1 << (length.bit_length() - 1)
    higher = 2 * lower
    overrides = [f"recipe.max_seq_length={lower}", f"recipe.max_seq_length={higher}"]
    cure = Fix.of(f"set {{0}} or {higher}", *overrides)
    raise refusal("packing_length", message, flag.provenance.where, cure)
