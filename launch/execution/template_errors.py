"""Writes all rows of local data, on which the trainer's process tries the chat template, and names
the first row on which the template raises an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

from launch.data.conversion import Conversion
from launch.data.row_file import encode_row
from launch.data.sources import TRAIN_FILE, VALIDATION_FILE, DataFiles, LocalData
from launch.data.staging import load_staged
from launch.errors import UserError
from launch.planning.mixture import MixtureEntry
from launch.redact import process_redactor
from launch.terminal import join_lines
from launch.worker.finding import Finding, Fix
from launch.worker.rendering import TemplateError

TEMPLATE_RAISES = "template_raises"


def write_whole(entry: MixtureEntry, path: Path) -> tuple[Path, ...]:
    """Return the files with all converted rows of an entry, the training rows first; () for an entry
    of the hub.

    Rows that are not staged are written to `path` and beside it. Rows that can't be converted are
    left out, since a run refuses them with another message.
    """
    if entry.data is None:
        return () if entry.source.local is None else (entry.source.local,)
    if load_staged(entry.data) is not None:
        files = (entry.data.folder / TRAIN_FILE, entry.data.folder / VALIDATION_FILE)
        return tuple(file for file in files if file.is_file())
    held_out = path.with_suffix(".validation")
    _write_lines(path, entry.data, entry.data.files.paths)
    _write_lines(held_out, entry.data, _validation_paths(entry.data))
    return (path, held_out)


def _write_lines(path: Path, data: LocalData, sources: tuple[Path, ...]) -> None:
    with path.open("wb") as stream, contextlib.suppress(UserError):
        for _, line in _converted_lines(data, sources):
            stream.write(line)


def describe_template_error(
    error: TemplateError,
    entry: MixtureEntry,
    files: Sequence[Path],
    places: Sequence[str],
    template: str,
) -> Finding:
    """Return the problem of rows that the chat template `template` can't render.

    `entry` has the first of these rows, `files` are those of `write_whole`, and `places` are the
    places of the rows that the trainer was given.
    """
    place = _find_place(entry, files, error.row) or places[error.row]
    reason = join_lines(process_redactor().redact_text(error.reason))
    message = (
        f"the chat template raises an error in {error.rows:,} of {error.all_rows:,} rows: "
        f"{reason} (chat template: {template})"
    )
    return Finding.error(TEMPLATE_RAISES, message, place, _find_cure(error, entry))


def _find_cure(error: TemplateError, entry: MixtureEntry) -> Fix:
    if not error.fits_merged:
        return Fix("set recipe.chat_template to one for such rows, or repair or remove the rows")
    sentence = (
        "set {0} to put system turns into the first user turn, or another recipe.chat_template"
    )
    if entry.data is None:
        sentence = f"download the data set, name its files in data.mix and {sentence}"
    return Fix.of(sentence, "data.system_turns=merge")


def _find_place(entry: MixtureEntry, files: Sequence[Path], row: int) -> str | None:
    """Return the file and line from which row number `row` of the written files was converted."""
    if entry.data is None:
        return f"{files[0]}:{row + 1}" if files else None
    lines = chain.from_iterable(map(_lines_of, files))
    wanted = next(islice(lines, row, None))
    for sources in (entry.data.files.paths, _validation_paths(entry.data)):
        with contextlib.suppress(UserError):
            for place, line in _converted_lines(entry.data, sources):
                if line == wanted:
                    return place
    return None


def _lines_of(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        yield from stream


def _validation_paths(data: LocalData) -> tuple[Path, ...]:
    return data.validation.paths if isinstance(data.validation, DataFiles) else ()


def _converted_lines(data: LocalData, files: tuple[Path, ...]) -> Iterator[tuple[str, bytes]]:
    """Yield the place of each row of these files of the data, and its line."""
    columns: Mapping[str, object]
    for place, columns in Conversion(data).rows(files):
        yield place, encode_row(columns)
