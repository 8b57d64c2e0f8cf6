"""The GPUs: there are enough of them, and nobody else uses them."""

from __future__ import annotations

from launch.check.machine.rule import Host, failed, passed, rule, skipped, warned
from launch.config.schema import Device
from launch.host.nvidia import Gpu, Gpus
from launch.planning.plan import Plan
from launch.worker.finding import Finding

_IN_USE_SHARE = 0.03  # of a card's memory; the driver itself takes up to some hundred MiB
_BUSY_PERCENT = 20.0


@rule("too_few_gpus")
def enough_gpus(plan: Plan, host: Host) -> Finding:
    """Each rank takes a GPU of its own; one GPU too few shows only when the last rank dies at its start."""
    width = plan.parallel.width
    if width.device != Device.cuda:
        return skipped("device=cpu")
    gpus = host.gpus or Gpus()
    seen = len(gpus.seen)
    if seen >= width.local:
        names = sorted({gpu.name for gpu in gpus.seen[: width.local]})
        return passed(f"{width.local} of {seen}: {', '.join(names)}, driver {gpus.seen[0].driver}")
    available = {0: "no GPU", 1: "one GPU"}.get(seen, f"{seen} GPUs")
    hidden = f" (CUDA_VISIBLE_DEVICES hides {len(gpus.present) - seen})" if len(gpus.present) > seen else ""
    needed = "one GPU rank" if width.local == 1 else f"{width.local} GPU ranks"
    reason = f": {gpus.why}" if gpus.why else hidden
    cure = "set gpus=0 for one CPU process (the demo stages), or use a machine with GPUs"
    return failed(
        f"the plan has {needed} and this machine has {available}{reason}",
        f"set gpus={seen}" if seen else cure,
    )


@rule("gpus_busy")
def gpus_are_free(plan: Plan, host: Host) -> Finding:
    """On a card that somebody else computes on, a run runs out of memory or slows every other rank down."""
    width = plan.parallel.width
    gpus = host.gpus or Gpus()
    selected = gpus.seen[: width.local]
    if width.device != Device.cuda or not selected:
        return skipped("device=cpu" if width.device != Device.cuda else gpus.why or "no GPU is visible")
    in_use = [gpu for gpu in selected if _is_in_use(gpu)]
    if in_use:
        free = [gpu.index for gpu in gpus.seen if not _is_in_use(gpu) and gpu.index]
        cure = "stop what runs there, or set allow=[gpus_busy]"
        if len(free) >= width.local:
            cure = f"export CUDA_VISIBLE_DEVICES={','.join(free[: width.local])} to use free ones; or {cure}"
        return failed("; ".join(_describe_use(gpu) for gpu in in_use), cure)
    busy = [gpu for gpu in selected if (gpu.utilisation or 0.0) >= _BUSY_PERCENT]
    if busy:
        facts = ", ".join(f"GPU {gpu.index} is {gpu.utilisation:.0f}% busy" for gpu in busy)
        return warned(f"{facts} and none of its processes is visible", "look from the host, outside of the container")
    used = max((gpu.used or 0.0) for gpu in selected)
    return passed(f"{len(selected)} idle, at most {used:.0f} MiB in use")


def _is_in_use(gpu: Gpu) -> bool:
    return bool(gpu.processes) or (gpu.used or 0.0) > _IN_USE_SHARE * (gpu.total or float("inf"))


def _describe_use(gpu: Gpu) -> str:
    used = f"{gpu.used or 0:.0f} of {gpu.total or 0:.0f} MiB in use"
    users = ", ".join(f"process {process.pid} ({process.name.rsplit('/', 1)[-1]})" for process in gpu.processes[:3])
    return f"GPU {gpu.index}: {used} by {users or 'a process that is not visible from here'}"
