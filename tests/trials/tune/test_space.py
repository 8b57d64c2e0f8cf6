"""Which settings are searched: those that are the same training, less what the user holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launch.config.recipe_keys import Packing
from launch.config.schema import Mode
from launch.errors import UserError
from launch.planning.build import build_plan
from launch.trials.tune.space import (
    BY_TOKENS,
    Candidate,
    Space,
    SplitWeighting,
    build_space,
    compare_loss,
    extra_options,
)
from tests.conftest import fixed_machine
from tests.trials.tune.searches import INSTALLED, composed_once

BASE = Candidate(1, Mode.zero3)


def space(*words: str, installed: tuple[str, ...] = INSTALLED) -> Space:
    built = composed_once(*words)
    return build_space(build_plan(built, fixed_machine()), installed)


def modes(built: Space) -> set[Mode]:
    return {candidate.mode for candidate in built.candidates}


def test_the_global_batch_is_held_by_every_setting() -> None:
    built = space("stage=sft_25pct", "gpus=8")
    assert built.base in built.candidates and len(set(built.candidates)) == len(built.candidates)
    assert {candidate.per_device for candidate in built.candidates} == {1, 2, 4, 8, 16}
    assert {candidate.packing for candidate in built.candidates} == {Packing.none, Packing.flatten}
    assert (
        {candidate.liger for candidate in built.candidates}
        == {candidate.checkpointing for candidate in built.candidates}
        == {False, True}
    )


def test_the_master_weights_are_held() -> None:
    """open-instruct loads bf16 weights: without ZeRO those are what the optimizer updates."""
    several = space("stage=sft", "gpus=8")
    assert modes(several) == {Mode.zero1, Mode.zero2, Mode.zero3, Mode.zero3_offload}
    assert any(why.startswith("ddp: ") for why in several.left_out)
    alone = space("stage=sft", "gpus=1")
    assert modes(alone) == {Mode.single}
    assert any("zero3_offload: it keeps fp32 master weights" in why for why in alone.left_out)
    trl = space("stage=sft", "gpus=8", "trainer=trl_sft")
    assert Mode.ddp in modes(trl)


def test_what_the_user_says_is_held() -> None:
    built = space(
        "stage=sft",
        "gpus=8",
        "recipe.liger=true",
        "parallel=zero2",
        "recipe.per_device_batch_size=4",
    )
    assert {candidate.liger for candidate in built.candidates} == {True}
    assert modes(built) == {Mode.zero2} and {
        candidate.per_device for candidate in built.candidates
    } == {4}
    assert {"recipe.liger", "parallel", "recipe.per_device_batch_size"} <= set(built.held)


def test_a_flag_that_is_held_is_what_is_predicted() -> None:
    """It wins over the recipe in the run, and so here."""
    # the stage's file says true
    off = space("stage=sft", "gpus=8", "flags.gradient_checkpointing=false")
    assert "recipe.gradient_checkpointing" in off.held and {
        candidate.checkpointing for candidate in off.candidates
    } == {False}
    packing = ("flags.packing=true", "allow=[packing_flag]")
    packed = space("stage=sft", "gpus=8", *packing, "recipe.per_device_batch_size=2")
    assert {candidate.packing for candidate in packed.candidates} == {Packing.flatten}
    allowed = "allow=[flag_over_recipe]"
    dpo = space(
        "stage=dpo",
        "gpus=8",
        "recipe.gradient_checkpointing=false",
        "flags.activation_memory_budget=0.5",
        allowed,
    )
    assert {candidate.checkpointing for candidate in dpo.candidates} == {True}
    assert {
        candidate.attention
        for candidate in space("stage=dpo", "gpus=8", "flags.attn_implementation=torch").candidates
    } == {"sdpa"}


def test_a_flag_that_no_word_stands_for_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"recipe.gradient_checkpointing=false.*=true \[unpredicted_flag\]"
    ):
        space("stage=dpo", "gpus=8", "flags.activation_memory_budget=0.3")


def test_bins_are_never_picked() -> None:
    built = space("stage=sft", "gpus=8", "trainer=trl_sft")
    assert Packing.bins not in {candidate.packing for candidate in built.candidates}
    assert "packing bins: it changes the global batch" in built.left_out


def test_one_sample_is_not_packed() -> None:
    assert not [
        candidate
        for candidate in space("stage=sft", "gpus=8").candidates
        if candidate.per_device == 1 and candidate.packing != "none"
    ]


def test_what_is_not_installed_is_not_tried() -> None:
    built = space("stage=sft", "gpus=8", "trainer=trl_sft", installed=("torch",))
    assert {candidate.liger for candidate in built.candidates} == {False}
    # zero3 is the recipe's own: that it lacks deepspeed, preflight says
    assert modes(built) == {Mode.zero3, Mode.ddp}


def test_on_a_cpu_there_is_no_liger_and_one_mode() -> None:
    built = space("stage=demo", "device=cpu", "processes=2")
    assert modes(built) == {Mode.ddp} and not any(candidate.liger for candidate in built.candidates)


def test_another_micro_batch_is_a_different_loss_where_tokens_are_not_weighted() -> None:
    built = composed_once("stage=sft", "gpus=8")
    plan = build_plan(built, fixed_machine())
    other = Candidate(8, Mode.zero2)
    assert compare_loss(Candidate(1, Mode.zero2), BASE, plan) == SplitWeighting.same
    assert compare_loss(Candidate(1, Mode.zero2, balanced=True), BASE, plan) == SplitWeighting.same
    assert compare_loss(other, BASE, plan) == SplitWeighting.micro_batches
    weighted = Candidate(8, Mode.zero2, averaging=BY_TOKENS)
    assert compare_loss(weighted, BASE, plan) == SplitWeighting.token_weighted
    assert (
        compare_loss(weighted, Candidate(1, Mode.zero3, averaging=BY_TOKENS), plan)
        == SplitWeighting.same
    )


def test_balanced_micro_batches_are_others_where_they_are_packed() -> None:
    words = ("stage=sft", "gpus=8", "recipe.balanced=true", "recipe.per_device_batch_size=8")
    plan = build_plan(composed_once(*words), fixed_machine())
    padded, packed = (
        Candidate(8, Mode.zero3, packing, balanced=True)
        for packing in (Packing.none, Packing.flatten)
    )
    assert compare_loss(packed, padded, plan) == SplitWeighting.micro_batches
    assert compare_loss(replace(padded, mode=Mode.zero2), padded, plan) == SplitWeighting.same
    assert (
        compare_loss(*(replace(candidate, balanced=False) for candidate in (packed, padded)), plan)
        == SplitWeighting.same
    )
    assert (
        compare_loss(*(replace(candidate, per_device=1) for candidate in (packed, padded)), plan)
        == SplitWeighting.same
    )
    others = [
        candidate
        for candidate in space(*words).candidates
        if candidate.per_device == 8 and candidate.packing == Packing.flatten
    ]
    assert {candidate.averaging for candidate in others if candidate.balanced} == {"sum"}


def test_dpo_py_weighs_pairs_by_the_tokens_of_their_micro_batch() -> None:
    """Upstream olmo_core_train_modules.py:236-243."""
    words = ("stage=dpo", "trainer=dpo", "model=olmo2_1b", "model.sft=some/model", "gpus=8")
    plan = build_plan(composed_once(*words), fixed_machine())
    own = Candidate(1, Mode.fsdp)
    assert compare_loss(replace(own, checkpointing=True), own, plan) == SplitWeighting.same
    assert compare_loss(replace(own, per_device=2), own, plan) == SplitWeighting.micro_batches


@pytest.mark.parametrize("words", [("stage=dpo",), ("stage=sft", "trainer=trl_sft")])
def test_pairs_and_trl_have_equal_weights_at_every_micro_batch(words: tuple[str, ...]) -> None:
    plan = build_plan(composed_once(*words, "gpus=8"), fixed_machine())
    assert compare_loss(Candidate(8, Mode.zero2), BASE, plan) == SplitWeighting.same


def test_a_setting_has_overrides_and_a_folder() -> None:
    candidate = Candidate(
        8, Mode.zero2, Packing.flatten, liger=True, extra=(("flags.dataloader_num_workers", 4),)
    )
    assert candidate.label(2) == "zero2-8x2-flatten-liger-dataloader_num_workers_4"
    assert {"parallel=zero2", "recipe.per_device_batch_size=8", "recipe.liger=true"} <= set(
        candidate.overrides()
    )
    assert (
        candidate.distance(candidate)
        == 0
        < candidate.distance(Candidate(8, Mode.zero3, Packing.flatten, liger=True))
    )


def test_what_nothing_predicts_is_the_buckets_and_trls_loader() -> None:
    plan = build_plan(composed_once("stage=sft", "gpus=8"), fixed_machine())
    assert extra_options(plan, Candidate(4, Mode.zero2)) == [("parallel.buckets", "small")]
    assert extra_options(plan, Candidate(4, Mode.zero3)) == [("parallel.buckets", "large")]
    trl = build_plan(composed_once("stage=sft", "gpus=1", "trainer=trl_sft"), fixed_machine())
    assert extra_options(trl, Candidate(4, Mode.single)) == [("flags.dataloader_num_workers", 4)]
    plan = build_plan(
        composed_once("stage=sft", "gpus=8", "parallel.buckets=large"), fixed_machine()
    )
    assert extra_options(plan, Candidate(4, Mode.zero3)) == []


def test_samples_that_ranks_share_are_not_dealt() -> None:
    shared = (
        "flags.sequence_parallel_size=2",
        "allow=[refused_value]",
        "recipe.loss_averaging=null",
    )
    built = space("stage=sft", "gpus=8", *shared)
    assert not any(candidate.balanced or candidate.averaging for candidate in built.candidates)
    assert any(
        candidate.balanced and candidate.averaging == "sum"
        for candidate in space("stage=sft", "gpus=8").candidates
    )
