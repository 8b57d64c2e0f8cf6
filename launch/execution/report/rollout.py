"""The page of a rollout: its widths, their efficiency, and every gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launch.execution.display.progress import format_duration
from launch.execution.record.reader import mapping, number, objects
from launch.execution.report.summary import Figure
from launch.execution.report.trial import Spread, TrialPage, show, show_range

_HEAD = ["width", "verdict", "parallel", "ranks x samples x steps", "throughput", "step", "per rank", "memory"]
_HEAD += ["padding", "loss", "whole run"]


def fill_rollout(page: TrialPage) -> None:
    """Fill the page from rollout.json."""
    widths = objects(page.record.get("widths"))
    passed = sum(width.get("state") == "passed" for width in widths)
    page.verdict.append(f"{passed} of {len(widths)} widths passed")
    gates = [["width", "gate", "verdict", "what it measured"]]
    for width in widths:
        label = str(width.get("width"))
        if width.get("why"):
            page.verdict.append(f"{label}: {width['why']}")
        for result in objects(width.get("gates")):
            verdict = "allowed" if result.get("allowed") else str(result.get("verdict"))
            gates.append([label, str(result.get("id")), verdict, str(result.get("said"))])
            if verdict == "fail":
                page.verdict.append(f"{label}: {result.get('said')} [{result.get('id')}]")
        page.add_run(label, width.get("folder"))
    page.add_facts("stage", "trainer", "upstream")
    page.figures.append(Figure("steps of each width", str(page.record.get("steps"))))
    efficiency = [Spread(str(width.get("width")), _values(width, "efficiency", 100)) for width in widths]
    page.add_plot("Efficiency: speed of a rank against one rank alone", "%", efficiency, 100.0)
    unit = next((unit for width in widths if (unit := mapping(width.get("measured")).get("unit"))), "tokens")
    rates = [Spread(str(width.get("width")), _values(mapping(width.get("measured")), "per_second")) for width in widths]
    page.add_plot("Throughput of all ranks", f"{unit}/s", rates)
    page.add_table("Widths", [_HEAD, *(_width_cells(width) for width in widths)])
    page.add_table("Gates", gates)
    page.notes += [str(difference.get("what")) for difference in objects(page.record.get("differences"))]


def _width_cells(width: Mapping[str, Any]) -> list[str]:
    measured, batch = mapping(width.get("measured")), mapping(width.get("batch"))
    return [
        str(width.get("width")),
        str(width.get("state")),
        str(width.get("parallel")),
        " x ".join(str(batch.get(key)) for key in ("width", "per_device", "accumulation")),
        show(measured.get("per_second"), f"{measured.get('unit')}/s"),
        show(measured.get("step_seconds"), "s"),
        show(width.get("efficiency"), "%", 100),
        show(measured.get("memory_gib"), "GiB"),
        show(measured.get("padding_share"), "%", 100),
        show_range(measured.get("first_loss"), measured.get("last_loss")),
        _describe_projection(mapping(width.get("projection"))),
    ]


def _describe_projection(projection: Mapping[str, Any]) -> str:
    hours = number(projection.get("hours"))
    if hours is None:
        return "-"
    parts = [f"{format_duration(hours * 3600)} h" if hours >= 1 else f"{hours * 60:.1f} min"]
    parts += [show(projection["gpu_hours"], "GPU-hours")] if projection.get("gpu_hours") is not None else []
    parts += [f"costs {show(projection['cost'], '')}"] if projection.get("cost") is not None else []
    return ", ".join(parts) + ("" if projection.get("basis") == "measured" else " (projected)")


def _values(fields: Mapping[str, Any], name: str, scale: float = 1.0) -> list[float]:
    value = number(fields.get(name))
    return [] if value is None else [value * scale]
