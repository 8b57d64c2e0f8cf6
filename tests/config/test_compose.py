"""Errors of Hydra and OmegaConf, in one sentence each."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.errors import UserError
from tests.conftest import composed

MISTAKES = {
    "stage=sft_25": r"there is no stage 'sft_25'; did you mean 'stage=sft_25pct'.*\[unknown_stage\]",
    "stage=sft nodes=x": r"nodes must be an integer, got 'x' \[bad_value\]",
    "": r"'plan' needs a stage; set stage=NAME, one of demo, demo_dpo, .*\[no_stage\]",
    "stage=sft trainer=foo": r"there is no trainer 'foo'; choose from .*finetune.*\[unknown_trainer\]",
    "stage=sft trainer=finetunes": r"there is no trainer 'finetunes'; did you mean .*'trainer=finetune'.*",
    "stage=sft parallel=zero4": r"there is no parallel 'zero4'; did you mean 'parallel=zero3'.*\[unknown_parallel\]",
    "stage=sft recipe.learnin_rate=1": r"no key 'recipe.learnin_rate'; did you mean 'recipe.learning_rate=1'\?",
    "stage=sft learning_rate=1": r"there is no key 'learning_rate'; set recipe.learning_rate=1 ",
    "stage=sft bogus=1": r"there is no key 'bogus'; a trainer's own flag is set as flags.bogus=1 \[unknown_key\]",
    "stage=sft recipe.learning_rate=abc": r"recipe.learning_rate must be a number, got 'abc' \[bad_value\]",
    "stage=sft gpus=two": r"gpus must be an integer, got 'two' \[bad_value\]",
    "stage=sft recipe.packing=flaten": r"recipe.packing must be one of none, flatten, bins, got 'flaten' \[bad_value\]",
    "stage=sft gpus=1.5": r"gpus must be an integer, got '1.5' \[bad_value\]",
    "stage=sft recipe.liger=maybe": r"recipe.liger must be true or false, got 'maybe' \[bad_value\]",
    "stage=sft recipe=[1]": r"recipe has keys of its own, got a list; `launch help keys` lists .* recipe \[bad_value\]",
    "stage=sft data.mix=null": r"data.mix must have a value, got null \[bad_value\]",
    "stage=sft allow=null": r"allow must have a value, got null \[bad_value\]",
    "stage=sft recipe.epochs=choice(1,2)": r"recipe.epochs has several values; add sweep=true .*\[bad_config\]",
    "stage=sft recipe=lora": r"recipe has keys of its own, got lora; `launch help keys` lists .* recipe \[bad_value\]",
    "stage=sft recipe.lora=8": r"recipe.lora has keys of its own, got 8; set recipe.lora.rank=8 \[bad_value\]",
    "stage=sft ~recipe.epochs": r"recipe.epochs cannot be removed: set it to another value \[bad_value\]",
    "stage=sft data.fraction=${nope}": r"data.fraction refers to nope, which does not exist \[bad_value\]",
    "stage=sft name=a=b": r"override name=a=b: .*; quote the value.*\[unreadable_override\]",
    "+stage=sft": r"stage has a value already; write stage=NAME without a plus \[bad_config\]",
    "stage=sft recipe.epochs@foo=1": r"recipe.epochs takes no @; write recipe.epochs=VALUE \[bad_config\]",
    "stage=sft ~gpus": r"gpus has no value that could be removed; leave ~gpus out \[bad_config\]",
    "stage=sft model=null": r"model=null must be the name of a file of configs/tulu; set its name \[bad_value\]",
    "stage=sft parallel=3": r"parallel=3 must be the name of a file of configs/tulu; set parallel=zero3 \[bad_value\]",
    "stage=sft tuned=mine": r"there is no overlay 'mine' in .*; `tune` writes one \[unknown_tuned\]",
    "stage=sft hydra.run.dir=/tmp/x": r"hydra.run.dir cannot be set: .*; runs= and name= .*\[reserved_key\]",
    "stage=sft +hydra.foo=1": r"hydra.foo cannot be set: launch sets it; remove it \[reserved_key\]",
    "stage=sft ++hydra.output_subdir=x": r"runs= and name= set where a run writes \[reserved_key\]",
    "stage=sft hydra.mode=MULTIRUN": r"add sweep=true to run each value of a list in turn \[reserved_key\]",
    "stage=sft hydra/launcher=x": r"\[reserved_key\]",
    "stage=sft +hydra/launcher=x": r"\[reserved_key\]",
    "stage=sft ~hydra": r"\[reserved_key\]",
    "stage=sft +hydra@recipe=1": r"\[reserved_key\]",
    "stage=sft +hydra.searchpath=[file:///tmp]": r"LAUNCH_CONFIG_DIR names the folder.*\[reserved_key\]",
    "stage=sft hydrant=1": r"no key 'hydrant'.*\[unknown_key\]",
    "stage=sft +tuned=mine": r"there is no overlay 'mine' in .*; `tune` writes one \[unknown_tuned\]",
}


@pytest.mark.parametrize("overrides", MISTAKES)
def test_a_mistake_is_one_sentence(overrides: str) -> None:
    with pytest.raises(UserError, match=MISTAKES[overrides]) as refused:
        composed(*overrides.split())
    assert "\n" not in str(refused.value)


def test_flags_are_open_and_everything_else_is_closed() -> None:
    assert composed("stage=sft", "flags.anything=[a,1.5]").config.flags == {"anything": ["a", 1.5]}
    with pytest.raises(UserError, match="unknown_key"):
        composed("stage=sft", "trainer.flag.anything=1")


def test_the_users_folder_is_searched_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stages = tmp_path / "stage"
    stages.mkdir()
    (stages / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - sft\n  - _self_\nrecipe:\n  seed: 77\n", encoding="utf-8"
    )
    (stages / "dpo.yaml").write_text(
        "# @package _global_\ndefaults:\n  - sft\n  - _self_\nrecipe:\n  seed: 78\n", encoding="utf-8"
    )
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path))
    assert composed("stage=mine").config.recipe.seed == 77
    assert composed("stage=dpo").config.recipe.seed == 78
    assert composed("stage=sft").config.recipe.seed == 8


def test_an_overlay_is_added_where_there_are_some(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "mine.yaml").write_text("# @package _global_\nrecipe:\n  seed: 77\n", encoding="utf-8")
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path))
    for override in ("+tuned=mine", "tuned=mine"):
        assert composed("stage=sft", override).config.recipe.seed == 77
    with pytest.raises(UserError, match=r"there is no overlay 'mien' in .* \[unknown_tuned\]"):
        composed("stage=sft", "tuned=mien")


def test_a_missing_user_folder_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path / "nope"))
    with pytest.raises(
        UserError, match=r"LAUNCH_CONFIG_DIR: .* does not exist or is not a folder; create it, or unset the variable"
    ):
        composed("stage=sft")


def test_what_a_removed_node_leaves_without_a_value_is_named() -> None:
    with pytest.raises(UserError) as refused:
        composed("stage=sft", "~recipe")
    assert {problem.id for problem in refused.value.problems} == {"missing_value"}
    assert "'recipe.learning_rate' has no value" in str(refused.value)
