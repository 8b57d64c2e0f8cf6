"""Answers words that other tools use as commands: `train` is `run`, and `tail demo` is `logs demo`.

The words are in the sections `verbs` and `answers` of other_tools.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from launch.config.other_tools import plain_name, read_sections
from launch.errors import nearest
from launch.worker.finding import Fix

# The commands that an answer can name. RUN and NAME are replaced by the run or the stage on the
# typed line, and <tasks> by the value of its option `tasks`. An option that the line does not have
# is dropped.
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
# Options of other tools whose value names a run or a model's folder.
_RUN_OPTIONS = (
    *("adapter_name_or_path", "adapters", "adapter", "adapter_path", "adapter_model_path"),
    *("lora_model_dir", "lora_path", "peft_model_path", "peft", "ckpt_dir", "checkpoint_path"),
    *("pretrained", "model", "model_name_or_path", "model_path", "checkpoint_dir", "run"),
    *("run_name", "output_dir", "model_id"),
)
# Names that other tools have for options of launch's verbs.
_OPTIONS = {"task": "tasks", "task_list": "tasks", "max_samples": "limit", "num_samples": "limit"}
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
# The verbs that take `runs=FOLDER`.
_VERBS_WITH_RUNS = (
    "status",
    "logs",
    "stop",
    "generate",
    "eval",
    "report",
    "merge",
    "compare",
    "clean",
)
# These verbs work without the name of a run; for the others, `latest` names the newest run.
_VERBS_WITHOUT_RUN = ("status", "clean")
_VERBS_OF_NEWEST = ("logs", "eval", "generate", "merge", "report")


@cache
def _answers() -> dict[str, str]:
    """Return the answer to each word that people type as a command, by the word."""
    answers: dict[str, str] = {}
    for words, answer in read_sections()["answers"].items():
        answers |= dict.fromkeys(words.split("|"), answer)
    return answers


def is_command(word: str, planned: Sequence[str]) -> bool:
    """Return whether a word is a command about runs or this machine, in any tool's words.

    `planned` are the verbs that plan a stage: their words are not such commands.
    """
    if word in planned:
        return False
    verb = find_verb(word)
    if verb is None:
        return word.lower() in _answers()
    return verb not in planned


def explain_command(word: str, rest: Sequence[str]) -> Fix | None:
    """Return the answer to a word that somebody types as a command, `tail demo`: `launch logs demo`.

    The run that the line names is part of the answer, and so are values of options that launch
    has. Returns None for an unknown word.
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
    """Return the command `name` of `_COMMANDS` with the run and the options of the typed line."""
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
    command = _name_run(re.sub(r" [\w.]+=<[a-z_]+>", "", command))
    is_about_runs = command.startswith("launch") and command.split()[1] in _VERBS_WITH_RUNS
    return f"{command} runs={options['runs']}" if is_about_runs and "runs" in options else command


def _name_run(command: str) -> str:
    """Drop RUN where the verb works without one, and write `latest` where the newest run will do."""
    words = command.split()
    if words[-1] == "RUN" and words[1] in _VERBS_WITHOUT_RUN:
        return " ".join(words[:-1])
    return re.sub(r"\bRUN\b", "latest", command) if words[1] in _VERBS_OF_NEWEST else command


def _read_rest(rest: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Read what follows the word: names, that of the run first, and the options by name."""
    names: list[str] = []
    options: dict[str, str] = {}
    file_settings: dict[str, str] = {}
    option = ""
    for item in rest:
        name, equals, value = item.partition("=")
        if item.startswith("-") and not item.startswith("--"):
            continue  # `tail -f NAME`
        if item.startswith("-"):
            option = "" if equals else plain_name(name)
            if equals:
                options[plain_name(name)] = value
        elif equals and option != "model_args":
            options[plain_name(name)] = value
        elif option:
            options[option] = item
            option = ""
        elif item.endswith((".yaml", ".yml")):
            file_settings |= _read_settings(Path(item))
        elif re.fullmatch(r"[.~\w/][\w./-]*", item):
            names.append(item)
    # lm-evaluation-harness gives the model as `--model hf --model_args pretrained=FOLDER`.
    for argument in options.pop("model_args", "").split(","):
        name, _, value = argument.partition("=")
        if name in ("pretrained", "peft"):
            options[name] = value
    runs = [*_runs_in(options), *_runs_in(file_settings)]
    options = {
        _OPTIONS.get(name, name): value for name, value in {**file_settings, **options}.items()
    }
    return [*runs, *names], options


def _runs_in(settings: Mapping[str, str]) -> list[str]:
    """Return the runs and folders that the options name."""
    named = [settings[name] for name in _RUN_OPTIONS if name in settings]
    return [name for name in named if name not in ("lora", "qlora")]  # `adapter: lora` is a kind


def _read_settings(path: Path) -> dict[str, str]:
    """Return the text values of another tool's YAML file; {} if it cannot be read."""
    import yaml  # slow to import; only an answer needs it

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    settings = content if isinstance(content, dict) else {}
    return {str(name): value for name, value in settings.items() if isinstance(value, str)}


@cache
def load_verbs() -> Mapping[str, str]:
    """Return launch's verb for each word of another tool."""
    verbs = {}
    for verb, words in read_sections()["verbs"].items():
        for word in words:
            verbs[word] = verb
    return verbs


def find_verb(word: str, *, near: bool = False) -> str | None:
    """Return launch's verb for another tool's word: `run` for `train`; None for an unknown word.

    With `near`, a misspelt word is accepted too.
    """
    verbs = load_verbs()
    similar = nearest(word.lower(), verbs, limit=1, cutoff=0.75 if near else 1.0)
    return verbs[similar[0]] if similar else None
