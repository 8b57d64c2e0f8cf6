"""`logs RUN`: what a run's display shows, or a rank's whole log, from any terminal."""

from __future__ import annotations

import sys
from pathlib import Path

from launch.commands.arguments import run_words
from launch.errors import EXIT_DONE, Problem, UserError
from launch.runtime.folder import last_outcome
from launch.runtime.progress import duration
from launch.runtime.replay import Replay, Tail, follow
from launch.runtime.runs import is_running, resolve_run, run_name

USAGE = "launch logs RUN [--follow] [--rank N] [runs=DIR]"
_OPTIONS = {"--follow": False, "-f": False, "--rank": True}


def logs(words: list[str]) -> int:
    """Print the display's lines of a run, or the log of one rank; `--follow` goes on until the run ends.

    Ctrl-C ends the following, not the run. Raises UserError (`unknown_run`, `ambiguous_run`, `no_such_rank`, `usage`).
    """
    said = run_words("logs", words, _OPTIONS, USAGE)
    if len(said.names) != 1:
        raise UserError(Problem("usage", "'logs' takes one run", "command line", USAGE))
    folder = resolve_run(said.names[0], said.runs)
    rank = said.options.get("--rank")
    shown = Replay(folder, sys.stdout) if rank is None else Tail(_rank_log(folder, rank), sys.stdout.buffer)
    following = bool(said.options.keys() & {"--follow", "-f"})
    try:
        follow(shown, (lambda: is_running(folder)) if following else (lambda: False))
    except KeyboardInterrupt:
        print(f"\n{run_name(folder)} goes on", file=sys.stderr)
        return EXIT_DONE
    if rank is None:
        print(_end(folder))
    return EXIT_DONE


def _rank_log(folder: Path, rank: str) -> Path:
    file = folder / "logs" / f"rank-{rank}.log"
    if not file.is_file():
        there = sorted(path.stem.removeprefix("rank-") for path in (folder / "logs").glob("rank-*.log"))
        cure = f"there are {', '.join(there)}" if there else "no rank has printed anything yet"
        raise UserError(Problem("no_such_rank", f"{run_name(folder)} has no rank {rank}", "--rank", cure))
    return file


def _end(folder: Path) -> str:
    """How the run ended, in a line or a few."""
    if is_running(folder):
        return f"running; python -m launch logs {run_name(folder)} --follow goes on"
    outcome = last_outcome(folder)
    if outcome is None:
        return "unfinished: its launcher ended without saying how"
    if outcome.exit_code == EXIT_DONE:
        loss = f", last loss {outcome.last_loss:.4g}" if outcome.last_loss is not None else ""
        return f"done: {outcome.steps} steps in {duration(outcome.seconds)}{loss}"
    lines = [f"failed ({outcome.exit_code}) after step {outcome.steps}: {outcome.cause}"]
    return "\n".join([*lines, *(f"  {line}" for line in outcome.detail)])
