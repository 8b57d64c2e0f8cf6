"""Show samples as the trainer sees them: tokenised by its own code in its Python, without training."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from launch import resources
from launch.check.machine.trainer import install_hint
from launch.config.schema import Family
from launch.data.conversion import Conversion
from launch.data.row_file import RowFile
from launch.data.rows import read_rows
from launch.data.sample_problems import find_sample_problems
from launch.data.samples import TokenizedSamples, parse_samples
from launch.data.staging import leave_out_held
from launch.errors import UserError, refusal
from launch.execution.mixture_shares import count_training_rows, share_mixture
from launch.execution.prepare import build_missing, stage_template
from launch.execution.samples import refuse_preview
from launch.execution.template_errors import TEMPLATE_RAISES, describe_template_error, write_whole
from launch.external import failure_reason, run_command, template_memory
from launch.files import load_json
from launch.planning.chat_template import find_template_name
from launch.planning.flags import values_of
from launch.planning.hub_cache import hub_data_cache
from launch.planning.input_source import MERGE
from launch.planning.mixture import MixtureEntry
from launch.planning.plan import TOKENIZE_ONLY_FLAG, Plan
from launch.table import format_bytes
from launch.terminal import notify
from launch.worker.finding import Finding, Fix
from launch.worker.json_codec import encode, from_json, to_json
from launch.worker.rendering import TemplateError
from launch.worker.samples import SamplesRequest
from launch.worker.trl_options import MixturePart

# The patches and options that let the trainer be imported, or decide how it tokenises.
_KEPT = ("unused_imports", "registered_models", "chat_template", "learns")
DATA_RULE = "data_tokens"  # the id of the findings of `check`
_ROWS_BEFORE_RUN = 32  # rows of each data set that are tokenised before a run
_WIDESPREAD = 0.5  # share of the samples with a problem above which a run is refused
_SECONDS = 1800.0  # time limit of a preview, and more for each row that is written for it
_SECONDS_PER_ROW = 0.05
_OUT_OF_MEMORY = ("MemoryError", "Cannot allocate memory", "bad_alloc")
_TEMPLATE_CURE = "look for a loop or a very long text in the chat template, and for very long rows"
_DETAIL = 50  # samples of each data set whose template and masks `check` examines


@dataclass(frozen=True)
class DataSet:
    """One entry of the mixture, as the trainer is given it."""

    name: str  # a file, or a hub id
    split: str
    places: tuple[str, ...]
    duplicates: tuple[str, ...] = ()  # places of rows that are equal to an earlier one
    whole: tuple[Path, ...] = ()  # the files of all its rows; none of a hub data set


def tokenize_samples(
    plan: Plan,
    *,
    rows: int | None,
    detail: int,
    only_local: bool = False,
    is_check: bool = False,
) -> TokenizedSamples:
    """Tokenise the first `rows` rows (None: all) of each entry of the mixture, and describe
    `detail` of them token by token.

    `only_local` leaves out data on the hub, and the demo's data if the template is the demo's own
    too. `is_check`: `launch check` calls this, so that no cure suggests to run it. The chat template
    is tried on all rows of local data first, whatever `rows` is.

    Raises UserError: template_raises, preview_failed, no_checkout, no_template_text, and those of
    the data's conversion.
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
        sets = []
        entries = []
        for number, entry in enumerate(plan.inputs.mixture):
            is_local = entry.data is not None or (entry.source.build and _has_own_template(plan))
            if is_local or not only_local:
                whole = write_whole(entry, folder / f"{number}.jsonl")
                data_set = write_samples(entry, folder / str(number), rows, whole)
                sets.append(replace(data_set, whole=whole))
                entries.append(entry)
        if not sets:
            return TokenizedSamples((), (), (), None, None, None, None)
        content = _run_trainer(plan, sets, folder, rows, detail, is_check=is_check)
        template = find_template_name(values_of(plan.flags), [*plan.options, *plan.patches])
        template = template or "the tokenizer's own"
        if "template_error" in content:
            error = from_json(TemplateError, content["template_error"])
            data_set = sets[error.dataset]
            entry = entries[error.dataset]
            raise UserError(
                describe_template_error(error, entry, data_set.whole, data_set.places, template)
            )
        counts = [
            count_training_rows(entry, data_set.whole)
            for entry, data_set in zip(entries, sets, strict=True)
        ]
        places = [data_set.places for data_set in sets]
        duplicates = [data_set.duplicates for data_set in sets]
        samples = parse_samples(content, places, duplicates)
        shares = share_mixture(entries, samples.lengths, counts)
        return replace(samples, template=template, shares=shares)


def _has_own_template(plan: Plan) -> bool:
    """Whether the chat template is the user's: a file, or the template of the user's model."""
    name = find_template_name(values_of(plan.flags), [*plan.options, *plan.patches])
    return plan.inputs.model.build is None if name is None else Path(name).is_absolute()


def write_samples(
    entry: MixtureEntry, folder: Path, rows: int | None, whole: Sequence[Path] = ()
) -> DataSet:
    """Write the first rows that are trained on as the trainer's file; a hub data set is read by the
    trainer's process.

    `whole` has the files of all its rows, which decide those that are held out.
    """
    if entry.source.local is None:
        assert rows is not None
        name = entry.source.reference
        places = [f"{name}, row {number}" for number in range(1, rows + 1)]
        return DataSet(name, entry.split, tuple(places))
    if entry.data is not None:
        converted = Conversion(entry.data).rows(entry.data.files.paths)
        placed_rows: Iterator[tuple[str, Any]] = leave_out_held(converted, entry.data, whole)
    else:
        placed_rows = ((row.place, row.value) for row in read_rows(entry.source.local))
    folder.mkdir()
    path = folder / "train.jsonl"
    places = []
    duplicates = []
    digests = set()
    with path.open("wb") as stream:
        written = RowFile(path, stream)
        for place, columns in islice(placed_rows, rows):
            digest = hashlib.blake2b(written.write(columns), digest_size=8).digest()
            if digest in digests:
                duplicates.append(place)
            digests.add(digest)
            places.append(place)
    places.insert(0, places.pop(written.finish()))
    return DataSet(str(path), "train", tuple(places), tuple(duplicates))


def _run_trainer(
    plan: Plan,
    sets: Sequence[DataSet],
    folder: Path,
    rows: int | None,
    detail: int,
    *,
    is_check: bool,
) -> dict[str, Any]:
    """Have the trainer's process tokenise the samples; return what it wrote."""
    whole = tuple(data_set.whole for data_set in sets)
    request, out = write_request(plan, folder, whole, rows=rows, detail=detail)
    seconds = _SECONDS + _SECONDS_PER_ROW * sum(len(data_set.places) for data_set in sets)
    memory = template_memory()
    try:
        done = run_command(
            preview_command(plan, sets, folder, request),
            timeout=seconds,
            env=preview_environment(plan, folder, rows, os.environ),
            own_session=True,
            cwd=folder if plan.config.trainer.writes_to_cwd else None,
            memory=memory,
        )
    except subprocess.TimeoutExpired:
        message = f"{plan.trainer} did not tokenise the data within {seconds:.0f} s"
        raise refusal("preview_failed", message, None, _TEMPLATE_CURE) from None
    if done.returncode or not out.is_file():
        reason = failure_reason(done)
        cure: str | Fix = Fix.of("{0} checks packages and model", "$ launch check")
        if is_check:
            cure = "put right what it names"
        if reason.startswith("ModuleNotFoundError"):
            cure = install_hint(plan)
        if any(name in reason for name in _OUT_OF_MEMORY):
            reason = f"{reason.strip()} at the limit of {format_bytes(memory)}"
            cure = _TEMPLATE_CURE
        raise refusal(
            "preview_failed", f"{plan.trainer} could not tokenise the data: {reason}", None, cure
        )
    content: dict[str, Any] = load_json(out)
    return content


def write_request(
    plan: Plan,
    folder: Path,
    whole: tuple[tuple[Path, ...], ...] = (),
    *,
    rows: int | None,
    detail: int,
) -> tuple[Path, Path]:
    """Write the request to the trainer's process; return its path, and the path at which the
    process will write the samples.
    """
    path = folder / "request.json"
    out = folder / "samples.json"
    hub_cache = hub_data_cache(os.environ)
    request = SamplesRequest(out, detail, rows, hub_cache, plan.batch.per_device, whole)
    path.write_text(encode(request), encoding="utf-8")
    return path, out


def preview_environment(
    plan: Plan, folder: Path, rows: int | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of the trainer's process: the plan's, without GPUs, and with its
    caches in `folder`.
    """
    kept = {name: value for name, value in environ.items() if name not in plan.unset}
    added = {"CUDA_VISIBLE_DEVICES": "", "HF_DATASETS_CACHE": str(folder / "datasets")}
    if rows is not None:
        # With one CPU, upstream starts no pool of processes (dataset_transformation.py:1952).
        added["BEAKER_ASSIGNED_CPU_COUNT"] = "1"
    return {**kept, **plan.env, **added, **resources.PYTHON_VARIABLES}


def preview_command(plan: Plan, sets: Sequence[DataSet], folder: Path, request: Path) -> list[str]:
    """Return the trainer's command on one CPU process, with the data of `sets` and with nothing to
    train.

    Raises UserError: no_preview.
    """
    refuse_preview(plan)
    is_trl = plan.config.trainer.family == Family.trl
    changes: list[tuple[str, str]] = []  # the worker's options with their values
    changes += [("--patch", text) for text in plan.patches if _is_kept(text)]
    changes += [("--option", text) for text in plan.options if _is_kept(text)]
    if is_trl:
        flags = _trl_flags(plan, sets, folder)
        if len(sets) > 1:
            parts = [_mixture_part(data_set) for data_set in sets]
            changes.append(("--option", f"mixture={json.dumps(to_json(parts))}"))
        changes.append(("--option", f"preview={request}"))
    else:
        flags = _open_instruct_flags(plan, sets, folder)
        changes.append(("--patch", f"preview={request}"))
    separator = plan.command.index("--")
    entry = plan.command[separator - 2 : separator + 1]
    arguments = replace_flags(plan.command[separator + 1 :], flags)
    worker = [str(resources.WORKER), *chain.from_iterable(changes)]
    return [plan.command[0], *worker, *entry, *arguments]


def _is_kept(text: str) -> bool:
    """Return whether a patch or an option, `NAME` or `NAME=VALUE`, is needed for a preview."""
    return text.partition("=")[0] in _KEPT


def _common_flags(plan: Plan, folder: Path) -> dict[str, Sequence[str]]:
    names = plan.config.trainer.launch
    flags: dict[str, Sequence[str]] = {names["output"]: [str(folder / "model")]}
    model = plan.inputs.model
    if model.build == MERGE and model.adapter is not None:
        # The adapter's folder has the tokenizer, and merging takes too long for a preview.
        flags[names["model"]] = [str(model.adapter.folder)]
    return flags


def _trl_flags(plan: Plan, sets: Sequence[DataSet], folder: Path) -> dict[str, Sequence[str]]:
    """Return the values of TRL's flags that a preview replaces."""
    names = plan.config.trainer.launch
    flags = _common_flags(plan, folder)
    flags[names["dataset"]] = [_mixture_part(sets[0]).name]
    flags[names["split"]] = [sets[0].split]
    flags["bf16"] = ["false"]
    flags["use_cpu"] = ["true"]
    if plan.config.data.validation is not None:  # the rows of a preview have no validation split
        flags["eval_strategy"] = ["no"]
        flags["load_best_model_at_end"] = ["false"]
    return flags


def _open_instruct_flags(
    plan: Plan, sets: Sequence[DataSet], folder: Path
) -> dict[str, Sequence[str]]:
    """Return the values of open-instruct's flags that a preview replaces."""
    names = plan.config.trainer.launch
    flags = _common_flags(plan, folder)
    mixer = []
    for data_set in sets:
        mixer += [data_set.name, "1.0"]
    flags[names["mixer"]] = mixer
    flags[names["splits"]] = [data_set.split for data_set in sets]
    flags[names["tokenized_cache"]] = [str(folder / "tokenized")]
    flags[TOKENIZE_ONLY_FLAG] = ["true"]
    return flags


def _mixture_part(data_set: DataSet) -> MixturePart:
    """Return a data set as TRL reads it: from the folder of its file, or from the hub."""
    name = data_set.name
    if name.endswith(".jsonl"):
        name = str(Path(name).parent)
    return MixturePart(name, data_set.split, "1.0", "none")


def replace_flags(argv: Sequence[str], values: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a trainer's arguments with these values of these flags, whether they are set already
    or not.
    """
    arguments: list[str] = []
    is_replaced = False
    for argument in argv:
        if argument.startswith("--"):
            is_replaced = argument[2:].partition("=")[0] in values
        if not is_replaced:
            arguments.append(argument)
    for name, texts in values.items():
        arguments += [f"--{name}", *texts]
    return arguments


def refuse_data(plan: Plan) -> list[Finding]:
    """Refuse local data if most of its samples train something else than they should, or if the
    chat template changes an answer. Return the warnings.

    The first rows of each data set are tokenised. Raises UserError with the problems about which
    `preview` and `check` warn, if they concern more than half of the samples and their id is not in
    `allow`, and with template_raises for a single row. Hub data is not read, and the trainer itself
    reports what else it cannot tokenise.
    """
    rows = _ROWS_BEFORE_RUN
    try:
        data = tokenize_samples(plan, rows=rows, detail=rows, only_local=True)
    except UserError as error:
        if any(problem.id == TEMPLATE_RAISES for problem in error.problems):
            raise
        return []
    problems = []
    warnings = []
    for problem in find_sample_problems(data, _WIDESPREAD):
        if not problem.stops:
            warnings.append(problem)
        elif problem.id not in plan.config.allow:
            cure = f"{problem.cure or 'repair it'}; allow=[{problem.id}] trains anyway"
            problems.append(replace(problem, cure=Fix(cure)))
    if problems:
        raise UserError(problems)
    return warnings


def inspect_data(plan: Plan, rows: int | None) -> list[Finding]:
    """Return what `check` finds in at most `rows` rows of each local data set; hub data is not read."""
    findings = []
    names = []
    for entry in plan.inputs.mixture:
        if entry.source.local is None:
            message = f"{entry.source.reference}: hub data, not read"
            findings.append(Finding(DATA_RULE, message, severity="skipped"))
        if entry.data:
            names.append(", ".join(path.name for path in entry.data.files.paths[:3]))
    reason = plan.config.trainer.unsupported_because.get("preview")
    if names and reason:
        findings.append(Finding(DATA_RULE, reason, severity="skipped"))
    elif names:
        notify(f"starting {plan.trainer} to tokenize the local data")
        findings += _inspect_local(plan, names, rows)
    return [finding.apply_allow(plan.config.allow) for finding in findings]


def _inspect_local(plan: Plan, names: list[str], rows: int | None) -> list[Finding]:
    """Return the findings on local data, whose sets have these names."""
    try:
        data = tokenize_samples(plan, rows=rows, detail=_DETAIL, only_local=True, is_check=True)
    except UserError as error:
        return list(error.problems)
    findings = []
    for name, lengths in zip(names, data.lengths, strict=False):
        findings.append(Finding(DATA_RULE, f"{name}: {lengths.describe()}", severity="pass"))
    for problem in find_sample_problems(data):
        stops = problem is data.refusal or problem.id == "answer_changed"
        findings.append(problem if stops else problem.as_warning())
    return findings
