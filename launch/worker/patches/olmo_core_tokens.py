"""Counts the tokens of each step of OLMo-core's trainers over all ranks, with and without padding.

dpo.py multiplies the first rank's tokens by the number of ranks (data_loader.py:390); olmo_core_finetune.py includes
padding.
"""

from __future__ import annotations

from typing import Any

from ..replacing import replaces
from .patch import PatchContext, PatchInfo

TOKENS, PADDED = "launch/tokens", "launch/tokens_padded"


def count_tokens(batch: Any, pad_id: int | None) -> tuple[int, int]:
    """Count the tokens of one rank's batch, without and with padding.

    `pad_id`: the id that marks padding if the batch has neither masks nor document borders.
    """
    rows = [value for name, value in batch.items() if name.endswith("input_ids") and hasattr(value, "numel")]
    padded = sum(int(row.numel()) for row in rows)
    ends = [value for name, value in batch.items() if name.endswith("cu_seq_lens_k")]
    masks = [value for name, value in batch.items() if name.endswith("attention_mask")]
    if ends:
        return sum(int(end[-1]) for end in ends), padded
    if masks:
        return sum(int(mask.sum()) for mask in masks), padded
    if pad_id is None:
        return padded, padded
    return sum(int((row != pad_id).sum()) for row in rows), padded


def _record_tokens(_: PatchContext) -> None:
    import torch.distributed as dist
    from olmo_core.train import ReduceType, TrainerConfig
    from olmo_core.train.callbacks import Callback

    class TokenCount(Callback):  # type: ignore[misc,unused-ignore]
        """Records the tokens of a batch before the step, for OLMo-core's own reduction over the ranks."""

        def pre_step(self, batch: dict[str, Any]) -> None:
            collator = getattr(self.trainer.data_loader, "collator", None)
            tokens, padded = count_tokens(batch, getattr(collator, "pad_token_id", None))
            # ranks of one tensor- or context-parallel group share a batch
            group = self.trainer.dp_process_group
            ranks_per_batch = dist.get_world_size() // dist.get_world_size(group) if dist.is_initialized() else 1
            for name, value in ((TOKENS, tokens), (PADDED, padded)):
                self.trainer.record_metric(name, value / ranks_per_batch, reduce_type=ReduceType.sum)

    @replaces(TrainerConfig, "build")
    def build_and_count(build: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        self.callbacks["launch_tokens"] = TokenCount()
        return build(self, *arguments, **options)


PATCH = PatchInfo(
    id="olmo_core_tokens",
    reason="dpo.py assumes that every rank has the first rank's tokens, and olmo_core_finetune.py counts padding",
    lines={
        "open_instruct/data_loader.py": {390: "return num_tokens * self.dp_world_size"},
        "olmo_core/train/config.py": {149: "train_module: TrainModule,"},
        "olmo_core/train/trainer.py": {1709: "callback.pre_step(batch)"},
    },
    apply=_record_tokens,
)
