"""What `__post_init__` refuses: upstream's own rules by name, and the evaluator against the real classes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.upstream.pin.lock import locked_schema
from launch.upstream.rules.contradictions import find_contradictions
from launch.upstream.rules.conversion import UNKNOWN
from launch.upstream.rules.post_init import run_post_init
from launch.upstream.rules.unknown import Unknown
from launch.upstream.schema import Schema
from tests.upstream.captured import capture_script, synthetic_schema

MODEL = {"model_name_or_path": "m"}


@pytest.mark.parametrize(
    ("trainer", "values", "message", "where", "flags"),
    [
        (
            "finetune",
            {"push_to_hub": False},
            "Cannot launch Beaker evaluation jobs without pushing to the Hub.",
            "open_instruct/finetune.py:335",
            {"try_launch_beaker_eval_jobs", "push_to_hub"},
        ),
        (
            "finetune",
            {"final_lr_ratio": 0.1, "lr_scheduler_type": "cosine"},
            "final_lr_ratio only currently implemented for linear schedulers",
            "open_instruct/finetune.py:338",
            {"final_lr_ratio", "lr_scheduler_type"},
        ),
        (
            "finetune",
            {"final_lr_ratio": 1.5},
            "final_lr_ratio must be between 0 and 1, not self.final_lr_ratio=1.5",
            "open_instruct/finetune.py:340",
            {"final_lr_ratio"},
        ),
        (
            "finetune",
            {"dataset_name": "d"},
            "Cannot provide two dataset selection mechanisms.",
            "open_instruct/finetune.py:333",
            {"dataset_name", "dataset_mixer", "dataset_mixer_list"},
        ),
        (
            "finetune",
            {"additional_model_arguments": "{"},
            "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
            "open_instruct/finetune.py:348",
            {"additional_model_arguments"},
        ),
        (
            "dpo_tune_cache",
            {**MODEL, "zero_stage": 4},
            "zero_stage must be 0, 1, 2, or 3, got 4",
            "open_instruct/dpo_utils.py:357",
            {"zero_stage"},
        ),
        (
            "dpo",
            {**MODEL, "zero_stage": 2, "offload_param": True},
            "offload_param can only be used with zero_stage 3",
            "open_instruct/dpo_utils.py:359",
            {"zero_stage", "offload_param"},
        ),
        (
            "grpo_fast",
            {**MODEL, "load_ref_policy": False},
            (
                "When load_ref_policy=False, beta must be 0.0. "
                "Got beta=0.05. Set --beta 0.0 or --load_ref_policy to use KL penalty."
            ),
            "open_instruct/grpo_utils.py:319",
            {"load_ref_policy", "beta"},
        ),
        (
            "grpo_fast",
            {**MODEL, "max_steps": 0},
            "max_steps must be >= 1, got 0",
            "open_instruct/environments/tools/utils.py:71",
            {"max_steps"},
        ),
    ],
)
def test_upstream_rules_at_the_pin(
    *, trainer: str, values: dict[str, Any], message: str, where: str, flags: set[str]
) -> None:
    (contradiction,) = find_contradictions(locked_schema(trainer), values)
    assert (contradiction.message, contradiction.where, set(contradiction.flags), contradiction.certain) == (
        message,
        where,
        flags,
        True,
    )


@pytest.mark.parametrize(
    "trainer", ["finetune", "dpo_tune_cache", "dpo", "olmo_core_finetune", "reward_modeling", "grpo"]
)
def test_defaults_contradict_nothing(trainer: str, schema_of: Callable[[str], Schema]) -> None:
    assert [c for c in find_contradictions(schema_of(trainer), MODEL) if c.certain] == []


@pytest.mark.parametrize("in_process", [True, False])
def test_unknown_values_and_the_machine(tmp_path: Path, in_process: bool) -> None:
    """The lock's code is executed here; that of a checkout by a process of its own, with the same result."""
    script = """
    import os
    from dataclasses import dataclass, field
    from transformers import HfArgumentParser

    @dataclass
    class Base:
        def __post_init__(self):
            if self.a > 3 and os.environ.get("HOME"):
                raise ValueError("only on some machines")
            self.b = self.b or self.a
            if detect():
                self.c = "detected"
            if self.c == "bad":
                raise ValueError("bad c")
            if self.a == 1:
                raise ValueError("one")

    @dataclass
    class Args(Base):
        a: int = 0
        b: int = 0
        c: str = "good"
        d: list[str] = field(default_factory=list)

        def __post_init__(self):
            super().__post_init__()
            for item in self.d:
                if item.startswith("x"):
                    raise ValueError(f"{item!r} starts with x")
                if item == "stop":
                    break
            while self.b < 3:
                self.b += 1
            if self.b > 100:
                raise ValueError("b")

    def detect(): return os.path.exists('/detected')

    HfArgumentParser(Args).parse_args_into_dataclasses()
    """
    schema = replace(capture_script(tmp_path, script), is_locked=in_process)

    def messages(**values: Any) -> list[tuple[str, bool | None]]:
        return [(c.message, c.certain) for c in find_contradictions(schema, values)]

    replaced = ("bad c", False)  # what detect() may set
    assert messages() == [replaced]
    assert messages(a=1) == [replaced, ("one", True)]
    assert messages(a=UNKNOWN) == [("only on some machines", None), replaced, ("one", None), ("b", None)]
    assert messages(a=4) == [("only on some machines", False), replaced]
    assert messages(a=101) == [("only on some machines", False), replaced, ("b", True)]
    assert messages(c="bad") == [replaced], "unless detect() replaces it"
    assert messages(d=["a", "xy"]) == [replaced, ("'xy' starts with x", True)]
    assert messages(d=["a", "stop", "xy"]) == [replaced]
    assert messages(d=[UNKNOWN]) == [replaced, ("? starts with x", None)]


def test_a_function_of_upstream_that_refers_to_nothing_else_is_executed_too(tmp_path: Path) -> None:
    """As reward_modeling.py has it at 6b3964bc; one that reads the environment is not."""
    script = """
    import json, os
    from dataclasses import dataclass
    from transformers import HfArgumentParser

    def split_mixer(value) -> tuple:
        if isinstance(value, str):
            return json.loads(value), value
        elif isinstance(value, dict):
            return value, json.dumps(value)
        else:
            raise ValueError("Input must be a string")

    def ready(): return bool(os.environ.get("READY"))

    @dataclass
    class Args:
        mixer: str | None = None

        def __post_init__(self):
            self.mixer_dict, self.mixer = split_mixer(self.mixer)
            if len(self.mixer_dict) > 1:
                raise ValueError("one only")
            if ready():
                self.mixer = None

    HfArgumentParser(Args).parse_args_into_dataclasses()
    """
    schema = capture_script(tmp_path, script)
    code = schema.post_init["Args"]
    assert [method["name"] for method in code["methods"]] == ["__post_init__", "split_mixer"]

    def messages(**values: Any) -> list[tuple[str, str, bool | None]]:
        found = find_contradictions(replace(schema, is_locked=True), values)
        return [(c.message, c.where, c.certain) for c in found if c.certain is not False]

    assert messages() == [("Input must be a string", "train.py:12", True)]
    assert messages(mixer='{"a": 1}') == []
    assert messages(mixer='{"a": 1, "b": 1}') == [("one only", "train.py:23", True)]
    (refused,) = messages(mixer="a")
    assert refused[0].startswith("JSONDecodeError") and refused[2] is True
    assert {certain for _, _, certain in messages(mixer=UNKNOWN)} == {None}


@pytest.mark.parametrize(
    ("body", "values", "expected"),
    [
        # an attribute that only one way sets
        ("if self.a:\n    self.more = 1\nif self.b == 'x':\n    raise ValueError('x')", {"b": "x"}, [("x", True)]),
        # a name that is not known may be any
        ("setattr(self, self.b, 1)\nif self.a == 3:\n    raise ValueError('three')", {"a": 3}, [("three", None)]),
        # a return that may have happened
        ("if self.a:\n    return\nif self.b == 'x':\n    raise ValueError('x')", {"b": "x"}, [("x", None)]),
        # a conversion of a text that is not known, handled and not handled
        ("try:\n    int(self.b)\nexcept ValueError:\n    raise TypeError('no int')", {"a": 1}, [("no int", None)]),
        ("self.a = int(self.b)", {"a": 1}, [("ValueError: int refuses some texts", None)]),
        ("self.a = int(self.b)", {"a": 1, "b": "7"}, []),
        (
            "self.a = int(self.b)",
            {"a": 1, "b": "x"},
            [("ValueError: invalid literal for int() with base 10: 'x'", True)],
        ),
        # how many parts there are is not known
        ("for one, two in zip(self.b, self.c):\n    raise ValueError('some')", {"c": ["1"]}, [("some", None)]),
        # an item of what is not known
        ("self.a['x'] = 1\ndel self.more['y']", {}, []),
        ("first, second = self.b\nassert self.a != 2, 'two'", {"a": 2}, [("two", True)]),
    ],
)
def test_ways_through_a_statement(body: str, values: dict[str, Any], expected: list[tuple[str, bool | None]]) -> None:
    source = "def __post_init__(self):\n" + textwrap.indent(body, "    ")
    method = {"owner": "Args", "name": "__post_init__", "file": "a.py", "line": 1, "source": source}
    fields = {"a": Unknown("value"), "b": Unknown("text"), "c": [], **values}
    found = run_post_init({"methods": [method], "names": {}}, fields)
    assert [(c.message, c.certain) for c in found] == expected


def test_values_of_a_file_that_was_not_read_are_undecided() -> None:
    schema = synthetic_schema()
    certain = [c for c in find_contradictions(schema, {"mode": "slow"}, defaults_known=False) if c.certain]
    assert certain == []
    assert any(c.certain is None for c in find_contradictions(schema, {"mode": "slow"}, defaults_known=False))
