from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from launch.errors import Problem, UserError
from launch.trials.bench.record import BenchRun
from launch.trials.measurement import Measurement
from launch.trials.record import State
from tests.trials.bench.benches import DONE, WORDS, benched, made_up, planned, steps

OUT_OF_MEMORY = replace(
    DONE, exit_code=1, steps=0, cause="CUDA out of memory", cause_id="out_of_memory", cure="say 2 a device"
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
    record, code, ran = benched(tmp_path, "name=x")
    assert (code, ran) == (0, []) and all(run.reused for run in record.runs)
    assert benched(tmp_path, "name=x", "repeats=4")[2] == ["B4", "A4"]
    assert benched(tmp_path, "name=x", b=("recipe.per_device_batch_size=2",))[2] == ["B1", "B2", "B3"]
    assert benched(tmp_path, "name=x", reuse=False)[2] == ["A1", "B1", "B2", "A2", "A3", "B3"]


def test_fewer_steps_are_in_what_there_is_and_more_run_again(tmp_path: Path) -> None:
    benched(tmp_path, "name=x")
    record, code, ran = benched(tmp_path, "name=x", "steps=4")
    assert (code, ran) == (0, []) and record.sides[0].figures[0].counted_steps == 2
    record, code, ran = benched(
        tmp_path, "name=x", "steps=6", run=lambda bench_run: made_up(bench_run, steps(6), steps_=6)
    )
    assert code == 0 and len(ran) == 6 and record.sides[0].figures[0].counted_steps == 4


def test_a_run_that_fails_ends_it_and_what_ran_is_reported(tmp_path: Path) -> None:
    def run(bench_run: BenchRun) -> Measurement:
        return made_up(bench_run, [], OUT_OF_MEMORY) if bench_run.label == "B2" else made_up(bench_run)

    record, code, ran = benched(tmp_path, run=run)
    assert (code, ran) == (3, ["A1", "B1", "B2"])
    assert record.state == State.failed and record.verdict is not None
    assert record.runs[2].message == "CUDA out of memory; say 2 a device"
    record, code, ran = benched(tmp_path)  # and the next call goes on
    assert (code, ran) == (0, ["B2", "A2", "A3", "B3"])


def test_a_setting_that_never_works_gives_no_verdict(tmp_path: Path) -> None:
    def run(bench_run: BenchRun) -> Measurement:
        return made_up(bench_run, [], OUT_OF_MEMORY) if bench_run.side.label == "B" else made_up(bench_run)

    record, code, ran = benched(tmp_path, run=run)
    assert (code, ran, record.verdict) == (3, ["A1", "B1"], None)


def test_an_interrupted_bench(tmp_path: Path) -> None:
    def run(bench_run: BenchRun) -> Measurement:
        return (
            made_up(bench_run, steps(3), replace(DONE, exit_code=130, steps=3))
            if bench_run.label == "B1"
            else made_up(bench_run)
        )

    record, code, ran = benched(tmp_path, run=run)
    assert (code, ran, record.state) == (130, ["A1", "B1"], State.interrupted)


def test_a_first_run_that_cannot_be_started_is_the_users_error(tmp_path: Path) -> None:
    def run(bench_run: BenchRun) -> Measurement:
        raise UserError(Problem("too_few_gpus", "there is none", None, "say gpus=0"))

    with pytest.raises(UserError, match="too_few_gpus"):
        benched(tmp_path, run=run)


def test_a_later_run_that_cannot_be_started_is_reported(tmp_path: Path) -> None:
    def run(bench_run: BenchRun) -> Measurement:
        if bench_run.label == "B1":
            raise UserError(Problem("gpus_busy", "GPU 0 is held", None, "wait"))
        return made_up(bench_run)

    record, code, _ = benched(tmp_path, run=run)
    assert code == 3 and "[gpus_busy]" in str(record.runs[1].message)


def test_no_run_is_begun_that_would_not_end_in_time(tmp_path: Path) -> None:
    now = [0.0]

    def run(bench_run: BenchRun) -> Measurement:
        now[0] += 60
        return made_up(bench_run)

    record, code, ran = benched(tmp_path, "max_minutes=5.5", run=run, clock=lambda: now[0])
    assert (code, ran) == (0, ["A1", "B1", "B2", "A2"])  # a third pair would need six minutes
    assert record.state == State.not_run and record.message and "max_minutes=5.5" in record.message
    assert [run.state for run in record.runs[4:]] == [State.not_run] * 2
    record, code, ran = benched(tmp_path, "max_minutes=1", run=run, clock=lambda: now[0])
    assert ran == ["A3"]  # at least one run a call, so that calls come to an end
    assert code == 0 and len(record.pairs) == 2


def test_a_run_whose_time_is_up_is_ended_and_not_counted(tmp_path: Path) -> None:
    cut = replace(DONE, exit_code=3, steps=3, cause="ended after 60 s", cause_id="time_used")

    def run(bench_run: BenchRun) -> Measurement:
        return made_up(bench_run, steps(3), cut) if bench_run.label == "A2" else made_up(bench_run)

    record, code, ran = benched(tmp_path, "max_minutes=5", run=run)
    assert (code, ran, record.state) == (0, ["A1", "B1", "B2", "A2"], State.not_run)
    assert len(record.pairs) == 1 and len(record.sides[0].figures) == 1
    assert benched(tmp_path)[2] == ["A2", "A3", "B3"]
