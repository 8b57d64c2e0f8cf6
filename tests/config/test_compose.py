"""Errors of Hydra and OmegaConf, in one sentence each."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.errors import UserError
from tests.composing import keep_files, read_anew
from tests.conftest import composed
from tests.messages import outline

# lines that tests/golden/mistakes.txt has not, and their outlines (tests/messages.py)
MISTAKES = {
    "stage=sft_25": "unknown_stage, sft_25, stage=sft, stage=sft_25pct",
    "stage=sft trainer=finetunes": "unknown_trainer, finetunes, trainer=finetune",
    "stage=sft bogus=1": "unknown_key, bogus, flags.bogus=1",
    "stage=sft recipe.packing=flaten": "bad_value, flaten, recipe.packing",
    "stage=sft recipe.liger=maybe": "bad_value, maybe, recipe.liger",
    "stage=sft recipe=[1]": "bad_value, launch help keys",
    "stage=sft data.mix=null": "bad_value, data.mix",
    "stage=sft allow=null": "bad_value",
    "stage=sft recipe.epochs=choice(1,2)": "bad_config, recipe.epochs, sweep=true",
    "stage=sft recipe=lora": "bad_value, launch help keys",
    "stage=sft data.fraction=${nope}": "bad_value, data.fraction",
    "stage=sft name=a=b": 'unreadable_override at override name=a=b, key=value, name="a=b"',
    "+stage=sft": "bad_config, stage=NAME",
    "stage=sft recipe.epochs@foo=1": "bad_config, recipe.epochs, recipe.epochs=VALUE",
    "stage=sft ~gpus": "bad_config",
    "stage=sft name=${name}": "bad_value",
    "stage=sft allow=[[disk]]": "unknown_id at override allow, allow=[['disk'], disk",
    "stage=sft recipe.seed=${name}": "bad_value, recipe.seed",
    "stage=sft name=${oc.env:NO_SUCH}": "bad_value",
    "stage=sft trainer.launch.x=1": "unknown_key, launch help keys, trainer.launch, trainer.launch.x",
    "stage=sft ~flags.x": "bad_config, flags.x",
    "stage=sft model=null": "bad_value, model=null",
    "stage=sft parallel=3": "bad_value, parallel=3, parallel=zero3",
    "stage=sft tuned=mine": "unknown_tuned at override +tuned=mine, mine, tune",
    "stage=sft hydra.run.dir=/tmp/x": "reserved_key at override hydra.run.dir, name=, runs=",
    "stage=sft +hydra.foo=1": "reserved_key at override hydra.foo",
    "stage=sft ++hydra.output_subdir=x": "reserved_key at override hydra.output_subdir, name=, "
    "runs=",
    "stage=sft hydra.mode=MULTIRUN": "reserved_key at override hydra.mode, sweep=true",
    "stage=sft hydra/launcher=x": "reserved_key at override hydra/launcher",
    "stage=sft +hydra/launcher=x": "reserved_key at override hydra/launcher",
    "stage=sft ~hydra": "reserved_key at override hydra",
    "stage=sft +hydra@recipe=1": "reserved_key at override hydra",
    "stage=sft +hydra.searchpath=[file:///tmp]": "reserved_key at override hydra.searchpath",
    "stage=sft hydrant=1": "unknown_key, flags.hydrant=1, hydrant",
    "stage=sft +tuned=mine": "unknown_tuned at override +tuned=mine, mine, tune",
}


@pytest.mark.parametrize("overrides", MISTAKES)
def test_a_mistake_is_one_sentence(overrides: str) -> None:
    with pytest.raises(UserError) as refused:
        composed(*overrides.split())
    assert "\n" not in str(refused.value)
    assert outline(str(refused.value)) == MISTAKES[overrides]


@pytest.mark.parametrize(
    "overrides",
    [
        "stage=sft model=qwen2_5_7b parallel=zero3 recipe.epochs=3 +flags.anything=1",
        "stage=lora_rlvr trainer=trl_grpo recipe.prompts_per_step=8 tracking=wandb",
    ],
)
def test_what_the_tests_keep_of_the_files_is_what_hydra_makes_of_them(
    overrides: str,
) -> None:
    first = composed(*overrides.split()[:2], "recipe.seed=3")  # the same choices, another value
    kept = composed(*overrides.split())
    read_anew()
    try:
        assert composed(*overrides.split()) == kept != first
        assert composed(*overrides.split()[:2], "recipe.seed=3") == first
    finally:
        keep_files()


def test_flags_are_open_and_everything_else_is_closed() -> None:
    assert composed("stage=sft", "flags.anything=[a,1.5]").config.flags == {"anything": ["a", 1.5]}
    with pytest.raises(UserError, match="unknown_key"):
        composed("stage=sft", "trainer.flag.anything=1")


def test_the_users_folder_is_searched_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stages = tmp_path / "stage"
    stages.mkdir()
    (stages / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - sft\n  - _self_\nrecipe:\n  seed: 77\n",
        encoding="utf-8",
    )
    (stages / "dpo.yaml").write_text(
        "# @package _global_\ndefaults:\n  - sft\n  - _self_\nrecipe:\n  seed: 78\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path))
    assert composed("stage=mine").config.recipe.seed == 77
    assert composed("stage=dpo").config.recipe.seed == 78
    assert composed("stage=sft").config.recipe.seed == 8


def test_an_overlay_is_added_where_there_are_some(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "mine.yaml").write_text(
        "# @package _global_\nrecipe:\n  seed: 77\n", encoding="utf-8"
    )
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path))
    for override in ("+tuned=mine", "tuned=mine"):
        assert composed("stage=sft", override).config.recipe.seed == 77
    with pytest.raises(UserError, match=r"'mien'.* \[unknown_tuned\]"):
        composed("stage=sft", "tuned=mien")


def test_a_missing_user_folder_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path / "nope"))
    with pytest.raises(UserError, match=r"^LAUNCH_CONFIG_DIR: .*\[no_config_dir\]"):
        composed("stage=sft")


def test_what_a_removed_node_leaves_without_a_value_is_named() -> None:
    with pytest.raises(UserError) as refused:
        composed("stage=sft", "~recipe")
    assert {problem.id for problem in refused.value.problems} == {"missing_value"}
    assert any("'recipe.learning_rate'" in problem.message for problem in refused.value.problems)


def test_what_the_tests_keep_of_a_users_file_ends_with_its_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path))
    (tmp_path / "stage").mkdir()
    for seed in (3, 4):
        text = f"# @package _global_\ndefaults:\n  - sft\n  - _self_\nrecipe:\n  seed: {seed}\n"
        (tmp_path / "stage" / "mine.yaml").write_text(text)
        assert composed("stage=mine").config.recipe.seed == seed
