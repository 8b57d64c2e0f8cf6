"""Shell completion: Hydra's, which knows no verbs."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

FLAGS = ("--shell-completion", "-sc")


def asks_completion(words: Sequence[str]) -> bool:
    """Whether the shell asks for completions, or for the script that does."""
    return any(word in FLAGS for word in words)


def without_verb(environ: MutableMapping[str, str], verbs: Sequence[str]) -> None:
    """Take the verb out of the line that the shell is completing, so that Hydra sees overrides alone."""
    line = environ.get("COMP_LINE", "")
    program, _, rest = line.partition(" ")
    verb, space, overrides = rest.lstrip(" ").partition(" ")
    if space and verb in verbs:
        environ["COMP_LINE"] = f"{program} {overrides}"
        environ["COMP_POINT"] = str(len(environ["COMP_LINE"]))
