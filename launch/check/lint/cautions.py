"""Flags that a trainer's parser accepts and the trainer then ignores or misinterprets: warnings, never refusals.

Each rule reads the values that the command gives. Line numbers are those of open-instruct at the pin. What the
trainers' YAML files (`configs/tulu/trainer/`) say of single flags is their advice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launch.check.lint.scan_result import LintFinding, warning
from launch.check.lint.trainers import TrainerScript
from launch.upstream.rules.conversion import UNKNOWN
from launch.upstream.trainers import trainer_files

_MIXERS = ("dataset_mixer_list", "mixer_list", "dataset_mixer_eval_list")
_TRAIN_MIXERS = _MIXERS[:2]  # a few samples are fine for an evaluation
_FEW_SAMPLES = 10  # dataset_transformation.py:2342 warns up to this count
_CURE = re.compile(r"; (?:say|set) ")  # introduces the cure, which refers to launch's own keys
_DPO = ("dpo", "dpo_tune_cache")
_TEMPLATES_FILE = "open_instruct/dataset_transformation.py"


@dataclass(frozen=True)
class GivenFlags:
    """The flags that a command gives to a trainer."""

    trainer: TrainerScript
    values: Mapping[str, Any]  # by flag name; UNKNOWN where a shell variable determines the value
    is_complete: bool  # False if the command may give further flags, through a shell variable
    names: Mapping[str, Sequence[str]]  # {flag: the names that the trainer here looks its value up in}; {} if unknown

    def known_value(self, flag: str) -> Any:
        """Return the value, or None if it is not given or unknown."""
        value = self.values.get(flag)
        return None if value is UNKNOWN else value

    def is_absent(self, flag: str) -> bool:
        return self.is_complete and flag not in self.values


@dataclass(frozen=True)
class Advice:
    """Flags of one trainer that its parser accepts but that do nothing or do not work."""

    unread: frozenset[str] = frozenset()  # flags that the trainer never reads
    refused: Mapping[str, str] = field(default_factory=dict)  # {flag: why it cannot work}


def load_advice() -> dict[str, Advice]:
    """Load the advice by trainer name from the trainers' YAML files."""
    advice: dict[str, Advice] = {}
    for name, content in trainer_files().items():
        unread = frozenset(map(str, content.get("unread") or ()))
        refused = (content.get("refused") or {}).items()
        advice[name] = Advice(unread, {str(flag): _CURE.split(str(reason))[0] for flag, reason in refused})
    return advice


def find_cautions(given: GivenFlags) -> list[LintFinding]:
    """Return every warning for one command, in the order of the rules."""
    if given.trainer.is_trl:
        return []
    return [caution for rule in RULES for caution in rule(given)]


def _caution(id: str, flag: str, message: str) -> LintFinding:
    """Return the warning about a flag; the checker sets its line."""
    return warning(id, message, 1, flag)


def _mixer_lists(given: GivenFlags) -> Iterator[LintFinding]:
    for flag in _MIXERS:
        items = given.values.get(flag)
        if not isinstance(items, Sequence) or isinstance(items, str):
            continue
        if UNKNOWN not in items and len(items) % 2:
            message = "a mixer list is pairs of dataset and amount, but this one has an odd number of values"
            yield _caution("mixer_pairs", flag, f"{message}: the trainer fails when it loads the data")
            continue
        for name, amount in zip(items[::2], items[1::2], strict=False) if flag in _TRAIN_MIXERS else ():
            if isinstance(amount, str) and amount.isdecimal() and int(amount) <= _FEW_SAMPLES:
                samples = "one sample" if int(amount) == 1 else f"{amount} samples"
                message = f"'{amount}' takes {samples} of {name if isinstance(name, str) else 'the dataset'}"
                yield _caution("mixer_count", flag, f"{message}: an integer is a count, {amount}.0 a fraction")


def _negative_clip(given: GivenFlags) -> Iterator[LintFinding]:
    value = given.known_value("max_grad_norm")
    if given.trainer.name in _DPO and isinstance(value, int | float) and value < 0:
        message = (
            "a negative norm no longer turns clipping off (dpo_tune_cache.py:586): it multiplies the gradients by a "
            "negative factor; leave the flag out to turn clipping off"
        )
        yield _caution("negative_clip", "max_grad_norm", message)


def _hub_namespace(given: GivenFlags) -> Iterator[LintFinding]:
    value = given.known_value("hf_repo_id")
    if isinstance(value, str) and "/" in value:
        message = f"the trainer prepends hf_entity, so '{value}' fails when the trained model is pushed"
        yield _caution("hub_namespace", "hf_repo_id", f"{message}: set the name here and the owner in hf_entity")


def _tracking(given: GivenFlags) -> Iterator[LintFinding]:
    if given.trainer.name != "finetune" or given.known_value("with_tracking") is not True:
        return
    reports = given.values.get("report_to")
    if given.is_absent("report_to"):
        message = "with_tracking without report_to starts no tracker, so finetune.py:471 fails: add --report_to wandb"
        yield _caution("tracking_without_wandb", "with_tracking", message)
    elif isinstance(reports, list) and UNKNOWN not in reports and not {"wandb", "all"} & set(reports):
        message = "finetune.py:471 requires the wandb tracker and fails without it: add wandb to report_to"
        yield _caution("tracking_without_wandb", "report_to", message)


def _no_logging(given: GivenFlags) -> Iterator[LintFinding]:
    if (
        given.trainer.name == "finetune"
        and given.is_absent("logging_steps")
        and not given.known_value("cache_dataset_only")
    ):
        message = "without logging_steps finetune.py:858 logs no steps and no metrics: add --logging_steps 1"
        yield _caution("no_logging_steps", "logging_steps", message)


def _no_data(given: GivenFlags) -> Iterator[LintFinding]:
    if given.trainer.name in _DPO and given.is_absent("mixer_list"):
        message = "mixer_list is empty by default, so the trainer fails when it loads the data: add --mixer_list"
        yield _caution("no_data", "mixer_list", message)


def _quantisation(given: GivenFlags) -> Iterator[LintFinding]:
    if given.trainer.name not in ("finetune", "dpo_tune_cache"):
        return
    qlora = given.known_value("use_qlora") is True
    if given.known_value("use_liger_kernel") is True and qlora:
        yield _caution("liger_ignored", "use_liger_kernel", "use_liger_kernel is ignored with use_qlora")
    if (
        qlora
        and given.known_value("use_lora") is not True
        and given.is_complete
        and given.values.get("use_lora") is not UNKNOWN
    ):
        message = "use_qlora without use_lora quantises the model but adds no adapter: add --use_lora"
        yield _caution("qlora_without_lora", "use_qlora", message)
    paged = given.known_value("dpo_use_paged_optimizer") is True
    if given.known_value("use_8bit_optimizer") is True and given.is_complete and not qlora and not paged:
        yield _caution(
            "optimizer_ignored", "use_8bit_optimizer", "use_8bit_optimizer has an effect only with use_qlora"
        )


def _max_train_samples(given: GivenFlags) -> Iterator[LintFinding]:
    if given.trainer.name == "dpo_tune_cache" and given.known_value("max_train_samples") is not None:
        message = (
            "if it drops samples, the run fails because the reference cache is still sized for all of them "
            "(dpo_utils.py:494): set the number in mixer_list instead"
        )
        yield _caution("samples_break_cache", "max_train_samples", message)


def _packing_with_sequence_parallel(given: GivenFlags) -> Iterator[LintFinding]:
    size = given.known_value("sequence_parallel_size")
    if given.trainer.name == "finetune" and given.known_value("packing") is True and isinstance(size, int) and size > 1:
        message = (
            "the packing collator does not pad for sequence parallelism (finetune.py:640): use only one of the two"
        )
        yield _caution("packing_with_sequence_parallel", "packing", message)


def _unknown_template(given: GivenFlags) -> Iterator[LintFinding]:
    name = given.known_value("chat_template_name")
    if not isinstance(name, str):
        return
    templates = given.names.get("chat_template_name")
    if templates and name not in templates:
        message = f"'{name}' is not a template of {_TEMPLATES_FILE}: the tokenizer's own is silently used instead"
        yield _caution("unknown_chat_template", "chat_template_name", message)


# each is a generator function here, whose name tells what it is about
RULES: tuple[Callable[[GivenFlags], Iterator[LintFinding]], ...] = (
    _mixer_lists,
    _negative_clip,
    _hub_namespace,
    _tracking,
    _no_logging,
    _no_data,
    _quantisation,
    _max_train_samples,
    _packing_with_sequence_parallel,
    _unknown_template,
)
