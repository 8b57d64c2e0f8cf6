"""Gives TRL's scripts a model and a tokenizer that their command lines cannot name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..replacing import replaces
from .patch import PatchContext, PatchError, PatchInfo

_SFT, _DPO = "trl/trainer/sft_trainer.py", "trl/trainer/dpo_trainer.py"
_DISTRIBUTED = ("MULTI_GPU", "DEEPSPEED")  # trl/trainer/dpo_trainer.py:570: these need device_map=None


def _wrap_init(prepare: Callable[[Any, Any, dict[str, Any]], Any]) -> None:
    """Call `prepare(model, args, options)` before both trainers' __init__ and use the model it returns."""
    import trl

    def init_prepared(init: Any, self: Any, model: Any, args: Any = None, **options: Any) -> None:
        init(self, prepare(model, args, options), args=args, **options)

    replaces(trl.SFTTrainer, "__init__")(init_prepared)
    replaces(trl.DPOTrainer, "__init__")(init_prepared)


def _load_adapter(context: PatchContext) -> None:
    folder = context.trainer.flag("model_name_or_path")
    if folder is None or not Path(folder, "adapter_config.json").is_file():
        raise PatchError("continue_adapter", f"--model_name_or_path {folder} is not the folder of an adapter")

    def prepare(model: Any, args: Any, options: dict[str, Any]) -> Any:
        from peft import PeftConfig, PeftModel
        from transformers import AutoTokenizer
        from trl.trainer.utils import create_model_from_path

        if model != folder:
            return model
        requested, quantization = options.pop("peft_config"), options.pop("quantization_config", None)
        config = PeftConfig.from_pretrained(folder)
        if requested is not None and requested.r != config.r:
            raise PatchError("continue_adapter", f"rank {requested.r} was requested, and the adapter has {config.r}")
        settings = dict(args.model_init_kwargs or {}, revision=config.revision or "main")
        if quantization is not None:
            settings["quantization_config"] = quantization
        if args.distributed_state.distributed_type in _DISTRIBUTED:
            settings["device_map"] = None
        base = create_model_from_path(config.base_model_name_or_path, **settings)
        plugin = args.deepspeed_plugin
        # as TRL for a new adapter: ZeRO-3 needs one type (trl/trainer/sft_trainer.py:844)
        one_type = plugin is not None and plugin.zero_stage == 3 and quantization is None
        args.model_init_kwargs = None
        options.setdefault("processing_class", AutoTokenizer.from_pretrained(folder))
        return PeftModel.from_pretrained(base, folder, is_trainable=True, autocast_adapter_dtype=not one_type)

    _wrap_init(prepare)


def _set_template(context: PatchContext) -> None:
    template = Path(str(context.value)).read_text(encoding="utf-8")

    def prepare(model: Any, args: Any, options: dict[str, Any]) -> Any:
        from transformers import AutoTokenizer

        tokenizer = options.get("processing_class")
        if tokenizer is None:
            revision = (args.model_init_kwargs or {}).get("revision") or "main"
            tokenizer = AutoTokenizer.from_pretrained(model, revision=revision)
        tokenizer.chat_template = template
        options["processing_class"] = tokenizer
        return model

    _wrap_init(prepare)


_PASSES = "peft_config=get_peft_config(model_args),"

CONTINUE = PatchInfo(
    id="continue_adapter",
    reason=(
        "TRL's scripts refuse or ignore an adapter as their model; this loads it on its base, and DPO's reference is "
        "then a frozen copy of the adapter, not the bare base"
    ),
    wanted=lambda facts: facts.adapter,
    condition="model.path is an adapter and recipe.lora.start is continue",
    lines={
        "trl/scripts/sft.py": {109: _PASSES},
        "trl/scripts/dpo.py": {107: _PASSES},
        _DPO: {
            666: "elif is_peft_model(model) and ref_model is None:",
            689: 'model.add_adapter("ref", default_config)',
            926: "ref_model_path = get_config_model_id(self.model.config)",
        },
    },
    apply=_load_adapter,
)

TEMPLATE = PatchInfo(
    id="trl_chat_template",
    reason="trl.scripts.dpo takes the tokenizer's own chat template; this sets the recipe's, saved with the model",
    wanted=lambda facts: facts.template_file,
    condition="recipe.chat_template is set; the value is the template's file",
    lines={"trl/scripts/dpo.py": {107: _PASSES}, _DPO: {597: "if processing_class is None:"}},
    apply=_set_template,
    takes_value=True,
)
