"""The rules of KTO's labels: both kinds are there, most steps have both, and their weights balance them.

They judge local rows once all of them have been read: when a plan has staged or few rows, and again
after a run has staged them. The worker checks rows that it reads from the hub (worker/trl_kto.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from launch.config.kinds import Kind
from launch.config.schema import RootConfig
from launch.data.label_balance import (
    LARGEST_RATIO,
    MOST_OF_ONE_KIND,
    LabelCount,
    balance_weights,
    measure_balance,
)
from launch.errors import UserError
from launch.planning.batch_split import Batch
from launch.planning.flags import values_of
from launch.planning.inputs import Inputs
from launch.planning.plan import Plan
from launch.planning.rules.plan_rule import FlagsCase, plan_rule
from launch.rules.code import failed, warned
from launch.worker.finding import Finding, Fix


@dataclass(frozen=True)
class Labels:
    """The labels of the rows that a stage trains on, their weights and the batch."""

    count: LabelCount
    desirable: float
    undesirable: float
    batch: Batch
    where: str | None  # the key that names the data


@plan_rule("one_label")
def both_labels_are_there(case: FlagsCase) -> Iterator[Finding]:
    """KTO learns from the difference between good and bad answers: with one label, every answer becomes
    likelier, or none.
    """
    yield from _find_one_label(_labels_of_case(case))


@plan_rule("one_kind_batches", allow=True)
def most_steps_have_both_labels(case: FlagsCase) -> Iterator[Finding]:
    """A step whose answers are all good, or all bad, moves the model one way, and the next one moves it
    back.
    """
    yield from _find_one_kind(_labels_of_case(case))


@plan_rule("label_weights", severity="warning")
def weights_balance_the_labels(case: FlagsCase) -> Iterator[Finding]:
    """The good answers should weigh 1 to 1.33 times what the bad ones do (arXiv:2402.01306, equation 8;
    trl/trainer/kto_trainer.py:1165).
    """
    yield from _find_imbalance(_labels_of_case(case))


_RULES = (both_labels_are_there, most_steps_have_both_labels, weights_balance_the_labels)


def judge_staged_labels(plan: Plan, counts: Sequence[LabelCount | None]) -> list[Finding]:
    """Judge the labels of staged rows, those of each data set, as the rules judge a plan's.

    Returns what stops nothing. Raises UserError: one_label, one_kind_batches.
    """
    labels = _labels_of(plan.config, plan.inputs, plan.batch, values_of(plan.flags), counts)
    judges: tuple[Callable[[Labels | None], Iterator[Finding]], ...]
    judges = (_find_one_label, _find_one_kind, _find_imbalance)
    findings: list[Finding] = []
    for rule, judge in zip(_RULES, judges, strict=True):
        findings += [rule.finish(finding, plan.config.allow) for finding in judge(labels)]
    problems = [finding for finding in findings if finding.stops]
    if problems:
        raise UserError(problems)
    return findings


def _labels_of_case(case: FlagsCase) -> Labels | None:
    counts = []
    for structure in case.data:
        is_counted = structure is not None and structure.all_
        counts.append(structure.labels if structure and is_counted else None)
    return _labels_of(case.config, case.inputs, case.batch, case.values, counts)


def _labels_of(
    config: RootConfig,
    inputs: Inputs,
    batch: Batch,
    flags: Mapping[str, object],
    counts: Sequence[LabelCount | None],
) -> Labels | None:
    """Return the labels of a stage of KTO; None if those of a data set are not counted."""
    if config.stage.kind != Kind.kto:
        return None
    total = LabelCount()
    for entry, count in zip(inputs.mixture, counts, strict=True):
        if count is None:
            return None
        total.good += round(entry.share * count.good)
        total.bad += round(entry.share * count.bad)
    if not total.good + total.bad:
        return None

    def weight_of(label: str) -> float:
        value = flags.get(f"{label}_weight")
        return float(value) if isinstance(value, int | float) else 1.0

    desirable = weight_of("desirable")
    undesirable = weight_of("undesirable")
    where = inputs.mixture[0].source.provenance.where
    return Labels(total, desirable, undesirable, batch, where)


def _find_one_label(labels: Labels | None) -> Iterator[Finding]:
    if labels is None or (labels.count.good and labels.count.bad):
        return
    kind = "good" if labels.count.good else "bad"
    rows = labels.count.good + labels.count.bad
    message = f"all {rows:,} answers are labelled {kind}, and KTO learns from both kinds"
    cure: str | Fix = "add answers that are labelled the other way"
    if kind == "good":
        cure = Fix.of(f"{cure}, or train on good answers alone with {{0}}", "stage=sft")
    yield failed(message, cure, labels.where)


def _find_one_kind(labels: Labels | None) -> Iterator[Finding]:
    if labels is None or not labels.count.good or not labels.count.bad:
        return
    batch = labels.batch.global_
    share = labels.count.share_of_one_kind(batch)
    if share <= MOST_OF_ONE_KIND:
        return
    good = labels.count.good
    bad = labels.count.bad
    message = (
        f"of {good:,} good and {bad:,} bad answers, {share:.0%} of the steps of {batch} "
        "rows would have one kind only"
    )
    larger = batch
    while labels.count.share_of_one_kind(larger) > MOST_OF_ONE_KIND:
        larger += batch // labels.batch.accumulation  # what the ranks hold at once
    cure = Fix.of(
        "add answers of the rarer kind, set {0} or more, or {1}",
        f"recipe.global_batch_size={larger}",
        "allow=[one_kind_batches]",
    )
    yield failed(message, cure, labels.where)


def _find_imbalance(labels: Labels | None) -> Iterator[Finding]:
    if labels is None or not labels.count.good or not labels.count.bad:
        return
    ratio = measure_balance(labels.count, labels.desirable, labels.undesirable)
    if 1 <= ratio <= LARGEST_RATIO:
        return
    message = (
        f"{labels.count.good:,} good answers times {labels.desirable:g} weigh {ratio:.3g} times as "
        f"much as {labels.count.bad:,} bad ones times {labels.undesirable:g}; TRL advises 1 to "
        f"{LARGEST_RATIO}"
    )
    key, weight = balance_weights(labels.count, labels.desirable, labels.undesirable)
    yield warned(message, Fix.of("set {0}", f"recipe.{key}={weight:g}"), labels.where)
