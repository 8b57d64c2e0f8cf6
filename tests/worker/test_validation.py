"""The worker's side of validation: rows that are held out, the end of a training whose loss no
longer falls.
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

import pytest

from launch.worker.channel import EventWriter
from launch.worker.step_events import early_stop, find_best, step_events
from launch.worker.trl_data import choose_limit, split_rows


def evaluations(*losses: float) -> list[dict[str, Any]]:
    log: list[dict[str, Any]] = []
    for number, loss in enumerate(losses, 1):
        log += [{"step": number, "loss": 1.0}, {"step": number, "eval_loss": loss}]
    return log


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ((), None),
        ((2.0,), (1, 2.0, 0)),
        ((2.0, 1.0, 1.5, 1.0), (2, 1.0, 2)),
        ((2.0, float("nan"), float("inf")), (1, 2.0, 2)),
        ((float("nan"), 3.0), (2, 3.0, 0)),
    ],
)
def test_the_best_evaluation_is_found_in_the_trainers_log(
    losses: tuple[float, ...], best: tuple[int, float, int] | None
) -> None:
    assert find_best(evaluations(*losses)) == best


def stop_decision(
    event: str, losses: tuple[float, ...], last: int
) -> tuple[bool, list[dict[str, Any]]]:
    """Return whether the training stops after an event of the Trainer, with a patience of 2, and
    what is sent.
    """
    pytest.importorskip("transformers")
    read, write = os.pipe2(os.O_NONBLOCK)
    callback = early_stop(EventWriter(write, 0), 2)
    control = SimpleNamespace(should_training_stop=False)
    state = SimpleNamespace(
        log_history=evaluations(*losses),
        global_step=len(losses),
        max_steps=last,
        is_world_process_zero=True,
    )
    getattr(callback, event)(None, state, control)
    os.close(write)
    sent = [json.loads(line) for line in os.read(read, 1 << 16).splitlines()]
    os.close(read)
    return control.should_training_stop, sent


@pytest.mark.parametrize("event", ["on_evaluate", "on_train_begin"])
def test_training_stops_after_so_many_evaluations_without_a_lower_loss(event: str) -> None:
    stops, [sent] = stop_decision(event, (2.0, 2.5, 2.0), last=9)
    assert stops
    assert {
        name: sent[name] for name in ("kind", "step", "best_step", "best_loss", "evaluations")
    } == {
        "kind": "early_stop",
        "step": 3,
        "best_step": 1,
        "best_loss": 2.0,
        "evaluations": 2,
    }
    assert stop_decision(event, (2.0, 2.5, 1.0), last=9) == (False, [])
    assert stop_decision(event, (2.0, 2.5, 2.5), last=3) == (False, [])  # it ends there anyway


def test_a_share_of_the_rows_is_held_out_and_equal_rows_stay_together() -> None:
    rows = [{"messages": [{"role": "user", "content": str(number // 2)}]} for number in range(200)]
    kept, held_out = split_rows(rows, 0.1)
    assert sorted([*kept, *held_out]) == list(range(200))
    assert len(held_out) == 20
    assert {number // 2 for number in kept}.isdisjoint(number // 2 for number in held_out)
    reordered = [rows[number] for number in reversed(range(200))]
    assert sorted(199 - number for number in split_rows(reordered, 0.1)[1]) == held_out


@pytest.mark.parametrize(
    ("hashes", "share", "reason"),
    [
        ([1, 2, 3], 0.1, "0.1 of 3 rows is less than one row"),
        ([1, 2, 3], 0.9, "0.9 of 3 rows leaves none to train on"),
        ([7, 7, 7], 0.5, "all 3 rows are equal"),
        ([], 0.5, "less than one row"),
    ],
)
def test_a_side_without_rows_is_refused(hashes: list[int], share: float, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        choose_limit(hashes, share)
    assert choose_limit([1, 7, 7, 7], 0.5) == 1  # as many as can be, if a side would have none


def test_an_evaluated_step_is_sent_once_with_what_was_measured() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    read, write = os.pipe2(os.O_NONBLOCK)
    callback = step_events(EventWriter(write, 0))
    state = SimpleNamespace(is_world_process_zero=True, global_step=4)
    control = SimpleNamespace(should_evaluate=True, should_log=False)
    args = SimpleNamespace(device="cpu")
    callback.on_step_end(args, state, control)
    assert control.should_log  # at other logging steps too
    callback.on_log(args, state, control, {"loss": 2.0})
    callback.on_log(
        args, state, control, {"eval_loss": 1.5, "eval_runtime": 3.0, "eval_steps_per_second": 9.0}
    )
    state.global_step, control.should_evaluate = 5, False
    callback.on_log(args, state, control, {"loss": 1.9})
    events = [json.loads(line) for line in os.read(read, 1 << 16).splitlines()]
    os.close(read)
    os.close(write)
    assert [event["kind"] for event in events] == ["phase", "phase", "step", "evaluation", "step"]
    assert [event["phase"] for event in events[:2]] == ["evaluate", "training"]
    first, evaluation, second = events[2:]
    assert (first["step"], first["loss"], first["eval_loss"], first["eval_runtime"]) == (
        4,
        2.0,
        1.5,
        3.0,
    )
    assert (evaluation["step"], evaluation["eval_loss"]) == (4, 1.5)
    assert "eval_steps_per_second" not in first
    assert (second["step"], second["loss"]) == (5, 1.9)
    assert "eval_loss" not in second


def test_several_validation_sets_are_sent_as_one_evaluation() -> None:
    """The Trainer logs each set by itself, and `eval_loss` of all of them at last."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    read, write = os.pipe2(os.O_NONBLOCK)
    callback = step_events(EventWriter(write, 0), ("sums", "maths"))
    state = SimpleNamespace(is_world_process_zero=True, global_step=4)
    control = SimpleNamespace(should_evaluate=True, should_log=True)
    args = SimpleNamespace(device="cpu")
    callback.on_log(args, state, control, {"loss": 2.0})
    for name, loss in (("sums", 1.0), ("maths", 3.0)):
        logs = {f"eval_{name}_loss": loss, "eval_entropy": loss / 2}
        callback.on_log(args, state, control, {**logs, f"eval_{name}_steps_per_second": 9.0})
    callback.on_log(args, state, control, {"eval_loss": 2.5})
    events = [json.loads(line) for line in os.read(read, 1 << 16).splitlines()]
    os.close(read)
    os.close(write)
    step, evaluation = [event for event in events if event["kind"] != "phase"]
    measured = {name: value for name, value in evaluation.items() if name.startswith("eval_")}
    assert measured == {
        "eval_loss": 2.5,
        "eval_loss/sums": 1.0,
        "eval_entropy/sums": 0.5,
        "eval_loss/maths": 3.0,
        "eval_entropy/maths": 1.5,
    }
    assert measured.items() <= step.items() and step["loss"] == 2.0
