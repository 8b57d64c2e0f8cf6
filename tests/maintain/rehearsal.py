"""Makes the commit that upstream's design of 2026-08-05 describes, in a clone that is thrown away.

The design (docs/superpowers/specs/2026-08-05-backend-consolidation-design.md on upstream's branch
parity-confidence, part 2) moves the trainers and leaves a shim at each old path for one release. Its
commit does not exist yet, so this script makes it from any commit:

    python -m tests.maintain.rehearsal CHECKOUT FOLDER [COMMIT]
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

MOVES = {
    "finetune": "sft_deepspeed",
    "olmo_core_finetune": "sft",
    "dpo_tune_cache": "dpo_deepspeed",
    "grpo_fast": "grpo_deepspeed",
}
# what grpo.py imports of grpo_fast.py, which goes to grpo_harness.py
SHARED = {
    "make_tokenizer",
    "setup_datasets",
    "initialize_tools_and_envs",
    "create_generation_configs",
    "build_base_env_config",
    "setup_runtime_variables",
    "EXCLUDED_ENV_VARS",
    "ModelGroup",
}
# pages about past runs, which keep the old commands
HISTORICAL = ("docs/tulu1_tulu2.md", "docs/tulu3.md", "docs/olmo2.md", "CHANGELOG.md")
IMPORTING_SHIM = '''"""Moved to {new}.py; this name works for one release."""

import runpy
import warnings

from open_instruct.{new} import *

warnings.warn("open_instruct/{old}.py is now {new}.py", DeprecationWarning, stacklevel=2)

if __name__ == "__main__":
    runpy.run_module("open_instruct.{new}", run_name="__main__", alter_sys=True)
'''
EXECUTING_SHIM = '''"""Moved to {new}.py; this name works for one release."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    script = Path(__file__).with_name("{new}.py")
    os.execv(sys.executable, [sys.executable, str(script), *sys.argv[1:]])

from open_instruct.{new} import *
'''


def make_commit(checkout: Path, folder: Path, commit: str = "HEAD") -> str:
    """Clone the checkout into `folder`, and return the new commit that is made there of `commit`."""
    base = _git(checkout, "rev-parse", f"{commit}^{{commit}}").strip()
    subprocess.run(
        ["git", "clone", "-q", "--shared", "--no-checkout", str(checkout), str(folder)], check=True
    )
    _git(folder, "update-ref", "--no-deref", "HEAD", base)
    _git(folder, "read-tree", base)
    paths = _git(folder, "ls-files", "open_instruct", "scripts", "docs").splitlines()
    kept = [path for path in paths if path.endswith((".py", ".sh", ".md", ".yaml", ".yml"))]
    texts = {path: _read(folder, base, path) for path in kept if path not in HISTORICAL}
    changed = {}
    for path, text in texts.items():
        if text is not None:
            new_path = _moved_path(path)
            changed[new_path] = _rename(text)
    _split_harness(changed)
    for number, (old, new) in enumerate(MOVES.items()):
        shim = EXECUTING_SHIM if number == 3 else IMPORTING_SHIM
        changed[f"open_instruct/{old}.py"] = shim.format(old=old, new=new)
    for path, text in changed.items():
        if texts.get(path) != text:
            _add(folder, path, text)
    tree = _git(folder, "write-tree").strip()
    message = "Backend consolidation: plain names for OLMo-core (#1830)"
    identity = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@example.org"}
    identity |= {"GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@example.org"}
    made = _git(
        folder, "commit-tree", tree, "-p", base, "-m", message, environment=identity
    ).strip()
    _git(folder, "update-ref", "--no-deref", "HEAD", made)
    package = _git(folder, "ls-files", "open_instruct").splitlines()
    _git(folder, "checkout-index", "--force", "--", *package)
    return made


def _moved_path(path: str) -> str:
    match = re.fullmatch(r"open_instruct/(\w+)\.py", path)
    return f"open_instruct/{MOVES[match[1]]}.py" if match and match[1] in MOVES else path


def _rename(text: str) -> str:
    """Return a text with the new paths, modules and imports."""
    for old, new in MOVES.items():
        text = re.sub(rf"\bopen_instruct/{old}\.py", f"open_instruct/{new}.py", text)
        text = re.sub(rf"\bopen_instruct\.{old}\b", f"open_instruct.{new}", text)
        text = re.sub(rf"(from open_instruct import [^\n]*)\b{old}\b", rf"\1{new}", text)
        if old == "grpo_fast":
            text = re.sub(rf"\b{old}\.(?=[a-zA-Z_])", f"{new}.", text)
    return text


def _split_harness(texts: dict[str, str]) -> None:
    """Move what grpo.py shares with the DeepSpeed trainer to grpo_harness.py."""
    path = "open_instruct/grpo_deepspeed.py"
    source = texts[path]
    body = ast.parse(source).body
    named = {
        node.name: node
        for node in body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    }
    moved: set[str] = set()
    waiting = SHARED & named.keys()
    while waiting:
        name = waiting.pop()
        moved.add(name)
        used = {node.id for node in ast.walk(named[name]) if isinstance(node, ast.Name)}
        waiting |= (used & named.keys()) - moved
    lines = source.splitlines(keepends=True)
    harness, rest = list(lines), list(lines)
    for node in body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
        span = range(first, node.end_lineno or node.lineno)
        is_definition = getattr(node, "name", None) in named
        is_main = isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
        drop = rest if is_definition and node.name in moved else None  # type: ignore[union-attr]
        if drop is None and (is_definition or is_main):
            drop = harness
        for line in span if drop is not None else ():
            assert drop is not None
            drop[line] = ""
    first_own = min(node.lineno for name, node in named.items() if name not in moved)
    imports = (
        f"from open_instruct.grpo_harness import {', '.join(sorted(moved))}  # noqa: E402\n\n\n"
    )
    decorators = [d.lineno for name, node in named.items() for d in node.decorator_list
                  if node.lineno == first_own]  # fmt: skip
    rest.insert(min([first_own, *decorators]) - 1, imports)
    texts["open_instruct/grpo_harness.py"] = "".join(harness)
    texts[path] = "".join(rest)
    names = "|".join(sorted(SHARED))
    grpo = texts["open_instruct/grpo.py"]
    grpo = re.sub(rf"\bgrpo_deepspeed\.({names})\b", r"grpo_harness.\1", grpo)
    grpo = re.sub(
        r"from open_instruct\.grpo_deepspeed import", "from open_instruct.grpo_harness import", grpo
    )
    texts["open_instruct/grpo.py"] = grpo


def _read(folder: Path, commit: str, path: str) -> str | None:
    """Return a text of the commit; None where a partial clone lacks it."""
    environment = {**os.environ, "GIT_NO_LAZY_FETCH": "1"}
    done = subprocess.run(
        ["git", "-C", str(folder), "show", f"{commit}:{path}"],
        capture_output=True,
        check=False,
        env=environment,
    )
    return done.stdout.decode(errors="surrogateescape") if done.returncode == 0 else None


def _add(folder: Path, path: str, text: str) -> None:
    content = text.encode(errors="surrogateescape")
    blob = _git(folder, "hash-object", "-w", "--stdin", content=content).strip()
    _git(folder, "update-index", "--add", "--cacheinfo", f"100644,{blob},{path}")


def _git(
    repo: Path, *arguments: str, content: bytes = b"", environment: dict[str, str] | None = None
) -> str:
    done = subprocess.run(
        ["git", "-C", str(repo), *arguments],
        input=content,
        capture_output=True,
        check=True,
        env={**os.environ, "GIT_NO_LAZY_FETCH": "1", **(environment or {})},
    )
    return done.stdout.decode(errors="surrogateescape")


if __name__ == "__main__":
    print(make_commit(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:4]))
