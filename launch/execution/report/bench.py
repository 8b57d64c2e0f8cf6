"""The page of a bench: A against B with the spread of their runs, and the ratio of each pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launch.execution.record.reader import mapping, number, objects
from launch.execution.report.summary import Figure
from launch.execution.report.trial import Spread, TrialPage, numbers, show, show_range, texts

# title, key of a run's figures, unit, factor from the recorded value to the unit
_ROWS = (
    ("throughput without padding", "per_second", "{unit}/s", 1.0),
    ("throughput with padding", "padded_per_second", "tokens/s", 1.0),
    ("step", "step_seconds", "s", 1.0),
    ("padding", "padding", "%", 100.0),
    ("MFU by the measured rate", "mfu_measured", "%", 100.0),
    ("MFU by the data sheet", "mfu_datasheet", "%", 100.0),
    ("peak memory, allocated", "memory_gib", "GiB", 1.0),
    ("peak memory, reserved", "reserved_gib", "GiB", 1.0),
    ("loss after the last step", "loss", "", 1.0),
    ("before the first step", "before", "s", 1.0),
)


def fill_bench(page: TrialPage) -> None:
    """Fill the page from bench.json."""
    runs = objects(page.record.get("runs"))
    sides = [[mapping(run.get("figures")) for run in runs if run.get("side") == side] for side in "ab"]
    unit = next((str(figures["unit"]) for side in sides for figures in side if "unit" in figures), "tokens")
    verdict = mapping(page.record.get("verdict"))
    page.verdict += texts(verdict.get("said")) or ["no pair of runs is complete"]
    page.verdict += [str(page.record["why"])] if page.record.get("why") else []
    for name in "ab":
        overrides = " ".join(texts(mapping(page.record.get(name)).get("words")))
        page.figures.append(Figure(f"setting {name.upper()}", overrides or "no overrides"))
    page.add_facts("stage", "steps", "warmup", "repeats", "global_batch")
    rates = [Spread(label, _values(side, "per_second")) for label, side in zip("AB", sides, strict=True)]
    page.add_plot("Throughput: a dot for each run", f"{unit}/s", rates)
    ratio = mapping(verdict.get("speed_ratio"))
    spread = Spread("B / A", numbers(ratio.get("values")), number(ratio.get("low")), number(ratio.get("high")))
    page.add_plot("Ratio of each pair, and the 95 % interval of the mean", "", [spread], 1.0)
    page.add_table("A against B", _compare(page.record, sides, unit))
    rows = [["run", "state", "throughput", "step", "loss", "note"]]
    for run in runs:
        figures = mapping(run.get("figures"))
        cells = [
            show(figures.get(key), u) for key, u in (("per_second", f"{unit}/s"), ("step_seconds", "s"), ("loss", ""))
        ]
        note = run.get("why") or ("measured by an earlier call" if run.get("reused") else "")
        rows.append([str(run.get("run")), str(run.get("state")), *cells, str(note)])
        page.add_run(str(run.get("run")), run.get("folder"))
    page.add_table("Runs, in order", rows)
    differences = [[str(row.get(key)) for key in ("what", "a", "b")] for row in objects(page.record.get("differs"))]
    page.add_table("The two plans", [["differs", "A", "B"], *differences])


def _compare(record: Mapping[str, Any], sides: list[list[dict[str, Any]]], unit: str) -> list[list[str]]:
    medians = [mapping(mapping(record.get(side)).get("median")) for side in "ab"]
    rows = [["median of the runs", "A", "A from to", "B", "B from to", "B / A"]]
    for title, name, form, scale in _ROWS:
        a, b = (number(median.get(name)) for median in medians)
        if a is None and b is None:
            continue
        cells = [title]
        for median, side in zip((a, b), sides, strict=True):
            values = _values(side, name)
            cells += [show(median, form.format(unit=unit), scale)]
            cells += [show_range(min(values), max(values), scale) if values else "-"]
        rows.append([*cells, f"{b / a:.3f}" if a and b is not None else "-"])
    return rows


def _values(side: list[dict[str, Any]], name: str) -> list[float]:
    return numbers([figures.get(name) for figures in side])
