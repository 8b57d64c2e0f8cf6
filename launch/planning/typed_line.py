"""Reads a command line in the words of any tool as one set of names and values.

A verb, words without a name, `--flag value`, `--flag=value` and `key=value` are treated alike. A
key of launch stays an override. Everything else becomes a setting, as in a file of another tool.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from launch.config.kinds import KINDS
from launch.config.line import (
    DATA_FILES,
    MULTIRUN,
    NAME_AFTER_FILE,
    OTHER_COMMANDS,
    is_bare_word,
    override_key,
)
from launch.config.nodes import find_hint, node_class
from launch.config.other_tools import explain_value, find_verb, known_names
from launch.config.schema import RootConfig
from launch.config.typed_values import as_whole, read_value, write_value
from launch.errors import misspelt, nearest
from launch.planning.files_as_lines import is_of_separate_model, words_of_accelerate
from launch.planning.other_tool_defaults import names_without_counterpart
from launch.resources import GROUPS, group_options
from launch.upstream.pin.lock import locked_schema
from launch.upstream.trainers import trainer_files

PLAN_VERBS = ("run", "plan", "check", "preview", "submit")  # their line is one that a plan takes
_FILES = (".yaml", ".yml")
# The methods and the kinds of training, by what a word or the name of a recipe contains.
_METHODS = re.compile(
    r"sft|dpo|ipo|kto|orpo|simpo|grpo|ppo|gae|rloo|reinforce|rlvr|reward_model\w*|rm"
)
_ADAPTERS = re.compile(r"q?lora")
# Settings that name the method, the model or the data in one tool or another.
_METHOD_NAMES = (
    *("method", "algorithm", "algo", "task", "task_type", "training_type", "training_method"),
    *("objective", "rl", "rl_type", "rlhf_type", "stage", "mode"),
    *("adv_estimator", "advantage_estimator"),
)
_MIXERS = ("dataset_mixer_list", "dataset_mixer", "mixer_list")
_LISTS = (
    *_MIXERS,
    "lora_target_modules",
    "target_modules",
    "lora_target",
    "reward_funcs",
    "dataset",
)
_FILE_NAMES = ("config", "config_file", "yaml", "recipe_file")
# The short options of sbatch, whose capitals matter.
_OF_SBATCH = {
    "N": "nnodes",
    "G": "num_gpus",
    "p": "partition",
    "t": "time",
    "A": "account",
    "q": "qos",
    "J": "job_name",
    "c": "cpus_per_task",
    "C": "constraint",
    "x": "exclude",
    "w": "nodelist",
}
_OF_OPEN_INSTRUCT = {
    name: name for name in ("finetune", "dpo_tune_cache", "reward_modeling", "dpo")
}
_OF_OPEN_INSTRUCT["grpo_fast"] = "grpo_fast"
# Programs that start a trainer.
_LAUNCHERS = (
    *("python", "python3", "accelerate", "torchrun", "deepspeed", "srun", "sbatch", "uv", "poetry"),
    *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
    *("axolotl.cli.train", "llamafactory.cli", "trl.cli", "launch", "run", "train"),
)
# scripts of other tools' trainers
_PROGRAMS = (
    *(
        "sft",
        "dpo",
        "kto",
        "grpo",
        "rm",
        "reward",
        "reward_trainer",
        "train",
        "train_bash",
        "cli",
        "main",
    ),
    *(
        "run_sft",
        "run_dpo",
        "run_orpo",
        "sft_trainer",
        "main_ppo",
        "train_ppo_ray",
        "train_sft",
        "train_dpo",
    ),
    *(
        "ppo",
        "rloo",
        "orpo",
        "launcher",
        "olmo_core_finetune",
        "run_clm",
        "lora_finetune_single_device",
    ),
    *(
        "full_finetune_distributed",
        "full_finetune_single_device",
        "lora_finetune_distributed",
        "mason",
    ),
)
_NEGATED = re.compile(r"(?:no|disable|without|skip)_(.+)")
_YAML_KEY = re.compile(r"[A-Za-z_][\w.]*:")
_SHORT = re.compile(r"-([A-Za-z])(\d[\d:-]*)?")
_OF_ALL_MACHINES = ("num_processes", "world_size")
# Options about what happens with the line, and not about what is trained.
_ON_SLURM = ("slurm", "use_slurm", "on_slurm", "submit")
_DRY = ("dry_run", "dryrun", "print_only", "test_only")
_OF_PREVIEW = ("num_samples", "max_samples", "samples", "n")
_ROWS_OF_DATA = re.compile(r"(.+?)#(\d+)")  # of ms-swift: so many rows of a data set


@dataclass
class TypedLine:
    """The settings of a line, in the words of any tool."""

    verb: str = "run"  # launch's verb
    file: Path | None = None  # of another tool
    method: str = ""  # a stage that a word names: sft, dpo, rm or rlvr
    settings: dict[str, Any] = field(default_factory=dict)  # by the names of other tools
    overrides: dict[str, str] = field(default_factory=dict)  # by launch's own keys
    foreign: list[str] = field(default_factory=list)  # what launch does not have, as typed
    notes: list[str] = field(default_factory=list)  # how a word was understood
    is_dry: bool = False  # nothing is to be started
    processes: int | None = None  # of all machines
    script: str = ""  # a program of the reader's own
    is_incomplete: bool = False  # a key as in a file, `gpus: 8`, or a number without one

    @property
    def names_data(self) -> bool:
        return "dataset_name" in self.settings or "data" in self.overrides

    @property
    def names_model(self) -> bool:
        model = {"model", "model.path"} & self.overrides.keys()
        return "model_name_or_path" in self.settings or bool(model)


def read_line(argv: Sequence[str], of_file: Sequence[str] = ()) -> TypedLine:
    """Read the arguments of a line. A misspelt name is taken for the nearest name of any tool.

    `of_file` are the words of the file that the line names; the line's own words replace them.
    """
    typed = TypedLine()
    words = list(argv)
    while len(words) > 1 and words[0] in OTHER_COMMANDS:
        typed.foreign.append(words.pop(0))
    if words and is_bare_word(words[0]) and _take_verb(typed, words[0]):
        words.pop(0)
    for name, values in split_words([*of_file, *words]):
        if name.endswith(":"):
            typed.foreign.append(name)
            typed.is_incomplete = True
        if name:
            _take_setting(typed, name.removesuffix(":"), values)
        else:
            _take_word(typed, values[0])
    if typed.method in group_options("stage") and not typed.settings and "--stage" in words:
        typed.overrides["stage"] = typed.method
    if typed.processes is not None and "gpus" not in typed.overrides:
        machines = as_whole(typed.overrides.get("nodes")) or 1
        typed.overrides["gpus"] = str(max(1, typed.processes // machines))
    return typed


def split_words(
    words: Sequence[str], switches: Sequence[str] = ()
) -> Iterator[tuple[str, list[str]]]:
    """Yield each name with its values; a word without a name has the name "". An option of `switches`
    takes no value.
    """
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word in ("--json", "--", "-", *MULTIRUN):
            continue
        name, equals, value = word.partition("=")
        short = _SHORT.fullmatch(word)
        has_value = position < len(words) and is_bare_word(words[position])
        is_reward = "reward" in name or "verifier" in name
        if has_value and words[position].endswith(".py") and not is_reward:
            has_value = False  # a script behind a switch, `--use_deepspeed sft.py`
        if _YAML_KEY.fullmatch(word) and has_value:  # `gpus: 8`, as a file has it
            yield word, [words[position]]
            position += 1
        elif short and short[2]:  # `-N2`
            yield f"-{short[1]}", [short[2]]
        elif word.startswith("-") and not equals:
            most = len(words) if _normalize_name(name) in _LISTS else 1
            most = 0 if _normalize_name(name) in switches or not has_value else most
            values: list[str] = []
            while position < len(words) and len(values) < most and is_bare_word(words[position]):
                values.append(words[position])
                position += 1
            yield name, values or ["true"]
        elif equals:
            values = [value]
            while (
                _normalize_name(name) in _LISTS
                and position < len(words)
                and is_bare_word(words[position])
            ):
                values.append(words[position])
                position += 1
            yield name, values
        else:
            yield "", [word]


def _take_verb(typed: TypedLine, word: str) -> bool:
    """Read the first word as the verb; return whether it is one."""
    if word in PLAN_VERBS:
        typed.verb = word
        return True
    verb = find_verb(word)
    if verb in PLAN_VERBS and not _METHODS.fullmatch(word):
        typed.verb = verb
        typed.foreign.append(word)
        return True
    return False


def _take_word(typed: TypedLine, word: str) -> None:
    """Read a word without a name: a file, a method, a recipe's name."""
    if word.endswith(_FILES):
        typed.file = Path(word)
        return
    typed.foreign.append(word)
    if word in _LAUNCHERS:
        return
    if word.isdigit() and "gpus" not in typed.overrides:
        typed.overrides["gpus"] = word  # `plan sft 8`
        typed.is_incomplete = True
        return
    is_program = word.endswith(".py") or word == "launch"  # `accelerate launch sft.py`
    if word.endswith(".py"):
        _take_program(typed, word)
    word = word.removesuffix(".py")
    if word.endswith(DATA_FILES) or NAME_AFTER_FILE.fullmatch(word):
        _take_data(typed, word)
    elif not _take_method(typed, word) and not is_program:
        typed.notes.append(f"'{word}' was not understood")


def _take_program(typed: TypedLine, path: str) -> None:
    """Read a trainer's script: open-instruct's is a trainer of launch, and any other than those of the
    tools is the reader's own.
    """
    stem = Path(path).stem
    trainer = _OF_OPEN_INSTRUCT.get(stem)
    if trainer is not None:
        typed.overrides.setdefault("trainer", trainer)
        typed.method = str(trainer_files()[trainer]["kind"])
    elif stem not in _PROGRAMS:
        typed.script = path


def _take_method(typed: TypedLine, word: str) -> bool:
    """Read the name of a method or of a recipe (`lora_dpo_single_device`)."""
    plain = _normalize_name(word)
    if plain in group_options("stage") and plain not in KINDS:
        typed.overrides["stage"] = plain
        return True
    parts = plain.split("_")
    methods = [part for part in parts if _METHODS.fullmatch(part)]
    has_adapter = any(_ADAPTERS.fullmatch(part) for part in parts)
    if has_adapter:
        typed.settings.setdefault("adapter", "qlora" if "qlora" in parts else "lora")
    stage = explain_value("stage", plain)
    if methods:
        typed.method = methods[0]
    elif stage is not None:
        typed.method = str(stage.actions[0]).removeprefix("stage=").removeprefix("lora_")
    return bool(methods or stage or has_adapter)


def _take_setting(typed: TypedLine, written: str, values: list[str]) -> None:
    value = (" " if _normalize_name(written) in _MIXERS else ",").join(values)
    if _take_named_file(typed, written, value):
        return
    written, value = _write_out(written, value)
    own = _own_key(written)
    if own == "trainer" and value not in group_options("trainer") and _take_method(typed, value):
        typed.foreign.append(written)
        typed.notes.append(f"there is no trainer {value}")
        return
    own = None if own == "cluster" and value not in group_options("cluster") else own
    is_unknown_stage = own == "stage" and value not in group_options("stage")
    if written.startswith("-") or own is None or is_unknown_stage:
        typed.foreign.append(written)
    name = _find_setting(written)
    if own is None and name not in (_normalize_name(written), "stage"):
        own = _own_key(name)  # `--modle demo`
    if own is None and _take_of_machines(typed, name, value):
        return
    if own in ("data", "data.mix") and value.startswith(("[", "{")):
        typed.overrides[own] = value
    elif own in ("data", "data.mix") or name in _names_of("data"):
        _take_data(typed, value)
    elif own in ("model", "model.path") or name in _names_of("model"):
        _take_model(typed, own, value)
    elif own == "stage" and not written.startswith("-") and not is_unknown_stage:
        typed.overrides["stage"] = value
    elif {_normalize_name(written), name} & {*_METHOD_NAMES} and _take_method(typed, value):
        _note_name(typed, written, name)
    elif own is not None:
        typed.overrides[own] = write_value(own, _own_value(own, value))
    else:
        _note_name(typed, written, name)
        typed.settings[name] = read_value(name, value)


def _take_named_file(typed: TypedLine, written: str, value: str) -> bool:
    """Take `--config sft.yaml` or `-c sft.yaml`; return whether it is one."""
    short = _SHORT.fullmatch(written)
    names_file = short is not None or _normalize_name(written) in (*_FILE_NAMES, "stage")
    if not names_file or not value.endswith(_FILES):
        return False
    if written != "stage":
        typed.foreign.append(written)
    _take_file(typed, Path(value))
    return True


def _write_out(written: str, value: str) -> tuple[str, str]:
    """Return the long name of a short option of sbatch, and `--packing false` for `--no_packing`."""
    short = _SHORT.fullmatch(written)
    if short is not None:
        return f"--{_OF_SBATCH.get(short[1], short[1])}", value
    without = _NEGATED.fullmatch(_normalize_name(written))
    if without is None or value != "true" or _normalize_name(written) in _known_settings():
        return written, value
    return (f"--{without[1]}", "false") if without[1] in _known_settings() else (written, value)


def _note_name(typed: TypedLine, written: str, name: str) -> None:
    """Record that a name was read as a similar one."""
    plain = _normalize_name(written)
    if name not in (plain, plain.replace(".", "_"), plain.rpartition(".")[2]):
        typed.notes.append(f"{written} is read as {name}, a guess by its spelling")


def _take_of_machines(typed: TypedLine, name: str, value: str) -> bool:
    """Read a setting of GPUs and machines, or of a dry run; return whether the name is such a
    setting.
    """
    if name in (*_ON_SLURM, *_DRY):
        is_on = value.lower() not in ("false", "0", "no")
        typed.is_dry |= is_on and name in _DRY
        if is_on and name in _ON_SLURM:
            typed.verb = "submit"
    elif typed.verb == "preview" and name in _OF_PREVIEW:
        typed.overrides["n"] = value
    elif name == "gres":
        _take_gres(typed, value)
    elif name in _OF_ALL_MACHINES and value.isdigit():
        typed.processes = int(value)
    elif name in _names_of("machines"):
        _take_ranks(typed, "nodes", value)
    elif name in _names_of("ranks"):
        _take_ranks(typed, "gpus", value)
    else:
        return False
    return True


def _take_file(typed: TypedLine, path: Path) -> None:
    """Read a file: accelerate's sets how ranks are started, any other sets what is trained."""
    words = words_of_accelerate(path)
    if words is None:
        typed.file = path
        return
    typed.notes.append(f"{path} is read as {' '.join(words)}")
    for word in words:
        name, _, value = word.partition("=")
        _take_setting(typed, name, [value])


def _take_gres(typed: TypedLine, value: str) -> None:
    """Read sbatch's `--gres=gpu:8` or `gpu:h100:8`."""
    parts = value.split(":")
    if parts[-1].isdigit():
        typed.overrides["gpus"] = parts[-1]
    if len(parts) == 3:
        typed.overrides["cluster.gpu_type"] = parts[1]


def _take_data(typed: TypedLine, value: str) -> None:
    """Read data. A name after a file (`rows.jsonl:alpaca`) is its format, which is otherwise
    recognised.
    """
    rows = _ROWS_OF_DATA.fullmatch(value)
    if rows is not None:
        value = rows[1]
        typed.settings["max_samples"] = int(rows[2])
    if value.startswith("[") and "{" not in value:
        value = re.sub(r"[\[\]'\" ]", "", value)
    if value in group_options("data"):
        typed.overrides["data"] = value
        return
    behind = NAME_AFTER_FILE.fullmatch(value)
    if behind is not None and not Path(value).exists():
        value = behind[1]
        typed.notes.append(f"the form of {value} is recognised by its columns")
    typed.settings["dataset_name"] = value.split(",") if "," in value else value


def _take_model(typed: TypedLine, own: str | None, value: str) -> None:
    """Take a model: a group of launch stays one. Qwen's hub ids follow from its names."""
    is_group = value in group_options("model") and not Path(value).exists()
    if own == "model" and value in group_options("model"):
        typed.overrides["model"] = value
        return
    if own is None and is_group:
        typed.overrides["model"] = value
        typed.notes.append(f"{value} is the model group of launch, model={value}")
        return
    groups = [] if "/" in value or Path(value).exists() else group_options("model")
    near = nearest(value.replace("-", "_").lower(), groups, limit=1, cutoff=0.85)
    if near:
        typed.overrides["model"] = near[0]
        typed.notes.append(f"{value} is taken for model={near[0]}, a guess by its spelling")
        return
    is_path = value.startswith(("/", "~", "./")) and not Path(value).expanduser().is_dir()
    hub_id = hub_id_of(Path(value).name if is_path else value)
    if hub_id is not None:
        typed.notes.append(f"{hub_id} is taken for the model {value}")
    typed.settings["model_name_or_path"] = hub_id or value


def hub_id_of(name: str) -> str | None:
    """Return the hub id of a Qwen model, which follows from its size; None for any other model."""
    qwen = re.fullmatch(r"qwen-?([\d.]+)-([\d.]+)b(-instruct)?", name.lower())
    if qwen is None:
        return None
    return f"Qwen/Qwen{qwen[1]}-{qwen[2]}B{'-Instruct' if qwen[3] else ''}"


def _take_ranks(typed: TypedLine, key: str, value: str) -> None:
    """Read a number of GPUs or machines. A kind of GPU, such as `T4`, counts as one GPU."""
    if value.isdigit():
        typed.overrides[key] = value
        return
    cure = explain_value(key, value)
    if cure is not None:
        typed.overrides[key] = str(cure.actions[0]).partition("=")[2]
    elif re.fullmatch(r"\d(,\d)+", value):
        typed.overrides[key] = str(len(value.split(",")))
    else:
        typed.overrides[key] = "1"
        typed.notes.append(f"{value} is a kind of GPU: one is used, whichever this machine has")


def _own_value(key: str, value: str) -> str:
    """Return a value of launch's own key as launch writes it."""
    if key == "gpus" and not value.isdigit():
        ranks = TypedLine()
        _take_ranks(ranks, key, value)
        return ranks.overrides[key]
    cure = explain_value(key, value)
    if cure is not None and cure.actions[0].sets:
        changed_key, _, changed = cure.actions[0].sets[0].partition("=")
        return changed if changed_key == key else value
    return value


def _normalize_name(name: str) -> str:
    """Return a name in lower case, with `_` between its words; the dots stay."""
    return re.sub(r"[^\w.]+", "_", name.strip("-+~")).strip("_").lower()


def _own_key(written: str) -> str | None:
    """Return launch's key of a name, with dashes in front or not; None if launch has none."""
    key = override_key(written).strip("-")
    if key in ("sweep", "restart", "detach", "pipeline"):
        return key
    if "." not in key:
        key = _normalize_name(key)
    hint = find_hint(RootConfig, key)
    is_own = hint is not None and node_class(hint) is None
    return key if is_own or key in GROUPS else None


def _find_setting(written: str) -> str:
    """Return the setting for a name: the last part of a dotted name, or the nearest name of any
    tool.
    """
    plain = _normalize_name(written)
    if is_of_separate_model(plain):
        return plain.replace(".", "_")
    known = _known_settings()
    for name in (plain.replace(".", "_"), plain.rpartition(".")[2]):
        if name in known:
            return name
    last = plain.rpartition(".")[2]
    if any(pattern.fullmatch(last) for pattern, _ in names_without_counterpart()):
        return last
    return misspelt(last, known) or plain.replace(".", "_")


@cache
def _known_settings() -> frozenset[str]:
    """Return every name of a setting that is known."""
    names = {*known_names(), *_METHOD_NAMES, *_FILE_NAMES, *_ON_SLURM, *_DRY}
    for trainer in trainer_files():
        names.update(locked_schema(trainer).fields)
    return frozenset(names)


@cache
def _names_of(topic: str) -> frozenset[str]:
    return frozenset(known_names(topic))
