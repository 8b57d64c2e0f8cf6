"""Allows TRL's SFT to flatten samples without padding, up to the recipe's length.

TRL 1.16 rejects `padding_free` with a `max_length` and without packing, because its collator would ignore the length.
Its data preparation does not: it truncates every sample before the collator sees it.
"""

from __future__ import annotations

from typing import Any

from ..replacing import replaces
from .patch import PatchContext, PatchError, PatchInfo

_ID = "trl_flatten"
_CHECK = "if self.padding_free and not args.packing and args.max_length is not None and not self._is_vision_dataset:"


def _allow_flattening(context: PatchContext) -> None:
    from trl import SFTTrainer

    limits: dict[int, int] = {}  # by the id of the arguments of a trainer under construction

    @replaces(SFTTrainer, "__init__")
    def init_without_max_length(init: Any, self: Any, model: Any, args: Any = None, *more: Any, **options: Any) -> None:
        if args is None or args.max_length is None or (args.dataset_kwargs or {}).get("skip_prepare_dataset"):
            raise PatchError(
                _ID, "needs a max_length, and data that the trainer prepares: otherwise nothing truncates the samples"
            )
        limits[id(args)], args.max_length = args.max_length, None
        try:
            init(self, model, args, *more, **options)
        finally:
            args.max_length = limits.pop(id(args))

    @replaces(SFTTrainer, "_prepare_dataset")
    def prepare_with_max_length(
        prepare: Any, self: Any, dataset: Any, processing_class: Any, args: Any, *more: Any
    ) -> Any:
        before = args.max_length
        args.max_length = limits.get(id(args), before)
        try:
            return prepare(self, dataset, processing_class, args, *more)
        finally:
            args.max_length = before


PATCH = PatchInfo(
    id=_ID,
    reason="TRL rejects flattening together with max_length, although it has truncated the samples; this allows it",
    wanted=lambda facts: facts.is_true("padding_free") and not facts.is_true("packing"),
    condition="recipe.packing is flatten",
    lines={
        "trl/trainer/sft_trainer.py": {
            999: _CHECK,
            1027: "train_dataset, processing_class, args, args.packing, formatting_func,",
            1439: "if args.max_length is not None and not packing:",
        },
        "trl/scripts/sft.py": {105: "args=training_args,"},
    },
    apply=_allow_flattening,
)
