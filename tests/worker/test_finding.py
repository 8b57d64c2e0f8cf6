"""A finding as text, as JSON and back, and on a page."""

from __future__ import annotations

import json

import pytest

from launch.worker.finding import Finding, Fix
from launch.worker.json_codec import to_json

CURE = Fix.of("set {0}", "recipe.liger=false")
ERROR = Finding.error("no_liger", "it has no <liger>", "recipe.liger", CURE)


@pytest.mark.parametrize(
    ("finding", "line", "heading"),
    [
        (
            ERROR,
            "recipe.liger: it has no <liger>; set recipe.liger=false [no_liger]",
            "error: recipe.liger: it has no <liger> [no_liger]",
        ),
        (
            ERROR.apply_allow(["no_liger"]),
            "recipe.liger: it has no <liger>; set recipe.liger=false [no_liger], allowed",
            "allowed: recipe.liger: it has no <liger> [no_liger]",
        ),
        (Finding.warning("slow", "it is slow"), "it is slow [slow]", "warning: it is slow [slow]"),
        (Finding("", "8 GPUs", severity="pass"), "8 GPUs", "8 GPUs"),
    ],
)
def test_as_text(finding: Finding, line: str, heading: str) -> None:
    assert (str(finding), finding.heading) == (line, heading)


def test_the_line_of_a_cure_says_that_it_is_one_but_for_a_possible_one() -> None:
    assert ERROR.cure_line == "cure: set recipe.liger=false [no_liger]"
    possible = Finding.error("oom", "killed", None, "possibly: the host had no memory left")
    assert possible.cure_line == "possibly: the host had no memory left [oom]"
    assert "Cure" not in possible.html()


def test_as_html() -> None:
    assert ERROR.html() == (
        "recipe.liger: <strong>it has no &lt;liger&gt;</strong> <code>no_liger</code>"
        "<br><strong>Cure: </strong>set recipe.liger=false"
    )


@pytest.mark.parametrize(
    "finding",
    [
        ERROR.apply_allow(["no_liger"]),
        Finding("loss_rose", "it rose", severity="warn", numbers={"step": 3, "loss": 2.5}),
    ],
)
def test_what_is_read_of_a_record_looks_the_same(finding: Finding) -> None:
    read = Finding.read(json.loads(json.dumps(to_json(finding))))
    assert (str(read), read.html(), read.level) == (str(finding), finding.html(), finding.level)
    assert to_json(read) == to_json(finding)


def test_a_damaged_record_is_a_failure_with_what_can_be_read() -> None:
    damaged = Finding.read({"id": 4, "message": None, "severity": [], "numbers": 3, "where": 7})
    assert str(damaged) == "7:  [4]" and damaged.stops and damaged.numbers == {}
