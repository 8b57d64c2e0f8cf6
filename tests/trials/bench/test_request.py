from __future__ import annotations

import pytest

from launch.config.line import CommandLine, parse_line
from launch.errors import UserError
from launch.trials.bench.engine import read_bench_request


def line(*words: str) -> CommandLine:
    return parse_line(["bench", *words], ["bench"])


def refused(*words: str) -> list[str]:
    with pytest.raises(UserError) as error:
        read_bench_request(line(*words))
    assert all(problem.message and problem.cure for problem in error.value.problems)
    return [problem.id for problem in error.value.problems]


def test_the_line_is_split_and_short_options_are_keys_of_the_bench() -> None:
    request = read_bench_request(
        line(
            "stage=sft", "steps=8", "max_minutes=3", "--", "parallel=zero3", "--", "parallel=zero2"
        )
    )
    assert request.common.argv == ("stage=sft", "bench.steps=8", "bench.max_minutes=3")
    assert request.line(0).argv == (*request.common.argv, "parallel=zero3")
    assert request.line(1).argv == (*request.common.argv, "parallel=zero2")


def test_a_settings_own_overrides_win_over_the_common_overrides() -> None:
    request = read_bench_request(
        line("stage=sft", "recipe.packing=none", "--", "--", "recipe.packing=flatten")
    )
    assert request.line(0).argv == ("stage=sft", "recipe.packing=none")
    assert request.line(1).argv == ("stage=sft", "recipe.packing=flatten")
    request = read_bench_request(
        line(
            "stage=sft", "parallel.mode=zero3", "--", "parallel=zero2", "--", "parallel.mode=zero1"
        )
    )
    assert request.line(0).argv == ("stage=sft", "parallel=zero2")
    assert request.line(1).argv == ("stage=sft", "parallel.mode=zero1")


@pytest.mark.parametrize(
    "words",
    [("stage=sft",), ("stage=sft", "--", "parallel=zero2"), ("stage=sft", "--", "--", "--")],
)
def test_two_settings_are_needed(words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        read_bench_request(line(*words))
    assert [problem.id for problem in error.value.problems] == ["bench_settings"]


def test_bench_keys_are_refused_for_a_single_setting() -> None:
    assert refused("stage=sft", "--", "steps=3", "--", "repeats=2") == ["bench_common"] * 2
    assert refused("stage=sft", "--", "bench.steps=3", "--") == ["bench_common"]
    assert refused("stage=sft", "--", "name=x", "--", "--cfg") == ["bench_common"] * 2
    assert refused("stage=sft", "steps=3", "steps=4", "--", "--") == ["duplicate_override"]
