"""Hands the tokenised samples over and ends the trainer before it loads a model (`launch preview`,
`launch check`).

The trainer's own code tokenises: open-instruct's transforms with the arguments that the script
gives them, or TRL's `_prepare_dataset` with the tokenizer and the template that its trainer
chooses.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..hooks import replaces
from .patch import PatchContext, PatchInfo

if TYPE_CHECKING:
    from ..samples import SamplesRequest

_COLUMNS = ("input_ids", "attention_mask", "labels")  # of a batch


def _preview_open_instruct(context: PatchContext) -> None:
    import datasets
    from open_instruct import dataset_transformation as upstream

    from .. import samples  # a plan reads the patches, and tokenises nothing

    request = samples.SamplesRequest.read(str(context.value))
    datasets.disable_caching()
    signature = inspect.signature(upstream.get_cached_dataset_tulu_with_statistics)

    @replaces(upstream, "load_dataset")
    def load_first_rows(load: Any, path: str, *arguments: Any, **options: Any) -> Any:
        if path in ("json", "parquet") or request.rows is None:
            return load(path, *arguments, **options)
        return samples.stream_rows(
            path, options["split"], request, revision=options.get("revision")
        )

    def get_cached_dataset_tulu_with_statistics(*arguments: Any, **options: Any) -> Any:
        bound = signature.bind(*arguments, **options)
        bound.apply_defaults()
        given = bound.arguments
        configs = upstream.load_dataset_configs(
            given["dataset_mixer_list"],
            given["dataset_mixer_list_splits"],
            given["dataset_transform_fn"],
            given["transform_fn_args"],
            given["target_columns"],
            given["dataset_config_seed"],
        )
        _hand_over(context, request, configs, given["tc"])
        sys.exit(0)

    upstream.get_cached_dataset_tulu_with_statistics = get_cached_dataset_tulu_with_statistics


def _hand_over(
    context: PatchContext, request: SamplesRequest, configs: Any, tokenizer_config: Any
) -> None:
    from open_instruct import dataset_transformation as upstream

    from .. import samples

    tokenizer = tokenizer_config.tokenizer
    collate = _make_collator(context, tokenizer)
    hidden = _hidden_by_padding(context, tokenizer)
    report = samples.SampleReport(request, tokenizer)
    first: list[Any] = []  # the samples of the first micro batch that is trained on
    for config in configs:
        steps = list(zip(config.transform_fn, config.transform_fn_args, strict=True))
        filters = [step for step in steps if upstream.TRANSFORM_FNS[step[0]][1] == "filter"]
        maps = [step for step in steps if step not in filters]
        config.transform_fn = [name for name, _ in maps]
        config.transform_fn_args = [options for _, options in maps]
        tokenized = upstream.get_dataset_v1(config, tokenizer_config)
        limits = [options["max_seq_length"] for _, options in maps if "max_seq_length" in options]
        limit = limits[0] if limits else None
        report.begin_dataset()
        for source, row in zip(config.dataset, tokenized, strict=True):
            kept = all(
                upstream.TRANSFORM_FNS[name][0](row, tokenizer, **options)
                for name, options in filters
            )
            is_pair = "chosen_input_ids" in row
            tools = None
            if not is_pair:
                # only the transforms of chats render tools (dataset_transformation.py:1811)
                tools = upstream._normalize_tools_for_chat_template(source.get("tools"))
            sides = []
            for name in samples.PAIR if is_pair else ("messages",):
                prefix = f"{name}_" if is_pair else ""
                labels = row.get(f"{prefix}labels")
                loss = samples.loss_of_labels(labels) if labels is not None else None
                ids = row[f"{prefix}input_ids"]
                sides.append(
                    samples.TokenizedSide(name, source[name], ids, loss, tools, hidden(ids))
                )
            report.add(sides, kept=kept, limit=limit)
            if kept and len(first) < request.per_device:
                columns = {name: row[name] for name in row if name.endswith(_COLUMNS)}
                first.append({"index": len(first), **columns})
    batch = None
    if first:
        batch = samples.describe_batch(collate(first), tokenizer.pad_token_id)
    report.write(batch=batch)


def _hidden_by_padding(context: PatchContext, tokenizer: Any) -> Callable[[list[int]], list[int]]:
    """Return what finds the positions of the tokens that the model does not attend to, in a sample
    without padding.
    """
    if context.trainer.script_name != "reward_modeling.py":
        return lambda ids: []
    # model_utils.py:397 takes every pad token for padding
    return lambda ids: [
        position for position, token in enumerate(ids) if token == tokenizer.pad_token_id
    ]


def _make_collator(
    context: PatchContext, tokenizer: Any
) -> Callable[[list[Any]], Mapping[str, Any]]:
    """Return what makes a batch of samples, as the trainer's script builds it."""
    import torch
    from open_instruct import dataset_transformation, dpo_utils, padding_free_collator
    from transformers import DataCollatorForSeq2Seq

    script = context.trainer.script_name
    packs = (context.trainer.flag("packing") or "").lower() == "true"
    if script == "reward_modeling.py":
        collator: Any = dataset_transformation.SimplePreferenceCollator(
            pad_token_id=tokenizer.pad_token_id
        )
        return lambda rows: dict(collator(rows))
    if script == "finetune.py":
        if packs:
            collator = padding_free_collator.TensorDataCollatorWithFlattening()
        else:
            collator = DataCollatorForSeq2Seq(tokenizer=tokenizer, model=None, padding="longest")
    elif script == "olmo_core_finetune.py":
        # it packs in numpy files
        collator = padding_free_collator.TensorDataCollatorWithFlattening()
    elif packs:
        limit = int(context.trainer.flag("max_seq_length") or 0) if script == "dpo.py" else None
        collator = padding_free_collator.TensorDataCollatorWithFlatteningDPO(
            return_position_ids=True, return_flash_attn_kwargs=True, max_seq_length=limit
        )
    else:
        collator = dpo_utils.DataCollatorForSeq2SeqDPO(
            tokenizer=tokenizer, model=None, padding="longest"
        )

    def collate(rows: list[Any]) -> Mapping[str, Any]:
        batch: Mapping[str, Any] = collator([to_tensors(row) for row in rows])
        return batch

    def to_tensors(row: Mapping[str, Any]) -> dict[str, Any]:
        tensors = {}
        for name, value in row.items():
            tensors[name] = torch.tensor(value) if isinstance(value, list) else value
        return tensors

    return collate


PATCH = PatchInfo(
    id="preview",
    reason="hands the samples over as the trainer's own transforms tokenise them, and ends before "
    "a model is loaded",
    lines={
        "open_instruct/dataset_transformation.py": {
            1947: "def get_dataset_v1(dc: DatasetConfig, tc: TokenizerConfig):",
            2294: "def load_dataset_configs(",
            2382: "def get_cached_dataset_tulu_with_statistics(",
            2440: "return get_cached_dataset_tulu_with_statistics(",
        },
        "open_instruct/finetune.py": {641: "collate_fn = TensorDataCollatorWithFlattening()"},
        "open_instruct/dpo_tune_cache.py": {
            407: "collate_fn = TensorDataCollatorWithFlatteningDPO("
            "return_position_ids=True, return_flash_attn_kwargs=True)"
        },
        "open_instruct/reward_modeling.py": {
            316: "data_collator = SimplePreferenceCollator(pad_token_id=tokenizer.pad_token_id)"
        },
    },
    apply=_preview_open_instruct,
    takes_value=True,  # the file of the request
)
