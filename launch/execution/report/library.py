"""The chart library that a page contains: uPlot, from the package uplot-python, which carries its files."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

_PACKAGE = "uplot-python"
_SCRIPT, _STYLE = "uplot/static/uPlot.iife.js", "uplot/static/uPlot.min.css"
MISSING = (
    f"the package {_PACKAGE} is not installed where this page was written. Install it (pip install {_PACKAGE}) and "
    "renew the page with launch report."
)
# of github.com/leeoniya/uPlot; the package has its copyright notice in the script, and not the permission
_LICENCE = """\
The MIT License (MIT)

Copyright (c) 2021, Leon Sorokin

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial
portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES
OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


@dataclass(frozen=True)
class ChartLibrary:
    script: str
    style: str
    licence: str


def find_library() -> ChartLibrary | None:
    """Return uPlot's files; None where the package is not installed.

    The package itself is not imported: it would import IPython.
    """
    try:
        package = distribution(_PACKAGE)
        script, style = (Path(str(package.locate_file(name))).read_text(encoding="utf-8") for name in (_SCRIPT, _STYLE))
    except (PackageNotFoundError, OSError):
        return None
    return ChartLibrary(script, style, _LICENCE)
