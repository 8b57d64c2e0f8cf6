"""One word of a command line to the value that the trainer gets, or the reason why the parser refuses it."""

from __future__ import annotations

from typing import Any

from launch.errors import did_you_mean
from launch.upstream.schema import Field

_TRUE = ("yes", "true", "t", "y", "1")
_FALSE = ("no", "false", "f", "n", "0")
NEEDED = {"int": "an integer", "float": "a number", "bool": "true or false"}


class _UnknownValue:
    """A value that can't be known: a shell variable's, or what an unread type makes of a word."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _UnknownValue()


class Refused(Exception):
    """The parser refuses the word: the problem's kind (`bad_type`, `bad_choice`), the message, the cure."""

    def __init__(self, kind: str, message: str, cure: str | None = None) -> None:
        self.kind, self.message, self.cure = kind, message, cure
        super().__init__(message)


def convert(item: Field, word: str) -> Any:
    """The word as argparse would convert and check it; `UNKNOWN` where the field's type can't be read.

    Raises Refused where the parser exits with an error.
    """
    if item.none_words and word.lower() in ("none", "null"):
        value: Any = None
    else:
        value = _converted(item, word)
    if value is UNKNOWN or item.choices is None or item.kind == "enum":
        return value
    if value not in item.choices:
        raise bad_choice(item, word)
    return value


def bad_choice(item: Field, word: str) -> Refused:
    allowed = [str(choice) for choice in item.choices or ()]
    shown = ", ".join(allowed[:12]) + (", ..." if len(allowed) > 12 else "")
    return Refused("bad_choice", f"{item.name} takes one of {shown}; not '{word}'", did_you_mean(word, allowed))


def _converted(item: Field, word: str) -> Any:
    match item.kind:
        case "str":
            return word
        case "int" | "float":
            return _number(item, word)
        case "bool":
            if word.lower() in _TRUE:
                return True
            if word.lower() in _FALSE:
                return False
            raise Refused("bad_type", f"{item.name} takes true or false, not '{word}'", "write true or false")
        case "truthy":
            return bool(word)
        case "choice" | "enum":
            # the text is looked up among the choices' texts, so `Literal[1, 2]` gives an int
            choices = item.choices or ()
            found = next((choice for choice in choices if str(choice) == word), UNKNOWN)
            if found is UNKNOWN and "choices" not in item.unknown:
                raise bad_choice(item, word)
            return found
        case "dict":
            if word == "":
                return {}
            raise Refused("bad_type", f"no command line can set {item.name}: {item.unsettable_because}", "leave it out")
        case "never":
            raise Refused("bad_type", f"no command line can set {item.name}: {item.unsettable_because}", "leave it out")
        case _:
            return UNKNOWN


def _number(item: Field, word: str) -> int | float:
    try:
        return int(word) if item.kind == "int" else float(word)
    except ValueError:
        cure = None
        if item.kind == "int":
            try:
                whole = float(word)
                cure = f"write {int(whole)}" if whole == int(whole) else None
            except (ValueError, OverflowError):
                pass
        raise Refused("bad_type", f"{item.name} takes {NEEDED[item.kind]}, not '{word}'", cure) from None
