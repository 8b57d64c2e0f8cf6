"""How a user switches guards off and changes their numbers; none of it changes what is trained."""

from __future__ import annotations

import pytest

from launch.errors import UserError
from launch.execution.record.checkpoints import RunLayouts
from launch.execution.supervise.watch import build_watch_config
from tests.conftest import composed, planned


@pytest.mark.parametrize("off", ["false", "null", "off", "False"])
def test_a_guard_is_switched_off(off: str) -> None:
    guards = composed("stage=demo", f"guards.stall={off}").config.guards
    assert guards is not None and guards.stall is None and guards.divergence is not None


@pytest.mark.parametrize("off", ["false", "null"])
def test_all_guards_are_switched_off(off: str) -> None:
    assert composed("stage=demo", f"guards={off}").config.guards is None


def test_a_number_is_changed() -> None:
    guards = composed("stage=demo", "guards.divergence.factor=3").config.guards
    assert guards is not None and guards.divergence is not None and guards.divergence.factor == 3


def test_a_misspelt_guard_and_a_word_for_a_number_are_refused() -> None:
    with pytest.raises(UserError, match=r"'guards.divergense'.*'guards.divergence="):
        composed("stage=demo", "guards.divergense=false")
    with pytest.raises(UserError, match="soon"):
        composed("stage=demo", "guards.stall.training=soon")


def test_guards_do_not_change_the_name_of_a_run() -> None:
    names = {
        planned("stage=demo", "device=cpu", *words).name
        for words in ([], ["guards=false"], ["guards.divergence.factor=3"])
    }
    assert len(names) == 1


def test_the_supervisor_is_told_what_the_plan_knows() -> None:
    words = ("stage=sft_25pct", "gpus=8", "recipe.checkpoint_steps=500", "allow=[throughput]")
    config = build_watch_config(planned(*words))
    assert config.guard_context.checkpoint_every == 500
    assert list(config.guard_context.ranks) == list(range(8))
    assert config.allow == ("throughput",)
    assert isinstance(config.layout, RunLayouts)
    latest = config.layout.latest
    assert (latest.world_size, latest.zero_stage) == (8, 3)
    # 8.03e9 parameters: bf16 weights, fp32 master weights and two moments
    assert config.checkpoint_bytes == pytest.approx(8.03e9 * 14)
    batch = config.situation.settings.batch
    assert batch is not None and batch.width == 8


def test_a_cure_is_planned_before_a_failed_run_is_told_it() -> None:
    plan = planned("stage=sft", "gpus=8", "trainer=finetune")
    plans = build_watch_config(plan).situation.settings.plans
    assert plans("recipe.per_device_batch_size=1") and plans(
        "recipe.per_device_batch_size=8 recipe.liger=true"
    )
    assert not plans("recipe.per_device_batch_size=7") and not plans("recipe.packing=bins")
