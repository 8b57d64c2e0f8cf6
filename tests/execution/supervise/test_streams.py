from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from launch.execution.supervise.streams import LINE_LIMIT, LineCutter

TEXT = "one\ntwo ä\r\n\n\r10%\r20%\nlast \u2028 same line\x0bstill".encode()
LINES = ["one", "two ä", "10%", "20%", "last \u2028 same line\x0bstill"]


@given(st.lists(st.integers(0, len(TEXT))))
def test_pieces_do_not_matter(cuts: list[int]) -> None:
    cutter = LineCutter()
    lines = [
        line for a, b in pairwise([0, *sorted(cuts), len(TEXT)]) for line in cutter.feed(TEXT[a:b])
    ]
    assert lines + cutter.feed(b"\n") == LINES


def test_invalid_utf8_becomes_a_replacement_character() -> None:
    assert LineCutter().feed(b"a\xff\xfeb\n") == ["a\ufffd\ufffdb"]


def test_of_a_huge_line_the_beginning_comes_once_and_the_next_line_is_whole() -> None:
    cutter = LineCutter()
    lines = [line for _ in range(160) for line in cutter.feed(b"x" * LINE_LIMIT)]
    lines += cutter.feed(b"end of it\nnext\n")
    assert lines == ["x" * LINE_LIMIT, "next"]
    assert cutter.feed(b"\n") == []
