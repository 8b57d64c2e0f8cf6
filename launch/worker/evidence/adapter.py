"""Checks a LoRA adapter: what it adapts, what is frozen, and that the first update changes the adapter alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..finding import Evidence, unproven
from .precision import count_elements, dtypes_by_size
from .trainer_objects import TrainerObjects

_HOW = "the model's parameters"
_MARK = "lora_"


def collect(objects: TrainerObjects, rank: str | None, base_dtype: str | None) -> list[Evidence]:
    """Return the findings "lora" (rank, layers and trained parameters) and "base_dtype" (of the frozen weights).

    Both are left out for a model without an adapter when nothing is requested.
    """
    if objects.model is None:
        how = "no model was prepared"
        return [*unproven("lora", rank, how), *unproven("base_dtype", base_dtype, how)]
    ranks = sorted(_find_ranks(objects.model))
    if not ranks:
        return [Evidence("lora", "none", "the model's layers").compare(rank)] if rank else []
    trained = {name: p for name, p in objects.model.named_parameters() if p.requires_grad}
    frozen = {name: p for name, p in objects.model.named_parameters() if name not in trained}
    own, others = sum(map(count_elements, trained.values())), [name for name in trained if _MARK not in name]
    total = own + sum(map(count_elements, frozen.values()))
    layers = sum(1 for name in trained if "lora_B" in name)
    value = f"rank {','.join(map(str, ranks))} on {layers} layers"
    note = f"{own:,} of {total:,} parameters are trained ({own / total:.2%})"
    if others:
        note = f"{note}; {len(others)} of them are not the adapter's: {others[0]}"
    lora = Evidence("lora", value, _HOW, note=note)
    adapted = [p for name, p in frozen.items() if ".base_layer." in name]
    stored = next(iter(dtypes_by_size(adapted)), None)
    return [
        lora.judge(rank, [str(found) for found in ranks] == [rank] and not others),
        Evidence("base_dtype", stored, "the weights of the adapted layers").compare(base_dtype),
    ]


def _find_ranks(model: Any) -> set[int]:
    by_adapter = (getattr(module, "r", None) for module in model.modules())
    return {int(rank) for ranks in by_adapter if isinstance(ranks, Mapping) for rank in ranks.values()}


class FirstUpdate:
    """Compares checksums from before and after the first optimizer step with a learning rate above zero."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._before = _checksums(model)

    def compare(self, requested: str | None) -> Evidence:
        """Return the finding "first_update": which trained and which frozen tensors the step changed on this rank."""
        after = _checksums(self._model)
        trained = {name for name, p in self._model.named_parameters() if p.requires_grad}
        changed = {name for name, value in after.items() if value != self._before.get(name)}
        moved, leaked = changed & trained, sorted(changed - trained)
        value = " and ".join(name for name, hit in (("adapter", moved), ("frozen weights", leaked)) if hit) or "nothing"
        frozen = len(after) - len(trained)
        note = f"{len(moved)} of {len(trained)} trained tensors changed, {len(leaked)} of {frozen} frozen ones"
        if leaked:
            note = f"{note}: {leaked[0]}"
        finding = Evidence("first_update", value, "checksums around the first optimizer step", note=note)
        return finding.judge(requested, bool(moved) and not leaked)


def _checksums(model: Any) -> dict[str, int]:
    """Return a checksum of each parameter's bits; of a partitioned one those of this rank's part.

    A parameter whose part is empty on this rank has the checksum 0.
    """
    import torch

    with torch.no_grad():
        return {name: _checksum(getattr(p, "ds_tensor", p)) for name, p in model.named_parameters()}


def _checksum(tensor: Any) -> int:
    import torch

    data = tensor.detach()
    if data.numel() == 0:
        return 0
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[data.element_size()]
    return int(data.contiguous().view(bits).sum(dtype=torch.int64))
