"""Pages of trials: the numbers of their JSON, whatever state it is in."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from launch.errors import UserError
from launch.execution.report.page import render_trial
from launch.execution.report.trial import SpreadPlot
from launch.execution.report.trials import read_trial, trial_kind
from launch.execution.report.write import write_trial_report
from tests.execution.report.folders import write_run
from tests.execution.report.test_page import HOSTILE, STEPS, Page
from tests.trials.bench.benches import benched
from tests.trials.bench.test_record import diverging, failing
from tests.trials.bench.test_record import written as written_bench
from tests.trials.rollout.test_record import rolled
from tests.trials.rollout.test_record import written as written_rollout
from tests.trials.tune.searches import measured, out_of_memory, record_in
from tests.trials.tune.test_record import with_probes
from tests.trials.tune.test_record import written as written_tune


def page_of(folder: Path) -> Page:
    return Page(render_trial(read_trial(folder)))


def plot_of(folder: Path, title: str) -> SpreadPlot:
    return next(plot for plot in read_trial(folder).plots if plot.title.startswith(title))


def test_a_rollout_has_its_widths_efficiency_and_gates(tmp_path: Path) -> None:
    record = rolled(tmp_path)
    document = written_rollout(record)
    page = page_of(record.planned.folder)
    assert "passed 3 of 3 widths passed" in page.text
    efficiency = plot_of(record.planned.folder, "Efficiency")
    recorded = {width["width"]: [pytest.approx(100 * width["efficiency"])] for width in document["widths"]}
    assert {spread.label: spread.values for spread in efficiency.spreads} == recorded
    for width in document["widths"]:
        assert width["gates"]
        for gate in width["gates"]:
            assert f"{width['width']} {gate['id']} {gate['verdict']} {' '.join(gate['said'].split())}" in page.text
    assert [line["label"] for line in page.data[0]["lines"]] == ["gpu1", "gpu2", "gpu4"]


def test_a_gate_that_failed_is_in_the_verdict(tmp_path: Path) -> None:
    record = rolled(tmp_path, {"gpu2": [3.0, 2.9, math.nan]})
    written_rollout(record)
    text = page_of(record.planned.folder).text
    assert "stopped 1 of 3 widths passed gpu2: " in text
    assert f"[{record.widths[1].failed_gates[0].id}]" in text


def test_a_bench_has_both_sides_with_their_spread(tmp_path: Path) -> None:
    record, _, _ = benched(tmp_path, "repeats=2")
    document = written_bench(record)
    page = page_of(record.planned.folder)
    for sentence in document["verdict"]["said"]:
        assert " ".join(sentence.split()) in page.text
    rates = {
        side.upper(): [run["figures"]["per_second"] for run in document["runs"] if run["side"] == side] for side in "ab"
    }
    assert {s.label: s.values for s in plot_of(record.planned.folder, "Throughput").spreads} == rates
    ratio = document["verdict"]["speed_ratio"]
    spread = plot_of(record.planned.folder, "Ratio").spreads[0]
    assert (spread.values, spread.low, spread.high) == (ratio["values"], ratio["low"], ratio["high"])
    assert "setting A recipe.per_device_batch_size=4" in page.text
    assert [line["label"] for line in page.data[0]["lines"]] == ["A1", "B1", "B2", "A2"]


@pytest.mark.parametrize("run", [failing, diverging])
def test_a_bench_that_failed_has_a_page(run: Any, tmp_path: Path) -> None:
    record, _, _ = benched(tmp_path, run=run)
    written_bench(record)
    assert "A against B" in page_of(record.planned.folder).text


def test_a_tune_has_what_was_predicted_probed_and_chosen(tmp_path: Path) -> None:
    record = record_in(tmp_path)
    first, second = (estimate.prediction for estimate in record.estimates[:2])
    with_probes(record, measured(first, first.seconds), out_of_memory(second))
    document = written_tune(record)
    page = page_of(record.folder)
    assert f"the fastest setting measured is {document['best']}" in page.text
    assert f"{document['best']} (chosen" in page.text
    probed = plot_of(record.folder, "Time of a step, probed").spreads
    assert [spread.values for spread in probed] == [[document["probes"][0]["step_seconds"]]]
    predicted = plot_of(record.folder, "Time of a step, predicted").spreads
    estimates = document["predictions"]
    assert [(spread.low, spread.high) for spread in predicted] == [
        (estimate["low_seconds"], estimate["high_seconds"]) for estimate in estimates[: len(predicted)]
    ]
    assert "out_of_memory" in page.text


OF_OTHER_TYPES: Any = {
    "state": [1],
    "stage": {},
    "differences": 4,
    "a": 3,
    "b": {"median": [], "words": 3},
    "verdict": 4,
    "differs": [{}],
    "probes": [{"losses": 3}, {}],
    "predictions": [{}, 3],
    "loss_change": [],
    "left_out": 4,
    "widths": [
        3,
        {"gates": [{}, 4], "measured": 3, "batch": "x", "projection": {"hours": "x"}},
        {"projection": {"hours": math.inf}},
    ],
    "runs": [{"figures": 3, "side": "a"}, 4],
}


@pytest.mark.parametrize("kind", ["rollout", "bench", "tune"])
@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"state": "done"}', json.dumps(OF_OTHER_TYPES), "\0"])
def test_a_broken_record_has_a_page(kind: str, text: str, tmp_path: Path) -> None:
    (tmp_path / f"{kind}.json").write_text(text)
    assert trial_kind(tmp_path) == kind
    page = page_of(tmp_path)
    assert kind in page.text
    if not text.startswith('{"'):
        assert f"{kind}.json cannot be read" in page.text


def test_what_a_record_holds_stays_text(tmp_path: Path) -> None:
    run = {"run": HOSTILE, "side": "a", "why": HOSTILE, "figures": {"per_second": 1, "unit": HOSTILE}}
    record = {"stage": HOSTILE, "state": HOSTILE, "why": HOSTILE, "runs": [run], "verdict": {"said": [HOSTILE]}}
    (tmp_path / "bench.json").write_text(json.dumps(record))
    text = render_trial(read_trial(tmp_path))
    assert "\x1b" not in text
    assert not [tag for tag, _ in Page(text).tags if tag == "img"]


def test_the_page_is_written_into_the_folder(tmp_path: Path) -> None:
    record, _, _ = benched(tmp_path)
    written_bench(record)
    printed: list[str] = []
    write_trial_report(record.planned.folder, printed.append)
    assert printed == [f"report: {record.planned.folder / 'report.html'}"]
    assert "A against B" in (record.planned.folder / "report.html").read_text(encoding="utf-8")


def test_the_verb_finds_runs_and_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from launch.commands.report import report

    monkeypatch.chdir(tmp_path)
    first, second = (write_run(tmp_path / "runs" / "demo" / name, STEPS[:5]) for name in ("first", "second"))
    trial = tmp_path / "runs" / "demo" / "bench-x"
    trial.mkdir()
    (trial / "bench.json").write_text('{"stage": "demo"}')
    assert report(["first"]) == 0
    assert report(["demo/sec", "first"]) == 0
    assert report(["bench-x"]) == 0
    assert report([str(second), "--output", "mine.html"]) == 0
    written = [first / "report.html", Path("report.html"), trial / "report.html", Path("mine.html")]
    assert capsys.readouterr().out.splitlines() == [str(path) for path in written]
    assert all(path.read_text(encoding="utf-8").startswith("<!doctype html>") for path in written)
    assert report(["bench-x", "first", "second"]) == 0
    assert "bench-x is skipped: a bench has its own page" in capsys.readouterr().err
    assert "2 runs: first, second" in Path("report.html").read_text(encoding="utf-8")
    another = trial.with_name("tune-x")
    another.mkdir()
    (another / "tune.json").write_text("{}")
    (tmp_path / "runs" / "demo" / "nothing").mkdir()
    for argv, problem in {
        ("bench-x", "tune-x"): "usage",
        ("demo/nothing",): "no_record",
        ("absent",): "unknown_run",
        (): "usage",
        ("first", "--output", str(tmp_path)): "report_not_written",
        ("first", "--outptu=x"): "unknown_option",
    }.items():
        with pytest.raises(UserError) as refusal:
            report(list(argv))
        assert [each.id for each in refusal.value.problems] == [problem]
