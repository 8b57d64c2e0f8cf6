"""Checks a trainer's rows: how many it has of each data set, and how long the longest one is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import columns, hooks
from ..samples import has_padded_tools
from ..trl_data import subset_size
from ..wording import count_of
from . import Evidence, tokenised
from .batches import BINS, WRAPPED
from .dealt import DueCounts, EpochCounts
from .trainer_objects import TrainerObjects, class_name
from .truncated import count_truncated_suspects

MIXTURE = "mixture"
LIMIT = "max_seq_length"
WHOLE_DOCUMENTS = "bfd"  # TRL's way of packing that splits no row

# {file that describes a folder of rows: the keys that lead to the number of rows}
_DESCRIPTIONS = {"about.json": ("train",), "demo.json": ("facts", "rows")}
# The names of the limit among the arguments of a trainer.
_LIMIT_ARGUMENTS = ("max_length", "max_seq_length", "max_token_length")
_SUSPECTS = 8  # rows that seem truncated and are looked up among the staged rows
# The columns of rows that are truncated before they are collated; TRL's DPO does so in its collator.
_TOKEN_COLUMNS = ("input_ids", "chosen_input_ids", "rejected_input_ids")


@dataclass(frozen=True)
class LoadedPart:
    """The rows that a trainer has loaded of one data set."""

    name: str  # the file, or the folder
    rows: int
    kept: int | None = None  # rows that the trainer's own filters left; None if it has none


class RowRecord:
    """What the trainer of this process loads, as its own functions return it."""

    def __init__(self) -> None:
        self.parts: list[LoadedPart] = []
        # The number of rows before and after TRL tokenises them, which may drop some; None until
        # then.
        self.prepared: tuple[int, int] | None = None
        # The differences between the tokenised rows and those that were staged.
        self.faults: list[str] = []
        self.compared = 0  # staged rows that were tokenised again
        self.sources: list[Any] = []  # the data sets before they are tokenised

    @property
    def kept(self) -> int:
        """The rows that the data loader is to have."""
        kept = sum(part.rows if part.kept is None else part.kept for part in self.parts)
        if self.prepared is not None:
            given, returned = self.prepared
            kept -= given - returned
        return kept

    def watch_trl(self) -> None:
        """Note the data sets that launch's entry over TRL loads, and what TRL makes of them."""
        import trl

        from .. import trl_data, trl_scripts

        @hooks.replaces(trl_data, "keep_rows")
        def keep_and_note(
            keep: Any, data: Any, name: str, split: str, options: Mapping[str, str]
        ) -> Any:
            kept = keep(data, name, split, options)
            if hasattr(kept[split], "__len__"):
                self.parts.append(LoadedPart(name, len(kept[split])))
            return kept

        for script in trl_scripts.SCRIPTS.values():
            kind = getattr(trl, script.trainer)
            if not hasattr(kind, "_prepare_dataset"):  # GRPO's, which tokenises as it samples
                continue

            @hooks.replaces(kind, "_prepare_dataset")
            def prepare_and_note(
                prepare: Any, trainer: Any, dataset: Any, tokenizer: Any, args: Any, *more: Any
            ) -> Any:
                prepared = prepare(trainer, dataset, tokenizer, args, *more)
                if "train" in more and hasattr(dataset, "__len__"):

                    def prepare_few(rows: Any, alone: Any) -> Any:
                        # For "train" KTOTrainer compares the labels' balance with the weights, and
                        # would warn of the balance of these few rows.
                        # True is SFTTrainer's `packing`: its rows are compared one by one.
                        others = {"train": "staged", True: False}
                        names = (others.get(part, part) for part in more)
                        return prepare(trainer, rows, tokenizer, alone, *names)

                    self._note_prepared(dataset, prepared, args, prepare_few)
                return prepared

    def _note_prepared(
        self, dataset: Any, prepared: Any, args: Any, prepare_few: Callable[[Any, Any], Any]
    ) -> None:
        """Note how many rows a TRL trainer has prepared, and compare some of them with staged rows.

        `prepare_few(rows, args)` prepares rows as the trainer does.
        """
        has_tokens = "input_ids" in dataset.column_names
        if not has_tokens:
            self.sources = [dataset]
        is_packed = bool(getattr(args, "packing", False))
        after = len(dataset) if is_packed else len(prepared)
        self.prepared = (len(dataset), after)
        has_documents = getattr(args, "packing_strategy", None) == WHOLE_DOCUMENTS
        if has_tokens or (is_packed and not has_documents):
            return
        name = ", ".join(part.name for part in self.parts)
        with tokenised.left_to_trainer():
            due = tokenised.tokenise_with_trl(prepare_few, dataset, args)
            self._compare(prepared, due, name)

    def _compare(self, dataset: Any, due: Sequence[Mapping[str, Any]], name: str) -> None:
        """Look among the trainer's rows for staged rows that were tokenised again."""
        missing = tokenised.count_missing(dataset, due)
        self.compared += len(due)
        if missing:
            found = f"{len(due) - missing} of {count_of(len(due), 'staged row')} of {name}"
            self.faults.append(f"{found} that were tokenised anew")

    def watch_open_instruct(self) -> None:
        """Note the data sets that open-instruct's script trains on, which it loads first."""
        from open_instruct import dataset_transformation

        name = "get_cached_dataset_tulu_with_statistics"

        @hooks.replaces(dataset_transformation, name)
        def build_and_note(build: Any, *arguments: Any, **options: Any) -> Any:
            built = build(*arguments, **options)
            setattr(dataset_transformation, name, build)
            self.parts = parts_of_statistics(built[1])
            with tokenised.left_to_trainer():
                entries = built[1].get("per_dataset_stats", ())
                self.faults[:0] = tokenised.compare_counts(built[0], entries)
            return built

        cache = dataset_transformation.LocalDatasetTransformationCache

        @hooks.replaces(cache, "load_or_transform_dataset")
        def load_and_compare(
            load: Any, self_: Any, dcs: Any, tc: Any, *arguments: Any, **options: Any
        ) -> Any:
            loaded = load(self_, dcs, tc, *arguments, **options)
            cache.load_or_transform_dataset = load
            self.sources = [config.dataset for config in dcs]
            for config in dcs:
                name_padding(config.dataset, config.dataset_name)
                with tokenised.left_to_trainer():
                    due = tokenised.tokenise_with_open_instruct(config, tc.tokenizer)
                    self._compare(loaded[0], [row for _, row in due], config.dataset_name)
            return loaded


def name_padding(rows: Any, name: str) -> None:
    """Print that tools or calls of some rows of the hub have the keys of others, if they have:
    open-instruct's trainers read a file as it is. Staged rows, whose path is absolute, have lost such
    keys.
    """
    if Path(name).is_absolute():
        return
    numbers = tokenised.spread_rows(len(rows))
    padded = sum(has_padded_tools(rows[number]) for number in numbers)
    if padded:
        print(
            f"launch: {name}: {padded} of {count_of(len(numbers), 'row')} have tools or calls with null "
            "keys, with which its files pad them, and the template writes them: download the data set "
            "and name its files",
            flush=True,
        )


def count_staged(name: str) -> int | None:
    """Return the rows that were staged in a folder, or beside a file; None without a record."""
    path = Path(name)
    folder = path if path.is_dir() else path.parent
    files = (folder / name for name in _DESCRIPTIONS)
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return None
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        for key in _DESCRIPTIONS[file.name]:
            value = value[key]
        return int(value)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def parts_of_statistics(statistics: Mapping[str, Any]) -> list[LoadedPart]:
    """Return the data sets in open-instruct's statistics (dataset_transformation.py:2232)."""
    return [
        LoadedPart(
            str(entry["dataset_name"]),
            int(entry["initial_instances"]),
            int(entry["final_instances"]),
        )
        for entry in statistics.get("per_dataset_stats", ())
    ]


def read_numpy_folder(folder: Path, names: Sequence[str]) -> tuple[list[LoadedPart], int]:
    """Return the data sets `names` in the statistics of open-instruct's tokenised numpy files
    (numpy_dataset_conversion.py:429), and the tokens of all.

    Raises OSError, ValueError or LookupError for a file that is missing or has another content.
    """
    content = json.loads((folder / "dataset_statistics.json").read_text(encoding="utf-8"))
    by_name = {entry["dataset_name"]: entry for entry in content["per_dataset_statistics"]}
    parts = []
    for name in names:
        entry = by_name[name]
        kept = int(entry["final_instances_in_output"])
        parts.append(LoadedPart(name, int(entry["initial_instances"]), kept))
    return parts, int(content["overall_statistics"]["total_tokens"])


def count_loaded(dataset: Any, packing: str | None, arguments: Any) -> int | None:
    """Return the staged rows that are in a loader's data set; None where it does not show them."""
    if packing == BINS and getattr(arguments, "packing_strategy", None) == WHOLE_DOCUMENTS:
        return sum(columns.read_packed(dataset).documents)
    if packing in (BINS, WRAPPED) or not hasattr(dataset, "__len__"):
        return None
    return len(dataset)


def check_mixture(
    record: RowRecord, dataset_rows: int | None, requested: str | None
) -> list[Evidence]:
    """Return the evidence "mixture": the rows of each data set against those that were staged, and
    the rows of the data loader against those of all data sets.

    `requested`: the shares, with commas. `dataset_rows` is None where the loader's rows are packed.
    What the trainer's own filters leave out, such as rows without an answer, is noted.
    """
    if requested is None:
        return []
    how = "the rows that the trainer loaded, against those that were staged"
    parts = record.parts
    shares = [float(share) for share in requested.split(",")]
    if len(parts) != len(shares):
        reason = f"{count_of(len(parts), 'data set')} of {len(shares)} were seen"
        return [Evidence(MIXTURE, None, reason).judge(requested, None)]
    faults: list[str] = []
    for part, share in zip(parts, shares, strict=True):
        staged = count_staged(part.name)
        if staged is None:
            reason = f"no record of the rows in {part.name}"
            return [Evidence(MIXTURE, None, reason).judge(requested, None)]
        due = subset_size(repr(share), staged)
        if part.rows != due:
            faults.append(f"{part.rows} of {due} rows of {part.name}")
    loaded = sum(part.rows for part in parts)
    kept = record.kept
    if not faults and dataset_rows is not None and dataset_rows != kept:
        faults.append(f"{dataset_rows} of {kept} rows in the data loader")
        how = f"{how}: {', '.join(part.name for part in parts)}"
    faults += record.faults
    if faults:
        return [Evidence(MIXTURE, "; ".join(faults), how).judge(requested, False)]
    note = f"{count_of(loaded, 'row')} of {count_of(len(parts), 'data set')}"
    if kept != loaded:
        note += f", of which the trainer's own filters leave {kept}"
    if record.compared:
        note += f"; {record.compared} of them were tokenised anew and found"
    return [Evidence(MIXTURE, requested, how, note=note).judge(requested, True)]


def add_epoch(mixture: Evidence, found: EpochCounts, due: DueCounts) -> Evidence:
    """Return the evidence "mixture" with what the first whole epoch has dealt on all ranks."""
    differences = due.differences(found)
    note = f"{mixture.note}; an epoch dealt {found}"
    if differences:
        how = "the passes of the first whole epoch, against the rows of the data loader"
        value = "; ".join(differences)
        return replace(mixture, value=value, how=how, note=note).judge(mixture.requested, False)
    return replace(mixture, note=note)


def check_longest(
    objects: TrainerObjects, requested: str | None, record: RowRecord | None = None
) -> list[Evidence]:
    """Return the evidence "max_seq_length" on the rows of the data loader, and on the limit that the
    trainer's arguments and its collator have.

    `record`: the data sets, whose staged rows show whether a row was truncated or merely ends
    differently.
    """
    if requested is None:
        return []
    trainer = objects.trainer
    arguments = objects.arguments if trainer is None else trainer.args
    collator = getattr(objects.dataloader, "collate_fn", None)
    collator = getattr(collator, "data_collator", collator)
    limits = find_limits(arguments, _LIMIT_ARGUMENTS)
    limits += find_limits(collator, ("max_length",))
    dataset = getattr(objects.dataloader, "dataset", None)
    sets = [part.name for part in record.parts] if record is not None else []
    return [judge_limit(dataset, limits, requested, objects.tokenizer, sets)]


@dataclass(frozen=True)
class Limit:
    """A number of tokens that a trainer truncates or drops rows at."""

    tokens: int
    attribute: str  # the place where it is set: `SFTConfig.max_length`


def find_limits(owner: Any, names: Sequence[str]) -> list[Limit]:
    """Return the limits among the attributes of an object."""
    limits = []
    for name in names:
        value = getattr(owner, name, None)
        if isinstance(value, int):
            limits.append(Limit(value, f"{class_name(owner)}.{name}"))
    return limits


def judge_limit(
    dataset: Any,
    limits: Sequence[Limit],
    requested: str,
    tokenizer: Any = None,
    names: Sequence[str] = (),
) -> Evidence:
    """Compare the limits of a trainer, and the rows of its data set, with the requested limit.

    `names`: the data sets, as the trainer is given them. Rows that seem truncated at another limit
    are decoded with the `tokenizer` and looked up there.
    """
    for limit in limits:
        if str(limit.tokens) != requested:
            how = f"{limit.attribute}, at which the trainer truncates or drops rows"
            return Evidence(LIMIT, limit.tokens, how).judge(requested, False)
    how = "the longest row of the data loader"
    known = getattr(dataset, "column_names", None) or ()  # a stream does not know them
    columns_of_tokens = [name for name in _TOKEN_COLUMNS if name in known]
    if not columns_of_tokens or not hasattr(dataset, "data"):
        if not limits:
            return Evidence(LIMIT, None, "the trainer's limit was not found").judge(requested, None)
        how = f"{limits[-1].attribute}, at which rows are truncated"
        return Evidence(LIMIT, requested, how).judge(requested, True)
    longest = 0
    untruncated = ""
    for column in columns_of_tokens:
        lengths, last_tokens = columns.read_ends(dataset, column)
        longest = max(longest, *lengths)
        suspects = _find_suspects(lengths, last_tokens, int(requested))
        if not suspects:
            continue
        length = lengths[suspects[0]]
        note = f"the {len(suspects)} rows of {length} tokens alone do not end as the others do"
        truncated = _count_truncated(dataset, column, suspects, tokenizer, names)
        if truncated:
            found = Evidence(LIMIT, f"rows truncated at {length}", how, note=note)
            return found.judge(requested, False)
        untruncated = f"; {note}, and none of them ends within a turn of a staged row"
        if truncated is None:
            untruncated = f"; {note}, and no staged rows are here that would show why"
    note = f"{longest} tokens in the longest of {count_of(len(dataset), 'row')}{untruncated}"
    if longest > int(requested):
        return Evidence(LIMIT, f"a row of {longest}", how, note=note).judge(requested, False)
    return Evidence(LIMIT, requested, how, note=note).judge(requested, True)


def _count_truncated(
    dataset: Any, column: str, suspects: Sequence[int], tokenizer: Any, names: Sequence[str]
) -> int | None:
    """Return how many of the first `suspects`, numbers of rows, end within a turn of a staged row;
    None if the staged rows are not here. Without a tokenizer all count as truncated.
    """
    if tokenizer is None:
        return len(suspects)
    plain = dataset.with_format(None)
    rows = [plain[number][column] for number in suspects[:_SUSPECTS]]
    # A character of several tokens may be truncated too, and then decodes to U+FFFD.
    texts = [tokenizer.decode(row).rstrip("\ufffd") for row in rows]
    return count_truncated_suspects(texts, names)


def _find_suspects(lengths: Sequence[int], last_tokens: Sequence[int], limit: int) -> list[int]:
    """Return the numbers of the rows that seem to be truncated at another length than `limit`.

    They are several, the longest of all, and none ends in the token that every shorter row ends in.
    """
    longest = max(lengths, default=0)
    if longest >= limit:
        return []
    ends = set()
    others = set()
    longest_rows = []
    for number, (length, token) in enumerate(zip(lengths, last_tokens, strict=True)):
        if length == longest:
            longest_rows.append(number)
            ends.add(token)
        else:
            others.add(token)
    if len(longest_rows) < 2 or len(others) != 1 or others & ends:
        return []
    return longest_rows
