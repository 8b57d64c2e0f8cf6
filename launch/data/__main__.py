"""Prints the rows of a data file as JSON lines, whatever its format: `python -m launch.data FILE`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from launch.data.padding import Padding
from launch.data.rows import read_rows
from launch.errors import UserError
from launch.terminal import echo
from launch.worker.finding import Finding


def main(arguments: list[str]) -> int:
    """Print each row without padded keys; return the exit code."""
    if len(arguments) != 1:
        echo("usage: python -m launch.data FILE", file=sys.stderr)
        return 2
    padding = Padding()
    try:
        for row in read_rows(Path(arguments[0])):
            value = row.value
            if isinstance(value, Finding):
                raise UserError(value)
            if isinstance(value, dict):
                value = padding.remove(value, row.padded, row.place)
            print(json.dumps(value, ensure_ascii=False))
    except UserError as error:
        echo(error, file=sys.stderr)
        return 2
    note = padding.note()
    if note:
        echo(note, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
