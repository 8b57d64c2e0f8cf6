"""Builds the command of a run: launcher, worker with its patches and options, and the trainer's flags.

The worker checks the patches and the options again.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch import resources
from launch.config.recipe_keys import LossAveraging, Precision
from launch.config.schema import Device, Family, Launcher, RootConfig, TrainerConfig
from launch.planning.batch_split import Batch
from launch.planning.checks import render_argv
from launch.planning.expectations import allowed_expectations, build_expectations
from launch.planning.flags import Flag, Flags, values_of
from launch.planning.inputs import Inputs
from launch.planning.learnt import requested_learning
from launch.planning.machine import Machine
from launch.planning.mixture import MixtureEntry
from launch.planning.parallel import Parallel
from launch.planning.rlvr import verifier_option
from launch.planning.stage_model import continues_adapter
from launch.worker.moves import follow_shim, path_at_pin

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
    return str(folder / follow_shim(folder, path_at_pin(trainer.entry)))


def build_command(
    config: RootConfig,
    machine: Machine,
    parallel: Parallel,
    batch: Batch,
    *,
    flags: Mapping[str, Flag],
    patches: Sequence[str],
    options: Sequence[str],
    mixture: Sequence[MixtureEntry],
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
    for key, value in build_expectations(config, parallel, mixture).items():
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
        # `auto` in the file would become 1.0 whatever the recipe sets (accelerate
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
        "olmo_core_single_step": parallel.width.world_size == 1 and not on_cpu,
        "olmo_core_resume": None,  # likewise
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
            "learns": requested_learning(config),
            "validation": None if inputs.held_out is None else repr(inputs.held_out),
            "subset": flags.subset,
            "mixture": flags.mixture,
            "chat_template": template,
            "continue_adapter": continues_adapter(config),
            "adapter_init": recipe.lora.init if recipe.lora.rank is not None else None,
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
    "olmo_core_async_saves",
    "olmo_core_export",
    "olmo_core_first_checkpoint",
    "olmo_core_packed_data",
    "olmo_core_signals",
    "olmo_core_steps",
    "reward_steps",
    "saving",
)


def is_decisive(argument: str) -> bool:
    """Return whether a patch or an option, with or without its value, decides what a run trains.

    Only those that do are part of the run's identity.
    """
    return argument.partition("=")[0] not in _NOT_DECISIVE


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
