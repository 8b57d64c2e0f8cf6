"""Recognises a training file of another tool, and gives the equivalent command of launch."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from launch.check.lint.trainer_commands import LintFinding, warning
from launch.config.other_tool_files import TRL_TOOL, has_other_data, recognise_tool
from launch.config.yaml_nodes import Mapping, Node
from launch.worker.finding import Fix


def find_other_tool(
    path: Path, documents: Iterable[Node], explicit: bool
) -> tuple[LintFinding, bool] | None:
    """Return the equivalent of another tool's file in launch, and whether its keys are flags of a
    trainer too, as those of TRL's files are; None for any other file.

    The command is planned if the user has named the file. For a file in a folder, the finding names
    the command that plans it.
    """
    for document in documents:
        if not isinstance(document, Mapping):
            return None
        names = [key.text for key, _ in document.entries()]
        tool = recognise_tool(names)
        if tool is None:
            return None
        message = f"this is a file of {tool}, which launch translates"
        cure = Fix.of("{0} shows what it becomes here", f"$ launch lint {shlex.quote(str(path))}")
        if explicit:
            cure = _plan(path) or cure
        has_flags = tool == TRL_TOOL and not has_other_data(names)
        return warning("other_tool", message, document.line, cure=cure), has_flags
    return None


def _plan(path: Path) -> Fix | None:
    from launch.planning.other_tool_line import explain_file  # slow to import; few files need it

    explained = explain_file(path)
    return explained[1] if explained else None
