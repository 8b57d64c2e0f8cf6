"""The ranges of numbers: every number has one, and a value outside is refused where it is set."""

from __future__ import annotations

import copy
import dataclasses
import math
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.config.ranges import Range, find_keys_out_of_range, find_numbers
from launch.config.schema import MixConfig, RootConfig
from launch.errors import UserError
from tests.conftest import composed
from tests.messages import outline

# an overlay of `tune` is a record
CHECKED_ELSEWHERE = ("tuned", "trainer")


def numeric_keys(cls: Any, above: str = "") -> Iterator[tuple[str, type]]:
    for name, hint in typing.get_type_hints(cls).items():
        options = [option for option in (hint, *typing.get_args(hint)) if isinstance(option, type)]
        key = f"{above}{name}"
        if key in CHECKED_ELSEWHERE:
            continue
        for option in options:
            if option is MixConfig:
                yield from numeric_keys(MixConfig, "data.mix.")
            elif dataclasses.is_dataclass(option):
                yield from numeric_keys(option, f"{key}.")
            elif option in (int, float):
                yield key, option


KEYS = dict(numeric_keys(RootConfig))
RANGES = {
    key: allowed
    for key, _, allowed in (*find_numbers(RootConfig()), *find_numbers(MixConfig(), "data.mix."))
}


WITHOUT_RANGE = (
    "has no range: write its default as COUNT.of(50) or another of launch/config/ranges.py"
)


def keys_without_range() -> list[str]:
    return sorted(KEYS.keys() - RANGES.keys())


def test_every_number_has_a_range() -> None:
    assert [f"{key} {WITHOUT_RANGE}" for key in keys_without_range()] == []
    assert RANGES.keys() <= KEYS.keys()


def outside(allowed: Range) -> list[float]:
    """Numbers just outside a range."""
    values = [allowed.low - 1 if allowed.includes_low else allowed.low, allowed.low - 2]
    if allowed.high is not None:
        values.append(allowed.high + 1 if allowed.includes_high else allowed.high)
    return [value for value in values if value not in allowed.also]


def test_numbers_outside_are_refused() -> None:
    """Without composing: each key alone, with every kind of value that it must not have."""
    stage = composed("stage=sft", "recipe.lora.rank=8")
    for key in RANGES.keys() - {"data.mix.share"}:
        *nodes, name = key.split(".")
        values = outside(RANGES[key]) + (
            [math.nan, math.inf, -math.inf] if KEYS[key] is float else []
        )
        for value in values:
            config = copy.deepcopy(stage.config)
            node: Any = config
            for part in nodes:
                node = getattr(node, part)
            setattr(node, name, value)
            [problem] = find_keys_out_of_range(config, lambda key: stage.origins.of(key).where)
            assert problem.id == "out_of_range" and problem.message.startswith(f"{key} ")


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("recipe.warmup_ratio=3", ["0", "1", "3.0"]),
        ("recipe.learning_rate=nan", ["0"]),
        ("recipe.seed=4294967296", ["0", "4294967295", "4294967296"]),
        ("recipe.max_steps=3000000000", ["1", "2147483647", "3000000000"]),
        ("cluster.heartbeat=2", ["0", "2.0", "5"]),
        ("data.mix=[{name: a/b}, {name: c/d, share: -0.5}]", ["-0.5", "0", "1"]),
    ],
)
def test_the_message_names_the_range(override: str, values: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        composed("stage=sft", override)
    place = f"out_of_range at override {override.partition('=')[0]}"
    assert [value for value in outline(str(refused.value)).split(", ") if value[:5] != "data."] == [
        place,
        *values,
    ]


def test_a_number_in_a_file_is_refused_with_its_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "stage").mkdir()
    text = (
        "# @package _global_\ndefaults:\n  - sft\n  - _self_\nrecipe:\n  seed: 7\n  "
        "warmup_ratio: 30\n"
    )
    (tmp_path / "stage" / "mine.yaml").write_text(
        text + "guards:\n  stall:\n    training: 0\n", encoding="utf-8"
    )
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path))
    with pytest.raises(UserError) as refused:
        composed("stage=mine")
    places = [problem.where for problem in refused.value.problems]
    assert places == [f"{tmp_path}/stage/mine.yaml:7", f"{tmp_path}/stage/mine.yaml:10"]


@given(
    low=st.integers(-3, 3),
    size=st.integers(0, 4),
    value=st.integers(-8, 8),
    ends=st.tuples(st.booleans(), st.booleans()),
)
def test_a_range_holds_what_lies_between_its_bounds(
    low: int, size: int, value: int, ends: tuple[bool, bool]
) -> None:
    allowed = Range(low, low + size, *ends)
    inside = range(low if ends[0] else low + 1, low + size + 1 if ends[1] else low + size)
    assert allowed.contains(value) == (value in inside)


@pytest.mark.parametrize("value", [True, "0.5", None, [0.5], math.nan, math.inf])
def test_what_is_not_a_finite_number_is_in_no_range(value: object) -> None:
    assert not Range(0, 1).contains(value)
    assert Range(0, 1).describe(value) == "at least 0 and at most 1"
