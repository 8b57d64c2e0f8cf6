"""The report of a rollout: a table that grows width by width, and the gates that did not pass, as text and Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial

from launch.trials.measurement import Measurement, compute_speed
from launch.trials.rollout.gates.gate import GateResult, GateVerdict
from launch.trials.rollout.projection import Projection
from launch.trials.rollout.record import RolloutRecord, WidthRecord, WidthState
from launch.trials.rows import format_number, markdown_table, padded

HEADS = ("width", "parallel", "steps", "loss", "per second", "s/step", "memory", "per rank", "whole run", "verdict")
_LEAST = (6, 13, 7, 16, 14, 7, 9, 8, 22, 8)  # characters
_LINE = 110
_SIGNS = {GateVerdict.passed: "pass", GateVerdict.warn: "warn", GateVerdict.fail: "FAIL"}

row = partial(padded, widths=_LEAST)  # fixed, so that the table can grow


def cells(width: WidthRecord, skip: int) -> tuple[str, ...]:
    """One width as the cells of its row, `-` where a value is missing."""
    plan, measured = width.planned.plan, width.measured
    batch = plan.batch
    shape = f"{plan.parallel.mode.value} {batch.per_device}x{batch.accumulation}"
    numbers = _numbers(measured, skip) if measured is not None else ("-",) * 5
    return (
        width.planned.label,
        shape,
        *numbers,
        format_number(width.efficiency, ".0%"),
        _projection(width.projection),
        _verdict(width),
    )


def _numbers(measured: Measurement, skip: int) -> tuple[str, ...]:
    losses, speed = measured.values("loss"), compute_speed(measured, skip)
    return (
        str(measured.last_step),
        f"{losses[0]:.4f} {losses[-1]:.4f}" if losses else "-",
        f"{speed.per_second:,.0f} {speed.unit}" if speed else "-",
        f"{speed.step_seconds:.3g}" if speed else "-",
        format_number(max(measured.values("memory_gib"), default=None), ".1f", " GiB"),
    )


def _projection(projection: Projection | None) -> str:
    if projection is None:
        return "-"
    hours = projection.hours
    time = f"{hours:.1f} h" if hours >= 1 else f"{hours * 60:.0f} min" if hours >= 1 / 60 else f"{hours * 3600:.0f} s"
    parts = [time]
    if projection.gpu_hours is not None:
        parts.append(f"{projection.gpu_hours:.1f} GPU-h")
    if projection.cost is not None:
        parts.append(f"{projection.cost:,.2f}")
    return ("" if projection.basis == "measured" else "~ ") + ", ".join(parts)


def _verdict(width: WidthRecord) -> str:
    if width.state == WidthState.passed:
        warnings = sum(result.verdict == GateVerdict.warn for result in width.gate_results)
        allowed = sum(result.allowed for result in width.gate_results)
        notes = [f"{warnings} warn"] if warnings else []
        notes += [f"{allowed} allowed"] if allowed else []
        notes += ["kept"] if width.reused else []
        return f"pass ({', '.join(notes)})" if notes else "pass"
    return {WidthState.stopped: "FAIL", WidthState.not_run: "not_run"}.get(width.state, width.state.value)


def gate_lines(gate_results: Sequence[GateResult], *, every: bool = False) -> list[str]:
    """A line for each gate that did not pass, or for every gate."""
    shown = [result for result in gate_results if every or result.verdict != GateVerdict.passed]
    lines = []
    for result in shown:
        sign = "allow" if result.allowed else _SIGNS[result.verdict]
        prefix = f"  {sign:<5} {result.id:<21} "
        width = _LINE - len(prefix)
        wrapped = textwrap.wrap(result.message, width, break_long_words=False, break_on_hyphens=False) or [""]
        lines += [prefix + wrapped[0], *(" " * len(prefix) + rest for rest in wrapped[1:])]
    return lines


def width_lines(width: WidthRecord, skip: int) -> list[str]:
    """A width's row, and below it why it was not run and the gates that did not pass."""
    why = [f"  {width.why}"] if width.why else []
    return [row(cells(width, skip)), *why, *gate_lines(width.gate_results)]


def verdict_line(record: RolloutRecord) -> str:
    """The verdict of the whole rollout."""
    widths = record.widths
    if record.state == WidthState.passed:
        widest = widths[-1].planned.label
        return f"all {len(widths)} widths passed: {widest} may run the whole stage"
    for width in widths:
        if width.state == WidthState.stopped:
            reasons = ", ".join(result.id for result in width.failed_gates) or "it could not be started"
            later = [other.planned.label for other in widths if other.state == WidthState.planned]
            rest = f"; not widened to {', '.join(later)}" if later else ""
            return f"{width.planned.label} failed: {reasons}{rest}"
    not_run = [width.planned.label for width in widths if width.state == WidthState.not_run]
    if not_run:
        return f"planned but not run here: {', '.join(not_run)}; on a Slurm cluster submit=rest submits them as jobs"
    jobs = [f"{width.planned.label} (job {width.job_id})" for width in widths if width.state == WidthState.submitted]
    if jobs:
        return f"submitted: {', '.join(jobs)}"
    return f"the rollout is {record.state.value}"


def text(record: RolloutRecord) -> str:
    """The report as text, with every gate of every width."""
    lines = [_title(record), "", *(f"differs: {difference}" for difference in record.differences)]
    lines += ["", row(HEADS), *(row(cells(width, record.skip)) for width in record.widths)]
    for width in record.widths:
        if width.gate_results or width.why:
            lines += ["", f"{width.planned.label}: {_verdict(width)}", *([f"  {width.why}"] if width.why else [])]
            lines += gate_lines(width.gate_results, every=True)
    return "\n".join([*lines, "", verdict_line(record), ""])


def markdown(record: RolloutRecord) -> str:
    """The report as Markdown, for an issue or a page."""
    lines = [f"### {_title(record)}", "", verdict_line(record), ""]
    lines += markdown_table(HEADS, [cells(width, record.skip) for width in record.widths])
    if record.differences:
        lines += ["", "Not the same at every width:", "", *(f"- {difference}" for difference in record.differences)]
    for width in record.widths:
        if width.gate_results or width.why:
            lines += ["", f"**{width.planned.label}**" + (f": {width.why}" if width.why else "")]
        if width.gate_results:
            gates = [
                (f"`{result.id}`", "allowed" if result.allowed else result.verdict.value, result.message)
                for result in width.gate_results
            ]
            lines += ["", *markdown_table(("gate", "verdict", ""), gates)]
    return "\n".join([*lines, ""])


def _title(record: RolloutRecord) -> str:
    plan = record.planned.widths[0].plan
    widths = ", ".join(width.planned.label for width in record.widths)
    return f"rollout of {plan.stage} with {plan.trainer} over {widths}: {record.steps} steps each"
