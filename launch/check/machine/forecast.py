"""The memory forecast of a plan on the machine that it was made on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from launch.config.schema import Device
from launch.host.nvidia import Gpu, find_gpus
from launch.planning.estimate.cards import card_named
from launch.planning.estimate.forecast import CardMemory, MemoryForecast, forecast_memory
from launch.planning.lengths import load_lengths
from launch.planning.plan import Plan

_MIB = 1 << 20
_GIB = 1 << 30


def forecast_on_machine(plan: Plan) -> MemoryForecast | None:
    """Return the forecast of a plan for GPUs; None for one on a CPU."""
    if plan.parallel.width.device != Device.cuda:
        return None
    lengths, environ, flash = load_lengths(plan.lengths_file), plan.machine.environ, plan.machine.has_flash_attention
    return forecast_memory(plan, environ, card=card_memory(plan, environ), lengths=lengths, flash=flash)


def card_memory(plan: Plan, environ: Mapping[str, str]) -> CardMemory | None:
    """Return the memory of the cards that the plan is for, None when it is unknown.

    It is cluster.gpu_memory, else that of the smallest card in this machine, else the data sheet's of cluster.gpu_type.
    """
    cluster = plan.config.cluster
    if cluster.gpu_memory is not None:
        return CardMemory(cluster.gpu_memory, "cluster.gpu_memory")
    if smallest := smallest_card(find_gpus(environ).seen):
        return smallest
    card = card_named(cluster.gpu_type or "")
    return CardMemory(card.memory_gb * 1e9 / _GIB, f"{card.name}'s data sheet") if card else None


def smallest_card(gpus: Iterable[Gpu]) -> CardMemory | None:
    """Return the memory of the smallest of these GPUs; None where none reports it."""
    sizes = [(gpu.total, gpu.name) for gpu in gpus if gpu.total]
    return CardMemory(min(sizes)[0] * _MIB / _GIB, min(sizes)[1]) if sizes else None
