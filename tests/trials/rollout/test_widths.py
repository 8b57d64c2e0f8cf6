from __future__ import annotations

from pathlib import Path

import pytest

from launch.errors import UserError
from tests.trials.rollout.plans import planned

WORDS = ("stage=sft", "trainer=trl_sft", "data.mix=[{name: some/data}]")


def refused(tmp_path: Path, *words: str) -> list[str]:
    with pytest.raises(UserError) as error:
        planned(tmp_path, *words)
    return [problem.id for problem in error.value.problems]


def test_the_widths_share_a_folder_and_have_one_each(tmp_path: Path) -> None:
    record = planned(tmp_path, *WORDS, "gpus=1,2,8")
    folder, runs = record.folder, record.runs
    assert folder.parent == tmp_path / "runs" / "sft" and folder.name.startswith("rollout-")
    for width in runs:
        assert width.plan.folder.parent == folder
        assert width.plan.folder.name == f"{width.label}-{width.plan.identity}"
    assert [width.label for width in runs] == ["gpu1", "gpu2", "gpu8"]


def test_the_id_does_not_depend_on_the_widths_the_steps_or_the_mode(tmp_path: Path) -> None:
    ids = {
        planned(tmp_path, *WORDS, *more).folder.name
        for more in (
            ["gpus=1,2"],
            ["gpus=8"],
            ["gpus=1,2", "steps=7"],
            ["gpus=1,2", "parallel_at_one=zero2"],
        )
    }
    assert len(ids) == 1
    assert planned(tmp_path, *WORDS, "gpus=1,2", "recipe.seed=9").folder.name not in ids


def test_a_width_has_the_full_runs_own_schedule(tmp_path: Path) -> None:
    """The steps of a rollout are no recipe.max_steps: that would compress warm-up and decay into
    them.
    """
    rollout = planned(tmp_path, *WORDS, "gpus=1,2", "steps=5")
    assert all("max_steps" not in width.plan.flags for width in rollout.runs)


def test_gates_and_steps_are_not_part_of_a_plans_identity(tmp_path: Path) -> None:
    plain = planned(tmp_path, *WORDS, "gpus=1")
    other = planned(
        tmp_path, *WORDS, "gpus=1", "gates.padding.much=0.1", "steps=3", "price_per_gpu_hour=9"
    )
    assert plain.plan.identity == other.plan.identity


def test_a_name_is_the_rollouts(tmp_path: Path) -> None:
    assert planned(tmp_path, *WORDS, "gpus=1,2", "name=mine").folder.name == "rollout-mine"
    assert refused(tmp_path, *WORDS, "gpus=1,2", "name=a/b") == ["bad_name"]


def test_an_impossible_last_width_is_reported_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\b3\b.*\b1, 2, 4, 8, 16\b") as error:
        planned(tmp_path, *WORDS, "gpus=1,2,3")
    assert [problem.id for problem in error.value.problems] == ["batch_not_divisible"]


def test_every_impossible_width_is_reported(tmp_path: Path) -> None:
    assert refused(tmp_path, *WORDS, "gpus=3,5") == ["batch_not_divisible"] * 2


def test_the_same_mistake_is_reported_once(tmp_path: Path) -> None:
    assert refused(tmp_path, "stage=sft", "data.mix=[]", "gpus=1,2,8") == ["no_data"]
