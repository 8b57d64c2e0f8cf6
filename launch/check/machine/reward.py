"""The reward proof: calls the verifiers of an RLVR stage on the data's rows before the start."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launch.check.machine.rule import Host, rule
from launch.check.machine.trainer import run_environment
from launch.config.kinds import Kind
from launch.config.schema import Launcher
from launch.data.conversion import Conversion
from launch.demo.tasks import make_rows
from launch.external import failure_reason, run_command, template_memory
from launch.host.interpreter import worker_command
from launch.planning.chat_template import template_file
from launch.planning.plan import Plan
from launch.planning.rlvr import verifier_option
from launch.rules.code import failed, passed, skipped, warned
from launch.upstream.pin.checkout import missing_checkout_problem
from launch.worker.finding import Finding, Fix
from launch.worker.json_codec import decode
from launch.worker.reward_proof import ProofRequest
from launch.worker.verifier_proof import CONSTANT, FORM, NO_TRUTHS, TEXTS, ProofReport

_PRINTS = "let the verifier print nothing, and not end its process"
_SECONDS = 600.0  # time limit of the whole proof
_ALLOWED = "allow=[reward_proof]"
_CURE = Fix.of("put the verifier or the rows right, or set {0}", _ALLOWED)
# by the fault of a user's function
_CURES: Mapping[str | None, Fix] = {
    TEXTS: Fix("begin it with: completions = [answer[0]['content'] for answer in completions]"),
    CONSTANT: Fix.of(
        "let it return more for a better answer; if answers that were not tried earn something, "
        "add one of them as the column `reference`, or set {0}",
        _ALLOWED,
    ),
    FORM: Fix.of(
        "put it right, or, if it is a shaping reward, which compares with no reference answer, "
        "set {0}",
        _ALLOWED,
    ),
}


@dataclass(frozen=True)
class RewardProof(Finding):
    """The result of the proof, and what the verifiers used in it."""

    # digests of the user's files that they imported or read, and did not write
    files: Mapping[Path, str] = field(default_factory=dict, hash=False)


def proven_files(findings: Iterable[Finding]) -> Mapping[Path, str]:
    """Return the digests of the files that the verifiers used in the proof; {} without one."""
    return next((each.files for each in findings if isinstance(each, RewardProof)), {})


@rule("reward_proof", "reward")
def reward_is_proven(plan: Plan, host: Host) -> Finding:
    """A verifier that scores every answer 0, or every answer 1, trains nothing, and it shows only
    hours later.
    """
    python = plan.command[0]
    where = plan.origins.of("recipe.verifier").where
    if plan.config.stage.kind != Kind.rlvr or shutil.which(python) is None:
        return skipped("only RLVR has verifiers, which run in the trainer's interpreter")
    if plan.trl_template is not None and plan.trl_template.text is None:
        return skipped("the text of the chat template is not here")
    with tempfile.TemporaryDirectory(prefix="launch-proof-") as folder:
        request = _request(plan, Path(folder))
        command = worker_command(python, "reward_proof", request)
        environ = {**run_environment(plan, host), "TOKENIZERS_PARALLELISM": "false"}
        try:
            done = run_command(
                command,
                timeout=_SECONDS,
                env=environ,
                own_session=True,
                memory=template_memory(),
            )
        except subprocess.TimeoutExpired:
            message = f"the reward proof did not end within {_SECONDS:.0f} s"
            return failed(message, "use fewer rows, or a faster verifier")
    if done.returncode != 0:
        message = f"the reward proof can't run in {python}: {failure_reason(done)}"
        return failed(message, "put right what it names", where)
    try:
        report = decode(ProofReport, done.stdout.strip().splitlines()[-1])
    except (
        IndexError,
        ValueError,
    ):  # something of the user's printed after the report, or ended it
        return failed(f"the reward proof in {python} ended without a report", _PRINTS, where)
    judged = _judge_report(report, where)
    return RewardProof(**vars(judged), files=_digest_used(plan, report))


def _digest_used(plan: Plan, report: ProofReport) -> dict[Path, str]:
    """Return the digests of the files that the verifiers used, as they are now."""
    names = [Path(name) for name in report.files]
    found = {path: plan.machine.digests.of(path) for path in names}
    return {path: digest for path, digest in found.items() if digest is not None}


def _judge_report(report: ProofReport, where: str | None) -> Finding:
    summary = "; ".join(report.facts)
    if report.problem and "checkout" in report.problem:
        return failed(report.problem, missing_checkout_problem().cure, where)
    if report.problem:
        return failed(report.problem, _CURES.get(report.fault, _CURE), where)
    if report.warnings:
        message = "; ".join(report.warnings)
        if report.facts:
            message += f" (what was tried: {summary})"
        return warned(message, _cure_of_warning(report), where)
    return passed(summary)


def _cure_of_warning(report: ProofReport) -> str | None:
    """Return what may be done about a warning, which stops nothing."""
    if report.fault not in (FORM, NO_TRUTHS):
        return None
    cure = (
        "the run goes on: a shaping reward, which compares with no right answer, can stay as it is"
    )
    if report.columns:
        column = report.columns[0]
        cure += (
            f"; if the column `{column}` holds the right answers, draft the stage with "
            f"`--columns ground_truth={column}`, or set data.columns.ground_truth={column}"
        )
    elif report.fault == NO_TRUTHS:
        cure += "; a column `reference` with a right answer would let it be proven"
    return cure


def _request(plan: Plan, folder: Path) -> ProofRequest:
    """Write the local rows and the chat template into `folder`; return the proof's request."""
    rows = folder / "rows.jsonl"
    hub_datasets: list[tuple[str, str]] = []
    template = template_file(plan.template)
    # the run has not staged TRL's template yet
    if plan.trl_template is not None and plan.trl_template.text is not None:
        template = folder / "template.jinja"
        template.write_text(plan.trl_template.text, encoding="utf-8")
    with rows.open("w", encoding="utf-8") as stream:
        for entry in plan.inputs.mixture:
            # The rows are converted here: the copy that the trainer gets may not exist yet.
            if entry.data is not None:
                converted = Conversion(entry.data).rows(entry.data.files.paths)
                stream.writelines(json.dumps(columns) + "\n" for _, columns in converted)
            elif entry.source.build:
                stream.write(make_rows("prompts").decode())
            else:
                hub_datasets.append((entry.source.reference, entry.split))
    return ProofRequest(
        verifier=verifier_option(plan.config, plan.inputs.verifiers) or "",
        rows=rows,
        datasets=tuple(hub_datasets),
        model=plan.inputs.model.reference,
        template=template,
        response=plan.config.recipe.response_length or 0,
        upstream=plan.config.trainer.launcher == Launcher.ray,
    )
