"""Readers against what the real trainers printed (excerpts in logs/, paths shortened)."""

from __future__ import annotations

import logging
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch.execution.record.events import Event
from launch.execution.supervise.readers import reader_for
from launch.execution.supervise.streams import LineCutter

LOGS = Path(__file__).with_name("logs")


def read(trainer: str, text: str | None = None, rank: int = 0) -> list[Event]:
    """All events of an excerpt (or of `text`), a second apart a line."""
    data = (LOGS / f"{trainer}.log").read_bytes() if text is None else text.encode()
    cutter, reader = LineCutter(), reader_for(trainer, rank)
    lines = cutter.feed(data) + cutter.feed(b"\n")
    events = [event for now, line in enumerate(lines) for event in reader.feed(line, float(now))]
    return events + reader.close(float(len(lines)))


def of_kind(events: list[Event], kind: str) -> list[dict[str, object]]:
    return [dict(event.data) for event in events if event.kind == kind]


def phases(events: list[Event]) -> list[str]:
    """The phases named, repetitions left out."""
    named = [str(data["phase"]) for data in of_kind(events, "phase")]
    return [phase for index, phase in enumerate(named) if index == 0 or phase != named[index - 1]]


def test_finetune() -> None:
    events = read("finetune")
    assert of_kind(events, "total_steps") == [{"steps": 4}]
    assert phases(events) == ["tokenize", "load", "training", "checkpoint", "training", "save"]
    assert of_kind(events, "evidence") == [
        {"what": "dataset_cache", "value": "built", "path": "/runs/x/cache/4058a28431"}
    ]
    steps = of_kind(events, "step")
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert [step["total_tokens"] for step in steps] == [430, 852, 1282, 1709]
    assert [step["total_tokens_including_padding"] for step in steps] == [444, 888, 1328, 1772]
    assert steps[1]["loss"] == 5.796100616455078
    assert steps[1]["lr"] == 0.0005
    # TPS is cumulative: 430 tokens at 6442.99/s, then 852 at 5417.01/s
    assert steps[1]["seconds"] == pytest.approx(
        852 / 5417.012080664801 - 430 / 6442.990992279965, abs=1e-6
    )
    assert "memory_gib" not in steps[0]  # a CPU


def test_finetune_memory_on_a_gpu_and_a_cache_hit() -> None:
    events = read(
        "finetune",
        "✅ Found cached dataset at /c/abc\n  Step: 10, LR: 5e-06, Loss: 0.75, Aux Loss: 0.1, TPS: "
        "10.0\n"
        "metrics_to_log={'total_tokens': 100, 'reserved_mem_GiB': 43.0, 'allocated_mem_GiB': "
        "41.5}\n",
    )
    assert of_kind(events, "evidence")[0]["value"] == "hit"
    assert of_kind(events, "step") == [
        {
            "step": 10,
            "loss": 0.75,
            "lr": 5e-06,
            "aux_loss": 0.1,
            "total_tokens": 100,
            "memory_gib": 41.5,
            "memory_reserved_gib": 43.0,
            "seconds": 10,
        }
    ]


@pytest.mark.parametrize("loss", ["nan", "inf", "-inf"])
def test_a_loss_that_is_no_number_survives(loss: str) -> None:
    events = read(
        "finetune",
        f"  Step: 1, LR: 5e-06, Loss: {loss}, TPS: nan\nmetrics_to_log={{'train_loss': {loss}}}\n",
    )
    (step,) = of_kind(events, "step")
    assert str(step["loss"]) == loss


def test_finetune_without_verbose_gives_a_step_when_no_more_of_it_comes() -> None:
    reader = reader_for("finetune", 0)
    assert [
        event.kind for event in reader.feed("  Step: 1, LR: 1e-3, Loss: 2.0, TPS: 9.0", 100.0)
    ] == ["phase"]
    assert reader.idle(100.5) == []
    assert [event.data["step"] for event in reader.idle(101.5)] == [1]
    assert reader.idle(105.0) == []
    assert [
        event.kind for event in reader.feed("  Step: 2, LR: 1e-3, Loss: 2.0, TPS: 9.0", 106.0)
    ] == ["phase"]
    given = reader.feed("  Step: 3, LR: 1e-3, Loss: 2.0, TPS: 9.0", 107.0)
    assert [event.data.get("step") for event in given] == [None, 2]
    assert given[1].time == 106.0
    assert [event.data["step"] for event in reader.close(107.0)] == [3]


def test_a_step_line_behind_a_progress_bar() -> None:
    text = (
        "\r 50%|█████     | 2/4 [00:00<00:00, 13.23it/s]2026-08-20 - INFO -   Step: 2, LR: "
        "0.0, "
        "Loss: 5.5, TPS: 1.0\n"
    )
    assert of_kind(read("finetune", text), "step") == [{"step": 2, "loss": 5.5, "lr": 0.0}]


def test_dpo_tune_cache_gives_phases_and_no_steps() -> None:
    events = read("dpo_tune_cache")
    assert phases(events) == [
        "tokenize", "load", "reference_logprobs", "training", "checkpoint", "save",
    ]  # fmt: skip
    assert of_kind(events, "total_steps") == [{"steps": 8}]
    assert of_kind(events, "step") == []
    assert {"what": "reference_logprobs_cache", "value": "built"} in of_kind(events, "evidence")


def test_trl_gives_phases_and_does_not_count_the_printed_dicts() -> None:
    events = read("trl", (LOGS / "trl_sft.log").read_text(encoding="utf-8"))
    assert phases(events) == ["load", "tokenize"]
    assert of_kind(events, "step") == []


def test_olmo_core_console_blocks() -> None:
    events = read("olmo_core", (LOGS / "olmo_core.log").read_text(encoding="utf-8"))
    steps = of_kind(events, "step")
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert steps[0] == {
        "step": 1,
        "epoch": 1,
        "loss": 2.51,
        "lr": 8e-05,
        "grad_norm": 1.25,
        "memory_gib": 41.2,
        "train/PPL": 12.3,
        "throughput/device/TPS": 43210.0,
        "throughput/device/TPS (actual avg)": 1.2e9,
        "throughput/total tokens": 131072.0,
        "gpu_memory/GPU active mem (%)": 51.5,
        "optim/step skipped": 0.0,
    }
    assert math.isnan(float(str(steps[1]["loss"])))
    assert of_kind(events, "total_steps") == [{"steps": 12}]


def test_what_the_patched_console_logger_prints_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    """OLMo-core's own callback with the worker's patch, and dpo.py's metrics: loss, rewards,
    tokens, padding.
    """
    console = pytest.importorskip(
        "olmo_core.train.callbacks.console_logger", reason="the trainers are not installed"
    )
    from launch.worker.channel import EventWriter
    from launch.worker.patches import PATCHES, PatchContext, install
    from launch.worker.trainer import TrainerProgram

    original, rounded = console.ConsoleLoggerCallback.__init__, console.format_float
    context = PatchContext(TrainerProgram(None, "none", ()), EventWriter(None, 0))
    try:
        install(PATCHES["olmo_core_console"], context)
        logger = console.ConsoleLoggerCallback()
    finally:
        console.ConsoleLoggerCallback.__init__ = original
    precise, console.format_float = console.format_float, rounded
    progress = SimpleNamespace(time_remaining=None)
    logger.trainer = SimpleNamespace(
        training_progress=progress, max_steps=20, epoch=1, global_step=3, hard_stop=None
    )
    metrics = {
        "train_loss": 0.693147,
        "rewards/accuracy": 0.5,
        "rewards/margin": -0.0123,
        "logps/chosen": -1234.5,
        "launch/tokens": 12345.0,
        "launch/tokens_padded": 16460.0,
        "train/global_sequences_per_step": 32.0,
        "train/token_count": 11111.0,
        "learning_rate": 5e-7,
        "perf/seconds_per_step": 1.5,
        "perf/mfu_step": 40.0,
        "optim/total grad norm": 2.5,
    }
    handler = logging.StreamHandler(sys.stdout)
    console.log.addHandler(handler)
    console.log.setLevel(logging.INFO)
    try:
        console.format_float = precise
        logger.log_metrics(3, metrics)
    finally:
        console.format_float = rounded
        console.log.removeHandler(handler)
    [step] = of_kind(read("olmo_core", capsys.readouterr().out), "step")
    assert step == {
        "step": 3,
        "epoch": 1,
        "loss": 0.693147,
        "rewards/accuracy": 0.5,
        "rewards/margin": -0.0123,
        "logps/chosen": -1234.5,
        "tokens": 12345.0,
        "tokens_padded": 16460.0,
        "sequences": 32.0,
        "mfu": 40.0,
        "lr": 5e-7,
        "seconds": 1.5,
        "grad_norm": 2.5,
    }


def test_the_packed_files_of_olmo_core_finetune() -> None:
    def evidence_of(text: str) -> list[dict[str, object]]:
        return of_kind(read("olmo_core", text), "evidence")

    made = (
        "x - INFO - Tokenizing dataset into numpy format at /c/numpy_sft/ab-cd\nx - Dataset "
        "cached successfully. E"
    )
    there = (
        "x - INFO - Numpy SFT files already present at /c/numpy_sft/ab-cd; nothing to do.\nx "
        "- "
        "INFO - Dataset cached su"
    )
    assert evidence_of(f"{made}\n") == [
        {"what": "dataset_cache", "value": "built", "path": "/c/numpy_sft/ab-cd"}
    ]
    assert evidence_of(f"{there}\n") == [
        {"what": "dataset_cache", "value": "hit", "path": "/c/numpy_sft/ab-cd"}
    ]


def test_an_olmo_core_marker_without_metrics_is_no_logged_step() -> None:
    assert (
        of_kind(
            read("olmo_core", "x\tINFO\t[step=1/???,epoch=1]\nx\tINFO\t[step=2/???,epoch=1]\n"),
            "step",
        )
        == []
    )


def test_reward_modeling_panels() -> None:
    panel = (LOGS / "reward_modeling.log").read_text(encoding="utf-8")
    evaluation = panel.replace("train ", "eval  ")
    events = read("reward_modeling", panel + evaluation + panel)
    assert of_kind(events, "step")[0] == {
        "step": 1,
        "episode": 16.0,
        "epoch": 0.04,
        "loss": 0.69,
        "lr": 3e-06,
        "rewards/accuracy": 0.5,
        "rewards/chosen": 0.01,
        "rewards/rejected": -0.01,
        "rewards/margin": 0.02,
    }
    assert [step["step"] for step in of_kind(events, "step")] == [1, 2]


def test_a_panel_that_never_ends_is_let_go() -> None:
    assert read("reward_modeling", "╭── Metrics ──╮\n" + "│ x │\n" * 1000 + "╰──╯\n") == []


def test_an_unknown_trainer_has_no_phases() -> None:
    assert read("nobody", "***** Running training *****\n  Step: 1, LR: 1, Loss: 2, TPS: 3\n") == []
