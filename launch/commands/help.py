"""`help [VERB]`: explain a verb, or list all of them."""

from __future__ import annotations

from launch.commands.tool_parsers import build_help_parser
from launch.commands.verbs import VERBS, VISIBLE, help_text, overview
from launch.config.compose import compose
from launch.config.line import CommandLine
from launch.errors import EXIT_DONE, Problem, UserError, did_you_mean
from launch.terminal import echo

KEYS = "keys"


def help(arguments: list[str]) -> int:
    """Print the overview, the help of one verb, or the keys and choices. Raises UserError: unknown_verb."""
    topic = build_help_parser().parse(arguments).topic
    if topic is None:
        echo(overview(), end="")
    elif topic == KEYS:
        return compose(CommandLine("run", False, ("--help",)), lambda composed: EXIT_DONE)
    elif topic in VERBS:
        echo(help_text(VERBS[topic]), end="")
    else:
        cure = did_you_mean(topic, [*VISIBLE, KEYS]) or "`launch help` lists the verbs"
        raise UserError(Problem("unknown_verb", f"there is no help for '{topic}'", "command line", cure))
    return EXIT_DONE
