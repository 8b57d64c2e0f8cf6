"""The command line of the maintainers' tools: `python -m maintain diff|bump|history|relock`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_REFUSED, UserError, refusal
from launch.external import configure_logging
from launch.host.interpreter import trainer_python
from launch.resources import ROOT
from launch.terminal import echo, notify, print_json
from launch.upstream.pin.checkout import SUBMODULE, find_checkout, missing_checkout_problem
from launch.upstream.pin.gitlink import read_gitlink
from launch.upstream.pin.lock import load_lock
from launch.upstream.trainers import ENTRIES
from maintain.bump import apply_move, plan_move
from maintain.commit import find_commit
from maintain.history import describe_history
from maintain.impact import Impact, assess_impact
from maintain.relock import relock
from maintain.report import describe_impact, impact_json


def main(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code (see launch.errors)."""
    options = build_parser().parse_args(argv)
    configure_logging(os.environ)
    try:
        return _run(options)
    except UserError as error:
        for problem in error.problems:
            notify(str(problem))
        return EXIT_REFUSED
    except KeyboardInterrupt:
        notify("interrupted")
        return EXIT_INTERRUPTED


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line, whose help is that of the tools."""
    parser = argparse.ArgumentParser(
        prog="python -m maintain",
        description="Tools for the pinned open-instruct. They run in a clone of the project, and "
        "docs/how-to/move-the-pin.md explains them.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    diff = commands.add_parser(
        "diff",
        help="show what another commit changes for each trainer, and what would break here",
        description="Show what another commit of open-instruct changes for each trainer, and what "
        "would break in this project. The commit is read from git, and not checked out.",
    )
    _add_comparison(diff)
    diff.add_argument("--json", action="store_true", help="print one object")

    bump = commands.add_parser(
        "bump",
        help="move the pin to a commit: gitlink, lock and ledger, or nothing at all",
        description="Move the pin to a commit of open-instruct: gitlink, lock and ledger, unless "
        "anything would break. A rename that only the similarity of two flags suggests is "
        "proposed, and a person confirms it with --rename.",
    )
    _add_comparison(bump)
    bump.add_argument(
        "--force", action="store_true", help="move the pin even if something would break"
    )

    history = commands.add_parser(
        "history",
        help="one page about the commits of the last months: what each would break",
        description="Print a page in Markdown about each commit of open-instruct that changes its "
        "package: the flags that differ from the pin's, what would break in this project, and how "
        "many of its own scripts the commit's parsers refuse. A commit takes about a minute; one "
        "whose parsers have been read before takes seconds, so that a page that was interrupted goes "
        "on where it stopped.",
    )
    since = "as git takes it (default: three months before the newest commit)"
    history.add_argument("--since", metavar="DATE", help=since)
    history.add_argument("--tip", metavar="COMMIT", default="origin/main", help="the newest commit")
    _add_places(history)

    relock_parser = commands.add_parser(
        "relock",
        help="rewrite the lock of the pin, for the packages that are installed now",
        description="Rewrite the lock of the pin: the trainers' schemas, the configuration keys of "
        "DeepSpeed and accelerate, and the digests of TRL's chat templates.",
    )
    relock_parser.add_argument(
        "--only", choices=ENTRIES, metavar="TRAINER", help="add a trainer, leave the rest as it is"
    )
    _add_places(relock_parser)
    return parser


def _add_comparison(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a command that compares a commit with the lock."""
    parser.add_argument("commit", metavar="COMMIT", help="a commit, branch or tag of the clone")
    parser.add_argument(
        "--rename",
        metavar="OLD=NEW",
        action="append",
        default=[],
        help="OLD was renamed to NEW, or removed if NEW is empty; can be repeated",
    )
    _add_places(parser)


def _add_places(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name the clone of open-instruct and the interpreter."""
    parser.add_argument(
        "--upstream",
        metavar="DIR",
        help="the clone of open-instruct, with its history (default: the one that runs use)",
    )
    parser.add_argument(
        "--python",
        metavar="PYTHON",
        help="the trainers' interpreter, which starts their scripts up to their parsers (default: "
        "this one)",
    )


def _run(options: argparse.Namespace) -> int:
    """Run the command that was chosen. Raises UserError."""
    checkout = find_checkout(options.upstream, os.environ, ROOT, "--upstream")
    if checkout is None:
        raise UserError(missing_checkout_problem())
    python = trainer_python(options.python)
    if options.command == "relock":
        return _relock(checkout.root, python, options.only)
    if options.command == "history":
        for line in describe_history(checkout.root, options.since, options.tip, python):
            echo(line)
        return EXIT_DONE
    renames = dict(_parse_rename(text) for text in options.rename)
    if options.command == "bump" and _is_pinned(find_commit(checkout.root, options.commit).id):
        echo(f"the pin is already {load_lock().pin[:9]}")
        return EXIT_DONE
    impact = assess_impact(checkout.root, options.commit, python, renames=renames)
    if options.command == "bump":
        return _bump(checkout.root, impact, python, options.force)
    if options.json:
        print_json(impact_json(impact), 1)
    else:
        echo("\n".join(describe_impact(impact)))
    return EXIT_DONE


def _is_pinned(commit: str) -> bool:
    """Return whether lock and gitlink are at the commit. Raises UserError: no_gitlink."""
    gitlink = read_gitlink(ROOT)
    if gitlink is None:
        message = f"no git index with {SUBMODULE} here, so there is no gitlink to move"
        raise refusal("no_gitlink", message, cure="run it in a clone of the project")
    return commit == load_lock().pin == gitlink


def _parse_rename(text: str) -> tuple[str, str]:
    """Read `OLD=NEW`, each written as a flag or as a name. Raises UserError: bad_value."""
    old, equals, new = (part.lstrip("-").replace("-", "_") for part in text.partition("="))
    if not old or not equals:
        message = f"--rename '{text}' must be OLD=NEW, or OLD= for a removed flag"
        raise refusal("bad_value", message, "command line")
    return old, new


def _bump(checkout: Path, impact: Impact, python: str, force: bool) -> int:
    """Move the pin to the commit of `impact`. Raises UserError: those of plan_move and apply_move."""
    echo("\n".join(describe_impact(impact)))
    files = plan_move(checkout, impact, python)
    if impact.breaks and not force:
        notify("nothing was changed; fix what would break, or pass --force")
        return EXIT_REFUSED
    for step in apply_move(files, impact.commit, ROOT, checkout):
        echo(step)
    echo("next: run the tests, then commit the gitlink and launch/upstream/data together")
    return EXIT_DONE


def _relock(checkout: Path, python: str, only: str | None) -> int:
    """Rewrite the lock, or add the trainer `only` to it. Raises UserError: those of relock."""
    for line in relock(checkout, python, only):
        echo(line)
    return EXIT_DONE


if __name__ == "__main__":
    # an ended bump puts back what it wrote, as an interrupted one does
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise SystemExit(main(sys.argv[1:]))
