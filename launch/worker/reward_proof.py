"""Proves the verifiers of a run on its own rows, before a model is loaded. Runs in the trainer's
interpreter.

`main` takes a `ProofRequest`, calls the verifiers as the training will
(launch/worker/verifiers.py), and prints a `ProofReport` as its last line: every row has a known
verifier, a ground truth and room for its prompt; reference answers earn the maximum; wrong, empty
and malformed ones do not; answers made to break a verifier are survived.
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

ROWS = 200  # of each verifier, spread over the data
_SHOWN = 3
_WRONG_ROWS = 20  # that are given another row's answer
_LIBRARIES = ("math_verify", "lm_eval", "immutabledict", "langdetect", "nltk")
_WIDEST = 60  # characters of an answer in a message
_WRONG = "I do not know."
_SERVICES = (
    "a service (flags.code_api_url is by default port 1234 here, flags.llm_judge_model Azure's)"
)
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
    rows: Path  # a file of JSON lines: those of local data
    datasets: tuple[tuple[str, str], ...]  # of the hub: id and split
    model: str  # whose tokenizer counts the prompts' tokens; it may not be there yet
    template: Path | None  # a file with the chat template
    response: int  # tokens
    upstream: bool = False  # rows name open-instruct's own verifiers


@dataclass
class ProofReport:
    """What was found; no problem means proven."""

    problem: str | None = None
    warnings: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)


def main(arguments: Sequence[str]) -> None:
    """Prove, and print the report."""
    request = decode(ProofRequest, arguments[0])
    print(encode(prove(request)))


def prove(request: ProofRequest) -> ProofReport:
    """Prove the verifiers on the rows; the first problem ends it."""
    option, found = decode(VerifierOption, request.verifier), ProofReport()
    rows = list(_read_rows(request))
    try:
        _check_rows(rows, option, upstream=request.upstream)
        _check_window([row["prompt"] for row in rows], request, option.window, found)
        _check_verifiers(rows, option, found, upstream=request.upstream)
    except VerifierError as error:
        found.problem = f"{error}{_install_hint(str(error))}"
    return found


def _read_rows(request: ProofRequest) -> Iterator[dict[str, Any]]:
    with request.rows.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)
    for name, split in request.datasets:
        from datasets import load_dataset

        yield from to_prompts(load_dataset(name))[split]


def _check_rows(
    rows: Sequence[Mapping[str, Any]], option: VerifierOption, *, upstream: bool
) -> None:
    without = [
        number for number, row in enumerate(rows, 1) if row.get("ground_truth") in (None, "", [])
    ]
    if without:
        raise VerifierError(
            f"{_count(len(without), 'prompt')} without ground_truth, the first in row {without[0]}"
        )
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
        if name is None or verifier_of(name) not in known:
            named = (
                "names no verifier in its column `dataset`"
                if name is None
                else f"names the verifier '{name}'"
            )
            raise VerifierError(f"row {number} {named}; known are {', '.join(known)}")


def _check_window(
    prompts: Sequence[Any], request: ProofRequest, window: int, found: ProofReport
) -> None:
    """Count the tokens of every prompt in the model's chat template."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(request.model)
    except OSError:  # it is not made yet, or of the hub, which this machine can't reach
        found.facts.append("prompts are counted when the model is there")
        return
    if request.template is not None:
        tokenizer.chat_template = request.template.read_text(encoding="utf-8")
    lengths = prompt_lengths(prompts, tokenizer, window, request.response)
    found.facts.append(f"prompts have {min(lengths)} to {max(lengths)} tokens")


def prompt_lengths(prompts: Sequence[Any], tokenizer: Any, window: int, response: int) -> list[int]:
    """Return the tokens of each prompt, the beginning of the answer included.

    Raises VerifierError if a prompt leaves no room for the response in the window; GRPOTrainer
    truncates nothing.
    """
    texts = [
        prompt
        if isinstance(prompt, str)
        else tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        for prompt in prompts
    ]
    lengths = [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    room, longest = window - response, max(lengths)
    if longest > room:
        longer = _count(sum(length > room for length in lengths), "prompt")
        limits = f"max_seq_length={window} leaves beside response_length={response}"
        where = f"row {lengths.index(longest) + 1} has {longest}"
        raise VerifierError(f"{longer} longer than the {room} tokens that {limits}: {where}")
    return lengths


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _check_verifiers(
    rows: Sequence[Mapping[str, Any]], option: VerifierOption, found: ProofReport, *, upstream: bool
) -> None:
    names = option.names_in(row.get("dataset") for row in rows)
    process = VerifierProcess(list(names), option.seconds, upstream)
    began = time.monotonic()
    try:
        for name in names:
            if upstream and calls_service(name):
                found.warnings.append(f"`{name}` calls {_SERVICES}, which is not tried")
                continue
            judged = [
                (number, row) for number, row in enumerate(rows, 1) if option.judges(name, row)
            ]
            step = max(1, len(judged) // ROWS)
            _Verifier(name, process, judged[::step][:ROWS], found).prove()
    finally:
        process.close()
    found.facts.append(f"{time.monotonic() - began:.1f} s")


def _install_hint(failure: str) -> str:
    if "punkt" in failure:
        return "; python -m nltk.downloader punkt_tab"
    if "'open_instruct'" in failure:
        return "; func_name is a function of open-instruct, and no checkout of it is here"
    return (
        "; install launch's group rl there"
        if any(f"'{name}'" in failure for name in _LIBRARIES)
        else ""
    )


@dataclass
class _Verifier:
    """The proof of one verifier on its rows (number, row)."""

    name: str
    process: VerifierProcess
    rows: Sequence[tuple[int, Mapping[str, Any]]]
    found: ProofReport
    _slowest: float = 0.0

    def prove(self) -> None:
        """Raises VerifierError."""
        known = []
        for n, row in self.rows:
            answer = reference_answer(self.name, str(row["ground_truth"]), row)
            if answer is None:
                self._call(row, _WRONG, f"an answer to row {n}")
            else:
                known.append(
                    (n, row, answer, self._call(row, answer, f"the reference answer of row {n}"))
                )
        _, first = self.rows[0]
        others = {"an empty answer": [self._call(first, "", "an empty answer")]}
        # it compares with a ground truth, and not with instructions
        if "ifeval" not in self.quoted:
            others["a malformed answer"] = [self._call(first, _MALFORMED, "a malformed answer")]
            others["{} of {} wrong answers"] = self._score_wrong(known)
        for what, answer in _ADVERSARIAL:
            outcome = self.process.score(VerifierCall(self.name, first["prompt"], answer, first))
            if outcome.failure:
                where = self.found.warnings if is_own(self.name) else self.found.facts
                where.append(f"{self.quoted} {outcome.failure} on {what}, which scores 0")
        best = (
            1.0
            if not is_own(self.name)
            else max((*(score for *_, score in known), *chain(*others.values())))
        )
        failing = [(n, row, score) for n, row, _, score in known if score < best]
        shown = [
            f"row {n}, {str(row['ground_truth'])[:_WIDEST]!r}: {score:g}"
            for n, row, score in failing[:_SHOWN]
        ]
        if known and len(failing) == len(known):
            raise VerifierError(
                f"0 of {len(known)} reference answers pass {self.quoted} ({'; '.join(shown)})"
            )
        if failing:
            message = (
                f"{len(failing)} of {len(known)} reference answers fail {self.quoted} "
                f"({'; '.join(shown)})"
            )
            self.found.warnings.append(message)
        accepted = []
        for kind, given in others.items():
            passing = sum(score >= best for score in given)
            if passing * 2 > len(given):  # two rows may well have the same answer in another form
                accepted.append(kind.format(passing, len(given)))
        if accepted:
            raise VerifierError(
                f"{', '.join(accepted)} earn the maximum of {self.quoted}, as right ones do"
            )
        passed = f"{len(known) - len(failing)} of {len(known)} reference answers pass {self.quoted}"
        if not known:
            passed = (
                f"{self.quoted} scores an answer to each of {len(self.rows)} rows (none has "
                "a "
                "column `reference`)"
            )
        self.found.facts.append(f"{passed}, {self._slowest * 1000:.0f} ms a call at most")

    @property
    def quoted(self) -> str:
        """The name of a built-in verifier, the function's of an own one."""
        return f"`{self.name.rpartition(':')[2]}`"

    def _score_wrong(
        self, known: Sequence[tuple[int, Mapping[str, Any], str, float]]
    ) -> list[float]:
        """Score wrong answers: another row's reference; for an own function, which may accept it, a
        refusal.
        """
        pairs = zip(known[:_WRONG_ROWS], [*known[1:], *known[:1]], strict=False)
        wrong = [
            (row, other, f"the answer of row {number} to another row")
            for (_, row, answer, _), (number, _, other, _) in pairs
            if other != answer
        ]
        if is_own(self.name) or not wrong:
            wrong = [(row, _WRONG, "a wrong answer") for _, row, *_ in known[:1]]
        return [self._call(row, answer, what) for row, answer, what in wrong]

    def _call(self, row: Mapping[str, Any], answer: str, what: str) -> float:
        outcome = self.process.score(VerifierCall(self.name, row["prompt"], answer, row))
        if outcome.failure:
            raise VerifierError(f"{self.quoted} {outcome.failure} on {what}")
        if outcome.printed:
            raise VerifierError(f"{self.quoted} prints '{outcome.printed[:_WIDEST]}' on {what}")
        self._slowest = max(self._slowest, outcome.seconds)
        return outcome.score or 0.0
