"""Patches that report what OLMo-core's trainers do: steps, phases, checkpoints, packed data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from functools import partial
from typing import Any

from ..channel import EventWriter
from ..hooks import replaces
from .olmo_core import PADDED, TOKENS_METRIC
from .patch import PatchContext, PatchInfo
from .progress import send_dataset
from .shared import LineListener, listen

# Patterns of the metrics that olmo_core_train_modules.py:251-317, olmo_core_callbacks.py:199-229
# and the patch olmo_core_tokens record. OLMo-core's console logger lists the other metrics itself.
_EXTRA_METRICS = (
    "train_loss",
    "learning_rate",
    "logps/*",
    "rewards/*",
    "aux_loss",
    "launch/*",
    "train/global_sequences_per_step",
    "perf/seconds_per_step",
    "perf/mfu_step",
)
# {upstream's name of a metric: its name in a step event}
_EVENT_NAMES = {
    "train/CE loss": "loss",
    "train_loss": "loss",
    "optim/total grad norm": "grad_norm",
    "gpu_memory/GPU active mem (GiB)": "memory_gib",
    "gpu_memory/GPU reserved mem (GiB)": "memory_reserved_gib",
    TOKENS_METRIC: "tokens",
    PADDED: "tokens_padded",
    "train/global_sequences_per_step": "sequences",
    "perf/seconds_per_step": "seconds",
    # This is a percentage of the data sheet's rate, by upstream's count of operations
    # (utils.py:2510).
    "perf/mfu_step": "mfu",
    "throughput/device/MFU": "mfu",
    "learning_rate": "lr",
}


def step_fields(metrics: Mapping[str, float], reported: Sequence[str]) -> dict[str, float]:
    """Build the fields of a "step" event from the metrics of a step.

    Metrics whose names match a pattern in `reported` are taken. Those that get another name come
    first; of two metrics for one field the first counts.
    """
    named: dict[str, float] = {}
    others: dict[str, float] = {}
    for name, value in metrics.items():
        if not any(fnmatch(name, pattern) for pattern in reported):
            continue
        if name.startswith("optim/LR"):  # each group of parameters has such a metric
            named.setdefault("lr", value)
        elif name in _EVENT_NAMES:
            named.setdefault(_EVENT_NAMES[name], value)
        else:
            others[name] = value
    if named.get("mfu") == 0:  # a CPU, or a GPU that upstream does not know
        del named["mfu"]
    return named | others


def make_callback(events: EventWriter) -> Any:
    """Return the callback of OLMo-core's trainer that sends its steps."""
    from olmo_core.train.callbacks import Callback, ConsoleLoggerCallback

    reported = (*ConsoleLoggerCallback().metrics, *_EXTRA_METRICS)

    class StepReport(Callback):  # type: ignore[misc,unused-ignore]
        """Sends events from the first rank only; every rank gets the same reduced metrics.

        How long a checkpoint took to load is a metric of the step at which it was written, which an
        earlier attempt has sent.
        """

        steps_done = 0  # the steps before this attempt

        def pre_train(self) -> None:
            self.steps_done = int(self.trainer.global_step)
            if events.rank == 0 and self.trainer.max_steps is not None:
                events.emit("total_steps", steps=self.trainer.max_steps)

        def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
            fields = step_fields(metrics, reported)
            if events.rank == 0 and fields and step > self.steps_done:
                events.emit("step", step=step, epoch=self.trainer.epoch, **fields)

    return StepReport()


def _send_steps(context: PatchContext) -> None:
    from olmo_core.train import Trainer, TrainerConfig
    from olmo_core.train.checkpoint import Checkpointer

    events = context.events

    @replaces(TrainerConfig, "build")
    def build_and_report(build: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        self.callbacks["launch_steps"] = make_callback(events)
        return build(self, *arguments, **options)

    @replaces(Trainer, "fit")
    def fit_and_report(fit: Any, self: Any) -> None:
        events.begin("first_step")
        fit(self)
        events.begin("save")

    for name in ("save", "save_async"):

        @replaces(Checkpointer, name)
        def begin_and_save(save: Any, *arguments: Any, **options: Any) -> Any:
            events.begin_checkpoint()
            return save(*arguments, **options)


STEPS = PatchInfo(
    id="olmo_core_steps",
    reason="reports the steps of OLMo-core's trainer, whose loss and rewards dpo.py sends only to "
    "wandb; changes nothing",
    lines={
        "olmo_core/train/callbacks/console_logger.py": {33: "metrics: List[str] = field("},
        "olmo_core/train/callbacks/callback.py": {
            85: "def pre_train(self):",
            143: "def log_metrics(self, step: int, metrics: Dict[str, float]):",
        },
        "olmo_core/train/checkpoint.py": {102: "def save(", 147: "def save_async("},
        "olmo_core/train/config.py": {149: "train_module: TrainModule,"},
        "olmo_core/train/trainer.py": {
            687: "def fit(self):",
            1184: "self.checkpointer.save(",
            1222: "fut = self.checkpointer.save_async(",
            1645: "callback.log_metrics(step, metrics[step])",
        },
    },
    apply=_send_steps,
)


class PackedDataListener(LineListener):
    """Calls back where olmo_core_finetune.py logs that the packed files already exist."""

    text = "Numpy SFT files already present at "
    variable = "numpy_dir"
    subject = "the folder of the packed data"


def send_found_data(events: EventWriter, local: Mapping[str, Any]) -> None:
    """Send that the packed files exist, from the variables of the frame that logs it."""
    events.begin("load")
    send_dataset(events, str(local["numpy_dir"]), is_built=False)


def _report_packed_data(context: PatchContext) -> None:
    from open_instruct import numpy_dataset_conversion

    @replaces(numpy_dataset_conversion, "convert_hf_to_numpy_sft")
    def pack_and_report(pack: Any, **options: Any) -> None:
        context.events.begin("tokenize")
        pack(**options)
        send_dataset(context.events, str(options["output_dir"]), is_built=True)

    listen(PackedDataListener(_PACKED, context.events, partial(send_found_data, context.events)))


_PACKED = "olmo_core_packed_data"
PACKED_DATA = PatchInfo(
    id=_PACKED,
    reason="reports the folder of olmo_core_finetune.py's packed data, and whether it already "
    "existed; changes nothing",
    lines={
        "open_instruct/olmo_core_finetune.py": {
            50: "logger = logger_utils.setup_logger(__name__)",
            (93, 94): "numpy_dataset_conversion.convert_hf_to_numpy_sft( "
            "output_dir=pathlib.Path(numpy_dir),",
            158: "Numpy SFT files already present at {numpy_dir}",
        },
        "open_instruct/numpy_dataset_conversion.py": {
            (208, 209): "def convert_hf_to_numpy_sft( output_dir: pathlib.Path,"
        },
    },
    apply=_report_packed_data,
)
