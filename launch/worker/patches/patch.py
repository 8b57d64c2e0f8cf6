"""Defines a patch, and installs it: it is checked against upstream's code, applied and reported."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..channel import EventWriter
from ..moves import path_at_pin
from ..trainer import TrainerProgram

# The versions of the packages whose lines the patches name. Lines of open-instruct are those at its
# pin, e6c3044a.
VERSIONS = {
    "accelerate": "1.15.0",
    "datasets": "5.2.0",
    "deepspeed": "0.19.8",
    "olmo_core": "3.0.0",
    "transformers": "5.23.0",
}
# {file: {line, or first and last line: its text}}
UpstreamLines = Mapping[str, Mapping[int | tuple[int, int], str]]


@dataclass(frozen=True)
class UpstreamSource:
    """A place in upstream's code that a patch relies on."""

    file: str  # relative to the folder that contains the package: "open_instruct/finetune.py"
    text: str  # must occur in the file, ignoring white space
    first: int  # its first line, at open-instruct's pin or in `version` of the package
    last: int  # its last line

    @property
    def version(self) -> str | None:
        """The version of the package; None for open-instruct."""
        return VERSIONS.get(self.file.partition("/")[0])

    def __str__(self) -> str:
        lines = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        version = f" ({self.file.partition('/')[0]} {self.version})" if self.version else ""
        return f"{self.file}:{lines}{version}"

    def find(self, trainer: TrainerProgram) -> Path | None:
        """Return the file that this process would import or run; nothing is imported.

        None is returned if the package is missing.
        """
        package, _, rest = path_at_pin(self.file).partition("/")
        if trainer.script is not None:
            script = Path(trainer.script)
            if script.name == rest and script.resolve().parent.name == package:
                return script
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        for folder in spec.submodule_search_locations or ():
            file = Path(folder) / rest
            if file.is_file():
                return file
        return None

    def matches(self, code: str) -> bool:
        """Return whether `text` occurs in `code`, ignoring white space."""
        return "".join(self.text.split()) in "".join(code.split())


@dataclass(frozen=True)
class PatchContext:
    """What a patch may use."""

    trainer: TrainerProgram  # about to run
    events: EventWriter
    value: str | None = None  # the patch's VALUE on the command line
    # The keys are those of STATE and EVIDENCE (expectations.py).
    requested: Mapping[str, str] = field(default_factory=dict)
    allowed: frozenset[str] = frozenset()  # ids of unmet expectations that only warn


class PatchError(RuntimeError):
    """A patch does not fit the code that it was written for; the rank must not continue."""

    def __init__(self, patch: str, message: str) -> None:
        self.patch = patch
        super().__init__(f"patch {patch}: {message}")


def always(_: PatchContext) -> str | None:
    """The condition of a patch that every machine needs."""
    return None


@dataclass(frozen=True)
class PatchInfo:
    """A patch. Everything but `apply` and `not_needed` works without the trainer's packages."""

    id: str
    reason: str  # one line of `plan`: what it changes in upstream's code, and why
    lines: UpstreamLines  # the lines that it relies on
    apply: Callable[[PatchContext], None]
    # The function returns why the patch is not needed, or None if it is.
    not_needed: Callable[[PatchContext], str | None] = always
    takes_value: bool = False

    @property
    def sources(self) -> tuple[UpstreamSource, ...]:
        """The upstream places that it relies on."""
        sources = []
        for file, texts in self.lines.items():
            for lines, text in texts.items():
                first, last = lines if isinstance(lines, tuple) else (lines, lines)
                sources.append(UpstreamSource(file, text, first, last))
        return tuple(sources)

    @property
    def upstream(self) -> tuple[str, ...]:
        """Its sources as "file:line" or "file:first-last", with the version of a library."""
        return tuple(str(source) for source in self.sources)

    def check(self, trainer: TrainerProgram) -> None:
        """Raise PatchError if a source that it relies on is missing or has changed."""
        for source in self.sources:
            path = source.find(trainer)
            if path is None:
                raise PatchError(self.id, f"{source} was not found, so there is nothing to patch")
            if not source.matches(path.read_text(encoding="utf-8")):
                raise PatchError(
                    self.id,
                    f"{source} has changed: `{source.text}` is no longer in {path}; the patch must "
                    "be reviewed",
                )


def install(patch: PatchInfo, context: PatchContext) -> None:
    """Apply `patch` if this process needs it, and emit a "patch" event either way.

    Raises PatchError if the code is not the code that the patch was written for.
    """
    why_not_needed = patch.not_needed(context)
    if why_not_needed is None:
        patch.check(context.trainer)
        try:
            patch.apply(context)
        except (AttributeError, ImportError) as error:
            raise PatchError(patch.id, f"can't be applied: {error}") from error
    context.events.emit(
        "patch",
        id=patch.id,
        upstream=list(patch.upstream),
        applied=why_not_needed is None,
        why=why_not_needed or patch.reason,
    )
