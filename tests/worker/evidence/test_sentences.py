"""Each setting that a run can lack has sentences of its own: what is wrong, and what to do."""

from __future__ import annotations

import pytest

from launch.config.recipe_keys import KEYS
from launch.worker.evidence import NO_STEP, REFUTED, UNPROVEN, Evidence
from launch.worker.evidence.sentences import SENTENCES
from launch.worker.expectations import EVIDENCE, STATE

PROOFS = ("gradients", "last_update", "saved_weights", "first_loss")
FOUND = ("weights", "architecture", "isolation", "movable_weights", "schedule_peak")
NAMES = {*STATE, *EVIDENCE, *PROOFS, *FOUND}


def test_every_setting_has_sentences() -> None:
    of_recipe = {key.proof.evidence for key in KEYS.values() if key.proof is not None}
    assert set(SENTENCES) == NAMES | of_recipe


@pytest.mark.parametrize("what", sorted(NAMES))
def test_a_sentence_has_what_was_requested_and_found_and_what_to_do(what: str) -> None:
    for verdict in (REFUTED, UNPROVEN):
        item = Evidence(what, "FOUND", "PLACE", "WANTED", verdict, "NOTE")
        finding = item.finding(())
        assert finding is not None and finding.cure is not None
        assert finding.message.endswith(": NOTE") and "{" not in str(finding)
        if verdict == REFUTED and what not in ("isolation", "balanced"):
            assert "FOUND" in finding.message


@pytest.mark.parametrize(
    ("how", "note", "end"),
    [
        ("Trainer.args", None, " (seen in Trainer.args)"),
        (NO_STEP, None, f": {NO_STEP}"),
        ("Trainer.args", "4 of 5 do", ": 4 of 5 do"),
    ],
)
def test_where_it_was_seen_or_why_it_is_unknown_ends_the_sentence(
    how: str, note: str | None, end: str
) -> None:
    finding = Evidence("beta", None, how, "0.1", UNPROVEN, note).finding(())
    assert finding is not None and finding.message.endswith(end)
    assert "seen in" not in finding.message or not note
