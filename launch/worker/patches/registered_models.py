"""Lets reward_modeling.py register its OLMo models where transformers has models of the same configurations by now."""

from __future__ import annotations

from typing import Any

from ..replacing import replaces
from .patch import PatchContext, PatchInfo


def _allow_registering_again(_: PatchContext) -> None:
    from transformers import AutoModelForSequenceClassification

    @replaces(AutoModelForSequenceClassification, "register")
    def register_again(register: Any, config_class: Any, model_class: Any, exist_ok: bool = False) -> None:
        register(config_class, model_class, exist_ok=True)


PATCH = PatchInfo(
    id="registered_models",
    reason="transformers has Olmo2ForSequenceClassification itself and refuses open-instruct's; this lets it in",
    lines={
        "open_instruct/reward_modeling.py": {
            166: "AutoModelForSequenceClassification.register(olmo_adapter.Olmo2Config, "
            "olmo_adapter.Olmo2ForSequenceClassification)"
        }
    },
    apply=_allow_registering_again,
)
