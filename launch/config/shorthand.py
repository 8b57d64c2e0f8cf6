"""Writes out the short forms of overrides that the command line accepts.

Short form                         Override
model=meta-llama/Llama-3.2-1B      model.path=meta-llama/Llama-3.2-1B, or the run of that name
data=chats.jsonl                   data.mix=[{name: chats.jsonl}]
data.mix=chats.jsonl               data.mix=[{name: chats.jsonl}]
data.validation=20%                data.validation=0.2
allow=disk,gpus_busy               allow=[disk,gpus_busy], and so for other keys that are lists
tuned=NAME                         +tuned=NAME
+recipe.epochs=2                   recipe.epochs=2: only `tuned` and maps of a trainer need a plus
stage=./mine.yaml, or ./mine.yaml  the stage of that file, wherever it is
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from launch.config.group_files import YAML
from launch.config.line import MULTIRUN, CommandLine
from launch.config.quoting import quote_if_needed
from launch.errors import refusal
from launch.resources import GROUPS, group_options
from launch.worker.finding import Fix

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_LISTS = ("allow", "stage.tasks")
_LISTS_OR_WORDS = ("recipe.lora.targets", "recipe.verifier")  # a list only where it has a comma
# The key that a path, in place of the name of a group's file, is the value of.
_KEYS_OF_PATHS = {"model": "model.path", "data": "data.mix"}


def expand(line: CommandLine) -> CommandLine:
    """Return the line with its short forms written out. Raises UserError: unknown_stage."""
    overrides = set(line.overrides)
    argv = []
    previous = ""
    for argument in line.argv:
        # as in `--config_file zero3.yaml`
        is_value = previous.startswith("--") and previous not in MULTIRUN
        is_override = argument in overrides and not is_value
        argv.append(_expand(argument, sweeps=line.sweeps) if is_override else argument)
        previous = argument
    return replace(line, argv=tuple(argv))


def _expand(override: str, *, sweeps: bool) -> str:
    """Return one override written out. In a sweep, a comma separates values and makes no list."""
    if override.endswith(YAML) and "=" not in override:
        override = f"stage={override}"
    override = _set_plus(override)
    key, equals, value = override.lstrip("+").partition("=")
    value = value.strip()
    if not equals or value in ("", "null"):
        return override
    is_container = value.startswith(("[", "{"))
    if key == "stage" and (value.endswith(YAML) or "/" in value) and not is_container:
        return f"stage={quote_if_needed(str(_find_stage_file(value)))}"
    if key in _KEYS_OF_PATHS and _is_path(key, value):
        key = _KEYS_OF_PATHS[key]
        override = f"{key}={value}"
    if key == "data.mix" and not sweeps:
        return _expand_mix(value) or override
    is_list = key in _LISTS or (key in _LISTS_OR_WORDS and "," in value)
    if is_list and not sweeps and value[0] not in "[$":
        return f"{key}=[{value}]"
    percent = _PERCENT.fullmatch(value) if key == "data.validation" else None
    if percent is not None:
        return f"data.validation={float(percent[1]) / 100:g}"
    return override


def _set_plus(override: str) -> str:
    """Return the override with the plus that Hydra needs for `tuned`, and without one that it does
    not need: only the choice of a group and the maps of a trainer's file are added to.
    """
    plain = override.lstrip("+")
    key = plain.partition("=")[0]
    if key == "tuned":
        return f"+{plain}"
    if key in GROUPS or key.startswith("trainer."):
        return override
    return plain


def _is_path(group: str, value: str) -> bool:
    """Return whether the value of model= or data= is a path or a hub id, not the name of a shipped
    file.
    """
    has_slash = "/" in value
    is_file_name = group == "data" and "." in value
    is_single = not value.startswith(("[", "{", "$")) and "," not in value
    return is_single and (has_slash or is_file_name)


def _expand_mix(value: str) -> str | None:
    """Return data.mix= with an entry for each name of a list; None for a list that has entries
    already, or refers to another key.
    """
    is_list = value.startswith("[") and value.endswith("]")
    names = value[1:-1] if is_list else value
    if "{" in names or "$" in names or not names.strip():
        return None
    entries = []
    for name in names.split(","):
        plain = name.strip().strip("'\"")
        entries.append(f"{{name: {quote_if_needed(plain)}}}")
    return f"data.mix=[{','.join(entries)}]"


def _find_stage_file(value: str) -> Path:
    """Return the absolute path of a stage's file. Raises UserError: unknown_stage."""
    path = Path(value.strip("'\"").replace("\\'", "'")).expanduser().absolute()
    if not path.is_file():
        is_shipped = path.stem in group_options("stage")
        cure = Fix.of("set {0}", f"stage={path.stem}") if is_shipped else "`launch new` drafts one"
        raise refusal("unknown_stage", f"there is no stage file {value}", "override stage", cure)
    if path.suffix not in YAML:
        cure = "give the .yaml file of a stage, or a stage's name"
        raise refusal("unknown_stage", f"{value} is not a .yaml file", "override stage", cure)
    return path
