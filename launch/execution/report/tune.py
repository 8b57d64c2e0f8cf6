"""The page of a search: what was predicted, what was probed, and what was chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launch.execution.record.reader import mapping, number, objects
from launch.execution.report.trial import Spread, TrialPage, numbers, show, show_range, texts

_SHOWN = 20  # predictions in the plot


def fill_tune(page: TrialPage) -> None:
    """Fill the page from tune.json."""
    record = page.record
    probes, predictions = objects(record.get("probes")), objects(record.get("predictions"))
    page.verdict += _verdict(record)
    page.add_facts("stage", "trainer", "model", "width", "card", "global_batch", "candidates")
    measured = {str(probe.get("setting")): numbers([probe.get("step_seconds")]) for probe in probes}
    spreads = [Spread(_mark(record, setting), values) for setting, values in measured.items()]
    page.add_plot("Time of a step, probed", "s", spreads)
    page.add_plot(
        "Time of a step, predicted and corrected by the probes, with its range",
        "s",
        [_prediction_spread(record, estimate) for estimate in predictions[:_SHOWN]],
    )
    rows = [["setting", "verdict", "predicted", "probed", "predicted memory", "reserved memory", "loss", "note"]]
    for probe in probes:
        losses = numbers(probe.get("losses"))
        rows.append(
            [
                _mark(record, str(probe.get("setting"))),
                str(probe.get("verdict")),
                show(probe.get("predicted_seconds"), "s"),
                show(probe.get("step_seconds"), "s"),
                show(probe.get("predicted_gib"), "GiB"),
                show(probe.get("reserved_gib"), "GiB"),
                show_range(losses[0], losses[-1]) if losses else "-",
                str(probe.get("why") or ""),
            ]
        )
        page.add_run(str(probe.get("setting")), probe.get("folder"))
    page.add_table("Probes", rows)
    rows = [["setting", "step", "between", "throughput", "padding", "memory", "fits"]]
    for estimate in predictions:
        rows.append(
            [
                _mark(record, str(estimate.get("setting"))),
                show(estimate.get("step_seconds"), "s"),
                show_range(estimate.get("low_seconds"), estimate.get("high_seconds")),
                show(estimate.get("per_second"), "tokens/s"),
                show(estimate.get("padding_share"), "%", 100),
                show(estimate.get("memory_gib"), "GiB"),
                str(estimate.get("fit")),
            ]
        )
    page.add_table("Predictions, corrected by the probes", rows)
    page.notes += [f"left out: {why}" for why in texts(record.get("left_out"))]


def _verdict(record: Mapping[str, Any]) -> list[str]:
    best = record.get("best")
    sentences = [f"the fastest setting measured is {best}" if best else "no setting was measured"]
    if record.get("overlay"):
        sentences.append(f"+tuned={record.get('name')} applies it ({record['overlay']})")
    if record.get("stop"):
        sentences.append(f"the search ended: {str(record['stop']).replace('_', ' ')}")
    change = mapping(record.get("loss_change"))
    if (median := number(change.get("median"))) is not None:
        sentences.append(f"its loss differs from the recipe's own by a median of {100 * median:.2g} %")
    return sentences


def _prediction_spread(record: Mapping[str, Any], estimate: Mapping[str, Any]) -> Spread:
    low, high = number(estimate.get("low_seconds")), number(estimate.get("high_seconds"))
    return Spread(_mark(record, str(estimate.get("setting"))), numbers([estimate.get("step_seconds")]), low, high)


def _mark(record: Mapping[str, Any], setting: str) -> str:
    """Return a setting's name, and whether it is the chosen one or the recipe's own."""
    marks = [mark for mark, key in (("chosen", "best"), ("the recipe's own", "base")) if record.get(key) == setting]
    return f"{setting} ({', '.join(marks)})" if marks else setting
