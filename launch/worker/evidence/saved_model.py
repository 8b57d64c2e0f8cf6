"""Checks what a run has saved: the weights are finite, and equal to those in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..wording import describe_error
from . import Evidence
from .adapter_kind import is_whole_module
from .tensors import chunks, stored


def try_check(check: Callable[[], Evidence]) -> Evidence:
    """Return the evidence of a check of what was saved.

    A check that raises an error proves nothing, and does not end a training that is done.
    """
    try:
        return check()
    except Exception as error:
        failed = Evidence("saved_weights", None, describe_error(error))
        return failed.judge("trained", None)


def check_saved(folder: Path, model: Any, state: Mapping[str, Any] | None) -> Evidence:
    """Return the evidence "saved_weights": all weights are finite, and two rows of each tensor in
    the files are those in memory.

    `state` has the weights that were passed to save_pretrained, such as those that ZeRO-3 gathered
    from all ranks.
    """
    from safetensors import safe_open

    live = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        live[_file_key(name)] = stored(parameter)
    kept = {_file_key(name): weight for name, weight in (state or live).items()}
    how = f"two rows of each tensor in {folder.name}/, and every weight in memory"
    compared = 0
    others = []
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as saved:
            for name in sorted(live.keys() & saved.keys()):
                compared += 1
                if not _has_rows(saved.get_slice(name), live[name]):
                    others.append(name)
    return judge_saved(kept, compared, others, how)


def _has_rows(saved: Any, weight: Any) -> bool:
    """Return whether the first and the middle row of a tensor in a file are those that this rank
    stores of it.
    """
    import torch

    shape = saved.get_shape()
    if not shape:
        return True
    width = math.prod(shape[1:])
    for number in {0, shape[0] // 2}:
        row = saved[number : number + 1].reshape(-1)
        part = weight.reshape(-1)[number * width : (number + 1) * width]
        is_here = part.numel() == row.numel()  # a partition of ZeRO-3 ends before the tensor does
        if is_here and not torch.equal(part.to(device="cpu", dtype=row.dtype), row):
            return False
    return True


def judge_saved(
    kept: Mapping[str, Any], compared: int, others: Sequence[str], how: str
) -> Evidence:
    """Return the evidence "saved_weights" of the weights `kept`, which were saved.

    `compared` of the saved tensors were compared with memory, and `others` of these differ.
    """
    finite = {name: _is_finite(stored(weight)).cpu() for name, weight in kept.items()}
    not_finite = [name for name, good in finite.items() if not bool(good)]
    if not_finite:
        value = "not finite"
        note = f"{len(not_finite)} of {len(kept)} tensors, as {not_finite[0]}"
    elif others:
        value = "not those in memory"
        note = f"{len(others)} of {compared} tensors, as {others[0]}"
    else:
        value = "trained"
        note = f"{compared} saved tensors were compared with memory"
    return Evidence("saved_weights", value, how, note=note).judge("trained", value == "trained")


def _file_key(name: str) -> str:
    """Return the name of a parameter in a file, from which PEFT removes the adapter's name
    (peft/utils/save_and_load.py).
    """
    if "lora_magnitude_vector" in name:
        return name.removesuffix(".default.weight")
    if is_whole_module(name):
        return name.replace(".modules_to_save.default.", ".")
    return name.replace(".default.", ".") if "lora_" in name else name


def _is_finite(tensor: Any) -> Any:
    """Return whether all elements of a tensor are finite, as a tensor, so that nothing waits for
    the device.
    """
    import torch

    if not tensor.is_floating_point() or not tensor.numel():
        return torch.tensor(True)
    sums = [chunk.sum(dtype=torch.float64) for chunk in chunks(tensor)]
    return torch.stack(sums).isfinite().all()
