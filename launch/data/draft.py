"""Drafts a stage file for a user's data: the kind of its rows decides the stage it builds on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch.config.kinds import KINDS, DataFormat, Kind
from launch.config.schema import TrainOn
from launch.config.yaml_nodes import load_yaml, write_comment, write_scalar
from launch.data.first_rows import FirstRows
from launch.data.formats import recognise
from launch.data.label_balance import (
    LARGEST_RATIO,
    MOST_OF_ONE_KIND,
    balance_weights,
    measure_balance,
)
from launch.data.labels import own_names
from launch.data.rl_draft import choose_verifier, draft_steps, draft_verifier
from launch.data.row_errors import RowError
from launch.data.rows import read_rows
from launch.data.sources import DataFiles, LocalData, find_files
from launch.data.stage_kind import choose_kind, write_options
from launch.data.structure import DataStructure, read_structure
from launch.errors import UserError
from launch.resources import CONFIGS
from launch.worker.trl_options import BY_ROW, is_own

SCHEMA_FILE = "stage.schema.json"  # beside a drafted stage, for editors
MAX_ROWS = 100_000  # rows that are read for the draft
_STEPS = 20  # optimizer steps of an epoch that a small data set should have
# KTO estimates its KL term from the rows of a micro batch; TRL's documentation advises 4 or more.
_KTO_BATCH = 4
# Optimizer steps after which the demo's model answers the rows of a small data set: 16 questions need
# about 600 steps of one row.
_DEMO_STEPS = 600
_DEVICE_COMMENT = "gpus=N on the command line trains on GPUs in spite of this line"
_TASKS_COMMENT = "of `launch eval`; without them it takes the held-out rows"
_OF_DEMO = "a tiny model on one CPU process"


@dataclass(frozen=True)
class DraftedData:
    """The data that a stage is drafted for."""

    path: Path  # a file, a folder or a pattern, or a hub id
    kind: Kind
    columns: dict[str, str]
    structure: DataStructure
    format: DataFormat = DataFormat.auto
    verifier: str | None = None  # of RLVR
    train_on: TrainOn = TrainOn.all  # which answers are learnt

    @property
    def is_text(self) -> bool:
        """Whether the rows are plain text."""
        return self.format == DataFormat.text


def read_for_draft(
    path: Path,
    columns: dict[str, str],
    kind: Kind | None = None,
    form: DataFormat = DataFormat.auto,
    verifier: str | None = None,
) -> DraftedData:
    """Read up to MAX_ROWS rows of the format `form`. Without a `kind`, pairs are for a DPO stage,
    answers with a label for KTO, prompts without an answer for RLVR, and other rows for SFT.

    `verifier` is that of RLVR; without it the first rows decide which one fits.

    Raises UserError: data_no_files, data_empty, data_columns, parquet_needs_pyarrow, and those of
    `Conversion.rows`.
    """
    files = find_files(path, "train", "--data")
    first = FirstRows.of(read_rows(files[0]), own_names(columns))
    row = first.columns
    if kind is None:
        kind = choose_kind(row, verifier, first.place, columns, first.labels, own=first.own)
    elif form == DataFormat.auto and row:
        _check_format(first, kind)
    if kind == Kind.rlvr and verifier is None:
        verifier = choose_verifier(row, Path.cwd())
    data = LocalData(
        DataFiles(files, ""),
        kind,
        form,
        columns,
        cache=path / ".none",  # does not exist: nothing is staged for a draft
        where="--data",
        skips=True,
        needs_truth=not is_own(str(verifier)),
    )
    try:
        structure, train_on = _read_answers(data)
    except UserError as error:
        raise UserError([write_options(problem) for problem in error.problems]) from error
    return DraftedData(path, kind, columns, structure, form, verifier, train_on)


def _read_answers(data: LocalData) -> tuple[DataStructure, TrainOn]:
    """Read the rows, and return which of their answers are learnt: those that are marked, if every
    row has marks that exclude one.

    Raises UserError: those of `Conversion.rows`.
    """
    try:
        return read_structure(data, MAX_ROWS), TrainOn.all
    except UserError as error:
        if data.kind != Kind.sft or error.problems[0].id != "data_marks":
            raise
    marked = replace(data, train_on=TrainOn.marked)
    return read_structure(marked, MAX_ROWS), TrainOn.marked


def _check_format(first: FirstRows, kind: Kind) -> None:
    """Check that the first rows together have the columns of a format: the first one alone may lack
    an answer, and what its error proposes. Raises UserError: data_columns.
    """
    try:
        recognise(first.columns, kind)
    except RowError as error:
        raise UserError(write_options(error.problem(first.place, first.own))) from error


def draft_of_hub(
    name: str,
    columns: dict[str, str],
    kind: Kind,
    form: DataFormat = DataFormat.auto,
    verifier: str | None = None,
) -> DraftedData:
    """Return a data set of the hub, whose rows are not read."""
    why = f"the trainer reads it from the hub; it is taken for data of {KINDS[kind].name} (--kind)"
    structure = DataStructure((Path(name),), 0, False, None, not_read_because=why)
    if kind == Kind.rlvr and verifier is None:
        verifier = BY_ROW  # as in the mixtures of the hub
    return DraftedData(Path(name), kind, columns, structure, form, verifier)


def draft_stage(
    data: DraftedData,
    *,
    group: str | None,
    path: str | None,
    trainer: str | None,
    on_cpu: str | None = None,
    after: str | None = None,
    context: int | None = None,
    lacks_template: bool = False,
) -> str:
    """Return a commented stage file.

    Args:
        group: one of the model groups.
        path: a hub id or a folder of a model, which is trained instead of the group's.
        trainer: replaces the trainer of the stage that the draft builds on.
        on_cpu: the reason why the stage trains on the CPU; None if it need not.
        after: the stage of a pipeline whose model this stage starts from.
        context: the number of positions of the model; None if it is unknown.
        lacks_template: whether the model's tokenizer has no chat template.
    """
    row = KINDS[data.kind]
    is_demo = group == "demo" and row.demo is not None  # the demo has no reward model
    base = row.demo if is_demo and row.demo else data.kind.value
    lines = [
        f"# yaml-language-server: $schema=./{SCHEMA_FILE}",
        "# @package _global_",
        write_comment(f"Drafted by `launch new`. {data.structure.describe()}"),
    ]
    if after:
        text = f"It starts from the model of {after}, as part of a pipeline: pipeline={after},..."
        lines.append(write_comment(text))
    reason = "there is no open-instruct checkout here"
    if data.is_text:
        reason = "plain text needs it"
    elif data.train_on == TrainOn.marked:
        reason = "marks of answers need it"
    about = _OF_DEMO if is_demo else row.recipe
    lines += _draft_defaults(base, about, None if is_demo else group, trainer, reason)
    learnt = "continued training" if data.is_text else row.name
    description = write_scalar(f"{learnt} on {data.path.name}")
    lines += [
        "",
        "stage:",
        f"  description: {description}",
        f"  # tasks: [held_out, gsm8k_cot, /data/my_tasks] # {_TASKS_COMMENT}",
    ]
    if on_cpu and not is_demo:
        lines += ["", f"device: cpu # {on_cpu}; {_DEVICE_COMMENT}"]
    if path:
        lines += ["", "model:", f"  path: {write_scalar(path)}"]
    lines += ["", "recipe:", *_draft_recipe(data, base, context)]
    if data.is_text:
        lines.append("  packing: bins # texts end to end; without it each is cut at max_seq_length")
    if is_demo and lacks_template and not data.is_text:
        lines.append("  chat_template: tulu # the model's tokenizer has none")
    lines += ["", "data:", *_draft_data(data)]
    return "\n".join(lines) + "\n"


def _draft_defaults(
    base: str, about: str, group: str | None, trainer: str | None, reason: str
) -> list[str]:
    """Return the lines of the defaults list.

    `about` describes the stage `base`; `reason` is why the trainer is another one.
    """
    lines = ["defaults:", f"  - {base} # {about}; the keys below replace its own"]
    if group:
        lines.append(f"  - override /model: {group}")
    if trainer:
        lines.append(f"  - override /trainer: {trainer} # {reason}")
    lines.append("  - _self_")
    return lines


def _draft_data(data: DraftedData) -> list[str]:
    """Return the lines below `data:`."""
    lines = [
        "  mix:",
        f"    - name: {write_scalar(str(data.path))}",
    ]
    if data.kind != Kind.rlvr:
        lines.append("    # - name: allenai/tulu-3-sft-personas-math # hub data can be mixed in")
    if data.kind == Kind.sft:
        lines.append("    #   share: 0.1")
    if data.columns:
        lines.append("  columns: # known name: its name in the file")
        for known, name in data.columns.items():
            lines.append(f"    {known}: {write_scalar(name)}")
    if data.is_text:
        lines.append("  format: text # every token of the column `text` is learnt")
    elif data.format != DataFormat.auto:
        lines.append(f"  format: {data.format} # whatever the columns are")
    elif not data.columns:
        lines.append("  # format: auto # recognised by the columns")
    if data.train_on == TrainOn.marked:
        lines.append("  train_on: marked # the answers that the rows mark; others are not learnt")
    elif data.kind == Kind.sft and not data.is_text:
        lines.append("  # train_on: all # or last, the last answer of each row; or marked")
    lines.append(
        "  # bad_rows: skip # leaves out rows that can't be used, which are refused otherwise"
    )
    share = _held_out_share(data)
    if share:
        lines.append(
            f"  validation: {share:g} # of the rows, never trained on: `launch eval` judges the "
            "model by them"
        )
    return lines


def _held_out_share(data: DraftedData) -> float:
    """Return the share of the rows to hold out for `launch eval`.

    It is a tenth, at most about 200 rows, and 0 for small data and for reward models.
    """
    rows = data.structure.read
    if rows < _STEPS or data.kind == Kind.rm:
        return 0.0
    return min(0.1, round(200 / rows, 4))


def _draft_recipe(data: DraftedData, base: str, context: int | None) -> list[str]:
    """Return the lines below `recipe:`. `base` is the shipped stage that the draft builds on."""
    shipped = load_yaml((CONFIGS / "stage" / f"{base}.yaml").read_text(encoding="utf-8"))["recipe"]
    is_demo = base.startswith("demo")
    is_size_known = data.structure.all_
    rows = round(data.structure.read * (1 - _held_out_share(data)))
    if data.kind == Kind.rlvr:
        prompts = shipped["prompts_per_step"]
        if is_size_known:
            prompts = fitting_batch(rows, prompts, steps=2)  # prompts are answered many times
        assert data.verifier is not None
        steps = draft_steps(shipped, prompts, is_demo=is_demo, context=context)
        return [draft_verifier(data.verifier), *steps]
    unit = f"{KINDS[data.kind].unit}s"
    batch = shipped["global_batch_size"]
    comment = f"{unit} in an optimizer step"
    if is_size_known:
        batch = fitting_batch(rows, batch, least=_least_batch(data, rows, batch))
        comment += f", {math.ceil(rows / batch)} steps an epoch"
        if batch < shipped["global_batch_size"]:
            comment += (
                f"; the stage {base} has {shipped['global_batch_size']}, too many for {rows} rows"
            )
    lines = [f"  global_batch_size: {batch} # {comment}"]
    if batch < shipped["per_device_batch_size"]:
        lines.append(f"  per_device_batch_size: {batch}")
    steps = math.ceil(rows / batch)
    epochs = 2 if data.kind == Kind.sft else 1
    max_steps = shipped.get("max_steps")
    if not is_demo:
        lines.append(f"  epochs: {epochs}")
    elif is_size_known and steps * epochs <= max_steps:
        epochs = max(epochs, _DEMO_STEPS // steps)
        lines += [
            f"  epochs: {epochs} # so tiny a model learns an answer by seeing it often",
            f"  max_steps: null # all epochs, {steps * epochs} steps",
        ]
    else:
        lines += [
            f"  epochs: {epochs}",
            f"  max_steps: {max_steps} # about a minute, whatever `epochs` is; null trains those",
        ]
    lines += _draft_weights(data)
    lines += _draft_limits(shipped, context)
    if not is_demo and data.kind != Kind.rm:  # reward_modeling.py saves at the end only
        interval = shipped["checkpoint_steps"]
        effect = "steps between two checkpoints, as here; null saves the model at the end only"
        lines.append(f"  # checkpoint_steps: {interval} # {effect}")
    return lines


def _draft_weights(data: DraftedData) -> list[str]:
    """Return the line of the weight that balances KTO's labels; none where they are balanced, or where
    they were not counted.
    """
    labels = data.structure.labels
    if labels is None or not labels.good or not labels.bad:
        return []
    ratio = measure_balance(labels, 1.0, 1.0)
    if 1 <= ratio <= LARGEST_RATIO:
        return []
    key, weight = balance_weights(labels)
    rows = f"{labels.good:,} good answers, {labels.bad:,} bad"
    comment = f"{rows}: the good should weigh 1 to {LARGEST_RATIO} times the bad"
    return [f"  {key}: {weight:g} # {comment}"]


def _draft_limits(shipped: Mapping[str, Any], context: int | None) -> list[str]:
    """Return the lines of the learning rate and of the length."""
    rate = f"{shipped['learning_rate']:.1e}".replace("e-0", "e-")
    lines = [f"  # learning_rate: {rate}"]
    length = shipped["max_seq_length"]
    if context and context < length:
        lines.append(f"  max_seq_length: {context} # tokens: the model's context")
    else:
        lines.append(
            f"  # max_seq_length: {length} # tokens; `launch preview` shows what is cut off"
        )
    return lines


def _least_batch(data: DraftedData, rows: int, largest: int) -> int:
    """Return the smallest batch of the data's kind of stage.

    KTO has no KL term within a batch of one row, and most of its steps should have both labels.
    """
    labels = data.structure.labels
    if data.kind != Kind.kto or labels is None or not labels.good or not labels.bad:
        return 1
    batch = min(_KTO_BATCH, rows - rows % 2)
    while batch < min(rows // 2, largest) and labels.share_of_one_kind(batch) > MOST_OF_ONE_KIND:
        batch *= 2
    return batch


def fitting_batch(rows: int, largest: int, steps: int = _STEPS, least: int = 1) -> int:
    """Return `largest`, halved until an epoch has so many steps, at least `least`."""
    batch = largest
    while batch // 2 >= least and rows < batch * steps:
        batch //= 2
    return batch
