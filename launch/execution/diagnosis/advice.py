"""What to do against each known cause of failure (known.yaml), computed from the plan where
possible.

The class and the message of an exception, and where it was raised, lead to what to change; for a
process that died without one, the line that says so. A cure that other causes would need too says
"possibly".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launch.config.schema import Device, Mode
from launch.execution.diagnosis.known import KnownCause, known
from launch.execution.diagnosis.tracebacks import RaisedError
from launch.planning.estimate.forecast import NEXT_MODE, UNCERTAINTY, remedy_for
from launch.planning.estimate.memory import estimate_memory
from launch.planning.estimate.setting import MemorySetting
from launch.planning.lengths import load_lengths
from launch.planning.parallel import Batch, divisors
from launch.resources import IN_CLONE, requirement

POSSIBLY = "possibly: "  # begins the text of an uncertain cure
_NAMED_PATH = re.compile(
    r"(?:No space left on device|Disk quota exceeded)[^'\"]{0,20}['\"](?P<path>/[^'\"]+)['\"]"
)
_CAPACITY = re.compile(r"total capacity of (?P<gib>[\d.]+) GiB")


@dataclass(frozen=True)
class Situation:
    """The plan's settings that a cure may change, and the cures that are computed from them.

    A setting is None if it is unknown (the command was not planned here). `plans`: whether the
    run's line still plans with other overrides, which are advised only then.
    """

    trainer: str = ""
    batch: Batch | None = None
    mode: Mode | None = None
    device: Device | None = None
    gradient_checkpointing: bool = False
    max_seq_length: int | None = None
    memory: MemorySetting | None = None  # with all samples at the maximum length
    lengths: Path | None = None  # of the tokenised samples; the trainer writes it
    runs: Path | None = None
    cache: Path | None = None
    python: str | None = None
    plans: Callable[[str], bool] = bool

    def out_of_memory(self, match: re.Match[str]) -> str:
        batch = self.batch
        if batch is None:
            return "set a smaller per-device batch size, and more gradient accumulation instead"
        if predicted := self._predict_remedy(match.string):
            return predicted
        smaller = [
            size for size in divisors(batch.global_ // batch.width) if size < batch.per_device
        ]
        override = f"recipe.per_device_batch_size={smaller[-1]}" if smaller else ""
        if smaller and self.plans(override):
            accumulation = batch.global_ // (batch.width * smaller[-1])
            return (
                f"set {override}: the same global batch of {batch.global_}, with "
                f"{accumulation} accumulation steps instead of {batch.accumulation}"
            )
        options = []
        if not self.gradient_checkpointing:
            options.append("recipe.gradient_checkpointing=true")
        next_mode = NEXT_MODE.get(self.mode) if self.mode and batch.width > 1 else None
        if next_mode:
            options.append(f"parallel={next_mode}")
        wider = batch.global_ % (batch.width * 2) == 0
        if self.device == Device.cuda and wider:
            options.append(f"gpus={batch.width * 2}")
        options = [*filter(self.plans, options)]
        if self.device == Device.cuda and not wider:
            options.append("more GPUs")
        if self.max_seq_length:
            options.append(
                f"recipe.max_seq_length={self.max_seq_length // 2} (shorter samples change the "
                "training)"
            )
        choice = ", or ".join(options)
        return (
            f"the per-device batch size can't be smaller; set {choice}; the global batch stays "
            "the same"
        )

    def _predict_remedy(self, message: str) -> str | None:
        """Return the first setting predicted to fit the GPU whose size torch's message gives."""
        capacity_match = _CAPACITY.search(message)
        if capacity_match is None or self.memory is None:
            return None
        capacity = float(capacity_match["gib"])
        room = capacity / (1 + UNCERTAINTY)
        lengths = load_lengths(self.lengths)
        remedies = (
            remedy_for(self.memory, room, liger=liger, lengths=lengths) for liger in (False, True)
        )
        remedy = next(filter(None, remedies), None)
        if (
            remedy is None
            or remedy.gib >= estimate_memory(self.memory).total
            or not self.plans(str(remedy))
        ):
            return None
        rows = "the data's longest micro batch" if lengths else "all samples at the maximum length"
        return (
            f"set {remedy}: the same global batch, predicted to take {remedy.gib:.0f} of "
            f"{capacity:.0f} GiB with {rows}"
        )

    def gpu_shared(self, match: re.Match[str]) -> str:
        pid, used, capacity = match["pid"], match["used"], match["capacity"]
        text = f"process {pid} uses {used} of the GPU's {capacity} GiB: end it, or use another GPU"
        return text if float(used) > 0.1 * float(capacity) else self.out_of_memory(match)

    def host_memory(self, match: re.Match[str]) -> str:
        if self.device == Device.cpu:
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
                return (
                    f'{name} is in the extra "{extra}": {python} -m pip install '
                    f"{requirement(extra)}"
                )
        return (
            f"{POSSIBLY}install the package that provides {name} ({python} -m pip install "
            "...); "
            "no extra has it"
        )

    def other_version(self, match: re.Match[str]) -> str:
        python = self.python or "python"
        name = match["name"].split(".")[0].replace("_", "-")
        known_to_work = (
            f"compare versions.json with constraints.txt, and {python} -m pip install "
            f"-c constraints.txt {name}"
        )
        if not IN_CLONE:
            known_to_work = f"{python} -m pip install {requirement('train')}"
        return f"the installed {name} is another version than its caller expects: {known_to_work}"

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
        folders = [folder for folder in (self.runs, self.cache) if folder is not None]
        is_own = named is not None and any(
            named["path"].startswith(f"{folder}/") for folder in folders
        )
        if named is not None and not is_own:
            return f"free some space on the disk of {named['path']}"
        if self.runs is None:
            return "free some space, or write to another disk"
        where = (
            f"free some space where {self.runs} and {self.cache} are, or set runs= and cache= "
            "to another disk"
        )
        return where if is_own else f"{POSSIBLY}{where}"

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
        if self.device == Device.cpu:
            return "a flag makes the trainer require a GPU: recipe.precision=fp32 needs none"
        return (
            "torch sees no GPU that it can use: `launch check` shows what this machine has "
            "(driver, "
            "CUDA_VISIBLE_DEVICES, a torch without CUDA); device=cpu needs none"
        )


_IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError")


@dataclass(frozen=True)
class Cure:
    """What to do against a known cause of failure."""

    id: str  # of the known cause
    text: str  # one sentence; an uncertain one begins with "possibly: "


def cure_for_errors(
    chain: Sequence[RaisedError], situation: Situation
) -> tuple[RaisedError, Cure] | None:
    """Return the cure of the first known cause in a chain of exceptions, root first, and its
    exception.

    A certain cure goes before an uncertain one. That of a failed import which was handled is
    uncertain: libraries try imports, and what fails in the handler is the cause.
    """
    for is_certain in (True, False):
        for error in chain:
            is_doubted = error.was_handled and error.type in _IMPORT_ERRORS
            if is_doubted and is_certain:
                continue
            if cure := _find_cure(error, situation, is_certain=is_certain):
                return error, cure
            if is_doubted and (cure := _find_cure(error, situation, is_certain=True)):
                return error, replace(cure, text=f"{POSSIBLY}{cure.text.removeprefix(POSSIBLY)}")
    return None


def _find_cure(error: RaisedError, situation: Situation, *, is_certain: bool) -> Cure | None:
    for cause in known().causes:
        if (
            cause.errors is None
            or cause.certain != is_certain
            or not re.fullmatch(cause.errors, error.type)
        ):
            continue
        if cause.raised_in and not any(
            re.fullmatch(cause.raised_in, package) for package in error.packages
        ):
            continue
        if match := re.search(cause.pattern, error.message):
            return _compute_cure(cause, match, situation)
    return None


def cure_for_lines(lines: Sequence[str], situation: Situation) -> Cure | None:
    """Return the cure of the first known cause in what a process without an exception printed
    last.
    """
    for line in lines:
        for cause in known().causes:
            if cause.errors is None and (match := re.search(cause.pattern, line)):
                return _compute_cure(cause, match, situation)
    return None


def _compute_cure(cause: KnownCause, match: re.Match[str], situation: Situation) -> Cure:
    if cause.cure is not None:
        text = cause.cure.format(**match.groupdict())
    else:
        text = getattr(situation, str(cause.computed))(match)
    is_marked = cause.certain or text.startswith(POSSIBLY)
    return Cure(cause.id, text if is_marked else f"{POSSIBLY}{text}")
