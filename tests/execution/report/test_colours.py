"""The colours of the curves: told apart with every kind of colour vision, on both themes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

import pytest

from launch.execution.report import page

_STYLE = (page._FOLDER / "page.css").read_text(encoding="utf-8")
_COLOURS = re.findall(r"--c\d: #([0-9a-f]{6})", _STYLE)
THEMES = {"light": _COLOURS[:6], "dark": _COLOURS[6:]}
_LEAST = 10.0  # CIE76; 2.3 is the least difference that is seen side by side
# linear RGB as it is seen: Machado et al., 2009, severity 1.0
VISION = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.1523, 1.0526, -0.2049), (0.1145, 0.7863, 0.0992), (-0.0039, -0.0481, 1.0520)),
    "deuteranopia": (
        (0.3673, 0.8606, -0.2280),
        (0.2801, 0.6725, 0.0474),
        (-0.0118, 0.0429, 0.9689),
    ),
    "tritanopia": ((1.2555, -0.0767, -0.1788), (-0.0784, 0.9308, 0.1476), (0.0047, 0.6914, 0.3039)),
}


def lab(colour: str, vision: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Return the CIELAB coordinates of a colour as it is seen."""
    values = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values
    ]
    r, g, b = (
        min(1.0, max(0.0, sum(map(math.prod, zip(row, linear, strict=True))))) for row in vision
    )
    white = (
        (0.4124, 0.3576, 0.1805, 0.9505),
        (0.2126, 0.7152, 0.0722, 1.0),
        (0.0193, 0.1192, 0.9505, 1.089),
    )
    ratios = [(row[0] * r + row[1] * g + row[2] * b) / row[3] for row in white]
    x, y, z = (
        ratio ** (1 / 3) if ratio > 0.008856 else 7.787 * ratio + 16 / 116 for ratio in ratios
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("vision", VISION)
def test_no_two_curves_look_alike(theme: str, vision: str) -> None:
    seen = {colour: lab(colour, VISION[vision]) for colour in THEMES[theme]}
    assert len(seen) == 6
    distances = {
        pair: math.dist(seen[pair[0]], seen[pair[1]]) for pair in itertools.combinations(seen, 2)
    }
    assert {pair: distance for pair, distance in distances.items() if distance < _LEAST} == {}
