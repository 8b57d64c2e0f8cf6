"""What accelerate saved at one width, read at another: the names of weights, the schedule's step and
the count of micro batches.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from launch.worker.patches.resume import _load_at_any_width, _match_names

torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")


def wrapped(model: Any) -> Any:
    """A model below the attribute that DistributedDataParallel has it in."""
    wrapper = torch.nn.Module()
    wrapper.module = model
    return wrapper


@pytest.mark.parametrize("is_saved_wrapped", [True, False])
@pytest.mark.parametrize("is_wrapped", [True, False])
def test_weights_are_found_with_and_without_the_wrapper_of_ddp(
    tmp_path: Path, is_saved_wrapped: bool, is_wrapped: bool
) -> None:
    from safetensors.torch import load_model, save_model

    saved, model = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    file = tmp_path / "model.safetensors"
    save_model(wrapped(saved) if is_saved_wrapped else saved, str(file))
    load_model(_match_names(wrapped(model) if is_wrapped else model, file), file)
    assert torch.equal(saved.weight, model.weight)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_schedule_and_the_micro_batches_are_those_of_this_width(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    accelerate = pytest.importorskip("accelerate")
    for owner, name in (
        (accelerate.Accelerator, "load_state"),
        (accelerate.checkpointing, "load_model"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # as before, after this test
    _load_at_any_width()
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 100)
    prepared = accelerator.prepare(model, optimizer, schedule)
    schedule.last_epoch = 12 * ranks  # after 12 steps, each counted by every rank
    accelerator.step = 3  # at an accumulation of 3, where the optimizer has stepped
    folder = tmp_path / "step_12"
    accelerator.save_state(str(folder))
    for rank in range(1, ranks):
        shutil.copy(folder / "random_states_0.pkl", folder / f"random_states_{rank}.pkl")
    schedule.last_epoch = 0
    accelerator.load_state(str(folder))
    assert (schedule.last_epoch, accelerator.step) == (12, 0)
    prepared[1].step()
    prepared[2].step()
    assert prepared[2].get_last_lr() == pytest.approx([1 - 13 / 100])
