"""Where lint gets a trainer's schema from: a checkout's source, installed packages; each is read once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from launch.errors import Problem, UserError
from launch.lint.trainers import Trainer
from launch.upstream import FolderTree, PackageTree, Reader, Schema
from launch.upstream.source import GET_SUBMODULE, is_checkout

MAX_PARENTS = 4
_BELOW = ("open-instruct", "external/open-instruct")


class Schemas:
    """The schemas by trainer. `checkout` is open-instruct's root, None without one; `locked` stands in for it.

    `packages` are the folders where TRL and transformers are looked up.
    """

    def __init__(
        self, checkout: Path | None, packages: Sequence[Path], locked: Mapping[str, Schema] | None = None
    ) -> None:
        self.checkout = checkout
        self._packages = PackageTree(packages)
        self._open_instruct = None if checkout is None else Reader(FolderTree(checkout), self._packages)
        self._trl: Reader | None = None
        self._locked = locked or {}
        self._read: dict[str, Schema | UserError] = {}

    def schema(self, trainer: Trainer) -> Schema:
        """What the trainer accepts. Raises UserError when that can't be read: it is unknown then, not absent."""
        if trainer.name not in self._read:
            try:
                self._read[trainer.name] = self._schema(trainer)
            except UserError as error:
                self._read[trainer.name] = error
        found = self._read[trainer.name]
        if isinstance(found, UserError):
            raise found
        return found

    def flags(self, trainer: Trainer) -> frozenset[str]:
        """The names of the trainer's flags; none where they can't be read."""
        try:
            return frozenset(self.schema(trainer).fields)
        except UserError:
            return frozenset()

    def source(self, path: str) -> str | None:
        """The text of a file of the checkout, where there is one."""
        if self.checkout is None:
            return None
        try:
            return (self.checkout / path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None

    def _schema(self, trainer: Trainer) -> Schema:
        if trainer.is_trl:
            if self._trl is None:
                self._trl = Reader(self._packages)
            return self._trl.schema(trainer.script)
        if self._open_instruct is not None:
            return self._open_instruct.schema(trainer.script)
        if trainer.name in self._locked:
            return self._locked[trainer.name]
        message = f"there is no open-instruct checkout here, so the flags of {trainer.script} can't be read"
        raise UserError(
            Problem("no_upstream", message, cure=f"get it with: {GET_SUBMODULE}, or name one: --upstream DIR")
        )


SchemaOf = Callable[[Trainer], Schema]


def checkout_around(folder: Path) -> Path:
    """The root of the checkout that a person means: the folder, one above it, or one in the usual place below it.

    Raises UserError (`not_open_instruct`) when there is none.
    """
    folder = folder.expanduser()
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise UserError(Problem("not_open_instruct", f"--upstream {folder} {what}", cure=_CURE))
    absolute = folder.absolute()
    places = [absolute, *list(absolute.parents)[:MAX_PARENTS], *(absolute / below for below in _BELOW)]
    for place in places:
        if is_checkout(place):
            return place
    message = f"--upstream {folder} is not an open-instruct checkout: it has no open_instruct/utils.py beside a trainer"
    raise UserError(Problem("not_open_instruct", message, cure=_CURE))


_CURE = f"name the folder that holds open_instruct/, or get the pinned one with: {GET_SUBMODULE}"
