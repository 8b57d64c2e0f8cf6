"""The collator that carries the weights: only for the samples that they were computed for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from launch.worker.global_batches import BatchLayout, GlobalBatchSampler
from launch.worker.patches import PatchError
from launch.worker.patches.batches import LossWeighter, WeightingCollator

pytest.importorskip("torch", reason="the `train` dependencies are not installed")


def collator(*, sums: bool = False) -> WeightingCollator:
    """Of one rank with two micro batches: samples of 3 and 5 tokens, of which 1 and 3 carry loss;
    then 2 of 2.
    """
    batches = GlobalBatchSampler(range(3), BatchLayout(1, 0, 2, 2), [3, 5, 2])
    batches.loss_tokens = [1, 3, 2]
    assert list(batches) == [0, 1, 2]
    return WeightingCollator(lambda features: {"rows": len(features)}, batches, sums=sums)


def samples(*lengths: int) -> list[dict[str, list[int]]]:
    return [{"input_ids": [1] * length} for length in lengths]


def test_each_batch_gets_its_weight() -> None:
    weigh = collator()
    first, second = weigh(samples(3, 5)), weigh(samples(2))
    assert first["rows"] == 2
    assert first["launch_weight"].tolist() == pytest.approx([4 * 2 / 6, 1])
    assert second["launch_weight"].tolist() == pytest.approx([2 * 2 / 6, 1])


def test_the_sum_scales_the_gradient_by_the_tokens_of_a_sample() -> None:
    """6 tokens carry loss, in a global batch of 4 samples, of which a last step may have fewer."""
    weigh = collator(sums=True)
    assert weigh(samples(3, 5))["launch_weight"].tolist() == pytest.approx([4 * 2 / 6, 6 / 4])
    assert weigh(samples(2))["launch_weight"].tolist() == pytest.approx([2 * 2 / 6, 6 / 4])


def mean_model(averaging: str) -> Any:
    """A model whose loss is the mean of what it gets, weighted."""
    import torch

    class Model(torch.nn.Module):
        def forward(self, values: torch.Tensor) -> SimpleNamespace:
            return SimpleNamespace(loss=values.mean())

    model = Model()
    LossWeighter(averaging).follow(model)
    return model


def test_a_scale_changes_the_gradient_and_not_the_loss() -> None:
    import torch

    model, values = mean_model("sum"), torch.tensor([2.0, 4.0], requires_grad=True)
    loss = model(values, launch_weight=torch.tensor([0.5, 8.0])).loss
    loss.backward()
    assert float(loss.detach()) == 1.5
    assert values.grad is not None and values.grad.tolist() == [2.0, 2.0]
    assert model.loss_averaging_for_launch == "sum"


def test_a_micro_batch_without_a_token_that_counts_adds_nothing_and_no_nan() -> None:
    import torch

    model = mean_model("tokens")
    empty, full = torch.empty(0, requires_grad=True), torch.tensor([2.0, 4.0], requires_grad=True)
    none, half = torch.tensor([0.0, 1.0]), torch.tensor([0.5, 1.0])
    loss = model(empty, launch_weight=none).loss + model(full, launch_weight=half).loss
    loss.backward()
    assert float(loss.detach()) == 1.5
    assert full.grad is not None and full.grad.tolist() == [0.25, 0.25]
    # a loss that should be one is not hidden
    assert torch.isnan(model(empty, launch_weight=torch.tensor([1.0, 1.0])).loss)


def test_other_samples_than_those_that_were_dealt_end_the_run() -> None:
    with pytest.raises(
        PatchError, match=r"has samples of \(5, 3\) tokens, but \(3, 5\) were assigned"
    ):
        collator()(samples(5, 3))
    weigh = collator()
    weigh(samples(3, 5))
    weigh(samples(2))
    with pytest.raises(PatchError, match="it was not assigned"):
        weigh(samples(2))
