"""Proves the verifiers of a run on its own rows, before a model is loaded. Runs in the trainer's interpreter.

`main` takes a `ProofRequest`, calls the verifiers as the training will (launch/worker/verifiers.py), and prints a
`ProofReport` as its last line: every row has a known verifier, a ground truth and room for its prompt; reference
answers earn the maximum; wrong, empty and malformed ones do not; answers made to break a verifier are survived.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .json_codec import decode, encode
from .verifiers import (
    BUILT_IN,
    BY_ROW,
    UPSTREAM,
    Call,
    Outcome,
    VerifierError,
    VerifierOption,
    VerifierProcess,
    calls_service,
    is_own,
    reference_answer,
    upstream_verifiers,
    verifier_of,
)

ROWS = 200  # of each verifier, spread over the data
_SHOWN = 3
_LIBRARIES = ("math_verify", "lm_eval", "immutabledict", "langdetect", "nltk")
_WIDEST = 60  # characters of an answer in a message
_WRONG = "I do not know."
_SERVICES = "a service (flags.code_api_url is by default port 1234 here, flags.llm_judge_model Azure's)"
_MALFORMED = "\\boxed{\\frac{$$ <answer> [[ {\x00 \ud7ff"
# answers that have broken verifiers: a long number, an expression that takes for ever, two results
_ADVERSARIAL = (
    ("two boxes", "\\boxed{1} or \\boxed{2}"),
    ("10,000 digits", "\\boxed{" + "7" * 10_000 + "}"),
    ("an expression without end", "\\boxed{9^{9^{9^{9^{9}}}}}"),
)


@dataclass(frozen=True)
class ProofRequest:
    """What is proven."""

    verifier: str  # the entry's option `verifier`
    rows: str  # a file of JSON lines: those of local data
    datasets: tuple[tuple[str, str], ...]  # of the hub: id and split
    model: str | None  # whose tokenizer counts the prompts' tokens; None: it is not there yet
    template: str | None  # a file with the chat template
    response: int  # tokens


@dataclass
class ProofReport:
    """What was found; no problem means proven."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)


def main(arguments: Sequence[str]) -> None:
    """Prove, and print the report."""
    request = decode(ProofRequest, arguments[0])
    print(encode(prove(request)))


def prove(request: ProofRequest) -> ProofReport:
    """Prove the verifiers on the rows; the first kind of problem ends it."""
    option, found = VerifierOption.parse(request.verifier), ProofReport()
    rows = list(_read_rows(request))
    _check_rows(rows, option, found)
    if not found.problems:
        _check_window([row["prompt"] for row in rows], request, option.window, found)
    if not found.problems:
        _check_verifiers(rows, option, found)
    return found


def _read_rows(request: ProofRequest) -> Iterator[dict[str, Any]]:
    with Path(request.rows).open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)
    for name, split in request.datasets:
        from datasets import load_dataset

        for row in load_dataset(name, split=split):
            messages = row.get("messages") or row.get("prompt")
            yield {**row, "prompt": messages[:-1] if messages[-1]["role"] == "assistant" else messages}


def _check_rows(rows: Sequence[Mapping[str, Any]], option: VerifierOption, found: ProofReport) -> None:
    without = [number for number, row in enumerate(rows, 1) if row.get("ground_truth") in (None, "", [])]
    if without:
        found.problems.append(f"{_count(len(without), 'prompt')} without ground_truth, the first in row {without[0]}")
    if BY_ROW not in option.verifiers:
        return
    known: Collection[str] = BUILT_IN
    if option.upstream:  # which only warns, and gives 0 (ground_truth_utils.py:1275)
        try:
            known = upstream_verifiers().keys()
        except ImportError as error:
            found.problems.append(f"open-instruct's verifiers can't be imported: {error}")
            return
    for number, row in enumerate(rows, 1):
        name = row.get("dataset")
        if name is None or verifier_of(name) not in known:
            named = "names no verifier in its column `dataset`" if name is None else f"names the verifier '{name}'"
            found.problems.append(f"row {number} {named}; known are {', '.join(known)}")
            return


def _check_window(prompts: Sequence[Any], request: ProofRequest, window: int, found: ProofReport) -> None:
    """Count the tokens of every prompt in the model's chat template."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(request.model) if request.model else None
    except OSError:  # a model of the hub, which this machine can't reach
        tokenizer = None
    if tokenizer is None:
        found.facts.append("prompts are counted when the model is there")
        return
    if request.template is not None:
        tokenizer.chat_template = Path(request.template).read_text(encoding="utf-8")
    lengths = prompt_lengths(prompts, tokenizer)
    found.problems += window_problems(lengths, window, request.response)
    found.facts.append(f"prompts have {min(lengths)} to {max(lengths)} tokens")


def prompt_lengths(prompts: Sequence[Any], tokenizer: Any) -> list[int]:
    """Return the tokens of each prompt, the beginning of the answer included."""
    texts = [
        prompt
        if isinstance(prompt, str)
        else tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        for prompt in prompts
    ]
    return [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]


def window_problems(lengths: Sequence[int], window: int, response: int) -> list[str]:
    """Return a sentence if a prompt leaves no room for the response; GRPOTrainer truncates nothing."""
    room = window - response
    longest = max(range(len(lengths)), key=lengths.__getitem__)
    if lengths[longest] <= room:
        return []
    longer = _count(sum(length > room for length in lengths), "prompt")
    limits = f"max_seq_length={window} leaves beside response_length={response}"
    return [f"{longer} longer than the {room} tokens that {limits}: row {longest + 1} has {lengths[longest]}"]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _check_verifiers(rows: Sequence[Mapping[str, Any]], option: VerifierOption, found: ProofReport) -> None:
    names = option.names_in(iter([row.get("dataset") for row in rows]))
    process = VerifierProcess(list(names), option.seconds)
    began = time.monotonic()
    try:
        process.start()
        for name in names:
            if name.startswith(UPSTREAM) and calls_service(name):
                found.warnings.append(f"`{name.removeprefix(UPSTREAM)}` calls {_SERVICES}, which is not tried")
                continue
            judged = [
                n for n, row in enumerate(rows) if name in option.verifiers or option.named_by(row["dataset"]) == name
            ]
            step = max(1, len(judged) // ROWS)
            _Verifier(name, process, [(n + 1, rows[n]) for n in judged[::step][:ROWS]], found).prove()
    except VerifierError as error:
        found.problems.append(f"{error}{_install_hint(str(error))}")
    finally:
        process.close()
    found.facts.append(f"{time.monotonic() - began:.1f} s")


def _install_hint(failure: str) -> str:
    if "punkt" in failure:
        return "; python -m nltk.downloader punkt_tab"
    if "'open_instruct'" in failure:
        return "; func_name is a function of open-instruct, and no checkout of it is here"
    return "; install launch's group rl there" if any(f"'{name}'" in failure for name in _LIBRARIES) else ""


@dataclass
class _Verifier:
    """The proof of one verifier on its rows (number, row)."""

    name: str
    process: VerifierProcess
    rows: Sequence[tuple[int, Mapping[str, Any]]]
    found: ProofReport
    _slowest: float = 0.0

    def prove(self) -> None:
        references = [(n, row, reference_answer(self.label, str(row["ground_truth"]), row)) for n, row in self.rows]
        known = [(n, row, answer) for n, row, answer in references if answer is not None]
        for n, row, answer in references:
            if answer is None:
                self._call(row, _WRONG, f"an answer to row {n}")
        scores = [self._call(row, answer, f"the reference answer of row {n}") for n, row, answer in known]
        _, row = self.rows[0]
        empty = self._call(row, "", "an empty answer")
        wrong = self._wrong(known) if self.takes_answers else []
        malformed = [self._call(row, _MALFORMED, "a malformed answer")] if self.takes_answers else []
        if self.found.problems:
            return
        for what, answer in _ADVERSARIAL:
            self._survive(row, answer, what)
        best = 1.0 if not is_own(self.name) else max((*scores, *wrong, *malformed, empty))
        passing = [score >= best for score in scores]
        failing = [(n, row, score) for (n, row, _), score, ok in zip(known, scores, passing, strict=True) if not ok]
        if known and not any(passing):
            self._say(self.found.problems, f"0 of {len(known)} reference answers pass {self.quoted}", failing)
        elif failing:
            self._say(
                self.found.warnings, f"{len(failing)} of {len(known)} reference answers fail {self.quoted}", failing
            )
        accepted = [
            *(["an empty answer"] if empty >= best else []),
            *(["a malformed answer"] if malformed and malformed[0] >= best else []),
            *([f"{sum(w >= best for w in wrong)} of {len(wrong)} wrong answers"] if self._accepts(wrong, best) else []),
        ]
        if accepted and not self.found.problems:
            self.found.problems.append(f"{', '.join(accepted)} earn the maximum of {self.quoted}, as right ones do")
        passed = f"{sum(passing)} of {len(known)} reference answers pass {self.quoted}"
        if not known:
            passed = f"{self.quoted} scores an answer to each of {len(references)} rows (none has a column `reference`)"
        self.found.facts.append(f"{passed}, {self._slowest * 1000:.0f} ms a call at most")

    @property
    def label(self) -> str:
        """The name of a built-in verifier, the function's of an own one."""
        return self.name.rpartition(":")[2] if is_own(self.name) else self.name

    @property
    def takes_answers(self) -> bool:
        """Whether it compares with a ground truth, and not with instructions."""
        return "ifeval" not in self.label

    @property
    def quoted(self) -> str:
        return f"`{self.label.removeprefix(UPSTREAM)}`"

    def _wrong(self, known: Sequence[tuple[int, Mapping[str, Any], str]]) -> list[float]:
        """Score wrong answers: another row's reference; for an own function, which may accept it, a refusal."""
        if is_own(self.name):
            return [self._call(known[0][1], _WRONG, "a wrong answer")] if known else []
        scores = []
        for (_, row, answer), (number, _, other) in zip(known[:20], [*known[1:21], known[0]], strict=False):
            if other != answer:
                scores.append(self._call(row, other, f"the answer of row {number} to another row"))
        return scores or [self._call(known[0][1], _WRONG, "a wrong answer")]

    @staticmethod
    def _accepts(wrong: Sequence[float], best: float) -> bool:
        """Whether most wrong answers pass: two rows may well have the same answer in another form."""
        return bool(wrong) and sum(score >= best for score in wrong) * 2 > len(wrong)

    def _call(self, row: Mapping[str, Any], answer: str, what: str) -> float:
        if self.found.problems:
            return 0.0
        outcome = self._outcome(row, answer)
        if outcome.failure:
            self.found.problems.append(f"{self.quoted} {outcome.failure} on {what}{_install_hint(outcome.failure)}")
        elif outcome.printed:
            self.found.problems.append(f"{self.quoted} prints '{outcome.printed[:_WIDEST]}' on {what}")
        self._slowest = max(self._slowest, outcome.seconds)
        return outcome.score if outcome.score is not None else 0.0

    def _survive(self, row: Mapping[str, Any], answer: str, what: str) -> None:
        outcome = self._outcome(row, answer)
        if outcome.failure:
            where = self.found.warnings if is_own(self.name) else self.found.facts
            where.append(f"{self.quoted} {outcome.failure} on {what}, which scores 0")

    def _outcome(self, row: Mapping[str, Any], answer: str) -> Outcome:
        return self.process.score([Call(self.name, row["prompt"], answer, row)])[0]

    def _say(self, where: list[str], message: str, failing: Sequence[tuple[int, Mapping[str, Any], float]]) -> None:
        shown = [f"row {n}, {str(row['ground_truth'])[:_WIDEST]!r}: {score:g}" for n, row, score in failing[:_SHOWN]]
        where.append(f"{message} ({'; '.join(shown)})")
