"""The proof of one verifier on its rows: reference answers earn the maximum, and wrong, empty and
malformed ones do not. `launch.worker.reward_proof` proves all of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from .trl_options import is_own
from .verifiers import VerifierCall, VerifierError, VerifierProcess, reference_answer
from .wording import count_of

_SHOWN = 3  # failing rows in a message
_WRONG_ROWS = 20  # rows that are given another row's answer
_MAX_WIDTH = 60  # characters of an answer in a message
_WRONG = "I do not know."
_MALFORMED = "\\boxed{\\frac{$$ <answer> [[ {\x00 \ud7ff"
# Faults of a user's function for which there is a cure.
TEXTS = "texts"  # it expects a completion as text, and gets a list of messages
CONSTANT = "constant"  # it gives the same to every answer
FORM = "form"  # it may reward only the form of an answer, as a shaping reward does
NO_TRUTHS = "unproven"  # no row has an answer that is known to be right; it stops nothing
_NO_TRUTHS = ("prompt", "messages", "dataset", "ground_truth", "reference")
_LONGEST_TRUTH = 60  # characters of a value that may be a ground truth
# Answers that have broken verifiers: two results, a long number, an expression that never ends.
_ADVERSARIAL = (
    ("two boxes", "\\boxed{1} or \\boxed{2}"),
    ("10,000 digits", "\\boxed{" + "7" * 10_000 + "}"),
    ("an expression without end", "\\boxed{9^{9^{9^{9^{9}}}}}"),
)


@dataclass
class ProofReport:
    """The result of a proof: the verifiers are proven if there is no problem."""

    problem: str | None = None
    # A fault of a user's function: TEXTS, CONSTANT, FORM, NO_TRUTHS, or another one. The last two
    # may come with warnings alone.
    fault: str | None = None
    columns: list[str] = field(default_factory=list)  # with NO_TRUTHS: they may hold ground truths
    warnings: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    # The user's files that the verifiers have imported or read, but not written.
    files: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Reference:
    """A reference answer and its score."""

    number: int  # the number of the row, from 1
    row: Mapping[str, Any]
    answer: str
    score: float

    def describe(self) -> str:
        truth = str(self.row.get("ground_truth") or self.answer)[:_MAX_WIDTH]
        return f"row {self.number}, {truth!r}: {self.score:g}"


@dataclass
class VerifierProof:
    """The proof of one verifier on its rows (number, row)."""

    name: str
    process: VerifierProcess
    rows: Sequence[tuple[int, Mapping[str, Any]]]
    report: ProofReport
    _slowest: float = 0.0  # seconds of a call
    _scores: dict[float, str] = field(default_factory=dict)  # all that it gave, with an answer

    def prove(self) -> str | None:
        """Prove the verifier, and add what was found to the report.

        Returns a sentence about a user's function that gives another row's answer the same score as
        the right one, and so judges only the form of an answer. Raises VerifierError.
        """
        try:
            return self._prove()
        except VerifierError as error:
            if self._takes_texts():
                problem = (
                    f"{self.quoted} takes a completion for a text, and gets a list of messages"
                )
                raise VerifierError(f"{problem} ({error})", TEXTS) from error
            raise

    def _prove(self) -> str | None:
        references = self._score_references()
        unearned = self._score_unearned(references)
        self._try_adversarial()
        best = 1.0
        if is_own(self.name):
            scores = [reference.score for reference in references]
            best = max(chain(scores, *unearned.values()))
            self._refuse_constant(len(scores))
            if not references:
                self._report_unproven()
                return None
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
        """Score the reference answers.

        A row without one gets a wrong answer, or, for a user's function, one that repeats the
        prompt.
        """
        references = []
        for number, row in self.rows:
            answer = reference_answer(self.name, str(row.get("ground_truth") or ""), row)
            if answer is None:
                wrong = _last_text(row["prompt"]) if is_own(self.name) else _WRONG
                self._call(row, wrong, f"an answer to row {number}")
                continue
            score = self._call(row, answer, f"the reference answer of row {number}")
            references.append(_Reference(number, row, answer, score))
        return references

    def _score_unearned(self, references: Sequence[_Reference]) -> dict[str, list[float]]:
        """Return the scores of answers that must not earn the maximum, by their kind."""
        _, row = self.rows[0]
        scores = {"an empty answer": [self._call(row, "", "an empty answer")]}
        # A verifier of instructions does not compare the answer with a ground truth.
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

    def _refuse_constant(self, count: int) -> None:
        """Refuse a function that gives all answers the same score; `count` of them are references."""
        if len(self._scores) == 1:
            (score,) = self._scores
            answers = f"right ones ({count_of(count, 'reference answer')}) and wrong ones"
            if not count:
                answers = "no row has a ground_truth or a reference to try"
            message = f"{self.quoted} gives {score:g} to every answer that was tried: {answers}"
            raise VerifierError(message, CONSTANT)

    def _report_unproven(self) -> None:
        """Warn that no answer is known to deserve the maximum."""
        low = min(self._scores)
        high = max(self._scores)
        self.report.warnings.append(
            f"nothing shows that {self.quoted} rewards right answers, since no row has a "
            f"ground_truth or a reference; made-up answers were tried, of which "
            f"{self._scores[low]} earned {low:g} and {self._scores[high]} earned {high:g}"
        )
        self.report.fault = NO_TRUTHS
        self.report.columns = find_truth_columns([row for _, row in self.rows])

    def _takes_texts(self) -> bool:
        """Return whether a user's function expects texts, although it gets lists of messages.

        It then fails on messages or gives all of them one score, and scores texts without failing.
        """
        _, first = self.rows[0]
        if not is_own(self.name) or isinstance(first["prompt"], str):
            return False
        of_messages = self._try_answers(as_texts=False)
        of_texts = self._try_answers(as_texts=True)
        if of_texts is None:
            return False
        return of_messages is None or (len(of_messages) == 1 and len(of_texts) > 1)

    def _try_answers(self, *, as_texts: bool) -> set[float] | None:
        """Return the scores of a few answers; None if the function fails on one.

        A verifier gets a text where its prompt is one.
        """
        scores = set()
        for _, row in self.rows[:_SHOWN]:
            truth = str(row.get("ground_truth") or _last_text(row["prompt"]))
            for answer in (reference_answer(self.name, truth, row) or truth, _WRONG, ""):
                prompt = _last_text(row["prompt"]) if as_texts else row["prompt"]
                outcome = self.process.score(VerifierCall(self.name, prompt, answer, row))
                if outcome.failure:
                    return None
                scores.add(outcome.score or 0.0)
        return scores

    def _check_failing(self, failing: Sequence[_Reference], count: int) -> None:
        """Refuse a verifier that all `count` reference answers fail, and warn if some do."""
        if not failing:
            return
        shown = "; ".join(reference.describe() for reference in failing[:_SHOWN])
        if len(failing) == count:
            message = f"0 of {count} reference answers pass {self.quoted} ({shown})"
            raise VerifierError(message, FORM if is_own(self.name) else None)
        self.report.fault = FORM if is_own(self.name) else None
        self.report.warnings.append(
            f"{len(failing)} of {count} reference answers fail {self.quoted} ({shown})"
        )

    def _check_unearned(self, unearned: Mapping[str, Sequence[float]], best: float) -> str | None:
        """Refuse a verifier that gives the maximum to empty, malformed or wrong answers.

        For a user's function that gives it only to answers of other rows, the sentence about this
        is returned instead.
        """
        accepted = []
        for kind, scores in unearned.items():
            passing = sum(score >= best for score in scores)
            # Two rows may have the same answer in different forms.
            if passing * 2 > len(scores):
                accepted.append(kind.format(passing, len(scores)))
        sentence = f"{', '.join(accepted)} earn the maximum of {self.quoted}, as right ones do"
        is_form = is_own(self.name) and all("wrong answers" in kind for kind in accepted)
        if accepted and not is_form:
            raise VerifierError(sentence, FORM if is_own(self.name) else None)
        return sentence if accepted else None

    @property
    def quoted(self) -> str:
        """The name of a built-in verifier, or that of a user's function."""
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
            raise VerifierError(f"{self.quoted} prints '{outcome.printed[:_MAX_WIDTH]}' on {what}")
        self._slowest = max(self._slowest, outcome.seconds)
        shown = repr(answer if len(answer) <= _MAX_WIDTH else f"{answer[: _MAX_WIDTH - 3]}...")
        self._scores.setdefault(outcome.score or 0.0, shown)
        return outcome.score or 0.0


def find_truth_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns that may be ground truths under another name: short values in every row,
    which differ.
    """
    columns = []
    for name in rows[0]:
        values = {
            str(row.get(name)) for row in rows if isinstance(row.get(name), str | int | float)
        }
        is_everywhere = all(row.get(name) not in (None, "") for row in rows)
        is_short = max(map(len, values), default=0) <= _LONGEST_TRUTH
        if name not in _NO_TRUTHS and is_everywhere and is_short and len(values) > 1:
            columns.append(name)
    return columns


def _last_text(prompt: Any) -> str:
    """Return the text of a prompt, or of the last turn of a conversation."""
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
