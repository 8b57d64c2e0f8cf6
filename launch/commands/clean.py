"""`clean [RUN]`: list folders that take disk space and can be removed; remove them after a yes."""

from __future__ import annotations

import sys

from launch.api.cleaning import Cleaning, find_removable, remove
from launch.commands.run_parsers import build_clean_parser
from launch.errors import EXIT_DONE
from launch.table import format_bytes
from launch.terminal import echo, print_json
from launch.worker.json_codec import versioned
from launch.worker.wording import count_of


def clean(argv: list[str]) -> int:
    """Print the removable folders with their size; remove them after a yes at the terminal or --yes.

    Raises UserError: unknown_run, ambiguous_run; those of VerbParser.parse.
    """
    options = build_clean_parser().parse(argv)
    found = find_removable(options.runs, options.name)
    if options.json:
        print_json(versioned(remove(found) if options.yes else found))
        return EXIT_DONE
    for line in found.lines():
        echo(line)
    if not found.removable:
        echo(f"nothing can go in {found.runs}")
        return EXIT_DONE
    count = len(found.removable)
    total = f"{count_of(count, 'folder')}, {format_bytes(found.size)}"
    if not (options.yes or _is_confirmed(total)):
        echo(f"nothing was removed; `launch clean --yes` removes what is listed ({total})")
        return EXIT_DONE
    _report(found, remove(found))
    return EXIT_DONE


def _is_confirmed(total: str) -> bool:
    """Ask whether to remove what was listed; return False without a terminal."""
    if not sys.stdin.isatty():
        return False
    try:
        answer = input(f"remove {total}? Type yes: ")
    except EOFError:
        return False
    return answer.strip() == "yes"


def _report(found: Cleaning, cleaned: Cleaning) -> None:
    """Print how much was removed, and which folders were kept after all."""
    for path, reason in cleaned.kept[len(found.kept) :]:
        echo(f"kept: {path}: {reason}")
    freed = sum(item.size for item in cleaned.removable if item.path in cleaned.removed)
    echo(f"removed {len(cleaned.removed)} of {len(found.removable)}, {format_bytes(freed)}")
