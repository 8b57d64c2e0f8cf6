"""The rules of flags that the trainer's parser accepts, and that do not go with each other, with the
model or with the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launch.config.recipe_keys import recipe_mapping
from launch.errors import did_you_mean
from launch.planning.flag_sources import needed_begin_token
from launch.planning.flags import Flag
from launch.planning.olmo_preset import LISTED
from launch.planning.rules.plan_rule import FlagsCase, plan_rule
from launch.rules.code import failed
from launch.upstream.pin.lock import locked_schema
from launch.upstream.trainers import OLMO_CORE_SFT, TRL
from launch.upstream.trl_losses import trl_losses
from launch.worker.finding import Finding, Fix

_SCHEDULER = "lr_scheduler_type"


@plan_rule("unknown_name")
def names_exist(case: FlagsCase) -> Iterator[Finding]:
    """open-instruct looks a name up minutes after its start, or, of a chat template, silently takes
    the tokenizer's own (dataset_transformation.py:841). TRL refuses a loss at its first batch
    (dpo_trainer.py:1512, grpo_trainer.py:3138).
    """
    for name, known in _known_names(case).items():
        flag = case.flags.get(name)
        if flag is None:
            continue
        for value in flag.value if isinstance(flag.value, list) else [flag.value]:
            if isinstance(value, str) and value not in known:
                cure = did_you_mean(value, known) or f"choose from {', '.join(known)}"
                message = f"{case.trainer.name} has no --{name} '{value}'"
                yield failed(message, cure, flag.provenance.where)


def _known_names(case: FlagsCase) -> dict[str, Sequence[str]]:
    """Return the names that a trainer knows, by the flag that takes one; none of a TRL that is not
    installed.
    """
    if case.trainer.name in TRL:
        losses = trl_losses(case.trainer.name)
        return {"loss_type": losses} if losses else {}
    names = {flag: known for flag, known in case.names.items() if flag != LISTED}
    names[_SCHEDULER] = _schedulers(case)
    return names


def _schedulers(case: FlagsCase) -> Sequence[str]:
    """Return the schedules that a trainer knows: those that the table of keys lists, else
    finetune.py's.
    """
    mapping = recipe_mapping(case.trainer, "lr_scheduler")
    if mapping is not None and not isinstance(mapping, str):  # olmo_core_utils.py, build_scheduler
        return [str(flags[_SCHEDULER]) for flags in mapping.values() if _SCHEDULER in flags]
    return locked_schema("finetune").fields[_SCHEDULER].choices or ()


@plan_rule("no_olmo_preset")
def model_has_a_preset(case: FlagsCase) -> Iterator[Finding]:
    """OLMo-core builds the models that it has a preset for, and refuses another one only once the
    data is tokenised (olmo_core_utils.py:410).

    Nothing is found without a checkout, or where its presets are unknown.
    """
    builds = case.trainer.model_presets
    if builds is None or case.machine.upstream.checkout is None:
        return
    if case.values.get("config_name"):
        return
    model = case.flags["model_name_or_path"]
    presets = case.names.get(LISTED, ())
    if not presets or str(model.value) in presets:
        return
    message = f"{case.trainer.name} has no preset for {model.value}: it builds {builds}"
    near = did_you_mean(str(model.value), sorted(presets))
    sentence = "set {0}, or {1} for a model of that shape"
    if near is not None:
        sentence = f"{near} {sentence}"
    cure = Fix.of(sentence, "model=olmo2_1b", "flags.config_name=PRESET")
    yield failed(message, cure, model.provenance.where)


@plan_rule("packing_length")
def rows_are_a_power_of_two(case: FlagsCase) -> Iterator[Finding]:
    """OLMo-core's packing looks for space in a tree that needs rows of a power of 2 of tokens
    (olmo_core/data/utils.py:795).
    """
    flag = case.flags.get("max_seq_length")
    length = flag.value if flag else None
    is_packed = case.trainer.name == OLMO_CORE_SFT
    if not is_packed or flag is None or not isinstance(length, int) or not length & (length - 1):
        return
    message = (
        f"{OLMO_CORE_SFT} packs into rows of a power of 2 of tokens, got max_seq_length={length}"
    )
    lower = 1 << (length.bit_length() - 1)
    higher = 2 * lower
    overrides = [f"recipe.max_seq_length={lower}", f"recipe.max_seq_length={higher}"]
    yield failed(message, Fix.of(f"set {{0}} or {higher}", *overrides), flag.provenance.where)


@plan_rule("ring_needs_package")
def rings_have_their_package(case: FlagsCase) -> Iterator[Finding]:
    """The strategies of context parallelism that pass keys around a ring call ring-flash-attn, which
    the trainer misses only once the data is tokenised (olmo_core/nn/attention/backend.py:507).

    Nothing is found where the trainer's packages are unknown, or for Transformer Engine's kernels,
    which have rings of their own.
    """
    strategy = str(case.values.get("cp_strategy") or "llama3")
    is_ring = case.batch.ranks_per_row > 1 and strategy != "ulysses"
    if not is_ring or not case.machine.packages or case.values.get("attn_implementation") == "te":
        return
    if case.machine.has_package("ring_flash_attn"):
        return
    message = f"cp_strategy={strategy} needs the package ring-flash-attn, which is not installed"
    where = case.flags["cp_degree"].provenance.where
    cure = Fix.of("install it, or set {0}", "flags.cp_strategy=ulysses")
    if case.values.get("rope_scaling_factor") is not None:
        cure = Fix.of("install it, or remove {0}", "~flags.cp_degree")
    yield failed(message, cure, where)


@plan_rule("olmo_begin_token")
def begin_token_fits_the_template(case: FlagsCase) -> Iterator[Finding]:
    """open-instruct requires add_bos for an OLMo tokenizer with another template, and refuses it with
    OLMo's own (dataset_transformation.py:785-791).
    """
    needed = needed_begin_token(case.trainer, case.flags)
    given = case.flags.get("add_bos")
    if needed is None or given is None or bool(given.value) is needed:
        return
    template = case.flags["chat_template_name"].value
    tokenizer = _tokenizer(case)
    message = (
        f"with the template {template} the tokenizer {tokenizer.value} needs "
        f"add_bos={str(needed).lower()}"
    )
    yield failed(message, "remove the flag", given.provenance.where)


def _tokenizer(case: FlagsCase) -> Flag:
    given = case.flags.get("tokenizer_name_or_path")
    return given or case.flags[case.trainer.launch["model"]]
