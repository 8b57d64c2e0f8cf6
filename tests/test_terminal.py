"""The one table of the terminal: of status, plan, compare, bench and the evidence."""

from __future__ import annotations

from launch.terminal import align_columns


def test_columns_are_as_wide_as_their_cells() -> None:
    rows = [
        ("run", "loss", "note"),
        ("sft-gpu8", "1.5", ""),
        None,
        ("one cell, longer than a column",),
        ("b", "12.25", "x"),
    ]
    assert align_columns(rows) == [
        "run       loss   note",
        "sft-gpu8  1.5",
        "",
        "one cell, longer than a column",
        "b         12.25  x",
    ]


def test_a_wide_cell_does_not_widen_its_column_beyond_the_limit() -> None:
    assert align_columns([("a" * 9, "x"), ("b", "y")], widest=4) == ["aaaaaaaaa  x", "b     y"]
    assert align_columns([]) == [] and align_columns([("alone",)]) == ["alone"]
