"""The ranks of a run: how many there are, and how they share the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launch import resources
from launch.config.origins import Origin, Origins
from launch.config.recipe_keys import Precision
from launch.config.schema import Buckets, Device, Family, Launcher, Mode, RootConfig, TrainerConfig
from launch.errors import refusal
from launch.worker.finding import Fix


def require_one_machine(config: RootConfig) -> None:
    """Reject a plan for several nodes, for the verbs that start processes on this machine.

    Raises UserError: several_nodes.
    """
    if config.nodes > 1:
        message = f"this command runs on one machine, got nodes={config.nodes}"
        cure = Fix.of("{0} with the same overrides submits a Slurm job", "$ launch submit")
        raise refusal("several_nodes", message, "nodes", cure)


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
        device = "cpu" if self.device == Device.cpu else "gpu"
        nodes = f"{self.nodes}x" if self.nodes > 1 else ""
        return f"{device}{nodes}{self.local}"


def resolve_width(config: RootConfig, origins: Origins) -> Width:
    """Resolve `nodes`, `gpus`, `device` and `processes` into a width; one GPU when none is set.

    `gpus` and `processes` count those of one node. `gpus=0` is short for one CPU process. `gpus=N`
    on the command line wins over a stage's own `device: cpu`. Raises UserError: device_conflict.
    """
    gpus = config.gpus
    device = config.device
    processes = config.processes
    if gpus:
        if device == Device.cpu and origins.of("device").origin == Origin.override:
            message = f"device=cpu conflicts with gpus={gpus}"
            on_cpu = f"device=cpu processes={gpus} gpus=null"
            cure = Fix.of("remove device=cpu, or set {1}", "~device", on_cpu)
            raise refusal("device_conflict", message, None, cure)
        device = Device.cuda
    elif gpus == 0:
        if device == Device.cuda:
            message = "device=cuda needs gpus=1 or more, got gpus=0"
            raise refusal("device_conflict", message, origins.of("gpus").where)
        device = Device.cpu
    if device == Device.cpu:
        return Width(Device.cpu, (processes or 1) * config.nodes, config.nodes)
    if processes is not None:
        message = f"processes={processes} counts CPU processes, and the device is cuda"
        on_gpus = f"gpus={processes} processes=null"
        on_cpu = f"device=cpu processes={processes}"
        cure = Fix.of("set {0}, or {1}", on_gpus, on_cpu)
        raise refusal("device_conflict", message, "override processes", cure)
    return Width(Device.cuda, (gpus or 1) * config.nodes, config.nodes)


_ZEROS = ("parallel=zero1", "parallel=zero2", "parallel=zero3")
_ZERO_STAGE = {Mode.zero1: 1, Mode.zero2: 2, Mode.zero3: 3, Mode.zero3_offload: 3}


@dataclass(frozen=True)
class Parallel:
    """How the ranks of a run share the model."""

    mode: Mode  # never `auto`
    width: Width
    precision: Precision
    buckets: Buckets = Buckets.usual

    @property
    def zero_stage(self) -> int | None:
        """The ZeRO stage; None without DeepSpeed."""
        return _ZERO_STAGE.get(self.mode)

    @property
    def accelerate_file(self) -> Path | None:
        """The accelerate file; None for a trainer that torchrun starts."""
        if self.mode == Mode.fsdp:
            return None
        return resources.ACCELERATE_CONFIGS / f"{self.mode}.yaml"

    @property
    def deepspeed_file(self) -> Path | None:
        if self.zero_stage is None:
            return None
        return _deepspeed_file(self.mode, self.buckets)

    @property
    def library_files(self) -> dict[str, Path]:
        """The files that the command names, by the library that reads them; none for torchrun."""
        files = {"accelerate": self.accelerate_file, "deepspeed": self.deepspeed_file}
        return {library: file for library, file in files.items() if file is not None}

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(self.library_files.values())

    def expectations(self) -> dict[str, str]:
        """Return what the trainer's own accelerate state must be. The worker checks it: unpatched,
        a CPU run with ZeRO silently becomes DDP, and one with two processes silently becomes one
        process.
        """
        on_cpu = self.width.device == Device.cpu
        if self.zero_stage:
            distributed = "DEEPSPEED"
        elif self.width.world_size == 1:
            distributed = "NO"
        else:
            distributed = "MULTI_CPU" if on_cpu else "MULTI_GPU"
        expected = {
            "distributed": distributed,
            "world_size": str(self.width.world_size),
            "device": self.width.device.value,
        }
        if self.zero_stage:
            expected["zero_stage"] = str(self.zero_stage)
        return expected


def _deepspeed_file(mode: Mode, buckets: Buckets) -> Path:
    suffix = "" if buckets == Buckets.usual else f"_{buckets}_buckets"
    return resources.ACCELERATE_CONFIGS / "deepspeed" / f"{mode}{suffix}.json"


def bucket_sizes(mode: Mode) -> tuple[Buckets, ...]:
    """Return the bucket sizes that a mode has files for; none without DeepSpeed."""
    if mode not in _ZERO_STAGE:
        return ()
    return tuple(size for size in Buckets if _deepspeed_file(mode, size).is_file())


def resolve_parallel(config: RootConfig, trainer: TrainerConfig, width: Width) -> Parallel:
    """Choose the mode and the precision.

    Raises UserError: parallel_width, parallel_trainer, parallel_buckets, unsupported_device,
    unsupported_precision.
    """
    if width.device not in trainer.devices:
        message = f"{trainer.name} does not run on a {width.device.upper()}"
        raise refusal("unsupported_device", message, "device", Fix.of("set {0}", "gpus=1"))
    mode = _resolve_mode(config.parallel.mode, trainer, width)
    buckets = config.parallel.buckets
    if buckets != Buckets.usual and buckets not in bucket_sizes(mode):
        sizes = ", ".join(bucket_sizes(mode))
        message = f"parallel={mode} has no {buckets} buckets"
        cure = Fix.of("it does not use DeepSpeed; remove {0}", "~parallel.buckets")
        if sizes:
            cure = Fix(f"it has {sizes}")
        raise refusal("parallel_buckets", message, "parallel.buckets", cure)
    precision = _resolve_precision(config.recipe.precision, trainer, width)
    return Parallel(mode, width, precision, buckets)


def has_master_weights(family: Family, parallel: Parallel) -> bool:
    """Return whether the optimizer updates fp32 weights.

    open-instruct loads bf16 weights (finetune.py:596, dpo_tune_cache.py:338), so that only
    DeepSpeed keeps fp32 ones; TRL loads fp32 weights and casts in the forward pass.
    """
    if family == Family.trl or parallel.zero_stage:
        return True
    return parallel.precision == Precision.fp32


def default_mode(width: Width) -> Mode:
    """Return the mode of `auto` at a width, for the trainers that do not shard by themselves."""
    if width.world_size == 1:
        return Mode.single
    return Mode.ddp if width.device == Device.cpu else Mode.zero3


def _resolve_mode(requested: Mode, trainer: TrainerConfig, width: Width) -> Mode:
    """Resolve `auto`, and check that the trainer and the width support the mode.

    Raises UserError: parallel_trainer, parallel_width.
    """
    if trainer.launcher != Launcher.accelerate:
        if requested in (Mode.auto, Mode.fsdp):
            return Mode.fsdp
        message = f"{trainer.name} shards by itself and does not support parallel={requested}"
        raise refusal("parallel_trainer", message, "parallel", Fix.of("remove {0}=", "~parallel"))
    if requested == Mode.fsdp:
        message = f"{trainer.name} does not support parallel=fsdp"
        cure = Fix.of("set {0}, {1} or {2}", "parallel=ddp", "parallel=zero2", "parallel=zero3")
        raise refusal("parallel_trainer", message, "parallel", cure)
    if requested == Mode.auto:
        return default_mode(width)
    if requested == Mode.single and width.world_size > 1:
        cure = Fix.of("set {0}, zero1, zero2 or zero3", "parallel=ddp", *_ZEROS)
        message = f"parallel=single runs one rank, got {width.world_size}"
        raise refusal("parallel_width", message, None, cure)
    if requested == Mode.ddp and width.world_size == 1:
        cure = Fix.of("set {0}, zero1, zero2 or zero3", "parallel=single", *_ZEROS)
        raise refusal("parallel_width", "parallel=ddp needs two ranks or more, got one", None, cure)
    return requested


def _resolve_precision(requested: Precision, trainer: TrainerConfig, width: Width) -> Precision:
    """Resolve `auto`: bf16 on GPUs; on a CPU fp32 where the trainer supports it, as bf16 gains
    nothing there.
    """
    if requested == Precision.auto:
        uses_fp32 = width.device == Device.cpu and Precision.fp32 in trainer.precisions
        return Precision.fp32 if uses_fp32 else Precision.bf16
    if requested not in trainer.precisions:
        supported = ", ".join(trainer.precisions)
        owner = "open-instruct's script" if trainer.family == Family.open_instruct else "TRL"
        message = f"{trainer.name} cannot train in {requested}: {owner} supports {supported}"
        cure = Fix.of("set {0}", f"recipe.precision={trainer.precisions[0]}")
        raise refusal("unsupported_precision", message, "recipe.precision", cure)
    return requested
