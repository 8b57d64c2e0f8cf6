"""The reward proof on rows, with real verifiers in their real process: each fault is one
sentence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from launch.worker.reward_proof import ProofReport, ProofRequest, prompt_lengths, prove
from launch.worker.verifiers import VerifierError

PROMPT = [{"role": "user", "content": "?"}]
OWN = """
import re, signal, time

def same(completions, ground_truth, **columns):
    return [float(answer[0]["content"] == truth) for answer, truth in zip(completions, ground_truth)]

def always(completions, **columns): return [1.0]
def short(completions, **columns): return [float(len(answer[0]["content"]) < 9) for answer in completions]
def never(completions, **columns): return [0.0]
def negative(completions, **columns): return [-1.0]
def digit(completions, **columns):
    return [float(bool(re.search("[0-9]", answer[0]["content"]))) for answer in completions]
def filled(completions, **columns): return [float(bool(answer[0]["content"])) for answer in completions]
def brief(completions, **columns): return [float(0 < len(answer[0]["content"]) < 9) for answer in completions]
def known(completions, **columns): return [float(answer[0]["content"] in ("a1", "b2")) for answer in completions]
def hangs(completions, **columns): time.sleep(600)
def prints(completions, **columns): print("debugging"); return [1.0]
def raises(completions, **columns): raise KeyError("unit")
def nan(completions, **columns): return [float("nan")]
def text(completions, **columns): return ["yes"]
def strict(completions, ground_truth): return [1.0]
def alarm(completions, **columns): signal.alarm(signal.signal(signal.SIGALRM, print)); return [1.0]

def number(completions, ground_truth, **columns):
    numbers = [re.findall("[0-9]+", answer[0]["content"]) for answer in completions]
    return [float(found[-1:] != [] and int(found[-1]) == int(truth)) for found, truth in zip(numbers, ground_truth)]

def power(completions, ground_truth, **columns):
    texts = [answer[0]["content"] for answer in completions]
    boxed = [re.findall(r"boxed{([0-9^{}]+)}", text)[-1:] or [re.sub("[^0-9]", "", text) or "0"] for text in texts]
    values = [eval(re.sub("[{}]", "", box[-1][:50]).replace("^", "**")) for box in boxed]
    return [float(value == int(truth)) for value, truth in zip(values, ground_truth)]
"""


# As in TRL's tutorials, for prompts that are texts.
TEXTS = """
import re

def contains(completions, ground_truth, **columns):
    return [float(truth in completion) for completion, truth in zip(completions, ground_truth)]

def length(completions, **columns): return [-abs(20 - len(completion)) for completion in completions]
def matches(completions, **columns): return [float(bool(re.match("A", answer))) for answer in completions]
def words(completions, **columns): return [len(answer.split()) for answer in completions]
"""
TEXT_LINE = "    completions = [answer[0]['content'] for answer in completions]\n"


def row(truth: object, **columns: object) -> dict[str, Any]:
    return {"prompt": PROMPT, "ground_truth": truth, **columns}


def proof(
    folder: Path, rows: Sequence[Mapping[str, Any]], *names: str, seconds: float = 10.0
) -> ProofReport:
    own = folder / "own.py"
    own.write_text(OWN, encoding="utf-8")
    (folder / "rows.jsonl").write_text(
        "".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8"
    )
    verifiers = {
        name if name in ("rows", "math", "gsm8k", "exact", "ifeval") else f"{own}:{name}": 1.0
        for name in names
    }
    option = json.dumps({"verifiers": verifiers, "seconds": seconds, "window": 64})
    return prove(ProofRequest(option, folder / "rows.jsonl", (), "", None, 32))


def test_reference_answers_pass_and_others_do_not(tmp_path: Path) -> None:
    rows = [
        row("x+1", dataset="MATH"),
        row("\\frac{1}{2}", dataset="MATH"),
        row("8", dataset="gsm8k"),
    ]
    report = proof(tmp_path, [*rows, row("9", dataset="gsm8k")], "rows", seconds=3.0)
    assert (report.problem, report.warnings) == (None, [])
    assert "2 of 2 reference answers pass `gsm8k`" in "; ".join(report.facts)
    assert "2 of 2 reference answers pass `math`" in "; ".join(report.facts)
    assert (
        "`math` did not answer within 3 s on an expression without end, which scores 0"
        in "; ".join(report.facts)
    )


def test_an_own_function_is_proven_too(tmp_path: Path) -> None:
    report = proof(tmp_path, [row("a"), row("b")], "same")
    assert (report.problem, report.warnings) == (None, [])


def test_each_row_is_given_an_answer_that_is_not_its_own(tmp_path: Path) -> None:
    """Also where the rows are sorted by their answers."""
    rows = [row("yes1")] * 30 + [row("no0")] * 30
    problem = str(proof(tmp_path, rows, "digit").problem)
    assert "20 of 20 wrong answers" in problem
    assert proof(tmp_path, rows, "same").problem is None


@pytest.mark.parametrize("form", ["brief", "digit", "known"])
def test_a_function_of_the_form_is_fine_beside_one_that_compares(tmp_path: Path, form: str) -> None:
    rows = [row("a1"), row("b2")]
    for names in (("exact", form), ("same", form)):
        report = proof(tmp_path, rows, *names)
        assert report.problem is None
        [warning] = report.warnings
        assert f"2 of 2 wrong answers earn the maximum of `{form}`" in warning
    problem = str(proof(tmp_path, rows, form, "brief").problem)
    assert f"`{form}`" in problem


def test_rows_that_all_have_one_answer_are_given_another(tmp_path: Path) -> None:
    rows = [row("7"), row("7")]
    assert proof(tmp_path, rows, "same").problem is None
    assert "I do not know." in str(proof(tmp_path, rows, "filled").problem)


@pytest.mark.parametrize(
    ("verifier", "problem"),
    [
        (
            "never",
            "`never` gives 0 to every answer that was tried: right ones (2 reference answers)",
        ),
        ("negative", "`negative` gives -1 to every answer"),
        ("always", "`always` gives 1 to every answer"),
        ("digit", "2 of 2 wrong answers earn the maximum of `digit`"),
        ("filled", "2 of 2 wrong answers"),
        ("brief", "2 of 2 wrong answers earn the maximum of `brief`"),
        ("known", "2 of 2 wrong answers earn the maximum of `known`"),
        ("short", "an empty answer, 2 of 2 wrong answers earn the maximum of `short`"),
        ("hangs", "`hangs` did not answer within 2 s on the reference answer of row 1"),
        ("prints", "`prints` prints 'debugging' on the reference answer of row 1"),
        ("raises", "`raises` raised KeyError: 'unit' on the reference answer of row 1"),
        ("nan", "`nan` returned nan on the reference answer of row 1"),
        ("text", "`text` returned 'yes' on the reference answer of row 1"),
        (
            "strict",
            "`strict` raised TypeError: strict() got an unexpected keyword argument 'prompts'",
        ),
        (
            "alarm",
            "`alarm` raised ValueError: signal only works in main thread of the main interpreter",
        ),
        ("missing", "has no function missing"),
    ],
)
def test_a_faulty_verifier_is_one_sentence(tmp_path: Path, verifier: str, problem: str) -> None:
    report = proof(tmp_path, [row("a1"), row("b2")], verifier, seconds=2.0)
    assert problem in str(report.problem)


@pytest.mark.parametrize(
    ("verifier", "warning"),
    [
        (
            "number",
            (
                "`number` raised ValueError: Exceeds the limit (4300 digits) for integer string "
                "conversion"
            ),
        ),
        ("power", "`power` did not answer within 2 s on an expression without end, which scores 0"),
    ],
)
def test_an_answer_made_to_break_a_verifier_is_a_warning(
    tmp_path: Path, verifier: str, warning: str
) -> None:
    report = proof(tmp_path, [row("1"), row("2")], verifier, seconds=2.0)
    assert report.problem is None
    assert len(report.warnings) == 1 and report.warnings[0].startswith(warning)


def test_references_that_never_pass_are_shown(tmp_path: Path) -> None:
    rows = [row(truth) for truth in ("about ten", "ten or so", "roughly ten", "tenish")]
    problem = str(proof(tmp_path, rows, "gsm8k", seconds=3.0).problem)
    assert problem.startswith(
        "0 of 4 reference answers pass `gsm8k` (row 1, 'about ten': 0; row 2, 'ten or so': 0; row 3"
    )


def test_some_references_that_fail_are_a_warning(tmp_path: Path) -> None:
    report = proof(tmp_path, [row("8"), row("eight"), row("9")], "gsm8k", seconds=3.0)
    assert report.problem is None
    assert report.warnings == ["1 of 3 reference answers fail `gsm8k` (row 2, 'eight': 0)"]


@pytest.mark.parametrize("name", ["contains", "length", "matches", "words"])
def test_a_function_of_texts_is_told_what_completions_are(tmp_path: Path, name: str) -> None:
    """The line of the cure makes it one that is scored, if not always one that is proven."""
    rows = [row("a1"), row("b2")]
    report = prove_text(tmp_path, rows, TEXTS, name)
    assert report.fault == "texts"
    assert f"`{name}` takes a completion for a text, and gets a list of messages" in str(
        report.problem
    )
    cured = re.sub(r"(def \w+\(.*?\):)\s*(return)", rf"\1\n{TEXT_LINE}    \2", TEXTS)
    assert prove_text(tmp_path, rows, cured, name).fault != "texts"
    assert prove_text(tmp_path, rows, cured, "contains").problem is None
    texts = [{**row("a1"), "prompt": "?"}, {**row("b2"), "prompt": "?"}]  # not conversations
    assert prove_text(tmp_path, texts, TEXTS, name).fault != "texts"


def prove_text(
    folder: Path, rows: Sequence[Mapping[str, Any]], text: str, name: str
) -> ProofReport:
    own = folder / f"texts{len(text)}.py"
    own.write_text(text, encoding="utf-8")
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    option = json.dumps({"verifiers": {f"{own}:{name}": 1.0}, "seconds": 20.0, "window": 64})
    return prove(ProofRequest(option, folder / "rows.jsonl", (), "", None, 32))


@pytest.mark.parametrize(
    ("name", "fault"),
    [("brief", "form"), ("short", "form"), ("never", "constant"), ("raises", None), ("nan", None)],
)
def test_what_is_wrong_with_a_function_decides_the_cure(
    tmp_path: Path, name: str, fault: str | None
) -> None:
    assert proof(tmp_path, [row("a1"), row("b2")], name).fault == fault


def test_prompts_alone_are_judged_by_a_function_alone(tmp_path: Path) -> None:
    """Nothing shows what a right answer is: that is said, and only a constant reward is refused."""
    alone = [{"prompt": [{"role": "user", "content": "Give me 2"}]}, {"prompt": PROMPT}]
    report = proof(tmp_path, alone, "digit")
    assert report.problem is None
    [warning] = report.warnings
    assert "no row has a ground_truth or a reference" in warning
    assert "'?' earned 0" in warning and "'Give me 2' earned 1" in warning
    assert (report.fault, report.columns) == ("unproven", [])
    labelled = [{**row, "label": f"l{number}", "id": 7} for number, row in enumerate(alone)]
    assert proof(tmp_path, labelled, "digit").columns == ["label"]  # all ids are equal
    constant = proof(tmp_path, alone, "never")
    assert constant.fault == "constant" and "no row has" in str(constant.problem)
    assert proof(tmp_path, [*alone, {**alone[1], "reference": "7"}], "digit").warnings == []
    for names in (["exact"], ["digit", "exact"]):
        assert "2 prompts without ground_truth" in str(proof(tmp_path, alone, *names).problem)


MIXTURE = {"func_name": "validate_lowercase", "N": None, "quantifier": None, "options": None}


@pytest.mark.slow
@pytest.mark.usefixtures("upstream")
def test_rows_of_the_tulu_mixture_are_proven(tmp_path: Path) -> None:
    """As in RLVR-GSM-MATH-IF-Mixed-Constraints, whose `ifeval` rows name open-instruct's
    functions.
    """
    words = {
        "func_name": "validate_word_constraint",
        "N": 9,
        "quantifier": "at least",
        "options": None,
    }
    named = (
        ("gsm8k", "72"),
        ("MATH", "\\frac{1}{2}"),
        ("ifeval", json.dumps(MIXTURE)),
        ("ifeval", json.dumps(words)),
    )
    rows = [row(truth, dataset=name, constraint_type="", constraint="") for name, truth in named]
    report = proof(tmp_path, rows, "rows")
    assert (report.problem, report.warnings) == (None, [])
    assert (
        "`ifeval` scores an answer to each of 2 rows (none has a column `reference`)"
        in "; ".join(report.facts)
    )


@pytest.mark.usefixtures("upstream")
def test_a_row_whose_function_or_arguments_are_wrong_is_named(tmp_path: Path) -> None:
    for content, failure in (
        ({"func_name": "validate_rhyme"}, "KeyError: 'validate_rhyme'"),
        ({"N": 3}, "TypeError"),
    ):
        rows = [
            row(json.dumps(MIXTURE), dataset="ifeval"),
            row(json.dumps({**MIXTURE, **content}), dataset="ifeval"),
        ]
        problem = str(proof(tmp_path, rows, "rows").problem)
        assert problem.startswith(f"`ifeval` raised {failure}")
        assert problem.endswith("on an answer to row 2")


def test_the_tulu_mixture_asks_for_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    problem = str(proof(tmp_path, [row(json.dumps(MIXTURE), dataset="ifeval")], "rows").problem)
    assert problem.endswith(
        "; func_name is a function of open-instruct, and no checkout of it is here"
    )


def test_nltks_data_is_asked_for_by_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("HOME", str(tmp_path)),
        ("NLTK_DATA", str(tmp_path)),
        ("https_proxy", "http://127.0.0.1:9"),
    ):
        monkeypatch.setenv(name, value)  # nothing is found, and nothing can be downloaded
    kwargs = [{"num_sentences": 3, "relation": "at least"}]
    truth = json.dumps(
        {"instruction_id": ["length_constraints:number_sentences"], "kwargs": kwargs}
    )
    problem = str(proof(tmp_path, [row(truth)], "ifeval").problem)
    assert "punkt_tab" in problem and problem.endswith(
        "on an answer to row 1; python -m nltk.downloader punkt_tab"
    )


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (
            [row("8", dataset="gsm8k"), row("9", dataset="code")],
            "row 2 names the verifier 'code'; known are math, gsm8k",
        ),
        ([row("8")], "row 1 names no verifier in its column `dataset`"),
        (
            [row("8", dataset="gsm8k"), row(None, dataset="math")],
            "1 prompt without ground_truth, the first in row 2",
        ),
    ],
)
def test_faulty_rows_are_one_sentence(
    tmp_path: Path, rows: list[dict[str, Any]], problem: str
) -> None:
    report = proof(tmp_path, rows, "rows")
    assert str(report.problem).startswith(problem)


def test_a_prompt_that_leaves_no_room_is_named() -> None:
    def tokenizer(texts: Sequence[str], *, add_special_tokens: bool) -> dict[str, list[list[str]]]:
        return {"input_ids": [text.split() for text in texts]}

    with pytest.raises(VerifierError) as refused:
        prompt_lengths(["a " * 10, "a " * 33, "a " * 32], tokenizer, 64, 32)
    assert str(refused.value) == (
        "1 prompt longer than the 32 tokens that max_seq_length=64 leaves beside "
        "response_length=32: row 2 has 33"
    )
    assert prompt_lengths(["a " * 10, "a " * 32], tokenizer, 64, 32) == [10, 32]
