"""Converts an argument string to the trainer's value as argparse does, or explains the refusal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from launch.errors import UserError, did_you_mean, refusal
from launch.upstream.schema import Field

_TRUE_WORDS = ("yes", "true", "t", "y", "1")
_FALSE_WORDS = ("no", "false", "f", "n", "0")
EXPECTED_VALUES = {"int": "an integer", "float": "a number", "bool": "true or false"}


class UnknownValue(Enum):
    """The value of a shell variable, or of a type that is not known."""

    UNKNOWN = "unknown"

    def __repr__(self) -> str:  # in messages about lists
        return self.name


UNKNOWN = UnknownValue.UNKNOWN


def convert_text(field: Field, text: str) -> Any:
    """Convert and check a string as argparse does; `UNKNOWN` where the field's type can't be read.

    Raises UserError where the parser exits with an error: bad_type, bad_choice.
    """
    value: Any = None
    is_none = field.none_words and text.lower() in ("none", "null")
    if not is_none:
        converter = _CONVERTERS.get(field.kind)
        value = converter(field, text) if converter else UNKNOWN
    if value is UNKNOWN or field.choices is None:
        return value
    # The conversion to an enum has already compared the text with its choices.
    if field.kind != "enum" and value not in field.choices:
        raise choice_error(field, text)
    return value


def choice_error(field: Field, text: str) -> UserError:
    """Return the error of a string that is not among the field's choices."""
    allowed = [str(choice) for choice in field.choices or ()]
    listed = ", ".join(allowed[:12]) + (", ..." if len(allowed) > 12 else "")
    message = f"{field.name} must be one of {listed}, got '{text}'"
    return refusal("bad_choice", message, field.name, did_you_mean(text, allowed))


def _to_bool(field: Field, text: str) -> bool:
    word = text.lower()
    if word in _TRUE_WORDS:
        return True
    if word in _FALSE_WORDS:
        return False
    message = f"{field.name} must be true or false, got '{text}'"
    raise refusal("bad_type", message, field.name, "write true or false")


def _to_choice(field: Field, text: str) -> Any:
    """Look the text up among the choices' texts, so that `Literal[1, 2]` gives an int."""
    for choice in field.choices or ():
        if str(choice) == text:
            return choice
    if "choices" in field.unknown:
        return UNKNOWN
    raise choice_error(field, text)


def _to_dict(field: Field, text: str) -> dict[str, Any]:
    if text == "" and field.kind == "dict":
        return {}
    raise unsettable_error(field)


def unsettable_error(field: Field, id: str = "bad_type") -> UserError:
    """Return the error of a field that no command line can set."""
    message = f"{field.name} can't be set on the command line: {field.unsettable_because}"
    return refusal(id, message, field.name, "leave it out")


def _to_number(field: Field, text: str) -> int | float:
    try:
        return int(text) if field.kind == "int" else float(text)
    except ValueError:
        cure = _write_as_integer(text) if field.kind == "int" else None
        message = f"{field.name} must be {EXPECTED_VALUES[field.kind]}, got '{text}'"
        raise refusal("bad_type", message, field.name, cure) from None


def _write_as_integer(text: str) -> str | None:
    """Return how to write a whole number like `1e3` for int(); None for any other text."""
    try:
        number = float(text)
        is_whole = number == int(number)
    except (ValueError, OverflowError):
        return None
    return f"write {int(number)}" if is_whole else None


_CONVERTERS: Mapping[str, Callable[[Field, str], Any]] = {
    "str": lambda field, text: text,
    "int": _to_number,
    "float": _to_number,
    "bool": _to_bool,
    "truthy": lambda field, text: bool(text),
    "choice": _to_choice,
    "enum": _to_choice,
    "dict": _to_dict,
    "never": _to_dict,
}
