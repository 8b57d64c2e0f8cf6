"""What is left of a message without its wording."""

from __future__ import annotations

from launch.worker.finding import Finding, Fix
from tests.messages import outline, outlines


def test_the_wording_does_not_count() -> None:
    cure = Fix.of("set {0}", "recipe.epochs=2")
    problem = Finding.error(
        "out_of_range", "recipe.epochs must be at least 1, got 0", "override recipe.epochs", cure
    )
    other = Finding.error(
        "out_of_range", "0 is too low: recipe.epochs starts at 1", "override recipe.epochs", cure
    )
    expected = "out_of_range at override recipe.epochs, 0, 1, recipe.epochs=2"
    assert outline(str(problem)) == outline(f"launch: {other}") == expected


def test_the_id_the_place_and_each_value_count() -> None:
    shown = [
        "launch: 'a' is set twice; remove one [twice]",
        "checked",
        "run.sh:3: warning: seed: use --seed [unread]",
    ]
    assert outlines(shown) == ["twice, a", "warning unread at run.sh:3 seed, --seed"]
    assert outlines([line.replace("'a'", "'b'") for line in shown])[0] == "twice, b"
