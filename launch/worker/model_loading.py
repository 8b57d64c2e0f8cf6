"""Loads what a run has trained: a whole model, or an adapter on its base.

It runs in the trainer's interpreter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MATRIX = re.compile(r"\.lora_[AB]\.")
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_EMBEDDING_MULTIPLE = 8  # upstream pads resized embeddings to it (open_instruct/finetune.py:612)


@dataclass(frozen=True)
class ModelRequest:
    """A model that the launcher has this process load."""

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
    """Load the model in `folder` in evaluation mode, and its tokenizer.

    The model is on the GPU if there is one. An adapter is returned as a PeftModel on its base.

    Args:
        folder: a run's `model` or `merged` folder, any folder of a transformers model or a PEFT
            adapter, or a hub id.
        dtype: the type of the weights: bfloat16, float32, or auto for that of the checkpoint.
        quantized: keeps the base of an adapter in 4 bit (nf4), as a run with
            recipe.lora.quantize=nf4 trains it.
        tokenizer: the folder of another tokenizer, such as that of the run that a base is compared
            with. Its new tokens get rows of the embedding.
        state: a checkpoint of accelerate's save_state, whose weights take the place of the
            folder's.

    Raises ValueError for a model whose weights are not all in its files, or not all finite.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded_tokenizer = AutoTokenizer.from_pretrained(tokenizer or str(folder))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    adapter = _read_adapter(folder)
    options: dict[str, Any] = {"dtype": dtype if dtype == "auto" else getattr(torch, dtype)}
    if quantized:
        options["quantization_config"] = _four_bits(options["dtype"])
        options["device_map"] = {"": device}
    if adapter.get("revision"):
        options["revision"] = adapter["revision"]
    base = read_base(folder)
    model, loading = AutoModelForCausalLM.from_pretrained(base, output_loading_info=True, **options)
    _refuse_other_weights(base, model, loading)
    tokens = len(loaded_tokenizer)
    rows = model.get_input_embeddings().weight.shape[0]
    if (adapter or tokenizer) and tokens > rows:
        model.resize_token_embeddings(tokens, pad_to_multiple_of=_EMBEDDING_MULTIPLE)
    if adapter:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, str(folder))
        _refuse_other_adapter(model, Path(folder))
    if state:
        _load_state(model, Path(state), is_adapter=bool(adapter))
    if not quantized:
        model = model.to(device)
    for name, parameter in model.named_parameters():
        is_checked = parameter.is_floating_point() and parameter.dtype.itemsize > 1
        if is_checked and not parameter.isfinite().all():
            raise ValueError(f"{state or folder} holds a NaN or an infinity in {name}")
    return model.eval(), loaded_tokenizer


def _refuse_other_weights(source: str, model: Any, loading: Mapping[str, Any]) -> None:
    """Raise ValueError if the files lack weights of the model, which transformers draws at random,
    or have more layers than its configuration, which it leaves out.
    """
    if loading["missing_keys"]:
        name = min(loading["missing_keys"])
        count = len(loading["missing_keys"])
        raise ValueError(f"{source} lacks {count} of the model's weights, the first is {name}")
    layers = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    for name in sorted(loading["unexpected_keys"]):
        number = _LAYER.search(name)
        if layers is not None and number is not None and int(number[1]) >= layers:
            raise ValueError(f"{source} has {name}, and its config.json {layers} layers")


def _refuse_other_adapter(model: Any, folder: Path) -> None:
    """Raise ValueError if an adapter's file has other matrices than the adapter needs on this base.

    PEFT leaves out those that fit nothing, and only warns of those that are missing.
    """
    from peft import get_peft_model_state_dict
    from safetensors import safe_open

    file = folder / "adapter_model.safetensors"
    if not file.is_file():
        return
    with safe_open(file, framework="pt") as content:
        saved = {name for name in content.keys() if _MATRIX.search(name)}  # noqa: SIM118
    needed = {name for name in get_peft_model_state_dict(model) if _MATRIX.search(name)}
    if saved != needed:
        name = min(saved ^ needed)
        fault = "has" if name in saved else "lacks"
        raise ValueError(f"{folder} does not fit its base: it {fault} {name}")


def _load_state(model: Any, folder: Path, *, is_adapter: bool) -> None:
    """Load the weights of a training state; those of the adapter alone if the model has one.

    Raises ValueError if they belong to another model.
    """
    weights = _read_state(folder)
    if is_adapter:
        weights = {name: weight for name, weight in weights.items() if _is_of_adapter(name)}
    else:
        embeddings = [name for name in weights if name.endswith("embed_tokens.weight")]
        rows = weights[embeddings[0]].shape[0] if embeddings else None
        model.resize_token_embeddings(rows)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    loaded_data = {parameters[name].data_ptr() for name in parameters.keys() & weights.keys()}
    others = []
    for name in missing:
        is_needed = _is_of_adapter(name) or not is_adapter
        # A tied weight has another name in the state, and is loaded by that one.
        if is_needed and name in parameters and parameters[name].data_ptr() not in loaded_data:
            others.append(name)
    others += unexpected
    if others:
        raise ValueError(f"{folder} belongs to another model: {others[0]}")


def _is_of_adapter(name: str) -> bool:
    """Whether a weight of this name belongs to an adapter."""
    return "lora_" in name


def _read_state(folder: Path) -> dict[str, Any]:
    """Return the weights that accelerate's save_state wrote, by parameter name.

    See accelerate/checkpointing.py:63.
    """
    import torch
    from safetensors.torch import load_file

    if (folder / "pytorch_model").is_dir():  # it holds DeepSpeed's parts of all ranks
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        weights = get_fp32_state_dict_from_zero_checkpoint(str(folder), tag="pytorch_model")
    elif (folder / "model.safetensors").is_file():
        weights = load_file(folder / "model.safetensors")
    else:
        weights = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    # DDP puts `module.` before each name.
    return {name.removeprefix("module."): weight for name, weight in weights.items()}


def read_base(folder: str | Path) -> str:
    """Return the base of the adapter in `folder`; the folder itself for a whole model."""
    return str(_read_adapter(folder).get("base_model_name_or_path", folder))


def _read_adapter(folder: str | Path) -> dict[str, Any]:
    """Return the configuration of the adapter in `folder`; {} for a whole model."""
    config = Path(folder) / "adapter_config.json"
    if not config.is_file():
        return {}
    adapter: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    return adapter


def _four_bits(dtype: Any) -> Any:
    """Return the 4-bit storage that both families of trainers use.

    See trl/trainer/utils.py:261 and open_instruct/finetune.py:552.
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
