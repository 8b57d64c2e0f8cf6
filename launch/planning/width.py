"""How many ranks, on what."""

from __future__ import annotations

from dataclasses import dataclass

from launch.config.origins import Origin, Origins
from launch.config.schema import Device, RootConfig
from launch.errors import Problem, UserError


def one_machine_only(config: RootConfig) -> None:
    """For the verbs that start processes of this machine. Raises UserError (`several_nodes`)."""
    if config.nodes > 1:
        cure = "`python -m launch submit` with the same words makes a Slurm job of it"
        raise UserError(Problem("several_nodes", f"nodes={config.nodes} is more than this machine", "nodes", cure))


@dataclass(frozen=True)
class Width:
    """The ranks of a run: `world_size` processes over all `nodes`, each on a GPU or on the CPU."""

    device: Device
    world_size: int
    nodes: int = 1

    @property
    def local(self) -> int:
        """Ranks of one node."""
        return self.world_size // self.nodes

    def __str__(self) -> str:
        """`gpu8` on one node, `gpu2x8` on two."""
        several = f"{self.nodes}x" if self.nodes > 1 else ""
        return f"{'cpu' if self.device == Device.cpu else 'gpu'}{several}{self.local}"


def resolve_width(config: RootConfig, origins: Origins) -> Width:
    """The width that `nodes`, `gpus`, `device` and `processes` ask for; one GPU when nothing is said.

    `gpus` and `processes` count those of one node. `gpus=0` is short for one CPU process. A stage's own `device: cpu`
    yields to `gpus=N` of the command line. Raises UserError (`bad_width`, `device_conflict`).
    """
    gpus, device, processes = config.gpus, config.device, config.processes
    for key, number, least in (("gpus", gpus, 0), ("processes", processes, 1), ("nodes", config.nodes, 1)):
        if number is not None and number < least:
            raise UserError(Problem("bad_width", f"{key}={number} is no width", origins.of(key).where, "say 1 or more"))
    if gpus:
        if device == Device.cpu and origins.of("device").origin == Origin.override:
            cure = "say device=cpu processes=N, or gpus=N"
            raise UserError(Problem("device_conflict", f"device=cpu and gpus={gpus} exclude each other", None, cure))
        device = Device.cuda
    elif gpus == 0:
        if device == Device.cuda:
            raise UserError(Problem("device_conflict", "device=cuda needs gpus=1 or more", origins.of("gpus").where))
        device = Device.cpu
    if device == Device.cpu:
        return Width(Device.cpu, (processes or 1) * config.nodes, config.nodes)
    if processes is not None:
        cure = f"say gpus={processes}, or device=cpu processes={processes}"
        raise UserError(Problem("device_conflict", "processes= counts CPU processes", "override processes", cure))
    return Width(Device.cuda, (gpus or 1) * config.nodes, config.nodes)
