"""Step events: what a trainer logs, in the words of metrics.jsonl."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from launch.execution.record.events import parse_event
from launch.worker.channel import EventWriter
from launch.worker.hooks import LastNorm
from launch.worker.patches import PatchContext
from launch.worker.patches.dpo import DPOStepListener
from launch.worker.patches.shared import StepListener
from launch.worker.step_events import step_events, step_fields
from launch.worker.trainer import TrainerProgram


def clipped_at(norm: float | None) -> LastNorm:
    """What the trainer's own clipping measured."""
    last = LastNorm()
    if norm is not None:
        last.keep(SimpleNamespace(deepspeed_engine_wrapped=None), 1.0, norm)
    return last


@pytest.fixture
def heard() -> Iterator[tuple[logging.Logger, Any]]:
    """A logger that a DPOStepListener listens to, and a function that returns the events so far."""
    read, write = os.pipe2(os.O_NONBLOCK)
    logger = logging.Logger("__main__", logging.INFO)
    logger.addHandler(
        DPOStepListener(
            PatchContext(TrainerProgram(None, "m", ()), EventWriter(write, 0)), clipped_at(2.5)
        )
    )

    def events() -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in os.read(read, 1 << 16).splitlines()]
        except BlockingIOError:
            return []

    yield logger, events
    os.close(read)
    os.close(write)


def log_a_step(logger: logging.Logger, completed_steps: int) -> None:
    """Logs as dpo_tune_cache.py does, with the same local names."""
    metrics_to_log = {
        "training_step": completed_steps,
        "learning_rate": 5e-7,
        "epoch": 0.25,
        "train_loss": 0.61,
        "logps/chosen": -40.0,
        "rewards/accuracy": 0.75,
        "perf/mfu_step": 3.0,
        "perf/tokens_per_second_step": 1000.0,
        "perf/tokens_per_second_avg": 900.0,
    }
    total_tokens_step, training_time = 800, 2.0
    # means over 2 ranks x 4 micro batches x 1 step
    global_metrics = {"train_loss": 0.61, "launch/tokens": 250.0, "launch/tokens_padded": 400.0}
    accelerator = SimpleNamespace(num_processes=2)
    args = SimpleNamespace(gradient_accumulation_steps=4, logging_steps=1)
    logger.info(f"  Step: {completed_steps}, LR: 5e-07, Loss: 0.61")
    assert metrics_to_log["grad_norm"] == 2.5  # for the trackers
    del total_tokens_step, training_time, global_metrics, accelerator, args


def test_a_logged_dpo_step_becomes_an_event(heard: tuple[logging.Logger, Any]) -> None:
    logger, events = heard
    pytest.importorskip("torch")
    logger.info("  Total optimization steps = 40")
    logger.info("  Num examples = 12")
    log_a_step(logger, 7)
    total, step = events()
    assert (total["kind"], total["steps"]) == ("total_steps", 40)
    for fixed in ("time", "schema_version", "rank"):
        del step[fixed]
    memory = step.pop("memory_gib", 1.0)
    assert 0 < memory <= step.pop("memory_reserved_gib", memory)
    assert step == {
        "kind": "step",
        "step": 7,
        "loss": 0.61,
        "lr": 5e-7,
        "epoch": 0.25,
        "logps/chosen": -40.0,
        "rewards/accuracy": 0.75,
        "grad_norm": 2.5,
        "tokens": 2000,
        "tokens_padded": 3200,
        "label_tokens": 800,
        "seconds": 2.0,
    }


@pytest.mark.parametrize(
    ("norm", "logged"), [(0.75, {"loss": 1.0, "grad_norm": 0.75}), (None, {"loss": 1.0})]
)
def test_finetune_logs_the_norm_that_it_clipped(
    norm: float | None, logged: dict[str, float]
) -> None:
    logger = logging.Logger("__main__", logging.INFO)
    add_norm = clipped_at(norm).add_to
    logger.addHandler(
        StepListener(
            "finetune_grad_norm", EventWriter(None, 0), lambda at: add_norm(at["metrics_to_log"])
        )
    )
    metrics_to_log = {"loss": 1.0}
    logger.info("[RANK 0]   Step: 3, LR: 1e-05, Loss: 1.0, TPS: 10.0")
    assert metrics_to_log == logged


def test_deepspeeds_norm_is_its_engines() -> None:
    engine = SimpleNamespace(get_global_grad_norm=lambda: 4.5)
    last = LastNorm()
    last.keep(SimpleNamespace(deepspeed_engine_wrapped=engine))
    assert last.value() == 4.5
    engine.get_global_grad_norm = lambda: -1.0  # its word for a step that overflowed
    assert last.value() is None


def test_a_step_that_can_not_be_read_warns_and_trains_on(
    heard: tuple[logging.Logger, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    logger, events = heard
    logger.info("  Step: 7, LR: 5e-07, Loss: 0.61")
    [event] = events()
    assert event["kind"] == "warning"
    assert (
        event["message"]
        == "patch dpo_steps could not read a step: LookupError: no frame holds metrics_to_log"
    )
    assert "launch: warning: patch dpo_steps" in capsys.readouterr().err


def test_what_the_trainer_logs_becomes_fields_with_the_seconds_of_the_step() -> None:
    logs = {
        "loss": 2.5,
        "grad_norm": 1.0,
        "learning_rate": 1e-4,
        "num_tokens": 300.0,
        "epoch": 0.1,
        "note": "text",
    }
    assert step_fields(1, logs, 2.0) == {
        "step": 1,
        "loss": 2.5,
        "grad_norm": 1.0,
        "lr": 1e-4,
        "epoch": 0.1,
        "seconds": 2.0,
        "total_tokens": 300,
    }


def test_a_trainer_that_counts_no_tokens_has_none() -> None:
    assert step_fields(1, {"loss": 1.0}, 1.0) == {"step": 1, "loss": 1.0, "seconds": 1.0}


def test_an_evaluation_of_the_trainer_becomes_an_event() -> None:
    pytest.importorskip("transformers")
    read, write = os.pipe2(os.O_NONBLOCK)
    callback = step_events(EventWriter(write, 0))
    logs = {"eval_loss": 1.5, "eval_runtime": 2.0, "epoch": 0.5, "note": "text"}
    callback.on_log(None, SimpleNamespace(is_world_process_zero=True, global_step=20), None, logs)
    callback.on_log(None, SimpleNamespace(is_world_process_zero=False, global_step=20), None, logs)
    callback.on_log(
        None, SimpleNamespace(is_world_process_zero=True, global_step=20), None, {"train_loss": 2.0}
    )
    [line] = os.read(read, 1 << 16).splitlines()
    event = parse_event(line, 0)
    assert event is not None and event.kind == "evaluation"
    assert event.data == {"step": 20, "eval_loss": 1.5, "eval_runtime": 2.0}
    os.close(read)
    os.close(write)
