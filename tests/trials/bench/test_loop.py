from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from launch.trials.bench.record import BenchRun
from launch.trials.record import State
from tests.trials.bench.benches import DONE, WORDS, benched, made_up, planned, steps

OUT_OF_MEMORY = replace(
    DONE,
    exit_code=1,
    steps=0,
    cause="CUDA out of memory",
    cause_id="out_of_memory",
    cure="say 2 a device",
)


def test_turns(tmp_path: Path) -> None:
    abab = planned(tmp_path, *WORDS, "repeats=2", "order=abab")
    assert [run.label for run in abab.runs] == ["A1", "B1", "A2", "B2"]


def test_every_run_in_its_turn(tmp_path: Path) -> None:
    record, code, ran = benched(tmp_path)
    assert (code, ran) == (0, ["A1", "B1", "B2", "A2", "A3", "B3"])
    assert record.state == State.done and len(record.pairs) == 3


def test_what_has_run_is_kept_and_another_plan_runs(tmp_path: Path) -> None:
    benched(tmp_path, "name=x")
    assert benched(tmp_path, "name=x", "repeats=4")[2] == ["B4", "A4"]
    assert benched(tmp_path, "name=x", b=("recipe.per_device_batch_size=2",))[2] == [
        "B1",
        "B2",
        "B3",
    ]


def test_a_setting_that_never_works_gives_no_verdict(tmp_path: Path) -> None:
    def run(bench_run: BenchRun) -> None:
        if bench_run.side.label == "B":
            made_up(bench_run, [], OUT_OF_MEMORY)
        else:
            made_up(bench_run)

    record, code, ran = benched(tmp_path, run=run)
    assert (code, ran, record.verdict) == (3, ["A1", "B1"], None)


def test_no_run_is_begun_that_would_not_end_in_time(tmp_path: Path) -> None:
    now = [0.0]

    def run(bench_run: BenchRun) -> None:
        now[0] += 60
        made_up(bench_run)

    record, code, ran = benched(tmp_path, "max_minutes=5.5", run=run, clock=lambda: now[0])
    assert (code, ran) == (0, ["A1", "B1", "B2", "A2"])  # a third pair would need six minutes
    assert record.state == State.not_run and record.message and "max_minutes=5.5" in record.message
    assert [run.state for run in record.runs[4:]] == [State.not_run] * 2
    record, code, ran = benched(tmp_path, "max_minutes=1", run=run, clock=lambda: now[0])
    assert ran == ["A3"]  # at least one run a call, so that calls come to an end
    assert code == 0 and len(record.pairs) == 2


def test_a_run_whose_time_is_up_is_ended_and_not_counted(tmp_path: Path) -> None:
    cut = replace(DONE, exit_code=3, steps=3, cause="ended after 60 s", cause_id="time_used")

    def run(bench_run: BenchRun) -> None:
        if bench_run.label == "A2":
            made_up(bench_run, steps(3), cut)
        else:
            made_up(bench_run)

    record, code, ran = benched(tmp_path, "max_minutes=5", run=run)
    assert (code, ran, record.state) == (0, ["A1", "B1", "B2", "A2"], State.not_run)
    assert len(record.pairs) == 1 and len(record.sides[0].figures) == 1
    assert benched(tmp_path)[2] == ["A2", "A3", "B3"]
