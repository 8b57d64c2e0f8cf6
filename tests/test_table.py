"""The one table: of status, plan, compare, check, the evidence and the trials."""

from __future__ import annotations

import pytest

from launch.table import Table, format_duration


def test_columns_are_as_wide_as_their_cells() -> None:
    rows = [
        ("run", "loss", "note"),
        ("sft-gpu8", "1.5", ""),
        None,
        ("one cell, longer than a column",),
        ("b", "12.25", "x"),
    ]
    assert Table("", rows).lines() == [
        "run       loss   note",
        "sft-gpu8  1.5",
        "",
        "one cell, longer than a column",
        "b         12.25  x",
    ]


def test_a_wide_cell_does_not_widen_its_column_beyond_the_limit() -> None:
    assert Table("", [("a" * 9, "x"), ("b", "y")]).lines(widest=4) == ["aaaaaaaaa  x", "b     y"]
    assert Table("", []).lines() == [] and Table("", [("alone",)]).lines() == ["alone"]


@pytest.mark.parametrize("ending", ["\n", "\r", "\r\n", "\v", "\x85", "\u2028"])
def test_a_line_break_in_a_cell_makes_no_row(ending: str) -> None:
    table = Table("", [("run", "state"), ("a", f"failed{ending}b    done")])
    assert table.lines() == ["run  state", "a    failed b    done"]
    assert len(table.markdown()) == 3 and ending not in table.markdown()[2]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (5, "5 s"),
        (59.7, "1 min"),
        (75, "1 min 15 s"),
        (3599, "59 min 59 s"),
        (3599.8, "1 h"),
        (3700, "1 h 2 min"),
        (120, "2 min"),
        (100 * 3600, "100 h"),
        (5000.5 * 3600, "5,000 h 30 min"),
    ],
)
def test_a_duration_has_its_unit(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
