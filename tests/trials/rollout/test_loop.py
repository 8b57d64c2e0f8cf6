"""The rollout's own logic over runs that are made up: what is run, kept, stopped, put aside."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.execution.record.outcome import Outcome
from launch.trials.record import State
from launch.trials.rollout.record import RolloutRecord, WidthRun
from launch.trials.rollout.request import SubmitMode
from tests.messages import values_of
from tests.trials.rollout.plans import Ran, go, leave, planned, record_of, steps

WORDS = ("stage=sft", "trainer=trl_sft", "data.mix=[{name: some/data}]")
GREEN = [3.0, 2.9, 2.8]
DONE = Outcome(exit_code=0, seconds=9.0, steps=3, last_loss=2.8)


@pytest.fixture
def rollout(tmp_path: Path) -> RolloutRecord:
    return planned(tmp_path, *WORDS, "gpus=1,2,4")


class Runs:
    """Runs that are made up; `ran` are the widths that were really asked for."""

    def __init__(self, **other: Ran) -> None:
        self.ran: list[str] = []
        self._other = other

    def __call__(self, width: WidthRun) -> Outcome:
        self.ran.append(width.label)
        return self._other.get(width.label, green)(width)


def green(width: WidthRun) -> Outcome:
    return leave(width, DONE, steps(GREEN))


def nan(width: WidthRun) -> Outcome:
    return leave(width, DONE, steps([3.0, float("nan"), 2.8]))


def states(record: RolloutRecord) -> list[str]:
    return [width.state.value for width in record.runs]


def test_all_widths_pass(rollout: RolloutRecord) -> None:
    record, runs = record_of(rollout), Runs()
    assert go(record, runs) == 0
    assert runs.ran == ["gpu1", "gpu2", "gpu4"]
    assert states(record) == ["done"] * 3 and record.state == State.done


def test_each_width_is_compared_with_the_one_before_it(rollout: RolloutRecord) -> None:
    record = record_of(rollout)
    go(record, Runs())
    ids = [{result.id for result in width.gate_results} for width in record.runs]
    assert "loss_parity" not in ids[0]
    assert all({"loss_parity", "same_data", "scaling"} <= later for later in ids[1:])


def test_the_first_red_gate_stops_it(rollout: RolloutRecord) -> None:
    record, runs = record_of(rollout), Runs(gpu2=nan)
    assert go(record, runs) == 3
    assert runs.ran == ["gpu1", "gpu2"]
    assert states(record) == ["done", "failed", "planned"]
    assert [result.id for result in record.runs[1].failed_gates] == ["loss_finite"]


def test_a_changed_plan_is_run_again_and_the_others_are_kept(tmp_path: Path) -> None:
    go(record_of(planned(tmp_path, *WORDS, "gpus=1,2")), Runs())
    other = planned(tmp_path, *WORDS, "gpus=1,2", "parallel_at_one=zero2")
    runs = Runs()
    assert go(record_of(other), runs) == 0
    assert runs.ran == ["gpu1"]


def test_a_red_width_that_is_allowed_now_is_not_run_again(rollout: RolloutRecord) -> None:
    go(record_of(rollout), Runs(gpu1=nan))
    record, runs = record_of(rollout, allow=("loss_finite",)), Runs(gpu1=nan)
    assert go(record, runs) == 0
    assert "gpu1" not in runs.ran
    assert [result.id for result in record.runs[0].gate_results if result.allowed] == [
        "loss_finite"
    ]


def test_a_width_of_other_packages_is_not_run_again_by_the_job_of_a_wider_one(
    rollout: RolloutRecord,
) -> None:
    go(record_of(rollout), Runs())
    versions = rollout.runs[0].plan.folder / "versions.json"
    versions.write_text('{"packages": {"torch": "0.1"}}')
    runs = Runs()
    assert job(record_of(rollout), runs, "gpu2") == 0 and runs.ran == []


def test_a_width_beyond_the_machine_is_reported_and_the_others_run(rollout: RolloutRecord) -> None:
    record, runs = record_of(rollout), Runs()
    assert go(record, runs, cards=2) == 3
    assert runs.ran == ["gpu1", "gpu2"]
    assert states(record) == ["done", "done", "not_run"]
    assert values_of(str(record.runs[2].message)) == ["2", "4"]
    assert (
        record.runs[2].projection is not None
        and record.runs[2].projection.basis == "as fast a rank as gpu2"
    )


def test_every_change_is_reported(rollout: RolloutRecord) -> None:
    class Watched(RolloutRecord):
        def write(self) -> None:
            super().write()
            seen.append(" ".join(states(self)))

    seen: list[str] = []
    go(Watched(**vars(record_of(rollout))), Runs(gpu2=nan))
    assert seen == [
        "running planned planned",
        "done planned planned",
        "done running planned",
        "done failed planned",
    ]


def job(record: RolloutRecord, runs: Runs, label: str, *, cards: int = 8, nodes: int = 1) -> int:
    """What the job of one width does, where the later ones have jobs too."""
    [only] = [width for width in record.runs if width.label == label]
    for width in record.runs[record.runs.index(only) + 1 :]:
        width.state, width.job_id = State.submitted, "17"
    return go(record, runs, cards=cards, nodes=nodes, only=only)


def test_a_job_runs_its_own_width_and_is_held_to_the_one_before(rollout: RolloutRecord) -> None:
    runs = Runs()
    first, second = record_of(rollout), record_of(rollout)
    assert job(first, runs, "gpu1") == 0
    assert (states(first), first.state) == (["done", "submitted", "submitted"], State.submitted)
    assert job(second, runs, "gpu2") == 0
    assert runs.ran == ["gpu1", "gpu2"] and second.runs[0].reused
    assert {result.id for result in second.runs[1].gate_results} >= {"loss_parity", "same_data"}


def test_a_red_job_leaves_no_other_submitted(rollout: RolloutRecord) -> None:
    go(record_of(rollout), Runs(), cards=1)
    record = record_of(rollout)
    assert job(record, Runs(gpu2=nan), "gpu2") == 3
    assert states(record) == ["done", "failed", "planned"] and record.runs[2].job_id is None


def test_a_job_whose_width_before_has_not_passed_runs_nothing(rollout: RolloutRecord) -> None:
    record, runs = record_of(rollout), Runs()
    assert job(record, runs, "gpu2") == 3
    assert runs.ran == [] and states(record) == ["failed", "planned", "planned"]
    assert "has not passed" in str(record.runs[0].message)


def test_several_nodes_need_a_job_of_as_many(tmp_path: Path) -> None:
    wide = planned(tmp_path, *WORDS, "gpus=1,2x1")
    assert [width.label for width in wide.runs] == ["gpu1", "gpu2x1"]
    alone = record_of(wide)
    assert go(alone, Runs()) == 3
    assert states(alone) == ["done", "not_run"]
    assert alone.runs[1].message == "it needs 2 machines"
    runs = Runs()
    assert job(record_of(wide), runs, "gpu2x1", nodes=2) == 0 and runs.ran == ["gpu2x1"]


@pytest.mark.parametrize(("submit", "ran"), [(SubmitMode.rest, ["gpu1"]), (SubmitMode.all, [])])
def test_what_is_to_be_handed_over_is_not_run(
    rollout: RolloutRecord, submit: SubmitMode, ran: list[str]
) -> None:
    record, runs = record_of(rollout), Runs()
    assert go(record, runs, cards=1, submit=submit) == 3
    assert runs.ran == ran and states(record)[len(ran) :] == ["not_run"] * (3 - len(ran))


def test_what_has_passed_is_kept_where_it_could_not_run(rollout: RolloutRecord) -> None:
    go(record_of(rollout), Runs(), cards=2)
    record = record_of(rollout)
    assert go(record, Runs(), cards=0, submit=SubmitMode.all) == 3
    assert states(record) == ["done", "done", "not_run"]
