"""The width of a run: its ranks and their device."""

from __future__ import annotations

from dataclasses import dataclass

from launch.config.origins import Origin, Origins
from launch.config.schema import Device, RootConfig
from launch.errors import Problem, UserError


def require_one_machine(config: RootConfig) -> None:
    """Reject a plan for several nodes, for the verbs that start processes on this machine.

    Raises UserError: several_nodes.
    """
    if config.nodes > 1:
        message = f"this command runs on one machine, got nodes={config.nodes}"
        cure = "`python -m launch submit` with the same overrides submits a Slurm job"
        raise UserError(Problem("several_nodes", message, "nodes", cure))


@dataclass(frozen=True)
class Width:
    """The ranks of a run: one process each, on a GPU or on the CPU."""

    device: Device
    world_size: int  # ranks of all nodes
    nodes: int = 1

    @property
    def local(self) -> int:
        """Ranks of one node."""
        return self.world_size // self.nodes

    def __str__(self) -> str:
        """Return `gpu8` on one node, `gpu2x8` on two."""
        several = f"{self.nodes}x" if self.nodes > 1 else ""
        return f"{'cpu' if self.device == Device.cpu else 'gpu'}{several}{self.local}"


def resolve_width(config: RootConfig, origins: Origins) -> Width:
    """Resolve `nodes`, `gpus`, `device` and `processes` into a width; one GPU when none is set.

    `gpus` and `processes` count those of one node. `gpus=0` is short for one CPU process. `gpus=N` on the command line
    wins over a stage's own `device: cpu`. Raises UserError: device_conflict.
    """
    gpus, device, processes = config.gpus, config.device, config.processes
    if gpus:
        if device == Device.cpu and origins.of("device").origin == Origin.override:
            cure = "set device=cpu processes=N, or gpus=N"
            raise UserError(Problem("device_conflict", f"device=cpu conflicts with gpus={gpus}", None, cure))
        device = Device.cuda
    elif gpus == 0:
        if device == Device.cuda:
            message = "device=cuda needs gpus=1 or more, got gpus=0"
            raise UserError(Problem("device_conflict", message, origins.of("gpus").where))
        device = Device.cpu
    if device == Device.cpu:
        return Width(Device.cpu, (processes or 1) * config.nodes, config.nodes)
    if processes is not None:
        cure = f"set gpus={processes}, or device=cpu processes={processes}"
        message = f"processes={processes} counts CPU processes, and the device is cuda"
        raise UserError(Problem("device_conflict", message, "override processes", cure))
    return Width(Device.cuda, (gpus or 1) * config.nodes, config.nodes)
