"""What lint finds in a text: trainers, the commands that start them, and notes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from launch.check.lint.shell_syntax import Argument
from launch.config.yaml_nodes import Node
from launch.worker.finding import Finding, Fix, Severity
from launch.worker.moves import known_name, path_at_pin

# A text without any of these cannot start a trainer; checked before a file is parsed as shell.
MARKER = re.compile(
    r"(?:finetune|dpo\w*|ppo\w*|grpo\w*|reward_modeling\w*|sft(?:_deepspeed)?)\.py\b"
    r"|\bopen_instruct\.\w|\btrl\.|\btrl[)`]?\s+\w|trl['\"]"
)
# A whole text is parsed with less: it may put the name of a trainer together.
HINT = re.compile(rf"{MARKER.pattern}|open_instruct\b")

_LAUNCHER = re.compile(r"\b(?:python[0-9.]*|accelerate|torchrun|deepspeed|uv|trl)\b")

_NAME = (
    r"(?:\w+_)?finetune|sft(?:_deepspeed)?|dpo(?:_tune\w*|_deepspeed)?|(?:online_)?dpo_vllm\w*"
    r"|online_dpo\w*|ppo\w*|grpo\w*|reward_modeling\w*"
)
_NOT_TRAINERS = re.compile(r"\w*(?:_utils|_callbacks|_test|_harness)")
_SAME_FOLDER = re.compile(r"/(?:\.?/)+")
_SCRIPT = re.compile(rf"(?:.*/)?open_instruct/({_NAME})\.py")
_MODULE = re.compile(rf"(?:\w+\.)*open_instruct\.({_NAME})")
# File names that no other project is known to use; a bare `finetune.py` could belong to any
# project.
_BARE = re.compile(r"(?:\./)?(dpo_tune_cache|olmo_core_finetune|grpo_fast)\.py")
_TRL_SCRIPT = re.compile(r"(?:.*/)?trl/scripts/(\w+)\.py")
# Until TRL moved them to trl/scripts, its repository had the scripts here.
_TRL_EXAMPLE = re.compile(r"(?:.*/)?examples/scripts/(sft|dpo|grpo|kto|rloo|orpo)\.py")
_TRL_MODULE = re.compile(r"trl\.scripts\.(\w+)")
_TRL_COMMANDS = frozenset({"sft", "dpo", "grpo", "kto", "orpo", "reward", "rloo"})


@dataclass(frozen=True)
class TrainerScript:
    """A trainer that a command starts."""

    name: str  # short name: finetune, trl_sft

    @property
    def is_trl(self) -> bool:
        return self.name.startswith("trl_")

    @property
    def script(self) -> str:
        """The script as the output shows it: open_instruct/finetune.py, trl.scripts.sft."""
        if self.is_trl:
            return f"trl.scripts.{self.name.removeprefix('trl_')}"
        return path_at_pin(f"open_instruct/{self.name}.py")


def starts_trainer(text: str) -> bool:
    """Return True if the text looks like a command, or code, that starts a trainer."""
    return MARKER.search(text) is not None and _LAUNCHER.search(text) is not None


def trainer_from_path(text: str) -> TrainerScript | None:
    """Return the trainer at a script's path, None if it is not one."""
    text = _SAME_FOLDER.sub("/", text)
    trl_script = _TRL_SCRIPT.fullmatch(text) or _TRL_EXAMPLE.fullmatch(text)
    return _recognise(_SCRIPT.fullmatch(text) or _BARE.fullmatch(text), trl_script)


def is_trl_example(text: str) -> bool:
    """Return True for a script that TRL's repository had in `examples/scripts`."""
    return _TRL_EXAMPLE.fullmatch(_SAME_FOLDER.sub("/", text)) is not None


def trainer_from_module(text: str) -> TrainerScript | None:
    """Return the trainer that `-m <text>` starts, None if it is not one."""
    return _recognise(_MODULE.fullmatch(text), _TRL_MODULE.fullmatch(text))


def _recognise(
    open_instruct: re.Match[str] | None, trl: re.Match[str] | None
) -> TrainerScript | None:
    """Return the trainer that group 1 of a match names: of open-instruct, or else of TRL."""
    if open_instruct is not None:
        name = open_instruct.group(1)
        if _NOT_TRAINERS.fullmatch(name):
            return None
        return TrainerScript(known_name(f"{name}.py").removesuffix(".py"))
    return None if trl is None else trainer_from_trl_command(trl.group(1))


def trainer_from_trl_command(text: str) -> TrainerScript | None:
    """Return the trainer that `trl <text>` starts, None if it is not one."""
    return TrainerScript(f"trl_{text}") if text in _TRL_COMMANDS else None


def find_trainer(text: str) -> TrainerScript | None:
    """Return the trainer for a name, path or module: `trl_sft`, `open_instruct/dpo.py`."""
    text = text.strip()
    stem = text.rsplit("/", 1)[-1].removesuffix(".py")
    for path in (text, f"open_instruct/{stem}.py"):
        trainer = trainer_from_path(path)
        if trainer is not None:
            return trainer
    trl_module = stem.replace("trl_", "trl.scripts.")
    return trainer_from_module(text) or trainer_from_module(trl_module)


@dataclass(frozen=True)
class LintFinding(Finding):
    """A finding about a line of a file. `where` is the flag that it concerns, without dashes.

    Its JSON is that of every finding, with the line.
    """

    line: int = 1

    def json_fields(self) -> dict[str, Any]:
        return {"line": self.line, **super().json_fields()}


def _find(
    severity: Severity,
    id: str,
    message: str,
    line: int,
    flag: str | None = None,
    *,
    cure: Fix | str | None = None,
) -> LintFinding:
    finding = LintFinding.error(id, message, flag, cure)
    return replace(finding, severity=severity, line=line)


error = partial(_find, "fail")
warning = partial(_find, "warn")


@dataclass(frozen=True)
class TrainerCommand:
    """A command that starts a trainer."""

    trainer: TrainerScript
    line: int  # where it starts, 1-based
    arguments: tuple[Argument, ...]  # the trainer's own
    notes: tuple[LintFinding, ...] = ()
    is_truncated: bool = False  # it may get other arguments than those, so it is never accepted
    # `trl sft` and the like, which pass options on to accelerate
    takes_accelerate_options: bool = False
    launcher: tuple[Argument, ...] = ()  # what comes before the trainer's own arguments


@dataclass(frozen=True)
class ScanResult:
    """The trainer commands of a text, in order, and notes on what could not be read."""

    commands: tuple[TrainerCommand, ...] = ()
    notes: tuple[LintFinding, ...] = ()
    unfollowed: tuple[LintFinding, ...] = ()  # what may start a trainer and is not followed
    documents: tuple[tuple[Node, ...], ...] = ()  # YAML documents, which may contain maps of flags

    def doubted(self, id: str, message: str, cure: str | None = None) -> ScanResult:
        """Return the result with a warning on each command, so that none can be accepted."""
        commands = []
        for command in self.commands:
            note = warning(id, message, command.line, cure=cure)
            commands.append(replace(command, notes=(*command.notes, note), is_truncated=True))
        return replace(self, commands=tuple(commands))


NO_COMMANDS = ScanResult()


def not_followed(reason: str, line: int) -> ScanResult:
    """Return the result for a construct that is not followed."""
    return ScanResult(unfollowed=(warning("not_followed", f"not followed: {reason}", line),))


def merge_scans(scans: Iterable[ScanResult]) -> ScanResult:
    """Return the commands of all, in the order of their lines, and everything else."""
    commands: list[TrainerCommand] = []
    notes: list[LintFinding] = []
    unfollowed: list[LintFinding] = []
    documents: list[tuple[Node, ...]] = []
    for scan in scans:
        commands.extend(scan.commands)
        notes.extend(scan.notes)
        unfollowed.extend(scan.unfollowed)
        documents.extend(scan.documents)
    commands.sort(key=lambda command: command.line)
    return ScanResult(tuple(commands), tuple(notes), tuple(unfollowed), tuple(documents))
