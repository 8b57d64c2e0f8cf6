"""The exact command: launcher, worker, trainer and its flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launch import resources
from launch.config.schema import Device, Family, Launcher, TrainerConfig
from launch.planning.batch import Batch
from launch.planning.parallel import Parallel
from launch.planning.rendezvous import MAIN_HOST, MAIN_PORT, NODE_RANK

# seconds that a node waits for the others to start; torch gives up after 600 (static_tcp_rendezvous.py:28), too early
# where hundreds of nodes read Python from one file system
_RENDEZVOUS = ("--rdzv_conf", "timeout=1800")


def build_command(
    *,
    python: str,
    trainer: TrainerConfig,
    entry: str,
    parallel: Parallel,
    batch: Batch,
    clip: float | None,
    patches: Sequence[str],
    options: Sequence[str],
    expected: Mapping[str, str],
    allowed: Sequence[str],
    trainer_argv: Sequence[str],
) -> tuple[str, ...]:
    """Build the argument list of a run.

    `entry` is the script's path (open-instruct) or the module whose flags launch's own entry takes (TRL), `options`
    that entry's, `clip` the gradient norm to clip at (None: no clipping), `expected` what the worker checks, except
    the ids in `allowed`, `trainer_argv` the rendered flags.
    """
    uses_torchrun = trainer.launcher == Launcher.torchrun
    launcher = _torchrun(parallel) if uses_torchrun else _accelerate(parallel, batch, clip)
    worker = [str(resources.WORKER)]
    for patch in patches:
        worker += ["--patch", patch]
    for key, value in expected.items():
        worker += ["--expect", f"{key}={value}"]
    for name in allowed:
        worker += ["--allow", name]
    for option in options:
        worker += ["--option", option]
    worker += ["--script" if trainer.family == Family.open_instruct else "--entry", entry, "--"]
    return (python, "-m", *launcher, *worker, *trainer_argv)


def _accelerate(parallel: Parallel, batch: Batch, clip: float | None) -> list[str]:
    width = parallel.width
    argv = ["accelerate.commands.launch", "--config_file", str(parallel.accelerate_file)]
    if width.device == Device.cpu and width.world_size == 1 and not parallel.zero_stage:
        argv.append("--cpu")
    argv += ["--num_processes", str(width.world_size), "--num_machines", str(width.nodes)]
    if width.nodes == 1:
        argv += ["--main_process_port", "0"]
    else:
        argv += ["--machine_rank", NODE_RANK, "--main_process_ip", MAIN_HOST, "--main_process_port", MAIN_PORT]
        argv += _RENDEZVOUS
    argv += ["--mixed_precision", "bf16" if parallel.precision == "bf16" else "no", "--dynamo_backend", "no"]
    if parallel.deepspeed_file:
        # `auto` in the file would become 1.0 whatever the recipe says (accelerate accelerator.py:2224)
        argv += ["--deepspeed_config_file", str(parallel.deepspeed_file)]
        if width.nodes > 1:
            argv += ["--deepspeed_multinode_launcher", "standard"]
        argv += ["--gradient_accumulation_steps", str(batch.accumulation), "--gradient_clipping", repr(clip or 0.0)]
    return argv


def _torchrun(parallel: Parallel) -> list[str]:
    width = parallel.width
    if width.nodes == 1:
        return ["torch.distributed.run", "--standalone", "--nproc_per_node", str(width.world_size)]
    argv = ["torch.distributed.run", "--nnodes", str(width.nodes), "--node_rank", NODE_RANK]
    argv += ["--master_addr", MAIN_HOST, "--master_port", MAIN_PORT]  # static: the first node has rank 0
    argv += _RENDEZVOUS
    return [*argv, "--nproc_per_node", str(width.local)]
