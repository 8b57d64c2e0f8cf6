"""The overlay: what `+tuned=NAME` composes, where it warns, what the command line still decides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from launch.config.origins import Origin
from launch.errors import UserError
from launch.files import write_file
from launch.planning.build import build_plan
from launch.planning.plan import Plan
from launch.trials.tune.overlay import overlay_path, overlay_text
from launch.trials.tune.record import TuneRecord
from tests.conftest import composed, fixed_machine
from tests.trials.tune.searches import CARD, measured, record_in

STAGE = ("stage=sft", "gpus=8")


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TuneRecord:
    """A search whose overlay is written where the configuration finds it."""
    monkeypatch.delenv("LAUNCH_CONFIG_DIR", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return written(tmp_path, "zero2", *STAGE, "recipe.liger=true")


def written(home: Path, mode: str, *words: str) -> TuneRecord:
    """The search of `words` whose best setting has this mode, and its overlay `it`."""
    record = record_in(home, *words)
    best = next(
        estimate
        for estimate in record.estimates
        if estimate.prediction.candidate.mode == mode and estimate.is_open
    ).prediction
    record.runs = [measured(best, best.seconds)]
    path = overlay_path("it", {"XDG_CONFIG_HOME": str(home / "config")})
    write_file(path, overlay_text(record))
    return record


def plan(*words: str, card: str | None = None, **versions: str) -> Plan:
    return build_plan(composed(*words), replace(fixed_machine(), card=card, versions=versions))


def warnings(tuned: Plan) -> list[str]:
    return [str(warning) for warning in tuned.warnings if warning.id == "tuned_elsewhere"]


def test_it_says_the_whole_setting_and_what_was_held_too(record: TuneRecord) -> None:
    assert record.best is not None
    best = record.best.prediction.candidate
    tuned = plan(*STAGE, "+tuned=it")
    assert tuned.parallel.mode == best.mode == "zero2" and tuned.batch.per_device == best.per_device
    assert tuned.config.recipe.packing == best.packing and tuned.batch.global_ == 128
    text = overlay_path(
        "it", {"XDG_CONFIG_HOME": str(record.plan.runs.parent / "config")}
    ).read_text(encoding="utf-8")
    assert yaml.safe_load(text)["recipe"]["liger"] is True and tuned.config.recipe.liger
    assert (
        text.startswith("# @package _global_\n# Written by `launch tune`")
        and best.label(4)[:5] in text
    )


def test_what_the_command_line_held_need_not_be_repeated(
    record: TuneRecord, tmp_path: Path
) -> None:
    """Words, a flag and the buckets: the plan is the one that was measured."""
    words = (
        "recipe.liger=true",
        "recipe.packing=flatten",
        "recipe.per_device_batch_size=8",
        "parallel.buckets=large",
    )
    flag = "flags.gradient_checkpointing=false"
    best = written(tmp_path, "zero3", *STAGE, *words, flag).best
    assert best is not None and best.prediction.label.startswith("zero3-8x2-flatten-liger")
    tuned = plan(*STAGE, "+tuned=it")
    overrides = (*best.prediction.candidate.overrides(), "parallel.buckets=large", flag)
    assert (
        tuned.identity == plan(*STAGE, *overrides).identity
        and tuned.flags["use_liger_kernel"].value is True
    )


def test_the_usual_mode_is_written_too(record: TuneRecord, tmp_path: Path) -> None:
    """The stage's own mode is another one; at another width the usual mode of that width
    applies.
    """
    stage = tmp_path / "config" / "launch" / "stage" / "mine.yaml"
    text = "# @package _global_\ndefaults:\n  - sft\n  - override /parallel: zero2\n  - _self_\n"
    write_file(stage, text)
    mine = ("stage=mine", "gpus=8")
    written(tmp_path, "zero3", *mine)
    assert (
        plan(*mine).parallel.mode == "zero2" and plan(*mine, "+tuned=it").parallel.mode == "zero3"
    )
    assert plan(*mine, "+tuned=it", "parallel=zero1").parallel.mode == "zero1"
    alone = plan("stage=mine", "gpus=1", "+tuned=it", "recipe.per_device_batch_size=1")
    assert alone.parallel.mode == "single" and "width gpu8, here gpu1" in warnings(alone)[0]


def test_the_command_line_still_decides(record: TuneRecord) -> None:
    tuned = plan(
        *STAGE,
        "+tuned=it",
        "parallel=zero3",
        "recipe.per_device_batch_size=1",
        "recipe.liger=false",
    )
    assert (
        tuned.parallel.mode == "zero3"
        and tuned.batch.per_device == 1
        and not tuned.config.recipe.liger
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("stage=dpo", "gpus=8"),
            r"tuned/it.yaml:\d+: .*recipe.loss_averaging=sum.*\[unsupported_recipe\]",
        ),
        (("stage=sft", "gpus=3"), r"tuned/it.yaml:\d+: .*\[batch_not_divisible\]"),
        (
            ("stage=dpo", "gpus=8", "trainer=dpo", "model=olmo2_1b"),
            r"tuned/it.yaml:\d+: .*\[parallel_trainer\]",
        ),
    ],
)
def test_what_can_not_be_elsewhere_is_reported_with_the_overlays_line(
    record: TuneRecord, words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        plan(*words, "+tuned=it")


def test_a_value_says_that_it_comes_from_the_overlay(record: TuneRecord) -> None:
    origin = composed(*STAGE, "+tuned=it").origins.of("recipe.per_device_batch_size")
    assert (
        origin.origin == Origin.tuned
        and origin.where is not None
        and "tuned/it.yaml:" in origin.where
    )


def test_where_it_was_measured_there_is_no_warning(record: TuneRecord) -> None:
    assert warnings(plan(*STAGE, "+tuned=it")) == []
    assert warnings(plan(*STAGE, "+tuned=it", card=CARD, torch="2.11.0", trl="1")) == []


def test_another_width_card_version_or_batch_is_warned_of_in_one_sentence(
    record: TuneRecord,
) -> None:
    elsewhere = {"card": "NVIDIA A100-SXM4-80GB", "torch": "2.13.0"}
    (warning,) = warnings(
        plan("stage=sft", "gpus=4", "recipe.global_batch_size=64", "+tuned=it", **elsewhere)
    )
    for part in (
        "width gpu8, here gpu4",
        "global batch 128, here 64",
        "card NVIDIA H200, here NVIDIA A100",
        "torch 2.11.0",
    ):
        assert part in warning


def test_another_stage_and_another_length_are_warned_of(record: TuneRecord) -> None:
    (warning,) = warnings(
        plan("stage=sft_25pct", "gpus=8", "recipe.max_seq_length=2048", "+tuned=it")
    )
    assert "stage sft, here sft_25pct" in warning and "max_seq_length 4096, here 2048" in warning
    (flag,) = warnings(plan(*STAGE, "flags.max_seq_length=2048", "+tuned=it"))
    assert "max_seq_length 4096, here 2048" in flag


def test_the_plans_identity_is_that_of_the_same_overrides_set_by_hand(record: TuneRecord) -> None:
    assert record.best is not None
    words = record.best.prediction.candidate.overrides()
    assert plan(*STAGE, "recipe.liger=true", "+tuned=it").identity == plan(*STAGE, *words).identity


def test_an_overlay_that_is_not_there_is_reported(record: TuneRecord) -> None:
    with pytest.raises(UserError, match=r"'its'.*'tuned=it'.*\[unknown_tuned\]"):
        composed(*STAGE, "+tuned=its")


def test_the_folder_that_launch_config_dir_names_is_taken(tmp_path: Path) -> None:
    assert overlay_path("x", {"LAUNCH_CONFIG_DIR": str(tmp_path)}) == tmp_path / "tuned" / "x.yaml"
