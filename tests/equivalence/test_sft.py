"""SFT then and now: the same batches, rates and weights, at any width; without the stage's setting
they differ.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.equivalence import runs
from tests.equivalence.runs import (
    BF16,
    GLOBAL,
    STEPS,
    Kit,
    Measure,
    Trained,
    train_launch,
    train_old,
)

Sft = Callable[..., Trained]
# A warm-up of whole steps at every width: the scripts round it down before the ranks divide it.
_RECIPE = (
    "--warmup_ratio",
    "0.2",
    "--learning_rate",
    "1e-3",
    "--lr_scheduler_type",
    "linear",
    "--weight_decay",
    "0.0",
)
# of the update: fp32 sums in another order; thirty times what two widths of the old script are
# apart
ROUNDING = 1e-5


@pytest.fixture(scope="session")
def old(kit: Kit, tmp_path_factory: pytest.TempPathFactory) -> Sft:
    """Train with the script before #1024; the same training is done once."""

    @cache
    def train(
        ranks: int = 2, *, per_device: int = 1, reduce: str = "sum", fp32: bool = True
    ) -> Trained:
        flags = [
            *(
                "--tokenizer_name_or_path",
                str(kit.model),
                "--verbose",
                "True",
                "--dataset_skip_cache",
                "True",
            ),
            *(
                "--do_not_randomize_output_dir",
                "True",
                "--add_seed_and_date_to_exp_name",
                "False",
                "--seed",
                "8",
            ),
            *sft_flags(kit, GLOBAL // ranks // per_device, per_device, reduce),
        ]
        stand_ins = runs.BOTH if fp32 else BF16
        folder = tmp_path_factory.mktemp("old")
        return train_old(folder, kit.source, "finetune.py", flags, ranks=ranks, stand_ins=stand_ins)

    return train


def sft_flags(kit: Kit, accumulation: int, per_device: int = 1, reduce: str = "sum") -> list[str]:
    """Return the flags that both old scripts take, but for the seed."""
    return [
        *(
            "--model_name_or_path",
            str(kit.model),
            "--dataset_mixer_list",
            str(kit.chats),
            "1.0",
            *_RECIPE,
        ),
        *("--per_device_train_batch_size", str(per_device)),
        *("--gradient_accumulation_steps", str(accumulation)),
        *("--max_train_steps", str(STEPS), "--max_seq_length", "128", "--clip_grad_norm", "1.0"),
        *("--reduce_loss", reduce, "--logging_steps", "1", "--use_flash_attn", "False"),
        *(
            "--chat_template_name",
            "tulu",
            "--gradient_checkpointing",
            "True",
            "--output_dir",
            "out",
        ),
        *("--push_to_hub", "False", "--try_launch_beaker_eval_jobs", "False"),
    ]


@pytest.fixture(scope="session")
def new(kit: Kit, tmp_path_factory: pytest.TempPathFactory) -> Sft:
    """Train the stage `sft` of `launch`; `overrides` are further ones."""

    @cache
    def train(*overrides: str, ranks: int = 2, fp32: bool = True) -> Trained:
        recipe = (
            *(
                "stage=sft",
                f"model.path={kit.model}",
                f"data.mix=[{{name: {kit.chats}}}]",
                "recipe.max_steps=10",
            ),
            *("recipe.max_seq_length=128", "recipe.learning_rate=1e-3", "recipe.warmup_ratio=0.2"),
            *("recipe.checkpoint_steps=null", *overrides),
        )
        stand_ins = runs.BOTH if fp32 else BF16
        return train_launch(
            tmp_path_factory.mktemp("new"), recipe, ranks=ranks, stand_ins=stand_ins
        )

    return train


@pytest.mark.slow
def test_the_stage_trains_as_tulu_3_did(old: Sft, new: Sft, measure: Measure) -> None:
    then, now = old(), new()
    assert len(then.batches) == 2
    assert now.batches == then.batches
    assert now.rates == then.rates
    assert [rate for [rate] in now.rates][:4] == [0, 5e-4, 1e-3, pytest.approx(8.75e-4)]
    assert then.norms == pytest.approx([1.0] * STEPS, rel=1e-5)  # the sum is always clipped
    assert now.norms == pytest.approx(then.norms, rel=1e-5)
    lengths = [len(sample) for step in range(STEPS) for sample in then.samples(step)]
    assert max(lengths) == 128 and min(lengths) < 30  # some are cut, others are short
    assert measure(then, now) < ROUNDING


@pytest.mark.equivalence
@pytest.mark.parametrize(("averaging", "least"), [("micro_batch_means", 0.3), ("tokens", 0.01)])
def test_another_averaging_is_another_training(
    old: Sft, new: Sft, measure: Measure, averaging: str, least: float
) -> None:
    then, now = old(), new(f"recipe.loss_averaging={averaging}")
    assert now.batches == then.batches
    assert now.rates == then.rates
    assert measure(then, now) > least


@pytest.mark.equivalence
def test_micro_batch_means_are_the_old_mean(old: Sft, new: Sft, measure: Measure) -> None:
    assert measure(old(reduce="mean"), new("recipe.loss_averaging=micro_batch_means")) < ROUNDING


@pytest.mark.equivalence
@pytest.mark.parametrize(
    ("ranks", "overrides"),
    [
        (1, ()),
        (4, ()),
        (2, ("recipe.per_device_batch_size=2",)),
        (2, ("recipe.per_device_batch_size=2", "recipe.balanced=true")),
        (2, ("recipe.per_device_batch_size=2", "recipe.packing=flatten")),
        (1, ("recipe.per_device_batch_size=2", "recipe.packing=flatten", "recipe.balanced=true")),
        (4, ("recipe.balanced=true",)),
    ],
)
def test_every_width_packing_and_order_trains_the_same(
    old: Sft, new: Sft, measure: Measure, ranks: int, overrides: tuple[str, ...]
) -> None:
    then, now = old(), new(*overrides, ranks=ranks)
    assert [now.samples(step) for step in range(STEPS)] == [
        then.samples(step) for step in range(STEPS)
    ]
    assert now.rates == [[pytest.approx(rate)] for [rate] in then.rates]
    assert measure(then, now) < ROUNDING


@pytest.mark.equivalence
@pytest.mark.parametrize(("ranks", "per_device"), [(1, 1), (4, 1), (2, 2)])
def test_the_old_script_at_other_widths(
    old: Sft, new: Sft, measure: Measure, ranks: int, per_device: int
) -> None:
    """At two samples a device its gradient is twice as long before it is clipped, and the same
    after that.
    """
    then = old(ranks, per_device=per_device)
    now = new(f"recipe.per_device_batch_size={per_device}", ranks=ranks)
    assert now.batches == then.batches
    assert now.rates == then.rates
    assert measure(then, old(), "of two widths") < ROUNDING
    assert measure(then, now) < ROUNDING


@pytest.mark.equivalence
def test_untouched_scripts_agree_to_the_noise_of_bf16(old: Sft, new: Sft, measure: Measure) -> None:
    """The bound is how far two runs of the old script are apart that only differ in the order of
    summation.
    """
    then, other_order, now = old(fp32=False), old(1, fp32=False), new(fp32=False)
    assert now.batches == then.batches
    assert measure(then, now) < 1.5 * measure(then, other_order, "noise")


@pytest.mark.equivalence
def test_the_release(release: Path, kit: Kit, new: Sft, tmp_path: Path, measure: Measure) -> None:
    """The script of November 2024 shuffled rows by 42 whatever the seed, so the seed is 42 on both
    sides.
    """
    flags = [*sft_flags(kit, accumulation=2), "--seed", "42"]
    then = train_old(tmp_path / "release", release, "finetune.py", flags)
    now = new("recipe.seed=42")
    assert now.batches == then.batches
    assert now.rates == then.rates
    assert measure(then, now) < ROUNDING
