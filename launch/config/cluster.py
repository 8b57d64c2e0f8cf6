"""The keys of `cluster=`: the settings of one Slurm cluster. configs/tulu/cluster/slurm.yaml has
the defaults.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from launch.config.ranges import COUNT, COUNT_OR_ZERO, HEARTBEAT, POSITIVE, SIGNAL_TIME


class GpuSpelling(StrEnum):
    """The option of sbatch that requests GPUs; all three mean the GPUs of one node here."""

    gres = "gres"
    gpus_per_node = "gpus_per_node"
    gpus_per_task = "gpus_per_task"


class Container(StrEnum):
    """How the nodes' tasks run in a container image: srun with the pyxis plugin, or apptainer."""

    none = "none"
    pyxis = "pyxis"
    apptainer = "apptainer"


@dataclass
class ClusterConfig:
    partition: str | None = None  # partition of the job (sbatch --partition); null: the default one
    account: str | None = None  # account that the job is charged to (--account)
    qos: str | None = None  # quality of service (--qos)
    # time limit: HH:MM:SS, D-HH or D-HH:MM:SS, in quotes; null: the partition's
    time: str | None = None
    constraint: str | None = None  # features that the nodes must have (--constraint)
    exclude: str | None = None  # nodes to avoid, in Slurm's notation: n[1-3],n7
    reservation: str | None = None  # reservation to run in (--reservation)
    # CPUs for each rank; null: not requested, which mostly gives the node's task a single one
    cpus_per_rank: int | None = COUNT.of(8)
    # memory of each node: 500G, or 0 for all of it; null: the partition's default
    memory: str | None = None
    exclusive: bool = False  # request whole nodes
    gpus: GpuSpelling = GpuSpelling.gpus_per_node  # option of sbatch that requests the GPUs
    gpu_type: str | None = None  # type of GPU to request, such as h100
    # memory of a GPU in GiB, for `plan`; null: what nvidia-smi reports here, or for a gpu_type
    gpu_memory: float | None = POSITIVE.of(None)
    # further options of sbatch, for example --licenses=scratch
    options: list[str] = field(default_factory=list)
    # environment modules that are loaded after `setup`
    modules: list[str] = field(default_factory=list)
    # lines of bash that run first, on the first node
    setup: list[str] = field(default_factory=list)
    interface: str | None = None  # network interface of NCCL and gloo, for example ib0
    # variables exported to the ranks, such as NCCL settings
    env: dict[str, str] = field(default_factory=dict)
    container: Container = Container.none  # what runs the nodes' tasks in an image
    image: str | None = None  # the image: a file, or an address that the container takes
    # folders that the container sees, SOURCE:TARGET
    mounts: list[str] = field(default_factory=list)
    python: str | None = None  # the launcher's interpreter on the nodes; null: the one that submits
    # folders that all nodes share; empty: not checked
    shared: list[str] = field(default_factory=list)
    # seconds without a heartbeat after which a node counts as lost; 0: never
    heartbeat: float = HEARTBEAT.of(20.0)
    # seconds before the time limit when Slurm signals the job (USR2); 0: never
    warn_before: int = SIGNAL_TIME.of(120)
    # maximum restarts of a job after its time limit or the loss of a node
    requeues: int = COUNT_OR_ZERO.of(5)
    # maximum restarts after a hardware fault, off its node; needs requeues above 0
    retries: int = COUNT_OR_ZERO.of(2)
    array_limit: int | None = COUNT.of(None)  # concurrent tasks of a sweep's array; null: all
    # partition of the job that tokenises before the training; null: the same
    tokenize_partition: str | None = None
    tokenize_time: str | None = None  # time limit of that job; null: `time`
    # CPUs of that job; null: as many as a node of the training
    tokenize_cpus: int | None = COUNT.of(None)
