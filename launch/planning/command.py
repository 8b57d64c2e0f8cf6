"""Builds the command and the environment of a run.

The command has the patches, the options and the expectations of the worker, which checks patches
and options again. The keys and values of expectations are those of launch/worker/expectations.py. A
setting that the recipe leaves open is not checked.
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
    Precision,
    Quantization,
    RootConfig,
    TrainerConfig,
)
from launch.planning.checks import render_argv
from launch.planning.flags import Flag, Flags, values_of
from launch.planning.inputs import Inputs, continues_adapter
from launch.planning.machine import Machine
from launch.planning.parallel import Batch, Parallel
from launch.planning.recipe import flags_of_key
from launch.planning.rlvr import verifier_option

# How many seconds a node waits for the others to start. Torch's default of 600
# (static_tcp_rendezvous.py:28) is too short when hundreds of nodes read Python from one file system.
_RENDEZVOUS = ("--rdzv_conf", "timeout=1800")


def trainer_entry(trainer: TrainerConfig, checkout: Path | None) -> str:
    """Return what the worker runs: the name of launch's module for TRL, or the path of
    open-instruct's script, in the default folder without a checkout.
    """
    if trainer.family == Family.trl:
        return trainer.entry
    folder = checkout or Path("external/open-instruct")
    return str(folder / trainer.entry)


def build_command(
    config: RootConfig,
    machine: Machine,
    parallel: Parallel,
    batch: Batch,
    *,
    flags: Mapping[str, Flag],
    patches: Sequence[str],
    options: Sequence[str],
) -> tuple[str, ...]:
    """Build the argument list of a run. `flags` are checked; `options` are those of launch's own
    entry over TRL.
    """
    trainer = config.trainer
    launcher: list[str] = []  # empty for Ray's trainers, which start their processes themselves
    if trainer.launcher == Launcher.torchrun:
        launcher = ["-m", *_torchrun_argv(parallel)]
    elif trainer.launcher == Launcher.accelerate:
        launcher = ["-m", *_accelerate_argv(parallel, batch, config.recipe.max_grad_norm)]
    worker = [str(resources.WORKER)]
    for patch in patches:
        worker += ["--patch", patch]
    for key, value in build_expectations(config, parallel).items():
        worker += ["--expect", f"{key}={value}"]
    for name in allowed_expectations(config):
        worker += ["--allow", name]
    for option in options:
        worker += ["--option", option]
    entry_option = "--script" if trainer.family == Family.open_instruct else "--entry"
    worker += [entry_option, trainer_entry(trainer, machine.upstream.checkout)]
    trainer_argv = render_argv(machine.schemas[trainer.name], flags)
    return (machine.python, *launcher, *worker, "--", *trainer_argv)


def _accelerate_argv(parallel: Parallel, batch: Batch, clip: float | None) -> list[str]:
    """Return the arguments of accelerate. `clip` is the gradient norm to clip at; None disables
    clipping.
    """
    width = parallel.width
    argv = ["accelerate.commands.launch", "--config_file", str(parallel.accelerate_file)]
    if width.device == Device.cpu and width.world_size == 1 and not parallel.zero_stage:
        argv.append("--cpu")
    argv += ["--num_processes", str(width.world_size), "--num_machines", str(width.nodes)]
    if width.nodes == 1:
        argv += ["--main_process_port", "0"]
    else:
        argv += ["--machine_rank", NODE_RANK]
        argv += ["--main_process_ip", MAIN_HOST, "--main_process_port", MAIN_PORT]
        argv += _RENDEZVOUS
    mixed_precision = "bf16" if parallel.precision == Precision.bf16 else "no"
    argv += ["--mixed_precision", mixed_precision, "--dynamo_backend", "no"]
    if parallel.deepspeed_file:
        # `auto` in the file would become 1.0 whatever the recipe says (accelerate
        # accelerator.py:2224)
        argv += ["--deepspeed_config_file", str(parallel.deepspeed_file)]
        if width.nodes > 1:
            argv += ["--deepspeed_multinode_launcher", "standard"]
        argv += ["--gradient_accumulation_steps", str(batch.accumulation)]
        argv += ["--gradient_clipping", repr(clip or 0.0)]
    return argv


def _torchrun_argv(parallel: Parallel) -> list[str]:
    """Return the arguments of torchrun."""
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
    """Return the ids of the trainer's patches that this run needs, with `=VALUE` where a patch
    takes a value.

    The order is that of the trainer's file, in which they are applied.
    """
    conditions = patch_conditions(config, parallel, inputs, flags)
    patches = {name: conditions.get(name, True) for name in config.trainer.patches}
    return _render_chosen(patches)


def patch_conditions(
    config: RootConfig, parallel: Parallel, inputs: Inputs, flags: Flags
) -> dict[str, bool | str | None]:
    """Return whether this run needs a patch, or the patch's VALUE, by the id of the patch.

    A patch that is not listed here is needed by every run of the trainers that name it.
    """
    on_cpu = parallel.width.device == Device.cpu
    zero_stage = parallel.zero_stage or 0
    values = values_of(flags.flags)
    packs = config.trainer.always_packs or values.get("packing") is True
    trains_adapter = bool(values.get("use_lora"))
    has_dropout = bool(values.get("lora_dropout"))
    template = _template_file(flags)
    if template is not None and Path(template).stem != values.get("chat_template_name"):
        template = None
    return {
        "adapter_inputs": trains_adapter and not has_dropout and not zero_stage,
        "balanced_batches": config.recipe.balanced,
        "chat_template": template,
        "cuda_memory_on_cpu": on_cpu,
        "deepspeed_on_cpu": on_cpu and zero_stage > 0,
        "dpo_cpu_device": on_cpu,
        "dpo_packed_padding": packs,
        "dpo_single_process_group": parallel.width.world_size == 1 and not zero_stage,
        "dpo_unlisted_gpu": not on_cpu,
        "exact_resume": None,  # is added when a run resumes
        "finetune_local_model": inputs.model.local is not None,
        "lengths": None,  # is added if the lengths are not known
        "olmo_core_documents": packs,
        "olmo_core_on_cpu": on_cpu,
        "preview": None,  # is added by `preview` and `check`
        "token_sums": config.recipe.loss_averaging == LossAveraging.sum,
        "token_weighting": config.recipe.loss_averaging == LossAveraging.tokens,
    }


def choose_options(
    config: RootConfig, parallel: Parallel, inputs: Inputs, flags: Flags
) -> tuple[str, ...]:
    """Return the options of launch's entry over TRL that this run needs, with `=VALUE` where an
    option takes a value; none for another trainer.
    """
    if config.trainer.family != Family.trl:
        return ()
    recipe = config.recipe
    template = None if "chat_template_path" in flags.flags else _template_file(flags)
    return _render_chosen(
        {
            "validation": None if inputs.held_out is None else repr(inputs.held_out),
            "subset": flags.subset,
            "mixture": flags.mixture,
            "chat_template": template,
            "continue_adapter": continues_adapter(config),
            "early_stop": None if recipe.early_stop is None else str(recipe.early_stop),
            "samples": None if recipe.sample_every is None else str(recipe.sample_every),
            "verifier": verifier_option(config, inputs.verifiers),
        }
    )


def _template_file(flags: Flags) -> str | None:
    """Return the file of the recipe's chat template; None without one."""
    template = flags.template
    return str(template.file) if template and template.file else None


def _render_chosen(values: Mapping[str, bool | str | None]) -> tuple[str, ...]:
    """Return the chosen patches or options: `NAME`, or `NAME=VALUE` for a text."""
    rendered = []
    for name, value in values.items():
        if isinstance(value, str) and value:
            rendered.append(f"{name}={value}")
        elif value:
            rendered.append(name)
    return tuple(rendered)


# Patches and options that do not change what is computed.
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


def is_decisive(argument: str) -> bool:
    """Return whether a patch or an option, with or without its value, decides what a run trains.

    Only those that do are part of the run's identity.
    """
    return argument.partition("=")[0] not in _NOT_DECISIVE


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
# The key of the evidence by the key of the recipe, where they differ.
_NAMES_OF_EVIDENCE = {"max_grad_norm": "clip", "lora.rank": "lora", "lora.quantize": "base_dtype"}


def build_expectations(config: RootConfig, parallel: Parallel) -> dict[str, str]:
    """Return the `--expect` pairs of a plan: accelerate's state, and the settings that show in the
    model, the optimizer and the batches.

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
    if "packing" not in requested:  # it is unknown how many samples a row holds
        requested.pop("global_batch", None)
    return requested


def overridden_settings(config: RootConfig, parallel: Parallel) -> dict[str, str]:
    """Return the settings of the recipe that are not checked, because a flag of the user's
    overrides them.
    """
    checked = requested_settings(config, parallel)
    settings = _settings_of_recipe(config, parallel)
    return {name: value for name, value in settings.items() if name not in checked}


def _settings_of_recipe(config: RootConfig, parallel: Parallel) -> dict[str, str]:
    """Return the settings of the recipe, by the keys of the evidence."""
    recipe = config.recipe
    requested = {
        "dtype": parallel.precision.value,
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
        requested["base_dtype"] = parallel.precision.value
        if recipe.lora.quantize != Quantization.none:
            requested["base_dtype"] = recipe.lora.quantize.value
        requested["first_update"] = "adapter"
    return requested


def allowed_expectations(config: RootConfig) -> tuple[str, ...]:
    """Return the ids in `allow` that turn a failed expectation into a warning."""
    allowed = [name for name in config.allow if name.startswith(("refuted_", "unproven_"))]
    if "data_small_epoch" in config.allow:  # it is what the plan reports of local data
        allowed.append("refuted_global_batch")
    return tuple(dict.fromkeys(allowed))


# Variables of another scheduler or another launcher that would change what the trainer does:
# BEAKER_JOB_ID moves the tokenised cache to a path of its own (finetune.py:428),
# BEAKER_EXPERIMENT_ID needs a folder of its own (utils.py:1790), GIT_COMMIT makes it query GitHub
# without a time-out (utils.py:770); the others belong to an enclosing launch.
# BEAKER_ASSIGNED_CPU_COUNT stays: it only sets how many processes tokenise
# (dataset_transformation.py:1952).
_FOREIGN = (
    "BEAKER_JOB_ID",
    "BEAKER_EXPERIMENT_ID",
    "BEAKER_WORKLOAD_ID",
    "BEAKER_NODE_HOSTNAME",
    "GIT_COMMIT",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "ACCELERATE_USE_CPU",
    "ACCELERATE_USE_DEEPSPEED",
    "ACCELERATE_USE_FSDP",
    "ACCELERATE_MIXED_PRECISION",
    "ACCELERATE_GRADIENT_CLIPPING",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "ACCELERATE_DEEPSPEED_CONFIG_FILE",
    "ACCELERATE_DEEPSPEED_ZERO_STAGE",
)

# The variables that set torch's allocator; the first one that is set counts. Older versions of torch
# read only the second, ROCm also the third (torch c10/core/AllocatorConfig.h,
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
        # upstream's default is an absolute path of another cluster, which root creates silently
        # (dpo_utils.py:191)
        variables["REFERENCE_LOGPROBS_CACHE_PATH"] = str(reference_cache)
    # RLVR's verifiers may call open-instruct
    if checkout and (trainer.family == Family.open_instruct or trainer.kind == Kind.rlvr):
        folders = [str(checkout)]
        if environ.get("PYTHONPATH"):
            folders.append(environ["PYTHONPATH"])
        variables["PYTHONPATH"] = os.pathsep.join(folders)
    return variables


def has_expandable_segments(variables: Mapping[str, str]) -> bool:
    """Return whether torch's allocator uses expandable segments under these variables."""
    for name in ALLOCATOR_VARIABLES:
        settings = variables.get(name)
        if settings:
            return _EXPANDABLE_SEGMENTS in settings.replace(" ", "")
    return False


def variables_to_unset(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that a run removes: those of other launchers that it does not set."""
    return tuple(name for name in _FOREIGN if name not in variables)


# Placeholders in a command of several nodes, which each node replaces by its own values.
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
    """Return the command of one node, with its values in place of the placeholders."""
    values = {f"${name}": value for name, value in rendezvous.variables().items()}
    return tuple(values.get(argument, argument) for argument in command)


def quote_argument(argument: str) -> str:
    """Quote an argument for a shell, which fills in the placeholders."""
    if argument in (NODE_RANK, MAIN_HOST, MAIN_PORT):
        return f'"{argument}"'
    return shlex.quote(argument)
