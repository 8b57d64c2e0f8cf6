"""Short forms on the command line whose meaning is plain, as the overrides that they stand for.

model=meta-llama/Llama-3.2-1B      model.path=meta-llama/Llama-3.2-1B, or the run of that name
data.mix=chats.jsonl               data.mix=[{name: chats.jsonl}]
allow=disk, allow=disk,gpus_busy   allow=[disk,gpus_busy], and so for other keys that are lists
tuned=NAME                         +tuned=NAME; another key needs no plus, and one that there is not
gets none data.validation=20%                data.validation=0.2 stage=./mine.yaml, or ./mine.yaml
the stage of that file, wherever it lies
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from launch.config.line import MULTIRUN, CommandLine, quote_text
from launch.config.origins import YAML
from launch.errors import refusal
from launch.resources import GROUPS, group_options
from launch.worker.finding import Fix

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_LISTS = ("allow", "stage.tasks")
_LISTS_OR_WORDS = ("recipe.lora.targets", "recipe.verifier")
_PLAIN = re.compile(r"[\w./~-][\w./:@+*~-]*")  # needs no quotes in a list


def expand(line: CommandLine) -> CommandLine:
    """Return the line with its short forms written out. Raises UserError: unknown_stage."""
    overrides = set(line.overrides)
    argv = []
    for before, argument in zip(("", *line.argv), line.argv, strict=False):
        is_value = before.startswith("--") and before not in MULTIRUN  # `--config_file zero3.yaml`
        argv.append(_expand(argument, line) if argument in overrides and not is_value else argument)
    return replace(line, argv=tuple(argv))


def _expand(override: str, line: CommandLine) -> str:
    if override.endswith(YAML) and "=" not in override:
        override = f"stage={override}"
    plain = override.lstrip("+")
    key, equals, value = plain.partition("=")
    value = value.strip()
    if key not in GROUPS and not key.startswith("trainer."):  # whose maps a plus adds to
        override = plain
    elif key == "tuned":
        override = f"+{plain}"
    if not equals or value in ("", "null"):
        return override
    if (
        key == "stage"
        and (value.endswith(YAML) or "/" in value)
        and not value.startswith(("[", "{"))
    ):
        return f"stage={_quote(str(_find_stage_file(value)))}"
    # and not the name of a shipped file
    is_place = "/" in value or (key == "data" and "." in value)
    if (
        key in ("model", "data")
        and is_place
        and not value.startswith(("[", "{", "$"))
        and "," not in value
    ):
        key = {"model": "model.path", "data": "data.mix"}[key]
        override = f"{key}={value}"
    if key == "data.mix" and not line.sweeps:
        names = value[1:-1] if value.startswith("[") and value.endswith("]") else value
        if "{" not in names and "$" not in names and names.strip():
            entries = (_quote(name.strip().strip("'\"")) for name in names.split(","))
            return f"data.mix=[{','.join(f'{{name: {entry}}}' for entry in entries)}]"
    if (key in _LISTS or (key in _LISTS_OR_WORDS and "," in value)) and not (
        line.sweeps or value[0] in "[$"
    ):
        return f"{key}=[{value}]"
    if key == "data.validation" and (percent := _PERCENT.fullmatch(value)):
        return f"data.validation={float(percent[1]) / 100:g}"
    return override


def _quote(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quote_text(name)


def _find_stage_file(value: str) -> Path:
    path = Path(value.strip("'\"").replace("\\'", "'")).expanduser().absolute()
    if not path.is_file():
        is_shipped = path.stem in group_options("stage")
        cure = Fix.of("set {0}", f"stage={path.stem}") if is_shipped else "`launch new` drafts one"
        raise refusal("unknown_stage", f"there is no stage file {value}", "override stage", cure)
    if path.suffix not in YAML:
        cure = "give the .yaml file of a stage, or a stage's name"
        raise refusal("unknown_stage", f"{value} is not a .yaml file", "override stage", cure)
    return path
