"""Reads the rows of a data file one at a time, each with its place (`file:line`)."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from launch.data.csv_rows import read_csv
from launch.data.row_errors import STRICT_DECODER, KeyTwiceError
from launch.data.sources import file_format, unpack_cure
from launch.data.tables import TABLES, KeyPath, read_table
from launch.errors import UserError, refusal
from launch.files import open_file
from launch.worker.finding import Finding

# A longer row is not a text that somebody wrote but a file without line ends.
MAX_ROW_BYTES = 32 << 20
_CHUNK = 1 << 16
_OF_JSON = "a .json file holds a list of rows, or one object on each line"
_UTF8_BOM = b"\xef\xbb\xbf"
# byte order marks of other encodings, the longer ones first
_OTHER_MARKS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
# first bytes of a kind of file -> the suffix that such a file should have
_FILE_MARKS = {
    b"\x1f\x8b": ".gz",
    b"BZh": ".bz2",
    b"\xfd7zXZ": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"PK\x03\x04": ".zip",
    b"PAR1": ".parquet",
}
_OPENERS = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma"}  # modules, imported when needed


@dataclass(frozen=True)
class Row:
    """One row of a file, as it was parsed."""

    place: str  # `/data/chats.jsonl:12`; of a table `:row 12`
    value: object  # a Finding for a line that is not a whole JSON value
    padded: frozenset[KeyPath] = frozenset()  # paths of keys that the file may have added


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a data file.

    Raises UserError: data_encoding, data_not_parsed, data_row_too_large, data_unreadable,
    parquet_needs_pyarrow.
    """
    form, compression = file_format(path)
    if form in TABLES:
        padded, rows = read_table(path, form)
        for number, columns in enumerate(rows, 1):
            yield Row(f"{path}:row {number}", columns, padded)
        return
    opener: Callable[[Path], IO[bytes]] = open_file
    if compression:
        opener = importlib.import_module(_OPENERS[compression]).open
    try:
        stream = opener(path)
    except OSError as error:
        message = f"can't be read: {error.strerror or error}"
        raise refusal("data_unreadable", message, str(path)) from error
    with stream:
        lines = _decode_lines(stream, path)
        if form in (".csv", ".tsv"):
            delimiter = "\t" if form == ".tsv" else ","
            for place, value in read_csv(lines, path, delimiter, MAX_ROW_BYTES):
                yield Row(place, value)
        elif form == ".json":
            yield from _read_json(lines, path)
        else:
            yield from _read_json_lines(lines, path)


def _read_line(stream: IO[bytes], path: Path) -> bytes:
    """Read a line, of which at most one byte above the limit.

    Raises UserError: data_unreadable.
    """
    try:
        return stream.readline(MAX_ROW_BYTES + 1)
    except OSError as error:  # gzip and bz2 raise it for damaged data too
        message = f"can't be read: {error.strerror or error}"
        raise refusal("data_unreadable", message, str(path)) from error
    except Exception as error:  # EOFError, zlib.error, lzma.LZMAError
        message = f"the compressed file is damaged: {error}"
        raise refusal("data_unreadable", message, str(path)) from error


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
            cure = "check that it is the right file"
            raise refusal("data_encoding", message, f"{path}:{number}", cure)
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            message = f"byte 0x{line[error.start]:02x} is not UTF-8"
            note = " from its encoding, for example"
            raise _encoding_error(path, number, message, "WINDOWS-1252", note) from error
        yield number, text


def _check_first_bytes(line: bytes, path: Path) -> None:
    """Check that the first bytes of a file are not those of another encoding or file type.

    Raises UserError: data_encoding, data_unreadable.
    """
    encoding = _value_of_prefix(_OTHER_MARKS, line)
    if encoding is None and b"\0" in line[:2]:  # ASCII characters of two bytes
        encoding = "UTF-16LE" if line[1:2] == b"\0" else "UTF-16BE"
    if encoding is not None:
        raise _encoding_error(path, 1, f"the file is {encoding}", encoding)
    suffix = _value_of_prefix(_FILE_MARKS, line)
    if suffix is not None:
        message = f"the content is that of a {suffix} file, which the name does not end with"
        if suffix in _OPENERS:
            cure: str | None = f"rename it to {path.name}{suffix}"
        elif suffix == ".parquet":
            cure = "rename it so"
        else:
            cure = unpack_cure(suffix)
        raise refusal("data_unreadable", message, f"{path}:1", cure)


def _value_of_prefix(values: Mapping[bytes, str], line: bytes) -> str | None:
    """Return the value of the first key that the line begins with; None if it begins with none."""
    return next((value for prefix, value in values.items() if line.startswith(prefix)), None)


def _encoding_error(
    path: Path, line: int, message: str, encoding: str, note: str = ""
) -> UserError:
    cure = f"convert it{note}: iconv -f {encoding} -t UTF-8 {path.name} > utf8-{path.name}"
    return refusal("data_encoding", message, f"{path}:{line}", cure)


def _read_json_lines(lines: Iterator[tuple[int, str]], path: Path) -> Iterator[Row]:
    for number, text in lines:
        if text.isspace():
            continue
        place = f"{path}:{number}"
        cure = "one JSON object is expected on each line"
        if text.lstrip().startswith("["):
            cure += ", so write it with: jq -c '.[]'"
        elif _continues_below(text):
            cure += ", so write it with: jq -c ."
        try:
            value = _parse_json(text, place, cure)
        except UserError as error:
            value = error.problems[0]
        yield Row(place, value)


def _key_twice(error: KeyTwiceError, place: str) -> Finding:
    return Finding.error("data_row", str(error), place, "leave one of them")


def _continues_below(text: str) -> bool:
    """Return whether a line begins an object that a later line ends."""
    return text.lstrip().startswith("{") and text.rstrip().endswith(("{", ","))


def _parse_json(text: str, place: str, cure: str) -> Any:
    """Return the value of a text; a Finding where it has a key twice.

    Raises UserError: data_not_parsed.
    """
    try:
        return STRICT_DECODER.decode(text)
    except KeyTwiceError as error:
        return _key_twice(error, place)
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg} at character {error.colno}"
        raise refusal("data_not_parsed", message, place, cure) from error
    except RecursionError as error:
        message = "not usable JSON: nested too deeply"
        raise refusal("data_not_parsed", message, place, cure) from error
    except ValueError as error:  # Python converts no more than 4,300 digits
        message = "not usable JSON: a number has too many digits"
        raise refusal("data_not_parsed", message, place) from error


def _read_json(lines: Iterator[tuple[int, str]], path: Path) -> Iterator[Row]:
    """Read a list of rows, or objects one after another: each on a line, or over several."""
    for number, text in lines:
        if text.isspace():
            continue
        if text.lstrip().startswith("["):
            yield from _read_json_array(number, text, lines, path)
            return
        if _continues_below(text):
            yield from _read_json_objects(number, text, lines, path)
            return
        place = f"{path}:{number}"
        yield Row(place, _parse_json(text, place, _OF_JSON))


def _read_json_objects(
    number: int, text: str, lines: Iterator[tuple[int, str]], path: Path
) -> Iterator[Row]:
    """Yield objects that may span any number of lines, and stand one after another."""
    buffer = _JsonBuffer(lines, text, 0, number)
    while buffer.next_character():
        start = buffer.line
        try:
            value, end = _decode_element(buffer, path)
        except (ValueError, RecursionError) as error:
            if len(buffer.text) - buffer.position > MAX_ROW_BYTES:
                message = f"the row is longer than {MAX_ROW_BYTES >> 20} MiB"
                cure = "if the object holds many rows, write each of them on a line, with jq -c"
                place = f"{path}:{start}"
                raise refusal("data_row_too_large", message, place, cure) from error
            if buffer.extend():
                continue
            reason = str(error).partition(":")[0]
            raise refusal(
                "data_not_parsed", f"not JSON: {reason}", f"{path}:{start}", _OF_JSON
            ) from error
        yield Row(f"{path}:{start}", value)
        buffer.advance(end)


@dataclass
class _JsonBuffer:
    """The part of a file that is in memory."""

    lines: Iterator[tuple[int, str]]  # the lines that have not been read yet
    text: str
    position: int  # index of the next character to parse
    line: int  # number of the line at `position`

    def extend(self) -> bool:
        """Drop the text before `position`, and append about as much text as is left after it.

        Returns False at the end of the file.
        """
        parts = [self.text[self.position :]]
        needed = max(_CHUNK, len(parts[0]))
        appended = 0
        for _, following in self.lines:
            parts.append(following)
            appended += len(following)
            if appended >= needed:
                break
        self.text = "".join(parts)
        self.position = 0
        return appended > 0

    def next_character(self) -> str:
        """Return the next character that is not white space; "" at the end of the file."""
        while True:
            while self.position < len(self.text) and self.text[self.position].isspace():
                self.advance(self.position + 1)
            if self.position < len(self.text):
                return self.text[self.position]
            if not self.extend():
                return ""

    def advance(self, end: int) -> None:
        """Move `position` to `end`."""
        self.line += self.text.count("\n", self.position, end)
        self.position = end

    def is_at_end(self) -> bool:
        """Return whether only white space follows in the file."""
        if self.text[self.position :].strip():
            return False
        return all(following.isspace() for _, following in self.lines)


def _read_json_array(
    number: int, text: str, lines: Iterator[tuple[int, str]], path: Path
) -> Iterator[Row]:
    """Yield the elements of an array that may span any number of lines.

    Only the element that is being parsed and some text after it are in memory.
    """
    buffer = _JsonBuffer(lines, text, text.index("[") + 1, number)

    def fail(message: str) -> UserError:
        place = f"{path}:{buffer.line}"
        return refusal("data_not_parsed", f"not JSON: {message}", place, _OF_JSON)

    expected = "element or end"
    while character := buffer.next_character():
        if character == "]" and expected != "element":
            buffer.advance(buffer.position + 1)
            if not buffer.is_at_end():
                raise fail("there is more after the end of the list")
            return
        if expected == "comma or end":
            if character != ",":
                raise fail(f"',' or ']' is expected, not {character!r}")
            buffer.advance(buffer.position + 1)
            expected = "element"
            continue
        try:
            value, end = _decode_element(buffer, path)
        except (ValueError, RecursionError) as error:
            if len(buffer.text) - buffer.position > MAX_ROW_BYTES:
                message = f"the row is longer than {MAX_ROW_BYTES >> 20} MiB"
                raise refusal("data_row_too_large", message, f"{path}:{buffer.line}") from error
            if buffer.extend():
                continue
            raise fail(str(error).partition(":")[0]) from error
        may_continue = end == len(buffer.text) and not isinstance(value, (dict, list, Finding))
        if may_continue and buffer.extend():
            continue  # the text that was appended may begin with more digits
        yield Row(f"{path}:{buffer.line}", value)
        buffer.advance(end)
        expected = "comma or end"
    raise fail("the list has no end")


def _decode_element(buffer: _JsonBuffer, path: Path) -> tuple[Any, int]:
    """Return the element at the buffer's position, and where it ends; a Finding for an object with
    a repeated key.

    Raises ValueError and RecursionError for an incomplete element.
    """
    try:
        return STRICT_DECODER.raw_decode(buffer.text, buffer.position)
    except KeyTwiceError as error:
        _, end = json.JSONDecoder().raw_decode(buffer.text, buffer.position)
        return _key_twice(error, f"{path}:{buffer.line}"), end
