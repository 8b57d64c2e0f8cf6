"""Translates names of axolotl, TRL, LLaMA-Factory, accelerate and DeepSpeed into launch's keys.

The names are in other_tools.yaml, and in the table of recipe keys (launch/config/recipe_keys.py) where
a value is the same here. The file has the words and the answers besides, and what a whole file leaves
out or launch lacks (launch/planning/other_tool_defaults.py). A row has a `topic`, what it is `here`,
its names in each tool (a list, or a text of the page's table), names that are only understood (`also`),
and the answer. The answer is `set`, overrides with {value}, {list} or {count}; `values`, overrides by a
pattern of the value, `A or B` where the trainer decides; or `instead`, a sentence where there is no
such setting, and besides `set` for a value that is not a number. launch's own keys are understood
without their group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from launch.errors import nearest, set_any
from launch.resources import GROUPS
from launch.worker.finding import Action, Fix

_FILE = Path(__file__).with_name("other_tools.yaml")
_RECIPE_KEYS = "the keys of the recipe"  # the place of their rows among the others
OTHER_TOOLS = ("axolotl", "trl", "llama_factory")
# The groups of launch's keys that a name without its group may be a key of.
_GROUPS = ("recipe", "model", "data", "tracking", "hub")


@dataclass(frozen=True)
class OtherToolKey:
    """One line of the table."""

    topic: str
    here: str = ""  # "": not in the page's table
    axolotl: Sequence[str] = "-"
    trl: Sequence[str] = "-"
    llama_factory: Sequence[str] = "-"
    also: Sequence[str] = ()
    set: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    instead: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that the row answers."""
        names: list[str] = []
        for tool in OTHER_TOOLS:
            of_tool = getattr(self, tool)
            if not isinstance(of_tool, str):
                names += of_tool
        return (*names, *self.also)

    def of_value(self, value: str | None) -> str | None:
        """Return the overrides that a value stands for; None if no pattern of `values` matches."""
        for pattern, overrides in self.values.items():
            if re.fullmatch(pattern, value or "", re.IGNORECASE):
                return overrides
        return None

    def answer(self, name: str, value: str | None) -> Fix:
        """Return what to do for `NAME=value`: `set recipe.lora.rank=8`."""
        if value == "auto" and not self.values and self.set.startswith("recipe."):
            key = self.set.partition("=")[0]
            return Fix.of(
                f"remove it: {key} has a number in every stage; `launch tune` searches the micro batch",
                f"~{name}",
            )
        overrides = self.of_value(value)
        is_number = not value or re.fullmatch(r"[\d.,e+-]+", value)
        if overrides is None and self.set and (is_number or not self.instead):
            text = value or "VALUE"
            as_list = text if text.startswith("[") else f"[{text}]"
            overrides = self.set.format(value=text, list=as_list, count=len(text.split(",")))
        if overrides:
            return replacing(name, *overrides.split(" or "))
        if not self.instead:
            return replacing(name, *dict.fromkeys(self.values.values()))
        if self.instead.startswith("remove it"):
            return Fix.of(self.instead, f"~{name}")
        return Fix.of(self.instead)


@cache
def read_sections(file: Path = _FILE) -> Mapping[str, Any]:
    """Read the sections of the file."""
    import yaml  # slow to import; only an answer needs it

    content: Mapping[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return content


@cache
def load_table(file: Path = _FILE) -> tuple[tuple[OtherToolKey, ...], Mapping[str, str]]:
    """Read the rows, and the verb that each word of another tool stands for.

    Raises TypeError for an unknown field of a row.
    """
    content = read_sections(file)
    rows: list[OtherToolKey] = []
    for row in content["rows"]:
        rows += _rows_of_recipe() if row == _RECIPE_KEYS else [OtherToolKey(**row)]
    verbs = {}
    for verb, words in content["verbs"].items():
        for word in words:
            verbs[word] = verb
    return tuple(rows), verbs


def _rows_of_recipe() -> list[OtherToolKey]:
    """Return the rows of the recipe keys that other tools have by another name."""
    from launch.config.recipe_keys import KEYS

    rows = []
    for key, row in KEYS.items():
        if row.other_names:
            axolotl, trl, llama_factory = (row.names_of(tool) for tool in OTHER_TOOLS)
            line = OtherToolKey(
                re.sub(r"[._]", " ", key),
                here=f"`recipe.{key}`" if axolotl or trl or llama_factory else "",
                axolotl=axolotl or "-",
                trl=trl or "-",
                llama_factory=llama_factory or "-",
                also=row.names_of("others"),
                set=f"recipe.{key}={{value}}",
            )
            rows.append(line)
    return rows


def replacing(name: str, *overrides: str, sentence: str = "") -> Fix:
    """Return the cure that sets one of `overrides` in the place of a key or an option that launch
    does not have.
    """
    cure = set_any(*overrides)
    actions = [Action(action.sets, name) for action in cure.actions]
    return Fix.of(sentence or cure.sentence, *actions)


def explain_value(key: str, value: str) -> Fix | None:
    """Return the cure for another tool's value of launch's own key, `parallel=3`: `set
    parallel=zero3`.
    """
    rows, _ = load_table()
    for row in rows:
        overrides = row.of_value(value)
        if overrides and overrides.startswith(f"{key}="):
            return set_any(*overrides.split(" or "))
    return None


def explain_like(name: str, value: str | None) -> Fix | None:
    """Return the cure for the name that is most like `name`, `learningrate=1e-5`; None if none
    is.
    """
    if not value:
        return None
    known = set(_own_keys())
    rows, _ = load_table()
    for row in rows:
        known.update(row.names)
    last_part = name.rpartition(".")[2]
    near = nearest(_plain(last_part), known, limit=1, cutoff=0.85)
    cure = explain_name(near[0], value) if near else None
    if cure is None or not any(action.sets for action in cure.actions):
        return None
    overrides = [str(action) for action in cure.actions]
    sentence = f"did you mean '{cure.sentence.removeprefix('set ')}'?"
    return replacing(name, *overrides, sentence=sentence)


def trainer_flag(name: str, value: str | None) -> Fix:
    """Return the cure that passes an unknown name to the trainer, which may have a flag of that
    name.
    """
    flag = f"flags.{_plain(name.rpartition('.')[2])}={value or 'VALUE'}"
    return replacing(name, flag, sentence="a trainer's own flag is set as {0}")


def _plain(name: str) -> str:
    """Return a name in lower case, with `_` between its words: `--Lora-R` is `lora_r`."""
    return re.sub(r"\W+", "_", name.strip("-+~")).strip("_").lower()


def explain_name(name: str, value: str | None) -> Fix | None:
    """Return the cure for a key or an option that launch does not have, `--lora-r 8`: `set
    recipe.lora.rank=8`.

    Dashes in front, `-` for `_`, capitals and groups before the name do not matter. Returns None if
    no tool has the name, or launch has the key.
    """
    parts = [_plain(part) for part in re.split(r"[.\[\]]+", name) if part and not part.isdigit()]
    row = _find_row(parts)
    key = _own_keys().get(parts[-1]) if parts else None
    if key == name:
        return None
    if key is not None and _may_mean(key, parts) and not (row and row.of_value(value)):
        meant = explain_value(key, value) if value else None
        if meant is not None:
            return replacing(name, *map(str, meant.actions))
        return replacing(name, f"{key}={value or 'VALUE'}")
    return row.answer(name, value) if row else None


def _find_row(parts: Sequence[str]) -> OtherToolKey | None:
    """Return the row of a dotted name: `datasets.0.path` is datasets_path before it is path."""
    rows, _ = load_table()
    for name in ("_".join(parts), *parts[-1:]):
        for row in rows:
            if name in row.names:
                return row
    return None


def _may_mean(key: str, parts: Sequence[str]) -> bool:
    """Return whether a dotted name whose last part is that of launch's `key` may mean the key: its
    other parts do not name another group.
    """
    group = key.rpartition(".")[0]
    return len(parts) == 1 or group in parts or group.startswith("recipe") or parts[0] == "recipe"


# The commands in the answers to words that are tried as a command. What they are about replaces RUN and
# NAME, a value of the line its option; an option that the line does not have is left out.
_COMMANDS = {
    "RUN": "launch status RUN",
    "LOGS": "launch logs RUN",
    "STOP": "launch stop RUN",
    "STATUS": "launch status",
    "TRIAL": "launch trial stage=NAME recipe.learning_rate=1e-5,2e-5",
    "TUNE": "launch tune stage=NAME",
    "BENCH": "launch bench stage=NAME",
    "GENERATE": "launch generate RUN",
    "CHAT": "launch generate RUN --chat",
    "EVAL": "launch eval RUN tasks=<tasks> limit=<limit> batch_size=<batch_size>",
    "REPORT": "launch report RUN",
    "MERGE": "launch merge RUN",
    "COMPARE": "launch compare RUN RUN2",
    "CHECK": "launch check stage=NAME",
    "CLEAN": "launch clean RUN",
    "PLAN": "launch plan stage=NAME",
    "KEYS": "launch help keys",
    "HELP": "launch help",
    "NEW": "launch new NAME --data FILE",
    "UPLOAD": "hf upload OWNER/NAME RUN/model",
    "SERVE": "vllm serve RUN/model",
    "GGUF": "python convert_hf_to_gguf.py RUN/merged --outfile model.gguf",
}
# Options whose value is the run or the folder that a command is about.
_OF_RUN = (
    *("adapter_name_or_path", "adapters", "adapter", "adapter_path", "adapter_model_path"),
    *("lora_model_dir", "lora_path", "peft_model_path", "peft", "ckpt_dir", "checkpoint_path"),
    *("pretrained", "model", "model_name_or_path", "model_path", "checkpoint_dir", "run"),
    *("run_name", "output_dir", "model_id"),
)
# what other tools call an option of launch's own verbs
_OPTIONS = {"task": "tasks", "task_list": "tasks", "max_samples": "limit", "num_samples": "limit"}
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
# Verbs that find a run by its name in the folder `runs`.
_OF_RUNS = ("status", "logs", "stop", "generate", "eval", "report", "merge", "compare", "clean")
# Verbs that can do without the name of a run, and those for which the newest one is meant.
_WITHOUT_RUN = ("status", "clean")
_OF_NEWEST = ("logs", "eval", "generate", "merge", "report")


@cache
def _answers() -> dict[str, str]:
    """Return the answer to each word that is tried as a command."""
    answers: dict[str, str] = {}
    for words, answer in read_sections()["answers"].items():
        answers |= dict.fromkeys(words.split("|"), answer)
    return answers


def is_command(word: str, planned: Sequence[str]) -> bool:
    """Return whether a word asks something of a run or of this machine; `planned` are the verbs whose
    line is a stage's.
    """
    if word in planned:
        return False
    meant = explain_verb(word)
    return meant not in (None, *planned) or (meant is None and word.lower() in _answers())


def explain_command(word: str, rest: Sequence[str]) -> Fix | None:
    """Return the answer to a word that is tried as a command; None for a word of no row.

    What it is about is put into the command, with the values of options that launch has, too:
    `tail demo` is `launch logs demo`.
    """
    answer = _answers().get(word.lower())
    if answer is None:
        return None
    names, options = _read_rest(rest)
    if "push_to_hub" in options or "hub_model_id" in options:
        pushing = _answers()["push"]
        answer = answer if answer == pushing else f"{answer}; {pushing}"
        names += [options[name] for name in ("hub_model_id", "repo_id") if name in options]
    actions: list[str] = []

    def place(match: re.Match[str]) -> str:
        actions.append(f"$ {_write_command(match[1], names, options)}")
        return f"{{{len(actions) - 1}}}"

    return Fix.of(re.sub(r"\{(\w+)\}", place, answer), *actions)


def _write_command(name: str, names: Sequence[str], options: Mapping[str, str]) -> str:
    """Return a command of `_COMMANDS`, about the run and with the options of a line."""
    command = _COMMANDS[name]
    repository = next((name for name in names[1:] if _REPOSITORY.fullmatch(name)), None)
    if names:
        command = re.sub(r"\bRUN\b", names[0], command)
        if "/" not in names[0]:
            command = command.replace("stage=NAME", f"stage={names[0]}")
    if repository:
        command = command.replace("OWNER/NAME", repository)
    for option, value in options.items():
        command = command.replace(f"<{option}>", value)
    command = _fill(re.sub(r" [\w.]+=<[a-z_]+>", "", command))
    is_about_runs = command.startswith("launch") and command.split()[1] in _OF_RUNS
    return f"{command} runs={options['runs']}" if is_about_runs and "runs" in options else command


def _fill(command: str) -> str:
    """Return a command without a placeholder where its verb needs no run, or means the newest one."""
    words = command.split()
    if words[-1] == "RUN" and words[1] in _WITHOUT_RUN:
        return " ".join(words[:-1])
    return re.sub(r"\bRUN\b", "latest", command) if words[1] in _OF_NEWEST else command


def _read_rest(rest: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the names behind a command, that of the run first, and the values of its options."""
    names: list[str] = []
    options: dict[str, str] = {}
    of_file: dict[str, str] = {}
    option = ""
    for item in rest:
        name, equals, value = item.partition("=")
        if item.startswith("-") and not item.startswith("--"):
            continue  # `tail -f NAME`
        if item.startswith("-"):
            option = "" if equals else _plain(name)
            if equals:
                options[_plain(name)] = value
        elif equals and option != "model_args":
            options[_plain(name)] = value
        elif option:
            options[option] = item
            option = ""
        elif item.endswith((".yaml", ".yml")):
            of_file |= _read_settings(Path(item))
        elif re.fullmatch(r"[.~\w/][\w./-]*", item):
            names.append(item)
    # lm-evaluation-harness has the model behind `--model hf`
    for of_model in options.pop("model_args", "").split(","):
        name, _, value = of_model.partition("=")
        if name in ("pretrained", "peft"):
            options[name] = value
    about = [each[name] for each in (options, of_file) for name in _OF_RUN if name in each]
    options = {_OPTIONS.get(name, name): value for name, value in {**of_file, **options}.items()}
    folders = [name for name in about if name not in ("lora", "qlora")]  # `adapter: lora` is a kind
    return [*folders, *names], options


def _read_settings(path: Path) -> dict[str, str]:
    """Return the texts of a file that another tool's command is given; none if it cannot be read."""
    import yaml  # slow to import; only an answer needs it

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    settings = content if isinstance(content, dict) else {}
    return {str(name): value for name, value in settings.items() if isinstance(value, str)}


def explain_verb(word: str, *, near: bool = False) -> str | None:
    """Return the verb that another tool's word stands for: `train` is `run`. With `near`, words that
    are like one count too.
    """
    _, verbs = load_table()
    similar = nearest(word.lower(), verbs, limit=1, cutoff=0.75 if near else 1.0)
    return verbs[similar[0]] if similar else None


def known_names(topic: str | None = None) -> set[str]:
    """Return the names that the table answers, or those of one topic; launch's own keys without
    their group are among all of them.
    """
    rows, _ = load_table()
    names: set[str] = set() if topic else set(_own_keys())
    for row in rows:
        if topic in (None, row.topic):
            names.update(row.names)
    return names


@cache
def _own_keys() -> dict[str, str]:
    """Map the last part of each of launch's own keys to the key, where only one has it."""
    from launch.config.nodes import walk_keys
    from launch.config.schema import RootConfig

    keys = {group: [group] for group in GROUPS}
    for key, _ in walk_keys(RootConfig):
        group, _, name = key.rpartition(".")
        if not group or group.partition(".")[0] in _GROUPS:
            keys.setdefault(name, []).append(key)
    return {name: same_name[0] for name, same_name in keys.items() if len(same_name) == 1}
