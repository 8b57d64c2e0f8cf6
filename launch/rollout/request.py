"""What a rollout is asked for: its widths, and the line that is left for each of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from launch.config.line import Line, taken
from launch.errors import Problem, UserError

WIDTHS = ("gpus", "processes")
# short for keys of the node `rollout`
SHORT = ("steps", "then", "price_per_gpu_hour", "parallel_at_one")
_NODES = re.compile(r"(\d+)x(\d+)")


@dataclass(frozen=True)
class Request:
    """`key`: gpus or processes; `widths`: ascending; `line`: the command line without them."""

    key: str
    widths: tuple[int, ...]
    line: Line

    def whole(self, width: int, parallel: str | None = None) -> Line:
        """The line of a run of the whole stage at one width; `parallel` wins over what the line says."""
        line = taken(self.line, ("parallel",))[1] if parallel else self.line
        mode = (f"parallel={parallel}",) if parallel else ()
        return replace(line, words=(*line.words, f"{self.key}={width}", *mode))


def read_request(line: Line) -> Request:
    """Take the widths from the line. Raises UserError: `no_widths`, `bad_width`, `widths_not_ascending`,
    `widths_repeated`, `several_nodes`, `rollout_alone`."""
    said, rest = taken(line, (*WIDTHS, *SHORT))
    _refuse_others(line)
    given = [key for key in WIDTHS if key in said]
    if len(given) != 1:
        told = "gpus= and processes= exclude each other" if given else "a rollout needs its widths"
        cure = "say gpus=1,2,8, or device=cpu processes=1,2,4"
        raise UserError(Problem("device_conflict" if given else "no_widths", told, None, cure))
    key = given[0]
    widths = read_widths(said[key], key)
    short = tuple(f"rollout.{name}={said[name]}" for name in SHORT if name in said)
    return Request(key, widths, replace(rest, words=(*rest.words, *short)))


def read_widths(text: str, key: str) -> tuple[int, ...]:
    """`1,2,8` -> (1, 2, 8). `1x8` is 8; more nodes than one are refused."""
    where = f"override {key}"
    words = text.strip("[]").split(",")
    widths = [_one_width(word.strip(), where) for word in words]
    for before, after in pairwise(widths):
        if after == before:
            raise UserError(Problem("widths_repeated", f"{after} is said twice", where, f"say {_sorted(key, widths)}"))
        if after < before:
            message = f"{after} comes after {before}: a rollout goes from narrow to wide"
            raise UserError(Problem("widths_not_ascending", message, where, f"say {_sorted(key, widths)}"))
    return tuple(widths)


def _one_width(word: str, where: str) -> int:
    nodes = _NODES.fullmatch(word)
    if nodes and int(nodes[1]) > 1:
        message = f"{word} is {nodes[1]} nodes: a rollout runs on this machine alone"
        raise UserError(Problem("several_nodes", message, where, "say the widths of one node, such as 1,2,8"))
    digits = nodes[2] if nodes else word
    if not digits.isdecimal() or int(digits) < 1:
        raise UserError(Problem("bad_width", f"'{word}' is no width", where, "say numbers from 1 on, such as 1,2,8"))
    return int(digits)


def _sorted(key: str, widths: Sequence[int]) -> str:
    return f"{key}={','.join(str(width) for width in sorted(set(widths)))}"


def _refuse_others(line: Line) -> None:
    problems = []
    if line.multirun:
        message = "a rollout is one stage at several widths: it has no --multirun"
        problems.append(Problem("rollout_alone", message, None, "run it once for each value"))
    said = taken(line, ("detach", "cache_only", "nodes"))[0]
    problems += [Problem("rollout_alone", f"rollout has no {key}=", f"override {key}", "leave it out") for key in said]
    if problems:
        raise UserError(problems)
