from __future__ import annotations

from pathlib import Path

import pytest

from launch.errors import UserError
from launch.execution.setting_differences import SettingDifference
from tests.trials.bench.benches import WORDS, planned


def refused(home: Path, *words: str, a: tuple[str, ...] = (), b: tuple[str, ...] = ()) -> list[str]:
    with pytest.raises(UserError) as error:
        planned(home, *WORDS, *words, a=a, b=b)
    assert all(problem.message and problem.cure for problem in error.value.problems)
    return [problem.id for problem in error.value.problems]


def test_each_run_has_a_folder_of_its_own_below_the_benchs(tmp_path: Path) -> None:
    bench = planned(tmp_path, *WORDS)
    assert bench.folder.parent == tmp_path / "runs" / "sft" and bench.folder.name.startswith(
        "bench-"
    )
    folders = {run.label: run.plan.folder for run in bench.runs}
    assert len(set(folders.values())) == 6 and {folder.parent for folder in folders.values()} == {
        bench.folder
    }
    assert folders["B2"].name == f"2b-gpu1-{bench.sides[1].plan.identity}"
    assert {run.plan.identity for run in bench.runs} == {side.plan.identity for side in bench.sides}


def test_repeats_and_steps_do_not_change_the_folder_and_another_setting_does(
    tmp_path: Path,
) -> None:
    bench = planned(tmp_path, *WORDS)
    assert planned(tmp_path, *WORDS, "steps=9", "repeats=7").folder == bench.folder
    assert planned(tmp_path, *WORDS, b=("recipe.per_device_batch_size=2",)).folder != bench.folder
    assert planned(tmp_path, *WORDS, "name=mine").folder.name == "bench-mine"


def test_what_differs_is_reported(tmp_path: Path) -> None:
    bench = planned(tmp_path, *WORDS, b=("recipe.per_device_batch_size=8", "recipe.liger=true"))
    assert bench.differences == [
        SettingDifference("per device x accumulation", ("4 x 32", "8 x 16")),
        SettingDifference("recipe.liger", ("false", "true")),
    ]
    flags = planned(
        tmp_path, *WORDS, a=("expandable_segments=false",), b=("flags.logging_steps=2",)
    )
    assert flags.differences == [
        SettingDifference("expandable_segments", ("false", "true")),
        SettingDifference("flags.logging_steps", (None, "2")),
    ]
    assert not bench.same_setting and not bench.planning_notes


def test_what_differs_between_trainers_is_reported_by_recipe_keys(tmp_path: Path) -> None:
    a = (
        "trainer=trl_sft",
        "recipe.learning_rate=1e-3",
        "recipe.packing=flatten",
        "recipe.liger=true",
    )
    bench = planned(
        tmp_path, "stage=demo", "gpus=2", "allow=[bench_data]", a=a, b=("trainer=finetune",)
    )
    differences = {row.name: row.values for row in bench.differences}
    assert differences["trainer"] == ("trl_sft", "finetune")
    assert differences["recipe.packing"] == ("flatten", "none") and differences["recipe.liger"] == (
        "true",
        "false",
    )
    assert differences["recipe.learning_rate"][0] == "0.001" and "recipe.seed" not in differences


def test_the_same_setting_twice_is_a_test_of_the_machine(tmp_path: Path) -> None:
    bench = planned(tmp_path, *WORDS, a=(), b=())
    assert bench.same_setting and not bench.differences


def test_another_global_batch_is_refused_unless_it_is_allowed(tmp_path: Path) -> None:
    other = ("recipe.global_batch_size=64",)
    assert refused(tmp_path, "steps=5", b=other) == ["bench_global_batch"]
    allowed = planned(tmp_path, *WORDS, "allow=[bench_global_batch]", a=(), b=other)
    assert [note.id for note in allowed.planning_notes] == ["bench_global_batch"]
    assert refused(tmp_path, "steps=5", b=("recipe.packing=bins",)) == ["bench_global_batch"]


@pytest.mark.parametrize(
    "other",
    [
        "data.mix=[{name: other/data}]",
        "data.fraction=0.5",
        "recipe.max_seq_length=512",
        "recipe.seed=7",
    ],
)
def test_other_data_is_refused_unless_it_is_allowed(tmp_path: Path, other: str) -> None:
    assert refused(tmp_path, "steps=5", b=(other,)) == ["bench_data"]
    assert not planned(tmp_path, *WORDS, "allow=[bench_data]", a=(), b=(other,)).same_setting


def test_numbers_that_measure_nothing(tmp_path: Path) -> None:
    assert refused(tmp_path, "steps=3") == ["bench_steps"]
    assert refused(tmp_path, "steps=9", "recipe.max_steps=8") == ["bench_steps"]
    assert refused(tmp_path, "name=a/b") == ["bad_name"]
    assert [note.id for note in planned(tmp_path, *WORDS, "repeats=1").planning_notes] == [
        "one_repeat"
    ]


def test_the_problems_of_both_settings_are_reported_at_once(tmp_path: Path) -> None:
    a, b = ("recipe.per_device_batch_size=3",), ("recipe.per_device_batch_size=7",)
    assert refused(tmp_path, "steps=5", a=a, b=b) == ["batch_not_divisible"] * 2
