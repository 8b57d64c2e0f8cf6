"""The ranks of a run: how many there are, how they share the model, and how they split the batch.

The global batch is width x per device x accumulation, and is the same at every width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from launch import resources
from launch.config.origins import Origin, Origins
from launch.config.recipe_keys import Precision
from launch.config.schema import Buckets, Device, Family, Launcher, Mode, RootConfig, TrainerConfig
from launch.errors import refusal
from launch.upstream.trainers import OLMO_CORE_SFT
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


CONTEXT_FLAG = "cp_degree"  # of context parallelism
_VALUES_SHOWN = 8  # in a message


@dataclass(frozen=True)
class Batch:
    """How a global batch is split over ranks, forward passes and accumulation steps."""

    global_: int  # samples (pairs for DPO) of one optimizer step over all ranks
    per_device: int  # samples of one forward pass of one rank
    accumulation: int  # forward passes of one rank per optimizer step
    width: int  # ranks
    ranks_per_row: int = 1  # ranks that compute a row together, by context parallelism

    @property
    def data_ranks(self) -> int:
        """The ranks that have rows of their own: those that share a row count as one."""
        return self.width // self.ranks_per_row

    @property
    def samples_per_rank(self) -> int:
        """The samples of one optimizer step on one rank."""
        return self.per_device * self.accumulation

    def __str__(self) -> str:
        ranks = "1 rank" if self.width == 1 else f"{self.width} ranks"
        if self.ranks_per_row > 1:
            ranks += f" / {self.ranks_per_row} per row"
        return (
            f"{self.global_} = {ranks} x {self.per_device} per device x {self.accumulation} "
            "accumulation"
        )


def share_batch(config: RootConfig, origins: Origins, parallel: Parallel) -> Batch:
    """Return how the ranks share the global batch.

    Raises UserError: batch_not_divisible, context_parallel.
    """
    recipe = config.recipe
    if config.trainer.launcher == Launcher.ray:
        # Ray's learners take packed rows of as many completions as fit
        return Batch(recipe.global_batch_size, recipe.per_device_batch_size, 1, 1)
    width = parallel.width
    shared = resolve_ranks_per_row(config, origins, width)
    size = recipe.per_device_batch_size
    tokens = recipe.global_batch_tokens
    if tokens is not None:
        return split_token_batch(tokens, recipe.max_seq_length, size, width.world_size, shared)
    return split_batch(recipe.global_batch_size, size, width.world_size, shared)


def split_batch(global_batch: int, per_device: int, width: int, ranks_per_row: int = 1) -> Batch:
    """Split a global batch over ranks and accumulation steps.

    `ranks_per_row` of the `width` ranks compute a row together, and count as one.

    Raises UserError: batch_not_divisible (with the values that would work).
    """
    data_ranks = width // ranks_per_row
    accumulation, rest = divmod(global_batch, per_device * data_ranks)
    if rest or not accumulation:
        ranks = _name_ranks(data_ranks, width, ranks_per_row)
        samples = "sample" if per_device == 1 else "samples"
        message = (
            f"global batch {global_batch} is not divisible by {data_ranks} {ranks} x "
            f"{per_device} {samples}"
        )
        cure = _suggest_values(global_batch, per_device, data_ranks, ranks_per_row)
        raise refusal("batch_not_divisible", message, None, cure)
    return Batch(global_batch, per_device, accumulation, width, ranks_per_row)


def _name_ranks(data_ranks: int, width: int, ranks_per_row: int) -> str:
    """Return "rank" or "ranks", with the GPUs of those that share rows."""
    name = "rank" if data_ranks == 1 else "ranks"
    if ranks_per_row > 1:
        name += f" ({width} GPUs, {ranks_per_row} to a row)"
    return name


def resolve_ranks_per_row(config: RootConfig, origins: Origins, width: Width) -> int:
    """Return how many ranks compute a row together: flags.cp_degree of olmo_core_finetune, else 1.

    The ranks of a node have to be a multiple of it: the script shards a model over those of a node
    that remain (olmo_core_finetune.py:213-214), which would be none. Raises UserError:
    context_parallel.
    """
    degree = config.flags.get(CONTEXT_FLAG)
    if config.trainer.name != OLMO_CORE_SFT or not isinstance(degree, int) or degree <= 1:
        return 1
    where = origins.of(f"flags.{CONTEXT_FLAG}").where
    if width.device == Device.cpu:
        message = f"flags.{CONTEXT_FLAG}={degree} splits a row over GPUs, and the device is cpu"
        cure = Fix.of("remove it, or set {1}", f"~flags.{CONTEXT_FLAG}", f"gpus={degree}")
        raise refusal("context_parallel", message, where, cure)
    if width.local % degree:
        fits = [f"flags.{CONTEXT_FLAG}={value}" for value in divisors(width.local) if value > 1]
        message = f"flags.{CONTEXT_FLAG}={degree} does not divide the {width.local} GPUs of a node"
        ways = [f"~flags.{CONTEXT_FLAG}", f"gpus={degree}", *fits]
        sentence = "remove it, or set {1}"
        if fits:
            others = ", ".join(fits[1:])
            sentence += " or {2}" + (f" (also {others})" if others else "")
        raise refusal("context_parallel", message, where, Fix.of(sentence, *ways))
    return degree


def split_token_batch(
    tokens: int, length: int, per_device: int, width: int, ranks_per_row: int = 1
) -> Batch:
    """Split a global batch of `tokens` tokens, in rows of `length`, over ranks and accumulation
    steps. `ranks_per_row` of the `width` ranks compute a row together, and count as one.

    Raises UserError: batch_not_divisible (with the values that would work).
    """
    data_ranks = width // ranks_per_row
    if tokens % (length * per_device * data_ranks) == 0:
        return split_batch(tokens // length, per_device, width, ranks_per_row)
    ranks = _name_ranks(data_ranks, width, ranks_per_row)
    rows = "row" if per_device == 1 else "rows"
    message = (
        f"a global batch of {tokens} tokens is not divisible by {data_ranks} {ranks} x "
        f"{per_device} {rows} x {length} tokens"
    )
    cure = _suggest_for_tokens(tokens, length, per_device, data_ranks, ranks_per_row)
    raise refusal("batch_not_divisible", message, None, cure)


def _suggest_for_tokens(
    tokens: int, length: int, per_device: int, width: int, ranks_per_row: int
) -> str:
    """Return a text with the values of each of the four numbers that would work with the other
    three as they are. `width` counts ranks that have rows of their own.
    """
    suggestions = []
    if tokens % (length * per_device) == 0:
        data_ranks = divisors(tokens // (length * per_device))
        widths = [count * ranks_per_row for count in data_ranks]
        suggestions.append(f"a width of {_join(_abbreviate(widths))}")
    if tokens % (length * width) == 0:
        per_devices = divisors(tokens // (length * width))
        numbers = _nearest_first(per_devices, per_device)
        suggestions.append(f"recipe.per_device_batch_size={numbers}")
    if tokens % (per_device * width) == 0:
        lengths = divisors(tokens // (per_device * width))
        # OLMo-core's rows are a power of 2 long (packing_length), and one token predicts nothing
        powers = [value for value in lengths if value > 1 and value & (value - 1) == 0]
        if powers:
            suggestions.append(f"recipe.max_seq_length={_nearest_first(powers, length)}")
    step = length * per_device * width
    below = tokens - tokens % step
    numbers = _nearest_first([batch for batch in (below, below + step) if batch], tokens)
    suggestions.append(f"recipe.global_batch_tokens={numbers}")
    return "use " + ", or ".join(suggestions)


def divisors(number: int) -> list[int]:
    """Return every divisor, ascending."""
    up_to_root = range(1, math.isqrt(number) + 1)
    small = [divisor for divisor in up_to_root if number % divisor == 0]
    large = [number // divisor for divisor in small]
    return sorted({*small, *large})


def _suggest_values(global_batch: int, per_device: int, width: int, ranks_per_row: int) -> str:
    """Return a text with the values of each of the three numbers that would work with the other
    two as they are. `width` counts the ranks that share a row as one.
    """
    suggestions = []
    if global_batch % per_device == 0:
        widths = [ranks_per_row * ranks for ranks in divisors(global_batch // per_device)]
        suggestions.append(f"a width of {_join(_abbreviate(widths))}")
    if global_batch % width == 0:
        per_devices = divisors(global_batch // width)
        numbers = _nearest_first(per_devices, per_device)
        suggestions.append(f"recipe.per_device_batch_size={numbers}")
    step = width * per_device
    below = global_batch - global_batch % step
    global_batches = [batch for batch in (below, below + step) if batch]
    numbers = _nearest_first(global_batches, global_batch)
    suggestions.append(f"recipe.global_batch_size={numbers}")
    return "use " + ", or ".join(suggestions)


def _nearest_first(numbers: list[int], wanted: int) -> str:
    """Return the number that is nearest to `wanted`, then the others: `4 (also 1, 2, 8)`."""
    nearest = min(numbers, key=lambda number: (abs(number - wanted), number))
    others = [str(number) for number in _abbreviate(numbers) if number != nearest]
    return f"{nearest} (also {', '.join(others)})" if others else str(nearest)


def _join(numbers: list[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} or {last}" if others else last


def _abbreviate(numbers: list[int]) -> list[int]:
    """Return the first numbers and the last one, if there are many."""
    if len(numbers) <= _VALUES_SHOWN:
        return numbers
    return [*numbers[: _VALUES_SHOWN - 1], numbers[-1]]
