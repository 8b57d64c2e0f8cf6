"""Where upstream has moved the files that this project knows by another name.

This project keeps its own names for trainers, for the files that patches and rules refer to, and for
the entries of run folders. `moves.json` has the path at the pin of each file that has moved; `python
-m maintain bump` writes it. The worker reads it too.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

MOVES_FILE = Path(__file__).with_name("moves.json")
# {upstream's future name of a trainer: its name here}. A user may choose a trainer by either name,
# even before the files have moved. Upstream's names are in part 2 of
# docs/superpowers/specs/2026-08-05-backend-consolidation-design.md, branch parity-confidence.
UPSTREAM_NAMES: Mapping[str, str] = {
    "sft_deepspeed": "finetune",
    "sft": "olmo_core_finetune",
    "dpo_deepspeed": "dpo_tune_cache",
    "grpo_deepspeed": "grpo_fast",
}
_MOST_STATEMENTS = 12  # maximum number of statements in a shim
# Maximum size of a shim, with comments and licence; a longer file is not parsed.
_MOST_BYTES = 8_000
_MODULE = re.compile(r"open_instruct(?:[./])(\w+)(?:\.py)?")
_FILE_NAME = re.compile(r"(\w+)\.py")


@cache
def load_moves() -> Mapping[str, str]:
    """Return {path that this project knows: path at the pin}, both relative to the checkout."""
    content = json.loads(MOVES_FILE.read_text(encoding="utf-8"))
    moves: Mapping[str, str] = content["moves"]
    return moves


def path_at_pin(path: str) -> str:
    """Return where a file is at the pin."""
    return load_moves().get(path, path)


def known_path(path: str) -> str:
    """Return the path by which this project knows a file of the pin."""
    for known, moved in load_moves().items():
        if moved == path:
            return known
    return path


def known_name(file_name: str) -> str:
    """Return the name by which this project knows a script of the pin: `finetune.py`."""
    return Path(known_path(f"open_instruct/{file_name}")).name


def follow_shim(root: Path, path: str) -> str:
    """Return the script that a file of a checkout runs: itself, or the target of a shim."""
    try:
        if (root / path).stat().st_size > _MOST_BYTES:
            return path
        source = (root / path).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return path
    target = shim_target(source, Path(path).stem)
    if target is None or not (root / target).is_file():
        return path
    return target


def shim_target(source: str, own_name: str) -> str | None:
    """Return the one open_instruct script that a short file star-imports or starts.

    Recognised are `from open_instruct.X import *`, `runpy.run_module("open_instruct.X")`,
    `runpy.run_path` and `os.exec*` or `subprocess` with the path of X. None is returned for a file
    that does anything of its own.
    """
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    statements = [node for node in ast.walk(module) if isinstance(node, ast.stmt)]
    defines = any(isinstance(node, ast.ClassDef) for node in statements)
    if defines or len(statements) > _MOST_STATEMENTS:
        return None
    names: set[str] = set()
    passes_on = False
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module:
            match = _MODULE.fullmatch(node.module)
            if match is not None:
                names.add(match.group(1))
                passes_on |= any(alias.name == "*" for alias in node.names)
        elif isinstance(node, ast.Call) and _starts_program(ast.unparse(node.func)):
            passes_on = True
            for part in ast.walk(node):
                text = part.value if isinstance(part, ast.Constant) else None
                match = None
                if isinstance(text, str):
                    match = _MODULE.fullmatch(text) or _FILE_NAME.fullmatch(text)
                if match is not None:
                    names.add(match.group(1))
    names.discard(own_name)
    return f"open_instruct/{names.pop()}.py" if passes_on and len(names) == 1 else None


def _starts_program(function: str) -> bool:
    """Return whether a function of this name starts a script: `runpy.run_path`, `os.execv`."""
    return (
        re.fullmatch(r"(?:runpy\.)?run_(?:module|path)|os\.exec\w+|subprocess\.\w+", function)
        is not None
    )
