"""Writes the samples as open-instruct tokenises them, and ends the trainer before it loads a model.

`launch preview` and `launch check` use it. The trainer's own code tokenises: open-instruct's
transforms, with the arguments that the script gives them. launch/worker/trl_preview.py does the
same with TRL.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..hooks import replaces
from .patch import PatchContext, PatchInfo

if TYPE_CHECKING:
    from ..samples import SamplesRequest, TokenizedSide

_COLUMNS = ("input_ids", "attention_mask", "labels")  # the columns of a batch


def _preview_open_instruct(context: PatchContext) -> None:
    import datasets
    from open_instruct import dataset_transformation as upstream

    # This is not imported above, because a plan imports the patches and tokenises nothing.
    from .. import samples

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
    """Tokenise the samples of all data sets, and write what was requested."""
    from open_instruct import dataset_transformation as upstream

    from .. import rendering, samples

    tokenizer = tokenizer_config.tokenizer
    renderer = rendering.RowRenderer(tokenizer, renders_tools_of_pairs=False)
    rendering.end_at_template_error(request, [config.dataset for config in configs], renderer)
    collate = _make_collator(context, tokenizer)
    find_hidden = _hidden_by_padding(context, tokenizer)
    report = samples.SampleReport(request, tokenizer)
    first: list[Any] = []  # the samples of the first micro batch that is trained on
    for config in configs:
        maps, filters = _split_transforms(config)
        config.transform_fn = [name for name, _ in maps]
        config.transform_fn_args = [options for _, options in maps]
        tokenized = upstream.get_dataset_v1(config, tokenizer_config)
        limit = None
        for _, options in maps:
            if limit is None:
                limit = options.get("max_seq_length")
        report.begin_dataset()
        for number, (source, row) in enumerate(zip(config.dataset, tokenized, strict=True)):
            kept = _passes(row, filters, tokenizer)
            sides = _describe_sides(source, row, find_hidden)
            if number < request.detail and any(len(side.ids) == limit for side in sides):
                sides = _add_whole(sides, source, maps, tokenizer)
            report.add(sides, kept=kept, limit=limit)
            if kept and len(first) < request.per_device:
                columns = {name: row[name] for name in row if name.endswith(_COLUMNS)}
                first.append({"index": len(first), **columns})
    batch = None
    if first:
        batch = samples.describe_batch(collate(first), tokenizer.pad_token_id)
    report.write(batch=batch)


def _split_transforms(config: Any) -> tuple[list[Any], list[Any]]:
    """Return a data set's transforms that change rows, and those that drop rows.

    A transform is given by its name and its arguments.
    """
    from open_instruct import dataset_transformation as upstream

    maps: list[Any] = []
    filters: list[Any] = []
    for name, options in zip(config.transform_fn, config.transform_fn_args, strict=True):
        is_filter = upstream.TRANSFORM_FNS[name][1] == "filter"
        transforms = filters if is_filter else maps
        transforms.append((name, options))
    return maps, filters


def _passes(row: Any, filters: Sequence[Any], tokenizer: Any) -> bool:
    """Whether the trainer's filters keep a row."""
    from open_instruct import dataset_transformation as upstream

    for name, options in filters:
        keeps = upstream.TRANSFORM_FNS[name][0]
        if not keeps(row, tokenizer, **options):
            return False
    return True


def _describe_sides(
    source: Any, row: Any, find_hidden: Callable[[list[int]], list[int]]
) -> list[TokenizedSide]:
    """Return the chat of a row, or the two sides of a pair, as they are tokenised."""
    from open_instruct import dataset_transformation as upstream

    from .. import samples

    is_pair = "chosen_input_ids" in row
    tools = upstream._normalize_tools_for_chat_template(source.get("tools"))
    # Only the transforms of chats render tools (dataset_transformation.py:1811).
    drops_tools = is_pair and tools is not None
    if drops_tools:
        tools = None
    sides = []
    for name in samples.PAIR if is_pair else ("messages",):
        prefix = f"{name}_" if is_pair else ""
        labels = row.get(f"{prefix}labels")
        loss = None if labels is None else samples.loss_of_labels(labels)
        ids = row[f"{prefix}input_ids"]
        hidden = find_hidden(ids)
        side = samples.TokenizedSide(
            name, source[name], ids, loss, tools, hidden, drops_tools=drops_tools
        )
        sides.append(side)
    return sides


def _add_whole(
    sides: Sequence[TokenizedSide], source: Any, maps: Sequence[Any], tokenizer: Any
) -> list[TokenizedSide]:
    """Return the sides of a sample with their tokens before truncation, by the same transforms."""
    from open_instruct import dataset_transformation as upstream

    row = dict(source)
    for name, options in maps:
        unlimited = {**options, "max_seq_length": None} if "max_seq_length" in options else options
        row = upstream.TRANSFORM_FNS[name][0](row, tokenizer, **unlimited)
    described = _describe_sides(source, row, lambda ids: [])
    return [
        replace(side, whole=(list(map(int, whole.ids)), whole.loss))
        for side, whole in zip(sides, described, strict=True)
    ]


def _hidden_by_padding(context: PatchContext, tokenizer: Any) -> Callable[[list[int]], list[int]]:
    """Return a function from a sample's tokens to the positions that the model does not attend to.

    The sample has no padding.
    """

    def find_pad_tokens(ids: list[int]) -> list[int]:
        return [position for position, token in enumerate(ids) if token == tokenizer.pad_token_id]

    def find_nothing(ids: list[int]) -> list[int]:
        return []

    # reward_modeling.py takes every pad token for padding (model_utils.py:397).
    is_reward = context.trainer.script_name == "reward_modeling.py"
    return find_pad_tokens if is_reward else find_nothing


def _make_collator(
    context: PatchContext, tokenizer: Any
) -> Callable[[list[Any]], Mapping[str, Any]]:
    """Return the function that makes a batch of samples, as the trainer's script builds it."""
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
        # The script packs rows in numpy files, not in a collator.
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
    reason="writes the samples as the trainer's own transforms tokenise them, and ends it before a "
    "model is loaded",
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
