"""Where a value is set, in files that build on others."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.config.group_files import list_layers
from launch.resources import config_roots
from tests.conftest import composed

HEAD = "# @package _global_\n"
OWN = {
    "stage/self_first": f"{HEAD}defaults:\n  - _self_\n  - sft\nname: mine\nrecipe:\n  epochs: 7\n",
    "stage/without_self": f"{HEAD}defaults:\n  - sft\nrecipe:\n  epochs: 7\n",
    "stage/on_another": (
        f"{HEAD}defaults:\n  - without_self\n  - override /model: on_demo\n  - _self_\n"
        "recipe:\n  seed: 7\n"
    ),
    "model/on_demo": "defaults:\n  - demo\n  - _self_\nshape:\n  layers: 3\n",
    "model/round": "defaults:\n  - round\n",
}


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path))
    for name, text in OWN.items():
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_file_that_is_merged_before_its_base_sets_what_the_base_leaves(own: Path) -> None:
    line = composed("stage=self_first")
    epochs = line.origins.of("recipe.epochs")
    assert line.config.recipe.epochs == composed("stage=sft").config.recipe.epochs
    assert epochs.where and epochs.where.startswith("configs/tulu/stage/sft.yaml:")
    assert line.origins.of("name").where == f"{own}/stage/self_first.yaml:5"


def test_without_self_a_file_is_merged_after_its_base(own: Path) -> None:
    line = composed("stage=without_self")
    assert line.config.recipe.epochs == 7
    assert line.origins.of("recipe.epochs").where == f"{own}/stage/without_self.yaml:5"


def test_a_file_of_any_group_builds_on_others(own: Path) -> None:
    line = composed("stage=on_another")
    places = {key: line.origins.of(key).where for key in ("model.shape.layers", "model.build")}
    assert line.config.model.shape.layers == 3 and line.config.model.build == "demo"
    assert places == {
        "model.shape.layers": f"{own}/model/on_demo.yaml:5",
        "model.build": "configs/tulu/model/demo.yaml:3",
    }
    assert line.origins.chosen_by_stage("model") == "on_demo"
    assert line.origins.chosen_by_stage("trainer") == "finetune", "chosen by sft"
    assert line.origins.stage_file == f"{own}/stage/on_another.yaml"


def test_a_file_that_leads_back_to_itself_is_read_once() -> None:
    assert [path.stem for path in list_layers("model", "round", config_roots())] == ["round"]
