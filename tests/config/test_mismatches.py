"""Plain data compared with the schema: each key that is wrong, with what it must be."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launch.config.mismatches import find_mismatches
from launch.config.nodes import find_hint
from launch.config.schema import RootConfig

# plain data, and the keys of it that are wrong, with what their values must be
WRONG: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"gpus": "two"}, {"gpus": "must be an integer, got 'two'"}),
    ({"recipe": {"epochs": 1.5}}, {"recipe.epochs": "must be an integer, got '1.5'"}),
    ({"recipe": {"learning_rate": "abc"}}, {"recipe.learning_rate": "must be a number, got 'abc'"}),
    ({"recipe": {"liger": "maybe"}}, {"recipe.liger": "must be true or false, got 'maybe'"}),
    ({"device": "tpu"}, {"device": "must be one of cuda, cpu, got 'tpu'"}),
    ({"device": ["cpu"]}, {"device": "must be a single word, got ['cpu']"}),
    ({"name": ["a"]}, {"name": "must be a text, got ['a']"}),
    ({"recipe": {"seed": None}}, {"recipe.seed": "must have a value, got null"}),
    ({"recipe": [1]}, {"recipe": "has keys of its own, got a list"}),
    ({"recipe": {"lora": 8}}, {"recipe.lora": "has keys of its own, got 8"}),
    ({"flags": 3}, {"flags": "has keys of its own, got a single value"}),
    ({"allow": {"a": "b"}}, {"allow": "must be a list: [A,B]"}),
    (
        {"data": {"mix": [{"name": "a", "share": "much"}, "b", {"nme": "c"}]}, "bogus": 1},
        {
            "data.mix[0].share": "must be a number, got 'much'",
            "data.mix[1]": "has keys of its own, got b",
            "data.mix[2].nme": "is not a key",
            "bogus": "is not a key",
        },
    ),
]
RIGHT: list[dict[str, Any]] = [
    {"recipe": {"epochs": "3", "learning_rate": "1e-5", "liger": "yes", "warmup_ratio": None}},
    {"recipe": {"seed": "${recipe.epochs}", "packing": "bins", "lora": {"targets": ["q_proj"]}}},
    {"flags": {"anything": [1, {"a": None}]}, "guards": None, "name": 3, "allow": []},
    {"data": {"mix": [{"name": "a", "share": 1}], "columns": {"prompt": "question"}}},
]


@pytest.mark.parametrize(("data", "problems"), WRONG)
def test_what_is_wrong_is_named(data: dict[str, Any], problems: dict[str, str]) -> None:
    found = {found.key: found.problem for found in find_mismatches(data, RootConfig)}
    assert found == problems
    with pytest.raises(OmegaConfBaseException):
        OmegaConf.merge(OmegaConf.structured(RootConfig), data)


@pytest.mark.parametrize("data", RIGHT)
def test_what_omegaconf_takes_is_right(data: dict[str, Any]) -> None:
    assert not list(find_mismatches(data, RootConfig))
    OmegaConf.merge(OmegaConf.structured(RootConfig), data)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("recipe.epochs", int),
        ("data.mix.0.share", float),
        ("flags.any.thing", Any),
        ("recipe.epochs.more", None),
        ("data.mix.first", None),
        ("bogus", None),
    ],
)
def test_the_type_of_a_key(key: str, hint: object) -> None:
    assert find_hint(RootConfig, key) is hint
