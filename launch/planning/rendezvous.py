"""The three placeholders in the command of a run over several nodes, which each node fills in.

Apart from the command, so that a run's record is read without the configuration's classes.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

NODE_RANK = "$LAUNCH_NODE_RANK"
MAIN_HOST = "$LAUNCH_MAIN_HOST"
MAIN_PORT = "$LAUNCH_MAIN_PORT"


@dataclass(frozen=True)
class NodeRendezvous:
    """How one node joins a run."""

    node_rank: int
    main_host: str  # where rank 0 listens
    main_port: int

    def variables(self) -> dict[str, str]:
        """Return the placeholders as shell variables, by name without the dollar."""
        values = {NODE_RANK: str(self.node_rank), MAIN_HOST: self.main_host, MAIN_PORT: str(self.main_port)}
        return {placeholder[1:]: value for placeholder, value in values.items()}


def fill_placeholders(command: Sequence[str], rendezvous: NodeRendezvous) -> tuple[str, ...]:
    """Return the command of one node."""
    values = {f"${name}": value for name, value in rendezvous.variables().items()}
    return tuple(values.get(argument, argument) for argument in command)


def quote_argument(argument: str) -> str:
    """Quote an argument for a shell, which fills in the placeholders."""
    return f'"{argument}"' if argument in (NODE_RANK, MAIN_HOST, MAIN_PORT) else shlex.quote(argument)
