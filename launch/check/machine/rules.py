"""Finds all preflight rules and runs them in parallel, as most of them wait for something."""

from __future__ import annotations

import importlib
import os
import pkgutil
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from launch.check.machine.gpus import gpus_are_free
from launch.check.machine.parser import parser_accepts
from launch.check.machine.rule import Host, PreflightRule, skipped
from launch.config.schema import Device
from launch.host.nvidia import query_gpus
from launch.planning.plan import Plan
from launch.worker.finding import Finding

# The modules whose rules come first, in this order.
_FIRST = ("trainer", "parser", "reward", "gpus", "memory", "inputs", "disk", "accounts", "limits")


def _find_rules() -> tuple[PreflightRule, ...]:
    """Return the rules that the modules of this folder define, each file's in its own order."""
    names = [info.name for info in pkgutil.iter_modules([str(Path(__file__).parent)])]
    rules: dict[PreflightRule, None] = {}  # a module also has the rules that it imports
    for name in dict.fromkeys((*_FIRST, *names)):
        module = importlib.import_module(f"{__package__}.{name}")
        for value in vars(module).values():
            if isinstance(value, PreflightRule):
                rules[value] = None
    return tuple(rules)


RULES = _find_rules()
_POLL = 0.5  # seconds


def preflight(
    plan: Plan, *, asks_parser: bool = False, ends_after: int | None = None
) -> tuple[list[Finding], list[Finding]]:
    """Run the fast rules. Return the problems that stop the plan on this machine, and the warnings.

    The warnings include the failures that `allow` overrides. The slow rules run in `check` only,
    but for the question to the trainer's parser with `asks_parser`. `ends_after`: steps after which
    a trial is ended, which saves no model.
    """
    rules = [rule for rule in RULES if not rule.slow or (asks_parser and rule is parser_accepts)]
    findings = inspect(plan, rules, ends_after)
    return stopping_problems(findings), warnings(findings)


def warnings(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.allowed or finding.severity == "warn"]


_LATER = skipped("an error was found before")


def stopping_problems(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.stops]


def inspect(
    plan: Plan, rules: Sequence[PreflightRule] = RULES, ends_after: int | None = None
) -> list[Finding]:
    """Return what each rule finds on this machine now, in the order of `rules`.

    The rules with `is_first` run one after the other, then the others in parallel.
    """
    gpus = query_gpus(os.environ) if plan.parallel.width.device == Device.cuda else None
    host = Host(dict(os.environ), gpus, ends_after)
    first_findings: dict[str, Finding] = {}
    first_rules = [rule for rule in rules if rule.is_first]
    for rule in sorted(first_rules, key=lambda rule: rule.slow):
        if rule.slow and any(finding.stops for finding in first_findings.values()):
            # The rule would only delay the refusal.
            first_findings[rule.id] = replace(_LATER, id=rule.id)
        else:
            first_findings[rule.id] = _apply(rule, plan, host)

    def find(rule: PreflightRule) -> Finding:
        return first_findings.get(rule.id) or _apply(rule, plan, host)

    with ThreadPoolExecutor(max_workers=len(rules), thread_name_prefix="preflight") as pool:
        return list(pool.map(find, rules))


def _apply(rule: PreflightRule, plan: Plan, host: Host) -> Finding:
    try:
        finding = rule.inspect(plan, host)
    except OSError as error:
        finding = skipped(f"cannot be inspected: {error}")
    return replace(finding, id=finding.id or rule.id).apply_allow(plan.config.allow)


def wait_for_gpus(plan: Plan, say: Callable[[str], None], patience: float = 60.0) -> None:
    """Wait at most `patience` seconds until the driver has freed the previous run's GPU memory.

    The preflight refuses the GPUs if it has not.
    """
    deadline = time.monotonic() + patience
    is_announced = False
    while time.monotonic() < deadline:
        finding = inspect(plan, [gpus_are_free])[0]
        if not finding.stops:
            return
        if not is_announced:
            say(f"waiting for the GPU memory of the run before: {finding.message}")
            is_announced = True
        time.sleep(_POLL)
