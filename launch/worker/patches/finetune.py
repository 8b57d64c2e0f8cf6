"""Patches for finetune.py (a local model folder, the gradient norm) and reward_modeling.py (its
models).
"""

from __future__ import annotations

import logging
import os
from typing import Any

from .. import hooks
from ..hooks import replaces
from .patch import PatchContext, PatchInfo
from .shared import StepListener


def _accept_local_model(_: PatchContext) -> None:
    import huggingface_hub

    @replaces(huggingface_hub, "snapshot_download")
    def download_unless_local(download: Any, repo_id: str, *arguments: Any, **options: Any) -> Any:
        # from_pretrained uses the same test for a local model
        return repo_id if os.path.isdir(repo_id) else download(repo_id, *arguments, **options)  # noqa: PTH112


LOCAL_MODEL = PatchInfo(
    id="finetune_local_model",
    reason="finetune.py downloads the model even if it is a local folder, and fails on the "
    "folder's name",
    lines={
        "open_instruct/finetune.py": {
            41: "from huggingface_hub import HfApi, snapshot_download",
            527: "snapshot_download(model_path, revision=args.model_revision)",
        }
    },
    apply=_accept_local_model,
)


_ID = "finetune_grad_norm"


def _add_to_metrics(context: PatchContext) -> None:
    last = hooks.follow_norm()
    if context.events.rank == 0:
        listener = StepListener(
            _ID, context.events, lambda local: last.add_to(local["metrics_to_log"])
        )
        logging.getLogger("__main__").addHandler(listener)


GRAD_NORM = PatchInfo(
    id=_ID,
    reason="finetune.py measures the gradient norm for clipping but does not report it; this adds "
    "it to the logs",
    lines={
        "open_instruct/finetune.py": {
            73: "logger = get_logger(__name__)",
            848: "accelerator.clip_grad_norm_(model.parameters(), args.clip_grad_norm)",
            888: "metrics_to_log = {",
            (948, 949): 'logger.info( f"  Step: {completed_steps}, LR: ',
            952: 'accelerator.print(f"{metrics_to_log=}")',
        }
    },
    apply=_add_to_metrics,
)


def _allow_registering_again(_: PatchContext) -> None:
    from transformers import AutoModelForSequenceClassification

    @replaces(AutoModelForSequenceClassification, "register")
    def register_again(
        register: Any, config_class: Any, model_class: Any, exist_ok: bool = False
    ) -> None:
        register(config_class, model_class, exist_ok=True)


REGISTERED_MODELS = PatchInfo(
    id="registered_models",
    reason="transformers has Olmo2ForSequenceClassification itself and refuses open-instruct's; "
    "this lets it in",
    lines={
        "open_instruct/reward_modeling.py": {
            166: "AutoModelForSequenceClassification.register(olmo_adapter.Olmo2Config, "
            "olmo_adapter.Olmo2ForSequenceClassification)"
        }
    },
    apply=_allow_registering_again,
)
