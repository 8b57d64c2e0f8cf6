"""All the rules, and their runner. They run side by side, as most of them wait for something."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from launch.check.machine.accounts import hub_token_exists, push_is_allowed, wandb_key_exists
from launch.check.machine.disk import disk_has_room, folders_are_writable
from launch.check.machine.gpus import enough_gpus, gpus_are_free, ranks_can_communicate
from launch.check.machine.limits import (
    clock_is_right,
    locked_memory_is_unlimited,
    open_file_limit_suffices,
    port_is_free,
    shared_memory_is_large,
)
from launch.check.machine.memory import model_fits
from launch.check.machine.parser import parser_accepts
from launch.check.machine.rule import Host, PreflightRule, as_problem, skipped
from launch.check.machine.tokens import padding_is_low
from launch.check.machine.trainer import (
    checkout_exists,
    checkout_matches_pin,
    inputs_exist,
    interpreter_has_packages,
    no_build_was_killed,
)
from launch.config.schema import Device
from launch.errors import Problem
from launch.host.nvidia import query_gpus
from launch.planning.plan import Plan
from launch.worker.finding import Finding

RULES: tuple[PreflightRule, ...] = (
    checkout_exists,
    checkout_matches_pin,
    interpreter_has_packages,
    no_build_was_killed,
    parser_accepts,
    enough_gpus,
    gpus_are_free,
    ranks_can_communicate,
    model_fits,
    padding_is_low,
    inputs_exist,
    disk_has_room,
    folders_are_writable,
    hub_token_exists,
    push_is_allowed,
    wandb_key_exists,
    port_is_free,
    open_file_limit_suffices,
    locked_memory_is_unlimited,
    shared_memory_is_large,
    clock_is_right,
)


def preflight(plan: Plan, *, asks_parser: bool = False) -> tuple[list[Problem], list[Finding]]:
    """Run the fast rules. Return the problems that stop the plan on this machine, and the warnings.

    The warnings include the failures that `allow` overrides. The slow rules run in `check` only, but for the question
    to the trainer's parser with `asks_parser`.
    """
    findings = inspect(plan, [rule for rule in RULES if not rule.slow or (asks_parser and rule is parser_accepts)])
    return stopping_problems(findings), [found for found in findings if found.allowed or found.level == "warn"]


def stopping_problems(findings: Iterable[Finding]) -> list[Problem]:
    return [as_problem(finding) for finding in findings if finding.stops]


def inspect(plan: Plan, rules: Sequence[PreflightRule] = RULES) -> list[Finding]:
    """Return what each rule finds on this machine now, in the order of `rules`; the others wait for the first ones."""
    gpus = query_gpus(os.environ) if plan.parallel.width.device == Device.cuda else None
    host = Host(dict(os.environ), gpus)
    found = {rule.id: _apply(rule, plan, host) for rule in rules if rule.is_first}
    with ThreadPoolExecutor(max_workers=len(rules), thread_name_prefix="preflight") as pool:
        return list(pool.map(lambda rule: found.get(rule.id) or _apply(rule, plan, host), rules))


def _apply(rule: PreflightRule, plan: Plan, host: Host) -> Finding:
    try:
        finding = rule.inspect(plan, host)
    except OSError as error:
        finding = skipped(f"cannot be inspected: {error}")
    return replace(finding, id=finding.id or rule.id).apply_allow(plan.config.allow)
