from __future__ import annotations

import pytest

from launch.config.line import CommandLine, parse_line
from launch.errors import UserError
from launch.trials.rollout.request import (
    RequestedWidth,
    SubmitMode,
    read_rollout_request,
    read_widths,
)
from launch.trials.trial import PROBE, probe_line


def line(*words: str) -> CommandLine:
    return parse_line(["rollout", *words], ["rollout"])


def refused(*words: str) -> list[str]:
    with pytest.raises(UserError) as error:
        read_rollout_request(line(*words))
    assert all(problem.message and problem.cure for problem in error.value.problems)
    return [problem.id for problem in error.value.problems]


def test_the_widths_are_taken_before_hydra_reads_them() -> None:
    request = read_rollout_request(line("stage=sft", "gpus=1,2,8", "recipe.seed=3"))
    assert (request.key, request.widths) == (
        "gpus",
        (RequestedWidth(1, 1), RequestedWidth(2, 1), RequestedWidth(8, 1)),
    )
    assert request.line.argv == ("stage=sft", "recipe.seed=3")
    assert request.stage_line(RequestedWidth(8, 1)).argv == ("stage=sft", "recipe.seed=3", "gpus=8")
    assert request.stage_line(RequestedWidth(16, 2)).argv == (
        "stage=sft",
        "recipe.seed=3",
        "gpus=8",
        "nodes=2",
    )


def test_short_options_are_keys_of_the_rollout() -> None:
    request = read_rollout_request(
        line("stage=sft", "gpus=[1,2]", "steps=50", "then=run", "price_per_gpu_hour=2.5")
    )
    assert request.widths == (RequestedWidth(1, 1), RequestedWidth(2, 1))
    assert request.line.argv[1:] == (
        "rollout.steps=50",
        "rollout.then=run",
        "rollout.price_per_gpu_hour=2.5",
    )


def test_a_width_that_is_measured_leaves_nothing_elsewhere() -> None:
    words = (
        "stage=sft",
        "gpus=1,2",
        "tracking=wandb",
        "hub.push=me/it",
        "recipe.checkpoint_steps=10",
        "restart=true",
    )
    request = read_rollout_request(line(*words))
    assert probe_line(request.stage_line(RequestedWidth(2, 1))).argv == (
        "stage=sft",
        "restart=true",
        "gpus=2",
        *PROBE,
    )
    assert request.stage_line(RequestedWidth(2, 1)).argv == (
        *[word for word in words if not word.startswith("gpus")],
        "gpus=2",
    )


def test_the_mode_of_one_rank_wins_over_the_line() -> None:
    request = read_rollout_request(line("stage=sft", "gpus=1,2", "parallel=zero3"))
    assert request.stage_line(RequestedWidth(1, 1), "zero2").argv == (
        "stage=sft",
        "gpus=1",
        "parallel=zero2",
    )
    assert request.stage_line(RequestedWidth(2, 1)).argv == (
        "stage=sft",
        "parallel=zero3",
        "gpus=2",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", ["1"]),
        ("1,2,8", ["1", "2", "8"]),
        ("1, 2", ["1", "2"]),
        ("1x1,1x8", ["1", "8"]),
        ("[2,4]", ["2", "4"]),
        ("8,2x8,8x8", ["8", "2x8", "8x8"]),
        ("4,2x2,4x1", ["4", "2x2", "4x1"]),  # the same ranks on more nodes is wider
    ],
)
def test_widths(text: str, expected: list[str]) -> None:
    assert [str(width) for width in read_widths(text, "gpus")] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2,1", "widths_not_ascending"),
        ("1,2,1", "widths_not_ascending"),
        ("1,1", "widths_not_ascending"),
        ("0,1", "bad_width"),
        ("-1", "bad_width"),
        ("", "bad_width"),
        ("1,", "bad_width"),
        ("two", "bad_width"),
        ("1.5", "bad_width"),
        ("2x8,8", "widths_not_ascending"),
        ("2x2,4", "widths_not_ascending"),
        ("8,1x8", "widths_not_ascending"),
        ("0x8", "bad_width"),
        ("2x", "bad_width"),
        ("1x0", "bad_width"),
    ],
)
def test_widths_that_are_none(text: str, expected: str) -> None:
    assert refused("stage=sft", f"gpus={text}") == [expected]


def test_what_a_rollout_cannot_be() -> None:
    assert refused("stage=sft") == ["no_widths"]
    assert refused("stage=sft", "gpus=1", "processes=1") == ["device_conflict"]
    assert refused("stage=sft", "gpus=1,2", "gpus=4") == ["duplicate_override"]
    assert refused("stage=sft", "gpus=1,2", "submit=true") == ["bad_value"]
    assert refused("stage=sft", "gpus=1,2", "submit=all", "dry_run=1") == ["bad_value"]
    assert refused("stage=sft", "gpus=1,2", "submit=rest", "dry_run=true") == ["bad_value"]


def test_which_widths_become_jobs() -> None:
    request = read_rollout_request(line("stage=sft", "gpus=1,2x8", "submit=all", "dry_run=true"))
    assert (request.submit, request.dry_run, request.widths_override) == (
        SubmitMode.all,
        True,
        "gpus=1,2x8",
    )
    assert request.line.argv == ("stage=sft",)
    assert read_rollout_request(line("stage=sft", "gpus=1")).submit == SubmitMode.none


def test_taken_leaves_hydras_own_flags_alone() -> None:
    values, rest = line("--package", "gpus=1", "++gpus=2", "stage=sft").pop_overrides(("gpus",))
    assert values == {"gpus": "2"}
    assert rest.argv == ("--package", "gpus=1", "stage=sft")
