"""The rule of the GPU that a plan is for."""

from __future__ import annotations

from collections.abc import Iterator

from launch.config.schema import Device
from launch.errors import nearest
from launch.planning.estimate.cards import card_aliases, card_named
from launch.planning.rules.plan_rule import SettingsCase, plan_rule
from launch.rules.code import failed
from launch.worker.finding import Finding, Fix

_KEY = "cluster.gpu_type"


@plan_rule("unknown_gpu_type")
def named_card_is_known(case: SettingsCase) -> Iterator[Finding]:
    """A command line that names a kind of GPU wants to know what fits it, which is unknown without its
    memory. A cluster's file may have names of its own.
    """
    cluster = case.config.cluster
    name = cluster.gpu_type
    if name is None or cluster.gpu_memory is not None or case.parallel.width.device != Device.cuda:
        return
    if case.origins.overridden(_KEY) is None or card_named(name) is not None:
        return
    message = f"{_KEY}={name} is not a GPU whose memory is known"
    near = [card_aliases()[alias] for alias in nearest(name.lower(), card_aliases())]
    overrides = [f"{_KEY}={other}" for other in dict.fromkeys(near)]
    text = " or ".join(f"{{{place}}}" for place in range(len(overrides)))
    memory = "cluster.gpu_memory=GIB with the memory of one; `launch help gpus` lists the names"
    cure = Fix.of(f"set {text}, or {memory}" if overrides else f"set {memory}", *overrides)
    yield failed(message, cure, case.locate(_KEY))
