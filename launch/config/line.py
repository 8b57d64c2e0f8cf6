"""The command line before Hydra sees it: the verb, `--json`, and values that Hydra would read as a sweep."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from launch.errors import Problem, UserError, did_you_mean

MULTIRUN = ("--multirun", "-m")
# Hydra's own flags that take the next word
_LONG = ("--cfg", "--package", "--config-path", "--config-name", "--config-dir", "--info", "--experimental-rerun")
_HYDRA_VALUE_FLAGS = frozenset((*_LONG, "-c", "-p", "-cp", "-cn", "-cd", "-i"))
_OVERRIDE = re.compile(r"(?P<prefix>[+~]{0,2})(?P<key>[^=\s]+)(?P<value>=.*)?", re.DOTALL)
# a comma outside quotes and brackets
_BARE_COMMA = re.compile(r"""^(?:[^'"\[\](){},]|'[^']*'|"[^"]*"|\[.*\]|\{.*\}|\(.*\))*,""", re.DOTALL)


@dataclass(frozen=True)
class Line:
    """One command line: the verb, whether JSON was asked for, and the words left for Hydra, in order."""

    verb: str
    json: bool
    words: tuple[str, ...]

    @property
    def multirun(self) -> bool:
        return any(word in MULTIRUN for word in self.words)

    @property
    def overrides(self) -> tuple[str, ...]:
        """The `key=value` words, without Hydra's own flags and their values."""
        found = []
        skip = False
        for word in self.words:
            if skip or word.startswith("-"):
                skip = word in _HYDRA_VALUE_FLAGS
                continue
            found.append(word)
        return tuple(found)


def parse_line(argv: Sequence[str], verbs: Sequence[str], default: str = "run") -> Line:
    """Split off the verb (the first word, when it has no `=` and is no option) and `--json`.

    Raises UserError (`unknown_verb`) when the first word is neither a verb, an option nor an override.
    """
    words = list(argv)
    verb = default
    if words and not words[0].startswith("-") and "=" not in words[0] and words[0][:1] not in "+~":
        verb = words.pop(0)
        if verb not in verbs:
            known = ", ".join(verbs)
            cure = did_you_mean(verb, verbs) or f"the verbs are {known}; a value is said as key=value"
            raise UserError(Problem("unknown_verb", f"'{verb}' is no verb", cure=cure))
    return Line(verb, "--json" in words, tuple(word for word in words if word != "--json"))


def taken(line: Line, keys: Sequence[str]) -> tuple[dict[str, str], Line]:
    """The values that the line says for `keys`, and the line without them, for what Hydra must not read.

    Raises UserError (`said_twice`).
    """
    said: dict[str, str] = {}
    rest: list[str] = []
    own = set(line.overrides)
    for word in line.words:
        key = override_key(word)
        if word not in own or key not in keys or "=" not in word:
            rest.append(word)
            continue
        if key in said:
            raise UserError(Problem("said_twice", f"'{key}' is said twice", f"override {key}", "say it once"))
        said[key] = word.partition("=")[2]
    return said, replace(line, words=tuple(rest))


def override_key(word: str) -> str:
    """The key that an override speaks of: `++recipe.epochs=2` -> `recipe.epochs`."""
    match = _OVERRIDE.fullmatch(word)
    return match["key"].split("@")[0] if match else word


def check_overrides(line: Line) -> None:
    """Refuse words that Hydra would misread. Raises UserError with every one of them.

    A comma list outside brackets is a sweep for Hydra and needs `--multirun`; a bare word is no override at all.
    """
    problems = []
    seen: set[str] = set()
    for word in line.overrides:
        key = override_key(word)
        if key in seen:
            problems.append(Problem("said_twice", f"'{key}' is said twice", f"override {key}", "say it once"))
        seen.add(key)
        match = _OVERRIDE.fullmatch(word)
        value = (match["value"] or "")[1:] if match else ""
        if "=" not in word and not word.startswith("~"):
            problems.append(Problem("not_an_override", f"'{word}' is no key=value", "command line"))
        elif not line.multirun and _BARE_COMMA.match(value):
            cure = f"a list is said as '{key}=[{value}]'; --multirun runs each value in turn"
            if key == "gpus":
                cure = "say one width; --multirun runs each value in turn, rollout one after another through its gates"
            problems.append(Problem("several_values", f"'{line.verb}' takes one value", f"override {key}", cure))
    if problems:
        raise UserError(problems)
