"""Answers to words that people try as a command, and to options of other tools behind a verb of
launch: the command with what it is about, and with the values that were typed.

The words and their answers are in other_tools.yaml: `answers`, and `options`, what other tools call
an option of launch's verbs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from launch.config.other_tools import find_verb, plain_name, read_sections
from launch.resources import group_options
from launch.worker.finding import Fix

# The commands in the answers. What they are about replaces RUN and NAME, a value of the line its
# option `<option>`; an option that the line does not have is left out.
_COMMANDS = {
    "RUN": "launch status RUN",
    "LOGS": "launch logs RUN <follow> --rank=<rank> | tail -n <lines>",
    "STOP": "launch stop RUN",
    "STATUS": "launch status RUN",
    "TRIAL": "launch trial stage=NAME recipe.learning_rate=1e-5,2e-5",
    "TUNE": "launch tune stage=NAME",
    "BENCH": "launch bench stage=NAME",
    "GENERATE": "launch generate RUN <prompt> prompts=<prompts> out=<output> system=<system> "
    "temperature=<temperature> top_p=<top_p> seed=<seed> max_tokens=<max_tokens>",
    "CHAT": "launch generate RUN --chat system=<system> temperature=<temperature> top_p=<top_p> "
    "seed=<seed> max_tokens=<max_tokens>",
    "EVAL": "launch eval RUN tasks=<tasks> limit=<limit> batch_size=<batch_size>",
    "REPORT": "launch report RUN --output=<output>",
    "MERGE": "launch merge RUN",
    "COMPARE": "launch compare RUN RUN2",
    "CHECK": "launch check stage=NAME",
    "CLEAN": "launch clean RUN <yes>",
    "PLAN": "launch plan stage=NAME",
    "LINT": "launch lint FILE",
    "FLAGS": "launch flags TRAINER <pattern>",
    "KEYS": "launch help keys",
    "HELP": "launch help",
    "NEW": "launch new NAME --data FILE",
    "UPLOAD": "hf upload OWNER/NAME RUN/model",
    "SERVE": "vllm serve RUN/model",
    "GGUF": "python convert_hf_to_gguf.py RUN/merged --outfile model.gguf",
    "MERGED": "RUN/merged",
    "QUANTIZE": "llama-quantize model.gguf TYPE",
    "SUBMIT": "launch submit stage=NAME",
    "PIPELINE": "launch plan pipeline=A,B",
    "DELETE": "rm -r RUN",
}
# Options whose value is the run or the folder that a command is about.
_OF_RUN = (
    *("adapter_name_or_path", "adapters", "adapter", "adapter_path", "adapter_model_path"),
    *("lora_model_dir", "lora_path", "peft_model_path", "peft", "ckpt_dir", "checkpoint_path"),
    *("pretrained", "model", "model_name_or_path", "model_path", "checkpoint_dir", "run"),
    *(
        "run_name",
        "run_dir",
        "run_folder",
        "run_path",
        "model_id",
        "checkpoint",
        "load",
        "ckpt",
        "model_dir",
    ),
)
_FOLDER = "output_dir"  # of a run, where nothing else names one
# options without a value, as the command has them
_SWITCHES = {
    "follow": "--follow",
    "f": "--follow",
    "live": "--follow",
    "yes": "--yes",
    "y": "--yes",
    "force": "--yes",
    "rf": "",
    "r": "",
    "a": "",
    "all": "",
    "json": "",
    "chat": "",
    "interactive": "",
    "stream": "",
    "v": "",
    "verbose": "",
}
_REPOSITORIES = ("hub_model_id", "repo_id", "repo", "repo_name", "hub_id")
# folders that the models of tools are in, whose names are no owner on the hub
_FOLDERS = (
    "runs",
    "run",
    "out",
    "output",
    "outputs",
    "saves",
    "checkpoints",
    "ckpts",
    "models",
    "results",
)
_QUANTIZATION = re.compile(r"(?:i?q\d\w*|f16|bf16)", re.IGNORECASE)
_SERVES_HUB_ID = (
    "launch serves no model: {SERVE} does; GRPO's answers are sampled by vLLM with "
    "recipe.generation=vllm_colocate, or vllm_server on GPUs of its own"
)
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_PLACE = re.compile(r" (?:\| tail -n |[\w.-]+=)?<([a-z_]+)>")
# Verbs that find a run by its name in the folder `runs`.
_OF_RUNS = ("status", "logs", "stop", "generate", "eval", "report", "merge", "compare", "clean")
# Verbs that can do without the name of a run, and those for which the newest one is meant.
_WITHOUT_RUN = ("status", "clean")
_OF_NEWEST = ("logs", "eval", "generate", "merge", "report")
_DELETES = ", {DELETE} removes it"  # of a run that is here
# What takes the whole line: its overrides are those of the command.
_OF_STAGES = ("TRIAL", "TUNE", "PLAN", "CHECK", "SUBMIT")


@dataclass
class _Rest:
    """What stands behind a command."""

    names: list[str] = field(default_factory=list)  # that of the run first
    options: dict[str, str] = field(default_factory=dict)  # by launch's names of them
    used: set[str] = field(default_factory=set)  # names of options that the answer has
    typed: dict[str, str] = field(default_factory=dict)  # the options as typed, by launch's names
    lost: list[str] = field(default_factory=list)  # names of options that another one excludes

    @property
    def folder(self) -> Path | None:
        """The folder of the run that is named, the newest one of several; None where it is not here."""
        runs = Path(self.options.get("runs", "runs"))
        if not self.names:
            return None
        places = [Path(self.names[0]).expanduser(), runs / self.names[0]]
        for place in places:
            if (place / "plan.json").is_file():
                return place
        plans = [plan for place in places for plan in place.glob("*/plan.json")]
        return max(plans, key=lambda plan: plan.stat().st_mtime).parent if plans else None


@cache
def _answers() -> dict[str, str]:
    """Return the answer to each word that is tried as a command."""
    answers: dict[str, str] = {}
    for words, answer in read_sections()["answers"].items():
        answers |= dict.fromkeys(words.split("|"), answer)
    return answers


@cache
def _own_options() -> dict[str, str]:
    """Return launch's name of an option by each name that other tools have for it."""
    names: dict[str, str] = {}
    for own, theirs in read_sections()["options"].items():
        names |= dict.fromkeys(theirs, own)
    return names


def is_command(word: str, planned: Sequence[str]) -> bool:
    """Return whether a word asks something of a run or of this machine; `planned` are the verbs whose
    line is a stage's.
    """
    if word in planned:
        return False
    meant = find_verb(word)
    return meant not in (None, *planned) or (meant is None and word.lower() in _answers())


def explain_command(word: str, arguments: Sequence[str]) -> Fix | None:
    """Return the answer to a word that is tried as a command; None for a word of no row.

    What it is about is put into the command, with the values of options that launch has, too:
    `tail demo` is `launch logs demo`. Options without a counterpart are named.
    """
    answer = _answers().get(word.lower())
    if answer is None:
        return None
    rest = _read_rest(arguments)
    names = rest.names
    options = rest.options
    answer = _choose_answer(answer, rest)
    has_word = len(names) > 1 and "/" not in names[-1]
    if "{CHAT}" in answer and "prompt" not in options and has_word:
        options["prompt"] = names.pop()
    if "prompt" in options or "prompts" in options:
        answer = answer.replace("{CHAT}", "{GENERATE}")
    if rest.folder is None:
        answer = answer.removesuffix(_DELETES)
    actions: list[str] = []

    def place(match: re.Match[str]) -> str:
        actions.append(f"$ {_write_command(match[1], rest, arguments)}")
        return f"{{{len(actions) - 1}}}"

    sentence = re.sub(r"\{(\w+)\}", place, answer)
    is_of_hub = answer == _SERVES_HUB_ID
    if (
        names
        and "/" in names[0]
        and not is_of_hub
        and rest.folder is None
        and not Path(names[0]).exists()
    ):
        sentence += f"; there is no {names[0]} here, {{{len(actions)}}} lists the runs"
        actions.append("$ launch status")
    left_out = [
        _as_option(rest.typed.get(name, name))
        for name in (*options, *rest.lost)
        if name not in rest.used and name != "runs"
    ]
    has_whole_line = any(f"{{{name}}}" in answer for name in _OF_STAGES)
    if left_out and not has_whole_line:
        sentence += f"; without a counterpart: {', '.join(left_out)}"
    return Fix.of(sentence, *actions)


def _choose_answer(answer: str, rest: _Rest) -> str:
    """Return the answer that the names and options behind a word ask for: a merge of a file that has
    `export_dir`, a list for git's `log --oneline`.
    """
    names = rest.names
    options = rest.options
    if "export_dir" in options:
        answer = _answers()["merge"]
    if "{LOGS}" in answer and {"oneline", "graph"} & options.keys():  # of git log
        answer = _answers()["list"]
        rest.used |= {"oneline", "graph"}
    if "{SERVE}" in answer and names and _is_hub_id(names[0]):
        answer = _SERVES_HUB_ID
    if "{SUBMIT}" in answer:
        names[:] = [name for name in names if name in group_options("stage")]  # `exp run`
    if "{GGUF}" in answer and any(map(_QUANTIZATION.fullmatch, [*names, *options.values()])):
        answer += ", and quantised by {QUANTIZE}"
        rest.used |= {"gguf", "quantize", "quantization", "type", "qtype"}
    pushing = _answers()["push"]
    if answer == pushing or {"push_to_hub", "hub_model_id"} & options.keys():
        answer = answer if answer == pushing else f"{answer}; {pushing}"
        names += [options[name] for name in _REPOSITORIES if name in options]
        rest.used |= {"push_to_hub", *_REPOSITORIES}
    return answer


def _as_option(name: str) -> str:
    return f"-{name}" if len(name) == 1 else f"--{name}"


def _is_hub_id(name: str) -> bool:
    """Return whether a name is a model of the hub, and no folder of a run."""
    return (
        _REPOSITORY.fullmatch(name) is not None
        and not Path(name).exists()
        and name.partition("/")[0] not in _FOLDERS
    )


def _merged_folder(name: str) -> str:
    """Return where `launch merge` writes the model of a folder (launch/planning/adapter.py)."""
    path = Path(name)
    return str(path.with_name("merged") if path.name == "model" else f"{path}-merged")


def _write_command(name: str, rest: _Rest, arguments: Sequence[str]) -> str:
    """Return a command of `_COMMANDS`, about the run and with the options of a line."""
    command = _COMMANDS[name]
    names = rest.names
    overrides = [word for word in arguments if re.match(r"[+~]*[a-z][\w.]*=", word)]
    if name in _OF_STAGES and any(word.startswith("stage=") for word in overrides):
        verb = " ".join(command.split()[:2])
        has_list = any("," in word for word in overrides)
        return f"{verb} {shlex.join(overrides)}" if has_list or name != "TRIAL" else command
    if name in _OF_STAGES and overrides:
        command = f"{command} {shlex.join(overrides)}"
    if name == "QUANTIZE":
        types = [item for item in (*names, *rest.options.values()) if _QUANTIZATION.fullmatch(item)]
        return command.replace("TYPE", types[0].upper())
    if name == "PIPELINE":
        stages = [item for item in names if item in group_options("stage")]
        return command.replace("A,B", ",".join(stages)) if len(stages) > 1 else command
    if name == "SERVE" and names and _is_hub_id(names[0]):
        return f"vllm serve {names[0]}"
    repository = next((name for name in names[1:] if _REPOSITORY.fullmatch(name)), None)
    if names:
        is_of_launch = command.startswith("launch")
        folder = None if is_of_launch else rest.folder
        if folder is None and "/" in names[0]:
            command = command.replace("RUN/merged", shlex.quote(_merged_folder(names[0])))
        command = re.sub(r"\bRUN\b", shlex.quote(str(folder or names[0])), command)
        if name in ("LINT", "FLAGS"):
            command = re.sub(r"FILE|TRAINER", shlex.join(names[:1]), command)
        if names[0] in group_options("stage"):
            command = command.replace("stage=NAME", f"stage={names[0]}")
        if folder is not None:
            is_adapter = (folder / "model" / "adapter_config.json").is_file()
            named = "merged" if is_adapter else "model"
            command = re.sub(
                rf"{re.escape(str(folder))}/(merged|model)", f"{folder}/{named}", command
            )
    if name == "COMPARE" and len(names) > 1:
        command = f"launch compare {shlex.join(names)}"
    if repository:
        command = command.replace("OWNER/NAME", repository)

    def fill(match: re.Match[str]) -> str:
        rest.used.add(match[1])
        value = rest.options.get(match[1])
        return "" if value is None else match[0].replace(f"<{match[1]}>", shlex.quote(value))

    command = _fill(_PLACE.sub(fill, command))
    is_about_runs = command.startswith("launch") and command.split()[1] in _OF_RUNS
    return (
        f"{command} runs={rest.options['runs']}"
        if is_about_runs and "runs" in rest.options
        else command
    )


def _fill(command: str) -> str:
    """Return a command without a placeholder where its verb needs no run, or means the newest one."""
    words = command.split()
    if len(words) == 1:
        return command
    if words[-1] == "RUN" and words[1] in _WITHOUT_RUN:
        return " ".join(words[:-1])
    return re.sub(r"\bRUN\b", "latest", command) if words[1] in _OF_NEWEST else command


def _read_rest(arguments: Sequence[str]) -> _Rest:
    """Return the names behind a command, and the values of its options."""
    rest = _Rest()
    of_file: dict[str, str] = {}
    options = _read_words(arguments, rest.names, of_file)
    # lm-evaluation-harness has the model behind `--model hf`
    for of_model in options.pop("model_args", "").split(","):
        name, _, value = of_model.partition("=")
        if name in ("pretrained", "peft"):
            options[name] = value
    about = [each[name] for each in (options, of_file) for name in _OF_RUN if name in each]
    about = [name for name in about if name not in ("lora", "qlora", "hf")]  # `adapter: lora`
    if not about and not rest.names:
        about = [each[_FOLDER] for each in (options, of_file) if _FOLDER in each]
        rest.used.add(_FOLDER)
    rest.names[:0] = about
    known = _own_options()
    for name, value in {**of_file, **options}.items():
        own = known.get(name, name)
        rest.options[own] = value
        rest.typed[own] = name
    if "follow" in rest.options:
        lines = rest.options.pop("lines", None)  # what follows has no end
        rest.lost += [rest.typed["lines"]] if lines is not None else []
    rest.used |= {
        "yes",
        "follow",
        *_OF_RUN,
        *(name for name in of_file if not name.startswith("export_")),
        *(name for name, own in _SWITCHES.items() if not own),
    }
    return rest


def _read_words(
    arguments: Sequence[str], names: list[str], of_file: dict[str, str]
) -> dict[str, str]:
    """Return the values of options by their names; `names` and `of_file` get the words without one, and
    what a file has.
    """
    options: dict[str, str] = {}
    option = ""  # whose value follows
    for item in arguments:
        name, equals, value = item.partition("=")
        is_option = item.startswith("-")
        if is_option and option:
            options[option] = "true"
        if is_option:
            option = _take_option(plain_name(name), value, equals, options)
        elif equals and option != "model_args" and re.fullmatch(r"[\w.]+", name):
            options[plain_name(name)] = value
        elif option:
            options[option] = item
            option = ""
        elif item.endswith((".yaml", ".yml")):
            of_file |= _read_settings(Path(item))
        elif re.fullmatch(r"[.~\w/*][\w./*-]*", item):
            names.append(item)
        elif names:
            options["prompt"] = item
    if option:
        options[option] = "true"
    return options


def _take_option(name: str, value: str, equals: str, options: dict[str, str]) -> str:
    """Take an option; return its name where its value follows."""
    if name in _SWITCHES:
        own = _SWITCHES[name]
        if own:
            options[own.removeprefix("--")] = own
        return ""
    if name.isdigit():  # `kill -9`
        options[name] = "true"
        return ""
    if name.startswith("n") and name[1:].isdigit():  # `-n5`
        options["n"] = name[1:]
        return ""
    if equals:
        options[name] = value
    return "" if equals else name


def _read_settings(path: Path) -> dict[str, str]:
    """Return the texts of a file that another tool's command is given; none if it cannot be read."""
    import yaml  # slow to import; only an answer needs it

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    settings = content if isinstance(content, dict) else {}
    texts: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, str | int):
            texts[str(name)] = str(value)
        elif isinstance(value, list):
            texts[str(name)] = ",".join(map(str, value))
    return texts
