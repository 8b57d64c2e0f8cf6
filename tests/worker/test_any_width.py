"""What accelerate saved at one width, read at another: the names of weights, the schedule's step,
the count of micro batches and the rows that are left.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from launch.worker.patches.resume import _load_at_any_width, _match_names, move_schedule

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
    schedule._last_lr = [1 - 12 * ranks / 100]
    optimizer.param_groups[0]["lr"] = 1 - 12 * ranks / 100
    accelerator.step = 3  # at an accumulation of 3, where the optimizer has stepped
    folder = tmp_path / "step_12"
    accelerator.save_state(str(folder))
    for rank in range(1, ranks):
        shutil.copy(folder / "random_states_0.pkl", folder / f"random_states_{rank}.pkl")
    schedule.last_epoch = 0
    accelerator.load_state(str(folder))
    assert (schedule.last_epoch, accelerator.step) == (12, 0)
    assert prepared[2].get_last_lr() == [prepared[1].param_groups[0]["lr"]]
    assert prepared[1].param_groups[0]["lr"] == pytest.approx(1 - 12 / 100)
    prepared[1].step()
    prepared[2].step()
    assert prepared[2].get_last_lr() == pytest.approx([1 - 13 / 100])


# Three epochs of 80 rows in steps of 12, as finetune.py:684-704 plans them for a number of ranks: the
# steps of the schedule, 3 x ceil(ranks x 80 / 12), those that warm up, int(0.03 x steps), and the
# rate of step 11 as a share of the peak.
SCHEDULES = {1: (21, 0, 11 / 21), 2: (42, 1, 22 / 41), 4: (81, 2, 41 / 79)}


def schedule_of(ranks: int) -> Any:
    """The schedule of a number of ranks, of an optimizer whose second group has half the rate."""
    transformers = pytest.importorskip("transformers.optimization")
    steps, warmup, _ = SCHEDULES[ranks]
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in (2e-3, 1e-3)]
    optimizer = torch.optim.AdamW(groups)
    return transformers.get_linear_schedule_with_warmup(optimizer, warmup, steps)


@pytest.mark.parametrize("read", SCHEDULES)
@pytest.mark.parametrize("written", SCHEDULES)
def test_the_next_step_has_the_rate_of_the_schedule_of_this_width(written: int, read: int) -> None:
    before, after = schedule_of(written), schedule_of(read)
    for _ in range(10 * written):
        before.optimizer.step()
        before.step()
    assert before.get_last_lr()[0] == pytest.approx(2e-3 * SCHEDULES[written][2])
    after.optimizer.load_state_dict(before.optimizer.state_dict())
    after.load_state_dict(before.state_dict())
    move_schedule(after, 10 * read)
    share = SCHEDULES[read][2]
    assert after.get_last_lr() == pytest.approx([2e-3 * share, 1e-3 * share])
    assert [group["lr"] for group in after.optimizer.param_groups] == after.get_last_lr()
    whole = schedule_of(read)
    for _ in range(10 * read + 1):
        whole.optimizer.step()
        whole.step()
    after.optimizer.step()
    after.step()
    assert after.get_last_lr() == whole.get_last_lr()


ROWS, GLOBAL = 84, 12  # an epoch of seven steps


def rows_of_steps(ranks: int, per_device: int, after: int = 0) -> list[list[int]]:
    """The rows of each step of an epoch, as accelerate deals them to the ranks and skips those of
    the steps before a checkpoint.
    """
    loading = pytest.importorskip("accelerate.data_loader")
    accumulation = GLOBAL // (ranks * per_device)
    by_rank = []
    for rank in range(ranks):
        order = torch.utils.data.RandomSampler(
            range(ROWS), generator=torch.Generator().manual_seed(1)
        )
        batches = torch.utils.data.BatchSampler(order, per_device, drop_last=False)
        own = loading.BatchSamplerShard(batches, ranks, rank)
        by_rank.append(list(loading.SkipBatchSampler(own, after * accumulation)))
    steps = []
    for first in range(0, len(by_rank[0]), accumulation):
        rows: list[int] = []
        for micro_batches in by_rank:
            for micro_batch in micro_batches[first : first + accumulation]:
                rows += micro_batch
        steps.append(sorted(rows))
    return steps


@pytest.mark.parametrize("after", [1, 3, 6])
@pytest.mark.parametrize(
    ("before", "now"), [((1, 3), (2, 3)), ((2, 2), (1, 6)), ((2, 3), (4, 1)), ((4, 3), (2, 1))]
)
def test_the_epoch_of_two_widths_has_every_row_once(
    before: tuple[int, int], now: tuple[int, int], after: int
) -> None:
    whole = rows_of_steps(1, GLOBAL)
    resized = [*rows_of_steps(*before)[:after], *rows_of_steps(*now, after=after)]
    assert resized == whole
    rows = [row for step in resized for row in step]
    assert sorted(rows) == list(range(ROWS))
