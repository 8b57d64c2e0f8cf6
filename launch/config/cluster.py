"""The keys of `cluster=`: how one Slurm cluster wants to be asked. configs/tulu/cluster/slurm.yaml has the defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class GpuSpelling(StrEnum):
    """The option of sbatch that a cluster takes GPUs by; all three mean the GPUs of one node here."""

    gres = "gres"
    gpus_per_node = "gpus_per_node"
    gpus_per_task = "gpus_per_task"


class Container(StrEnum):
    """What runs the nodes' tasks in an image: srun with the pyxis plugin, or apptainer."""

    none = "none"
    pyxis = "pyxis"
    apptainer = "apptainer"


@dataclass
class ClusterConfig:
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None  # the limit: HH:MM:SS, D-HH or D-HH:MM:SS, in quotes; null: the partition's own
    constraint: str | None = None
    exclude: str | None = None  # nodes to keep away from, as Slurm writes them: n[1-3],n7
    reservation: str | None = None
    cpus_per_rank: int | None = 8  # null: not asked for, which gives the node's task a single CPU on most clusters
    memory: str | None = None  # of a node: 500G, or 0 for all of it; null: the partition's own
    exclusive: bool = False  # whole nodes
    gpus: GpuSpelling = GpuSpelling.gpus_per_node
    gpu_type: str | None = None  # h100: the type in front of the number
    gpu_memory: float | None = None  # GiB of one GPU, for `plan`; null: what nvidia-smi says, or gpu_type's data sheet
    options: list[str] = field(default_factory=list)  # further options of sbatch: --licenses=scratch
    modules: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)  # lines of bash to run first on the first node
    interface: str | None = None  # the network interface of NCCL and gloo: ib0
    env: dict[str, str] = field(default_factory=dict)  # NCCL settings and others, exported to the ranks
    container: Container = Container.none
    image: str | None = None
    mounts: list[str] = field(default_factory=list)  # of the container, SOURCE:TARGET
    python: str | None = None  # the launcher's interpreter on the nodes; null: the one that submits
    shared: list[str] = field(default_factory=list)  # folders that all nodes see; empty: not checked
    heartbeat: float = 20.0  # seconds of silence after which a node counts as lost; 0: never
    warn_before: int = 120  # seconds ahead of the time limit at which Slurm warns the job (USR2), which ends; 0: never
    requeues: int = 5  # how often a job is started again after its time limit or the loss of a node; 0: never
    array_limit: int | None = None  # tasks of a --multirun's array that run at once; null: all
    tokenize_partition: str | None = None  # of the job that tokenises ahead of the training; null: the same
    tokenize_time: str | None = None  # its limit; null: `time`
    tokenize_cpus: int | None = None  # its CPUs; null: as many as a node of the training has
