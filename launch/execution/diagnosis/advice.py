"""Find the cure of a failure among the known causes (known.yaml), computed from the plan if possible.

A cause is recognised by the class and the message of an exception and the package that raised it;
for a process that died without an exception, by a line that it printed. A cure that may not help,
since the cause may be another, begins with "possibly".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from launch.config.schema import Device
from launch.execution.diagnosis.known import KnownCause, known
from launch.execution.diagnosis.tracebacks import RaisedError
from launch.planning.estimate.out_of_memory import RunSettings, advise_failed_run
from launch.resources import IN_CLONE, requirement
from launch.table import format_bytes

POSSIBLY = "possibly: "  # begins the text of an uncertain cure
_NAMED_PATH = re.compile(
    r"(?:No space left on device|Disk quota exceeded)[^'\"]{0,20}['\"](?P<path>/[^'\"]+)['\"]"
)
_CAPACITY = re.compile(r"total capacity of (?P<gib>[\d.]+) GiB")


@dataclass(frozen=True)
class Situation:
    """The facts of a run's plan that cures need, and the cures that are computed from them.

    A field is None if it is unknown, as in a run that was not planned here. known.yaml names the
    methods that take a match, and the match is that of the cause's pattern.
    """

    trainer: str = ""
    settings: RunSettings = field(default_factory=RunSettings)  # those that decide its memory
    runs: Path | None = None  # folder of all runs
    cache: Path | None = None  # folder of the tokenised data
    python: str | None = None  # the trainer's interpreter

    def out_of_memory(self, match: re.Match[str]) -> str:
        capacity = _CAPACITY.search(match.string)
        gib = float(capacity["gib"]) if capacity else None
        return advise_failed_run(self.settings, gib)

    def gpu_shared(self, match: re.Match[str]) -> str:
        used = match["used"]
        capacity = match["capacity"]
        if float(used) <= 0.1 * float(capacity):
            return self.out_of_memory(match)
        return (
            f"process {match['pid']} uses {used} of the GPU's {capacity} GiB: end it, or use "
            "another GPU"
        )

    def host_memory(self, match: re.Match[str]) -> str:
        import resource  # not on Windows

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)  # the trainer inherits it
        if limit != resource.RLIM_INFINITY:
            return (
                f"the address space is limited to {format_bytes(limit)}: raise the limit before "
                "the start (`ulimit -v unlimited`)"
            )
        if self.settings.device == Device.cpu:
            return "this process has used up its memory; " + self.out_of_memory(match)
        return (
            "the host's memory is used up (`ulimit -v`, the job's or container's limit): give "
            "the run more of it"
        )

    def missing_package(self, match: re.Match[str]) -> str:
        name = match["name"].removeprefix("Ninja") or "ninja"
        python = self.python or "python"
        for extra, names in known().packages.items():
            if name in names:
                command = f"{python} -m pip install {requirement(extra)}"
                return f'{name} is in the extra "{extra}": {command}'
        command = f"{python} -m pip install ..."
        return f"{POSSIBLY}install the package that provides {name} ({command}); no extra has it"

    def other_version(self, match: re.Match[str]) -> str:
        python = self.python or "python"
        name = match["name"].split(".")[0].replace("_", "-")
        cure = (
            f"compare versions.json with constraints.txt, and {python} -m pip install "
            f"-c constraints.txt {name}"
        )
        if not IN_CLONE:
            cure = f"{python} -m pip install {requirement('train')}"
        return f"the installed {name} is another version than its caller expects: {cure}"

    def repository_name(self, match: re.Match[str]) -> str:
        owner, _, rest = match["repo"].partition("/")
        name = rest.rpartition("/")[2] or rest
        if rest.startswith(f"{owner}/"):
            return f"the namespace '{owner}' is given twice: use only the repository name, '{name}'"
        return (
            f"'{match['repo']}' is treated as a hub repository because no such folder exists: "
            "check the path"
        )

    def disk_full(self, match: re.Match[str]) -> str:
        named = _NAMED_PATH.search(match.string)
        if named is not None and not self._is_launch_path(named["path"]):
            return f"free some space on the disk of {named['path']}"
        if self.runs is None:
            return "free some space, or write to another disk"
        cure = (
            f"free some space where {self.runs} and {self.cache} are, or set runs= and cache= "
            "to another disk"
        )
        return f"{POSSIBLY}{cure}" if named is None else cure

    def _is_launch_path(self, path: str) -> bool:
        """Return whether a path is below the folder of runs or below the cache."""
        folders = [folder for folder in (self.runs, self.cache) if folder is not None]
        return any(path.startswith(f"{folder}/") for folder in folders)

    def stale_cache(self, match: re.Match[str]) -> str:
        path = match["path"]
        folder = path.rpartition("/")[0] if path.endswith(".json") else path
        if self.cache is not None and path.startswith(f"{self.cache}/"):
            return (
                f"a killed run left a half-written tokenised cache: remove {folder} and start again"
            )
        return (
            f"{POSSIBLY}a killed run left {folder} half-written; if it is a cache, remove it "
            "and start again"
        )

    def truncated(self, match: re.Match[str]) -> str:
        where = f", below {self.cache} if it is a cache" if self.cache else ""
        return (
            "the file that the traceback names is truncated, as a killed run leaves it: remove "
            f"it{where}"
        )

    def unknown_flag(self, match: re.Match[str]) -> str:
        trainer = self.trainer or "TRAINER"
        return (
            f"the trainer has no such flag: `launch flags {trainer}` lists its flags, and what "
            "replaced removed ones"
        )

    def no_gpu(self, match: re.Match[str]) -> str:
        if self.settings.device == Device.cpu:
            return "a flag makes the trainer require a GPU: recipe.precision=fp32 needs none"
        return (
            "torch sees no GPU that it can use: `launch check` shows what this machine has "
            "(driver, CUDA_VISIBLE_DEVICES, a torch without CUDA); device=cpu needs none"
        )


_IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError")


@dataclass(frozen=True)
class Cure:
    """What to do against a known cause of failure."""

    id: str  # the id of the known cause
    text: str  # one sentence; an uncertain one begins with "possibly: "


def cure_for_errors(
    chain: Sequence[RaisedError], situation: Situation
) -> tuple[RaisedError, Cure] | None:
    """Return the first exception of a chain (root first) whose cause is known, and its cure.

    A certain cure is preferred to an uncertain one. The cure of an import that failed and was
    handled is uncertain: libraries try imports, and the error in the handler is the cause.
    """
    for is_certain in (True, False):
        for error in chain:
            was_handled_import = error.was_handled and error.type in _IMPORT_ERRORS
            if was_handled_import and is_certain:
                continue
            cure = _find_cure(error, situation, is_certain=is_certain)
            if cure is None and was_handled_import:
                cure = _find_cure(error, situation, is_certain=True)
                if cure is not None:
                    cure = replace(cure, text=_mark_uncertain(cure.text))
            if cure is not None:
                return error, cure
    return None


def _find_cure(error: RaisedError, situation: Situation, *, is_certain: bool) -> Cure | None:
    """Return the cure of the first known cause of an exception, among the causes that are certain
    or not.
    """
    for cause in known().causes:
        if cause.errors is None or cause.certain != is_certain:
            continue
        if not re.fullmatch(cause.errors, error.type):
            continue
        if cause.raised_in and not _passed_through(error, cause.raised_in):
            continue
        match = re.search(cause.pattern, error.message)
        if match:
            return _compute_cure(cause, match, situation)
    return None


def _passed_through(error: RaisedError, pattern: str) -> bool:
    """Return whether the exception passed through code of a package that matches the pattern."""
    return any(re.fullmatch(pattern, package) for package in error.packages)


def cure_for_lines(lines: Sequence[str], situation: Situation) -> Cure | None:
    """Return the cure of the first known cause in the last lines of a process without an
    exception.
    """
    line_causes = [cause for cause in known().causes if cause.errors is None]
    for line in lines:
        for cause in line_causes:
            match = re.search(cause.pattern, line)
            if match:
                return _compute_cure(cause, match, situation)
    return None


def _compute_cure(cause: KnownCause, match: re.Match[str], situation: Situation) -> Cure:
    if cause.cure is not None:
        text = cause.cure.format(**match.groupdict())
    else:
        text = getattr(situation, str(cause.computed))(match)
    return Cure(cause.id, text if cause.certain else _mark_uncertain(text))


def _mark_uncertain(text: str) -> str:
    return f"{POSSIBLY}{text.removeprefix(POSSIBLY)}"
