"""What the command lines of bench, rollout and tune share: short options, and what a trial does not support."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from launch.config.line import CommandLine, override_key
from launch.errors import Problem

_UNSUPPORTED = ("detach", "cache_only", "nodes")


def unsupported_problems(
    line: CommandLine, verb: str, reason: str, cures: Mapping[str, str] | None = None
) -> Iterator[Problem]:
    """Yield what the line asks for that a trial does not support. `reason`: why it does not support --multirun."""
    id_, keys = f"{verb}_alone", {override_key(word) for word in line.argv}
    if line.multirun:
        message = f"{verb} does not support --multirun: {reason}"
        yield Problem(id_, message, None, "run it once for each value")
    for key in _UNSUPPORTED:
        if key in keys:
            cure = (cures or {}).get(key, "remove it")
            yield Problem(id_, f"{verb} does not support {key}=", f"override {key}", cure)


def expand_short_options(line: CommandLine, verb: str, names: Sequence[str]) -> CommandLine:
    """Replace short options such as steps= by keys of the verb's node. Raises UserError: duplicate_override."""
    options, rest = line.pop_overrides(names)
    return rest.with_overrides(*(f"{verb}.{name}={options[name]}" for name in names if name in options))
