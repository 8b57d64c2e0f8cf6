"""Checks what a trainer of preferences or rewards optimizes: its loss, DPO's beta, RLVR's sampling and clipping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import hooks
from . import Evidence
from .trainer_objects import class_name

BETA = "beta"
_LOSS = "loss"
# {setting of DPO: the attribute of TRL's DPOTrainer that its loss reads}
# (trl/trainer/dpo_trainer.py).
_OF_DPO = {BETA: "beta", _LOSS: "loss_types"}
# {setting of KTO: the attribute of TRL's KTOTrainer that its loss reads}
# (trl/trainer/kto_trainer.py).
_OF_KTO = {
    BETA: "beta",
    _LOSS: "loss_type",
    "desirable_weight": "desirable_weight",
    "undesirable_weight": "undesirable_weight",
}
# {setting of RLVR: the attribute of TRL's GRPOTrainer that its loss or its sampling reads}
# (trl/trainer/grpo_trainer.py).
_OF_RLVR = {
    "temperature": "temperature",
    "kl_beta": "beta",
    "clip_range": "epsilon_low",
    "response_length": "max_completion_length",
    _LOSS: "loss_type",
}
# Losses of open-instruct's DPO that are -log sigmoid of the difference of the two rewards.
_OF_MARGIN = ("dpo", "dpo_norm")
_TOLERANCE = 1e-6


def check_trl(trainer: Any, requested: Mapping[str, str]) -> list[Evidence]:
    """Return the evidence of the requested settings that the loss and the sampling of a TRL trainer
    read from its attributes.
    """
    if trainer is None:
        return []
    attributes = _OF_DPO
    if hasattr(trainer, "num_generations"):
        attributes = _OF_RLVR
    elif hasattr(trainer, "calculate_KL"):
        attributes = _OF_KTO
    evidence = []
    for name, attribute in attributes.items():
        if name not in requested:
            continue
        value = getattr(trainer, attribute, None)
        if isinstance(value, list | tuple):
            value = ",".join(value) or None
        how = f"{class_name(trainer)}.{attribute}"
        evidence.append(_compare(Evidence(name, value, how), requested[name]))
    return evidence


def _compare(evidence: Evidence, requested: str) -> Evidence:
    """Return the evidence with its verdict; numbers are compared as numbers."""
    if isinstance(evidence.value, int | float):
        return evidence.judge(requested, abs(evidence.value - float(requested)) <= _TOLERANCE)
    return evidence.compare(requested)


def watch_dpo_loss(
    requested: Mapping[str, str], report: Callable[[Sequence[Evidence]], None]
) -> None:
    """Check the loss of open-instruct's DPO when it is first computed (dpo_utils.py:645)."""
    if requested.keys().isdisjoint((BETA, _LOSS)):
        return
    from open_instruct import dpo_utils

    @hooks.replaces(dpo_utils, "compute_loss")
    def compute_and_check(compute: Any, *arguments: Any, **options: Any) -> Any:
        result = compute(*arguments, **options)
        dpo_utils.compute_loss = compute
        report(check_dpo_loss(compute, arguments, options, requested))
        return result


def check_dpo_loss(
    compute: Callable[..., Any],
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    requested: Mapping[str, str],
) -> list[Evidence]:
    """Return the evidence "beta" and "loss" on a loss function that was called with `arguments`.

    The function is called twice more, on the log-probabilities of the batch and on those of the
    chosen answers plus 1: a reward is beta times a log-probability, so it rises by beta. Without
    label smoothing, DPO's loss is -log sigmoid(chosen reward - rejected reward).
    """
    import torch

    settings, batch, chosen, rejected, *rest = arguments
    chosen = chosen.detach().double()
    rejected = rejected.detach().double()
    losses, rewards, rejected_rewards = compute(settings, batch, chosen, rejected, *rest, **options)
    _, raised, _ = compute(settings, batch, chosen + 1, rejected, *rest, **options)
    beta = float((raised - rewards).mean())
    name = str(settings.loss_type)
    found = []
    if BETA in requested:
        how = "dpo_utils.compute_loss: the rise of the rewards with a log-probability"
        value = float(f"{beta:.6g}")
        found.append(_compare(Evidence(BETA, value, how), requested[BETA]))
    if _LOSS in requested:
        how = "dpo_utils.compute_loss on the first pairs"
        holds = name == requested[_LOSS]
        if name in _OF_MARGIN and not settings.label_smoothing:
            due = torch.nn.functional.softplus(rejected_rewards - rewards)
            holds = holds and torch.allclose(losses.double(), due.double(), atol=_TOLERANCE)
        found.append(Evidence(_LOSS, name, how).judge(requested[_LOSS], holds))
    return found
