"""The report of a bench: a row for each run as it ends, then A beside B and the verdict, as text and Markdown."""

from __future__ import annotations

import textwrap
from functools import partial

from launch.config.schema import Device
from launch.terminal import align_columns
from launch.trials.bench.figures import Figures, median_figure
from launch.trials.bench.record import BenchRecord, BenchState, RunRecord
from launch.trials.bench.statistics import RATE_PRECISION
from launch.trials.bench.verdict import format_ratio
from launch.trials.card_rate import CardRate
from launch.trials.rows import format_number, markdown_table, padded

HEADS = ("run", "setting", "per second", "s/step", "padding", "MFU", "memory", "loss", "")
_LEAST = (4, 18, 15, 7, 7, 5, 9, 8, 0)  # characters
_LINE = 110
_BOTH = ("", "A", "B", "B / A")

row = partial(padded, widths=_LEAST)  # fixed, so that the table can grow


def cells(run: RunRecord, figures: Figures | None) -> tuple[str, ...]:
    """One run as the cells of its row, `-` where a value is missing."""
    plan = run.plan
    shape = f"{plan.parallel.width} {plan.parallel.mode.value} {plan.batch.per_device}x{plan.batch.accumulation}"
    note = "kept" if run.reused else "" if run.state == BenchState.done else run.state.value
    if figures is None:
        return (run.label, shape, *["-"] * 6, note)
    return (
        run.label,
        shape,
        f"{figures.per_second:,.0f} {figures.unit}",
        f"{figures.step_seconds:.3g}",
        format_number(figures.padding, ".1%"),
        format_number(figures.mfu_measured, ".1%"),
        format_number(figures.memory_gib, ".1f", " GiB"),
        format_number(figures.loss, ".4f"),
        note,
    )


def run_lines(record: BenchRecord, run: RunRecord) -> list[str]:
    """A run's row, and why it failed."""
    return [row(cells(run, record.figures(run))), *([f"  {run.why}"] if run.why else [])]


def compared(record: BenchRecord) -> list[tuple[str, ...]]:
    """A beside B: the medians of their finished runs, and their ratio."""
    a, b = record.of_side(0), record.of_side(1)
    unit = a[0].unit if a else b[0].unit if b else "tokens"
    rows = (
        (f"{unit}/s", "per_second", ",.0f", ""),
        ("tokens/s with padding", "padded_per_second", ",.0f", ""),
        ("s/step", "step_seconds", ".3g", ""),
        ("padding", "padding", ".1%", ""),
        ("MFU, by the measured rate", "mfu_measured", ".1%", ""),
        ("MFU, by the data sheet", "mfu_datasheet", ".1%", ""),
        ("peak memory, allocated", "memory_gib", ".1f", " GiB"),
        ("peak memory, reserved", "reserved_gib", ".1f", " GiB"),
        (f"loss after {record.steps} steps", "loss", ".4f", ""),
        ("seconds before the first step", "before", ".1f", ""),
    )
    cells_of_rows = []
    for title, name, form, suffix in rows:
        ours, theirs = median_figure(a, name), median_figure(b, name)
        ratio = format_ratio(theirs / ours) if ours and theirs is not None else "-"
        shown = (format_number(value, form, suffix) for value in (ours, theirs))
        cells_of_rows.append((title, *shown, ratio))
    return cells_of_rows


def rate_line(rate: CardRate) -> str:
    """The peak rate of one card, measured and by its data sheet."""
    card_and_precision = f"{rate.name}, {rate.precision.value}"
    if rate.measured is None:
        measured = f"not measured ({rate.why})"
    else:
        whole = " of the whole machine" if rate.device == Device.cpu else ""
        measured = f"{_tera(rate.measured)} TFLOP/s{whole} measured ({rate.size} x {rate.size} x {rate.size})"
    card = rate.card
    if rate.datasheet is not None and card is not None:
        datasheet = f"{_tera(rate.datasheet)} by the data sheet ({card.name}, {card.source})"
        return f"{card_and_precision}: {measured}; {datasheet}"
    return f"{card_and_precision}: {measured}; no data sheet known"


def rate_lines(record: BenchRecord) -> list[str]:
    return list(dict.fromkeys(rate_line(rate) for rate in record.rates if rate is not None))


def operation_lines(record: BenchRecord) -> list[str]:
    """The operations that the utilisation counts; one line where A and B count the same."""
    operations = {"AB"[side]: str(record.operations(side)) for side in (0, 1) if record.of_side(side)}
    if len(operations) == 2 and len(set(operations.values())) == 1:
        return [operations["A"]]
    return [f"{title}: {text}" for title, text in operations.items()]


def steps_lines(record: BenchRecord) -> list[str]:
    """How many steps each rate needs."""
    needed = {"AB"[side]: count for side in (0, 1) if (count := record.steps_needed(side)) is not None}
    if not needed:
        return []
    counts = " and ".join(f"{count} counted steps in {title}" for title, count in needed.items())
    counted = record.steps - record.planned.config.warmup
    return [f"a rate within {RATE_PRECISION:.0%} takes {counts}, by the spread of the steps; {counted} were counted"]


def _few_steps_lines(record: BenchRecord) -> list[str]:
    """A warning where the rates of A or B need more steps."""
    warmup = record.planned.config.warmup
    needed = max((record.steps_needed(side) or 0 for side in (0, 1)), default=0)
    if needed <= record.steps - warmup:
        return []
    counted = record.steps - warmup
    return [f"the steps vary too much for a rate from {counted} of them: set steps={needed + warmup}"]


def report(record: BenchRecord) -> list[str]:
    """Every run, A beside B, and the verdict."""
    lines = [row(HEADS), *(row(cells(run, record.figures(run))) for run in record.runs)]
    if record.of_side(0) or record.of_side(1):
        lines += ["", *align_columns([_BOTH, *compared(record)])]
    lines += ["", *rate_lines(record), *operation_lines(record), *steps_lines(record), ""]
    for line in verdict_lines(record):
        lines += textwrap.wrap(line, _LINE, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return lines


def verdict_lines(record: BenchRecord) -> list[str]:
    """The verdict so far, one sentence a line; without one, why there is none."""
    verdict = record.verdict
    lines = [*([] if verdict is None else verdict.sentences), *_few_steps_lines(record)]
    for index, side in enumerate(record.planned.sides):
        if missing := record.not_proven(index):
            lines.append(f"not every setting of {side.title} is in effect: {', '.join(missing)} (evidence.json)")
    ended_early = [run for run in record.runs if run.state in (BenchState.failed, BenchState.interrupted)]
    lines += [f"{run.label} {run.state.value}" + (f": {run.why}" if run.why else "") for run in ended_early]
    if record.why:
        not_run = sum(run.state == BenchState.not_run for run in record.runs)
        lines.append(f"{record.why}: {not_run} of {len(record.runs)} runs are missing")
    if verdict is None and not lines:
        lines.append("no pair of runs is complete yet")
    return lines


def text(record: BenchRecord) -> str:
    """The report as text."""
    sides = record.planned.sides
    lines = [_title(record), "", *(f"{side.title}: {' '.join(side.overrides) or 'no overrides'}" for side in sides)]
    differences = [f"differs: {what}: {a} in A, {b} in B" for what, a, b in record.planned.differences]
    return "\n".join([*lines, "", *(differences or ["A and B are the same setting"]), "", *report(record), ""])


def markdown(record: BenchRecord) -> str:
    """The report as Markdown, for an issue or a page."""
    lines = [f"### {_title(record)}", ""]
    lines += [
        f"- {side.title}: `{' '.join(side.overrides)}`" if side.overrides else f"- {side.title}: no overrides"
        for side in record.planned.sides
    ]
    lines += ["", *(f"- {line}" for line in verdict_lines(record)), "", "Medians of the runs:", ""]
    lines += markdown_table(_BOTH, compared(record))
    runs = [cells(run, record.figures(run)) for run in record.runs]
    lines += ["", "The runs, in order:", "", *markdown_table(HEADS, runs)]
    notes = [
        *rate_lines(record),
        *operation_lines(record),
        *steps_lines(record),
        *(str(note) for note in record.planned.notes),
    ]
    lines += ["", *(f"- {line}" for line in notes)]
    if record.planned.differences:
        rows = [(f"`{what}`", a, b) for what, a, b in record.planned.differences]
        lines += ["", "Differences between the two plans:", "", *markdown_table(("", "A", "B"), rows)]
    return "\n".join([*lines, ""])


def _title(record: BenchRecord) -> str:
    bench, plan = record.planned.config, record.planned.sides[0].plan
    runs = "1 run" if bench.repeats == 1 else f"{bench.repeats} runs"
    return (
        f"bench of {plan.stage}, global batch {plan.batch.global_}: {runs} of {bench.steps} steps each, "
        f"the first {bench.warmup} not counted"
    )


def _tera(flops: float) -> str:
    return f"{flops / 1e12:.3g}"
