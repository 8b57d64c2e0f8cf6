"""The line of `tune`, and of its probes."""

from __future__ import annotations

from launch.config.line import parse_line
from launch.config.recipe_keys import Packing
from launch.config.schema import Mode
from launch.trials.tune.engine import full_line, line_for_candidate, read_tune_line
from launch.trials.tune.space import Candidate


def line(*words: str) -> tuple[str, ...]:
    return read_tune_line(parse_line(["tune", *words], ["tune"])).argv


def test_short_options_are_keys_of_tune() -> None:
    assert line("stage=sft", "probes=3", "dry_run=true") == (
        "stage=sft",
        "tune.probes=3",
        "tune.dry_run=true",
    )


def test_a_probe_replaces_the_lines_keys() -> None:
    request = read_tune_line(
        parse_line(["tune", "stage=sft", "gpus=8", "parallel=zero3", "name=mine"], ["tune"])
    )
    argv = line_for_candidate(request, Candidate(4, Mode.zero2, Packing.flatten)).argv
    assert "parallel=zero2" in argv and "parallel=zero3" not in argv and "name=mine" not in argv
    assert "recipe.per_device_batch_size=4" in argv and "recipe.packing=flatten" in argv


def test_full_fine_tuning_has_no_key_of_the_adapter() -> None:
    request = read_tune_line(
        parse_line(
            ["tune", "stage=lora_sft", "recipe.lora.rank=8", "recipe.lora.alpha=4"], ["tune"]
        )
    )
    assert full_line(request).argv == ("stage=lora_sft", "recipe.lora.rank=null")
