"""Compare two schemas of one trainer: which flags were added, removed, renamed or changed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from launch.upstream.schema import Field, Schema
from launch.worker.json_codec import without_none

_SAME_SUBJECT = 0.55  # help texts of this similarity or more describe the same thing
_SAME_SENTENCE = 0.85  # help texts of this similarity or more are the same sentence
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

    def json_fields(self) -> dict[str, Any]:
        """Return what is set, as an entry of the ledger has it."""
        return without_none(vars(self))


def compare_schemas(
    old: Schema,
    new: Schema,
    known_renames: Mapping[str, str] | None = None,
    old_help: Mapping[str, str] = _NO_HELP,
    new_help: Mapping[str, str] = _NO_HELP,
) -> list[FlagChange]:
    """List every difference, removals and renames first.

    A part that cannot be read on one side is unknown, and not reported as changed. Removals are
    reported only if the new parser could be read completely.

    Args:
        known_renames: the new name of an old one, '' for a flag that was removed.
        old_help: the help text by flag, which may suggest a rename. Without the texts, only equal
            ones do.
        new_help: the same for the new schema.
    """
    before = {name: field for name, field in old.fields.items() if field.in_parser}
    after = {name: field for name, field in new.fields.items() if field.in_parser}
    removed = [field for name, field in before.items() if name not in after]
    added = [field for name, field in after.items() if name not in before]
    known = known_renames or {}
    renames = {field.name: known[field.name] for field in removed if known.get(field.name) in after}
    renameable = [field for field in removed if known.get(field.name) != ""]
    for name, new_name in _rank_renames(renameable, added, old_help, new_help):
        if name not in renames and new_name not in renames.values():
            renames[name] = new_name
    changes = []
    for field in removed:
        if field.name in renames:
            target = after[renames[field.name]]
            proposed = None if known.get(field.name) == target.name else True
            changes.append(_describe_rename(field, target, proposed))
        elif not new.unknown:
            changes.append(FlagChange("removed", field.name))
    new_names = renames.values()
    changes += [FlagChange("added", field.name) for field in added if field.name not in new_names]
    for name, field in before.items():
        if name in after:
            changes += _compare_aspects(field, after[name])
    return changes


def _rank_renames(
    removed: Sequence[Field],
    added: Sequence[Field],
    old_help: Mapping[str, str],
    new_help: Mapping[str, str],
) -> list[tuple[str, str]]:
    """Return the possible renames (old name, new name), the most similar flags first."""
    scores: list[tuple[float, str, str]] = []
    for old in removed:
        for new in added:
            score = flag_similarity(old, new, old_help.get(old.name), new_help.get(new.name))
            if score:
                scores.append((-score, old.name, new.name))
    return [(old_name, new_name) for _, old_name, new_name in sorted(scores)]


def _describe_rename(old: Field, new: Field, proposed: bool | None) -> FlagChange:
    if old.type == new.type:
        return FlagChange("renamed", old.name, new.name, proposed=proposed)
    return FlagChange("renamed", old.name, new.name, old.type, new.type, proposed)


def _compare_aspects(old: Field, new: Field) -> Iterator[FlagChange]:
    """Yield the changes of a flag that kept its name."""
    for aspect in _ASPECTS:
        before = getattr(old, aspect)
        after = getattr(new, aspect)
        differs = before != after
        if aspect == "type":
            # A type may be written differently (`List[str]`, `list[str]`) and mean the same, so
            # that its conversion by the parser is compared.
            differs = _conversion(old) != _conversion(new)
        elif aspect == "choices" and old.kind != new.kind:
            differs = False  # it is a change of the type
        is_known = aspect not in old.unknown and aspect not in new.unknown
        if differs and is_known:
            yield FlagChange(aspect, old.name, None, before, after)


def _conversion(field: Field) -> tuple[str, str | None]:
    """Return how the parser converts the texts of a flag."""
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
    has_same_conversion = _conversion(old) == _conversion(new)
    may_have_same_subject = help_similarity is None or help_similarity >= _SAME_SUBJECT
    if may_have_same_subject and _differs_by_affix(old.name, new.name):
        return 1.0 if has_same_conversion else 0.9
    if help_similarity is None:
        return 0.0
    old_words = set(old.name.split("_"))
    new_words = set(new.name.split("_"))
    shared_words = len(old_words & new_words) / max(len(old_words), len(new_words))
    if shared_words >= 0.5 and help_similarity >= _SAME_SUBJECT:
        return 0.5 + 0.4 * shared_words * help_similarity
    if has_same_conversion and help_similarity >= _SAME_SENTENCE:
        return 0.5 * help_similarity
    return 0.0


def _differs_by_affix(old: str, new: str) -> bool:
    """Return whether one name is the other with words before or after it."""
    longer, shorter = sorted((old, new), key=len, reverse=True)
    return longer.endswith(f"_{shorter}") or longer.startswith(f"{shorter}_")


def _text_similarity(old: str | None, new: str | None) -> float | None:
    """Return the similarity of two texts from 0 to 1; None without one of them."""
    if not old or not new:
        return None
    return difflib.SequenceMatcher(None, old.lower(), new.lower(), autojunk=False).ratio()
