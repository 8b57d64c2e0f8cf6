"""The trainers' schemas: read once from a checkout, from installed packages or from the lock."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch.check.lint.trainer_commands import TrainerScript
from launch.errors import UserError, refusal
from launch.upstream.pin.checkout import SUBMODULE, Checkout, fetch_command, is_checkout
from launch.upstream.resolve import resolve_schema
from launch.upstream.schema import Field, Schema
from launch.upstream.trainers import ENTRIES

MAX_PARENTS = 4
_SUBFOLDERS = ("open-instruct", "external/open-instruct")


class TrainerSchemas:
    """Schemas by trainer, cached.

    `checkout` is open-instruct's; without one the lock is used. `packages` are the site-packages
    folders of this interpreter. With `may_capture`, scripts that the lock lacks, or that differ
    from it, are started up to their parser. `known` are schemas by trainer that are taken as they
    are.
    """

    def __init__(
        self,
        checkout: Checkout | None,
        packages: Sequence[Path],
        may_capture: bool = False,
        known: Mapping[str, Schema] | None = None,
    ) -> None:
        self.checkout = checkout
        self._may_capture = may_capture
        # How the installed trainers differ from the lock, which is used nevertheless.
        self.differences: dict[str, None] = {}
        self.packages = tuple(packages)
        self._cache: dict[str, Schema | UserError] = {**(known or {})}

    def load(self, trainer: TrainerScript) -> Schema:
        """Return what the trainer accepts.

        Raises UserError if it cannot be read: it is then unknown, not empty.
        """
        if trainer.name not in self._cache:
            try:
                self._cache[trainer.name] = self._read_schema(trainer)
            except UserError as error:
                self._cache[trainer.name] = error
        cached = self._cache[trainer.name]
        if isinstance(cached, UserError):
            raise cached
        return cached

    def fields(self, trainer: TrainerScript) -> Mapping[str, Field]:
        """Return the trainer's flags by their names; none if they cannot be read."""
        try:
            return self.load(trainer).fields
        except UserError:
            return {}

    def _read_schema(self, trainer: TrainerScript) -> Schema:
        if trainer.name in ENTRIES:
            resolved = resolve_schema(
                trainer.name,
                self.checkout,
                self.packages,
                sys.executable,
                may_capture=self._may_capture,
            )
            if resolved.difference:
                cure = "--upstream DIR, without --from-lock, asks the parser of DIR"
                advice = resolved.advice(cure)
                self.differences[f"{resolved.difference}; {advice}"] = None
            return resolved.schema
        root = None if trainer.is_trl or self.checkout is None else self.checkout.root
        is_missing = root is not None and not (root / trainer.script).is_file()
        if is_missing or (self._may_capture and (trainer.is_trl or root)):
            from launch.upstream.capture.start import capture_schema  # slow to import

            return capture_schema(trainer.script, root, sys.executable)
        message = f"the flags of {trainer.script} are not in the lock"
        if self.checkout is not None and self.checkout.found_by == SUBMODULE:
            cure = f"name the checkout to ask its parser: --upstream {self.checkout.root}"
        elif self.checkout is not None or trainer.is_trl:
            cure = "leave out --from-lock to ask its parser"
        else:
            message += ", and no open-instruct checkout was found"
            cure = f"get the checkout: {fetch_command()}, or point to one with --upstream DIR"
        raise refusal("no_upstream", message, cure=cure)


def locate_checkout(folder: Path) -> Path:
    """Return the root of the checkout that `--upstream` refers to.

    It is the folder, a parent, or a usual place below it; the folder itself if none is a checkout.
    """
    absolute = folder.expanduser().absolute()
    if not absolute.is_dir():
        return absolute
    parents = absolute.parents[:MAX_PARENTS]
    subfolders = [absolute / subfolder for subfolder in _SUBFOLDERS]
    for candidate in (absolute, *parents, *subfolders):
        if is_checkout(candidate):
            return candidate
    return absolute
