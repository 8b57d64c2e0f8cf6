"""The table of recipe keys: every row has an entry for every trainer, and a proof or the reason why
there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from launch.config.line import format_value
from launch.config.recipe_key import RecipeKey
from launch.config.recipe_keys import KEYS, MAPPED_KEYS, LoraConfig, RecipeConfig
from launch.config.schema import Family, Kind, Launcher, TrainerConfig
from launch.upstream.trainers import trainer_files
from launch.worker.expectations import EVIDENCE, STATE
from tests.paths import ROOT

TRAINERS = {
    name: TrainerConfig(
        name=name,
        kind=Kind(file["kind"]),
        family=Family(file["family"]),
        launcher=Launcher(file["launcher"]),
        untested=file.get("untested", ""),
    )
    for name, file in trainer_files().items()
}
STARTED = [name for name, trainer in TRAINERS.items() if not trainer.untested]
# What a selector may name.
WORDS = {"*", *TRAINERS, *Family, *Launcher, *(kind.upper() for kind in Kind)}


def selectors(row: RecipeKey) -> Iterator[str]:
    for entries in (row.flags, row.unsupported_because, row.fallback, row.unproven_because):
        yield from entries


def default_of(key: str) -> str:
    """Return the default of a recipe key, as a command line has it."""
    section, _, name = key.rpartition(".")
    value = getattr(LoraConfig if section else RecipeConfig, name, None)
    return "null" if value is None else format_value(value)


@pytest.mark.parametrize("key", KEYS)
def test_a_selector_names_trainers_kinds_families_and_launchers(key: str) -> None:
    words = {word for selector in selectors(KEYS[key]) for word in selector.split()}
    assert words <= WORDS


@pytest.mark.parametrize("name", TRAINERS)
def test_the_table_gives_the_sections_of_the_trainers_file(name: str) -> None:
    """A mapping to nothing is the same as none with a reason: both take the default alone."""
    file, trainer = trainer_files()[name], TRAINERS[name]
    for key in MAPPED_KEYS:
        row, written = KEYS[key], file["recipe"].get(key)
        reason = file["unsupported_because"].get(key)
        default: dict[str, Any] = {default_of(key): {}}
        if written is None and reason is not None:
            written = default
        mapped = row.mapped(trainer)
        if mapped is None and row.reason(trainer) is not None:
            mapped = default
        only_rlvr = trainer.kind != Kind.rlvr and row.reason(trainer) == "only RLVR samples answers"
        nothing = [{}, {"null": {}}, *([None] if only_rlvr else [])]
        is_nothing = default_of(key) == "null" and mapped in nothing and written in nothing
        assert is_nothing or mapped == written, key
        is_new = only_rlvr or name == "reward_modeling"  # reasons that the files lacked
        assert row.reason(trainer) == reason or (reason is None and is_new), key
    fallbacks = {}
    for key in MAPPED_KEYS:
        try:
            fallbacks[key] = KEYS[key].fallback_value(trainer)
        except LookupError:
            continue
    assert fallbacks == file.get("fallback_values", {})
    assert set(file["recipe"]) <= set(MAPPED_KEYS)
    assert set(file["unsupported_because"]) <= {*MAPPED_KEYS, "validation", "preview"}


def test_the_place_of_a_row_is_its_line() -> None:
    file, _, line = KEYS["beta"].place.partition(":")
    assert (
        (ROOT / file)
        .read_text(encoding="utf-8")
        .splitlines()[int(line) - 1]
        .startswith("    beta: ")
    )


def test_a_proof_is_evidence_that_the_worker_collects() -> None:
    evidence = {row.proof.evidence for row in KEYS.values() if row.proof is not None}
    assert evidence <= {*STATE, *EVIDENCE}
