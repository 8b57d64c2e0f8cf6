"""Read the rows of a data file one at a time, each with its place (`file:line`)."""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

from launch.data.sources import file_format, unpack_cure
from launch.errors import UserError, refusal
from launch.files import open_file
from launch.worker.finding import Fix

# a longer row is no text that somebody wrote, but a file without line ends
MAX_ROW_BYTES = 32 << 20
_CHUNK = 1 << 16
_UTF8_BOM = b"\xef\xbb\xbf"
_OTHER_MARKS = {  # longer ones first
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_FILE_MARKS = {  # first bytes -> the suffix that such a file should have
    b"\x1f\x8b": ".gz",
    b"BZh": ".bz2",
    b"\xfd7zXZ": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"PK\x03\x04": ".zip",
    b"PAR1": ".parquet",
}
_DELIMITERS = ";\t|"  # that a .csv file without a comma in its first line may have
_OPENERS = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma"}  # modules, imported when needed


@dataclass(frozen=True)
class Row:
    """One row of a file, as it was parsed."""

    place: str  # `/data/chats.jsonl:12`; of a parquet file `:row 12`
    value: object  # a Finding for a line that does not parse by itself


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a data file.

    Raises UserError: data_encoding, data_not_parsed, data_row_too_large, data_unreadable,
    parquet_needs_pyarrow.
    """
    form, compression = file_format(path)
    if form == ".parquet":
        yield from _read_parquet(path)
        return
    try:
        opened = importlib.import_module(_OPENERS[compression]).open if compression else open_file
        stream: IO[bytes] = opened(path)
    except OSError as error:
        raise refusal(
            "data_unreadable", f"can't be read: {error.strerror or error}", str(path)
        ) from error
    with stream:
        lines = _decode_lines(stream, path)
        if form in (".csv", ".tsv"):
            yield from _read_csv(lines, path, "\t" if form == ".tsv" else ",")
        elif form == ".json":
            yield from _read_json(lines, path)
        else:
            yield from _read_json_lines(lines, path)


def _read_line(stream: IO[bytes], path: Path) -> bytes:
    """Read a line, or as much of it as one byte above the limit. Raises UserError:
    data_unreadable.
    """
    try:
        return stream.readline(MAX_ROW_BYTES + 1)
    except OSError as error:  # gzip and bz2 raise it for damaged data too
        raise refusal(
            "data_unreadable", f"can't be read: {error.strerror or error}", str(path)
        ) from error
    except Exception as error:  # EOFError, zlib.error, lzma.LZMAError
        raise refusal(
            "data_unreadable", f"the compressed file is damaged: {error}", str(path)
        ) from error


def _decode_lines(stream: IO[bytes], path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of a UTF-8 file; a byte order mark is skipped."""
    number = 0
    while line := _read_line(stream, path):
        number += 1
        if number == 1:
            _check_first_bytes(line, path)
            line = line.removeprefix(_UTF8_BOM)
        if len(line) > MAX_ROW_BYTES:
            message = f"the line is longer than {MAX_ROW_BYTES >> 20} MiB"
            cure = "write one row on each line, and leave out rows of that size"
            raise refusal("data_row_too_large", message, f"{path}:{number}", cure)
        if b"\0" in line:
            message = "the file is binary, not text (it contains a zero byte)"
            raise refusal(
                "data_encoding", message, f"{path}:{number}", "check that it is the right file"
            )
        try:
            yield number, line.decode("utf-8")
        except UnicodeDecodeError as error:
            message = f"byte 0x{line[error.start]:02x} is not UTF-8"
            raise _encoding_error(
                path, number, message, "WINDOWS-1252", " from its encoding, for example"
            ) from error


def _check_first_bytes(line: bytes, path: Path) -> None:
    """Raise UserError (data_encoding, data_unreadable) if the file begins as no UTF-8 text does."""
    other = next((name for mark, name in _OTHER_MARKS.items() if line.startswith(mark)), None)
    if other is None and b"\0" in line[:2]:  # ASCII characters of two bytes
        other = "UTF-16LE" if line[1:2] == b"\0" else "UTF-16BE"
    if other:
        raise _encoding_error(path, 1, f"the file is {other}", other)
    suffix = next((suffix for mark, suffix in _FILE_MARKS.items() if line.startswith(mark)), None)
    if suffix:
        message = f"the content is that of a {suffix} file, which the name does not end with"
        cure = f"rename it to {path.name}{suffix}" if suffix in _OPENERS else None
        cure = cure or ("rename it so" if suffix == ".parquet" else unpack_cure(suffix))
        raise refusal("data_unreadable", message, f"{path}:1", cure)


def _encoding_error(
    path: Path, line: int, message: str, encoding: str, note: str = ""
) -> UserError:
    cure = f"convert it{note}: iconv -f {encoding} -t UTF-8 {path.name} > utf8-{path.name}"
    return refusal("data_encoding", message, f"{path}:{line}", cure)


def _read_json_lines(lines: Iterator[tuple[int, str]], path: Path) -> Iterator[Row]:
    for number, text in lines:
        if text.isspace():
            continue
        cure = "one JSON object is expected on each line"
        if text.lstrip().startswith(("{\n", "{\r", "[")):
            cure += ", so write it with: jq -c " + (
                "'.[]'" if text.lstrip().startswith("[") else "."
            )
        try:
            yield Row(f"{path}:{number}", _parse(text, f"{path}:{number}", cure))
        except UserError as error:
            yield Row(f"{path}:{number}", error.problems[0])


def _parse(text: str, place: str, cure: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg} at character {error.colno}"
        raise refusal("data_not_parsed", message, place, cure) from error
    except RecursionError as error:
        raise refusal(
            "data_not_parsed", "not usable JSON: nested too deeply", place, cure
        ) from error
    except ValueError as error:  # Python converts no more than 4,300 digits
        raise refusal(
            "data_not_parsed", "not usable JSON: a number has too many digits", place
        ) from error


def _read_json(lines: Iterator[tuple[int, str]], path: Path) -> Iterator[Row]:
    """Read a list of rows; a `.json` file with an object on each line is read as JSON lines."""
    for number, text in lines:
        if text.isspace():
            continue
        if text.lstrip().startswith("["):
            yield from _read_json_array(number, text, lines, path)
            return
        cure = "a .json file holds a list of rows, or one object on each line, as jq -c writes them"
        yield Row(f"{path}:{number}", _parse(text, f"{path}:{number}", cure))


def _read_json_array(
    number: int, text: str, lines: Iterator[tuple[int, str]], path: Path
) -> Iterator[Row]:
    """Yield the elements of an array that may span any number of lines, without holding the whole
    file.
    """
    decoder = json.JSONDecoder()
    buffer, position, expected = text, text.index("[") + 1, "element or end"
    line = number  # of `position`

    def fail(message: str) -> UserError:
        cure = "a .json file holds a list of rows, or one object on each line"
        return refusal("data_not_parsed", f"not JSON: {message}", f"{path}:{line}", cure)

    def extend() -> bool:
        """Drop what was consumed and append about as much as is left; False at the end of the
        file.
        """
        nonlocal buffer, position
        parts, size = [buffer[position:]], 0
        wanted = max(_CHUNK, len(parts[0]))
        while size < wanted and (following := next(lines, None)) is not None:
            parts.append(following[1])
            size += len(following[1])
        buffer, position = "".join(parts), 0
        return size > 0

    while True:
        while position < len(buffer) and buffer[position].isspace():
            line += buffer[position] == "\n"
            position += 1
        if position == len(buffer):
            if not extend():
                raise fail("the list has no end")
            continue
        character = buffer[position]
        if character == "]" and expected != "element":
            if buffer[position + 1 :].strip() or any(not rest.isspace() for _, rest in lines):
                raise fail("there is more after the end of the list")
            return
        if expected == "comma or end":
            if character != ",":
                raise fail(f"',' or ']' is expected, not {character!r}")
            position, expected = position + 1, "element"
            continue
        try:
            value, end = decoder.raw_decode(buffer, position)
        except (ValueError, RecursionError) as error:
            if len(buffer) - position > MAX_ROW_BYTES:
                message = f"the row is longer than {MAX_ROW_BYTES >> 20} MiB"
                raise refusal("data_row_too_large", message, f"{path}:{line}") from error
            if extend():
                continue
            raise fail(str(error).partition(":")[0]) from error
        if end == len(buffer) and not isinstance(value, (dict, list)) and extend():
            continue  # a number that may go on in the next line
        yield Row(f"{path}:{line}", value)
        line += buffer.count("\n", position, end)
        position, expected = end, "comma or end"


def _read_csv(lines: Iterator[tuple[int, str]], path: Path, delimiter: str) -> Iterator[Row]:
    """Yield the rows below the line that names the columns; a column without a name (an index) is
    left out.
    """
    csv.field_size_limit(MAX_ROW_BYTES)
    _, first_line = next(lines, (0, ""))
    if delimiter == "," and "," not in first_line:
        delimiter = (
            max(_DELIMITERS, key=first_line.count) if set(_DELIMITERS) & set(first_line) else ","
        )
    has_spaces = f"{delimiter} " in first_line  # then they do not belong to the values
    texts = chain([first_line] if first_line else [], (text for _, text in lines))
    reader = csv.reader(texts, delimiter=delimiter, strict=True, skipinitialspace=has_spaces)
    try:
        names = [name.strip() for name in next(reader, [])]
        if not names:
            return
        named = [name for name in names if name]
        if len(set(named)) != len(named) or not named:
            message = (
                "the first line must name the columns, each once; it has "
                f"{', '.join(map(repr, names))}"
            )
            raise refusal("data_not_parsed", message, f"{path}:1")
        first = reader.line_num + 1
        for values in reader:
            place, first = f"{path}:{first}", reader.line_num + 1
            if not values:
                continue
            if len(values) != len(names):
                message = f"the row has {len(values)} columns, the first line names {len(names)}"
                cure = 'quote values that contain the delimiter, a quote or a line end: "..."'
                raise refusal("data_not_parsed", message, place, cure)
            yield Row(
                place, {name: value for name, value in zip(names, values, strict=True) if name}
            )
    except csv.Error as error:
        raise refusal(
            "data_not_parsed", f"not CSV: {error}", f"{path}:{reader.line_num}"
        ) from error


def _read_parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        cure = Fix.of(
            "install it beside launch ({0}), or convert the file to .jsonl", "$ pip install pyarrow"
        )
        raise refusal(
            "parquet_needs_pyarrow", "parquet files need pyarrow", str(path), cure
        ) from error
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            number = 0
            for batch in table.iter_batches(batch_size=256):
                for value in batch.to_pylist():
                    number += 1
                    yield Row(f"{path}:row {number}", value)
    except (pyarrow.ArrowException, OSError) as error:
        message = f"not a readable parquet file: {str(error).splitlines()[0]}"
        raise refusal("data_not_parsed", message, str(path)) from error
