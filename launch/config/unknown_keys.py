"""Finds keys that launch does not have, and suggests similar ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from launch.config.nodes import hints, node_class
from launch.config.schema import RootConfig
from launch.errors import nearest
from launch.worker.finding import Action, Finding, Fix

_MOST_KEYS = 6  # number of keys that a message lists


def unknown_key(key: str, where: str | None, cure: Fix | str | None) -> Finding:
    """Return the problem of a key that launch does not have."""
    return Finding.error("unknown_key", f"there is no key '{key}'", where, cure)


def find_unknown_keys(overrides: Sequence[str]) -> Iterator[Finding]:
    """Find all keys of overrides that launch does not have."""
    for override in overrides:
        written_key, _, value = override.partition("=")
        node: type | None = None if written_key.startswith("~") else RootConfig
        parent = ""
        for name in re.split(r"[.\[@]", written_key.lstrip("+")):
            if node is None:
                break
            key = f"{parent}.{name}".lstrip(".")
            fields = hints(node)
            if name not in fields:
                cure = suggest_key(parent, name, list(fields), value, written_key)
                yield unknown_key(key, None, cure)
                break
            parent = key
            node = node_class(fields[name])


def suggest_key(
    parent: str, name: str, siblings: list[str], value: str | None = None, given: str = ""
) -> Fix:
    """Suggest the key for an unknown name: launch's key for another tool's name, else the nearest
    sibling, else the nearest key of another node.

    `given` is the whole key where the unknown name is only its beginning.
    """
    # only an answer to a mistake needs the names of other tools
    from launch.config.other_tools import explain_like, explain_name, trainer_flag

    prefix = f"{parent}." if parent else ""
    whole = given or prefix + name
    explained = explain_name(whole, value) or explain_like(whole, value)
    if explained:
        return explained
    near = _nearest_key(prefix, name, siblings)
    if near is not None:
        if not value:
            return Fix(f"did you mean '{near}'?")
        return Fix.of("did you mean '{0}'?", Action((f"{near}={value}",), prefix + name))
    if not parent:
        return trainer_flag(whole, value)
    if len(siblings) <= _MOST_KEYS:
        keys = ", ".join(prefix + sibling for sibling in siblings)
        return Fix(f"keys: {keys}")
    return Fix(f"`launch help keys` lists those of {parent}")


def _nearest_key(prefix: str, name: str, siblings: list[str]) -> str | None:
    """Return the key that is most like a name: a sibling, else one directly below the root's nodes."""
    for sibling in nearest(name, siblings, 1, 0.7):
        return prefix + sibling
    for group, hint in hints(RootConfig).items():
        node = node_class(hint)
        if node is None:
            continue
        for inner in nearest(name, hints(node), 1, 0.8):
            return f"{group}.{inner}"
    return None
