"""Samples as the trainer sees them: tokenised by its own code in its Python, without training, and
shown.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

from launch import resources
from launch.check.machine.trainer import install_hint
from launch.config.schema import Family
from launch.data.conversion import Conversion
from launch.data.rows import read_rows
from launch.data.samples import (
    PairSide,
    Sample,
    TokenizedSamples,
    find_sample_problems,
    parse_samples,
)
from launch.errors import UserError, refusal
from launch.execution.prepare import build_missing, stage_template
from launch.external import failure_reason
from launch.files import load_json
from launch.planning.chat_template import find_template_name
from launch.planning.flags import values_of
from launch.planning.inputs import MERGE, MixtureEntry
from launch.planning.model_folder import hub_data_cache
from launch.planning.plan import TOKENIZE_ONLY_FLAG, Plan
from launch.terminal import notify, printable
from launch.worker.finding import Finding, Fix
from launch.worker.json_codec import encode, to_json
from launch.worker.samples import SamplesRequest
from launch.worker.trl_options import MixturePart

# patches and options that let the trainer be imported, or decide how it tokenises
_KEPT = ("unused_imports", "registered_models", "chat_template")
DATA_RULE = "data_tokens"  # the id of what `check` finds
_ASKED_ROWS = 32  # of each data set, before a run
_WIDESPREAD = 0.5  # share of the samples
_DETAIL = 50  # samples of each data set whose template and masks `check` looks at


@dataclass(frozen=True)
class DataSet:
    """One entry of the mixture, as the trainer is given it."""

    name: str  # a file, or a hub id
    split: str
    places: tuple[str, ...]
    duplicates: tuple[str, ...] = ()  # places of rows that are equal to an earlier one


def tokenize_samples(
    plan: Plan, *, rows: int | None, detail: int, only_local: bool = False
) -> TokenizedSamples:
    """Tokenise the first `rows` rows (None: all) of each entry of the mixture, and describe
    `detail` of them token by token. With `only_local` hub data is left out, and what this machine
    builds itself.

    Raises UserError: preview_failed, no_checkout, no_template_text, and those of the data's
    conversion.
    """
    if plan.config.trainer.family == Family.open_instruct and plan.upstream.checkout is None:
        message = (
            f"{plan.trainer} tokenises with open-instruct's code, and there is no checkout here"
        )
        raise refusal("no_checkout", message, "upstream.dir", "set OPEN_INSTRUCT_DIR to a checkout")
    build_missing(plan, lambda message: None)
    stage_template(plan)
    with tempfile.TemporaryDirectory(prefix="launch-preview-") as name:
        folder = Path(name)
        entries = [
            entry for entry in plan.inputs.mixture if entry.data is not None or not only_local
        ]
        sets = [
            write_samples(entry, folder / str(number), rows) for number, entry in enumerate(entries)
        ]
        if not sets:
            return TokenizedSamples((), (), (), None, None, None, None)
        content = _run(plan, sets, folder, rows, detail)
        samples = parse_samples(
            content, [data.places for data in sets], [data.duplicates for data in sets]
        )
        template = find_template_name(values_of(plan.flags), [*plan.options, *plan.patches])
        return replace(samples, template=template or samples.template)


def write_samples(entry: MixtureEntry, folder: Path, rows: int | None) -> DataSet:
    """Write the first rows as the trainer's file; a hub data set is read by the trainer's
    process.
    """
    if entry.source.local is None:
        assert rows is not None
        name = entry.source.reference
        return DataSet(
            name, entry.split, tuple(f"{name}, row {number + 1}" for number in range(rows))
        )
    if entry.data is not None:
        read: Iterator[tuple[str, Any]] = Conversion(entry.data).rows(entry.data.files.paths)
    else:
        read = ((row.place, row.value) for row in read_rows(entry.source.local))
    folder.mkdir()
    places, duplicates, seen = [], [], set()
    with (folder / "train.jsonl").open("w", encoding="utf-8") as stream:
        for place, columns in islice(read, rows):
            text = json.dumps(columns, ensure_ascii=False)
            digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
            if digest in seen:
                duplicates.append(place)
            seen.add(digest)
            places.append(place)
            stream.write(text + "\n")
    return DataSet(str(folder / "train.jsonl"), "train", tuple(places), tuple(duplicates))


def _run(
    plan: Plan, sets: Sequence[DataSet], folder: Path, rows: int | None, detail: int
) -> dict[str, Any]:
    request, out = write_request(plan, folder, rows=rows, detail=detail)
    done = subprocess.run(
        preview_command(plan, sets, folder, request),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env=preview_environment(plan, folder, rows, os.environ),
        cwd=folder if plan.config.trainer.writes_to_cwd else None,
    )
    if done.returncode or not out.is_file():
        reason = failure_reason(done)
        cure = Fix.of("{0} checks packages, model and tokens", "$ launch check")
        if reason.startswith("ModuleNotFoundError"):
            cure = install_hint(plan)
        raise refusal(
            "preview_failed", f"{plan.trainer} could not tokenise the data: {reason}", None, cure
        )
    content: dict[str, Any] = load_json(out)
    return content


def write_request(plan: Plan, folder: Path, *, rows: int | None, detail: int) -> tuple[Path, Path]:
    """Write the request to the trainer's process; return its file and the one that the samples will
    be in.
    """
    request, out = folder / "request.json", folder / "samples.json"
    request.write_text(
        encode(
            SamplesRequest(out, detail, rows, hub_data_cache(os.environ), plan.batch.per_device)
        ),
        encoding="utf-8",
    )
    return request, out


def preview_environment(
    plan: Plan, folder: Path, rows: int | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of the trainer's process: the plan's, without GPUs, and with its
    caches in `folder`.
    """
    kept = {name: value for name, value in environ.items() if name not in plan.unset}
    added = {"CUDA_VISIBLE_DEVICES": "", "HF_DATASETS_CACHE": str(folder / "datasets")}
    if rows is not None:
        # no pool for a few rows (dataset_transformation.py:1952)
        added["BEAKER_ASSIGNED_CPU_COUNT"] = "1"
    return {**kept, **plan.env, **added, **resources.SAFE_PATH}


def preview_command(plan: Plan, sets: Sequence[DataSet], folder: Path, request: Path) -> list[str]:
    """Return the trainer's command on one CPU process, with the data of `sets` and with nothing to
    train.
    """
    trainer, separator = plan.config.trainer, plan.command.index("--")
    flags: dict[str, Sequence[str]] = {trainer.launch["output"]: [str(folder / "model")]}
    if trainer.family == Family.trl:
        parts = [MixturePart(_folder_of(data.name), data.split, "1.0", "none") for data in sets]
        flags |= {trainer.launch["dataset"]: [parts[0].name]}
        flags |= {trainer.launch["split"]: [sets[0].split], "bf16": ["false"], "use_cpu": ["true"]}
        if plan.config.data.validation is not None:  # the rows are not split
            flags |= {"eval_strategy": ["no"], "load_best_model_at_end": ["false"]}
    else:
        mixer = [text for data in sets for text in (data.name, "1.0")]
        flags |= {
            trainer.launch["mixer"]: mixer,
            trainer.launch["splits"]: [data.split for data in sets],
        }
        flags |= {
            trainer.launch["tokenized_cache"]: [str(folder / "tokenized")],
            TOKENIZE_ONLY_FLAG: ["true"],
        }
    model = plan.inputs.model
    if model.build == MERGE and model.adapter is not None:  # not merged for its tokenizer alone
        flags[trainer.launch["model"]] = [str(model.adapter.folder)]
    is_trl = trainer.family == Family.trl
    if "preview" in trainer.why or not (is_trl or "preview" in trainer.patches):
        message = (
            f"the samples of {trainer.name} cannot be shown: "
            f"{trainer.why.get('preview', 'it has no patch for it')}"
        )
        raise refusal("no_preview", message, "trainer")
    own = "--option" if is_trl else "--patch"
    kept = [("--patch", text) for text in plan.patches] + [
        ("--option", text) for text in plan.options
    ]
    kept = [pair for pair in kept if pair[1].partition("=")[0] in _KEPT]
    if is_trl and len(sets) > 1:
        kept.append((own, f"mixture={json.dumps(to_json(parts))}"))
    worker = [str(resources.WORKER), *chain.from_iterable([*kept, (own, f"preview={request}")])]
    entry = plan.command[separator - 2 : separator + 1]
    return [plan.command[0], *worker, *entry, *replace_flags(plan.command[separator + 1 :], flags)]


def _folder_of(name: str) -> str:
    """Return what TRL reads a data set from: the folder of a file, or a hub id."""
    return str(Path(name).parent) if name.endswith(".jsonl") else name


def replace_flags(argv: Sequence[str], values: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a trainer's arguments with these values of these flags, whether they are set already
    or not.
    """
    kept: list[str] = []
    is_replaced = False
    for argument in argv:
        if argument.startswith("--"):
            is_replaced = argument[2:].partition("=")[0] in values
        if not is_replaced:
            kept.append(argument)
    return [*kept, *chain.from_iterable((f"--{name}", *texts) for name, texts in values.items())]


def refuse_data(plan: Plan) -> None:
    """Refuse local data of which most samples train something else than they should, by the first
    rows of each set.

    Raises UserError with what `preview` and `check` warn about, where it concerns more than half of
    the samples and its id is not in `allow`. Hub data is not read; what the trainer cannot tokenise
    it reports itself.
    """
    try:
        data = tokenize_samples(plan, rows=_ASKED_ROWS, detail=_ASKED_ROWS, only_local=True)
    except UserError:
        return
    problems = [
        problem
        for problem in find_sample_problems(data, _WIDESPREAD)
        if problem.id not in plan.config.allow
    ]
    if problems:
        raise UserError(
            [
                replace(p, cure=Fix(f"{p.cure or 'repair it'}; allow=[{p.id}] trains anyway"))
                for p in problems
            ]
        )


def inspect_data(plan: Plan, rows: int | None) -> list[Finding]:
    """Return what `check` finds in local data, at most `rows` rows of each data set; hub data is
    not read.
    """
    findings = [
        Finding(DATA_RULE, f"{entry.source.reference}: hub data, not read", severity="skipped")
        for entry in plan.inputs.mixture
        if entry.source.local is None
    ]
    names = [
        ", ".join(path.name for path in entry.data.files.paths[:3])
        for entry in plan.inputs.mixture
        if entry.data
    ]
    if names and (reason := plan.config.trainer.why.get("preview")):
        findings.append(Finding(DATA_RULE, reason, severity="skipped"))
    elif names:
        notify(f"starting {plan.trainer} to tokenize the local data")
        findings += _inspect_local(plan, names, rows)
    return [finding.apply_allow(plan.config.allow) for finding in findings]


def _inspect_local(plan: Plan, names: list[str], rows: int | None) -> list[Finding]:
    try:
        data = tokenize_samples(plan, rows=rows, detail=_DETAIL, only_local=True)
    except UserError as error:
        return list(error.problems)
    described = (
        f"{name}: {lengths.describe()}" for name, lengths in zip(names, data.lengths, strict=False)
    )
    return [
        *(Finding(DATA_RULE, text, severity="pass") for text in described),
        *(
            problem if problem is data.refusal else replace(problem, severity="warn")
            for problem in find_sample_problems(data)
        ),
    ]


_GREEN, _DIM, _RESET = "\x1b[32m", "\x1b[2m", "\x1b[0m"
_STYLE = """body { font-family: sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; line-height: 1.5 }
pre { white-space: pre-wrap; background: #f6f6f6; padding: .8rem; border-radius: .3rem }
b { font-weight: normal; background: #c9f0cf } .place { color: #666 } .warning { color: #a40000 }
span:hover, b:hover { outline: 1px solid #888 }"""


def describe_samples(data: TokenizedSamples, *, colour: bool) -> Iterator[str]:
    """Yield the lines of all samples; without colour a run of tokens that carry loss is between
    `[[` and `]]`.
    """
    for number, sample in enumerate(data.samples, 1):
        yield _title(number, len(data.samples), sample)
        for side in sample.sides:
            if len(sample.sides) > 1:
                yield f"-- {side.name}: {describe_side(side)}"
            yield from _text(side, colour).splitlines()
        yield ""


def describe_side(side: PairSide) -> str:
    """Describe a sequence in a few words: tokens, tokens with loss, truncation."""
    carries = "" if side.loss is None else f", {sum(side.loss)} carry loss"
    cut = f", {side.untruncated - len(side.ids)} more are cut off" if side.is_truncated else ""
    return f"{len(side.ids)} tokens{carries}{cut}"


def legend(data: TokenizedSamples, *, colour: bool) -> str:
    """Explain how tokens that carry loss are marked."""
    if all(side.loss is None for sample in data.samples for side in sample.sides):
        return "a reward model scores the last token of each side; no token carries loss by itself"
    return (
        f"{_GREEN}green{_RESET} tokens carry loss"
        if colour
        else "tokens between [[ and ]] carry loss"
    )


def render_page(
    title: str, data: TokenizedSamples, notes: Sequence[str], problems: Sequence[Finding]
) -> str:
    """Render an HTML page without scripts; the id of each token is its tooltip."""
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
    ]
    parts += [f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1>"]
    parts += [f"<p>{html.escape(note)}</p>" for note in notes]
    parts += [f'<p class="warning">{html.escape(str(problem))}</p>' for problem in problems]
    for number, sample in enumerate(data.samples, 1):
        parts.append(f"<h2>{html.escape(_title(number, len(data.samples), sample))}</h2>")
        for side in sample.sides:
            parts.append(f'<p class="place">{html.escape(side.name)}: {describe_side(side)}</p>')
            loss = side.loss or (False,) * len(side.ids)
            tokens = (
                f'<{tag} title="{token}">{html.escape(printable(piece))}</{tag}>'
                for token, piece, tag in zip(
                    side.ids, side.pieces, ("b" if x else "span" for x in loss), strict=True
                )
            )
            parts.append(f"<pre>{''.join(tokens)}</pre>")
    return "\n".join(parts) + "\n</html>\n"


def _title(number: int, total: int, sample: Sample) -> str:
    dropped = "" if sample.kept else ", dropped by the trainer"
    size = f", {describe_side(sample.sides[0])}" if len(sample.sides) == 1 else ""
    return f"== sample {number} of {total}: {sample.place}{size}{dropped}"


def _text(side: PairSide, colour: bool) -> str:
    loss = side.loss or (False,) * len(side.ids)
    parts = []
    for carries, run in groupby(zip(loss, side.pieces, strict=True), key=lambda token: token[0]):
        text = printable("".join(piece for _, piece in run))
        if colour:
            # a line of its own for each line break, so that a pager keeps the colour
            style = _GREEN if carries else _DIM
            parts.append(
                "\n".join(f"{style}{line}{_RESET}" if line else "" for line in text.split("\n"))
            )
        else:
            parts.append(f"[[{text}]]" if carries else text)
    return "".join(parts)
