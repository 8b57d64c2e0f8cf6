"""A dataclass becomes JSON and the same dataclass again; whatever else a file holds is refused."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest

from launch.worker.json_codec import decode, encode, from_json, to_json
from tests.paths import ROOT


class Colour(StrEnum):
    red = "red"


@dataclass(frozen=True)
class Part:
    size: float
    pair: tuple[int, str] = (0, "")


@dataclass(frozen=True)
class Whole:
    name: str
    global_: int
    is_on: bool = False
    path: Path | None = None
    colour: Colour = Colour.red
    level: Literal["low", "high"] = "low"
    parts: tuple[Part, ...] = ()
    by_name: Mapping[str, Part | None] = field(default_factory=dict)
    rows: Sequence[Sequence[int]] = ()
    anything: Any = None


WHOLE = Whole(
    "a",
    3,
    True,
    Path("/x"),
    level="high",
    parts=(Part(1.5, (1, "b")), Part(2.0)),
    by_name={"one": Part(0.0), "none": None},
    rows=((1, 2), ()),
    anything={"k": [1, None]},
)


def test_there_and_back() -> None:
    assert from_json(Whole, json.loads(json.dumps(to_json(WHOLE)))) == WHOLE
    assert decode(Whole, encode(WHOLE)) == WHOLE and decode(Whole, encode(WHOLE, indent=2)) == WHOLE


def test_a_file_begins_with_its_version_and_its_keys_are_in_the_order_of_the_fields() -> None:
    assert list(json.loads(encode(WHOLE)))[:4] == ["schema_version", "name", "global", "is_on"]
    assert to_json(Part(1.0)) == {"size": 1.0, "pair": [0, ""]}


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_lacks(value: float) -> None:
    assert to_json(Part(value)) == {"size": None, "size_text": str(value), "pair": [0, ""]}
    assert str(from_json(Part, to_json(Part(value))).size) == str(value)
    assert to_json([value, {"a": [value]}]) == [None, {"a": [None]}]


def test_keys_of_another_version_and_missing_ones() -> None:
    assert from_json(Whole, {"schema_version": 9, "name": "a", "global": 1, "new": 2}) == Whole(
        "a", 1
    )
    assert from_json(Part, {"size": 3}).size == 3.0
    with pytest.raises(ValueError, match=r"Whole\.global_ is missing"):
        from_json(Whole, {"name": "a"})


@pytest.mark.parametrize(
    "change",
    [
        *({"name": value} for value in (None, 1, ["a"], True)),
        *({"global": value} for value in ("1", 1.0, True, None)),
        *({"is_on": value} for value in (1, "true", None)),
        *(
            {"path": 3},
            {"colour": "blue"},
            {"level": "middle"},
            {"by_name": []},
            {"by_name": {"a": 1}},
        ),
        *(
            {"parts": value}
            for value in ("ab", {}, [1], [{"size": "1"}], [{"size": 1, "pair": [1]}])
        ),
        {"rows": [[1, "2"]]},
    ],
)
def test_a_value_of_another_type_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        from_json(Whole, {"name": "a", "global": 1, **change})


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "null", '"a"', "{", "[" * 100_000, b"\xff", '{"size": {}}']
)
def test_another_text_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        decode(Part, text)


def test_the_trainers_interpreter_imports_it_alone() -> None:
    """It reads with the standard library alone, and imports no module of the launcher but the
    worker's package.
    """
    code = (
        "import sys, launch.worker.json_codec; print([m for m in sys.modules if "
        "m.startswith('launch')])"
    )
    command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "['launch', 'launch.worker', 'launch.worker.json_codec']"


@dataclass(frozen=True)
class Named:
    seconds: float

    def json_fields(self) -> dict[str, Any]:
        return {"minutes": self.seconds / 60, "part": Part(1.0)}


def test_other_names_and_computed_values_are_a_dataclass_own() -> None:
    part = {"size": 1.0, "pair": [0, ""]}
    assert to_json({"all": (Named(60.0), Named(math.inf))}) == {
        "all": [
            {"minutes": 1.0, "part": part},
            {"minutes": None, "minutes_text": "inf", "part": part},
        ]
    }
    assert json.loads(encode(Named(30.0))) == {"schema_version": 1, "minutes": 0.5, "part": part}


_OWN_CONVERSION = re.compile(r"(?<!super\(\))\.json_fields\(")
_VERSION_IN_RECORD = re.compile(r"def json_fields\(.*\n(?:(?!    def ).*\n)*? +return versioned\(")


def test_the_codec_alone_turns_a_record_into_json() -> None:
    """No function but the codec's and a subclass's own calls `json_fields`, and the version is
    added where a file is written.
    """
    files = [*(ROOT / "launch").rglob("*.py"), *(ROOT / "maintain").rglob("*.py")]
    texts = {str(file): file.read_text(encoding="utf-8") for file in files}
    assert [file for file, text in texts.items() if _OWN_CONVERSION.search(text)] == []
    assert [file for file, text in texts.items() if _VERSION_IN_RECORD.search(text)] == []
    record = "    def json_fields(self) -> dict[str, Any]:\n        a = 1\n        return versioned({})\n"
    assert _VERSION_IN_RECORD.search(record) and _OWN_CONVERSION.search("plan.json_fields()")
