"""How a run is started: the command with what the worker is told (patches, options, expectations),
and the environment.

The worker checks patches and options again; the keys and values of expectations are those of
launch/worker/expectations.py. What the recipe leaves open is not checked.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch import resources
from launch.config.schema import (
    Device,
    Family,
    Kind,
    Launcher,
    LossAveraging,
    Packing,
    Quantization,
    RootConfig,
    TrainerConfig,
)
from launch.planning.flags import Flags, values_of
from launch.planning.inputs import Inputs, continues_adapter
from launch.planning.parallel import Batch, Parallel
from launch.planning.recipe import flags_of_key
from launch.planning.rlvr import verifier_option

# seconds that a node waits for the others to start; torch gives up after 600
# (static_tcp_rendezvous.py:28), too early where hundreds of nodes read Python from one file system
_RENDEZVOUS = ("--rdzv_conf", "timeout=1800")


def trainer_entry(trainer: TrainerConfig, checkout: Path | None) -> str:
    """Return what the worker runs: the script's path (the default one without a checkout), or the
    module's name.
    """
    if trainer.family == Family.trl:
        return trainer.entry
    return str((checkout or Path("external/open-instruct")) / trainer.entry)


def build_command(
    config: RootConfig,
    parallel: Parallel,
    batch: Batch,
    *,
    python: str,
    checkout: Path | None,
    patches: Sequence[str],
    options: Sequence[str],
    trainer_argv: Sequence[str],
) -> tuple[str, ...]:
    """Build the argument list of a run: `options` of launch's own entry, `trainer_argv` the
    rendered flags.
    """
    trainer = config.trainer
    launcher: list[str] = []  # of Ray's trainers, which start their processes themselves
    if trainer.launcher == Launcher.torchrun:
        launcher = ["-m", *_torchrun(parallel)]
    elif trainer.launcher == Launcher.accelerate:
        launcher = ["-m", *_accelerate(parallel, batch, config.recipe.max_grad_norm)]
    worker = [str(resources.WORKER)]
    for patch in patches:
        worker += ["--patch", patch]
    for key, value in build_expectations(config, parallel).items():
        worker += ["--expect", f"{key}={value}"]
    for name in allowed_expectations(config):
        worker += ["--allow", name]
    for option in options:
        worker += ["--option", option]
    worker += [
        "--script" if trainer.family == Family.open_instruct else "--entry",
        trainer_entry(trainer, checkout),
    ]
    return (python, *launcher, *worker, "--", *trainer_argv)


def _accelerate(parallel: Parallel, batch: Batch, clip: float | None) -> list[str]:
    """`clip`: the gradient norm to clip at; None: no clipping."""
    width = parallel.width
    argv = ["accelerate.commands.launch", "--config_file", str(parallel.accelerate_file)]
    if width.device == Device.cpu and width.world_size == 1 and not parallel.zero_stage:
        argv.append("--cpu")
    argv += ["--num_processes", str(width.world_size), "--num_machines", str(width.nodes)]
    if width.nodes == 1:
        argv += ["--main_process_port", "0"]
    else:
        argv += [
            "--machine_rank",
            NODE_RANK,
            "--main_process_ip",
            MAIN_HOST,
            "--main_process_port",
            MAIN_PORT,
        ]
        argv += _RENDEZVOUS
    argv += [
        "--mixed_precision",
        "bf16" if parallel.precision == "bf16" else "no",
        "--dynamo_backend",
        "no",
    ]
    if parallel.deepspeed_file:
        # `auto` in the file would become 1.0 whatever the recipe says (accelerate
        # accelerator.py:2224)
        argv += ["--deepspeed_config_file", str(parallel.deepspeed_file)]
        if width.nodes > 1:
            argv += ["--deepspeed_multinode_launcher", "standard"]
        argv += [
            "--gradient_accumulation_steps",
            str(batch.accumulation),
            "--gradient_clipping",
            repr(clip or 0.0),
        ]
    return argv


def _torchrun(parallel: Parallel) -> list[str]:
    width = parallel.width
    if width.nodes == 1:
        return ["torch.distributed.run", "--standalone", "--nproc_per_node", str(width.world_size)]
    argv = ["torch.distributed.run", "--nnodes", str(width.nodes), "--node_rank", NODE_RANK]
    # static: the first node has rank 0
    argv += ["--master_addr", MAIN_HOST, "--master_port", MAIN_PORT]
    argv += _RENDEZVOUS
    return [*argv, "--nproc_per_node", str(width.local)]


def choose_patches(
    config: RootConfig, parallel: Parallel, inputs: Inputs, flags: Flags
) -> tuple[str, ...]:
    """Return the ids of the trainer's patches that this run wants, with `=VALUE` where a patch
    takes a value.

    The order is that of the trainer's file, and that of their application.
    """
    conditions = patch_conditions(config, parallel, inputs, flags)
    return _with_values({name: conditions.get(name, True) for name in config.trainer.patches})


def patch_conditions(
    config: RootConfig, parallel: Parallel, inputs: Inputs, flags: Flags
) -> dict[str, bool | str | None]:
    """Return by id whether this run wants a patch, or its VALUE; every run of its trainers wants
    one without a line.
    """
    on_cpu, zero_stage = parallel.width.device == Device.cpu, parallel.zero_stage or 0
    values = values_of(flags.flags)
    packs = config.trainer.always_packs or values.get("packing") is True
    template = _template_file(flags)
    return {
        "adapter_inputs": bool(
            values.get("use_lora") and not values.get("lora_dropout") and not zero_stage
        ),
        "balanced_batches": config.recipe.balanced,
        "chat_template": template
        if template and Path(template).stem == values.get("chat_template_name")
        else None,
        "cuda_memory_on_cpu": on_cpu,
        "deepspeed_on_cpu": on_cpu and zero_stage > 0,
        "dpo_cpu_device": on_cpu,
        "dpo_packed_padding": packs,
        "dpo_single_process_group": parallel.width.world_size == 1 and not zero_stage,
        "dpo_unlisted_gpu": not on_cpu,
        "exact_resume": None,  # added when a run resumes
        "finetune_local_model": inputs.model.local is not None,
        "lengths": None,  # added where the lengths are not known
        "olmo_core_documents": packs,
        "olmo_core_on_cpu": on_cpu,
        "preview": None,  # added by `preview` and `check`
        "token_sums": config.recipe.loss_averaging == LossAveraging.sum,
        "token_weighting": config.recipe.loss_averaging == LossAveraging.tokens,
    }


def choose_options(
    config: RootConfig, parallel: Parallel, inputs: Inputs, flags: Flags
) -> tuple[str, ...]:
    """Return the options of launch's entry for TRL that this run wants, likewise; none for another
    trainer.
    """
    if config.trainer.family != Family.trl:
        return ()
    recipe = config.recipe
    return _with_values(
        {
            "validation": None if inputs.held_out is None else repr(inputs.held_out),
            "subset": flags.subset,
            "mixture": flags.mixture,
            "chat_template": None if "chat_template_path" in flags.flags else _template_file(flags),
            "continue_adapter": continues_adapter(config),
            "early_stop": None if recipe.early_stop is None else str(recipe.early_stop),
            "samples": None if recipe.sample_every is None else str(recipe.sample_every),
            "verifier": verifier_option(config, inputs.verifiers),
        }
    )


def _template_file(flags: Flags) -> str | None:
    return str(flags.template.file) if flags.template and flags.template.file else None


def _with_values(wanted: Mapping[str, bool | str | None]) -> tuple[str, ...]:
    return tuple(
        f"{name}={value}" if isinstance(value, str) else name
        for name, value in wanted.items()
        if value
    )


# they leave the numbers as they are
_NOT_DECISIVE = (
    "adapter_inputs",
    "dataset_cache",
    "dpo_steps",
    "finetune_steps",
    "lengths",
    "olmo_core_first_checkpoint",
    "olmo_core_packed_data",
    "olmo_core_steps",
    "reward_steps",
    "saving",
)


def is_decisive(wanted: str) -> bool:
    """Whether a patch or an option decides what a run trains; what does not is no part of its
    identity.
    """
    return wanted.partition("=")[0] not in _NOT_DECISIVE


_LIGER_LAYERS = "rms_norm,rope,swiglu"
# open-instruct's SFT fuses the loss too (finetune.py:586). Its DPO needs the logits and sets
# fused_linear_cross_entropy=False (dpo_tune_cache.py:328), and TRL has a fused head of its own
# (sft_trainer.py:1140).
_LIGER_FUSED = f"{_LIGER_LAYERS},fused_linear_cross_entropy"
# With these flags the sequences of a rank's forward passes are not its samples: several ranks share
# one, or a flat row is padded with positions that begin nothing.
_SPLIT_SAMPLES = (
    "sequence_parallel_size",
    "cp_degree",
    "context_parallel_degree",
    "pad_to_multiple_of",
)
# recipe key -> expectation, where they differ
_NAMES_OF_EVIDENCE = {"max_grad_norm": "clip", "lora.rank": "lora", "lora.quantize": "base_dtype"}


def build_expectations(config: RootConfig, parallel: Parallel) -> dict[str, str]:
    """Return the `--expect` pairs of a plan: accelerate's state, and what the model, optimizer and
    batches show.

    OLMo-core's trainers, which torchrun starts, have no Accelerator: only their ranks and device
    are checked.
    """
    if config.trainer.launcher == Launcher.ray:
        return {}
    state = parallel.expectations()
    if config.trainer.launcher == Launcher.torchrun:
        state = {name: state[name] for name in ("world_size", "device")}
    return {**state, **requested_settings(config, parallel)}


def requested_settings(config: RootConfig, parallel: Parallel) -> dict[str, str]:
    """Return the settings that the recipe requests, by the keys of the evidence.

    A recipe key is left out when the user sets its flag with `flags.NAME=`: the flag wins over the
    recipe.
    """
    requested = _settings_of_recipe(config, parallel)
    if config.trainer.lora_flags.get(parallel.precision, {}).keys() & config.flags.keys():
        requested.pop("base_dtype", None)
    for key, entry in config.trainer.recipe.items():
        if flags_of_key(entry) & config.flags.keys():
            requested.pop(_NAMES_OF_EVIDENCE.get(key, key), None)
    if "packing" not in requested:  # nor is it known what the rows hold
        requested.pop("global_batch", None)
    return requested


def overridden_settings(config: RootConfig, parallel: Parallel) -> dict[str, str]:
    """Return the settings of the recipe that nothing checks, because a flag of the user's stands in
    their place.
    """
    checked = requested_settings(config, parallel)
    return {
        name: value
        for name, value in _settings_of_recipe(config, parallel).items()
        if name not in checked
    }


def _settings_of_recipe(config: RootConfig, parallel: Parallel) -> dict[str, str]:
    recipe = config.recipe
    requested = {
        "packing": recipe.packing.value,
        "gradient_checkpointing": str(recipe.gradient_checkpointing).lower(),
        "clip": repr(float(recipe.max_grad_norm)) if recipe.max_grad_norm else "none",
    }
    if recipe.packing != Packing.bins and config.flags.keys().isdisjoint(_SPLIT_SAMPLES):
        unit = {Kind.sft: "samples", Kind.rlvr: "completions"}.get(config.data.kind, "pairs")
        requested["global_batch"] = f"{recipe.global_batch_size} {unit}"
    if recipe.liger:
        fuses = config.trainer.fuses_loss and config.trainer.family == Family.open_instruct
        requested["liger"] = _LIGER_FUSED if fuses else _LIGER_LAYERS
    if recipe.balanced:
        requested["balanced"] = "true"
    if recipe.loss_averaging is not None:
        requested["loss_averaging"] = recipe.loss_averaging.value
    if recipe.attention != "auto":
        requested["attention"] = recipe.attention
    if recipe.chat_template:
        requested["chat_template"] = recipe.chat_template
    if recipe.lora.rank is not None:
        requested["lora"] = str(recipe.lora.rank)
        quantized = recipe.lora.quantize != Quantization.none
        requested["base_dtype"] = (
            recipe.lora.quantize.value if quantized else parallel.precision.value
        )
        requested["first_update"] = "adapter"
    return {"dtype": parallel.precision.value, **requested}


def allowed_expectations(config: RootConfig) -> tuple[str, ...]:
    """Return the ids in `allow` that turn a failed expectation into a warning."""
    allowed = [name for name in config.allow if name.startswith(("refuted_", "unproven_"))]
    if "data_small_epoch" in config.allow:  # the plan found the same of local data
        allowed.append("refuted_global_batch")
    return tuple(dict.fromkeys(allowed))


# Variables of another scheduler or another launcher that would change what the trainer does:
# BEAKER_JOB_ID moves the tokenised cache to a path of its own (finetune.py:428),
# BEAKER_EXPERIMENT_ID needs a folder of its own (utils.py:1790), GIT_COMMIT makes it query GitHub
# without a time-out (utils.py:770); the others belong to an enclosing launch.
# BEAKER_ASSIGNED_CPU_COUNT stays: it only sets how many processes tokenise
# (dataset_transformation.py:1952).
_FOREIGN = (
    *(
        "BEAKER_JOB_ID",
        "BEAKER_EXPERIMENT_ID",
        "BEAKER_WORKLOAD_ID",
        "BEAKER_NODE_HOSTNAME",
        "GIT_COMMIT",
    ),
    *(
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
    ),
    *(
        "ACCELERATE_USE_CPU",
        "ACCELERATE_USE_DEEPSPEED",
        "ACCELERATE_USE_FSDP",
        "ACCELERATE_MIXED_PRECISION",
    ),
    *("ACCELERATE_GRADIENT_CLIPPING", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"),
    *("ACCELERATE_DEEPSPEED_CONFIG_FILE", "ACCELERATE_DEEPSPEED_ZERO_STAGE"),
)

# Settings of torch's allocator: the first of them that is set counts. Older versions of torch read
# the second only, ROCm also the third (torch c10/core/AllocatorConfig.h,
# c10/cuda/CUDAAllocatorConfig.h).
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_EXPANDABLE_SEGMENTS = "expandable_segments:True"


def build_environment(
    trainer: TrainerConfig,
    parallel: Parallel,
    checkout: Path | None,
    reference_cache: Path,
    environ: Mapping[str, str],
    *,
    expandable_segments: bool,
) -> dict[str, str]:
    """Return the variables that a run sets.

    PYTHONPATH keeps the value of `environ` behind the checkout. `expandable_segments` applies to
    GPUs, unless `environ` sets torch's allocator itself; vLLM's sleep mode does not work with it.
    """
    variables = {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
    if parallel.width.device == Device.cpu:
        variables["CUDA_VISIBLE_DEVICES"] = ""
        if parallel.width.world_size > 1 and not parallel.zero_stage:
            # accelerate's --cpu silently starts one process
            variables["ACCELERATE_USE_CPU"] = "true"
    elif expandable_segments and not any(environ.get(name) for name in ALLOCATOR_VARIABLES):
        variables |= dict.fromkeys(ALLOCATOR_VARIABLES[:2], _EXPANDABLE_SEGMENTS)
    if trainer.family == Family.open_instruct and trainer.kind == Kind.dpo:
        # its default is an absolute path of another cluster, which root creates silently
        # (dpo_utils.py:191)
        variables["REFERENCE_LOGPROBS_CACHE_PATH"] = str(reference_cache)
    # verifiers may call it
    if checkout and (trainer.family == Family.open_instruct or trainer.kind == Kind.rlvr):
        inherited = environ.get("PYTHONPATH")
        variables["PYTHONPATH"] = os.pathsep.join(
            [str(checkout), *([inherited] if inherited else [])]
        )
    return variables


def has_expandable_segments(variables: Mapping[str, str]) -> bool:
    """Return whether torch's allocator uses expandable segments under these variables."""
    settings = next((variables[name] for name in ALLOCATOR_VARIABLES if variables.get(name)), "")
    return _EXPANDABLE_SEGMENTS in settings.replace(" ", "")


def variables_to_unset(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that a run removes: the foreign ones that it does not set itself."""
    return tuple(name for name in _FOREIGN if name not in variables)


NODE_RANK = "$LAUNCH_NODE_RANK"
MAIN_HOST = "$LAUNCH_MAIN_HOST"
MAIN_PORT = "$LAUNCH_MAIN_PORT"


@dataclass(frozen=True)
class NodeRendezvous:
    """How one node joins a run."""

    node_rank: int
    main_host: str  # where rank 0 listens
    main_port: int

    def variables(self) -> dict[str, str]:
        """Return the placeholders as shell variables, by name without the dollar."""
        values = {
            NODE_RANK: str(self.node_rank),
            MAIN_HOST: self.main_host,
            MAIN_PORT: str(self.main_port),
        }
        return {placeholder[1:]: value for placeholder, value in values.items()}


def fill_placeholders(command: Sequence[str], rendezvous: NodeRendezvous) -> tuple[str, ...]:
    """Return the command of one node."""
    values = {f"${name}": value for name, value in rendezvous.variables().items()}
    return tuple(values.get(argument, argument) for argument in command)


def quote_argument(argument: str) -> str:
    """Quote an argument for a shell, which fills in the placeholders."""
    return (
        f'"{argument}"' if argument in (NODE_RANK, MAIN_HOST, MAIN_PORT) else shlex.quote(argument)
    )
