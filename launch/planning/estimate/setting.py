"""The part of a training setting that memory and time depend on, and the size of its micro batches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from launch.config.kinds import KINDS, Kind
from launch.config.recipe_keys import Precision
from launch.config.schema import Mode
from launch.planning.estimate.optimizers import ADAMW, OptimizerState
from launch.planning.estimate.shape import ModelShape
from launch.planning.lengths import Lengths

# The longest of some 100,000 packed micro batches is this many standard deviations above the mean.
TAIL = 5.0


class Attention(StrEnum):
    """The attention kernel."""

    sdpa = "sdpa"
    flash = "flash"
    eager = "eager"


@dataclass(frozen=True)
class AdapterSetting:
    """The LoRA adapter that is trained while the weights are frozen."""

    parameters: float
    rank: int
    names: tuple[str, ...]  # adapted matrices of a block
    fp32: bool  # PEFT's default; TRL keeps bf16 ones on 4-bit weights and under ZeRO-3
    # Whether each A keeps its input in fp32; see `skips_input_casts` in
    # launch/worker/patches/shared.py.
    casts: bool = False
    quantized: bool = False  # the frozen matrices of the blocks are in nf4
    drops_inputs: bool = False  # recipe.lora.dropout is above 0
    # Outputs of a block's adapted matrices, each with a trained length; 0 without DoRA.
    dora_outputs: int = 0
    # Weights of the modules that are trained as a whole, and those of them that are an embedding's.
    whole: float = 0.0
    whole_embedding: float = 0.0
    # The bytes of each other frozen weight; upstream's QLoRA raises these to fp32 (finetune.py:620).
    other_bytes: int = 2
    # The sizes of a block's weights that have an adapter themselves (recipe.lora.target_parameters).
    weights: tuple[int, ...] = ()

    @property
    def layers(self) -> int:
        """How many matrices of a block have an adapter."""
        return len(self.names)

    @property
    def trained(self) -> float:
        """The weights that are trained."""
        return self.parameters + self.whole


@dataclass(frozen=True)
class Generation:
    """The completions that a rank samples for one step."""

    rows: int
    prompt: int  # tokens of the longest prompt
    response: int  # maximum number of tokens
    card_gib: float | None = None  # the GPU's memory with continuous batching; None: without


@dataclass(frozen=True)
class MemorySetting:
    """The settings that determine the memory and the time of a training step."""

    shape: ModelShape
    kind: Kind
    mode: Mode
    ranks: int
    micro_batch: int  # samples (pairs for DPO) of one forward pass of a rank
    tokens: int  # tokens of one forward pass: all rows with padding, and both halves of pairs
    accumulation: int = 1
    packing: bool = False
    # Whether rows differ in length, which is practically certain unless all reach the limit.
    padding: bool = True
    liger: bool = False  # RMSNorm, RoPE and SwiGLU
    # The fused linear cross-entropy, which never holds the logits of all tokens.
    fused_loss: bool = False
    checkpointing: bool = False
    # The hidden states that a checkpointed layer keeps: only its input, or those of its parts.
    kept_states: int = 1
    attention: Attention = Attention.sdpa
    precision: Precision = Precision.bf16
    autocast: bool = False  # fp32 weights, computed in bf16: TRL without DeepSpeed
    chunked_head: bool = False  # TRL's output matrix, which never holds the logits of all tokens
    reference: bool = False  # a second, frozen copy of the weights: TRL's DPO
    # Further forward passes of a micro batch in a step, without gradients: those of KTO's KL term, and
    # its reference's.
    extra_passes: int = 0
    reference_passes: int = 0  # those of them that are the reference's, without the adapter
    # Samples of a forward pass that precomputes log-probs, over those of a training pass.
    reference_factor: float = 0.0
    # Samples of a forward pass of the evaluation, over those of a training pass; 0: no evaluation.
    evaluation_factor: float = 0.0
    adapter: AdapterSetting | None = None  # None: all weights are trained
    generation: Generation | None = None  # only RLVR generates
    vllm_gib: float = 0.0  # the GPU's memory that vLLM holds beside the training
    expandable_segments: bool = False  # torch's allocator has expandable segments
    compiled: bool = False  # torch.compile compiles the model, as for OLMo-core's trainers
    # The ranks that share weights and optimizer, if further ranks hold copies of them; None: all.
    shards: int | None = None
    # OLMo-core updates all weights at once; False with the patch olmo_core_single_step.
    foreach_step: bool = True
    optimizer: OptimizerState = ADAMW
    # Whether recipe.optimizer can be another one: TRL's trainers, all weights, without DeepSpeed.
    changes_optimizer: bool = False
    # Whether ZeRO-3 can divide the weights: not those in 4 bit, nor those that PiSSA or OLoRA change
    # (the rules qlora_deepspeed and lora_init_splits_weights).
    can_shard_weights: bool = True

    @property
    def sharing_ranks(self) -> int:
        """The ranks that weights and optimizer are divided by."""
        return self.shards or self.ranks

    @property
    def sequences(self) -> int:
        """Sequences of a forward pass. DPO concatenates chosen and rejected (upstream
        dpo_utils.py:848-860).
        """
        return self.micro_batch * KINDS[self.kind].sequences

    @property
    def rows(self) -> int:
        """Rows of the batch's tensors."""
        return 1 if self.packing else self.sequences

    @property
    def masked(self) -> bool:
        """Whether attention gets a mask of row x row.

        SDPA does for rows with padding, and for a packed row of several documents (transformers
        masking_utils.py:293-301, :873-881). With a key-value cache the documents are not
        separated, and upstream's DPO passes no use_cache=False (dpo_utils.py:863): its packed rows get
        no mask. Flash attention never gets one.
        """
        if self.attention == Attention.flash:
            return False
        if self.packing:
            return self.micro_batch > 1 and self.kind != Kind.dpo
        return self.padding and self.rows > 1

    @property
    def masked_layers(self) -> int:
        """The layers whose attention gets such a mask: all where rows need one; else those that
        slide over a row that is longer than their window (transformers masking_utils.py,
        `_ignore_causal_mask_sdpa`).
        """
        if self.masked:
            return self.shape.layers
        if self.attention == Attention.flash or not self.shape.slides(self.tokens / self.rows):
            return 0
        return self.shape.sliding_layers

    @property
    def element(self) -> int:
        """Bytes of a weight and of an activation."""
        return 2 if self.precision == Precision.bf16 else 4

    @property
    def weight_element(self) -> int:
        """Bytes of a trained weight and of its gradient."""
        return 4 if self.autocast or self.mode == Mode.fsdp else self.element


def average_micro_batch(lengths: Lengths | None, setting: MemorySetting) -> int:
    """Return the number of tokens of a micro batch of average samples without padding: the least to
    expect of a run's first micro batch.

    Without the data's lengths each sequence counts as one token, so that the estimate covers only
    the memory that does not depend on the data.
    """
    if lengths is None:
        return setting.sequences
    return max(setting.sequences, round(setting.micro_batch * lengths.tokens.mean))


def longest_micro_batch(lengths: Lengths, setting: MemorySetting) -> int:
    """Return the number of tokens, with padding, of the longest micro batch of a whole run.

    With padding its rows are as long as the longest sample of the data, which is in some micro
    batch. With packing it is the sum of its samples' lengths: TAIL standard deviations above the
    mean, but at most the longest sample times the micro batch size.
    """
    # OLMo-core's packed rows are always as long as the limit.
    if setting.compiled and setting.packing:
        return setting.tokens
    if not setting.packing:
        row_lengths = lengths.longer or lengths.tokens
        return setting.sequences * row_lengths.longest
    tokens = lengths.tokens
    size = setting.micro_batch
    deviation = tokens.deviation * math.sqrt(size)
    likely_longest = math.ceil(size * tokens.mean + TAIL * deviation)
    return max(tokens.longest, min(likely_longest, size * tokens.longest))
