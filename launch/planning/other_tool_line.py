"""Plans the line that a file of another tool is here, before it is printed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.config.line import CommandLine, override_key
from launch.config.other_tool_files import recognise_tool
from launch.config.yaml_nodes import NotYamlError, load_yaml
from launch.errors import UserError, ways_of
from launch.planning.build import plan_line
from launch.planning.other_tool_files import translate_file
from launch.planning.other_tool_values import Translation
from launch.worker.finding import Finding, Fix, Way

_MOST_CHANGES = 5  # cures that are followed until the line plans


def explain_file(path: Path, given: Sequence[str] = ()) -> tuple[str, Fix] | None:
    """Return the tool of a file, and its line here as a cure; None for a file of no known tool.

    `given` are overrides that the user has set beside the file; they win, and `gpus` among them is
    the number of ranks of the batch.
    """
    try:
        content = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, NotYamlError):
        return None
    settings = (
        {str(key): value for key, value in content.items()} if isinstance(content, dict) else {}
    )
    tool = recognise_tool(settings)
    if tool is None:
        return None
    return tool, _explain(plan_file(settings, tool, path, given))


def plan_file(
    settings: Mapping[str, Any], tool: str, path: Path, given: Sequence[str] = ()
) -> Translation:
    """Translate a file and plan its line; what had to be changed for it is among the differences, and
    what cannot be planned is missing.
    """
    ranks = _ranks_of(given)
    translation = translate_file(settings, tool, path, ranks)
    for override in given:
        if "=" in override:
            translation.overrides[override_key(override)] = override.partition("=")[2]
    if translation.missing:
        return translation
    tried: set[str] = set()
    for _ in range(_MOST_CHANGES):
        try:
            plan_line(CommandLine("plan", False, tuple(translation.lines)))
            return translation
        except UserError as error:
            problem = error.problems[0]
        way = next((way for way in ways_of(problem.cure) if way.is_exact), None)
        if way is None or str(way) in tried:
            break
        tried.add(str(way))
        _follow(translation, way, problem)
    translation.missing.append(problem.statement)
    return translation


def _ranks_of(given: Sequence[str]) -> int | None:
    """Return the ranks that the line is for: gpus x nodes; None where it sets neither."""
    values = {override_key(item): item.partition("=")[2] for item in given}
    counts = [values[key] for key in ("gpus", "nodes") if values.get(key, "").isdigit()]
    ranks = 1
    for count in counts:
        ranks *= max(1, int(count))
    return ranks if counts else None


def _follow(translation: Translation, way: Way, problem: Finding) -> None:
    """Change the line as a cure says, and record why."""
    if way.removes:
        translation.overrides.pop(override_key(way.removes), None)
    for override in way.sets:
        key, _, value = override.partition("=")
        translation.overrides[key] = value
    change = str(way) if way.sets else f"without {way}"
    translation.differences.append(f"{change}, because {problem.message}")


def _explain(translation: Translation) -> Fix:
    """Return the line with its arithmetic, what is missing of it, and what differs."""
    command = f"$ launch plan {shlex.join(translation.lines)}"
    parts = []
    if translation.missing:
        parts.append(
            f"it cannot be planned yet, because this is missing: {'; '.join(translation.missing)}"
        )
        parts.append("the rest of it is here: {0}")
    else:
        parts.append("the same training is here: {0}")
    if translation.batch:
        grows = ""
        if translation.ranks == 1:
            grows = f", and N times as many with `launch plan {translation.file} gpus=N`"
        parts.append(f"{translation.batch}{grows}")
    if translation.differences:
        parts.append(f"what differs: {'; '.join(translation.differences)}")
    return Fix.of(". ".join(parts), command)
