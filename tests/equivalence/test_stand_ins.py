"""The page's table of stand-ins is the one that the comparisons apply."""

from __future__ import annotations

import re

from tests.equivalence.stand_ins import STAND_INS
from tests.paths import ROOT


def test_the_page_lists_every_stand_in() -> None:
    page = (ROOT / "docs" / "explanation" / "tulu3.md").read_text(encoding="utf-8")
    rows = [
        f"| `{name}` | {stand_in.replaces} | {stand_in.reason} |"
        for name, stand_in in STAND_INS.items()
    ]
    table = "\n".join(["| | stands in for | because |", "|---|---|---|", *rows])
    match = re.search(r"<!-- stand-ins -->\n(.*?)\n<!-- end -->", page, re.DOTALL)
    assert match is not None
    assert match[1].strip() == table
