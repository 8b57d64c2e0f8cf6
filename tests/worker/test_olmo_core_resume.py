"""What the patches for stopping and resuming OLMo-core's trainers do, part by part; real runs are in
tests/integration/test_olmo_core_resume.py.
"""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from launch.worker.channel import EventWriter
from launch.worker.patches import RESUME_PATCHES, PatchContext, PatchError, olmo_core_resume
from launch.worker.trainer import TrainerProgram


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """OLMo-core's Trainer, whose methods are put back after the test."""
    train = pytest.importorskip(
        "olmo_core.train", reason="the `open-instruct` dependencies are not installed"
    )
    for name in ("record_metric", "_handle_os_signal", "load_checkpoint"):
        monkeypatch.setattr(train.Trainer, name, getattr(train.Trainer, name))
    return train.Trainer


def context(value: str | None = None) -> PatchContext:
    program = TrainerProgram("olmo_core_finetune.py", None, ())
    return PatchContext(program, EventWriter(None, 0), value)


def test_the_metric_of_a_save_in_the_background_is_left_out_alone(trainer: Any) -> None:
    olmo_core_resume.ASYNC_SAVES.apply(context())
    run = SimpleNamespace(global_step=3, _metrics={}, _metrics_reduce_type={})
    for name in ("checkpoint/save_async_duration_s", "train/CE loss"):
        trainer.record_metric(run, name, 1.5)
    assert list(run._metrics[3]) == ["train/CE loss"]


def test_a_rank_ends_at_the_first_signal(trainer: Any) -> None:
    olmo_core_resume.SIGNALS.apply(context())
    child = os.fork()
    if not child:
        signal.signal(signal.SIGTERM, lambda *at: trainer._handle_os_signal(None, *at))
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM


def test_another_checkpoint_than_the_expected_one_ends_the_rank(
    trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(trainer, "load_checkpoint", lambda _, dir: loaded.append(str(dir)))
    olmo_core_resume.RESUME.apply(context("step4"))

    def run_of(step: int) -> Any:
        latest = SimpleNamespace(latest_checkpoint=lambda folder: f"{folder}/step{step}")
        return SimpleNamespace(save_folder="/run/model", checkpointer=latest)

    trainer.load_checkpoint(run_of(4), "/run/model")
    trainer.load_checkpoint(run_of(6), "/base")  # the weights that a run starts from
    with pytest.raises(PatchError, match="from step6, not from step4"):
        trainer.load_checkpoint(run_of(6), "/run/model")
    assert loaded == ["/run/model", "/base"]


def test_the_patch_of_a_resumed_run_is_known_as_such() -> None:
    assert olmo_core_resume.RESUME.id in RESUME_PATCHES and olmo_core_resume.RESUME.takes_value
