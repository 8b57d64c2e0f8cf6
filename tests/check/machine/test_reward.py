"""What is wrong with a reward function decides what to do; tests/worker/test_reward_proof.py finds
it in real functions.
"""

from __future__ import annotations

import re

import pytest

from launch.check.machine.reward import _judge_report
from launch.worker.verifier_proof import CONSTANT, FORM, NO_TRUTHS, TEXTS, ProofReport

ALLOWED = "allow=[reward_proof]"


@pytest.mark.parametrize(
    ("fault", "parts"),
    [
        (TEXTS, ("completions = [answer[0]['content'] for answer in completions]",)),
        (FORM, ("shaping reward", ALLOWED)),
        (CONSTANT, ("a better answer", "`reference`", ALLOWED)),
        (None, (ALLOWED,)),
    ],
)
def test_each_fault_of_a_function_has_its_cure(fault: str | None, parts: tuple[str, ...]) -> None:
    finding = _judge_report(ProofReport("it is wrong", fault), "stage.yaml:3")
    assert (finding.stops, finding.message, finding.where) == (True, "it is wrong", "stage.yaml:3")
    for part in parts:
        assert part in str(finding.cure)


def test_the_line_for_texts_makes_texts_of_messages() -> None:
    cure = str(_judge_report(ProofReport("it is wrong", TEXTS), None).cure)
    [line] = re.findall(r"completions = .*", cure)
    space = {"completions": [[{"role": "assistant", "content": "red"}]]}
    exec(line, space)
    assert space["completions"] == ["red"]


def test_a_warning_does_not_stop_a_run() -> None:
    finding = _judge_report(ProofReport(warnings=["an answer earns 0"], facts=["3 rows"]), None)
    assert not finding.stops and "an answer earns 0" in finding.message
    assert not _judge_report(ProofReport(facts=["3 rows"]), None).stops
    assert finding.cure is None  # no summary of facts stands where a cure does


@pytest.mark.parametrize(
    ("fault", "columns", "parts"),
    [
        (FORM, [], ["shaping reward"]),
        (NO_TRUTHS, [], ["shaping reward", "`reference`"]),
        (
            NO_TRUTHS,
            ["label"],
            ["`--columns ground_truth=label`", "data.columns.ground_truth=label"],
        ),
    ],
)
def test_a_warning_about_an_own_function_says_what_may_be_done(
    fault: str, columns: list[str], parts: list[str]
) -> None:
    finding = _judge_report(ProofReport(None, fault, columns, ["unsure"], ["0.1 s"]), None)
    assert not finding.stops and "(what was tried: 0.1 s)" in finding.message
    for part in parts:
        assert part in str(finding.cure)
