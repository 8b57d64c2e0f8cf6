"""Print lint's findings for programs: as JSON, as annotations of a GitHub Action, and as SARIF."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from launch import __version__
from launch.check.lint.checker import LintVerdict
from launch.check.lint.files import FileReport
from launch.check.lint.trainer_commands import LintFinding
from launch.terminal import echo, print_json
from launch.upstream.pin.checkout import Checkout
from launch.upstream.pin.lock import load_lock
from launch.worker.json_codec import to_json, versioned

_VERSION = 2  # version of the JSON; since 2 the verdicts are inside an object
_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


def describe_source(checkout: Checkout | None) -> str:
    """Return the name of the source that the commands were checked against."""
    if checkout is None:
        return f"the lock of the pin {load_lock().pin[:9]} (no checkout found)"
    return checkout.describe()


def print_machine_format(
    report_format: str, reports: Iterable[FileReport], checkout: Checkout | None
) -> None:
    """Print the reports as `json`, `github` or `sarif`."""
    reports = list(reports)
    if report_format == "github":
        for file, finding in _findings(reports):
            echo(_annotation(file, finding))
    elif report_format == "sarif":
        print_json(_sarif(reports, checkout), indent=1)
    else:
        print_json(_json(reports, checkout), indent=1)


def _json(reports: list[FileReport], checkout: Checkout | None) -> dict[str, Any]:
    verdicts: list[LintVerdict] = []
    notes: list[dict[str, Any]] = []
    for report in reports:
        verdicts += report.verdicts
        notes += [{"file": report.file, **to_json(note)} for note in report.notes]
    return versioned({**_versions(checkout), "verdicts": verdicts, "notes": notes}, _VERSION)


def _versions(checkout: Checkout | None) -> dict[str, Any]:
    """Return the versions of launch and of the sources that the verdicts are based on."""
    return {
        "launch": __version__,
        "pin": load_lock().pin,
        "upstream": None if checkout is None else checkout.commit,
        "checked_against": describe_source(checkout),
    }


def _findings(reports: Iterable[FileReport]) -> Iterator[tuple[str, LintFinding]]:
    """Yield every finding with its file, by file and line."""
    for report in reports:
        findings = [*report.notes]
        for verdict in report.verdicts:
            findings += verdict.findings
        for finding in sorted(findings, key=lambda finding: finding.line):
            yield report.file, finding


def _text(finding: LintFinding) -> str:
    return f"{finding.statement}; {finding.cure}" if finding.cure else finding.statement


def _annotation(file: str, finding: LintFinding) -> str:
    """Return a workflow command of GitHub Actions, which marks the line."""
    level = "error" if finding.stops else "warning"
    message = _text(finding).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    name = file.replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
    return f"::{level} file={name},line={finding.line},title={finding.id}::{message}"


def _sarif(reports: list[FileReport], checkout: Checkout | None) -> dict[str, Any]:
    results = []
    rules: dict[str, None] = {}
    for file, finding in _findings(reports):
        rules[finding.id] = None
        location = {
            "artifactLocation": {"uri": Path(file).as_posix()},
            "region": {"startLine": finding.line},
        }
        result = {
            "ruleId": finding.id,
            "level": "error" if finding.stops else "warning",
            "message": {"text": _text(finding)},
            "locations": [{"physicalLocation": location}],
        }
        results.append(result)
    driver = {
        "name": "launch lint",
        "version": __version__,
        "rules": [{"id": rule} for rule in rules],
        "properties": _versions(checkout),
    }
    return {
        "$schema": _SARIF,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
