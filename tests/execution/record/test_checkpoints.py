"""A checkpoint is complete by its content, not by its mark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from launch.config.schema import Family
from launch.execution.record.checkpoints import Layout, find_checkpoints
from tests.execution.files import cut, deepspeed, model, saved_state, torch_file, trl_checkpoint

ONE = Layout(Family.open_instruct, 1, None)
TRL = Layout(Family.trl, 1, None)


def test_order_and_completeness(tmp_path: Path) -> None:
    for step in (5, 20, 100):
        saved_state(tmp_path / f"step_{step}")
    (tmp_path / "step_120").mkdir()
    (tmp_path / "step_120" / "COMPLETED").touch()
    (tmp_path / "step_20.tmp").mkdir()
    saved_state(tmp_path / "epoch_3")
    model(tmp_path)
    checkpoints = find_checkpoints(tmp_path, ONE)
    assert [(checkpoint.path.name, checkpoint.complete) for checkpoint in checkpoints] == [
        ("epoch_3", True),
        ("step_20.tmp", False),
        ("step_5", True),
        ("step_20", True),
        ("step_100", True),
        ("step_120", False),
    ]
    assert checkpoints[-1].marked
    assert find_checkpoints(tmp_path / "nothing", ONE) == []


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl"]
)
@pytest.mark.parametrize("damage", [cut, Path.unlink])
def test_every_file_counts(tmp_path: Path, name: str, damage: Callable[[Path], object]) -> None:
    damage(saved_state(tmp_path / "step_1") / name)
    (tmp_path / "step_1" / "COMPLETED").touch()
    [checkpoint] = find_checkpoints(tmp_path, ONE)
    assert not checkpoint.complete
    assert checkpoint.marked


@pytest.mark.parametrize(("zero_stage", "ranks"), [(None, 2), (2, 2), (3, 4)])
def test_every_rank_counts(tmp_path: Path, zero_stage: int | None, ranks: int) -> None:
    saved_state(tmp_path / "step_1", ranks, zero_stage)
    [checkpoint] = find_checkpoints(tmp_path, Layout(Family.open_instruct, ranks, zero_stage))
    assert checkpoint.complete, checkpoint.faults
    for width in (ranks - 1, ranks + 1):  # a checkpoint made at another width
        [checkpoint] = find_checkpoints(tmp_path, Layout(Family.open_instruct, width, zero_stage))
        assert f"found {ranks} random_states_*.pkl, expected {width}" in checkpoint.faults
    if zero_stage:
        next((tmp_path / "step_1" / "pytorch_model").glob("*rank_1_*optim_states.pt")).unlink()
        [checkpoint] = find_checkpoints(tmp_path, Layout(Family.open_instruct, ranks, zero_stage))
        assert not checkpoint.complete


def test_trl(tmp_path: Path) -> None:
    for step in (2, 4, 6, 8, 10):
        trl_checkpoint(tmp_path / f"checkpoint-{step}", step)
    (tmp_path / "checkpoint-4" / "trainer_state.json").write_text('{"global_step": 3}')
    (tmp_path / "checkpoint-6" / "trainer_state.json").unlink()
    cut(tmp_path / "checkpoint-8" / "model.safetensors")
    (tmp_path / "checkpoint-10" / "rng_state.pth").unlink()
    checkpoints = find_checkpoints(tmp_path, TRL)
    assert [checkpoint.number for checkpoint in checkpoints if checkpoint.complete] == [2]
    assert [checkpoint.faults[0] for checkpoint in checkpoints if not checkpoint.complete] == [
        "trainer_state.json belongs to step 3",
        "trainer_state.json is missing or unreadable",
        checkpoints[3].faults[0],
        "found 0 rng_state*.pth, expected 1",
    ]


def test_trl_under_deepspeed(tmp_path: Path) -> None:
    folder = trl_checkpoint(tmp_path / "checkpoint-4", 4)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (folder / name).unlink()
    for rank in (0, 1):
        torch_file(folder / f"rng_state_{rank}.pth")
    deepspeed(folder, "global_step4", 2, 3)
    [checkpoint] = find_checkpoints(tmp_path, Layout(Family.trl, 2, 3))
    assert checkpoint.complete, checkpoint.faults
    (folder / "latest").write_text("global_step2")
    [checkpoint] = find_checkpoints(tmp_path, Layout(Family.trl, 2, 3))
    assert checkpoint.faults == ("DeepSpeed's `latest` is missing",)


@pytest.mark.parametrize(
    "name", ["optimizer.pt", "rng_state.pth", "scaler.pt", "global_step10/rank0.pkl", ".metadata"]
)
def test_a_checkpoint_with_a_pickle_that_imports_anything_else_is_not_resumed(
    tmp_path: Path, name: str
) -> None:
    folder = trl_checkpoint(tmp_path / "checkpoint-10", 10)
    layout = Layout(Family.trl, 1, None)
    assert find_checkpoints(tmp_path, layout)[0].complete
    (folder / name).parent.mkdir(exist_ok=True)
    # os.system("true") of pickle's protocol 2
    (folder / name).write_bytes(b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R.")
    [checkpoint] = find_checkpoints(tmp_path, layout)
    assert not checkpoint.complete and "posix.system" in checkpoint.faults[0]
