"""What `__post_init__` refuses: upstream's own rules by name, and the evaluator against the real
classes.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.upstream.pin.lock import locked_schema
from launch.upstream.rules.contradictions import find_contradictions, unchecked_code
from launch.upstream.rules.conversion import UNKNOWN
from launch.upstream.rules.post_init import run_post_init
from launch.upstream.rules.source import Function
from launch.upstream.rules.uncertain_values import Doubt, UncertainValue
from launch.upstream.schema import Schema
from tests.upstream.captured import capture_script, synthetic_schema

MODEL = {"model_name_or_path": "m"}


@pytest.mark.parametrize(
    "trainer",
    ["finetune", "dpo_tune_cache", "dpo", "olmo_core_finetune", "reward_modeling", "grpo"],
)
def test_defaults_contradict_nothing(trainer: str, schema_of: Callable[[str], Schema]) -> None:
    schema = schema_of(trainer)
    for sources in (schema.sources, ()):
        assert [
            c for c in find_contradictions(replace(schema, sources=sources), MODEL) if c.certain
        ] == []


def test_unknown_values_and_the_machine(tmp_path: Path) -> None:
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

        def __post_init__(self):
            super().__post_init__()
            if self.b > 100:
                raise ValueError("b")

    def detect(): return os.path.exists('/detected')

    HfArgumentParser(Args).parse_args_into_dataclasses()
    """
    schema = capture_script(tmp_path, script)

    def messages(**values: Any) -> list[tuple[str, bool | None]]:
        found = find_contradictions(schema, values)
        return [(c.message.removeprefix("the trainer's own error: "), c.certain) for c in found]

    replaced = ("bad c", False)  # what detect() may set
    assert messages() == [replaced]
    assert messages(a=1) == [replaced, ("one", True)]
    assert messages(a=UNKNOWN) == [
        ("only on some machines", None),
        replaced,
        ("one", None),
        ("b", None),
    ]
    assert messages(a=4) == [("only on some machines", False), replaced]
    assert messages(a=101) == [("only on some machines", False), replaced, ("b", True)]
    assert messages(c="bad") == [replaced], "unless detect() replaces it"


@pytest.mark.parametrize(
    ("body", "values", "expected"),
    [
        # an attribute that only one way sets
        (
            "if self.a:\n    self.more = 1\nif self.b == 'x':\n    raise ValueError('x')",
            {"b": "x"},
            [("x", True)],
        ),
        # a name that is not known may be any
        (
            "setattr(self, self.b, 1)\nif self.a == 3:\n    raise ValueError('three')",
            {"a": 3},
            [("three", None)],
        ),
        # a return that may have happened, here and in a loop
        (
            "if self.a:\n    return\nif self.b == 'x':\n    raise ValueError('x')",
            {"b": "x"},
            [("x", None)],
        ),
        (
            "for x in self.c:\n    if self.a:\n        return\nraise ValueError('end')",
            {"c": [1]},
            [("end", None)],
        ),
        ("if self.b == 'x':\n    return\nraise ValueError('end')", {"b": "x"}, []),
        # a way that ends in an error is not one that goes on
        (
            (
                "if self.a:\n    raise ValueError('a')\nelse:\n    self.b = 'y'\nassert self.b != "
                "'y', "
                "'y'"
            ),
            {"b": "x"},
            [("a", None), ("y", None)],
        ),
        # what a handler raises is undecided; a conversion of a text that is not known
        (
            "try:\n    int(self.b)\nexcept Exception:\n    raise TypeError('no int')",
            {"a": 1},
            [("no int", None)],
        ),
        (
            "try:\n    int(self.b)\nexcept Exception:\n    raise TypeError('no int')",
            {"b": "x"},
            [("no int", False)],
        ),
        (
            "try:\n    int(self.b)\nexcept Exception:\n    raise TypeError('no int')",
            {"b": "7"},
            [("no int", False)],
        ),
        (
            "try:\n    self.a = 2\nexcept KeyError:\n    pass\nassert self.a == 1, 'a'",
            {"a": 1},
            [("a", False)],
        ),
        ("self.a = int(self.b)", {"a": 1}, [("int refuses some values", None)]),
        ("self.a = int(self.b)", {"a": 1, "b": "7"}, []),
        (
            "self.a = int(self.b)",
            {"a": 1, "b": "x"},
            [("ValueError: invalid literal for int() with base 10: 'x'", True)],
        ),
        # a loop over values is not followed; one over fixed names is
        (
            "for x in self.c:\n    if x == 'x':\n        raise ValueError('x')",
            {"c": ["x"]},
            [("x", False)],
        ),
        (
            "for x in ('b', 'd'):\n    if getattr(self, x) == 'x':\n        raise ValueError(x)",
            {"b": "x"},
            [("x", True)],
        ),
        # how many parts there are is not known
        (
            "for one, two in zip(self.b, self.c):\n    raise ValueError('some')",
            {"c": ["1"]},
            [("some", None)],
        ),
        # loops and comprehensions that are not followed
        (
            "while self.b != 'x':\n    self.b = 'x'\nassert self.b != 'x', 'x'",
            {"b": "y"},
            [("x", False)],
        ),
        (
            "for x in self.c:\n    if x:\n        break\n    self.a = 2\nassert self.a == 1, 'a'",
            {"a": 1, "c": [0]},
            [("a", False)],
        ),
        (
            "if any(x == 'y' for x in self.c):\n    raise ValueError('y')",
            {"c": ["y"]},
            [("y", False)],
        ),
        # what may be changed elsewhere is unknown
        ("change(self.c)\nif self.c:\n    raise ValueError('c')", {"c": ["x"]}, [("c", False)]),
        (
            "d = self.c\nd.append(1)\nif self.c:\n    raise ValueError('c')",
            {"c": ["x"]},
            [("c", False)],
        ),
        (
            "self.c[0] = 'y'\nif self.c[0] == 'x':\n    raise ValueError('c')",
            {"c": ["x"]},
            [("c", False)],
        ),
        (
            "d = [self.c]\nchange(*d)\nif self.c:\n    raise ValueError('c')",
            {"c": ["x"]},
            [("c", False)],
        ),
        ("change(self)\nif self.b == 'x':\n    raise ValueError('b')", {"b": "x"}, [("b", False)]),
        ("self.change()\nif self.b == 'x':\n    raise ValueError('b')", {"b": "x"}, [("b", False)]),
        (
            "me = self\nwith me.lock():\n    pass\nif self.b == 'x':\n    raise ValueError('b')",
            {"b": "x"},
            [("b", False)],
        ),
        ("self.a += 1\nif self.a == 1:\n    raise ValueError('a')", {"a": 1}, []),
        (
            "(self.a, self.b), x = other()\nif self.b == 'x':\n    raise ValueError('b')",
            {"b": "x"},
            [("b", None)],
        ),
        ("del self.b\nif self.b == 'x':\n    raise ValueError('b')", {"b": "x"}, [("b", False)]),
        ("if (x := self.b) == 'x':\n    raise ValueError(x)", {"b": "x"}, [("x", False)]),
        # a part of a condition that decides alone, and one that an error does not reach
        ("if self.a and self.b == 'x':\n    raise ValueError('x')", {"b": "y"}, []),
        ("if self.a or self.b == 'x':\n    raise ValueError('x')", {"b": "x"}, [("x", True)]),
        (
            "if self.a and len(self.d) > 1:\n    raise ValueError('d')",
            {"d": None},
            [("TypeError: object of type 'NoneType' has no len()", None), ("d", None)],
        ),
        ("if not 0 <= self.a <= 1:\n    raise ValueError('a')", {"a": 2}, [("a", True)]),
        # neither identity nor the text of a value is known
        (
            (
                "if self.b is 'x' or str(self.b) == 'x' or f'{self.b}' == 'x':\n    raise "
                "ValueError('b')"
            ),
            {"b": "x"},
            [("b", False)],
        ),
        ("first, second = self.b\nassert self.a != 2, 'two'", {"a": 2}, [("two", True)]),
        # what would be too large, too deep or too long is not computed
        ("x = self.b * 10**9\nif x:\n    raise ValueError('x')", {"b": "x"}, [("x", False)]),
        (
            "x = self.c\n" + "x = [x, x]\n" * 50 + "if x:\n    raise ValueError('x')",
            {"c": [1]},
            [("x", False)],
        ),
        (
            "".join(f"{' ' * depth}for x in (0, 1, 2, 3):\n" for depth in range(8))
            + " " * 8
            + "self.a = x",
            {},
            [("it is too long to be followed", None)],
        ),
    ],
)
def test_ways_through_a_statement(
    body: str, values: dict[str, Any], expected: list[tuple[str, bool | None]]
) -> None:
    node = ast.parse("def __post_init__(self):\n" + textwrap.indent(body, "    ")).body[0]
    assert isinstance(node, ast.FunctionDef)
    unknown = {
        "a": UncertainValue(Doubt.USER, is_set=True),
        "b": UncertainValue(Doubt.USER, is_set=True),
        "c": [],
        "d": None,
    }
    found = run_post_init([Function("Args.__post_init__", "a.py", node)], {}, {**unknown, **values})
    assert [(c.message, c.certain) for c in found] == expected


def test_values_of_a_file_that_was_not_read_are_undecided() -> None:
    schema = synthetic_schema()
    certain = [
        c for c in find_contradictions(schema, {"mode": "slow"}, defaults_known=False) if c.certain
    ]
    assert certain == []
    assert any(
        c.certain is None
        for c in find_contradictions(schema, {"mode": "slow"}, defaults_known=False)
    )


def test_only_the_text_of_the_schema_is_read(tmp_path: Path) -> None:
    """Edited or missing, nothing of it is used: it is named as unchecked, and no rule of the pin's
    applies.
    """
    script = """
    from dataclasses import dataclass
    from transformers import HfArgumentParser

    @dataclass
    class Args:
        a: int = 0

        def __post_init__(self):
            if self.a > 3:
                raise ValueError("more than 3")

    HfArgumentParser(Args).parse_args_into_dataclasses()
    """
    schema = capture_script(tmp_path, script)
    assert "more than 3" not in repr(schema)
    assert unchecked_code(schema) == ()
    assert [c.message for c in find_contradictions(schema, {"a": 4})] == [
        "the trainer's own error: more than 3"
    ]
    file = tmp_path / "train.py"
    text = file.read_text()
    for changed in (text.replace("> 3", "> 2"), "\n" + text, ""):
        file.write_text(changed)
        assert unchecked_code(schema) == ("Args.__post_init__ (train.py:9)",)
        assert find_contradictions(schema, {"a": 4}) == []
    file.write_text(text.replace("\n", "\r\n"))
    assert unchecked_code(schema) == (), "line ends do not count"
    file.unlink()
    assert unchecked_code(schema) == ("Args.__post_init__ (train.py:9)",)
    file.write_text(text)
    assert [c.certain for c in find_contradictions(schema, {"a": 4})] == [True]


def test_a_rule_holds_for_the_text_that_it_was_written_about() -> None:
    """Wherever it is in the file by now; not for a function that has changed, and not for another
    trainer.
    """
    locked = locked_schema("finetune")
    values = {"push_to_hub": False}
    (contradiction,) = find_contradictions(locked, values)
    assert (contradiction.where, contradiction.certain) == ("open_instruct/finetune.py:335", True)
    assert set(contradiction.flags) == {"try_launch_beaker_eval_jobs", "push_to_hub"}
    code = locked.post_init["FlatArguments"]
    (place,) = code["functions"]

    def wheres(**changes: Any) -> list[str]:
        changed = replace(
            locked, post_init={"FlatArguments": {**code, "functions": [place | changes]}}
        )
        return [found.where for found in find_contradictions(changed, values)]

    assert wheres(lines=[427, 451]) == ["open_instruct/finetune.py:435"]
    assert wheres(digest="0" * 40) == []
    assert find_contradictions(replace(locked, is_locked=False), values) == []


def test_values_that_are_objects_are_unknown(tmp_path: Path) -> None:
    """A path, a member of an enum that is no text, a tuple: their JSON would compare otherwise."""
    script = """
    import enum, pathlib
    from dataclasses import dataclass, field
    from transformers import HfArgumentParser

    class Mode(enum.Enum):
        FAST = "fast"

    @dataclass
    class Args:
        place: pathlib.Path = pathlib.Path("here")
        mode: Mode = Mode.FAST
        name: str = "here"

        def __post_init__(self):
            if self.place == "here":
                raise ValueError("place")
            if self.mode == "fast":
                raise ValueError("mode")
            if self.name == "here":
                raise ValueError("name")

    HfArgumentParser(Args).parse_args_into_dataclasses()
    """
    schema = capture_script(tmp_path, script)
    found = {c.message.rpartition(" ")[2]: c.certain for c in find_contradictions(schema, {})}
    assert found == {"place": False, "mode": False, "name": True}
