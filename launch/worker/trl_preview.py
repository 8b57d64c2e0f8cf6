"""Writes the samples as TRL prepares them, for `launch preview` and `launch check`.

It ends before a model is loaded.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from . import rendering, samples, trl_data, trl_entry, trl_kto
from .channel import EventWriter
from .columns import MASKED
from .model_loading import read_base
from .trainer import TrainerProgram
from .trl_options import LEARNS_TEXT, MixturePart
from .trl_trainer import EntryError, entry_class
from .turns import choose_answers

_SPLITS = (
    "bfd_split"  # the packing that splits long samples into several rows, and cuts nothing off
)
_NO_ASSISTANT = "no assistant tokens"  # trl/trainer/sft_trainer.py:1395


def main(
    program: TrainerProgram,
    options: Mapping[str, str],
    events: EventWriter,
    allowed: Collection[str] = (),
) -> None:
    """Hand over the samples of a command line, and exit with code 0. Raises EntryError."""
    hand_over(trl_entry.parse(program, options, events, allowed))


def hand_over(job: trl_entry.EntryJob) -> None:
    """Prepare the data with the job's trainer, write what the request names, and exit with code
    0.
    """
    import datasets

    request = samples.SamplesRequest.read(job.options["preview"])
    datasets.disable_caching()
    script = job.script
    args = job.args
    model = job.model.model_name_or_path
    split = script.dataset_train_split
    script.dataset_streaming = False  # its rows are shown, and counted
    parts = [MixturePart(script.dataset_name, split, "1.0", "none")]
    if "mixture" in job.options:
        parts = trl_data.read_parts(job.options["mixture"])
    sets = [_read_part(part, request, script.dataset_config) for part in parts]
    if job.options.get("learns") == LEARNS_TEXT:
        sets = [
            trl_data.select_text(rows, part.name) for rows, part in zip(sets, parts, strict=True)
        ]
    if job.prepare is not None:  # the order of the rows stays, by which they are shown
        sets = [trl_kto.to_completions(rows) for rows in sets]
    data = trl_data.join_rows(sets) if len(sets) > 1 else sets[0]
    ends = list(accumulate(map(len, sets), initial=0))
    preview = _preview_class(job, replace(request, starts=tuple(ends[:-1])), sets)
    if preview.truncates:
        args.max_length = None
    tokenizer = trl_entry.load_tokenizer(job)
    preview(
        model=_create_empty_model(model, args),
        args=args,
        train_dataset=data,
        processing_class=tokenizer,
    )


def _read_part(part: MixturePart, request: samples.SamplesRequest, config: str | None) -> Any:
    import datasets

    if request.rows is None or Path(part.name).exists():
        rows = datasets.load_dataset(part.name, name=config)[part.split]
        return rows if Path(part.name).exists() else trl_data.remove_padding(rows, part.name)
    rows = samples.stream_rows(part.name, part.split, request, name=config)
    return trl_data.remove_padding(rows, part.name)


def _preview_class(
    job: trl_entry.EntryJob, request: samples.SamplesRequest, sets: Sequence[Any]
) -> Any:
    """Return the entry's trainer, which prepares every sample at its whole length, and ends where
    it would be built, or where the chat template fails on a row.
    """
    from transformers import Trainer

    class Ending(Trainer):  # type: ignore[misc]
        """Takes the place of transformers' Trainer below TRL's classes, and ends the process."""

        def __init__(self, *, data_collator: Any, **_: Any) -> None:
            _check_columns(self.prepared.column_names, base.__name__)
            _write(request, limited, self, data_collator)
            sys.exit(0)

    base = job.trainer
    args = job.args
    limited = copy.copy(args)  # a copy with the requested length, which flattening removes
    whole = copy.copy(args)
    whole.max_length = None
    whole.shuffle_dataset = False
    learns = job.options.get("learns")
    entry = entry_class(base, args, job.events, learns)

    class Preview(entry, Ending):  # type: ignore[misc, valid-type]
        def _prepare_dataset(
            self, dataset: Any, processing_class: Any, args: Any, *more: Any
        ) -> Any:
            self.source = dataset
            renderer = rendering.RowRenderer(
                processing_class, getattr(self, "chat_template", None), renders_prompts=True
            )
            rendering.end_at_template_error(request, sets, renderer)
            if more[:1] and isinstance(more[0], bool):
                more = (False, *more[1:])  # SFT's packing is done afterwards

            def prepare(rows: Any) -> Any:
                if learns is not None:
                    return self.prepare_whole(rows, processing_class, whole, *more)
                return base._prepare_dataset(self, rows, processing_class, whole, *more)

            try:
                self.prepared = prepare(dataset)
            except RuntimeError as error:
                if _NO_ASSISTANT not in str(error):
                    raise
                first_sentence = str(error).partition(". ")[0]
                refusal = {"message": first_sentence, "row": _find_refused(prepare, dataset)}
                samples.SampleReport(request, processing_class).write(refusal=refusal)
                sys.exit(0)
            return self.prepared

    return Preview


def _find_refused(prepare: Any, dataset: Any) -> int:
    """Return the number of the first row that can't be prepared, by bisection."""
    first = 0
    end = len(dataset)
    while end - first > 1:
        middle = (first + end) // 2
        try:
            prepare(dataset.select(range(first, middle)))
            first = middle
        except RuntimeError:
            end = middle
    return first


def _check_columns(columns: Collection[str], trainer: str) -> None:
    if "prompt_ids" not in columns and "labels" not in columns:
        raise EntryError(f"the samples of {trainer} cannot be shown")


def _write(request: samples.SamplesRequest, args: Any, trainer: Any, collator: Any) -> None:
    tokenizer = trainer._tokenizer
    columns = trainer.prepared.column_names
    has_prompts = "prompt_ids" in columns
    keeps_end = getattr(args, "truncation_mode", None) == "keep_end"  # KTO's collator cuts the end
    limit = None if getattr(args, "packing_strategy", None) == _SPLITS else args.max_length
    cut = slice(None, limit)
    if keeps_end and limit is not None:
        cut = slice(-limit, None)
    report = samples.SampleReport(request, tokenizer, getattr(trainer, "chat_template", None))
    used = []
    for number, (source, whole) in enumerate(zip(trainer.source, trainer.prepared, strict=True)):
        for _ in range(request.starts.count(number)):
            report.begin_dataset()
        row = whole
        if has_prompts:
            kept = keeps_end or len(row["prompt_ids"]) < args.max_length
            sides = _answer_sides(source, row, collator)
        else:
            row = {name: whole[name][cut] for name in ("input_ids", "labels")}
            kept = getattr(args, "packing", False) or any(
                label != MASKED for label in row["labels"]
            )
            sides = [_chat_side(source, row, whole, trainer._learns)]
        report.add(sides, kept=kept, limit=limit)
        if kept:
            used.append(row)
    if getattr(args, "packing", False):
        used = _pack(trainer.prepared, args)
    batch = None
    if used:
        first_batch = collator(used[: request.per_device])
        batch = samples.describe_batch(first_batch, tokenizer.pad_token_id)
    report.write(batch=batch)


def _chat_side(source: Any, row: Any, whole: Any, learns: str | None) -> samples.TokenizedSide:
    """Return a row of SFT: a conversation, or plain text."""
    loss = samples.loss_of_labels(row["labels"])
    uncut = (whole["input_ids"], samples.loss_of_labels(whole["labels"]))
    ids = row["input_ids"]
    if trl_data.TEXT in source:
        return samples.TokenizedSide(trl_data.TEXT, (), ids, loss, whole=uncut)
    messages = source["messages"]
    due = None if learns is None else choose_answers(source, learns)
    return samples.TokenizedSide(
        "messages", messages, ids, loss, source.get("tools"), whole=uncut, due=due
    )


def _pack(prepared: Any, args: Any) -> list[Any]:
    from trl import pack_dataset

    rows = prepared.select_columns(["input_ids", "labels"])
    return list(pack_dataset(rows, args.max_length, args.packing_strategy))


def _answer_sides(source: Any, row: Any, collator: Any) -> list[samples.TokenizedSide]:
    """Return both sides of a pair, or KTO's answer: each the prompt and an answer that is learnt."""
    batch = collator([row])
    names = samples.PAIR if "chosen_ids" in row else (samples.ANSWER,)
    sides = []
    for number, name in enumerate(names):
        length = int(batch["attention_mask"][number].sum())
        ids = batch["input_ids"][number][:length].tolist()
        loss = [bool(carries) for carries in batch["completion_mask"][number][:length].tolist()]
        messages = [*(source.get("prompt") or []), *source[name]]
        prompt = row["prompt_ids"]
        answer = row[f"{name}_ids"]
        uncut = ([*prompt, *answer], [False] * len(prompt) + [True] * len(answer))
        due = [len(messages) - 1] if name == samples.ANSWER else None
        sides.append(
            samples.TokenizedSide(
                name, messages, ids, loss, source.get("tools"), whole=uncut, due=due
            )
        )
    return sides


def _create_empty_model(name: str, args: Any) -> Any:
    """Create the model without weights: TRL's trainers read its configuration."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    revision = args.model_init_kwargs.get("revision")
    config = AutoConfig.from_pretrained(
        read_base(name), revision=revision, trust_remote_code=args.trust_remote_code
    )
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=args.trust_remote_code)
