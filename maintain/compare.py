"""Compares two schemas of one trainer: flags added, removed and renamed, and changes of type,
default and choices.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from launch.upstream.schema import Field, Schema

_SAME_SUBJECT = 0.55  # similarity of two help texts from which they describe the same thing
_SAME_SENTENCE = 0.85  # and from which they are the same sentence
_NO_HELP: Mapping[str, str] = MappingProxyType({})
_ASPECTS = ("type", "default", "choices", "required")


@dataclass(frozen=True)
class FlagChange:
    """One difference between two schemas."""

    kind: str  # added, removed, renamed, type, default, choices or required
    flag: str  # the old name (for `added` the new one)
    renamed_to: str | None = None
    # the default, choices, type's text or requirement before and after; for a rename, the types
    # where they differ
    old: Any = None
    new: Any = None
    proposed: bool | None = None  # a rename that only the similarity of the two flags suggests

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


def compare_schemas(
    old: Schema,
    new: Schema,
    known_renames: Mapping[str, str] | None = None,
    old_help: Mapping[str, str] = _NO_HELP,
    new_help: Mapping[str, str] = _NO_HELP,
) -> list[FlagChange]:
    """List every difference, removals and renames first. `known_renames`: {old name: new name, ''
    for a removal}.

    old_help, new_help: {flag: its help text}, which may suggest a rename; without the texts only
    equal ones do. A part that can't be read on one side is unknown, not changed. Removals are
    reported only if the new parser could be read completely.
    """
    before, after = (
        {name: field for name, field in side.fields.items() if field.in_parser}
        for side in (old, new)
    )
    removed = [field for name, field in before.items() if name not in after]
    added = [field for name, field in after.items() if name not in before]
    known = known_renames or {}
    renames = {field.name: known[field.name] for field in removed if known.get(field.name) in after}
    pairs = [(field, other) for field in removed if known.get(field.name) != "" for other in added]
    scores = sorted(
        (
            -flag_similarity(field, other, old_help.get(field.name), new_help.get(other.name)),
            field.name,
            other.name,
        )
        for field, other in pairs
    )
    for score, name, new_name in scores:  # the most similar pairs first
        if score and name not in renames and new_name not in renames.values():
            renames[name] = new_name
    changes = []
    for field in removed:
        if field.name in renames:
            target = after[renames[field.name]]
            old_type, new_type = (
                (None, None) if field.type == target.type else (field.type, target.type)
            )
            proposed = None if known.get(field.name) == target.name else True
            changes.append(
                FlagChange("renamed", field.name, target.name, old_type, new_type, proposed)
            )
        elif not new.unknown:
            changes.append(FlagChange("removed", field.name))
    changes += [
        FlagChange("added", field.name) for field in added if field.name not in renames.values()
    ]
    for name, field in before.items():
        if name in after:
            changes += _compare_aspects(field, after[name])
    return changes


def _compare_aspects(old: Field, new: Field) -> Iterator[FlagChange]:
    for aspect in _ASPECTS:
        before, after = getattr(old, aspect), getattr(new, aspect)
        # A type is often respelled (`List[str]`, `list[str]`), so compare what the parser does with
        # it.
        differs = _conversion(old) != _conversion(new) if aspect == "type" else before != after
        is_known = aspect not in old.unknown and aspect not in new.unknown
        if differs and is_known and not (aspect == "choices" and old.kind != new.kind):
            yield FlagChange(aspect, old.name, None, before, after)


def _conversion(field: Field) -> tuple[str, str | None]:
    return field.kind, field.nargs


def flag_similarity(
    old: Field, new: Field, old_help: str | None = None, new_help: str | None = None
) -> float:
    """Score from 0 to 1 how likely two flags are the same flag under two names.

    The score is positive if the name only gained or lost a prefix or suffix, if it kept at least
    half of its words and the help texts describe the same thing, or if the help texts are the same
    sentence.
    """
    help_similarity = _text_similarity(old_help, new_help)
    if old.help_digest and old.help_digest == new.help_digest:
        help_similarity = 1.0
    before, after = set(old.name.split("_")), set(new.name.split("_"))
    shared_words = len(before & after) / max(len(before), len(after))
    if _differs_by_affix(old.name, new.name) and (
        help_similarity is None or help_similarity >= _SAME_SUBJECT
    ):
        return 1.0 if _conversion(old) == _conversion(new) else 0.9
    if shared_words >= 0.5 and help_similarity is not None and help_similarity >= _SAME_SUBJECT:
        return 0.5 + 0.4 * shared_words * help_similarity
    if (
        _conversion(old) == _conversion(new)
        and help_similarity is not None
        and help_similarity >= _SAME_SENTENCE
    ):
        return 0.5 * help_similarity
    return 0.0


def _differs_by_affix(old: str, new: str) -> bool:
    longer, shorter = sorted((old, new), key=len, reverse=True)
    return longer.endswith(f"_{shorter}") or longer.startswith(f"{shorter}_")


def _text_similarity(old: str | None, new: str | None) -> float | None:
    if not old or not new:
        return None
    return difflib.SequenceMatcher(None, old.lower(), new.lower(), autojunk=False).ratio()
