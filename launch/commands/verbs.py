"""The verbs with a line on the use of each, and the text that `launch help VERB` prints."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launch.commands.arguments import VerbParser


# The verbs whose functions are in a module of another name, by the module of launch.commands.
_FILES = {
    "about": ("help", "version", "schema"),
    "check": ("preview",),
    "drafts": ("new", "cluster"),
    "models": ("eval", "generate", "merge"),
    "reports": ("report", "compare"),
    "runs": ("status", "logs"),
    "submit": ("node",),
    "trials": ("bench", "rollout", "tune", "trial"),
}


@dataclass(frozen=True)
class Verb:
    """A verb of the command line; its function has the same name."""

    name: str
    summary: str  # line of `launch help`
    takes: str = ""  # arguments in that line
    # Whether it takes a CommandLine, from which Hydra composes a stage; else a list of arguments.
    composes: bool = False
    hidden: bool = False  # whether only programs call it

    def module(self) -> ModuleType:
        """Import the module of its function."""
        module = self.name
        for other, verbs in _FILES.items():
            if self.name in verbs:
                module = other
        return importlib.import_module(f"launch.commands.{module}")

    def parser(self) -> VerbParser | None:
        """Build the parser of its arguments, if it has its own `--options`.

        The modules of parsers import little.
        """
        from launch.commands import run_parsers, tool_parsers

        name = f"build_{self.name}_parser"
        for module in (run_parsers, tool_parsers):
            build: Callable[[], VerbParser] | None = getattr(module, name, None)
            if build:
                return build()
        return None

    def function(self) -> Callable[[Any], int]:
        function: Callable[[Any], int] = getattr(self.module(), self.name)
        return function


# The verbs in the order of `launch help`; a blank line ends a group.
VERB_GROUPS: tuple[tuple[Verb, ...], ...] = (
    (
        Verb(
            "run",
            "plan, check this machine, train, watch, record; resumes an unfinished run",
            composes=True,
        ),
        Verb(
            "plan",
            "print the exact command, batch, memory and where every flag comes from",
            composes=True,
        ),
        Verb("new", "write a stage file for your own data", "NAME --data FILE"),
        Verb(
            "preview",
            "show samples as the trainer will see them: tokens, and which carry loss",
            composes=True,
        ),
        Verb("check", "check everything that the run needs on this machine", composes=True),
        Verb("submit", "submit the run, a chain of stages or a sweep to Slurm", composes=True),
    ),
    (
        Verb(
            "trial",
            "run every combination of comma lists, with one table and page",
            "key=A,B",
            composes=True,
        ),
        Verb("rollout", "go from one GPU to many through gates", "gpus=1,2,8", composes=True),
        Verb("bench", "compare two settings on the same data", "... -- A -- B", composes=True),
        Verb("tune", "find the fastest setting that fits and trains the same", composes=True),
    ),
    (
        Verb("status", "list runs and jobs with their state, step, loss and time left", "[RUN...]"),
        Verb("logs", "print or follow a run's output", "RUN"),
        Verb(
            "report",
            "write a page with curves, evidence and plan, or one that compares runs",
            "RUN...",
        ),
        Verb("stop", "end a run from any terminal", "RUN"),
        Verb("clean", "show what takes disk space and can go; remove it after a yes", "[RUN]"),
        Verb("eval", "score a run's model against its base, with a verdict per task", "RUN"),
        Verb(
            "generate", "answers of trained models, one run or several side by side", "RUN PROMPT"
        ),
        Verb(
            "compare",
            "what differs between runs: settings, data, versions, losses, speed",
            "RUN RUN...",
        ),
        Verb("merge", "merge a LoRA run's adapter into its base model", "RUN"),
        Verb("cluster", "draft the description of this machine's Slurm cluster", "NAME"),
    ),
    (
        Verb("lint", "check existing scripts against the trainers that they start", "FILE..."),
        Verb(
            "flags",
            "list a trainer's flags: type, default, choices, source line",
            "TRAINER [PATTERN]",
        ),
        Verb("schema", "print the JSON Schema of a stage file, for editors"),
        Verb("upstream", "show the pinned open-instruct, and whether the checkout matches it"),
        Verb("version", "print the versions of launch, open-instruct and the packages"),
        Verb(
            "help",
            "explain a verb; `launch help keys` lists the keys and choices used most",
            "[VERB]",
        ),
    ),
    (Verb("node", "run one node of a Slurm job", composes=True, hidden=True),),
)
VERBS = {verb.name: verb for group in VERB_GROUPS for verb in group}
VISIBLE = tuple(name for name, verb in VERBS.items() if not verb.hidden)


def help_text(verb: Verb) -> str:
    """Return the help of a verb: from its parser, or else the text `VERB_HELP` of its module."""
    parser = verb.parser()
    if parser is not None:
        return parser.format_help()
    return str(getattr(verb.module(), f"{verb.name.upper()}_HELP"))


def overview() -> str:
    """Return what `launch help` prints: every verb in one line."""
    demo = "stage=demo trainer=trl_sft"
    lines = [
        "usage: launch [VERB] stage=NAME [key=value ...]",
        "",
        f"  launch plan {demo}  what would run; starts nothing",
        f"  launch {demo}       run it: a tiny model on this machine's CPU, about a minute",
        "  launch plan stage=sft_25pct gpus=8      a Tulu 3 stage on eight GPUs",
    ]
    for group in VERB_GROUPS:
        visible = [verb for verb in group if not verb.hidden]
        if visible:
            lines.append("")
        for verb in visible:
            usage = f"{verb.name} {verb.takes}".rstrip()
            lines.append(f"  {usage:<27}{verb.summary}")
    lines.append("")
    keys = "`launch help keys` the keys and choices used most"
    lines.append(f"`launch help VERB` has examples and options, {keys}.")
    return "\n".join(lines) + "\n"
