"""Reads the rows of Parquet and Arrow files as JSON values, and knows where such files pad them.

A column of objects has one list of keys for all rows: an object gets a null for each key that only
other rows have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from launch.errors import refusal
from launch.worker.finding import Fix

PARQUET = ".parquet"
ARROW = ".arrow"
TABLES = (PARQUET, ARROW)
# names of columns and keys, from the row down; the elements of a list have the list's path
KeyPath = tuple[str, ...]
_JSON = "arrow.json"  # the extension type of values that the file keeps as JSON
_ROWS = 256  # of a batch
_Convert = Callable[[Any], Any]


def read_table(path: Path, form: str) -> tuple[frozenset[KeyPath], Iterator[dict[str, Any]]]:
    """Return the paths of keys that may be padding, and the rows of a file.

    Raises UserError: parquet_needs_pyarrow, data_not_parsed.
    """
    try:
        import pyarrow
    except ImportError as error:
        sentence = "install it beside launch ({0}), or convert the file to .jsonl"
        cure = Fix.of(sentence, "$ pip install pyarrow")
        message = "parquet files need pyarrow"
        raise refusal("parquet_needs_pyarrow", message, str(path), cure) from error
    try:
        schema, batches = _open(path, form)
        converts = {field.name: _find_conversion(field) for field in schema}
    except (pyarrow.ArrowException, OSError) as error:
        raise _not_readable(path, form, error) from error
    padded: set[KeyPath] = set()
    for field in schema:
        _find_padded(field, (field.name,), padded)

    def read_rows() -> Iterator[dict[str, Any]]:
        try:
            for batch in batches:
                for row in batch.to_pylist():
                    yield {name: _apply(converts[name], value) for name, value in row.items()}
        except (pyarrow.ArrowException, OSError) as error:
            raise _not_readable(path, form, error) from error

    return frozenset(padded), read_rows()


def _not_readable(path: Path, form: str, error: Exception) -> Exception:
    message = f"not a readable {form.lstrip('.')} file: {str(error).splitlines()[0]}"
    return refusal("data_not_parsed", message, str(path))


def _open(path: Path, form: str) -> tuple[Any, Iterator[Any]]:
    """Return the schema of a file and its batches of rows."""
    import pyarrow
    import pyarrow.parquet

    if form == PARQUET:
        table = pyarrow.parquet.ParquetFile(path)
        return table.schema_arrow, table.iter_batches(batch_size=_ROWS)
    source = pyarrow.memory_map(str(path))
    try:
        stream = pyarrow.ipc.open_stream(source)
    except pyarrow.ArrowInvalid:  # the other of Arrow's two formats
        source.seek(0)
        file = pyarrow.ipc.open_file(source)
        return file.schema, _slices(
            file.get_batch(index) for index in range(file.num_record_batches)
        )
    return stream.schema, _slices(stream)


def _slices(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches of at most _ROWS rows: those of Arrow files may have millions."""
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS):
            yield batch.slice(start, _ROWS)


def _children(field: Any) -> Iterator[Any]:
    for index in range(field.type.num_fields):
        yield field.type.field(index)


def _is_json(field: Any) -> bool:
    """Return whether the file keeps the values as JSON: such values are not padded."""
    name = getattr(field.type, "extension_name", None)
    # a pyarrow that does not know the type has its name in the metadata
    metadata = field.metadata or {}
    return name == _JSON or metadata.get(b"ARROW:extension:name") == _JSON.encode()


def _is_list(type_: Any) -> bool:
    from pyarrow import types

    return bool(
        types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)
    )


def _find_padded(field: Any, path: KeyPath, padded: set[KeyPath]) -> None:
    """Add the paths of the keys below a field that may be padding.

    A key whose nulls have no type is the row's own: no row has another value for it.
    """
    from pyarrow import types

    if _is_json(field):
        return
    if _is_list(field.type):
        _find_padded(field.type.value_field, path, padded)
    elif types.is_struct(field.type):
        for child in _children(field):
            child_path = (*path, child.name)
            if not types.is_null(child.type):
                padded.add(child_path)
            _find_padded(child, child_path, padded)


def _apply(convert: _Convert | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _find_conversion(field: Any) -> _Convert | None:
    """Return what makes a JSON value of the field's values; None where they are one."""
    from pyarrow import types

    type_ = field.type
    if _is_json(field):
        return _read_json
    if _is_list(type_):
        element = _find_conversion(type_.value_field)
        if element is None:
            return None
        return lambda values: [_apply(element, value) for value in values]
    if types.is_struct(type_):
        converts = {child.name: _find_conversion(child) for child in _children(field)}
        if not any(converts.values()):
            return None
        return lambda value: {name: _apply(converts[name], v) for name, v in value.items()}
    return _find_simple_conversion(type_)


def _find_simple_conversion(type_: Any) -> _Convert | None:
    """Return what makes a JSON value of the values of a type without fields."""
    from pyarrow import types

    if types.is_map(type_):
        return lambda pairs: {str(key): value for key, value in pairs}
    if types.is_binary(type_) or types.is_large_binary(type_):
        # A text that is no UTF-8 is refused where it is used, by its half characters.
        return lambda value: bytes(value).decode("utf-8", "surrogateescape")
    kinds = ("string", "large_string", "integer", "floating", "boolean", "null", "dictionary")
    is_json_value = any(getattr(types, f"is_{kind}")(type_) for kind in kinds)
    return None if is_json_value else str  # dates, times, decimals


def _read_json(text: Any) -> Any:
    import json

    return json.loads(text) if isinstance(text, str) else text
