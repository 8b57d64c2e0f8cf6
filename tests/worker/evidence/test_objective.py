"""The loss that a trainer computes: open-instruct's own functions, and the attributes of TRL's trainers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")

from launch.worker.evidence import Evidence  # noqa: E402
from launch.worker.evidence.objective import check_dpo_loss, check_trl  # noqa: E402

REQUESTED = {"beta": "5.0", "loss": "dpo_norm"}


def dpo_loss(
    settings: Any, batch: Any, chosen: Any, rejected: Any, cache: Any
) -> tuple[Any, Any, Any]:
    """DPO's loss and rewards, as open-instruct computes them (dpo_utils.py:523-563)."""
    rewards = settings.beta * (chosen - cache["chosen"])
    rejected_rewards = settings.beta * (rejected - cache["rejected"])
    loss = torch.nn.functional.softplus(rejected_rewards - rewards)
    return loss, rewards, rejected_rewards


def check(
    compute: Any = dpo_loss,
    *,
    beta: float = 5.0,
    loss_type: str = "dpo_norm",
    smoothing: float = 0.0,
) -> dict[str, Evidence]:
    settings = SimpleNamespace(beta=beta, loss_type=loss_type, label_smoothing=smoothing)
    drawn = torch.Generator().manual_seed(0)
    logps = [-torch.rand(4, generator=drawn).bfloat16() for _ in range(4)]
    cache = {"chosen": logps[2].float(), "rejected": logps[3].float()}
    arguments = (settings, {}, logps[0], logps[1], cache)
    return {item.what: item for item in check_dpo_loss(compute, arguments, {}, REQUESTED)}


def test_the_loss_of_dpo_is_proven_by_what_it_returns() -> None:
    found = check()
    assert {name: (item.value, item.verdict) for name, item in found.items()} == {
        "beta": (5.0, "proven"),
        "loss": ("dpo_norm", "proven"),
    }


def halve_beta(settings: Any, *arguments: Any) -> Any:
    return dpo_loss(SimpleNamespace(beta=settings.beta / 2), *arguments)


def hinge(settings: Any, batch: Any, *arguments: Any) -> Any:
    _, rewards, rejected = dpo_loss(settings, batch, *arguments)
    return torch.relu(1 - (rewards - rejected)), rewards, rejected


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"beta": 2.5}, "beta", 2.5),
        ({"compute": halve_beta}, "beta", 2.5),
        ({"loss_type": "simpo"}, "loss", "simpo"),
        ({"compute": hinge}, "loss", "dpo_norm"),
    ],
)
def test_another_loss_is_refuted(options: dict[str, Any], name: str, value: Any) -> None:
    found = check(**options)
    refuted = {what: item.value for what, item in found.items() if item.verdict == "refuted"}
    assert refuted == {name: value}


def test_label_smoothing_is_another_formula_and_not_another_loss() -> None:
    found = check(hinge, smoothing=0.1)
    assert found["loss"].verdict == "proven"


def test_open_instructs_own_loss_has_the_beta_that_it_is_given() -> None:
    dpo_utils = pytest.importorskip("open_instruct.dpo_utils", reason="no checkout on the path")
    settings = SimpleNamespace(
        beta=5.0, loss_type=dpo_utils.DPOLossType.dpo_norm, label_smoothing=0.0
    )
    index = torch.arange(3)
    logps = {"chosen_logps": -torch.rand(3) * 9, "rejected_logps": -torch.rand(3) * 9}
    arguments = (settings, {"index": index}, -torch.rand(3) * 9, -torch.rand(3) * 9, _Cache(logps))
    found = check_dpo_loss(dpo_utils.compute_loss, arguments, {}, REQUESTED)
    assert [(item.what, item.verdict) for item in found] == [("beta", "proven"), ("loss", "proven")]


class _Cache(dict[str, Any]):
    """Reference log-probabilities by the index of a pair, as open-instruct's TensorCache."""

    def __getitem__(self, index: Any) -> Any:
        return {name: values[index] for name, values in self.items()}


@pytest.mark.parametrize(
    ("attributes", "requested", "refuted"),
    [
        ({"beta": 0.1, "loss_types": ["sigmoid"]}, {"beta": "0.1", "loss": "sigmoid"}, {}),
        ({"beta": 0.05, "loss_types": ["sigmoid"]}, {"beta": "0.1"}, {"beta": 0.05}),
        ({"beta": 0.1, "loss_types": ["ipo"]}, {"loss": "sigmoid"}, {"loss": "ipo"}),
        ({"loss_types": []}, {}, {}),
    ],
)
def test_a_preference_trainer_of_trl_shows_its_loss(
    attributes: dict[str, Any], requested: dict[str, str], refuted: dict[str, Any]
) -> None:
    found = check_trl(SimpleNamespace(**attributes), requested)
    assert {item.what for item in found} == requested.keys()
    assert {item.what: item.value for item in found if item.verdict != "proven"} == refuted


def test_a_refusal_names_the_attribute_of_trls_trainer() -> None:
    """The entry trains with a class of its own, which nobody knows."""
    trl = pytest.importorskip("trl", reason="the `train` dependencies are not installed")

    class Entry(trl.DPOTrainer):  # type: ignore[misc]
        beta = 2.5

        def __init__(self) -> None:
            pass

    (found,) = check_trl(Entry(), {"beta": "5.0"})
    finding = found.finding(())
    assert finding is not None
    assert finding.id == "refuted_beta"
    assert all(part in finding.message for part in ("5.0", "2.5", "DPOTrainer.beta"))


def test_a_trainer_of_trl_without_a_beta_proves_none() -> None:
    (found,) = check_trl(SimpleNamespace(), {"beta": "0.1"})
    assert found.verdict == "unproven"


GRPO = {
    "num_generations": 4,
    "temperature": 0.7,
    "beta": 0.0,
    "epsilon_low": 0.2,
    "max_completion_length": 64,
    "loss_type": "dapo",
}
SAMPLED = {
    "temperature": "0.7",
    "kl_beta": "0.0",
    "clip_range": "0.2",
    "response_length": "64",
    "loss": "dapo",
}


@pytest.mark.parametrize(
    ("attribute", "value", "name"),
    [
        ("temperature", 1.0, "temperature"),
        ("beta", 0.05, "kl_beta"),
        ("epsilon_low", 0.3, "clip_range"),
        ("max_completion_length", 63, "response_length"),
        ("loss_type", "grpo", "loss"),
    ],
)
def test_a_trainer_of_grpo_shows_how_it_samples_and_clips(
    attribute: str, value: Any, name: str
) -> None:
    same = check_trl(SimpleNamespace(**GRPO), SAMPLED)
    assert {item.what: item.verdict for item in same} == dict.fromkeys(SAMPLED, "proven")
    other = check_trl(SimpleNamespace(**{**GRPO, attribute: value}), SAMPLED)
    assert [item.what for item in other if item.verdict == "refuted"] == [name]


KTO = {
    "calculate_KL": True,
    "beta": 0.1,
    "loss_type": "kto",
    "desirable_weight": 1.0,
    "undesirable_weight": 2.6,
}
WEIGHED = {"beta": "0.1", "loss": "kto", "desirable_weight": "1.0", "undesirable_weight": "2.6"}


@pytest.mark.parametrize(
    ("attribute", "value", "name"),
    [
        ("beta", 0.5, "beta"),
        ("loss_type", "apo_zero_unpaired", "loss"),
        ("desirable_weight", 1.5, "desirable_weight"),
        ("undesirable_weight", 1.0, "undesirable_weight"),
    ],
)
def test_what_the_loss_of_kto_reads(attribute: str, value: object, name: str) -> None:
    same = check_trl(SimpleNamespace(**KTO), WEIGHED)
    assert {item.what: item.verdict for item in same} == dict.fromkeys(WEIGHED, "proven")
    other = check_trl(SimpleNamespace(**{**KTO, attribute: value}), WEIGHED)
    assert [item.what for item in other if item.verdict == "refuted"] == [name]


def test_without_a_trainer_of_trl_nothing_is_found() -> None:
    assert check_trl(None, SAMPLED) == []
