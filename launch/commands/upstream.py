"""`launch upstream status | diff COMMIT | bump COMMIT`: show the pin, compare another commit with
it, move it.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any

from launch.commands.tool_parsers import build_upstream_parser
from launch.errors import EXIT_DONE, EXIT_REFUSED, UserError, refusal
from launch.host.interpreter import trainer_python
from launch.resources import ROOT
from launch.terminal import echo, notify, print_json
from launch.upstream.pin.bump import apply_move, plan_move, read_gitlink
from launch.upstream.pin.checkout import (
    SUBMODULE,
    Checkout,
    find_checkout,
    missing_checkout_problem,
)
from launch.upstream.pin.compare import FlagChange
from launch.upstream.pin.impact import Impact, TrainerImpact, assess_impact
from launch.upstream.pin.lock import load_lock
from launch.upstream.trainers import OPEN_INSTRUCT
from launch.worker.json_codec import versioned


def upstream(args: list[str]) -> int:
    """Run `launch upstream` and return its exit code. Raises UserError."""
    options = _parse(args)
    checkout = find_checkout(options.upstream, os.environ, ROOT, "--upstream")
    if options.action == "status":
        return _status(checkout, options.json)
    if checkout is None:
        raise UserError(missing_checkout_problem())
    python = trainer_python(options.python)
    impact = assess_impact(checkout.root, options.commit, python, renames=options.rename)
    if options.action == "bump":
        return _bump(checkout, impact, python, options.force)
    if options.json:
        print_json(impact_json(impact), 1)
    else:
        echo("\n".join(describe(impact)))
    return EXIT_DONE


def _parse(args: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments, some of which only some actions take. Raises UserError: those of
    VerbParser.parse.
    """
    parser = build_upstream_parser()
    options = parser.parse(args)
    action = options.action
    if (options.commit is None) != (action == "status"):
        verb = "takes no" if action == "status" else "needs a"
        raise refusal("usage", f"'upstream {action}' {verb} COMMIT", "command line", parser.usage)
    options.rename = dict(_parse_rename(text) for text in options.rename)
    surplus = (
        "--json"
        if options.json and action == "bump"
        else "--force"
        if options.force and action != "bump"
        else ""
    )
    if surplus:
        raise refusal(
            "unknown_option", f"'upstream {action}' has no option {surplus}", "command line"
        )
    return options


def _parse_rename(text: str) -> tuple[str, str]:
    old, equals, new = (part.lstrip("-").replace("-", "_") for part in text.partition("="))
    if not old or not equals:
        message = f"--rename '{text}' must be OLD=NEW, or OLD= for a removed flag"
        raise refusal("bad_value", message, "command line")
    return old, new


def _status(checkout: Checkout | None, as_json: bool) -> int:
    lock = load_lock()
    gitlink = read_gitlink(ROOT)
    if as_json:
        checkout_json = None
        if checkout:
            checkout_json = {
                "dir": str(checkout.root),
                "found_by": checkout.found_by,
                "commit": checkout.commit,
                "differing": checkout.differing,
                "matches_pin": checkout.matches_pin,
            }
        content = {
            "pin": lock.pin,
            "gitlink": gitlink,
            "packages": lock.packages,
            "trainers": list(OPEN_INSTRUCT),
        }
        print_json(versioned({**content, "checkout": checkout_json}), 1)
        return EXIT_DONE
    libraries = ", ".join(f"{name} {version}" for name, version in lock.packages.items())
    agreement = (
        "the pin" if gitlink == lock.pin else "differs from the pin: run `launch upstream bump`"
    )
    echo(f"pin       {lock.pin}")
    echo(
        f"lock      {len(OPEN_INSTRUCT)} trainers, read from {len(lock.files)} files and "
        f"{libraries}"
    )
    echo(
        f"gitlink   {f'{gitlink} ({agreement})' if gitlink else f'unknown: no git index with {SUBMODULE}'}"
    )
    echo(f"checkout  {checkout.describe() if checkout else missing_checkout_problem().message}")
    if checkout is None:
        echo(f"          {missing_checkout_problem().cure}")
    return EXIT_DONE


def impact_json(impact: Impact) -> dict[str, Any]:
    """Return the comparison as JSON: `changes` by trainer, in `unreadable` why a trainer has none,
    and in `unread_help` its new and removed flags that may be a rename, because their help can't be
    read.
    """
    return versioned(
        {
            "pin": load_lock().pin,
            "commit": impact.commit,
            "changes": {
                trainer.trainer: trainer.changes for trainer in impact.trainers if trainer.schema
            },
            "unread_help": {
                trainer.trainer: trainer.unread for trainer in impact.trainers if trainer.unread
            },
            "unreadable": {
                trainer.trainer: trainer.problem for trainer in impact.trainers if trainer.problem
            },
            "breaks": impact.breaks,
        }
    )


def describe(impact: Impact) -> list[str]:
    """Describe the comparison in lines: trainers grouped by equal changes, then what would
    break.
    """
    lines = [f"open-instruct {impact.commit[:9]} compared with the pin {load_lock().pin[:9]}"]
    groups: dict[tuple[str, ...], list[str]] = {}
    for trainer in impact.trainers:
        groups.setdefault(tuple(_change_lines(trainer)), []).append(trainer.trainer)
    for changes, names in groups.items():
        lines += [
            "",
            f"{', '.join(names)}:{'' if changes else ' no change'}",
            *(f"  {change}" for change in changes),
        ]
    if not impact.breaks:
        return [*lines, "", "nothing in this project would break"]
    count = "1 thing" if len(impact.breaks) == 1 else f"{len(impact.breaks)} things"
    return [
        *lines,
        "",
        f"{count} in this project would break:",
        *(f"  {problem}" for problem in impact.breaks),
    ]


def _change_lines(trainer: TrainerImpact) -> list[str]:
    if trainer.problem:
        return [f"! {trainer.problem.message} [{trainer.problem.id}]"]
    lines = [_change_line(change) for change in trainer.changes]
    if trainer.unread:
        lines.append(
            f"? the help of {', '.join(trainer.unread)} can't be read here: one may be a rename of "
            "another"
        )
    return lines


def _change_line(change: FlagChange) -> str:
    if change.kind == "added":
        return f"+ {change.flag}"
    if change.kind == "removed":
        return f"- {change.flag}"
    if change.kind == "renamed":
        types = f" ({change.old} -> {change.new})" if change.old else ""
        return (
            f"> {change.flag} -> "
            f"{change.renamed_to}{types}{' (proposed)' if change.proposed else ''}"
        )
    if change.kind == "required":
        return f"~ {change.flag}: {'now required' if change.new else 'no longer required'}"
    return f"~ {change.flag}: {change.kind} {json.dumps(change.old)} -> {json.dumps(change.new)}"


def _bump(checkout: Checkout, impact: Impact, python: str, force: bool) -> int:
    if read_gitlink(ROOT) is None:
        message = f"no git index with {SUBMODULE} here, so there is no gitlink to move"
        raise refusal("no_gitlink", message, cure="run it in a clone of the project")
    if impact.commit == load_lock().pin == read_gitlink(ROOT):
        echo(f"the pin is already {impact.commit[:9]}")
        return EXIT_DONE
    echo("\n".join(describe(impact)))
    files = plan_move(checkout.root, impact, python)
    if impact.breaks and not force:
        notify("nothing was changed; fix what would break, or pass --force")
        return EXIT_REFUSED
    for step in apply_move(files, impact.commit, ROOT, checkout.root):
        echo(step)
    echo("next: run the tests, then commit the gitlink and launch/upstream/data together")
    return EXIT_DONE
