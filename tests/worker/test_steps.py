"""Step events: what a trainer logs, in the words of metrics.jsonl."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from launch.execution.record.events import parse_event
from launch.worker.channel import EventWriter
from launch.worker.hooks import LastNorm
from launch.worker.patches.dpo import send_step
from launch.worker.patches.finetune import FinetuneSteps, reward_fields
from launch.worker.patches.olmo_core_steps import (
    PackedDataListener,
    make_callback,
    send_found_data,
)
from launch.worker.patches.shared import StepListener
from launch.worker.step_events import step_events, step_fields


def clipped_at(norm: float | None) -> LastNorm:
    """What the trainer's own clipping measured."""
    last = LastNorm()
    if norm is not None:
        last.keep(SimpleNamespace(deepspeed_engine_wrapped=None), 1.0, norm)
    return last


Read = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def channel() -> Iterator[tuple[EventWriter, Read]]:
    """The writer of a channel, and a function that returns the events since its last call, without
    what each one has.
    """
    read, write = os.pipe2(os.O_NONBLOCK)

    def events() -> list[dict[str, Any]]:
        try:
            found = [json.loads(line) for line in os.read(read, 1 << 16).splitlines()]
        except BlockingIOError:
            return []
        fixed = ("time", "schema_version", "rank")
        return [{key: event[key] for key in event if key not in fixed} for event in found]

    yield EventWriter(write, 0), events
    os.close(read)
    os.close(write)


@pytest.fixture
def heard(channel: tuple[EventWriter, Read]) -> tuple[logging.Logger, Read]:
    """A logger whose steps of DPO are sent, and a function that returns the events."""
    writer, events = channel
    logger = logging.Logger("__main__", logging.INFO)
    logger.addHandler(
        StepListener("dpo_steps", writer, partial(send_step, writer, clipped_at(2.5)))
    )
    return logger, events


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
    logger.info("  Num examples = 12")
    log_a_step(logger, 7)
    [step] = events()
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


def log_of_finetune(
    logger: logging.Logger, completed_steps: int, start_time: float, more: dict[str, float]
) -> dict[str, float]:
    """Logs as finetune.py does, with the same local names; returns what its trackers would get."""
    metrics_to_log = {
        "learning_rate": 1e-5,
        "total_tokens": 430 * completed_steps,
        "total_tokens_including_padding": 444 * completed_steps,
        "per_device_tps": 10.0,
        "reserved_mem_GiB": 0.0,
        "allocated_mem_GiB": 0.0,
        "train_loss": 1.25,
        **more,
    }
    args, avg_aux_loss = SimpleNamespace(load_balancing_loss=completed_steps == 3), 0.5
    logger.info(f"[RANK 0]   Step: {completed_steps}, LR: 1e-05, Loss: 1.25, TPS: 10.0")
    del args, avg_aux_loss, start_time
    return metrics_to_log


@pytest.mark.parametrize("norm", [0.75, None])
def test_a_logged_step_of_finetune_becomes_an_event(
    norm: float | None, channel: tuple[EventWriter, Read]
) -> None:
    writer, events = channel
    steps = FinetuneSteps(writer, clipped_at(norm))
    logger = logging.Logger("__main__", logging.INFO)
    logger.addHandler(StepListener("finetune_steps", writer, steps.send))
    began = time.perf_counter() - 100
    logged = log_of_finetune(logger, 2, began, {"imbalance": 1.5})
    assert logged.get("grad_norm") == norm  # for the trackers
    gpu = {"allocated_mem_GiB": 41.5, "reserved_mem_GiB": 43.0, "train_loss": math.nan}
    log_of_finetune(logger, 3, began, gpu)
    first, second = events()
    assert first.pop("seconds") == pytest.approx(100, abs=5)  # since the training began
    assert 0 <= second.pop("seconds") < 5  # of this step alone
    measured = {} if norm is None else {"grad_norm": norm}
    assert first == {
        "kind": "step",
        "step": 2,
        "loss": 1.25,
        "lr": 1e-5,
        "total_tokens": 860,
        "total_tokens_including_padding": 888,
        "imbalance": 1.5,
        **measured,
    }
    assert math.isnan(second["loss"])
    assert (second["memory_gib"], second["memory_reserved_gib"]) == (41.5, 43.0)
    assert (second["aux_loss"], second["total_tokens"]) == (0.5, 1290)


def test_the_metrics_that_reward_modeling_prints_become_fields() -> None:
    printed = {
        "episode": 16,
        "epoch": 0.04,
        "train/rm/accuracy": 0.5,
        "train/rm/loss": 0.6931,
        "train/rm/chosen_rewards": 0.01,
        "train/rm/rejected_rewards": -0.01,
        "train/rm/reward_margin": 0.02,
        "train/rm/lr": 3e-06,
    }
    assert reward_fields(printed) == {
        "episode": 16,
        "epoch": 0.04,
        "loss": 0.6931,
        "lr": 3e-06,
        "rewards/accuracy": 0.5,
        "rewards/chosen": 0.01,
        "rewards/rejected": -0.01,
        "rewards/margin": 0.02,
    }


def test_the_callback_of_olmo_core_sends_its_steps(channel: tuple[EventWriter, Read]) -> None:
    """OLMo-core's own list of metrics, and dpo.py's: loss, rewards, tokens, padding."""
    pytest.importorskip("olmo_core", reason="the trainers are not installed")
    writer, events = channel
    callback = make_callback(writer)
    callback.trainer = SimpleNamespace(max_steps=20, epoch=1, global_step=0)
    callback.pre_train()
    metrics = {
        "train_loss": 0.69314718,
        "rewards/accuracy": 0.5,
        "rewards/margin": -0.0123,
        "logps/chosen": -1234.5,
        "launch/tokens": 12345.0,
        "launch/tokens_padded": 16460.0,
        "train/global_sequences_per_step": 32.0,
        "train/token_count": 11111.0,
        "train/PPL": 12.3,
        "throughput/device/TPS (actual avg)": 1.2e9,
        "learning_rate": 5e-7,
        "perf/seconds_per_step": 1.5,
        "perf/mfu_step": 40.0,
        "perf/mfu_avg": 39.0,
        "optim/total grad norm": 2.5,
    }
    callback.log_metrics(3, metrics)
    callback.log_metrics(4, {"train/token_count": 11111.0})  # nothing that a step reports
    sft = {"train/CE loss": math.nan, "optim/LR (group 0)": 8e-5, "optim/LR (group 1)": 9e-5}
    callback.log_metrics(5, {**sft, "perf/mfu_step": 0.0})  # a CPU
    total, of_dpo, of_sft = events()
    assert total == {"kind": "total_steps", "steps": 20}
    assert of_dpo == {
        "kind": "step",
        "step": 3,
        "epoch": 1,
        "loss": 0.69314718,
        "rewards/accuracy": 0.5,
        "rewards/margin": -0.0123,
        "logps/chosen": -1234.5,
        "tokens": 12345.0,
        "tokens_padded": 16460.0,
        "sequences": 32.0,
        "train/PPL": 12.3,
        "throughput/device/TPS (actual avg)": 1.2e9,
        "mfu": 40.0,
        "lr": 5e-7,
        "seconds": 1.5,
        "grad_norm": 2.5,
    }
    assert math.isnan(of_sft.pop("loss"))
    assert of_sft == {"kind": "step", "step": 5, "epoch": 1, "lr": 8e-5}


def test_packed_data_that_is_there_already_is_reported(channel: tuple[EventWriter, Read]) -> None:
    writer, events = channel
    logger = logging.Logger("__main__", logging.INFO)
    logger.addHandler(
        PackedDataListener("olmo_core_packed_data", writer, partial(send_found_data, writer))
    )

    def look(numpy_dir: str) -> None:
        logger.info(f"Numpy SFT files already present at {numpy_dir}")
        logger.info("Dataset cached successfully")

    look("/c/numpy_sft/ab-cd")
    assert events() == [
        {"kind": "phase", "phase": "load"},
        {
            "kind": "evidence",
            "what": "dataset_cache",
            "value": "hit",
            "path": "/c/numpy_sft/ab-cd",
        },
    ]


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
