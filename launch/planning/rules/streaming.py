"""The rules of flags.dataset_streaming: TRL reads the rows while it trains, so that nothing can be
counted, drawn or sorted before.
"""

from __future__ import annotations

from collections.abc import Iterator

from launch.config.kinds import Kind
from launch.config.recipe_keys import recipe_mapping
from launch.config.schema import Family
from launch.planning.rules.plan_rule import FlagsCase, plan_rule
from launch.rules.code import failed
from launch.worker.finding import Action, Finding, Fix

_FLAG = "dataset_streaming"
_SAMPLING = "train_sampling_strategy"


def _streams(case: FlagsCase) -> bool:
    value = case.values.get(_FLAG)
    return case.trainer.family == Family.trl and str(value).lower() == "true"


def _place(case: FlagsCase) -> str | None:
    return case.flags[_FLAG].provenance.where


@plan_rule("stream_of_a_mixture")
def data_set_is_streamed(case: FlagsCase) -> Iterator[Finding]:
    """TRL reads --streaming of a mixture (--datasets) alone, and --dataset_streaming of the data set that
    launch passes (trl/scripts/sft.py:97).
    """
    flag = case.flags.get("streaming")
    is_on = flag is not None and str(flag.value).lower() == "true"
    if flag is None or not is_on or case.trainer.family != Family.trl:
        return
    message = "flags.streaming is read for a mixture of TRL's own alone: no row would be streamed"
    cure = Fix.of("set {0}", Action((f"flags.{_FLAG}=true",), "flags.streaming"))
    yield failed(message, cure, flag.provenance.where)


@plan_rule("streaming_without_end")
def streamed_data_is_bounded_by_steps(case: FlagsCase) -> Iterator[Finding]:
    """A stream has no length, so that the Trainer can't count epochs: it fails without a number of
    steps, after the model is loaded (transformers trainer.py, "max_steps has to be specified").
    """
    key = recipe_mapping(case.trainer, "max_steps")
    steps = case.values.get(key) if isinstance(key, str) else None
    if not _streams(case) or (isinstance(steps, int) and steps > 0):
        return
    message = f"with flags.{_FLAG}=true {case.trainer.name} does not know where the data ends"
    cure = Fix.of("set {0} or another number, or remove {1}", "recipe.max_steps=1000", _removal())
    yield failed(message, cure, _place(case))


@plan_rule("streaming_needs_rows")
def nothing_needs_the_rows_before_they_are_streamed(case: FlagsCase) -> Iterator[Finding]:
    """Shares, mixtures, shares to validate on, batches sorted by length, cached log-probabilities of
    a reference (trl/trainer/dpo_trainer.py:1169) and RLVR's repeated prompts need rows that are
    counted or read first.
    """
    if not _streams(case):
        return
    for what in _needs(case):
        message = f"flags.{_FLAG}=true reads rows while it trains, and {what}"
        yield failed(message, Fix.of("remove {0}, or what needs them", _removal()), _place(case))


def _removal() -> str:
    return f"~flags.{_FLAG}"


def _needs(case: FlagsCase) -> Iterator[str]:
    """Yield what needs rows before the training begins."""
    mixture = case.inputs.mixture
    if case.config.stage.kind == Kind.rlvr:
        yield "RLVR repeats each prompt of a batch whose rows are counted"
    if len(mixture) > 1 or any(entry.held_out for entry in mixture):
        yield "a mixture joins data sets whose rows are counted"
    elif mixture[0].share != 1.0:
        yield f"a share of {mixture[0].share:g} is drawn from all of them"
    if case.inputs.held_out is not None:
        yield "data.validation splits a share off all of them"
    if str(case.values.get(_SAMPLING)) == "group_by_length":
        yield f"flags.{_SAMPLING}=group_by_length sorts all of them by their lengths"
    if str(case.values.get("precompute_ref_log_probs")).lower() == "true":
        yield "the reference's log-probabilities are computed for all of them first"
