"""`launch upstream`: show the pin, and whether the checkout and the gitlink match it.

The tools that compare another commit with the pin, and that move it, are the maintainers'
(`python -m maintain`). They are in a clone of the project, and not in the wheel.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from launch.commands.tool_parsers import build_upstream_parser
from launch.errors import EXIT_DONE, UserError, refusal
from launch.resources import IN_CLONE, ROOT
from launch.terminal import echo, print_json
from launch.upstream.pin.checkout import (
    SUBMODULE,
    Checkout,
    find_checkout,
    missing_checkout_problem,
)
from launch.upstream.pin.gitlink import read_gitlink
from launch.upstream.pin.lock import Lock, load_lock
from launch.upstream.trainers import OPEN_INSTRUCT
from launch.worker.json_codec import versioned

_MAINTAINERS = ("diff", "bump")  # commands of `python -m maintain`


def upstream(args: list[str]) -> int:
    """Run `launch upstream` and return its exit code.

    Raises UserError: maintainers_command, not_open_instruct; those of VerbParser.parse.
    """
    if args and args[0] in _MAINTAINERS:
        raise _maintainers_command(args)
    options = build_upstream_parser().parse(args)
    checkout = find_checkout(options.upstream, os.environ, ROOT, "--upstream")
    lock = load_lock()
    gitlink = read_gitlink(ROOT)
    if options.json:
        _print_status_json(lock, gitlink, checkout)
    else:
        _print_status(lock, gitlink, checkout)
    return EXIT_DONE


def _maintainers_command(args: Sequence[str]) -> UserError:
    """Return the refusal of a command that the maintainers' tools have."""
    tool = args[0]
    message = f"'upstream {tool}' is a tool of the maintainers, and not a command of launch"
    command = shlex.join(["python", "-m", "maintain", *args])
    cure = f"run `{command}` in a clone of the project: the wheel does not have it"
    if IN_CLONE:
        cure = f"run `{command}` in this clone, {ROOT}"
    return refusal("maintainers_command", message, "command line", cure)


def _print_status_json(lock: Lock, gitlink: str | None, checkout: Checkout | None) -> None:
    content: dict[str, object] = {
        "pin": lock.pin,
        "gitlink": gitlink,
        "packages": lock.packages,
        "trainers": list(OPEN_INSTRUCT),
        "checkout": None,
    }
    if checkout:
        content["checkout"] = {
            "dir": checkout.root,
            "found_by": checkout.found_by,
            "commit": checkout.commit,
            "differing": checkout.differing,
            "matches_pin": checkout.matches_pin,
        }
    print_json(versioned(content), 1)


def _print_status(lock: Lock, gitlink: str | None, checkout: Checkout | None) -> None:
    libraries = ", ".join(f"{name} {version}" for name, version in lock.packages.items())
    sources = f"read from {len(lock.files)} files and {libraries}"
    echo(f"pin       {lock.pin}")
    echo(f"lock      {len(OPEN_INSTRUCT)} trainers, {sources}")
    echo(f"gitlink   {_describe_gitlink(gitlink, lock.pin)}")
    if checkout:
        echo(f"checkout  {checkout.describe()}")
    else:
        missing = missing_checkout_problem()
        echo(f"checkout  {missing.message}")
        echo(f"          {missing.cure}")
    place = "this clone" if IN_CLONE else "a clone of the project"
    echo(f"tools     to compare or move the pin: `python -m maintain --help` in {place}")


def _describe_gitlink(gitlink: str | None, pin: str) -> str:
    if gitlink is None:
        return f"unknown: no git index with {SUBMODULE}"
    if gitlink == pin:
        return f"{gitlink} (the pin)"
    return f"{gitlink} (differs from the pin: run `python -m maintain bump {gitlink[:9]}`)"
