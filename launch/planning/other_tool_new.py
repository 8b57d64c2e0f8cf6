"""Answers a line of `launch new` with options of other tools: its own options, and what the stage that
it writes is then given, or the whole line where a draft cannot have it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from launch.config.kinds import KINDS
from launch.config.line import DATA_FILES, stage_name
from launch.config.other_tools import OTHER_TOOLS, known_names, plain_name, read_sections
from launch.config.recipe_keys import KEYS
from launch.planning.other_tool_line import translate_line
from launch.planning.other_tool_values import Translation
from launch.planning.typed_line import read_line, split_words
from launch.resources import free_stage_name
from launch.worker.finding import Fix

# Options of `new` that no translation has, and those that are a sentence of it.
_OWN = ("after", "columns", "text", "print", "verifier", "kind", "name")
_SWITCHES = ("text", "print")
_TOOLS = (*OTHER_TOOLS, "others")
# What a draft finds by itself: the line that follows leaves it out.
_DRAFTED = re.compile(
    r"stage|trainer|model|model\.path|data|data\.mix|data\.format|data\.columns\..+|recipe\.verifier"
    r"|recipe\.chat_template"
)
_BATCH_KEYS = (
    "recipe.global_batch_size",
    "recipe.per_device_batch_size",
    "recipe.prompts_per_step",
)
_BATCH = frozenset(known_names("accumulation")).union(
    *(KEYS[key.removeprefix("recipe.")].names_of(tool) for key in _BATCH_KEYS for tool in _TOOLS)
)


def explain_new(arguments: Sequence[str]) -> Fix | None:
    """Return the answer to the arguments of `new`; None where they name no data."""
    name, own, columns, rest = _sort_words(arguments)
    if "kind" in own:
        rest = [own.pop("kind"), *rest]
    if "verifier" in own:
        rest.append(f"reward_funcs={own['verifier']}")
    typed = read_line(["plan", *rest])
    if not typed.names_data:
        return None
    data = str(typed.settings.get("dataset_name", typed.overrides.get("data", "")))
    is_one = isinstance(typed.settings.get("dataset_name", ""), str) and "data" not in own
    translation = translate_line(typed)
    if not is_one or translation.missing:
        return translation.explain(f"launch plan {shlex.join(translation.lines)}")
    name = free_stage_name(name or stage_name(data))
    words = ["launch", "new", name, "--data", data]
    model = translation.overrides.get("model", translation.overrides.get("model.path"))
    if typed.names_model and model:
        words += ["--model", model]
    words += _options_of(translation, own, typed.method)
    if columns or "columns" in own:
        pairs = [own["columns"]] if "columns" in own else []
        pairs += [f"{known}={theirs}" for known, theirs in columns.items()]
        words += ["--columns", ",".join(pairs)]
    words += [f"--{option}" for option in _SWITCHES if option in own]
    if _BATCH.isdisjoint(typed.settings):
        translation.batch = ""
        for key in _BATCH_KEYS:
            translation.overrides.pop(key, None)
    return _answer(translation, words, name)


def _sort_words(
    arguments: Sequence[str],
) -> tuple[str, dict[str, str], dict[str, str], list[str]]:
    """Return the stage's name, the options of `new`, the columns by launch's names of them, and all
    other words.
    """
    names: list[str] = []
    own: dict[str, str] = {}
    columns: dict[str, str] = {}
    rest: list[str] = []
    known = _columns()
    for written, values in split_words(arguments, _SWITCHES):
        plain = plain_name(written)
        value = ",".join(values)
        if not written and not values[0].endswith(DATA_FILES):
            names.append(values[0])
        elif not written:
            rest.append(values[0])
        elif plain in known:
            columns[known[plain]] = value
        elif plain == "trainer":
            rest.append(f"training_type={value}")
        elif plain in _OWN:
            own[plain] = value
        else:
            rest.append(f"{written}={value}")
    return own.pop("name", "_".join(names)), own, columns, rest


def _columns() -> dict[str, str]:
    """Return launch's name of a column by each option that names it in another tool."""
    names: dict[str, str] = {}
    for column, theirs in read_sections()["columns"].items():
        names |= dict.fromkeys(theirs, column)
    return names


def _options_of(translation: Translation, own: dict[str, str], method: str) -> list[str]:
    """Return `--kind`, where the rows do not say it, `--verifier` and `--after`."""
    kind = translation.overrides["stage"].removeprefix("lora_")
    by_rows = translation.rows.kind if translation.rows is not None else "sft"
    words = ["--kind", kind] if kind in KINDS and (kind != by_rows or method) else []
    verifier = translation.overrides.get("recipe.verifier")
    if verifier is not None and kind == "rlvr":
        words += ["--verifier", verifier]
    return words + (["--after", own["after"]] if "after" in own else [])


def _answer(translation: Translation, words: Sequence[str], name: str) -> Fix:
    """Return the draft's line, and the line with what the draft does not have."""
    settings = [
        f"{key}={value}"
        for key, value in translation.overrides.items()
        if not _DRAFTED.fullmatch(key) or (key == "recipe.chat_template" and value != "null")
    ]
    sentence = "{0}"
    actions = [f"$ {shlex.join(words)}"]
    if settings:
        trainer = translation.overrides.get("trainer")
        keys = [f"stage={name}", *([f"trainer={trainer}"] if trainer else []), *settings]
        sentence = "{0}, and then, for what is not in the draft, {1}"
        actions.append(f"$ launch plan {shlex.join(keys)}")
    remarks = [sentence, *translation.remarks]
    return Fix.of(". ".join(remarks), *actions)
