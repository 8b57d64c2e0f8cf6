from __future__ import annotations

import json
import math

import pytest

from launch.execution.record.events import Event, parse_event
from launch.worker.json_codec import to_json

GOOD = {"schema_version": 1, "kind": "step", "time": 1.5, "rank": 2, "step": 3, "loss": 0.5}


def test_a_valid_event() -> None:
    assert parse_event(json.dumps(GOOD).encode(), 2) == Event(
        "step", 1.5, 2, {"step": 3, "loss": 0.5}
    )


def test_a_nan_comes_through_and_is_written_as_strict_json() -> None:
    event = parse_event(json.dumps({**GOOD, "loss": math.nan}).encode(), 2)
    assert event is not None
    assert math.isnan(event.data["loss"])
    written = json.dumps(to_json(event), allow_nan=False)
    assert json.loads(written)["loss"] is None
    assert json.loads(written)["loss_text"] == "nan"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"garbage \xff",
        b"[1]",
        b'{"schema_version": 1}',
        b"[" * 100_000,
        *(
            json.dumps({**GOOD, **change}).encode()
            for change in (
                {"schema_version": 2},
                {"kind": "other"},
                {"kind": ["step"]},
                {"time": "now"},
                {"time": math.inf},
                {"time": True},
                {"rank": 1},
                {"step": "3"},
                {"step": True},
                {"step": -1},
                {"kind": "phase", "phase": "lunch"},
                {"kind": "phase", "phase": 5},
                {"kind": "error"},
                {"kind": "patch", "id": "x", "applied": "yes"},
                {"kind": "total_steps", "steps": 2.5},
            )
        ),
    ],
)
def test_garbage_is_no_event(line: bytes) -> None:
    assert parse_event(line, 2) is None


def test_strict_goes_into_lists_and_dicts() -> None:
    value = to_json({"a": {"b": math.inf}, "c": [1.0, -math.inf], "d": "nan"})
    assert value == {"a": {"b": None, "b_text": "inf"}, "c": [1.0, None], "d": "nan"}
