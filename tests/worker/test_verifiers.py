"""Verifiers in their process: what each scores, and what one that goes wrong does to it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.worker.trl_options import VerifierOption
from launch.worker.verifiers import VerifierCall, VerifierError, VerifierOutcome, VerifierProcess
from tests.paths import ROOT

OWN = """
import os, signal, subprocess, sys, time

def right(completions, ground_truth, **columns):
    return [float(answer[0]["content"] == truth) for answer, truth in zip(completions, ground_truth)]

def takes(prompts, completions, completion_ids, level, trainer_state, log_extra, log_metric, **rest):
    log_metric("level", 1.0)
    return [level[0] + len(completion_ids[0])]

def skips(completions, **columns): return [None]
def raises(completions, **columns): raise ValueError("no such unit")
def prints(completions, **columns): print("debugging"); return [1.0]
def nan(completions, **columns): return [float("nan")]
def text(completions, **columns): return ["yes"]
def two(completions, **columns): return [1.0, 1.0]
def exits(completions, **columns): os._exit(3)
def alarm(completions, **columns): signal.signal(signal.SIGALRM, lambda *_: None); return [1.0]

def hangs(completions, ground_truth, **columns):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(ground_truth[0], "w").write(str(child.pid))
    time.sleep(600)
"""


@pytest.fixture
def process() -> Iterator[VerifierProcess]:
    process = VerifierProcess([], seconds=30.0)
    yield process
    process.close()


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    return f"{path}:"


def call(name: str, completion: str, **columns: object) -> VerifierCall:
    return VerifierCall(
        name,
        [{"role": "user", "content": "?"}],
        completion,
        {"ground_truth": "x", **columns},
        [7, 8],
    )


def one(process: VerifierProcess, *arguments: str, **columns: object) -> VerifierOutcome:
    return process.score(call(*arguments, **columns))


def test_mathematics_is_compared_as_such(process: VerifierProcess) -> None:
    """open-instruct's MathVerifier scores x+1 against 1+x 1 in the main thread, and 0 in a thread,
    as GRPO calls it.
    """
    assert one(process, "math", "so \\boxed{x+1}", ground_truth="1+x").score == 1.0
    assert one(process, "math", "\\boxed{0.5}", ground_truth="\\frac{1}{2}").score == 1.0
    for wrong in (
        "\\boxed{1} or \\boxed{3}",
        "\\boxed{3} or \\boxed{1}",
        "\\boxed{" + "7" * 10_000 + "}",
        "",
        "\\boxed{",
    ):
        assert one(process, "math", wrong, ground_truth="3") == VerifierOutcome(
            0.0, pytest.approx(0, abs=9)
        )


def test_an_expression_without_end_is_killed_and_the_next_call_works(
    process: VerifierProcess,
) -> None:
    process.start()
    process.seconds = 2.0
    endless = one(process, "math", "\\boxed{9^{9^{9^{9}}}}", ground_truth="2")
    assert (endless.score, endless.failure) == (0.0, "did not answer within 2 s")
    assert one(process, "exact", " x ").score == 1.0


@pytest.mark.parametrize(
    "answer", ["3 and 5 make 1,008.", "\\boxed{1008}", "She pays $1008.", "#### 1008", "**1008**"]
)
def test_a_number_counts_however_it_is_written(process: VerifierProcess, answer: str) -> None:
    assert one(process, "gsm8k", answer, ground_truth="1008").score == 1.0
    assert one(process, "gsm8k", answer, ground_truth="8").score == 0.0


def test_an_own_function_gets_what_trl_passes(process: VerifierProcess, own: str) -> None:
    assert one(process, f"{own}right", "x").score == 1.0
    assert one(process, f"{own}takes", "x", level=3).score == 5.0
    assert one(process, f"{own}skips", "x").score is None


@pytest.mark.parametrize(
    ("function", "failure"),
    [
        ("raises", "raised ValueError: no such unit"),
        ("nan", "returned nan"),
        ("text", "returned 'yes'"),
        (
            "two",
            (
                "raised TypeError: it returned [1.0, 1.0] for one answer; a list with one number "
                "is "
                "expected"
            ),
        ),
        ("exits", "ended its process"),
        ("alarm", "raised ValueError: signal only works in main thread of the main interpreter"),
    ],
)
def test_a_failure_scores_0_and_says_why(
    process: VerifierProcess, own: str, function: str, failure: str
) -> None:
    outcome = one(process, f"{own}{function}", "x")
    assert (outcome.score, outcome.failure) == (0.0, failure)
    assert one(process, "exact", "x").score == 1.0


def test_what_it_prints_is_no_answer(process: VerifierProcess, own: str) -> None:
    outcome = one(process, f"{own}prints", "x")
    assert (outcome.score, outcome.failure, outcome.printed) == (1.0, None, "debugging")


def test_a_call_over_the_limit_is_killed_with_its_children(
    process: VerifierProcess, own: str, tmp_path: Path
) -> None:
    process.start()
    process.seconds = 5.0
    outcome = one(process, f"{own}hangs", "x", ground_truth=str(tmp_path / "pid"))
    assert outcome.failure == "did not answer within 5 s"
    child, end = int((tmp_path / "pid").read_text()), time.monotonic() + 10
    while (
        Path(f"/proc/{child}").exists()
        and "Z" not in Path(f"/proc/{child}/stat").read_text().split(")")[1]
    ):
        assert time.monotonic() < end, "the verifier's own child lives on"
        time.sleep(0.05)


def test_a_verifier_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_that_name\n", encoding="utf-8")
    with pytest.raises(VerifierError, match="nothing_of_that_name"):
        VerifierProcess([f"{broken}:f"], 5.0).start()


def test_rows_name_their_verifiers() -> None:
    option = VerifierOption({"rows": 1, "exact": 0.5}, 5, 64)
    assert option.names_in(iter(["MATH", "gsm8k", "MATH"])) == {"gsm8k": 1, "math": 1, "exact": 0.5}


TRAIN_PUNKT = """
import sys
from nltk.tokenize.punkt import PunktTrainer, save_punkt_params
save_punkt_params(PunktTrainer(sys.stdin.read()).get_params(), dir=sys.argv[1])
"""


@pytest.fixture(scope="module")
def punkt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """nltk's punkt_tab, which nltk trains here on the project's own README: the download needs a
    network.
    """
    data = tmp_path_factory.mktemp("nltk")
    (data / "tokenizers" / "punkt_tab").mkdir(parents=True)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NLTK_DATA", str(data))
        command = [
            sys.executable,
            "-c",
            TRAIN_PUNKT,
            str(data / "tokenizers" / "punkt_tab" / "english"),
        ]
        subprocess.run(command, input=text, text=True, check=True)
        yield


@pytest.mark.usefixtures("punkt")
@pytest.mark.parametrize(("sentences", "score"), [(3, 1.0), (4, 0.0)])
def test_sentences_are_counted(process: VerifierProcess, sentences: int, score: float) -> None:
    kwargs = {"num_sentences": sentences, "relation": "at least"}
    truth = json.dumps(
        {"instruction_id": ["length_constraints:number_sentences"], "kwargs": [kwargs]}
    )
    outcome = one(
        process,
        "ifeval",
        "It is read once. It is then closed. Nothing is left.",
        ground_truth=truth,
    )
    assert (outcome.score, outcome.failure) == (score, None)


@pytest.mark.usefixtures("punkt")
def test_instructions_are_followed(process: VerifierProcess) -> None:
    truth = {
        "instruction_id": ["punctuation:no_comma", "change_case:english_lowercase"],
        "kwargs": [None, {}],
    }
    for answer, score in (
        ("No, I am not shouting", 0.0),
        ("There is no comma", 0.5),
        ("this has no comma", 1.0),
    ):
        outcome = one(process, "ifeval", answer, ground_truth=json.dumps(truth))
        assert (outcome.score, outcome.failure) == (score, None)


def mixture_row(function: str, **arguments: object) -> str:
    """A ground truth as in RLVR-GSM-MATH-IF-Mixed-Constraints: every argument of any function, most
    of them null.
    """
    names = (
        "N",
        "quantifier",
        "end_phrase",
        "keyword_list",
        "word",
        "forbidden_words",
        "letter",
        "i",
        "first_word",
    )
    names += ("postscript_marker", "options", "section_splitter", "original_prompt", "language")
    return json.dumps({"func_name": function, **dict.fromkeys(names), **arguments})


@pytest.mark.usefixtures("upstream")
@pytest.mark.parametrize(
    ("truth", "right", "wrong"),
    [
        (mixture_row("validate_lowercase"), "all lower, 1", "Not all lower"),
        (mixture_row("validate_lowercase"), "<think>Not this</think>\nlower", ""),
        (mixture_row("verify_keyword_frequency", word="tea", N=2), "Tea, tea.", "tea"),
        (
            mixture_row("validate_word_constraint", N=3, quantifier="at most"),
            "one two",
            "one two three four",
        ),
        (mixture_row("validate_paragraphs", N=2, i=2, first_word="Then"), "A\n\nThen b", "A\n\nb"),
        (
            mixture_row("validate_response_language", language="en"),
            "This is an English sentence.",
            "1234 5678",
        ),
        (mixture_row("verify_postscript", postscript_marker="P.S."), "Dear\nP.S. more", "Dear"),
    ],
)
def test_instructions_of_the_tulu_mixture_are_open_instructs_functions(
    process: VerifierProcess, truth: str, right: str, wrong: str
) -> None:
    for answer, score in ((right, 1.0), (wrong, 0.0)):
        outcome = one(process, "ifeval", answer, ground_truth=truth)
        assert (outcome.score, outcome.failure) == (score, None), answer


@pytest.mark.usefixtures("upstream")
def test_a_function_that_open_instruct_lacks_is_named(process: VerifierProcess) -> None:
    truth = mixture_row("validate_rhyme")
    assert (
        one(process, "ifeval", "x", ground_truth=truth).failure
        == "raised KeyError: 'validate_rhyme'"
    )


def test_without_a_checkout_its_functions_are_missing(
    process: VerifierProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    failure = one(process, "ifeval", "x", ground_truth=mixture_row("validate_lowercase")).failure
    assert failure == "raised ModuleNotFoundError: No module named 'open_instruct'"
