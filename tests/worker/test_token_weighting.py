"""The collator that carries the weights: only for the samples that they were computed for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from launch.worker.global_batches import BatchLayout, GlobalBatchSampler
from launch.worker.patches import PatchError
from launch.worker.patches.batches import LossWeighter, WeightingCollator

pytest.importorskip("torch", reason="the `train` dependencies are not installed")


def collator() -> WeightingCollator:
    """Of one rank with two micro batches: samples of 3 and 5 tokens, of which 1 and 3 carry loss; then 2 of 2."""
    batches = GlobalBatchSampler(range(3), BatchLayout(1, 0, 2, 2), [3, 5, 2])
    batches.loss_tokens = [1, 3, 2]
    assert list(batches) == [0, 1, 2]
    return WeightingCollator(lambda features: {"rows": len(features)}, batches)


def samples(*lengths: int) -> list[dict[str, list[int]]]:
    return [{"input_ids": [1] * length} for length in lengths]


def test_each_batch_gets_its_weight() -> None:
    weigh = collator()
    first, second = weigh(samples(3, 5)), weigh(samples(2))
    assert first["rows"] == 2
    assert (float(first["launch_weight"]), float(second["launch_weight"])) == pytest.approx((4 * 2 / 6, 2 * 2 / 6))


def test_a_micro_batch_without_a_token_that_counts_adds_nothing_and_no_nan() -> None:
    import torch

    class Model(torch.nn.Module):
        def forward(self, values: torch.Tensor) -> SimpleNamespace:
            return SimpleNamespace(loss=values.mean())

    model = Model()
    LossWeighter().follow(model)
    empty, full = torch.empty(0, requires_grad=True), torch.tensor([2.0, 4.0], requires_grad=True)
    loss = model(empty, launch_weight=torch.tensor(0.0)).loss + model(full, launch_weight=torch.tensor(0.5)).loss
    loss.backward()
    assert float(loss.detach()) == 1.5
    assert full.grad is not None and full.grad.tolist() == [0.25, 0.25]
    assert torch.isnan(model(empty, launch_weight=torch.tensor(1.0)).loss)  # a loss that should be one is not hidden


def test_other_samples_than_those_that_were_dealt_end_the_run() -> None:
    with pytest.raises(PatchError, match=r"has samples of \(5, 3\) tokens, but \(3, 5\) were dealt"):
        collator()(samples(5, 3))
    weigh = collator()
    weigh(samples(3, 5))
    weigh(samples(2))
    with pytest.raises(PatchError, match="it was not dealt"):
        weigh(samples(2))
