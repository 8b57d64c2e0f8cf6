"""Makes OLMo-core's console logger print the metrics of open_instruct/dpo.py too, unrounded."""

from __future__ import annotations

from typing import Any

from ..replacing import replaces
from .patch import PatchContext, PatchInfo

# what olmo_core_train_modules.py:251-317, olmo_core_callbacks.py:199-229 and olmo_core_tokens record
EXTRA_METRICS = (
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


def format_precisely(value: float) -> str:
    """Format with the precision of float32; OLMo-core's own `format_float` gives four digits.

    >>> format_precisely(0.693147182)
    '0.6931472'
    """
    return f"{value:.7g}"


def _print_extra_metrics(_: PatchContext) -> None:
    from olmo_core.train.callbacks import ConsoleLoggerCallback, console_logger

    console_logger.format_float = format_precisely

    @replaces(ConsoleLoggerCallback, "__init__")
    def build_with_more(build: Any, self: Any, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **options)
        self.metrics = [*self.metrics, *(name for name in EXTRA_METRICS if name not in self.metrics)]


PATCH = PatchInfo(
    id="olmo_core_console",
    reason="dpo.py sends loss, rewards and tokens only to wandb; this makes OLMo-core's console logger print them",
    lines={
        "olmo_core/train/callbacks/console_logger.py": {
            33: "metrics: List[str] = field(",
            75: 'f"    {name}={format_float(value)}"',
            77: "if any(fnmatch(name, pat) for pat in self.metrics)",
        }
    },
    apply=_print_extra_metrics,
)
