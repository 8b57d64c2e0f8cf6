"""Proves the verifiers of a run on its own rows, before a model is loaded.

It runs in the trainer's interpreter. `main` takes a `ProofRequest`, calls the verifiers as the
training will (launch/worker/verifiers.py), and prints a `ProofReport` as its last line. It proves
that

- every row has a known verifier, a ground truth and a prompt that leaves room for the answer;
- reference answers earn the maximum, and wrong, empty and malformed ones do not;
- answers that are made to break a verifier get a score.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .json_codec import decode, encode
from .opened import FileUse
from .trl_data import to_prompts
from .trl_options import BY_ROW, VerifierOption, is_own, verifier_of
from .verifier_proof import FORM, ProofReport, VerifierProof
from .verifiers import (
    BUILT_IN,
    VerifierError,
    VerifierProcess,
    calls_service,
    upstream_verifiers,
)
from .wording import count_of

_ROWS = 200  # rows of each verifier that are proven, spread over the data
_LIBRARIES = ("math_verify", "lm_eval", "immutabledict", "langdetect", "nltk")
_SERVICES = (
    "a service (flags.code_api_url is by default port 1234 here, flags.llm_judge_model Azure's)"
)


@dataclass(frozen=True)
class ProofRequest:
    """The verifiers to prove, and the rows to prove them on."""

    verifier: str  # the entry's option `verifier`
    rows: Path  # a file of JSON lines: those of local data
    datasets: tuple[tuple[str, str], ...]  # id and split of each hub data set
    model: str  # its tokenizer counts the tokens of prompts; it may not exist yet
    template: Path | None  # a file with the chat template
    response: int  # tokens
    upstream: bool = False  # rows name open-instruct's own verifiers


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
        report.fault = error.fault
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
        if all(map(is_own, option.verifiers)):  # a user's function may need no ground truth
            break
        if row.get("ground_truth") in (None, "", []):
            unanswered.append(number)
    if unanswered:
        prompts = count_of(len(unanswered), "prompt")
        raise VerifierError(f"{prompts} without ground_truth, the first in row {unanswered[0]}")
    if BY_ROW not in option.verifiers:
        return
    known: Collection[str] = BUILT_IN
    if upstream:  # upstream itself only warns, and gives 0 (ground_truth_utils.py:1275)
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
    except OSError:  # the model does not exist yet, or is on the hub, which can't be reached
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
        too_long = count_of(sum(length > limit for length in lengths), "prompt")
        limits = f"max_seq_length={window} leaves beside response_length={response}"
        where = f"row {lengths.index(longest) + 1} has {longest}"
        raise VerifierError(f"{too_long} longer than the {limit} tokens that {limits}: {where}")
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
            step = max(1, len(judged) // _ROWS)
            forms.append(VerifierProof(name, process, judged[::step][:_ROWS], report).prove())
    finally:
        process.close()
        report.files = [path for path, use in used.items() if use != "write"]
    judging_form = [form for form in forms if form is not None]
    if judging_form and len(judging_form) == len(forms):
        raise VerifierError("; ".join(judging_form), FORM)
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
