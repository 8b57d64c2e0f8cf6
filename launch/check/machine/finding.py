"""The preflight's vocabulary: a rule, what it inspects, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from launch.errors import Problem
from launch.host.nvidia import Gpus
from launch.planning.plan import Plan

SCHEMA_VERSION = 1


class PreflightVerdict(StrEnum):
    """How a rule judges the machine."""

    passed = "pass"
    warn = "warn"
    fail = "fail"
    skipped = "skipped"  # the rule does not apply here or cannot decide; the finding's facts give the reason


@dataclass(frozen=True)
class PreflightFinding:
    """What a rule finds on this machine."""

    verdict: PreflightVerdict
    facts: str
    cure: str | None = None  # what to do about it
    where: str | None = None  # the key that it is about
    id: str = ""  # the rule's, or that of one of the problems that the rule can find
    allowed: bool = False  # `allow=[id]` overrides the failure

    @property
    def stops(self) -> bool:
        return self.verdict == PreflightVerdict.fail and not self.allowed

    def problem(self) -> Problem:
        return Problem(self.id, self.facts, self.where, self.cure)

    def as_json(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


@dataclass(frozen=True)
class Host:
    """What several rules inspect."""

    environ: Mapping[str, str]  # this process's environment
    gpus: Gpus | None = None  # None: not queried


@dataclass(frozen=True)
class PreflightRule:
    """One rule."""

    id: str
    reason: str  # why the rule exists
    slow: bool  # imports the trainer's packages, so that only `check` runs it
    inspect: Callable[[Plan, Host], PreflightFinding]
    on_login_node: bool = False  # its result on a login node also holds on the nodes, so that `submit` runs it


def rule(
    id: str, *, slow: bool = False, on_login_node: bool = False
) -> Callable[[Callable[[Plan, Host], PreflightFinding]], PreflightRule]:
    """Turn a function into a rule. Its docstring is the rule's reason."""

    def make(function: Callable[[Plan, Host], PreflightFinding]) -> PreflightRule:
        return PreflightRule(id, " ".join((function.__doc__ or "").split()), slow, function, on_login_node)

    return make


passed = partial(PreflightFinding, PreflightVerdict.passed)
skipped = partial(PreflightFinding, PreflightVerdict.skipped)
warned = partial(PreflightFinding, PreflightVerdict.warn)  # with facts, cure and where
failed = partial(PreflightFinding, PreflightVerdict.fail)
