"""What a rule about this machine is, and what it inspects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from launch.host.nvidia import Gpus
from launch.planning.plan import Plan
from launch.rules.code import CodeRule, summary_of
from launch.worker.finding import Finding


@dataclass(frozen=True)
class Host:
    """What several rules inspect."""

    environ: Mapping[str, str]  # this process's environment
    gpus: Gpus | None = None  # None: not queried
    # Steps after which the run is ended, without saving; None if it trains to its end.
    ends_after: int | None = None


@dataclass(frozen=True, kw_only=True)
class PreflightRule(CodeRule):
    """One rule. The id of the finding of `judge` may be empty, or that of one of the problems that
    the rule can find.
    """

    judge: Callable[[Plan, Host], Finding]
    subject: str  # what it inspects, in a word or two
    slow: bool  # whether it imports the trainer's packages: a start asks the parser only
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
    """Turn a function into a rule. Its docstring is the rule's summary: why it exists.

    The function's name then stands for the rule and not for a function: `NAME.judge(plan, host)`
    calls it.
    """

    def make(function: Callable[[Plan, Host], Finding]) -> PreflightRule:
        return PreflightRule(
            id=id,
            summary=summary_of(function),
            judge=function,
            subject=subject,
            slow=slow,
            on_login_node=on_login_node,
            is_first=is_first,
        )

    return make
