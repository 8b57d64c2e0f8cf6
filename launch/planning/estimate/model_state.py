"""The bytes of a model's weights, gradients and optimizer, and of the buffers of DDP and ZeRO."""

from __future__ import annotations

from dataclasses import dataclass

from launch.config.kinds import Kind
from launch.config.recipe_keys import Precision
from launch.config.schema import Mode
from launch.planning.estimate.allocator import STAGE_3
from launch.planning.estimate.optimizers import factored_step_bytes
from launch.planning.estimate.setting import AdapterSetting, MemorySetting

# These sizes are in elements, as accelerate_configs/deepspeed/ sets them: reduce_bucket_size of
# zero1.json and zero2.json, sub_group_size and stage3_max_live_parameters of zero3.json.
ZERO_BUCKET = 500_000_000
SUB_GROUP = 1_000_000_000
MAX_LIVE_PARAMETERS = 1_000_000_000


@dataclass(frozen=True)
class BytesPerParameter:
    """Bytes of the training state for each parameter."""

    weights: float  # bytes on each rank's device, as for gradients and optimizer
    gradients: float
    optimizer: float
    host: float = 0.0  # bytes in the memory of the whole machine

    @property
    def rank(self) -> float:
        """Bytes on each rank's device."""
        return self.weights + self.gradients + self.optimizer


def bytes_per_parameter(mode: Mode, ranks: int, precision: Precision) -> BytesPerParameter:
    """Return the bytes for each parameter, by the mode in which the ranks share the model.

    DeepSpeed keeps bf16 weights and gradients (by default its gradients accumulate in the weights'
    type, deepspeed engine.py:1799-1810) and fp32 master weights and moments: 2 + 2 + 12 bytes, of
    which stage 1 shards the 12, stage 2 the gradients too, stage 3 all; offloading moves the 12,
    and gradients and weights, into the host's memory. FSDP in OLMo-core: fp32 weights, gradients
    and moments, sharded. Without either everything has the weights' type: AdamW's moments are
    created like the parameter (torch/optim/adamw.py, zeros_like).
    """
    width = 2 if precision == Precision.bf16 else 4
    by_mode = {
        Mode.zero1: BytesPerParameter(width, width, 12 / ranks),
        Mode.zero2: BytesPerParameter(width, width / ranks, 12 / ranks),
        Mode.zero3: BytesPerParameter(width / ranks, width / ranks, 12 / ranks),
        Mode.zero3_offload: BytesPerParameter(0.0, 0.0, 0.0, 12 + 2 * width),
        Mode.fsdp: BytesPerParameter(4 / ranks, 4 / ranks, 8 / ranks),
    }
    return by_mode.get(mode, BytesPerParameter(width, width, 2 * width))


def frozen_bytes(setting: MemorySetting, adapter: AdapterSetting) -> float:
    """Return the bytes of the weights under an adapter on each rank.

    4-bit weights with double quantisation take half a byte, and one byte for each 64 of them and
    four for each 64 x 256 (bitsandbytes, quantize_4bit with compress_statistics).
    """
    shape = setting.shape
    if adapter.quantized:
        packed = float(shape.layers * shape.layer)
        packed_bytes = packed * (0.5 + 1 / 64 + 4 / (64 * 256))
        return packed_bytes + adapter.other_bytes * (shape.parameters - packed)
    shards = setting.ranks if setting.mode in STAGE_3 else 1
    return setting.element * shape.parameters / shards


def bucket_bytes(setting: MemorySetting) -> float:
    """Return the bytes of communication buffers while gradients are computed.

    DDP: buckets of the size of all gradients (gradient_as_bucket_view is off). ZeRO 1 and 2: two
    buckets, as overlap_comm is on (deepspeed stage_1_and_2.py:3256-3283), allocated when the first
    gradient arrives. ZeRO 3: one of hidden x hidden (accelerate accelerator.py:2323).
    """
    shape = setting.shape
    if setting.mode == Mode.ddp:
        if setting.adapter:
            return 4 * setting.adapter.parameters
        return setting.weight_element * shape.parameters
    if setting.mode in (Mode.zero1, Mode.zero2):
        return 2.0 * ZERO_BUCKET * setting.element
    if setting.mode in STAGE_3:
        return float(setting.element * shape.hidden**2)
    return 0.0


def initial_bucket_bytes(setting: MemorySetting) -> float:
    """Return the bytes of buffers that exist before the first gradient: stage 2 frees its own after
    each micro batch, stage 1 after the last (stage_1_and_2.py:1061, :924).
    """
    if setting.mode == Mode.zero2 or (setting.mode == Mode.zero1 and setting.accumulation == 1):
        return 0.0
    return bucket_bytes(setting)


def gathered_bytes(setting: MemorySetting, at_most: float) -> float:
    """Return the bytes of the weights that ZeRO-3 has gathered, `at_most` elements of them.

    It prefetches: every module that is entered, containers included, fetches at least one more
    weight, up to stage3_max_live_parameters (deepspeed partitioned_param_coordinator.py:447-474);
    these stay gathered through the turn from forward to backward. A single rank already has its
    weights (partition_parameters.py, NoGatherHandle).
    """
    if setting.mode not in STAGE_3 or (setting.ranks == 1 and setting.mode == Mode.zero3):
        return 0.0
    return setting.element * min(setting.shape.parameters, MAX_LIVE_PARAMETERS, at_most)


def scattering_bytes(setting: MemorySetting, gradient: float) -> float:
    """Return the bytes, on top of a new gradient of `gradient` bytes, while it is sent to its
    owners.

    ZeRO keeps a gradient that is larger than the bucket until the next arrives (deepspeed
    stage_1_and_2.py:1443, stage3.py:1583), and stage 3 copies it to scatter it
    (coalesced_collectives.py, reduce_scatter_coalesced).
    """
    if setting.mode in STAGE_3:
        return 2 * gradient
    if setting.mode in (Mode.zero1, Mode.zero2):
        return gradient if gradient > ZERO_BUCKET * setting.element else 0.0
    return 0.0


def second_gradient_bytes(setting: MemorySetting, gradients: float) -> float:
    """Return the bytes of ZeRO-2's second buffer: each micro batch is reduced into a new buffer of
    the rank's shard, which is then added to the first (deepspeed stage_1_and_2.py:1033-1044,
    :2184-2196).
    """
    return gradients if setting.mode == Mode.zero2 and setting.accumulation > 1 else 0.0


def step_gradient_bytes(setting: MemorySetting, gradients: float) -> float:
    """Return the bytes of gradients at the optimizer's step: by then stage 1 has freed those of
    other ranks (deepspeed stage_1_and_2.py:1005-1012).
    """
    return gradients / setting.ranks if setting.mode == Mode.zero1 else gradients


def host_bytes(setting: MemorySetting) -> float:
    """Return the bytes of the machine's memory that all ranks together need for what is offloaded or
    paged. DeepSpeed's offloading keeps the weights, too.
    """
    shape = setting.shape
    if setting.mode == Mode.zero3_offload and setting.adapter is None:
        state = bytes_per_parameter(setting.mode, setting.ranks, setting.precision)
        return state.host * shape.parameters
    if setting.mode not in (Mode.single, Mode.ddp) or setting.adapter is not None:
        return 0.0
    of_rank = setting.optimizer.host_bytes(
        shape.parameters, shape.embedding, setting.weight_element
    )
    return setting.ranks * of_rank


def step_temporary_bytes(setting: MemorySetting) -> float:
    """Return the bytes that the optimizer's step adds.

    ZeRO makes a flat copy of the rank's gradients and converts it to fp32 (deepspeed
    stage_1_and_2.py:3114-3118, stage3.py:2683-2690), all at once at stages 1 and 2 and one
    sub-group at a time at stage 3. The fused AdamW needs nothing more; the foreach one holds a copy
    of the parameters' size (torch/optim/adamw.py). OLMo-core's in olmo_core_finetune holds three at
    once, of all weights (olmo_core/optim/adamw.py:82-99), or of the largest one where they are
    updated one by one (:36-45); in dpo there is one, of the largest (:1-48).
    """
    shape = setting.shape
    shard = shape.parameters / setting.sharing_ranks
    if setting.mode in (Mode.zero1, Mode.zero2):
        return (setting.element + 4) * shard
    if setting.mode == Mode.zero3:
        return (setting.element + 4) * min(shard, SUB_GROUP)
    if setting.mode == Mode.zero3_offload:
        return setting.element * min(shard, SUB_GROUP)
    if setting.mode == Mode.fsdp:
        if setting.kind == Kind.sft:
            return 3 * 4 * (shard if setting.foreach_step else shape.embedding)
        return 4 * shape.embedding / setting.sharing_ranks
    factored = factored_step_bytes(shape, setting.weight_element)
    unfused = 0.0 if setting.optimizer.fused else setting.element * shape.parameters
    return factored if setting.optimizer.factored else unfused
