"""`check` plans a stage and checks this machine; `preview` shows samples as the trainer does."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

from launch.api.cures import check_advice
from launch.check.machine.inputs import hub_is_reachable
from launch.check.machine.rule import Host
from launch.check.machine.rules import RULES, inspect
from launch.commands.tool_parsers import build_check_parser, build_preview_parser
from launch.config.compose import Composed, compose
from launch.config.line import CommandLine
from launch.data.sample_problems import find_sample_problems
from launch.data.samples import TokenizedSamples
from launch.data.structure import read_structure
from launch.errors import EXIT_DONE, EXIT_REFUSED, UserError
from launch.execution.mixture_shares import describe_shares_by_tokens, split_merged
from launch.execution.preview import inspect_data, tokenize_samples
from launch.execution.resume import is_finished
from launch.execution.samples import describe_samples, legend, refuse_preview, render_page
from launch.pipelines.links import Pipeline, plan_pipeline
from launch.planning.build import plan_on_this_machine
from launch.planning.parallel import require_one_machine
from launch.planning.plan import Plan
from launch.table import Table
from launch.terminal import echo, notify, print_json
from launch.worker.finding import Finding
from launch.worker.json_codec import to_json, versioned
from launch.worker.wording import noun_for

_ROWS_OF_SHARES = 64  # rows of each data set from which `preview` estimates its share of tokens
_WIDTH = 100  # characters of a line of the table


def check(line: CommandLine) -> int:
    """Print each rule's finding for the composed stage, or for a pipeline's stages.

    The exit code is 2 if a finding would stop the run.

    Raises UserError: those of VerbParser.pop; of a pipeline those of plan_pipeline.
    """
    options, line = build_check_parser().pop(line)

    def check_stage(composed: Composed) -> int:
        require_one_machine(composed.config)
        plan = plan_on_this_machine(composed, is_swept=bool(line.sweeps))
        return _check_plan(plan, options)

    pipeline = plan_pipeline(line, notify)
    code = _check_pipeline(pipeline, options) if pipeline else compose(line, check_stage)
    if code == EXIT_DONE and not options.json and not line.asks_hydra:
        echo(f"ready: launch run {shlex.join(line.overrides)}")
    return code


def _check_pipeline(pipeline: Pipeline, options: argparse.Namespace) -> int:
    """Check the stages that are not done, without the rules that need a model yet to be trained."""
    codes = [EXIT_DONE]
    for index, plan in enumerate(pipeline.plans):
        require_one_machine(plan.config)
        if not is_finished(plan):
            if not options.json:
                echo(f"stage {index + 1} of {len(pipeline.plans)}: {plan.stage}/{plan.name}")
            codes.append(_check_plan(plan, options))
    return max(codes)


def _check_plan(plan: Plan, options: argparse.Namespace) -> int:
    """Print the findings of one stage."""
    started = time.monotonic()
    findings = list(inspect(plan))
    # The trainer cannot tokenise without its packages.
    is_stopped = any(finding.stops for finding in findings)
    if not is_stopped and not plan.is_pending:
        findings += inspect_data(plan, options.rows)
    stopping = [finding for finding in findings if finding.stops]
    advised = check_advice(plan, [*findings, *plan.warnings])
    cures = [_without_itself(finding).cure for finding in advised[: len(findings)]]
    warnings = [_without_itself(warning) for warning in advised[len(findings) :]]
    findings = [replace(finding, cure=cure) for finding, cure in zip(findings, cures, strict=True)]
    code = EXIT_REFUSED if stopping else EXIT_DONE
    if options.json:
        fields = {
            "stage": plan.stage,
            "name": plan.name,
            "ok": not stopping,
            "seconds": round(time.monotonic() - started, 3),
            "findings": [_finding_fields(finding) for finding in findings],
            "warnings": warnings,
        }
        print_json(versioned(fields))
        return code
    for row in format_table(findings):
        echo(row)
    echo("")
    summary = _summary(findings)
    if summary:
        echo(summary)
    for warning in warnings:
        notify(f"warning: {warning}")
    return code


def _without_itself(finding: Finding) -> Finding:
    """Drop a cure that suggests to run `launch check`, which is already running."""
    is_itself = finding.cure is not None and "`launch check" in str(finding.cure)
    return replace(finding, cure=None) if is_itself else finding


def _finding_fields(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON; the severity is its `verdict` too, the message its `facts`."""
    return {**to_json(finding), "verdict": finding.severity, "facts": finding.message}


def format_table(findings: Sequence[Finding], width: int = _WIDTH) -> list[str]:
    """Format a line for each finding, with its cure below, and one for the skipped rules."""
    subjects = {rule.id: rule.subject for rule in RULES}
    rows: list[tuple[str, str]] = []
    skipped: dict[str, list[str]] = {}  # reason -> subjects of the rules
    for finding in findings:
        subject = subjects.get(finding.id, finding.id.replace("_", " "))
        if finding.severity == "skipped":
            skipped.setdefault(finding.message, []).append(subject)
            continue
        rows.append((subject, finding.heading))
        if finding.cure:
            rows.append(("", f"-> {finding.cure}"))
    if skipped:
        reasons = [f"{', '.join(names)} ({reason})" for reason, names in skipped.items()]
        rows.append(("not checked", "; ".join(reasons)))
    return Table("", rows).lines(wrap_at=width)


def _summary(findings: Sequence[Finding]) -> str:
    """Count the findings that are not passed: `1 error, 2 warnings`."""
    errors = sum(finding.stops for finding in findings)
    warnings = sum(finding.severity == "warn" for finding in findings)
    counts = {
        noun_for(errors, "error"): errors,
        "allowed": sum(finding.allowed for finding in findings),
        noun_for(warnings, "warning"): warnings,
    }
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def preview(line: CommandLine) -> int:
    """Print samples of the composed stage.

    Raises UserError: those of VerbParser.pop; no_preview, hub_unreachable, preview_failed.
    """
    options, rest = build_preview_parser().pop(line)

    def show(composed: Composed) -> int:
        plan = _plan_preview(composed)
        notify(f"starting {plan.trainer} to tokenize the samples")
        rows = options.n
        if len(plan.inputs.mixture) > 1:
            rows = max(rows, _ROWS_OF_SHARES)
        data = tokenize_samples(plan, rows=rows, detail=options.n)
        samples = _Preview(plan, data, options.tokens)
        if options.json:
            print_json(versioned(samples))
        elif options.html:
            title = f"{plan.stage}: samples"
            echo(render_page(title, data, samples.notes, samples.problems), end="")
        else:
            samples.show()
        return EXIT_DONE

    return compose(rest, show)


def _plan_preview(composed: Composed) -> Plan:
    """Return the plan whose samples are shown, with one entry for each data set that launch merges.

    Raises UserError: no_preview, hub_unreachable.
    """
    # An epoch that is too small to train on can still be previewed.
    plan = plan_on_this_machine(composed, reads_rows=False)
    refuse_preview(plan)
    entries = chain.from_iterable(map(split_merged, plan.inputs.mixture))
    plan = replace(plan, inputs=replace(plan.inputs, mixture=tuple(entries)))
    # Without the hub the trainer would retry for minutes, and fail with a library's error.
    hub = hub_is_reachable.judge(plan, Host(os.environ))
    hub = hub_is_reachable.finish(hub, plan.config.allow)
    if hub.stops:
        raise UserError([hub])
    return plan


@dataclass(frozen=True)
class _Preview:
    """The samples of a plan, and what is known about its data."""

    plan: Plan
    data: TokenizedSamples
    proportion: Sequence[float] | None  # requested, of the learnt tokens of each data set

    @cached_property
    def problems(self) -> list[Finding]:
        return find_sample_problems(self.data)

    @cached_property
    def structures(self) -> list[str]:
        """A line for the first rows of each local data set, and what of them is not used."""
        lines = []
        for entry in self.plan.inputs.mixture:
            if entry.data is not None:
                with contextlib.suppress(UserError):  # rows that the samples do not reach
                    lines.append(read_structure(entry.data).describe())
        return lines

    @cached_property
    def by_tokens(self) -> str | None:
        """A line with the shares of data.mix that give the requested proportion of tokens."""
        if not self.proportion:
            return None
        mix = self.plan.config.data.mix
        return describe_shares_by_tokens(mix, self.data.shares, self.proportion)

    @property
    def notes(self) -> list[str]:
        """The lines that stand beside the samples."""
        recipe = self.plan.config.recipe
        template = f"chat template {self.data.template}"
        limit = f"at most {recipe.max_seq_length} tokens"
        lines = [f"{self.plan.trainer}, {template}, {limit}, packing {recipe.packing}"]
        lines += self.structures
        if self.data.batch is not None:
            lines.append(f"a micro batch of these samples: {self.data.batch.describe()}")
        lines += [share.describe() for share in self.data.shares]
        if self.by_tokens is not None:
            lines.append(self.by_tokens)
        return lines

    def json_fields(self) -> dict[str, Any]:
        return {
            "stage": self.plan.stage,
            "trainer": self.plan.trainer,
            "samples": self.data.samples,
            "data": self.structures,
            "mixture": self.data.shares,
            "by_tokens": self.by_tokens,
            "batch": self.data.batch,
            "warnings": self.problems,
        }

    def show(self) -> None:
        """Print it on the terminal."""
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        samples = describe_samples(self.data, colour=colour)
        for text in (*samples, *self.notes, legend(self.data, colour=colour)):
            echo(text, coloured=True)
        for problem in self.problems:
            notify(f"warning: {problem}")
