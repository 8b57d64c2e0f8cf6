"""Translates the model, the chat template and the data sets of another tool's file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from launch.config.compose import compose_once
from launch.config.line import DATA_FILES, CommandLine
from launch.config.other_tool_files import LINE, LLAMA_FACTORY, TRL_TOOL
from launch.config.other_tools import read_mixer
from launch.config.typed_values import as_whole
from launch.errors import nearest
from launch.planning.local_rows import LocalRows, read_local_rows
from launch.planning.other_tool_values import Translation, as_number, entry_text
from launch.upstream.trl_templates import load_templates

# The kinds of rows whose prompts axolotl writes without a chat template (prompt_strategies).
_HAS_OWN_TEXT = re.compile(
    r"alpaca.*|gpteacher.*|jeopardy.*|oasst.*|reflection.*|summarizetldr.*|context_qa.*"
)


_OF_VALIDATION = ("test_datasets", "eval_dataset", "validation_file", "val_files")
_LIMITS = ("max_samples", "max_train_samples", "num_samples")
_PROBABILITIES = (
    *("dataset_probs", "interleave_probs", "probabilities", "dataset_weights", "mix_probs"),
    *("mixing_weights", "blending_datasets_weights", "prompt_data_probs"),
)


def translate_model(t: Translation) -> None:
    model = t.take("base_model", "model_name_or_path")
    if model is None and t.tool != LINE:
        t.missing.append("the model: set model.path=")
    elif model is not None:
        t.set("model.path", model)
    revision = t.take("revision_of_model", "model_revision")
    if revision and revision != "main":
        t.set("model.revision", revision)
    template = t.take("chat_template", "template", "chat_template_path")
    own = ("tokenizer_default", "tokenizer_default_fallback_chatml", "default", "None")
    is_base = t.tool == LINE and not re.search(r"(?i)instruct|chat|-it\b", str(model))
    if template is None and is_base:
        return  # the stage's template: that of a base model is seldom one
    if template is None or str(template) in own:
        t.set("recipe.chat_template", None)
    elif "{" in str(template):
        t.differences.append(
            "a chat template in the file: save it and set recipe.chat_template=FILE.jinja"
        )
        t.set("recipe.chat_template", None)
    elif _is_of_family(str(template), str(model)):
        t.differences.append(f"the template {template}: that of the model's tokenizer is used")
        t.set("recipe.chat_template", None)
    else:
        t.set("recipe.chat_template", template)


def _is_of_family(template: str, model: str) -> bool:
    """Return whether a template that launch does not have is named after the model's family, such
    as LLaMA-Factory's `qwen`: the tokenizer then has it.
    """
    family = re.match(r"[a-z]{3,}", template.lower())
    has_template = template in load_templates().digests
    return family is not None and not has_template and family[0] in model.lower()


def translate_data(t: Translation) -> None:
    """Set the data sets, each with its split, and the validation rows."""
    _translate_sets(t)
    column = t.take("dataset_text_field", "text_field", "text_column") if t.tool == LINE else None
    if t.rows is not None and t.rows.is_text:
        t.set("data.format", "text")
    elif column:
        t.differences.append(f"the column {column}: rows become chats by all of their columns")
    validation = t.take(
        *("val_set_size", "val_size", "dataset_test_split_size", "split_dataset_ratio"),
        *("eval_ratio", "validation_split", "test_size"),
    )
    if isinstance(validation, int | float) and not isinstance(validation, bool) and validation > 0:
        t.set("data.validation", validation)
    for name in _OF_VALIDATION:
        evaluated = t.take(name)
        if isinstance(evaluated, str) and Path(evaluated).expanduser().exists():
            t.set("data.validation", evaluated)
        elif evaluated:
            t.differences.append(f"{name}: set data.validation=FILE, whose rows are evaluated")
    _translate_prompts(t)


def _translate_sets(t: Translation) -> None:
    """Set the data sets, unless the line has its own."""
    known = len(t.missing)
    entries = list(_find_entries(t))
    if {"data", "data.mix"} & t.given.keys():
        del t.missing[known:]
    elif entries:
        t.overrides["data.mix"] = f"[{','.join(map(entry_text, entries))}]"
    elif t.tool != LINE:
        t.missing.append("the data: set data.mix=FILE_OR_HUB_ID")


def _translate_prompts(t: Translation) -> None:
    """Put loss on the prompts or not, and name what a tool does by itself."""
    for name in ("train_on_inputs", "train_on_prompt"):
        learns = t.take(name)
        if learns:
            _learn_prompts(t)
        elif learns is not None and t.tool == LINE:
            t.differences.append(f"{name}=false: the loss is on the answers here")
    on_answers = t.take("assistant_only_loss", "completion_only_loss")
    if t.tool == TRL_TOOL and t.overrides["stage"] in ("sft", "lora_sft") and not on_answers:
        t.differences.append(
            "the loss is on the answers alone; TRL's is on every token of a conversation "
            "(flags.assistant_only_loss=false)"
        )


def _learn_prompts(t: Translation) -> None:
    """Put loss on every token of a conversation, which TRL's SFT alone can."""
    if t.overrides.get("trainer") == "trl_sft":
        t.set("flags.assistant_only_loss", False)
        t.differences.append(
            "the prompts carry loss: flags.assistant_only_loss=false, with which all turns do"
        )
    else:
        t.differences.append("the prompts carry loss there: here the answers alone")


def _first_named(settings: Mapping[str, Any]) -> Any:
    """Return the data set that the settings name first: `dataset_name`, else that of `datasets`."""
    if settings.get("dataset_name"):
        return settings["dataset_name"]
    sets = settings.get("datasets")
    first = sets[0] if isinstance(sets, list) and sets else None
    return first.get("path") if isinstance(first, dict) else None


def find_local_rows(t: Translation) -> None:
    """Read the rows of a local file before a stage is chosen. For a misspelt name, the most similar
    file in the same folder is read.
    """
    _name_sources(t)
    named = _first_named(t.settings)
    if isinstance(named, list):
        t.rows = _read_all(named)
    mixed = read_mixer(named) if isinstance(named, str) else []
    if mixed:
        t.rows = _read_all([name for name, _ in mixed], [share for _, share in mixed])
    if not isinstance(named, str):
        return
    path = Path(named).expanduser()
    is_missing = not path.exists() and path.name.endswith(DATA_FILES)
    if is_missing and "dataset_name" in t.settings:
        beside = [item.name for item in path.parent.glob("*") if item.name.endswith(DATA_FILES)]
        near = nearest(path.name, beside, limit=1, cutoff=0.8)
        if not near:
            t.missing.append(f"the file {path}, which does not exist")
            return
        path = path.with_name(near[0])
        t.settings["dataset_name"] = str(path)
        t.differences.append(f"there is no {named}: {path} is taken")
    if path.exists():
        t.rows = read_local_rows(path)


def _read_all(names: list[Any], shares: Sequence[float] = ()) -> LocalRows | None:
    """Return the first row of several files, and the number of all of their rows, as far as `shares`
    has them; None if one is not here.
    """
    found = [read_local_rows(Path(str(name))) for name in names]
    here = [rows for rows in found if rows is not None]
    if not here or len(here) < len(found):
        return None
    parts = shares or [1.0] * len(here)
    counts = [int(rows.count * part) for rows, part in zip(here, parts, strict=True)]
    return LocalRows(here[0].first, sum(counts))


def _name_sources(t: Translation) -> None:
    """Replace names from LLaMA-Factory's dataset_info.json on a line by the data sets that they
    refer to.
    """
    named = t.settings.get("dataset_name")
    if t.tool != LINE or not named:
        return
    names = [str(name) for name in (named if isinstance(named, list) else [named])]
    has_folder = "dataset_dir" in t.settings
    folder, known = _read_dataset_info(t)
    sources = []
    for name in names:
        source = _source_of(name, folder, known)
        if source is None and has_folder and (folder / name).exists():
            source = str(folder / name)
        if source is None and has_folder and "/" not in name:
            t.missing.append(_unknown_name(name, folder, known))
        sources.append(source or name)
    t.settings["dataset_name"] = sources if len(sources) > 1 else sources[0]


def _share_of(t: Translation, name: str, limit: Any) -> float:
    """Return the fraction of a data set that `limit` rows are. It is 1 if the data set is not
    larger, or if its rows are not on this machine.
    """
    if not limit:
        return 1
    path = Path(name)
    rows = read_local_rows(path) if path.exists() else None
    if rows is None:
        t.differences.append(
            f"max_samples={limit} rows of {name}: set `share` in its entry of data.mix, a share of the rows"
        )
        return 1
    return min(1, round((as_whole(limit) or rows.count) / rows.count, 4))


def _shares_of_probabilities(t: Translation, names: Sequence[Any]) -> dict[str, float]:
    """Return the share of each data set's rows that gives the mixture of the tool's probabilities, as
    far as the rows can be counted.
    """
    written = t.take(*_PROBABILITIES)
    if written is None:
        return {}
    texts = written if isinstance(written, list) else re.split(r"[,\s]+", str(written).strip("[]"))
    parts = [as_number(text) for text in texts]
    if len(parts) != len(names) or min(parts) <= 0:
        t.missing.append(f"a share for each data set: {', '.join(map(str, texts))}")
        return {}
    rows = [read_local_rows(Path(str(name))) for name in names]
    counts = [read.count for read in rows if read is not None]
    if len(counts) < len(names):
        t.differences.append(
            "the probabilities are shares of each data set's rows here: equal to those of the "
            "mixture where the sets are equally long"
        )
        return {str(name): part for name, part in zip(names, parts, strict=True)}
    total = min(count / part for count, part in zip(counts, parts, strict=True))
    shares = {}
    for name, count, part in zip(names, counts, parts, strict=True):
        shares[str(name)] = round(total * part / count, 4)
    taken = [f"{round(total * part)} of {count}" for count, part in zip(counts, parts, strict=True)]
    t.differences.append(
        f"a share is one of a data set's own rows: {' and '.join(taken)} rows are in the "
        f"proportion {':'.join(f'{part:g}' for part in parts)}"
    )
    return shares


def _set_fraction(t: Translation, limit: Any) -> None:
    """Set the share of the stage's own rows that `limit` rows are; name the arithmetic where they are
    not here.
    """
    overrides = [f"stage={t.given.get('stage', t.overrides['stage'])}"]
    overrides += [f"data={t.given['data']}"] if "data" in t.given else []
    data = compose_once(CommandLine("plan", False, tuple(overrides))).config.data
    names = [entry.name for entry in data.mix]
    rows = [read_local_rows(Path(name)) for name in names if Path(name).exists()]
    counts = [read.count for read in rows if read is not None]
    number = as_whole(limit) or 1
    if counts and len(counts) == len(names):
        t.set("data.fraction", min(1, round(number / sum(counts), 4)))
        t.differences.append(f"{number} rows of {sum(counts):,}: data.fraction is a share of them")
    else:
        whole = ", ".join(names) or data.build or "the data"
        t.missing.append(
            f"data.fraction=SHARE, which is {number} divided by the number of rows of {whole}, not "
            "counted here"
        )


def _find_entries(t: Translation) -> Iterator[dict[str, Any]]:
    """Yield the entries of data.mix."""
    if t.take("pretraining_dataset"):
        t.missing.append(
            "answers: pretraining_dataset is text without prompts, which no stage trains on"
        )
    if t.tool == LLAMA_FACTORY:
        yield from _entries_of_llama_factory(t)
        return
    split = t.take("dataset_train_split", "split", "dataset_split") or "train"
    mixer = t.take("dataset_mixer")
    for name, share in (mixer or {}).items() if isinstance(mixer, dict) else ():
        yield {"name": name, "share": share, "split": split}
    mixture = t.take("dataset_mixture")
    mixed_sets = mixture.get("datasets") if isinstance(mixture, dict) else None
    sets = t.take("datasets") or mixed_sets or []
    for written in sets if isinstance(sets, list) else ():
        item = written if isinstance(written, dict) else {"path": written}
        path = item.get("data_files") or item.get("path") or item.get("id")
        if str(item.get("type")).startswith("completion"):
            t.missing.append(
                f"answers: the rows of {path} are text without a prompt (type: completion)"
            )
        elif _HAS_OWN_TEXT.fullmatch(str(item.get("type"))):
            t.differences.append(
                f"the prompts of {path}: turns of the chat template; `type: {item['type']}` writes "
                "them as a text of its own"
            )
        yield {
            "name": path[0] if isinstance(path, list) and path else path,
            "split": item.get("split") or "train",
            "share": item.get("weight") or 1,
        }
    t.take("dataset_splits")
    name = t.take("dataset_name")
    names = name if isinstance(name, list) else [name]
    limit = t.take(*_LIMITS) if t.tool == LINE else None
    if name and not sets:
        shares = _shares_of_probabilities(t, names)
        for each in names:
            mixed = read_mixer(str(each)) or [(str(each), shares.get(str(each), 1))]
            for source, share in mixed:
                part = share * _share_of(t, source, limit)
                yield {"name": source, "split": split, "share": round(part, 4)}
    elif limit and not sets and not mixer:
        _set_fraction(t, limit)
    config = t.take("dataset_config", "dataset_config_name")
    if config and config != "default":
        t.differences.append(f"the data set's configuration {config}: its default one is read")


def _entries_of_llama_factory(t: Translation) -> Iterator[dict[str, Any]]:
    """Yield the data sets that the names in `dataset` refer to, if dataset_info.json can be read."""
    names = t.take("dataset") or ""
    names = names if isinstance(names, list) else re.split(r"\s*,\s*", str(names))
    limit = t.take("max_samples")
    folder, known = _read_dataset_info(t)
    for name in filter(None, names):
        source = _source_of(name, folder, known)
        if source is None:
            t.missing.append(_unknown_name(name, folder, known))
            continue
        split = known[name].get("split") or "train"
        yield {"name": source, "split": split, "share": _share_of(t, source, limit)}


def _read_dataset_info(t: Translation) -> tuple[Path, dict[str, Any]]:
    """Return the folder of dataset_info.json (the current one, or the file's) and the entries in
    it; no entries if it cannot be read.
    """
    folder = Path(str(t.take("dataset_dir") or "data")).expanduser()
    for place in (folder, *(parent / folder for parent in t.file.absolute().parents[:4])):
        with suppress(OSError, ValueError):
            known = json.loads((place / "dataset_info.json").read_text("utf-8"))
            if isinstance(known, dict):
                return place, known
    return folder, {}


def _source_of(name: str, folder: Path, known: dict[str, Any]) -> str | None:
    """Return the hub id or the file that a name in dataset_info.json refers to; None for any other
    name.
    """
    info = known.get(name)
    if not isinstance(info, dict):
        return None
    if info.get("hf_hub_url"):
        return str(info["hf_hub_url"])
    return str(folder / info["file_name"]) if info.get("file_name") else None


def _unknown_name(name: str, folder: Path, known: Mapping[str, Any]) -> str:
    """Return what is missing for a name: dataset_info.json, or the name's entry in it."""
    where = f"what the data set '{name}' is: it is a name of {folder}/dataset_info.json"
    return (
        f"{where}, which has {', '.join(sorted(known))}" if known else f"{where}, which is not here"
    )
