"""Reports of trials: the numbers of their JSON, whatever state it is in and whichever version wrote
it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from launch import resources
from launch.errors import UserError
from launch.execution.report.document import SpreadPlot, format_range_with_unit
from launch.execution.report.page import render_document
from launch.trials.view import _state, read_trial, run_lines, trial_verb, write_trial_report
from launch.worker.json_codec import SCHEMA_VERSION
from tests.execution.report.folders import write_run
from tests.execution.report.test_page import HOSTILE, STEPS, Page
from tests.trials.bench.benches import benched
from tests.trials.bench.test_record import diverging, failing
from tests.trials.records import read, written
from tests.trials.rollout.test_record import rolled
from tests.trials.tune.searches import measured, out_of_memory, record_in
from tests.trials.tune.test_record import with_probes

BENCHMARKS = resources.ROOT / "benchmarks"


def page_of(folder: Path) -> Page:
    return Page(render_document(read_trial(folder)))


def plot_of(folder: Path, title: str) -> SpreadPlot:
    return next(plot for plot in read_trial(folder).plots if plot.title.startswith(title))


def test_a_rollout_has_its_widths_efficiency_and_gates(tmp_path: Path) -> None:
    record = rolled(tmp_path)
    document = read(record)
    page = page_of(record.folder)
    assert "3 of 3 widths passed" in page.text
    efficiency = plot_of(record.folder, "Efficiency")
    recorded = {run["label"]: [pytest.approx(100 * run["efficiency"])] for run in document["runs"]}
    assert {spread.label: spread.values for spread in efficiency.spreads} == recorded
    for run in document["runs"]:
        assert run["gates"]
        for gate in run["gates"]:
            assert (
                f"{run['label']} {gate['id']} {gate['verdict']} {' '.join(gate['message'].split())}"
                in page.text
            )
    assert [line["label"] for line in page.data[0]["lines"]] == ["gpu1", "gpu2", "gpu4"]


def test_a_gate_that_failed_is_in_the_verdict(tmp_path: Path) -> None:
    record = rolled(tmp_path, {"gpu2": [3.0, 2.9, math.nan]})
    summary = written(record).summary
    assert summary[1] == "1 of 3 widths passed" and summary[2].startswith("gpu2: ")
    assert summary[2].endswith(f"[{record.runs[1].failed_gates[0].id}]")


def test_a_bench_has_both_sides_with_their_spread(tmp_path: Path) -> None:
    record, _, _ = benched(tmp_path, "repeats=2")
    document = read(record)
    page = page_of(record.folder)
    for sentence in document["verdict"]["summary"]:
        assert " ".join(sentence.split()) in page.text
    rates = {
        side: [run["measured"]["per_second"] for run in document["runs"] if run["label"][0] == side]
        for side in "AB"
    }
    assert {s.label: s.values for s in plot_of(record.folder, "Throughput").spreads} == rates
    ratio = document["verdict"]["speed_ratio"]
    spread = plot_of(record.folder, "Ratio").spreads[0]
    assert (spread.values, spread.low, spread.high) == (
        ratio["values"],
        ratio["low"],
        ratio["high"],
    )
    assert "setting A recipe.per_device_batch_size=4" in page.text
    assert [line["label"] for line in page.data[0]["lines"]] == ["A1", "B1", "B2", "A2"]


@pytest.mark.parametrize("run", [failing, diverging])
def test_a_bench_that_failed_has_a_page(run: Any, tmp_path: Path) -> None:
    record, _, _ = benched(tmp_path, run=run)
    written(record)
    assert "A against B" in page_of(record.folder).text


def test_a_tune_has_what_was_predicted_probed_and_chosen(tmp_path: Path) -> None:
    record = record_in(tmp_path)
    first, second = (estimate.prediction for estimate in record.estimates[:2])
    with_probes(record, measured(first, first.seconds), out_of_memory(second))
    document = read(record)
    page = page_of(record.folder)
    assert f"the fastest setting measured is {document['best']}" in page.text
    assert f"{document['best']} (chosen" in page.text
    probed = plot_of(record.folder, "Time of a step, probed").spreads
    assert [spread.values for spread in probed] == [
        [document["runs"][0]["measured"]["step_seconds"]]
    ]
    predicted = plot_of(record.folder, "Time of a step, predicted").spreads
    estimates = document["predictions"]
    assert [(spread.low, spread.high) for spread in predicted] == [
        (estimate["low_seconds"], estimate["high_seconds"])
        for estimate in estimates[: len(predicted)]
    ]
    for estimate in estimates[:3]:
        assert (
            format_range_with_unit(estimate["low_seconds"], estimate["high_seconds"], "s")
            in page.text
        )
    assert "out_of_memory" in page.text


@pytest.mark.parametrize(
    ("projection", "text"),
    [
        ({"hours": 2.1, "gpu_hours": 8.4, "cost": 25.2}, "2 h 6 min, 8.4 GPU-hours, costs 25.2"),
        ({"hours": 0.5, "basis": "measured"}, "30 min  "),
        ({"hours": 0.0102}, "37 s (projected)"),
        ({"hours": 10_000, "basis": "measured"}, "10,000 h  "),
        ({}, "-  "),
    ],
)
def test_the_time_of_a_whole_run_has_its_unit(projection: dict[str, Any], text: str) -> None:
    _, row = run_lines("rollout", {"label": "gpu4", "message": None, "projection": projection})
    assert f"  {text}" in row


@pytest.mark.parametrize(
    ("run", "text"),
    [
        ({}, "done"),
        ({"cause_id": "failed"}, "done"),
        ({"cause_id": "out_of_memory", "reused": True}, "done (out_of_memory, reused)"),
        ({"gates": [{"verdict": "warn"}, {"verdict": "pass"}]}, "done (1 warned)"),
        (
            {"gates": [{"allowed": True}, {"allowed": True}, {"allowed": False}]},
            "done (2 allowed)",
        ),
    ],
)
def test_the_state_of_a_run_has_its_remarks(run: dict[str, Any], text: str) -> None:
    assert _state({"state": "done", **run}) == text


OF_OTHER_TYPES: Any = {
    "state": [1],
    "stage": {},
    "summary": 4,
    "notes": [{}],
    "options": 3,
    "settings": [{"overrides": 3}, 4],
    "verdict": 4,
    "differences": [{}, 3],
    "predictions": [{}, 3],
    "best": [],
    "runs": [
        3,
        {"measured": 3, "label": 4},
        {"gates": [{}, 4], "measured": {}, "batch": "x", "projection": {"hours": "x"}},
        {"projection": {"hours": math.inf}, "message": [1], "folder": 4},
    ],
}


@pytest.mark.parametrize("kind", ["rollout", "bench", "tune", "sweep"])
@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ("{}", "cannot be read"),
        ("\0", "cannot be read"),
        ({"schema_version": 7, "state": "done"}, "[other_format]"),
        ({"state": "done"}, "[other_format]"),
        ({"schema_version": SCHEMA_VERSION, "state": "done"}, "done"),
        ({"schema_version": SCHEMA_VERSION, **OF_OTHER_TYPES}, "Runs"),
    ],
)
def test_a_broken_record_has_a_page(
    kind: str, content: str | dict[str, Any], shown: str, tmp_path: Path
) -> None:
    text = content if isinstance(content, str) else json.dumps(content | {"verb": kind})
    (tmp_path / f"{kind}.json").write_text(text)
    assert trial_verb(tmp_path) == kind
    page = page_of(tmp_path)
    assert kind in page.text and shown in page.text


def test_what_a_record_holds_stays_text(tmp_path: Path) -> None:
    run = {"label": HOSTILE, "message": HOSTILE, "measured": {"per_second": 1, "unit": HOSTILE}}
    record = {
        "stage": HOSTILE,
        "state": HOSTILE,
        "message": HOSTILE,
        "runs": [run],
        "summary": [HOSTILE],
    }
    (tmp_path / "bench.json").write_text(
        json.dumps(record | {"schema_version": SCHEMA_VERSION, "verb": "bench"})
    )
    text = render_document(read_trial(tmp_path))
    assert "\x1b" not in text
    assert not [tag for tag, _ in Page(text).tags if tag == "img"]


def test_the_page_is_written_into_the_folder(tmp_path: Path) -> None:
    record, _, _ = benched(tmp_path)
    written(record)
    printed: list[str] = []
    write_trial_report(record.folder, printed.append)
    assert printed == [f"report: {record.folder / 'report.html'}"]
    assert "A against B" in (record.folder / "report.html").read_text(encoding="utf-8")


def test_the_verb_finds_runs_and_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from launch.commands.reports import report

    monkeypatch.chdir(tmp_path)
    first, second = (
        write_run(tmp_path / "runs" / "demo" / name, STEPS[:5]) for name in ("first", "second")
    )
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
