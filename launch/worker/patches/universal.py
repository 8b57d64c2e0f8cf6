"""Reads a DeepSpeed checkpoint that launch has converted into the universal form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..hooks import replaces
from .patch import PatchContext, PatchInfo

# The file that DeepSpeed's conversion writes beside the converted folder.
_MARK = "latest_universal"


def _load_universal(_: PatchContext) -> None:
    from deepspeed.runtime.engine import DeepSpeedEngine

    @replaces(DeepSpeedEngine, "load_checkpoint")
    def load_converted(load: Any, self: Any, load_dir: Any, *arguments: Any, **options: Any) -> Any:
        if not (Path(load_dir) / _MARK).is_file():  # TRL loads the best checkpoint at the end
            return load(self, load_dir, *arguments, **options)
        groups = self.optimizer.param_groups
        decays = [group.get("weight_decay") for group in groups]
        self._config.load_universal_checkpoint = True
        try:
            loaded = load(self, load_dir, *arguments, **options)
        finally:
            self._config.load_universal_checkpoint = False
        for group, decay in zip(self.optimizer.param_groups, decays, strict=True):
            group["weight_decay"] = decay
        return loaded


UNIVERSAL = PatchInfo(
    id="universal_checkpoint",
    reason="has DeepSpeed load the converted checkpoint, and that one alone, in the universal form; "
    "ZeRO-3 would give every group of weights the weight decay of the first",
    lines={
        "deepspeed/runtime/engine.py": {
            1713: "return self._config.load_universal_checkpoint",
            4428: 'latest_tag = "latest_universal" if self.load_universal_checkpoint() else '
            '"latest"',
        },
        "deepspeed/runtime/zero/stage3.py": {
            3687: 'for key, value in optim_sd[OPTIMIZER_STATE_DICT]["param_groups"][0].items():'
        },
    },
    apply=_load_universal,
)
