"""The keys a stage may have, typed. Hydra rejects every other key and every value of the wrong
type.

The recipe is trainer-independent: launch/config/recipe_keys.py maps its keys to each trainer's
flags. `None` means not set: the flag is left out and the trainer's own default holds (the plan shows
it).
"""

# without `from __future__ import annotations`, as its parts are: OmegaConf would evaluate each
# annotation as a text
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from omegaconf import MISSING

from launch.config.cluster import ClusterConfig
from launch.config.guards import GuardsConfig
from launch.config.kinds import DataFormat, Kind
from launch.config.ranges import COUNT, COUNT_OR_ZERO, POSITIVE, RANKS, RANKS_OR_ZERO
from launch.config.recipe_keys import Precision, RecipeConfig
from launch.config.trials import BenchConfig, GatesConfig, RolloutConfig, TuneConfig, TunedConfig


class Start(StrEnum):
    """Which checkpoint of the model group a stage starts from."""

    base = "base"
    sft = "sft"
    dpo = "dpo"


class Device(StrEnum):
    cuda = "cuda"
    cpu = "cpu"


class Family(StrEnum):
    """Where a trainer's script comes from: the open-instruct checkout, or the installed TRL
    package.
    """

    open_instruct = "open_instruct"
    trl = "trl"


class Launcher(StrEnum):
    accelerate = "accelerate"
    torchrun = "torchrun"
    ray = "ray"  # one process, which starts learners and vLLM on all GPUs


class Tracking(StrEnum):
    """Where a run's metrics go besides its own record. `launch` itself writes `tensorboard`, for
    every trainer; those from trackio on are of transformers, which TRL's trainers pass on.
    """

    none = "none"
    wandb = "wandb"
    wandb_offline = "wandb_offline"
    tensorboard = "tensorboard"
    trackio = "trackio"
    trackio_offline = "trackio_offline"
    mlflow = "mlflow"
    mlflow_offline = "mlflow_offline"
    comet_ml = "comet_ml"
    comet_ml_offline = "comet_ml_offline"
    swanlab = "swanlab"
    swanlab_offline = "swanlab_offline"
    clearml = "clearml"
    clearml_offline = "clearml_offline"
    neptune = "neptune"
    dvclive = "dvclive"
    codecarbon = "codecarbon"
    dagshub = "dagshub"
    azure_ml = "azure_ml"
    flyte = "flyte"
    kubeflow = "kubeflow"


class Mode(StrEnum):
    """How the ranks share the model. `auto` is `single` at one rank, `zero3` on several GPUs, `ddp`
    on several CPUs, and `fsdp` for the trainers that shard by themselves.
    """

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
    kind: Kind = MISSING  # what the stage trains
    start: Start = Start.base  # the checkpoint of the model that it starts from
    description: str = ""  # what the stage does, in a line that `plan` prints
    # what `eval` scores the model on: a task of the harness, tulu3, demo, a folder; []: tulu3
    tasks: list[str] = field(default_factory=list)


@dataclass
class ShapeConfig:
    """A model's architecture, for planning without loading it."""

    parameters: float | None = POSITIVE.of(None)  # number of weights; tied ones count once
    layers: int | None = COUNT.of(None)  # number of transformer blocks
    hidden: int | None = COUNT.of(None)  # width of the residual stream
    intermediate: int | None = COUNT.of(None)  # width of the MLP
    heads: int | None = COUNT.of(None)  # heads of the queries
    kv_heads: int | None = COUNT.of(None)  # heads of the keys and the values
    head_dim: int | None = COUNT.of(None)  # elements of a head; null: hidden / heads
    vocabulary: int | None = COUNT.of(None)  # rows of the embedding
    tied_embeddings: bool = False  # the output matrix is the embedding
    model_type: str = "llama"  # the architecture's name in transformers
    # tokens that a sliding layer attends to; null: every layer attends to all
    sliding_window: int | None = COUNT.of(None)
    sliding_layers: int | None = COUNT_OR_ZERO.of(None)  # layers with that window


@dataclass
class ModelConfig:
    base: str | None = None  # hub id or folder of the pretrained checkpoint
    sft: str | None = None  # hub id or folder of the checkpoint after SFT, where DPO starts
    dpo: str | None = None  # hub id or folder of the checkpoint after DPO, where RLVR starts
    path: str | None = None  # model to start from: run, hub id or folder; overrides all three
    # identity of the plan whose run makes `path`; set by a pipeline's jobs
    trained_by: str | None = None
    revision: str | None = None  # commit, branch or tag of the hub repository
    build: str | None = None  # `demo`: built on this machine if it is missing
    shape: ShapeConfig = field(default_factory=ShapeConfig)


@dataclass
class MixConfig:
    # hub id; or path of a file, a folder or a glob pattern (docs/how-to/data.md)
    name: str = MISSING
    # fraction of the split's rows; above 1 repeats rows where the trainer supports it
    share: float = POSITIVE.of(1.0)
    split: str = "train"  # split of the hub data set


class TrainOn(StrEnum):
    """Which answers of a conversation are learnt."""

    all = "all"
    last = "last"  # the last answer of each row
    marked = "marked"  # those that the rows mark: `train: true`, `weight: 1`, ...


class BadRows(StrEnum):
    """What happens to local rows that can't be used."""

    refuse = "refuse"
    skip = "skip"  # they are left out, counted and recorded


class SystemTurns(StrEnum):
    """What becomes of the system turns of local rows."""

    keep = "keep"
    merge = "merge"  # their text is put above that of the first user turn


@dataclass
class DataConfig:
    # sft: chats; dpo and rm: preference pairs; kto: chats with a label; rlvr: prompts with a ground
    # truth
    kind: Kind = MISSING
    # data sets to train on: '[{name: NAME, share: 0.5}, ...]'
    mix: list[MixConfig] = field(default_factory=list)
    fraction: float = POSITIVE.of(1.0)  # every entry's share is multiplied by it
    # `demo_chats`, `demo_preferences`, `demo_labels` or `demo_prompts`: built if missing
    build: str | None = None
    # format of the rows of local files; auto: recognised by their columns
    format: DataFormat = DataFormat.auto
    # columns of local rows with names of their own, by the name that launch knows; of a label also
    # its texts, the good one first: NAME:GOOD/BAD
    columns: dict[str, str] = field(default_factory=dict)
    # what happens to local rows that can't be used; `skip` leaves them out, and records how many
    bad_rows: BadRows = BadRows.refuse
    # where system turns stand; `merge` is for chat templates that refuse them, as Gemma's do
    system_turns: SystemTurns = SystemTurns.keep
    # which answers an SFT stage learns: all, the last of each row, or those that local rows mark
    train_on: TrainOn = TrainOn.all
    # rows that are evaluated and never trained on: a fraction of all, a path, or for curves of
    # their own '[{name: NAME, share: 0.02}, ...]' of data sets in mix; null: none
    validation: Any = None


@dataclass
class TrainerConfig:
    """How `launch` drives one upstream script. configs/tulu/trainer/finetune.yaml and trl_sft.yaml
    show the fields. What the recipe's keys are for it is in launch/config/recipe_keys.py.
    """

    name: str = MISSING
    kind: Kind = MISSING
    # where the script is: the open-instruct checkout, or the installed TRL package
    family: Family = MISSING
    entry: str = MISSING  # the script in the checkout, or the module of the package
    launcher: Launcher = Launcher.accelerate
    # the reason why it is planned and checked, but never started; empty: it is started
    untested: str = ""
    precisions: list[Precision] = field(default_factory=list)
    # that it can train on
    devices: list[Device] = field(default_factory=lambda: [Device.cuda, Device.cpu])
    # the families of models that it has presets of; null: any of transformers
    model_presets: str | None = None
    output_glob: str = "config.json"  # glob of a file in the model folder after a successful run
    tokenized_first: bool = False  # it trains only on data that a separate pass has tokenised
    always_packs: bool = False  # several samples share a sequence, whatever its flags
    resumable: bool = False  # a run that is killed and resumed gives the losses of one that is not
    memory_model: bool = False  # launch/planning/estimate covers it
    # the loss is computed without the logits of a whole micro batch (with recipe.liger)
    fuses_loss: bool = False
    live_reference: bool = False  # the reference model is in memory and runs in each step
    # a pair's weight in the loss depends on the tokens of its micro batch
    weighs_pairs: bool = False
    # steps between checkpoints without recipe.checkpoint_steps; null: none
    checkpoint_steps: int | None = None
    push_takes_checkpoints: bool = False  # hub.push uploads them too
    writes_to_cwd: bool = False  # it makes folders in the current folder
    # launch/worker/patches: those that fit it, as they are applied
    patches: list[str] = field(default_factory=list)
    # `validation`, `preview`, or what it cannot learn (see `learns`): the reason why
    unsupported_because: dict[str, str] = field(default_factory=dict)
    # what it can learn besides all answers: `last` and `marked` (data.train_on), `text`
    # (data.format): the flags of each
    learns: dict[str, dict[str, Any]] = field(default_factory=dict)
    launch: dict[str, str] = field(default_factory=dict)  # what `launch` computes: its flag
    flags: dict[str, Any] = field(default_factory=dict)  # of every run
    cpu_flags: dict[str, Any] = field(default_factory=dict)  # the same on CPUs
    # the same for adapters, by precision
    lora_flags: dict[str, dict[str, Any]] = field(default_factory=dict)
    validation_flags: dict[str, Any] = field(default_factory=dict)  # the same with data.validation
    tracking: dict[str, dict[str, Any]] = field(default_factory=dict)  # value of `tracking`: flags
    push: dict[str, Any] = field(default_factory=dict)  # flags of hub.push


class Buckets(StrEnum):
    """How much DeepSpeed gathers and reduces at a time: selects a file of
    accelerate_configs/deepspeed.
    """

    usual = "usual"
    small = "small"  # a fifth of the usual size, for ZeRO 1 and 2
    large = "large"  # for ZeRO 3, whose usual size follows from the hidden size


@dataclass
class ParallelConfig:
    mode: Mode = Mode.auto  # how the ranks share the model; the group parallel= sets it
    buckets: Buckets = Buckets.usual  # how much DeepSpeed gathers and reduces at a time


@dataclass
class UpstreamConfig:
    # an open-instruct checkout; null: OPEN_INSTRUCT_DIR, else external/open-instruct
    dir: str | None = None


@dataclass
class HubConfig:
    """A push of the model to the Hugging Face hub at the end of the run, by the trainer's own
    flags.
    """

    push: str | None = None  # repository, OWNER/NAME; a new one is created private; null: no push


@dataclass
class RootConfig:
    stage: StageConfig = field(default_factory=StageConfig)
    recipe: RecipeConfig = field(default_factory=RecipeConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)  # Slurm settings, of `submit`
    flags: dict[str, Any] = field(default_factory=dict)  # the trainer's own flags, passed unchanged
    guards: GuardsConfig | None = field(default_factory=GuardsConfig)  # null: no guards
    gates: GatesConfig = field(default_factory=GatesConfig)  # of `rollout`
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    bench: BenchConfig = field(default_factory=BenchConfig)
    tune: TuneConfig = field(default_factory=TuneConfig)
    # the conditions under which an overlay of `tune` (+tuned=NAME) was measured
    tuned: TunedConfig | None = None
    nodes: int = RANKS.of(1)  # number of machines; above 1 only with `submit`
    # number of GPUs of each machine; 0: one CPU process; null: 1, or by `device`
    gpus: int | None = RANKS_OR_ZERO.of(None)
    device: Device | None = None  # what trains; null: by gpus and processes
    processes: int | None = RANKS.of(None)  # ranks of each machine with device=cpu
    name: str | None = None  # name of the run folder; null: width and plan identity
    runs: str = "runs"  # folder of all run folders
    # folder of tokenised data and reference log-probs; null: `.cache` below `runs`
    cache: str | None = None
    # torch's allocator on GPUs reserves less memory; your own PYTORCH_CUDA_ALLOC_CONF wins
    expandable_segments: bool = True
    python: str | None = None  # the trainer's Python interpreter; null: the launcher's
    upstream: UpstreamConfig = field(default_factory=UpstreamConfig)
    restart: bool = False  # archive an earlier run of the same plan and start over
    cache_only: bool = False  # only build the tokenised data, on the CPU
    tracking: Tracking = Tracking.none  # where metrics go besides the run folder
    # project, or experiment, in the tracker; null: its own variable, such as WANDB_PROJECT, or "launch"
    tracking_project: str | None = None
    # user, team or workspace in the tracker; null: its own variable, such as WANDB_ENTITY
    tracking_entity: str | None = None
    hub: HubConfig = field(default_factory=HubConfig)
    report: bool = True  # write report.html, a page with curves, evidence and plan, at the end
    evaluate: bool = False  # score the model against its base once the run is done, as `eval` does
    detach: bool = False  # return once the run has started; it survives the terminal
    # ids of findings that become warnings; a message ends with its id
    allow: list[str] = field(default_factory=list)
