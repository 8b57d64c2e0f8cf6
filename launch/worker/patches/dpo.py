"""Patches for open-instruct's DPO scripts: process group, unlisted GPUs, steps, reference cache.

The step events are those of dpo_tune_cache.py, whose log line has only loss and learning rate. A
handler on its logger notices the line of each logged step and takes, from the frame that logs it,
the dictionary that the trainer would send to wandb. The trainer does not count tokens with and
without padding; they are added to its own tracker, which it reduces over the ranks at each logged
step anyway.

The disk cache of reference log-probabilities has the model's name in its key but not its content
(dpo_utils.py:369-383). `launch` uses one folder for each content of a local model; the commit of a
hub model is known only once it is loaded, so it is added here.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from .. import hooks
from ..channel import EventWriter
from ..cuda import has_cuda, peak_memory
from ..evidence import trainer_objects
from ..hooks import replaces
from .on_cpu import UNKNOWN_SPEED
from .patch import PatchContext, PatchInfo
from .shared import StepListener, listen, when_about_to_train


def _make_process_group(context: PatchContext) -> None:
    def make(built: Any) -> None:
        import torch.distributed as dist

        if dist.is_initialized() or built.num_processes != 1:
            return  # accelerate or DeepSpeed has created a group
        # The reference cache is reduced on its own device; on a GPU, barrier() needs NCCL as well.
        backend = "cpu:gloo,cuda:nccl" if built.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        atexit.register(_end_process_group)
        context.events.emit("evidence", what="process_group", value=backend)

    # The group is made after accelerate has decided: it would assume a distributed launch.
    hooks.when_built(make)


def _end_process_group() -> None:
    import torch.distributed as dist

    if dist.is_initialized():  # accelerate destroys it too when it ends a tracker's run
        dist.destroy_process_group()


def unlisted_gpu(specs: dict[str, dict[str, float]], device: str) -> str | None:
    """Return the key under which upstream would look for a GPU that its table lacks.

    `specs` is upstream's table GPU_SPECS, `device` torch's name of the GPU. None is returned if the
    table has it, as `get_device_name` would find it (utils.py:2538-2541).
    """
    name = device.lower().replace("-", " ")
    return None if any(key in name for key in specs) else name


def _not_needed_if_listed(_: PatchContext) -> str | None:
    if not has_cuda():
        return "CUDA is not available"
    import torch
    from open_instruct import utils

    device = torch.cuda.get_device_name(0)
    return None if unlisted_gpu(utils.GPU_SPECS, device) else f"upstream lists {device}"


def list_gpu(
    specs: dict[str, dict[str, float]], device: str, memory: int, context: PatchContext
) -> None:
    """Add a GPU to upstream's table, with an unknown speed, and warn about utilisation figures.

    `memory` is in bytes.
    """
    name = unlisted_gpu(specs, device)
    if name is None:
        return
    specs[name] = {
        "flops": UNKNOWN_SPEED,
        "memory_size": float(memory),
        "memory_bandwidth": UNKNOWN_SPEED,
    }
    context.events.warn(
        f"open-instruct does not know the GPU {device}: training is not affected, but its "
        "utilisation figures (perf/mfu_step, MFU%) will be 0"
    )


def _list_this_gpu(context: PatchContext) -> None:
    import torch
    from open_instruct import utils

    memory = torch.cuda.get_device_properties(0).total_memory
    list_gpu(utils.GPU_SPECS, torch.cuda.get_device_name(0), memory, context)


SINGLE_PROCESS_GROUP = PatchInfo(
    id="dpo_single_process_group",
    reason="makes a process group for a single process, because the reference cache calls "
    "torch.distributed even then",
    lines={
        "open_instruct/dpo_utils.py": {
            451: "dist.barrier()",
            491: "dist.all_reduce(chosen_tensor, op=dist.ReduceOp.MAX)",
            (518, 520): "dist.barrier()\n\n    return cache",
        }
    },
    apply=_make_process_group,
)


UNLISTED_GPU = PatchInfo(
    id="dpo_unlisted_gpu",
    reason="adds this GPU to upstream's table of GPU speeds, without which DPO refuses it, though "
    "only a utilisation figure needs it",
    lines={
        "open_instruct/utils.py": {
            1805: "GPU_SPECS = {",
            1860: "get_device_name(torch.cuda.get_device_name(0))",
            2538: 'device_name.lower().replace("-", " ")',
            2541: "if key in normalized_device_name:",
        }
    },
    apply=_list_this_gpu,
    not_needed=_not_needed_if_listed,
)


_ID = "dpo_steps"
# {upstream's name of a metric: its name in a step event}
_EVENT_NAMES = {"training_step": "step", "train_loss": "loss", "learning_rate": "lr"}
# The metrics that are added to upstream's tracker.
_TOKENS = "launch/tokens"
_PADDED = "launch/tokens_padded"


def send_step(events: EventWriter, norm: hooks.LastNorm, local: Mapping[str, Any]) -> None:
    """Send the step that the frame with these variables logs."""
    # The trainer sends these metrics to its trackers after the log line.
    norm.add_to(local["metrics_to_log"])
    events.emit("step", **step_fields(local), **peak_memory())


def step_fields(local: Mapping[str, Any]) -> dict[str, Any]:
    """Build the fields of a "step" event from the variables of the frame that logs it.

    `metrics_to_log` has upstream's names (dpo_tune_cache.py:644-674). `label_tokens` are the answer
    tokens that count in the loss; `tokens` and `tokens_padded` all tokens of the model's inputs,
    over all ranks since the previous logged step; `seconds` the time since then. Utilisation
    figures and rates are left out.
    """
    fields = {
        _EVENT_NAMES.get(name, name): value
        for name, value in local["metrics_to_log"].items()
        if not name.startswith("perf/")
    }
    fields.update(label_tokens=local["total_tokens_step"], seconds=local["training_time"])
    means = local["global_metrics"]
    # These are means over the ranks, the micro batches and the steps since the last logged one
    # (dpo_tune_cache.py:617-624).
    ranks = local["accelerator"].num_processes
    arguments = local["args"]
    passes = ranks * arguments.gradient_accumulation_steps * arguments.logging_steps
    for name, event_name in ((_TOKENS, "tokens"), (_PADDED, "tokens_padded")):
        if name in means:
            fields[event_name] = round(means[name] * passes)
    return fields


def count_trained_tokens(model: Any) -> None:
    """Add the tokens of every forward pass of the training to the loop's own `local_metrics`."""

    def count(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not module.training:
            return  # this is a reference pass
        tracker = _find_tracker()
        ids = named.get("input_ids")
        mask = named.get("attention_mask")
        if tracker is None or ids is None:
            return
        padded = ids.numel()
        tracker[_TOKENS] += padded if mask is None or mask.dim() != 2 else mask.sum()
        tracker[_PADDED] += padded

    trainer_objects.unwrap(model).register_forward_pre_hook(count, with_kwargs=True)


def _find_tracker() -> Any:
    """Return the `local_metrics` of the training loop; None outside the loop."""
    frame = trainer_objects.find_frame("local_metrics")
    return None if frame is None else frame.f_locals["local_metrics"]


def _listen(context: PatchContext) -> None:
    norm = hooks.follow_norm()
    hooks.when_prepared(count_trained_tokens)

    def begin(args: Any) -> None:
        if context.events.rank == 0:
            context.events.emit("total_steps", steps=args.max_train_steps)
        if not args.loss_type.needs_reference_model:  # a reference pass would come before training
            context.events.begin("training")

    when_about_to_train(begin)
    if context.events.rank == 0:
        listen(StepListener(_ID, context.events, partial(send_step, context.events, norm)))


STEPS = PatchInfo(
    id=_ID,
    reason="reports dpo_tune_cache.py's steps with tokens and rewards, and adds tokens to its "
    "metrics: it prints only loss and learning rate",
    lines={
        "open_instruct/dpo_tune_cache.py": {
            73: "logger = logger_utils.setup_logger(__name__)",
            493: "last_checkpoint_path = get_last_checkpoint_path(args)",
            519: "if args.loss_type.needs_reference_model:",
            549: "local_metrics = utils.MetricsTracker(device=accelerator.device)",
            620: "global_metrics_tensor /= args.gradient_accumulation_steps * args.logging_steps",
            630: 'total_tokens_step = int(global_metrics["token_count"])',
            (644, 645): 'metrics_to_log = {"training_step": completed_steps,',
            662: 'logger_str = f"  Step: {completed_steps}, LR: ',
            677: "logger.info(logger_str)",
        }
    },
    apply=_listen,
)


def add_commit(path: Path, commit: str | None) -> Path:
    """Return the cache file of the model at `commit` (None: not from the hub).

    >>> add_commit(Path("a/b.pt"), "0123456789abcdef").name
    'b-0123456789ab.pt'
    """
    return path if commit is None else path.with_name(f"{path.stem}-{commit[:12]}{path.suffix}")


def find_hub_commit(model: Any) -> str | None:
    """Return the hub commit that a model was loaded from; None for a local folder."""
    config = getattr(trainer_objects.unwrap(model), "config", None)  # OLMo-core's model has none
    commit: str | None = getattr(config, "_commit_hash", None)
    return commit


def report_pass(events: EventWriter, pairs: int, seconds: float, *, is_cached: bool) -> None:
    """Report the reference's pass: every rank reads the cache, and the first one writes it."""
    if is_cached or events.rank == 0:
        value = "hit" if is_cached else "built"
        events.emit("evidence", what="reference_logprobs_cache", value=value)
    if events.rank == 0:
        numbers = describe_pass(pairs, seconds, is_cached=is_cached)
        how = "the call that builds the cache"
        events.emit("evidence", what="reference_logprobs", how=how, **numbers)


def describe_pass(pairs: int, seconds: float, *, is_cached: bool) -> dict[str, Any]:
    """Build the fields of the evidence on the reference's pass over `pairs`.

    `is_cached` means that their log-probabilities were read from the disk.

    >>> describe_pass(600, 12.0, is_cached=False)["value"]
    '600 pairs in 12.0 s, 50.0 a second'
    """
    numbers: dict[str, Any] = {"pairs": pairs, "seconds": round(seconds, 3)}
    if is_cached:
        return {"value": f"{pairs:,} pairs read from the cache", **numbers}
    rate = pairs / seconds if seconds > 0 else 0.0
    value = f"{pairs:,} pairs in {seconds:.1f} s, {rate:.1f} a second"
    return {"value": value, **numbers, "pairs_per_second": round(rate, 3)}


def _patch_cache(context: PatchContext) -> None:
    from open_instruct import dpo_utils, model_utils

    umask = os.umask(0)
    os.umask(umask)
    # dpo.py builds its OLMo-core trainer before it trains (dpo.py:318-336).
    trains_next = context.trainer.script_name == "dpo_tune_cache.py"

    @replaces(dpo_utils, "build_reference_logprobs_cache")
    def build_and_time(build: Any, **options: Any) -> Any:
        context.events.begin("reference_logprobs")
        options["cache_path"] = add_commit(options["cache_path"], find_hub_commit(options["model"]))
        is_cached = options["cache_path"].exists()
        began = time.perf_counter()
        built = build(**options)
        seconds = time.perf_counter() - began
        if trains_next:
            context.events.begin("training")
        pairs = int(options["full_dataset_size"])
        report_pass(context.events, pairs, seconds, is_cached=is_cached)
        return built

    @replaces(model_utils.TensorCache, "to_disk")
    def write_for_all(write: Any, self: Any, path: Any) -> None:
        write(self, path)
        Path(path).chmod(0o666 & ~umask)


CACHE = PatchInfo(
    id="dpo_reference_cache",
    reason="adds a hub model's commit to the name of the reference cache, which lacks it, lets "
    "other users read the file, and reports when it is built",
    lines={
        "open_instruct/dpo_utils.py": {
            436: "if cache_path.exists():",
            516: "cache.to_disk(cache_path)",
        },
        "open_instruct/model_utils.py": {
            107: "tempfile.NamedTemporaryFile(dir=path.parent, delete=False"
        },
        "open_instruct/dpo_tune_cache.py": {
            522: "reference_cache = dpo_utils.build_reference_logprobs_cache("
        },
    },
    apply=_patch_cache,
)
