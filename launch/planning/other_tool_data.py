"""Translates the model, the chat template and the data sets of another tool's file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from launch.config.line import DATA_FILES
from launch.config.other_tool_files import LINE, LLAMA_FACTORY, TRL_TOOL
from launch.errors import nearest
from launch.planning.local_rows import LocalRows, read_local_rows
from launch.planning.other_tool_values import Translation, entry_text
from launch.planning.typed_values import as_whole
from launch.upstream.trl_templates import load_templates

# The kinds of rows whose prompts axolotl writes without a chat template (prompt_strategies).
_HAS_OWN_TEXT = re.compile(
    r"alpaca.*|gpteacher.*|jeopardy.*|oasst.*|reflection.*|summarizetldr.*|context_qa.*"
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
    entries = list(_find_entries(t))
    if entries:
        t.overrides["data.mix"] = f"[{','.join(map(entry_text, entries))}]"
    elif t.tool != LINE:
        t.missing.append("the data: set data.mix=FILE_OR_HUB_ID")
    column = t.take("dataset_text_field", "text_field", "text_column") if t.tool == LINE else None
    if t.rows is not None and t.rows.is_text:
        t.set("data.format", "text")
    elif column:
        t.differences.append(f"the column {column}: rows become chats by all of their columns")
    validation = t.take(
        *("val_set_size", "val_size", "dataset_test_split_size", "split_dataset_ratio"),
        *("eval_ratio", "validation_split"),
    )
    if isinstance(validation, int | float) and not isinstance(validation, bool) and validation > 0:
        t.set("data.validation", validation)
    for name in ("test_datasets", "eval_dataset"):
        if t.take(name):
            t.differences.append(f"{name}: set data.validation=FILE, whose rows are evaluated")
    if t.take("train_on_inputs", "train_on_prompt"):
        t.differences.append("the prompts carry loss there: here the answers alone")
    on_answers = t.take("assistant_only_loss", "completion_only_loss")
    if t.tool == TRL_TOOL and t.overrides["stage"] in ("sft", "lora_sft") and not on_answers:
        t.differences.append(
            "the loss is on the answers alone; TRL's is on every token of a conversation "
            "(flags.assistant_only_loss=false)"
        )


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


def _read_all(names: list[Any]) -> LocalRows | None:
    """Return the first row of several files, and their total number of rows; None if a file is
    missing.
    """
    found = [read_local_rows(Path(str(name))) for name in names]
    here = [rows for rows in found if rows is not None]
    if not here or len(here) < len(found):
        return None
    return LocalRows(here[0].first, sum(rows.count for rows in here))


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
    sets = t.take("datasets") or (mixture or {}).get("datasets") or []
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
            "name": path[0] if isinstance(path, list) else path,
            "split": item.get("split") or "train",
            "share": item.get("weight") or 1,
        }
    t.take("dataset_splits")
    name = t.take("dataset_name")
    names = name if isinstance(name, list) else [name]
    limit = t.take("max_samples", "max_train_samples") if t.tool == LINE else None
    if name and not sets:
        for each in names:
            yield {"name": each, "split": split, "share": _share_of(t, str(each), limit)}
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
