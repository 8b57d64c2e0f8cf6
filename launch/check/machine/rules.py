"""The list of all preflight rules, which run in parallel, as most of them wait for something."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from launch.check.machine import (
    accounts,
    disk,
    gpus,
    inputs,
    limits,
    memory,
    parser,
    reward,
    trainer,
    vllm_server,
)
from launch.check.machine.rule import Host, PreflightRule
from launch.config.schema import Device
from launch.host.nvidia import query_gpus
from launch.planning.plan import Plan
from launch.rules.code import skipped
from launch.worker.finding import Finding

# All preflight rules, in the order in which `check` prints them.
RULES: tuple[PreflightRule, ...] = (
    trainer.checkout_exists,
    trainer.checkout_matches_pin,
    trainer.interpreter_has_packages,
    vllm_server.ports_are_free,
    vllm_server.named_server_fits,
    trainer.ray_finds_cpus,
    trainer.no_build_was_killed,
    parser.parser_accepts,
    reward.reward_is_proven,
    gpus.enough_gpus,
    gpus.gpus_are_free,
    gpus.ranks_can_communicate,
    memory.model_fits,
    inputs.padding_is_low,
    inputs.inputs_exist,
    inputs.template_text_is_here,
    inputs.hub_is_reachable,
    disk.disk_has_room,
    disk.folders_are_writable,
    accounts.hub_token_exists,
    accounts.push_is_allowed,
    accounts.wandb_key_exists,
    limits.port_is_free,
    limits.open_file_limit_suffices,
    limits.locked_memory_is_unlimited,
    limits.shared_memory_is_large,
    limits.clock_is_right,
)
_NOT_RUN = skipped("an error was found before")
_POLL = 0.5  # seconds


def preflight(
    plan: Plan, *, asks_parser: bool = False, ends_after: int | None = None
) -> tuple[list[Finding], list[Finding]]:
    """Run the fast rules. Return the problems that stop the plan on this machine, and the warnings.

    The warnings include the failures that `allow` overrides. See `inspect_fast`.
    """
    findings = inspect_fast(plan, asks_parser=asks_parser, ends_after=ends_after)
    return stopping_problems(findings), warnings(findings)


def inspect_fast(
    plan: Plan, *, asks_parser: bool = False, ends_after: int | None = None
) -> list[Finding]:
    """Return what the fast rules find on this machine now; only `check` runs the slow ones.

    Args:
        asks_parser: whether to run the slow rule that asks the trainer's parser too.
        ends_after: steps after which a trial is ended, which saves no model.
    """
    also_runs = parser.parser_accepts if asks_parser else None
    rules = [rule for rule in RULES if not rule.slow or rule is also_runs]
    return inspect(plan, rules, ends_after)


def warnings(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that a run only warns about."""
    return [finding for finding in findings if finding.allowed or finding.severity == "warn"]


def stopping_problems(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that stop a run."""
    return [finding for finding in findings if finding.stops]


def inspect(
    plan: Plan, rules: Sequence[PreflightRule] = RULES, ends_after: int | None = None
) -> list[Finding]:
    """Return what each rule finds on this machine now, in the order of `rules`.

    The rules with `is_first` run one after the other, then the others in parallel.
    """
    on_gpus = plan.parallel.width.device == Device.cuda
    queried = query_gpus(os.environ) if on_gpus else None
    host = Host(dict(os.environ), queried, ends_after)
    first_findings: dict[str, Finding] = {}
    first_rules = [rule for rule in rules if rule.is_first]
    for rule in sorted(first_rules, key=lambda rule: rule.slow):
        if rule.slow and any(finding.stops for finding in first_findings.values()):
            # The rule would only delay the refusal.
            first_findings[rule.id] = replace(_NOT_RUN, id=rule.id)
        else:
            first_findings[rule.id] = _apply(rule, plan, host)

    def find(rule: PreflightRule) -> Finding:
        return first_findings.get(rule.id) or _apply(rule, plan, host)

    with ThreadPoolExecutor(max_workers=len(rules), thread_name_prefix="preflight") as pool:
        return list(pool.map(find, rules))


def _apply(rule: PreflightRule, plan: Plan, host: Host) -> Finding:
    """Run one rule, and mark its finding as allowed if the plan's `allow` names it."""
    try:
        finding = rule.judge(plan, host)
    except OSError as error:
        finding = skipped(f"cannot be inspected: {error}")
    return rule.finish(finding, plan.config.allow)


def wait_for_gpus(plan: Plan, say: Callable[[str], None], patience: float = 60.0) -> None:
    """Wait at most `patience` seconds until the driver has freed the previous run's GPU memory.

    The preflight refuses the GPUs if it has not.
    """
    deadline = time.monotonic() + patience
    is_announced = False
    while time.monotonic() < deadline:
        finding = inspect(plan, [gpus.gpus_are_free])[0]
        if not finding.stops:
            return
        if not is_announced:
            say(f"waiting for the GPU memory of the run before: {finding.message}")
            is_announced = True
        time.sleep(_POLL)
