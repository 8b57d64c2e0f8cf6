"""The keys a stage may have, typed. Hydra rejects every other key and every value of the wrong type.

The recipe is trainer-neutral: each trainer's YAML maps its words to that trainer's flags. `None` means "not said": the
flag is left out and the trainer's own default holds (the plan shows it).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from omegaconf import MISSING

from launch.config.bench import BenchConfig
from launch.config.cluster import ClusterConfig
from launch.config.gates import GatesConfig, RolloutConfig
from launch.config.tune import TuneConfig, TunedConfig


class Kind(StrEnum):
    """What a stage optimises: supervised fine-tuning, direct preference optimisation or a reward model."""

    sft = "sft"
    dpo = "dpo"
    rm = "rm"


class Start(StrEnum):
    """Which checkpoint of the model group a stage starts from."""

    base = "base"
    sft = "sft"


class Device(StrEnum):
    cuda = "cuda"
    cpu = "cpu"


class Packing(StrEnum):
    """`none` pads; `flatten` concatenates the same samples unpadded; `bins` fills a token budget."""

    none = "none"
    flatten = "flatten"
    bins = "bins"


class LossAveraging(StrEnum):
    """Of an optimizer step's SFT loss: the mean over all its tokens, or of its micro batches' means."""

    tokens = "tokens"
    micro_batch_means = "micro_batch_means"


class Precision(StrEnum):
    auto = "auto"
    bf16 = "bf16"
    fp32 = "fp32"


class Family(StrEnum):
    """Where a trainer's script comes from: the open-instruct checkout, or the installed TRL package."""

    open_instruct = "open_instruct"
    trl = "trl"


class Launcher(StrEnum):
    accelerate = "accelerate"
    torchrun = "torchrun"


class Tracking(StrEnum):
    """Where a run's numbers go besides its own record. `tensorboard` is written by `launch`, for every trainer."""

    none = "none"
    wandb = "wandb"
    wandb_offline = "wandb_offline"
    tensorboard = "tensorboard"


class Mode(StrEnum):
    """How the ranks share the model. `auto` is `single` at one rank, `zero3` on several GPUs, `ddp` on several CPUs,
    and `fsdp` for the trainers that shard by themselves."""

    auto = "auto"
    single = "single"
    ddp = "ddp"
    zero1 = "zero1"
    zero2 = "zero2"
    zero3 = "zero3"
    zero3_offload = "zero3_offload"
    fsdp = "fsdp"  # the OLMo-core trainers' own


@dataclass
class StageConfig:
    kind: Kind = MISSING  # what is trained
    start: Start = Start.base  # which of the model's checkpoints it trains
    description: str = ""


@dataclass
class RecipeConfig:
    global_batch_size: int = MISSING  # samples (pairs for DPO) in one optimizer step, over all ranks
    per_device_batch_size: int = 1  # samples in one forward pass of one rank
    learning_rate: float = MISSING  # the highest
    lr_scheduler: str = "linear"  # linear, cosine, constant, ...: what the trainer knows
    warmup_ratio: float | None = None  # share of all steps; null: the trainer's own
    weight_decay: float | None = None  # null: the trainer's own
    epochs: int = 1  # times that the data is gone through
    max_steps: int | None = None  # optimizer steps; ends the run before `epochs` do
    max_seq_length: int = MISSING  # tokens
    max_grad_norm: float | None = 1.0  # null: no clipping
    seed: int = 42  # of the data's order, and of what is drawn
    precision: Precision = Precision.auto  # auto: bf16 where the trainer can
    chat_template: str | None = None  # null: the tokenizer's own
    packing: Packing = Packing.none  # flatten: the same samples, unpadded; bins: rows filled to a token budget
    balanced: bool = False  # deal the samples of a global batch to the ranks by length
    loss_averaging: LossAveraging | None = None  # null: the trainer's own
    liger: bool = False  # Liger's kernels
    attention: str = "auto"  # sdpa, eager, flash_2, ...; auto: what the trainer takes
    gradient_checkpointing: bool = False  # compute the activations again in backward, and keep fewer
    checkpoint_steps: int | None = None  # null: none before the end
    beta: float | None = None  # DPO's
    loss: str | None = None  # DPO's: dpo, dpo_norm, simpo, ...; null: the trainer's own


@dataclass
class ShapeConfig:
    """What planning needs to know of a model without loading it."""

    parameters: float | None = None  # tied embeddings count once
    layers: int | None = None
    hidden: int | None = None
    intermediate: int | None = None  # of the MLP
    heads: int | None = None  # of the queries
    kv_heads: int | None = None  # of the keys and of the values
    vocabulary: int | None = None
    tied_embeddings: bool = False  # the output matrix is the embedding
    model_type: str = "llama"  # transformers' name of the architecture


@dataclass
class ModelConfig:
    base: str | None = None  # hub id or folder of the pretrained checkpoint
    sft: str | None = None  # hub id or folder of the checkpoint after SFT, where DPO starts
    path: str | None = None  # overrides both
    trained_by: str | None = None  # identity of the plan whose run makes `path`; said by a pipeline's jobs
    revision: str | None = None  # of the hub repository
    build: str | None = None  # `demo`: made on this machine when it is missing
    shape: ShapeConfig = field(default_factory=ShapeConfig)


@dataclass
class MixConfig:
    name: str = MISSING  # hub id, or path of a .jsonl or .parquet file
    share: float = 1.0  # of the split's rows; above 1 repeats rows where the trainer can
    split: str = "train"  # of the hub data set


@dataclass
class DataConfig:
    kind: Kind = MISSING  # chats for sft, pairs of them for dpo and rm
    mix: list[MixConfig] = field(default_factory=list)  # '[{name: NAME, share: 0.5}, ...]'
    fraction: float = 1.0  # of every entry's share
    build: str | None = None  # `demo_chats` or `demo_preferences`: made on this machine when missing


@dataclass
class RefusedValue:
    """What a stage may not say for a flag: numbers `below` one, texts `containing` another; and why."""

    why: str = MISSING
    below: float | None = None
    containing: str | None = None


@dataclass
class TrainerConfig:
    """How `launch` drives one upstream script; the fields are explained in configs/tulu/trainer/finetune.yaml."""

    name: str = MISSING
    kind: Kind = MISSING
    family: Family = MISSING
    entry: str = MISSING
    launcher: Launcher = Launcher.accelerate
    precisions: list[Precision] = field(default_factory=list)
    devices: list[Device] = field(default_factory=lambda: [Device.cuda, Device.cpu])
    leaves: str = "config.json"  # what the model folder holds after a good end, as a glob
    tokenized_first: bool = False  # it trains only on data that a pass of its own has tokenised
    recipe: dict[str, Any] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    launch: dict[str, str] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)
    cpu_flags: dict[str, Any] = field(default_factory=dict)
    tracking: dict[str, dict[str, Any]] = field(default_factory=dict)
    push: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    refused_values: dict[str, RefusedValue] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)


class Buckets(StrEnum):
    """How much DeepSpeed gathers and reduces at a time: another file of accelerate_configs/deepspeed."""

    usual = "usual"
    small = "small"  # a fifth, of ZeRO 1 and 2
    large = "large"  # of ZeRO 3, whose usual ones follow from the hidden size


@dataclass
class ParallelConfig:
    mode: Mode = Mode.auto  # what the group parallel= says
    buckets: Buckets = Buckets.usual  # how much DeepSpeed gathers and reduces at a time


@dataclass
class UpstreamConfig:
    dir: str | None = None  # an open-instruct checkout; null: OPEN_INSTRUCT_DIR, else external/open-instruct


@dataclass
class HubConfig:
    """A push of the model to the Hugging Face hub at the end of the run, by the trainer's own flags."""

    push: str | None = None  # OWNER/NAME; a repository that is made for it is private


@dataclass
class NonFiniteGuard:
    steps: int = 1  # logged steps in a row with a loss or a gradient norm that is NaN or infinite


@dataclass
class DivergenceGuard:
    """The median of the last `window` losses is above `factor` x and `margin` + the best such median."""

    factor: float = 2.0
    margin: float = 1.0  # of the loss: what a small loss (DPO's) may rise whatever the factor says
    window: int = 10  # logged steps; a spike shorter than half of it is never a divergence
    memory: int = 1000  # logged steps that the best is taken from


@dataclass
class GradNormGuard:
    """The gradient norm is above `factor` x its own median for `steps` logged steps in a row."""

    factor: float = 20.0
    floor: float = 10.0  # a norm below this is never an explosion
    steps: int = 5
    window: int = 100  # logged steps that the median is of


@dataclass
class StallGuard:
    """Seconds without progress in a phase: a new line of output; in training, after its first step, a logged step."""

    importing: float = 900
    tokenize: float = 3600
    load: float = 1800
    reference_logprobs: float = 1800
    first_step: float = 1800
    training: float = 900  # or `factor` x the longest time that a logged step took so far, when that is more
    factor: float = 3.0
    checkpoint: float = 1800
    save: float = 3600
    push: float = 7200


@dataclass
class DeadRankGuard:
    after_error: float = 10.0  # seconds that a run may go on after a rank reported the error that ends it
    silent: float = 20.0  # seconds without progress after a rank's process is gone while others live


@dataclass
class MemoryCreepGuard:
    """Peak GPU memory grew in each of the last `windows` windows, and by `share` since the first of them."""

    window: int = 100  # logged steps
    windows: int = 6
    share: float = 0.25


@dataclass
class DiskGuard:
    margin: float = 1.1  # x the size of what is written next
    ahead: float = 120.0  # seconds before the write that the run is stopped; earlier there is a warning


@dataclass
class ThroughputGuard:
    """The rate is below `share` of the run's own median for `steps` logged steps in a row and `seconds`."""

    share: float = 0.25
    steps: int = 20
    seconds: float = 900.0
    window: int = 200


@dataclass
class GuardsConfig:
    """What stops a live run. A guard that is null is off; `allow=[its id]` makes it a warning."""

    non_finite: NonFiniteGuard | None = field(default_factory=NonFiniteGuard)
    divergence: DivergenceGuard | None = field(default_factory=DivergenceGuard)
    grad_norm: GradNormGuard | None = field(default_factory=GradNormGuard)
    stall: StallGuard | None = field(default_factory=StallGuard)
    dead_rank: DeadRankGuard | None = field(default_factory=DeadRankGuard)
    memory_creep: MemoryCreepGuard | None = field(default_factory=MemoryCreepGuard)
    disk: DiskGuard | None = field(default_factory=DiskGuard)
    throughput: ThroughputGuard | None = field(default_factory=ThroughputGuard)


@dataclass
class RootConfig:
    stage: StageConfig = field(default_factory=StageConfig)
    recipe: RecipeConfig = field(default_factory=RecipeConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)  # of `submit`
    flags: dict[str, Any] = field(default_factory=dict)  # the trainer's own, unchanged
    guards: GuardsConfig | None = field(default_factory=GuardsConfig)  # null: none
    gates: GatesConfig = field(default_factory=GatesConfig)  # of `rollout`, as the next
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    bench: BenchConfig = field(default_factory=BenchConfig)
    tune: TuneConfig = field(default_factory=TuneConfig)
    tuned: TunedConfig | None = None  # what an overlay of `tune` (+tuned=NAME) was measured with
    nodes: int = 1  # machines; above 1 for `submit` alone
    gpus: int | None = None  # GPUs of a machine; 0: one CPU process; null: 1, or what `device` says
    device: Device | None = None  # cuda or cpu; null: by gpus and processes
    processes: int | None = None  # ranks of a machine with device=cpu
    name: str | None = None  # of the run's folder; null: width and plan identity
    runs: str = "runs"  # the folder that all run folders are in
    cache: str | None = None  # of tokenised data and reference log-probs; null: <runs>/.cache
    python: str | None = None  # the trainer's interpreter; null: the launcher's
    upstream: UpstreamConfig = field(default_factory=UpstreamConfig)
    restart: bool = False  # keep an earlier run of the same plan aside and start over
    cache_only: bool = False  # build the tokenised data on the CPU, and train nothing
    tracking: Tracking = Tracking.none  # where the numbers go besides the run folder
    tracking_project: str = "launch"  # wandb's
    tracking_entity: str | None = None  # wandb's user or team; null: WANDB_ENTITY
    hub: HubConfig = field(default_factory=HubConfig)
    detach: bool = False  # return when the run has started; it survives the terminal
    allow: list[str] = field(default_factory=list)  # ids of rules, guards, gates and expectations that only warn
