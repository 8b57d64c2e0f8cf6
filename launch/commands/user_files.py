"""The files that `new` and `cluster` write into the user's folder of configurations."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from launch.config.compose import USER_DIR_VARIABLE, default_user_folder
from launch.errors import Problem, UserError
from launch.files import create_file, write_json
from launch.redact import process_redactor


def locate_option(group: str, name: str, usage: str | None) -> Path:
    """Return where the file of a group's option is written. Raises UserError: usage, secret_on_line."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        message = f"names must match [A-Za-z0-9_][A-Za-z0-9_.-]*, got '{name}'"
        raise UserError(Problem("usage", message, "command line", usage))
    if process_redactor().redact_text(name) != name:
        message = "the name holds a secret, which the name of the file would show"
        raise UserError(Problem("secret_on_line", message, "command line", "use another name"))
    return default_user_folder(os.environ) / group / f"{name}.yaml"


def write_option(path: Path, text: str, beside: Mapping[str, object] | None = None) -> None:
    """Write a new file, after renewing the JSON files `beside` it, by name. Raises UserError: not_writable."""
    try:
        for name, content in (beside or {}).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path.parent / name, content)
        create_file(path, text)
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror or error}"
        cure = "set another folder, or use --print"
        raise UserError(Problem("not_writable", message, USER_DIR_VARIABLE, cure)) from error
