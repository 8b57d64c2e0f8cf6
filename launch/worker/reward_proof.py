"""Proves the verifiers of a run on its own rows, before a model is loaded.

It runs in the trainer's interpreter. `main` takes a `ProofRequest`, calls the verifiers as the
training will (launch/worker/verifiers.py), and prints a `ProofReport` as its last line. Proven is:

- every row has a known verifier, a ground truth and a prompt that leaves room for the answer;
- reference answers earn the maximum, and wrong, empty and malformed ones do not;
- answers that are made to break a verifier get a score.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from .json_codec import decode, encode
from .opened import FileUse
from .trl_data import to_prompts
from .trl_options import BY_ROW, VerifierOption, is_own, verifier_of
from .verifiers import (
    BUILT_IN,
    VerifierCall,
    VerifierError,
    VerifierProcess,
    calls_service,
    reference_answer,
    upstream_verifiers,
)
from .wording import count_of

ROWS = 200  # of each verifier, spread over the data
_SHOWN = 3  # failing rows in a message
_WRONG_ROWS = 20  # rows that are given another row's answer
_LIBRARIES = ("math_verify", "lm_eval", "immutabledict", "langdetect", "nltk")
_WIDEST = 60  # characters of an answer in a message
_WRONG = "I do not know."
_SERVICES = (
    "a service (flags.code_api_url is by default port 1234 here, flags.llm_judge_model Azure's)"
)
_MALFORMED = "\\boxed{\\frac{$$ <answer> [[ {\x00 \ud7ff"
# Answers that have broken verifiers: two results, a long number, an expression that takes for ever.
_ADVERSARIAL = (
    ("two boxes", "\\boxed{1} or \\boxed{2}"),
    ("10,000 digits", "\\boxed{" + "7" * 10_000 + "}"),
    ("an expression without end", "\\boxed{9^{9^{9^{9^{9}}}}}"),
)


@dataclass(frozen=True)
class ProofRequest:
    """The verifiers to prove, and the rows to prove them on."""

    verifier: str  # the entry's option `verifier`
    rows: Path  # a file of JSON lines: those of local data
    datasets: tuple[tuple[str, str], ...]  # of the hub: id and split
    model: str  # whose tokenizer counts the prompts' tokens; it may not be there yet
    template: Path | None  # a file with the chat template
    response: int  # tokens
    upstream: bool = False  # rows name open-instruct's own verifiers


@dataclass
class ProofReport:
    """The result of a proof: the verifiers are proven if there is no problem."""

    problem: str | None = None
    warnings: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    # the user's files that the verifiers have imported or read, and not written
    files: list[str] = field(default_factory=list)


def main(arguments: Sequence[str]) -> None:
    """Prove, and print the report."""
    request = decode(ProofRequest, arguments[0])
    print(encode(prove(request)))


def prove(request: ProofRequest) -> ProofReport:
    """Prove the verifiers on the rows; the first problem ends it."""
    option = decode(VerifierOption, request.verifier)
    report = ProofReport()
    rows = list(_read_rows(request))
    try:
        _check_rows(rows, option, upstream=request.upstream)
        _check_window([row["prompt"] for row in rows], request, option.window, report)
        _check_verifiers(rows, option, report, upstream=request.upstream)
    except VerifierError as error:
        report.problem = f"{error}{_install_hint(str(error))}"
    return report


def _read_rows(request: ProofRequest) -> Iterator[dict[str, Any]]:
    with request.rows.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)
    for name, split in request.datasets:
        from datasets import load_dataset

        yield from to_prompts(load_dataset(name))[split]


def _check_rows(
    rows: Sequence[Mapping[str, Any]], option: VerifierOption, *, upstream: bool
) -> None:
    unanswered = []
    for number, row in enumerate(rows, 1):
        if row.get("ground_truth") in (None, "", []):
            unanswered.append(number)
    if unanswered:
        prompts = count_of(len(unanswered), "prompt")
        raise VerifierError(f"{prompts} without ground_truth, the first in row {unanswered[0]}")
    if BY_ROW not in option.verifiers:
        return
    known: Collection[str] = BUILT_IN
    if upstream:  # which only warns, and gives 0 (ground_truth_utils.py:1275)
        try:
            known = upstream_verifiers().keys()
        except ImportError as error:
            raise VerifierError(f"open-instruct's verifiers can't be imported: {error}") from error
    for number, row in enumerate(rows, 1):
        name = row.get("dataset")
        if name is not None and verifier_of(name) in known:
            continue
        problem = f"names the verifier '{name}'"
        if name is None:
            problem = "names no verifier in its column `dataset`"
        raise VerifierError(f"row {number} {problem}; known are {', '.join(known)}")


def _check_window(
    prompts: Sequence[Any], request: ProofRequest, window: int, report: ProofReport
) -> None:
    """Count the tokens of every prompt in the model's chat template."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(request.model)
    except OSError:  # it is not made yet, or of the hub, which this machine can't reach
        report.facts.append("prompts are counted when the model is there")
        return
    if request.template is not None:
        tokenizer.chat_template = request.template.read_text(encoding="utf-8")
    lengths = prompt_lengths(prompts, tokenizer, window, request.response)
    report.facts.append(f"prompts have {min(lengths)} to {max(lengths)} tokens")


def prompt_lengths(prompts: Sequence[Any], tokenizer: Any, window: int, response: int) -> list[int]:
    """Return the tokens of each prompt, the beginning of the answer included.

    Raises VerifierError if a prompt leaves no room for the response in the window; GRPOTrainer
    truncates nothing.
    """
    texts = []
    for prompt in prompts:
        text = prompt
        if not isinstance(prompt, str):
            text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        texts.append(text)
    lengths = [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    limit = window - response
    longest = max(lengths)
    if longest > limit:
        longer = count_of(sum(length > limit for length in lengths), "prompt")
        limits = f"max_seq_length={window} leaves beside response_length={response}"
        where = f"row {lengths.index(longest) + 1} has {longest}"
        raise VerifierError(f"{longer} longer than the {limit} tokens that {limits}: {where}")
    return lengths


def _check_verifiers(
    rows: Sequence[Mapping[str, Any]],
    option: VerifierOption,
    report: ProofReport,
    *,
    upstream: bool,
) -> None:
    names = option.names_in(row.get("dataset") for row in rows)
    used: dict[str, FileUse] = {}
    process = VerifierProcess(
        list(names),
        option.seconds,
        upstream,
        on_files=lambda files: used.update((file.path, file.use) for file in files),
    )
    began = time.monotonic()
    forms: list[str | None] = []
    try:
        for name in names:
            if upstream and calls_service(name):
                report.warnings.append(f"`{name}` calls {_SERVICES}, which is not tried")
                continue
            numbered = enumerate(rows, 1)
            judged = [(number, row) for number, row in numbered if option.judges(name, row)]
            step = max(1, len(judged) // ROWS)
            forms.append(_Verifier(name, process, judged[::step][:ROWS], report).prove())
    finally:
        process.close()
        report.files = [path for path, use in used.items() if use != "write"]
    judging_form = [form for form in forms if form is not None]
    if judging_form and len(judging_form) == len(forms):
        raise VerifierError("; ".join(judging_form))
    report.warnings += judging_form  # another verifier compares the answers
    report.facts.append(f"{time.monotonic() - began:.1f} s")


def _install_hint(failure: str) -> str:
    if "punkt" in failure:
        return "; python -m nltk.downloader punkt_tab"
    if "'open_instruct'" in failure:
        return "; func_name is a function of open-instruct, and no checkout of it is here"
    if any(f"'{name}'" in failure for name in _LIBRARIES):
        return "; install launch's group rl there"
    return ""


@dataclass(frozen=True)
class _Reference:
    """A reference answer and its score."""

    number: int  # of the row, from 1
    row: Mapping[str, Any]
    answer: str
    score: float

    def describe(self) -> str:
        truth = str(self.row["ground_truth"])[:_WIDEST]
        return f"row {self.number}, {truth!r}: {self.score:g}"


@dataclass
class _Verifier:
    """The proof of one verifier on its rows (number, row)."""

    name: str
    process: VerifierProcess
    rows: Sequence[tuple[int, Mapping[str, Any]]]
    report: ProofReport
    _slowest: float = 0.0  # seconds of a call

    def prove(self) -> str | None:
        """Prove the verifier, and add what was found to the report.

        Returns a sentence about a function of the user that gives another row's answer what it
        gives the right one, so that it judges only an answer's form. Raises VerifierError.
        """
        references = self._score_references()
        unearned = self._score_unearned(references)
        self._try_adversarial()
        best = 1.0
        if is_own(self.name):
            scores = [reference.score for reference in references]
            best = max(chain(scores, *unearned.values()))
            self._refuse_zero(best, len(scores))
        failing = [reference for reference in references if reference.score < best]
        self._check_failing(failing, len(references))
        form = self._check_unearned(unearned, best)
        passing = len(references) - len(failing)
        passed = f"{passing} of {len(references)} reference answers pass {self.quoted}"
        if not references:
            passed = (
                f"{self.quoted} scores an answer to each of {len(self.rows)} rows (none has a "
                "column `reference`)"
            )
        self.report.facts.append(f"{passed}, {self._slowest * 1000:.0f} ms a call at most")
        return form

    def _score_references(self) -> list[_Reference]:
        """Score the reference answers; a row without one gets an answer that is wrong."""
        references = []
        for number, row in self.rows:
            answer = reference_answer(self.name, str(row["ground_truth"]), row)
            if answer is None:
                self._call(row, _WRONG, f"an answer to row {number}")
                continue
            score = self._call(row, answer, f"the reference answer of row {number}")
            references.append(_Reference(number, row, answer, score))
        return references

    def _score_unearned(self, references: Sequence[_Reference]) -> dict[str, list[float]]:
        """Return the scores of answers that must not earn the maximum, by their kind."""
        _, row = self.rows[0]
        scores = {"an empty answer": [self._call(row, "", "an empty answer")]}
        # a verifier of instructions compares with no ground truth
        if "ifeval" not in self.quoted:
            scores["a malformed answer"] = [self._call(row, _MALFORMED, "a malformed answer")]
            scores["{} of {} wrong answers"] = self._score_wrong(references)
        if is_own(self.name):  # its rows may all have the same answer
            refused = self._call(row, _WRONG, "an answer that refuses to answer")
            scores[f"the answer '{_WRONG}'"] = [refused]
        return scores

    def _try_adversarial(self) -> None:
        """Report the answers on which the verifier fails."""
        _, row = self.rows[0]
        for what, answer in _ADVERSARIAL:
            outcome = self.process.score(VerifierCall(self.name, row["prompt"], answer, row))
            if outcome.failure:
                lines = self.report.warnings if is_own(self.name) else self.report.facts
                lines.append(f"{self.quoted} {outcome.failure} on {what}, which scores 0")

    def _refuse_zero(self, best: float, count: int) -> None:
        """Refuse a function whose highest score of all is 0 or less: it rewards nothing."""
        if best <= 0:
            answers = f"{count} reference answers and every other"
            raise VerifierError(f"{self.quoted} gives {best:g} at most, to {answers}")

    def _check_failing(self, failing: Sequence[_Reference], count: int) -> None:
        """Refuse a verifier that all `count` reference answers fail, and warn if some do."""
        if not failing:
            return
        shown = "; ".join(reference.describe() for reference in failing[:_SHOWN])
        if len(failing) == count:
            raise VerifierError(f"0 of {count} reference answers pass {self.quoted} ({shown})")
        self.report.warnings.append(
            f"{len(failing)} of {count} reference answers fail {self.quoted} ({shown})"
        )

    def _check_unearned(self, unearned: Mapping[str, Sequence[float]], best: float) -> str | None:
        """Refuse a verifier that gives the maximum to what is no answer.

        Returns the sentence about a user's function that gives it only to answers of other rows.
        """
        accepted = []
        for kind, scores in unearned.items():
            passing = sum(score >= best for score in scores)
            # two rows may well have the same answer in another form
            if passing * 2 > len(scores):
                accepted.append(kind.format(passing, len(scores)))
        sentence = f"{', '.join(accepted)} earn the maximum of {self.quoted}, as right ones do"
        is_form = is_own(self.name) and all("wrong answers" in kind for kind in accepted)
        if accepted and not is_form:
            raise VerifierError(sentence)
        return sentence if accepted else None

    @property
    def quoted(self) -> str:
        """The name of a built-in verifier, the function's of an own one."""
        return f"`{self.name.rpartition(':')[2]}`"

    def _score_wrong(self, references: Sequence[_Reference]) -> list[float]:
        """Score wrong answers: each row is given the next reference answer that is not its own."""
        scores = []
        for index, reference in enumerate(references[:_WRONG_ROWS]):
            following = [*references[index + 1 :], *references[:index]]
            other = next((item for item in following if item.answer != reference.answer), None)
            if other is not None:
                what = f"the answer of row {other.number} to another row"
                scores.append(self._call(reference.row, other.answer, what))
        if not scores and references:
            scores.append(self._call(references[0].row, _WRONG, "a wrong answer"))
        return scores

    def _call(self, row: Mapping[str, Any], answer: str, what: str) -> float:
        outcome = self.process.score(VerifierCall(self.name, row["prompt"], answer, row))
        if outcome.failure:
            raise VerifierError(f"{self.quoted} {outcome.failure} on {what}")
        if outcome.printed:
            raise VerifierError(f"{self.quoted} prints '{outcome.printed[:_WIDEST]}' on {what}")
        self._slowest = max(self._slowest, outcome.seconds)
        return outcome.score or 0.0
