"""What a rule about this machine is, what it inspects, and how it makes a finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from launch.host.nvidia import Gpus
from launch.planning.plan import Plan
from launch.worker.finding import Finding, Fix


@dataclass(frozen=True)
class Host:
    """What several rules inspect."""

    environ: Mapping[str, str]  # this process's environment
    gpus: Gpus | None = None  # None: not queried
    # Steps after which the run is ended, without saving; None if it trains to its end.
    ends_after: int | None = None


@dataclass(frozen=True)
class PreflightRule:
    """One rule."""

    id: str  # id of the fault that it finds
    subject: str  # what it inspects, in a word or two
    reason: str  # why the rule exists
    slow: bool  # whether it imports the trainer's packages, so that only `check` runs it
    # The function that inspects the machine. The id of its finding may be empty, or that of one of
    # the problems that the rule can find.
    inspect: Callable[[Plan, Host], Finding]
    # Whether its result on a login node also holds on the nodes, so that `submit` runs it.
    on_login_node: bool = False
    is_first: bool = False  # whether the others wait for it


def rule(
    id: str,
    subject: str,
    *,
    slow: bool = False,
    on_login_node: bool = False,
    is_first: bool = False,
) -> Callable[[Callable[[Plan, Host], Finding]], PreflightRule]:
    """Turn a function into a rule. Its docstring is the rule's reason."""

    def make(function: Callable[[Plan, Host], Finding]) -> PreflightRule:
        reason = " ".join((function.__doc__ or "").split())
        return PreflightRule(id, subject, reason, slow, function, on_login_node, is_first)

    return make


def passed(message: str) -> Finding:
    return Finding("", message, severity="pass")


def skipped(message: str) -> Finding:
    """Return the result of a rule that does not apply here, or cannot decide, with the reason."""
    return Finding("", message, severity="skipped")


def warned(message: str, cure: Fix | str | None = None, where: str | None = None) -> Finding:
    return Finding.warning("", message, where, cure)


def failed(message: str, cure: Fix | str | None = None, where: str | None = None) -> Finding:
    return Finding.error("", message, where, cure)
