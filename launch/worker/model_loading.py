"""Loads what a run has trained: a whole model, or an adapter on its base. Runs in the trainer's
interpreter.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_EMBEDDING_MULTIPLE = 8  # upstream pads resized embeddings to it (open_instruct/finetune.py:612)


@dataclass(frozen=True)
class ModelRequest:
    """A model that the launcher wants to have loaded."""

    folder: str  # a whole model, or an adapter; or a hub id
    quantized: bool  # whether the base of an adapter is kept in 4 bit
    state: str | None = None  # a checkpoint whose weights take the place of the folder's


def load_model(
    folder: str | Path,
    *,
    dtype: str = "auto",
    quantized: bool = False,
    tokenizer: str | None = None,
    state: str | None = None,
) -> tuple[Any, Any]:
    """Load the model in `folder`, whole or as an adapter on its base, in evaluation mode, and its
    tokenizer.

    The model is on the GPU if there is one. An adapter is returned as a PeftModel.

    Args:
        folder: a run's `model` or `merged` folder, any folder of a transformers model or a PEFT
        adapter, or a hub id. dtype: of the weights: bfloat16, float32, or auto for that of the
        checkpoint. tokenizer: the folder of another tokenizer, as of the run that a base is
        compared with; its new tokens get rows. state: a checkpoint of accelerate's save_state,
        whose weights take the place of the folder's. quantized: keep the base of an adapter in 4
        bit (nf4), as a run with recipe.lora.quantize=nf4 trains it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded_tokenizer = AutoTokenizer.from_pretrained(tokenizer or str(folder))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    adapter = _read_adapter(folder)
    options: dict[str, Any] = {"dtype": dtype if dtype == "auto" else getattr(torch, dtype)}
    if quantized:
        options |= {"quantization_config": _four_bits(options["dtype"]), "device_map": {"": device}}
    if adapter.get("revision"):
        options["revision"] = adapter["revision"]
    model = AutoModelForCausalLM.from_pretrained(read_base(folder), **options)
    if (adapter or tokenizer) and len(loaded_tokenizer) > model.get_input_embeddings().weight.shape[
        0
    ]:
        model.resize_token_embeddings(len(loaded_tokenizer), pad_to_multiple_of=_EMBEDDING_MULTIPLE)
    if adapter:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, str(folder))
    if state:
        _load_state(model, Path(state), is_adapter=bool(adapter))
    return (model if quantized else model.to(device)).eval(), loaded_tokenizer


def _load_state(model: Any, folder: Path, *, is_adapter: bool) -> None:
    """Load the weights of a training state, of an adapter's only the adapter. Raises ValueError for
    another model's.
    """
    weights = _read_state(folder)
    if is_adapter:
        weights = {name: weight for name, weight in weights.items() if "lora_" in name}
    else:
        rows = {
            name: weight.shape[0]
            for name, weight in weights.items()
            if name.endswith("embed_tokens.weight")
        }
        model.resize_token_embeddings(next(iter(rows.values()), None))
    missing, unexpected = model.load_state_dict(weights, strict=False)
    loaded = {
        weight.data_ptr()
        for name, weight in model.named_parameters(remove_duplicate=False)
        if name in weights
    }
    missing = [
        name
        for name, weight in model.named_parameters(remove_duplicate=False)
        if name in missing
        and weight.data_ptr() not in loaded
        and ("lora_" in name or not is_adapter)
    ]
    if missing or unexpected:
        raise ValueError(f"{folder} belongs to another model: {[*missing, *unexpected][0]}")


def _read_state(folder: Path) -> dict[str, Any]:
    """Return the weights that accelerate's save_state wrote (accelerate/checkpointing.py:63), by
    parameter name.
    """
    import torch
    from safetensors.torch import load_file

    if (folder / "pytorch_model").is_dir():  # DeepSpeed's parts of all ranks
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        weights = get_fp32_state_dict_from_zero_checkpoint(str(folder), tag="pytorch_model")
    elif (folder / "model.safetensors").is_file():
        weights = load_file(folder / "model.safetensors")
    else:
        weights = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    # DDP's prefix
    return {name.removeprefix("module."): weight for name, weight in weights.items()}


def read_base(folder: str | Path) -> str:
    """Return the base of the adapter in `folder`; the folder itself for a whole model."""
    return str(_read_adapter(folder).get("base_model_name_or_path", folder))


def _read_adapter(folder: str | Path) -> dict[str, Any]:
    config = Path(folder) / "adapter_config.json"
    adapter: dict[str, Any] = (
        json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    )
    return adapter


def _four_bits(dtype: Any) -> Any:
    """The 4-bit storage of both families of trainers (trl/trainer/utils.py:261,
    open_instruct/finetune.py:552).
    """
    import torch
    from transformers import BitsAndBytesConfig

    compute = dtype if isinstance(dtype, torch.dtype) else torch.bfloat16
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute,
    )
