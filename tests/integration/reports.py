"""The report of a real run or trial, read off the file that it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.execution.report.browser import Browser, start_chromium, walk_through, why_missing
from tests.execution.report.test_page import Page


def read_report(folder: Path) -> Page:
    """Read report.html. Its loss curve must be that of metrics.jsonl where the folder is a run's,
    and where there is a Chromium it must work there: both themes, a phone's width, values, zoom,
    hidden curves, no request and no error.
    """
    last = None
    page = Page((folder / "report.html").read_text(encoding="utf-8"))
    metrics = folder / "metrics.jsonl"
    if metrics.is_file():
        steps = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
        last = max(steps, key=lambda step: int(step["step"]))
        logged = {
            step["step"]: step.get("loss_text") or pytest.approx(step["loss"], rel=1e-6)
            for step in steps
        }
        loss = next(
            line for chart in page.data for line in chart["lines"] if line["label"] == "training"
        )
        assert dict(zip(loss["steps"], loss["values"], strict=True)) == logged
    if why_missing() is None:
        walk_through(Browser(start_chromium()), folder / "report.html", last)
    return page
