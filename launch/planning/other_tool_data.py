"""Translates the model, the chat template and the data sets of another tool's file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from launch.config.line import DATA_FILES
from launch.config.other_tool_files import LINE, LLAMA_FACTORY, TRL
from launch.errors import nearest
from launch.planning.local_rows import read_local_rows
from launch.planning.other_tool_values import Translation, entry_text


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
    else:
        t.set("recipe.chat_template", template)


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
    validation = t.take("val_set_size", "val_size", "dataset_test_split_size")
    if isinstance(validation, int | float) and not isinstance(validation, bool) and validation > 0:
        t.set("data.validation", validation)
    for name in ("test_datasets", "eval_dataset"):
        if t.take(name):
            t.differences.append(f"{name}: set data.validation=FILE, whose rows are evaluated")
    if t.take("train_on_inputs", "train_on_prompt"):
        t.differences.append("the prompts carry loss there: here the answers alone")
    on_answers = t.take("assistant_only_loss", "completion_only_loss")
    if t.tool == TRL and t.overrides["stage"] in ("sft", "lora_sft") and not on_answers:
        t.differences.append(
            "the loss is on the answers alone; TRL's is on every token of a conversation "
            "(flags.assistant_only_loss=false)"
        )


def find_rows(t: Translation) -> None:
    """Read the rows of a local file, before a stage is chosen. Of a misspelt one, the file beside it
    is taken.
    """
    sets = t.settings.get("datasets")
    first = sets[0] if isinstance(sets, list) and sets else None
    named = t.settings.get("dataset_name") or (
        first.get("path") if isinstance(first, dict) else None
    )
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
        yield {
            "name": path[0] if isinstance(path, list) else path,
            "split": item.get("split") or "train",
            "share": item.get("weight") or 1,
        }
    t.take("dataset_splits")
    name = t.take("dataset_name")
    names = name if isinstance(name, list) else [name]
    if name and not sets:
        for each in names:
            yield {"name": each, "split": split}
    config = t.take("dataset_config", "dataset_config_name")
    if config and config != "default":
        t.differences.append(f"the data set's configuration {config}: its default one is read")


def _entries_of_llama_factory(t: Translation) -> Iterator[dict[str, Any]]:
    """Yield what the names of `dataset` are in dataset_info.json, where the file can be read."""
    names = t.take("dataset") or ""
    names = names if isinstance(names, list) else re.split(r"\s*,\s*", str(names))
    folder = Path(str(t.take("dataset_dir") or "data"))
    limit = t.take("max_samples")
    if limit:
        t.differences.append(
            f"max_samples={limit} rows of each data set: set a share of the rows in data.mix"
        )
    known: dict[str, Any] = {}
    places = [folder, *(parent / folder for parent in t.file.absolute().parents[:4])]
    for place in places:
        with suppress(OSError, ValueError):
            known = known or json.loads((place / "dataset_info.json").read_text("utf-8"))
            folder = place if known else folder
    for name in filter(None, names):
        info = known.get(name)
        if isinstance(info, dict) and info.get("hf_hub_url"):
            yield {"name": info["hf_hub_url"], "split": info.get("split") or "train"}
        elif isinstance(info, dict) and info.get("file_name"):
            yield {"name": str(folder / info["file_name"])}
        else:
            where = f"{folder}/dataset_info.json"
            t.missing.append(
                f"what the data set '{name}' is: it is a name of {where}, which is not here"
            )
