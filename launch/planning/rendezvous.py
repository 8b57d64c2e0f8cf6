"""What differs from node to node in the command of a run over several: three words that each node fills in."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

NODE_RANK = "$LAUNCH_NODE_RANK"
MAIN_HOST = "$LAUNCH_MAIN_HOST"
MAIN_PORT = "$LAUNCH_MAIN_PORT"


@dataclass(frozen=True)
class Place:
    """One node's place in a run: its rank, and the host and port where rank 0 listens."""

    node_rank: int
    main_host: str
    main_port: int

    def variables(self) -> dict[str, str]:
        """The words as a shell's variables, by name without the dollar."""
        values = {NODE_RANK: str(self.node_rank), MAIN_HOST: self.main_host, MAIN_PORT: str(self.main_port)}
        return {word[1:]: value for word, value in values.items()}


def filled(command: Sequence[str], place: Place) -> tuple[str, ...]:
    """The command of one node."""
    values = {f"${name}": value for name, value in place.variables().items()}
    return tuple(values.get(word, word) for word in command)


def quoted(word: str) -> str:
    """A word of a command for a shell, which fills in the three words."""
    return f'"{word}"' if word in (NODE_RANK, MAIN_HOST, MAIN_PORT) else shlex.quote(word)
