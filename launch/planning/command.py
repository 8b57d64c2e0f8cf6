"""The exact command: launcher, worker, trainer and its flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launch import project
from launch.config.schema import Device, Family, Launcher, TrainerConfig
from launch.planning.batch import Batch
from launch.planning.parallel import Parallel


def build_command(
    *,
    python: str,
    trainer: TrainerConfig,
    entry: str,
    parallel: Parallel,
    batch: Batch,
    clip: float | None,
    patches: Sequence[str],
    flag_words: Sequence[str],
) -> tuple[str, ...]:
    """The argument list of a run. `entry` is the script's path (open-instruct) or the module's name (TRL); `clip` the
    gradient norm to clip at, None for no clipping; `flag_words` the trainer's rendered flags."""
    torchrun = trainer.launcher == Launcher.torchrun
    started = _torchrun(parallel) if torchrun else _accelerate(parallel, batch, clip)
    worker = [str(project.WORKER)]
    for patch in patches:
        worker += ["--patch", patch]
    if not torchrun:
        for key, value in parallel.expectations().items():
            worker += ["--expect", f"{key}={value}"]
    worker += ["--script" if trainer.family == Family.open_instruct else "--module", entry, "--"]
    return (python, "-m", *started, *worker, *flag_words)


def _accelerate(parallel: Parallel, batch: Batch, clip: float | None) -> list[str]:
    width = parallel.width
    words = ["accelerate.commands.launch", "--config_file", str(parallel.accelerate_file)]
    if width.device == Device.cpu and width.world_size == 1 and not parallel.zero_stage:
        words.append("--cpu")
    words += ["--num_processes", str(width.world_size), "--num_machines", "1", "--main_process_port", "0"]
    words += ["--mixed_precision", "bf16" if parallel.precision == "bf16" else "no", "--dynamo_backend", "no"]
    if parallel.deepspeed_file:
        # `auto` in the file would become 1.0 whatever the recipe says (accelerate accelerator.py:2170)
        words += ["--deepspeed_config_file", str(parallel.deepspeed_file)]
        words += ["--gradient_accumulation_steps", str(batch.accumulation), "--gradient_clipping", repr(clip or 0.0)]
    return words


def _torchrun(parallel: Parallel) -> list[str]:
    return ["torch.distributed.run", "--standalone", "--nproc_per_node", str(parallel.width.world_size)]


def render_flags(flags: Mapping[str, Any]) -> list[str]:
    """Flags as words without a schema at hand: `--name value`, booleans as true and false, lists as several words."""
    words: list[str] = []
    for name, value in flags.items():
        items = value if isinstance(value, (list, tuple)) else [value]
        texts = [_text(item) for item in items]
        if len(texts) == 1 and texts[0].startswith("-"):
            words.append(f"--{name}={texts[0]}")
        else:
            words += [f"--{name}", *texts]
    return words


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
