"""The trainer of this process: its command line, its unmodified script, and its errors."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .moves import known_name

_MOST_ERRORS = 4  # exceptions of a chain that are sent: the root, and the outermost ones
_MOST_PACKAGES = 6  # packages that are sent of each exception
_MESSAGE_BYTES = 600  # of each message, as JSON: one event has all of them


@dataclass(frozen=True)
class TrainerProgram:
    """The trainer to run, and its command-line arguments."""

    script: str | None  # a path; None for launch's own entry
    module: str | None  # the module whose flags launch's own entry takes; None for a script
    flags: tuple[str, ...]
    template_file: str | None = None  # the chat template that a patch or an option sets

    @property
    def script_name(self) -> str:
        """The name by which this project knows the script, also where upstream has moved it."""
        return known_name(Path(self.script or "").name)

    def flag(self, name: str) -> str | None:
        """Return the value of `--name VALUE` or `--name=VALUE`; None without the flag.

        Dashes equal underscores, and the last of several flags wins.
        """
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", nargs="?", dest="value")
        value: str | None = parser.parse_known_args(self.flags)[0].value
        return value


def prepare(trainer: TrainerProgram) -> None:
    """Set `sys.argv` and `sys.path` as `python SCRIPT` would.

    Call it before the patches, which must import the same modules as the trainer.
    """
    is_safe_path = getattr(sys.flags, "safe_path", False)  # Python 3.11: -P or PYTHONSAFEPATH
    if trainer.script is not None:
        script = Path(trainer.script).absolute()
        sys.argv = [str(script), *trainer.flags]
        if not is_safe_path:
            sys.path.insert(0, str(script.resolve().parent))
    else:
        sys.argv = [str(trainer.module), *trainer.flags]


def run_script(trainer: TrainerProgram) -> None:
    """Run an unmodified script to its end. Its exceptions, including SystemExit, propagate."""
    runpy.run_path(sys.argv[0], run_name="__main__")


def error_location(error: BaseException) -> Sequence[str]:
    """Return up to three innermost frames of `error`, innermost first.

    A frame is given as "file:line in function".
    """
    innermost = list(traceback.walk_tb(error.__traceback__))[:-4:-1]
    places = []
    for frame, line in innermost:
        code = frame.f_code
        places.append(f"{code.co_filename}:{line} in {code.co_name}")
    return places


def error_chain(error: BaseException) -> list[dict[str, Any]]:
    """Return `error` and the exceptions that led to it, the root first.

    Each has its type and message, whether it was being handled when the next one was raised, and
    the packages whose code it passed through. Of a long chain the root and the outermost exceptions
    are returned.
    """
    chain = _find_chain(error)
    if len(chain) > _MOST_ERRORS:
        chain = [chain[0], *chain[1 - _MOST_ERRORS :]]
    return [
        {
            "type": type(item).__name__,
            "message": shorten_for_json(str(item), _MESSAGE_BYTES),
            "was_handled": was_handled,
            "packages": _packages(item)[:_MOST_PACKAGES],
        }
        for item, was_handled in chain
    ]


def _find_chain(error: BaseException) -> list[tuple[BaseException, bool]]:
    """Return the exceptions that Python prints, the root first, and whether each was handled.

    The predecessor of an exception is its `__cause__`, else its `__context__` unless that is
    suppressed.
    """
    chain: list[tuple[BaseException, bool]] = []
    current: BaseException | None = error
    was_handled = False
    while current is not None and not any(item is current for item, _ in chain):
        # A RemoteTraceback of multiprocessing is the text of the same error's traceback.
        if type(current).__name__ != "RemoteTraceback":
            chain.insert(0, (current, was_handled))
        was_handled = current.__cause__ is None
        if current.__cause__ is not None:
            current = current.__cause__
        else:
            current = None if current.__suppress_context__ else current.__context__
    return chain


def _packages(error: BaseException) -> list[str]:
    """Return the top-level packages of the code that an exception passed through.

    The innermost package comes first.
    """
    packages = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__"))
        packages.append(module.partition(".")[0])
    return list(dict.fromkeys(reversed(packages)))


def shorten_for_json(text: str, limit: int) -> str:
    """Cut the middle out of `text` until its JSON has at most `limit` bytes."""
    kept = len(text)
    while len(json.dumps(text)) > limit:
        kept = kept * 4 // 5
        text = f"{text[: kept * 2 // 3]} ... {text[-(kept // 3) :]}"
    return text
