"""The report of a search: the predictions, a row for each probe as it ends and the verdict, as text and Markdown."""

from __future__ import annotations

from functools import partial

from launch.config.schema import Kind
from launch.trials.rows import format_number, markdown_table, padded
from launch.trials.tune.probe import Probe, ProbeVerdict
from launch.trials.tune.record import TuneRecord, TuneState
from launch.trials.tune.search import Estimate, Feasibility, Stop
from launch.trials.tune.space import LossWeighting, compare_loss

HEADS = ("setting", "predicted", "measured", "s/step", "memory", "loss", "verdict")
PREDICTED = ("setting", "per second", "s/step", "between", "memory", "padding", "longest/mean", "fits")
_LEAST = (38, 13, 16, 8, 18, 15, 8)  # characters
_LEAST_PREDICTED = (38, 13, 8, 13, 9, 8, 13, 6)
_SHOWN = 12

row = partial(padded, widths=_LEAST)

_REASONS = {
    Stop.best_beats_the_rest: "no other setting is predicted to be faster than the best one measured",
    Stop.all_tried: "every setting that fits was probed",
    Stop.probes_used: "the probes are used up",
    Stop.time_used: "the time is used up: another probe would exceed it",
    Stop.nothing_fits: "no remaining setting fits",
    Stop.all_failed: "the probes fail with one cause at every setting",
    Stop.interrupted: "interrupted; the same command continues with what was measured",
    Stop.one_setting: "there is only one setting at this width",
}


def cells(probe: Probe) -> tuple[str, ...]:
    """One probe as the cells of its row, `-` where a value is missing."""
    prediction = probe.prediction
    return (
        prediction.label,
        f"{prediction.step.tokens_per_second:,.0f}",
        f"{probe.per_second:,.0f} {probe.unit}" if probe.per_second else "-",
        f"{probe.seconds:.3g}" if probe.seconds else "-",
        _memory(probe.memory_gib, prediction.probe_gib),
        f"{probe.losses[0]:.4f} {probe.losses[-1]:.4f}" if probe.losses else "-",
        probe.verdict.value + (" (kept)" if probe.reused else ""),
    )


def probe_lines(probe: Probe) -> list[str]:
    """A probe's row, and why it measured nothing."""
    has_reason = probe.verdict != ProbeVerdict.measured and probe.why
    return [row(cells(probe)), *([f"  {probe.why}"] if has_reason else [])]


def prediction_cells(estimate: Estimate) -> tuple[str, ...]:
    step = estimate.prediction.step
    return (
        estimate.prediction.label,
        f"{estimate.per_second:,.0f}",
        f"{estimate.seconds:.3g}",
        f"{estimate.low:.3g}-{estimate.high:.3g}",
        format_number(estimate.memory_gib, ".0f", " GiB"),
        f"{step.load.padding:.0%}",
        f"{step.load.imbalance:.2f}",
        {Feasibility.fits: "yes", Feasibility.unknown: "-", Feasibility.fails: "fails"}.get(estimate.feasibility, "no"),
    )


def prediction_lines(record: TuneRecord) -> list[str]:
    """The fastest predictions that may be probed, and the recipe's own."""
    shown, base = _shown_estimates(record), record.base_estimate
    rows = [PREDICTED, *(prediction_cells(estimate) for estimate in shown)]
    lines = [padded(values, _LEAST_PREDICTED) for values in rows]
    return lines if base in shown else [*lines, padded(prediction_cells(base), _LEAST_PREDICTED) + "  the recipe's own"]


def _shown_estimates(record: TuneRecord) -> list[Estimate]:
    return [estimate for estimate in record.estimates if estimate.is_open][:_SHOWN]


def fact_lines(record: TuneRecord) -> list[str]:
    """The facts on which the predictions are based."""
    workload, space = record.workload, record.space
    tokens = workload.lengths.tokens
    if workload.measured_lengths:
        data = f"{tokens.samples:,} samples of {tokens.mean:,.0f} tokens on average, {tokens.longest:,} at most"
    else:
        data = f"lengths are unknown, so every sample is assumed to have {tokens.longest:,} tokens, the limit"
    lines = [f"data: {data}"]
    if workload.card_rates.why:
        lines.append(f"uncertain: {workload.card_rates.why}")
    if workload.card_gib is None:
        lines.append("memory: not predicted; a probe that runs out of memory rules out the settings that need more")
    if space.held:
        lines.append(f"not searched, as you set them: {', '.join(space.held)}")
    lines += [f"left out: {why}" for why in space.left_out]
    if overrides := _loss_preserving_overrides(record):
        cure = f"{' '.join(overrides)} keep{'s' if len(overrides) == 1 else ''} it"
        lines.append(f"loss: other micro batches weigh {_loss_unit(record)}s differently, which changes it; {cure}")
    return lines


def _loss_preserving_overrides(record: TuneRecord) -> list[str]:
    """The overrides that exclude the settings whose micro batches change the loss."""
    base, values = record.space.base, {}
    for candidate in record.space.candidates:
        names = ("per_device", "balanced", "packing")
        differing = [name for name in names if getattr(candidate, name) != getattr(base, name)]
        if len(differing) == 1 and compare_loss(candidate, base, record.plan) == LossWeighting.micro_batches:
            values[differing[0]] = getattr(base, differing[0])
    keys = {"per_device": "recipe.per_device_batch_size"}
    return [f"{keys.get(name, f'recipe.{name}')}={str(value).lower()}" for name, value in values.items()]


def gain(record: TuneRecord) -> str:
    """How much faster the best setting is than the recipe's own."""
    best, base = record.best, record.base
    if best is None or best.step_seconds is None:
        return ""
    rate = f"{best.per_second:,.0f} {best.unit} per second" if best.per_second else ""
    if best is base:
        return f"{rate}: the recipe's own setting is the fastest."
    if base is not None and base.step_seconds is not None:
        return f"{rate}, {base.step_seconds / best.step_seconds:.2f} times the recipe's own setting, measured."
    speedup = record.base_estimate.seconds / best.step_seconds
    return f"{rate}, about {speedup:.1f} times the recipe's own setting, which was predicted but not probed."


def loss_line(record: TuneRecord) -> str:
    """How the best setting changes the loss."""
    change = record.loss_change
    if change is None or record.best is record.base:
        return ""
    measured = ""
    if change.median is not None and change.first is not None:
        measured = f" ({change.first:.2%} apart at the first step, a median of {change.median:.2%} over {change.steps})"
    if change.weighting == LossWeighting.same:
        return f"The loss is the recipe's own: every {_loss_unit(record)} weighs as before{measured}."
    amount = measured or "; by how much was not measured"
    if change.weighting == LossWeighting.token_weighted:
        return f"It changes the loss: every token has the same weight, independent of its micro batch{amount}."
    return f"It changes the loss: other micro batches weigh {_loss_unit(record)}s differently{amount}."


def verdict_line(record: TuneRecord) -> str:
    """The verdict of the search, and why it stopped."""
    reason = _REASONS[record.stop] if record.stop else "running"
    best = record.best
    if record.state == TuneState.failed:
        causes = [probe.why for probe in record.probes if probe.why]
        last = f": {causes[-1]}" if causes else ""
        return f"nothing was measured in {len(record.probes)} probes ({reason}){last}"
    if best is None or record.state == TuneState.predicted:
        return reason if record.stop else "predicted; nothing was run"
    return f"the best is {best.prediction.label}: {gain(record)} Stopped: {reason}"


def text(record: TuneRecord) -> str:
    """The report as text."""
    lines = [_title(record), "", *fact_lines(record), "", "predicted, corrected by the probes"]
    lines += prediction_lines(record)
    if record.probes:
        lines += ["", "probed", row(HEADS), *(line for probe in record.probes for line in probe_lines(probe))]
    return "\n".join([*lines, "", verdict_line(record), loss_line(record), ""])


def markdown(record: TuneRecord) -> str:
    """The report as Markdown, for an issue or a page."""
    lines = [f"### {_title(record)}", "", verdict_line(record), "", loss_line(record), ""]
    if record.probes:
        lines += [*markdown_table(HEADS, [cells(probe) for probe in record.probes]), ""]
        lines += [f"- {probe.prediction.label}: {probe.why}" for probe in record.probes if probe.why]
    shown = [prediction_cells(estimate) for estimate in _shown_estimates(record)]
    lines += ["", "Predicted, corrected by the probes:", "", *markdown_table(PREDICTED, shown)]
    return "\n".join([*lines, "", *(f"- {line}" for line in fact_lines(record)), ""])


def _loss_unit(record: TuneRecord) -> str:
    """What the loss is the mean of."""
    return "token" if record.plan.config.stage.kind == Kind.sft else "pair"


def _title(record: TuneRecord) -> str:
    plan = record.plan
    on = f" on {record.card}" if record.card else ""
    return f"tune of {plan.stage} with {plan.trainer} at {plan.parallel.width}{on}: {len(record.predictions)} settings"


def _memory(measured: float | None, predicted: float | None) -> str:
    if measured is None:
        return "-"
    return f"{measured:.1f} GiB" + (f" of {predicted:.0f}" if predicted is not None else "")
