"""Reads a rollout's own options: its widths, and which of them become Slurm jobs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from launch.config.line import CommandLine
from launch.config.trials import RolloutConfig
from launch.errors import refusal
from launch.trials.trial import expand_short_options, refuse_unsupported

WIDTHS = ("gpus", "processes")
SHORT = tuple(vars(RolloutConfig()))  # short names of the keys of the node `rollout`
_SUBMIT = "submit"
_DRY_RUN = "dry_run"
OWN_KEYS = (*WIDTHS, *SHORT, _SUBMIT, _DRY_RUN)
_WIDTH = re.compile(r"(?:([1-9]\d*)x)?([1-9]\d*)")  # NODESxRANKS or RANKS


class SubmitMode(StrEnum):
    """Which widths become Slurm jobs."""

    none = "none"
    rest = "rest"  # the first width for which this machine has too few GPUs, and all wider ones
    all = "all"

    @property
    def makes_jobs(self) -> bool:
        return self != SubmitMode.none


@dataclass(frozen=True, order=True)
class RequestedWidth:
    """One width of the command line. Widths are ordered by ranks, then by nodes."""

    ranks: int  # ranks on all nodes
    nodes: int

    @property
    def local(self) -> int:
        """The ranks of each node."""
        return self.ranks // self.nodes

    def __str__(self) -> str:
        return f"{self.nodes}x{self.local}" if self.nodes > 1 else str(self.local)


@dataclass(frozen=True)
class RolloutRequest:
    """The parsed command line of a rollout."""

    key: str  # gpus or processes
    widths: tuple[RequestedWidth, ...]  # ascending
    line: CommandLine  # the line without the widths and `submit`
    submit: SubmitMode = SubmitMode.none
    dry_run: bool = False  # whether only the folders of the jobs are written

    def stage_line(self, width: RequestedWidth, at_one: str | None = None) -> CommandLine:
        """Return the line of the whole stage at one width.

        `at_one` replaces the line's own parallel mode at one rank.
        """
        line = self.line
        overrides = [f"{self.key}={width.local}"]
        if width.nodes > 1:
            overrides.append(f"nodes={width.nodes}")
        if at_one and width.ranks == 1:
            line = line.without("parallel")
            overrides.append(f"parallel={at_one}")
        return line.with_overrides(*overrides)

    @property
    def widths_override(self) -> str:
        """The override that sets the widths: gpus=1,2,2x8."""
        return f"{self.key}={','.join(str(width) for width in self.widths)}"


def read_rollout_request(line: CommandLine) -> RolloutRequest:
    """Read the widths and the rollout's own options from the line.

    Raises UserError: no_widths, device_conflict, bad_width, widths_not_ascending, rollout_alone,
    bad_value, duplicate_override.
    """
    dry_run, line = line.pop_flag(_DRY_RUN)
    own, rest = line.pop_overrides((*WIDTHS, _SUBMIT))
    refuse_unsupported(
        line,
        "rollout",
        "it runs one stage at several widths",
        nodes="write the widths as NODESxGPUS",
    )
    width_keys = [key for key in WIDTHS if key in own]
    cure = "set gpus=1,2,8, or device=cpu processes=1,2,4"
    if not width_keys:
        raise refusal("no_widths", "a rollout needs widths", None, cure)
    if len(width_keys) > 1:
        message = "gpus= and processes= exclude each other"
        raise refusal("device_conflict", message, None, cure)
    key = width_keys[0]
    widths = read_widths(own[key], key)
    submit = _read_submit(own.get(_SUBMIT, "none").lower(), dry_run=dry_run)
    stage_line = expand_short_options(rest, "rollout", SHORT)
    return RolloutRequest(key, widths, stage_line, submit, dry_run)


def _read_submit(submit: str, *, dry_run: bool) -> SubmitMode:
    """Return the value of submit=. Raises UserError: bad_value."""
    if submit not in list(SubmitMode):
        cure = "use rest for the widths for which this machine has too few GPUs, or all"
        message = f"submit must be none, rest or all, got {submit}"
        raise refusal("bad_value", message, "override submit", cure)
    if dry_run and submit != SubmitMode.all:
        cure = "add submit=all; `plan` shows what a width would run"
        message = "dry_run= of a rollout applies to its jobs only"
        raise refusal("bad_value", message, "override dry_run", cure)
    return SubmitMode(submit)


def read_widths(text: str, key: str) -> tuple[RequestedWidth, ...]:
    """Read widths: `1,2x8` is 1 rank, then 8 ranks on each of 2 nodes; `1x8` is 8.

    Raises UserError: bad_width, widths_not_ascending.
    """
    where = f"override {key}"
    items = text.strip("[]").split(",")
    widths = [_read_width(item.strip(), where) for item in items]
    ascending = sorted(set(widths))
    if widths != ascending:
        message = (
            f"{text} does not ascend: a rollout goes from narrow to wide, through each width once"
        )
        cure = f"use {key}={','.join(map(str, ascending))}"
        raise refusal("widths_not_ascending", message, where, cure)
    return tuple(widths)


def _read_width(text: str, where: str) -> RequestedWidth:
    """Read one width, RANKS or NODESxRANKS. Raises UserError: bad_width."""
    match = _WIDTH.fullmatch(text)
    if match is None:
        cure = "use numbers of 1 or more, and NODESxGPUS for several nodes, such as 1,2,8,2x8"
        raise refusal("bad_width", f"'{text}' is not a width", where, cure)
    nodes = int(match[1] or 1)
    ranks_of_a_node = int(match[2])
    return RequestedWidth(nodes * ranks_of_a_node, nodes)
