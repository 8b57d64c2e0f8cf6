"""The table of recipe keys: every row has an entry for every trainer, and a proof or the reason why
there is none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace

import pytest

from launch.config.kinds import Kind
from launch.config.recipe_key import RecipeKey, Requested
from launch.config.recipe_keys import KEYS, MAPPED_KEYS, recipe_flags_of, recipe_mapping
from launch.config.schema import Family, Launcher, TrainerConfig
from launch.planning.expectations import COMPUTED
from launch.planning.recipe import flags_of_key
from launch.upstream.pin.lock import locked_schema
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


@pytest.mark.parametrize("key", KEYS)
def test_a_selector_names_trainers_kinds_families_and_launchers(key: str) -> None:
    words = {word for selector in selectors(KEYS[key]) for word in selector.split()}
    assert words <= WORDS


def lacking(trainer: TrainerConfig, flags: Collection[str]) -> Iterator[str]:
    """Yield what the table lacks of a trainer that has these flags, one sentence each."""
    has_adapters = bool(recipe_mapping(trainer, "lora.rank"))
    for key in MAPPED_KEYS:
        row = KEYS[key]
        mapping = row.mapping(trainer)
        if mapping is None and (has_adapters or not key.startswith("lora.")):
            yield f"{row.place}: recipe.{key} has neither flags nor a reason for {trainer.name}"
        if mapping == {} and row.reason(trainer) is None:
            yield f"{row.place}: recipe.{key} has no reason why {trainer.name} has no value"
        for flag in sorted(flags_of_key(mapping) - set(flags)):
            yield f"{row.place}: {trainer.name} has no flag {flag}"


def can_be_set(key: str, trainer: TrainerConfig) -> bool:
    """Return whether a trainer takes more than one value of a key."""
    mapping = recipe_mapping(trainer, key) if KEYS[key].flags else "set by launch"
    return isinstance(mapping, str) or "*" in (mapping or ()) or len(mapping or ()) > 1


def unexplained(trainer: TrainerConfig) -> Iterator[str]:
    """Yield the keys that can be set, and that nothing proves in the trainer, without a reason."""
    for key, row in KEYS.items():
        has_either = row.proof is not None or row.unproven(trainer) is not None
        if can_be_set(key, trainer) and not has_either:
            yield f"{row.place}: recipe.{key} has neither a proof nor a reason for {trainer.name}"


@pytest.mark.parametrize("name", TRAINERS)
def test_every_row_has_an_entry_for_every_trainer(name: str) -> None:
    assert list(lacking(TRAINERS[name], locked_schema(name).fields)) == []


@pytest.mark.parametrize("name", STARTED)
def test_every_key_is_proven_in_a_trainer_that_run_starts_or_has_the_reason(name: str) -> None:
    assert list(unexplained(TRAINERS[name])) == []


@pytest.mark.parametrize("name", TRAINERS)
def test_a_flag_stands_for_one_key(name: str) -> None:
    keys: dict[str, set[str]] = {}
    for flag, key, _ in recipe_flags_of(TRAINERS[name]):
        keys.setdefault(flag, set()).add(key)
    assert [flag for flag in keys if len(keys[flag]) > 1] == []


def test_a_key_whose_row_says_that_its_expectation_is_computed_has_a_function_for_it() -> None:
    computed = [
        key for key, row in KEYS.items() if row.proof and row.proof.requested == Requested.computed
    ]
    assert sorted(computed) == sorted(COMPUTED)


@pytest.mark.parametrize("kind", [Kind.sft, Kind.dpo, Kind.rm])
def test_a_trainer_of_the_users_own_has_the_keys_of_its_family(kind: Kind) -> None:
    own = replace(TRAINERS["trl_sft"], name="trl_own", kind=kind)
    assert recipe_mapping(own, "eval_steps") == "eval_steps"
    assert recipe_mapping(own, "liger") == "use_liger_kernel"
    assert can_be_set("early_stop", own)
    assert can_be_set("sample_every", own) == (kind != Kind.rm), "a reward model has no answers"
    assert can_be_set("lora.init", own) == (kind != Kind.dpo), "DPO's reference is the base"


@pytest.mark.parametrize("key", KEYS)
def test_no_selector_lists_the_trainers_of_a_family(key: str) -> None:
    """A new one would have to be added to each: the selector names the family."""
    of_trl = {name for name, trainer in TRAINERS.items() if trainer.family == Family.trl}
    listed = [words for words in selectors(KEYS[key]) if len(of_trl & set(words.split())) > 1]
    assert listed == []


def test_a_trainer_that_is_half_added_is_named_with_the_rows() -> None:
    trainer = replace(TRAINERS["finetune"], name="kto")
    flags = {**locked_schema("finetune").fields}
    del flags["seed"]
    found = list(lacking(trainer, flags))
    rows = {key: KEYS[key].place for key in ("seed", "packing", "liger", "max_grad_norm", "epochs")}
    assert f"{rows['seed']}: kto has no flag seed" in found
    for key in ("packing", "liger"):
        assert f"{rows[key]}: recipe.{key} has neither flags nor a reason for kto" in found
    assert f"{rows['max_grad_norm']}: kto has no flag max_grad_norm" in found
    assert not [sentence for sentence in found if sentence.startswith(rows["epochs"])]


def test_a_key_without_proof_or_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(KEYS["beta"], proof=None)
    monkeypatch.setitem(KEYS, "beta", row)
    expected = f"{row.place}: recipe.beta has neither a proof nor a reason for trl_dpo"
    assert list(unexplained(TRAINERS["trl_dpo"])) == [expected]
    assert list(unexplained(TRAINERS["trl_sft"])) == [], "the loss of SFT has no beta"


def test_the_first_entry_that_names_a_trainer_counts() -> None:
    row = KEYS["loss_averaging"]
    assert row.reason(TRAINERS["dpo"]) != row.reason(TRAINERS["trl_dpo"])
    assert row.reason(TRAINERS["trl_dpo"]) == row.reason(TRAINERS["dpo_tune_cache"])
    assert row.fallback_value(TRAINERS["olmo_core_finetune"]) is None
    with pytest.raises(LookupError):
        row.fallback_value(TRAINERS["finetune"])


def test_a_key_with_a_reason_alone_has_its_default() -> None:
    assert recipe_mapping(TRAINERS["trl_grpo"], "liger") == {"false": {}}
    assert recipe_mapping(TRAINERS["finetune"], "beta") == {"null": {}}
    assert recipe_mapping(TRAINERS["dpo"], "lora.alpha") is None


def test_the_place_of_a_row_is_its_line() -> None:
    file, _, line = KEYS["beta"].place.partition(":")
    assert (
        (ROOT / file)
        .read_text(encoding="utf-8")
        .splitlines()[int(line) - 1]
        .startswith("    beta: ")
    )


@pytest.mark.parametrize("key", KEYS)
def test_the_help_of_a_key_says_what_it_is(key: str) -> None:
    """It is no fragment, such as `of DPO`, and no value alone, such as `null: no clipping`."""
    help = KEYS[key].help
    assert len(help.split()) >= 5, help
    assert re.match(r"(of|on|at|in|null|auto)\b", help) is None, help


def test_a_proof_is_evidence_that_the_worker_collects() -> None:
    evidence = {row.proof.evidence for row in KEYS.values() if row.proof is not None}
    assert evidence <= {*STATE, *EVIDENCE}


@pytest.mark.parametrize("key", [key for key, row in KEYS.items() if row.proof is not None])
def test_the_name_of_a_proof_leads_to_what_requests_it_and_what_reads_it(key: str) -> None:
    """The head of recipe_keys.py says so."""
    proof = KEYS[key].proof
    assert proof is not None
    if proof.requested == Requested.computed:
        planning = (ROOT / "launch/planning/expectations.py").read_text(encoding="utf-8")
        assert re.search(rf"\b_{proof.evidence}\b|\"{proof.evidence}\"", planning)
    lists = ("expectations.py", "sentences.py")
    files = [file for file in (ROOT / "launch/worker").rglob("*.py") if file.name not in lists]
    assert any(f'"{proof.evidence}"' in file.read_text(encoding="utf-8") for file in files)
