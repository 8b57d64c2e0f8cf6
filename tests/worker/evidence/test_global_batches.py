"""The dealing is proven by the tokens of the model's inputs, the weighting by a loss that was
weighted.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from launch.worker.evidence.batches import ForwardInputs, check_averaging, check_balanced
from launch.worker.evidence.trainer_objects import TrainerObjects
from launch.worker.global_batches import BatchLayout, GlobalBatchSampler


def subject_with(*, balanced: bool | None, padded: bool = False, **more: Any) -> TrainerObjects:
    """A run whose loader deals, or (None) has upstream's sampler."""
    batches: Any = range(4)
    if balanced is not None:
        batches = GlobalBatchSampler(range(4), BatchLayout(1, 0, 2, 2, padded), [5, 5, 9, 1])
        batches.balanced = balanced
        list(batches)
    loader = SimpleNamespace(
        batch_sampler=SimpleNamespace(batch_sampler=SimpleNamespace(sampler=batches))
    )
    return TrainerObjects(None, dataloader=loader, **more)


def inputs_of(tokens: int) -> ForwardInputs:
    return ForwardInputs(frozenset({"input_ids"}), 1, tokens, 0, 2)


@pytest.mark.parametrize(
    ("balanced", "first", "value", "verdict"),
    [
        (True, inputs_of(10), "true", "proven"),
        (True, inputs_of(11), "false", "refuted"),
        (True, None, None, "unproven"),
        (False, inputs_of(10), "false", "refuted"),
        (None, inputs_of(10), "false", "refuted"),
    ],
)
def test_balanced(
    balanced: bool | None, first: ForwardInputs | None, value: str | None, verdict: str
) -> None:
    finding = check_balanced(subject_with(balanced=balanced), first).compare("true")
    assert (finding.what, finding.value, finding.verdict) == ("balanced", value, verdict)


@pytest.mark.parametrize(("pairs", "verdict"), [(True, "proven"), (False, "refuted")])
def test_the_halves_of_pairs_by_themselves(pairs: bool, verdict: str) -> None:
    objects = subject_with(balanced=True, padded=True)
    objects.dataloader.batch_sampler.batch_sampler.sampler.has_pairs = pairs
    chosen = ForwardInputs(frozenset({"input_ids"}), rows=2, tokens=5, padding=0, documents=None)
    finding = check_balanced(objects, chosen).compare("true")
    assert finding.verdict == verdict


@pytest.mark.parametrize("averaging", ["tokens", "micro_batch_means"])
@pytest.mark.parametrize("own", [True, False])
def test_loss_averaging_of_transformers_trainer(averaging: str, own: bool) -> None:
    trainer = SimpleNamespace(model_accepts_loss_kwargs=own)
    finding = check_averaging(subject_with(balanced=None, trainer=trainer)).compare(averaging)
    assert finding.verdict == ("proven" if own == (averaging == "tokens") else "refuted")


@pytest.mark.parametrize("averaging", ["tokens", "sum"])
def test_loss_averaging_by_the_patch(averaging: str) -> None:
    torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    from launch.worker.patches.batches import LossWeighter

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return SimpleNamespace(loss=x.sum())

    model = Model()
    LossWeighter(averaging).follow(model)
    wrapped = torch.nn.Sequential(model)

    def value() -> str:
        finding = check_averaging(subject_with(balanced=None, wrapped=wrapped)).compare(averaging)
        return f"{finding.value} {finding.verdict}"

    assert float(model(x=torch.ones(3)).loss) == 3  # an evaluation: no weight came with it
    assert value() == "micro_batch_means refuted"
    assert float(model(x=torch.ones(3), launch_weight=torch.tensor([0.5, 4.0])).loss) == 1.5
    assert float(model(x=torch.ones(3)).loss) == 3
    assert value() == f"{averaging} proven"
