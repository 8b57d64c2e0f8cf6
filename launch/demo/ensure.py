"""Build the demo's chats, preference pairs and model where they are missing or outdated.

The rows are files of this package, questions about Python 3.11.7's standard library that its docstrings answer (under
PYTHON-LICENSE.txt). The model is identical for one version of the trainer's packages.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from launch.demo.folders import BuiltFolder, build_once
from launch.errors import Problem, UserError
from launch.external import run_command
from launch.resources import requirement

SEED = 0
MODEL_TIMEOUT = 600.0  # seconds; usually ten, but importing torch from a cold network file system can take minutes
EXIT_MISSING_PACKAGE = 3  # make_model.py's
_HELD_OUT = 10  # every tenth prompt is for evaluation


def demo_key() -> str:
    """Return the identity of the demo, which is in the names of its folders and so in the identity of its plans.

    It stands for the shipped rows, make_model.py, the chat template and the seed: a change of one needs another key.
    """
    return "8eb8295e11327cf7"


def ensure_chats(folder: Path) -> BuiltFolder:
    """Ensure `folder`/train.jsonl with one chat (`messages`) per row. The facts: its `rows` and `digest` (SHA-256).

    Raises UserError: demo_folder_taken.
    """
    return build_once(folder, "chats", demo_key(), lambda staging: _build_rows(staging, "chats"))


def ensure_preferences(folder: Path) -> BuiltFolder:
    """Ensure `folder`/train.jsonl with `chosen` and `rejected` messages per row. The facts: as of `ensure_chats`.

    Raises UserError: demo_folder_taken.
    """
    return build_once(folder, "preferences", demo_key(), lambda staging: _build_rows(staging, "preferences"))


def ensure_prompts(folder: Path) -> BuiltFolder:
    """Ensure `folder`/train.jsonl with the question of a chat (`prompt`) and the module that it is about
    (`ground_truth`) per row, and held_out.jsonl with every tenth. The facts: as of `ensure_chats`.

    Raises UserError: demo_folder_taken.
    """
    return build_once(folder, "prompts", demo_key(), _build_prompts)


def prompt_rows() -> tuple[list[str], list[str]]:
    """Return the demo's prompts with their modules, a JSON object each: to train on, and every tenth, held out."""
    questions = [json.loads(chat)["messages"][0] for chat in read_rows("chats").splitlines()]
    modules = [re.search(r"`(\w+)", question["content"]) for question in questions]
    rows = [
        json.dumps({"prompt": [question], "ground_truth": module[1]})
        for question, module in zip(questions, modules, strict=True)
        if module
    ]
    return [row for number, row in enumerate(rows) if number % _HELD_OUT], rows[::_HELD_OUT]


def _build_prompts(folder: Path) -> dict[str, Any]:
    rows, held_out = prompt_rows()
    for name, lines in (("train", rows), ("held_out", held_out)):
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return {"rows": len(rows), "digest": hashlib.sha256("\n".join(rows).encode()).hexdigest()}


def ensure_model(folder: Path, python: str | os.PathLike[str]) -> BuiltFolder:
    """Ensure a seeded two-layer Llama with its tokenizer in `folder`, built by the trainer's interpreter `python`.

    The facts: `parameters`, what make_model.py prints, and a `digest` over the names and bytes of all files.

    Raises UserError: demo_python_not_started, demo_packages_missing, demo_model_failed, demo_folder_taken.
    """
    return build_once(folder, "model", demo_key(), lambda staging: _build_model(staging, os.fspath(python)))


def read_rows(kind: str) -> bytes:
    """Return the shipped rows of `chats` or `preferences`."""
    return gzip.decompress((Path(__file__).parent / f"{kind}.jsonl.gz").read_bytes())


def ensure_trained_model(folder: Path, python: str | os.PathLike[str]) -> BuiltFolder:
    """Ensure the demo's model after a hundred steps on its chats in `folder`. Facts and errors: see `ensure_model`."""
    return build_once(
        folder, "trained model", demo_key(), lambda staging: _build_model(staging, os.fspath(python), "train_model.py")
    )


def _build_rows(folder: Path, kind: str) -> dict[str, Any]:
    """Write the shipped rows, one JSON object a line in ASCII."""
    content = read_rows(kind)
    (folder / "train.jsonl").write_bytes(content)
    return {"rows": content.count(b"\n"), "digest": hashlib.sha256(content).hexdigest()}


def _build_model(folder: Path, python: str, program: str = "make_model.py") -> dict[str, Any]:
    script, where = Path(__file__).with_name(program), f"python={python}"
    with tempfile.TemporaryDirectory(prefix="demo-chats-") as chats:
        _build_rows(Path(chats), "chats")
        command = [python, str(script), "--chats", str(Path(chats, "train.jsonl")), "--out", str(folder)]
        try:
            done = run_command([*command, "--seed", str(SEED)], timeout=MODEL_TIMEOUT)
        except OSError as error:
            message = f"the trainer's interpreter cannot be started: {error.strerror or error}"
            cure = "set python to the interpreter that has the trainer's packages"
            raise UserError(Problem("demo_python_not_started", message, where, cure)) from error
        except subprocess.TimeoutExpired as error:
            message = f"building the demo's model did not finish within {MODEL_TIMEOUT:.0f} s"
            cure = f"run it by hand to see where it hangs: {' '.join(command)}"
            raise UserError(Problem("demo_model_failed", message, where, cure)) from error
    last_line = (done.stderr.strip().splitlines() or ["no error output"])[-1]
    if done.returncode == EXIT_MISSING_PACKAGE:
        message = f"the trainer's interpreter has no package '{last_line}'"
        cure = f"install it there: `pip install {requirement('train')}`, or set python to another interpreter"
        raise UserError(Problem("demo_packages_missing", message, where, cure))
    if done.returncode != 0:
        message = f"building the demo's model failed with exit code {done.returncode}: {last_line}"
        cure = "its torch and transformers may be incompatible: try to import them with that interpreter"
        raise UserError(Problem("demo_model_failed", message, where, cure))
    facts: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    facts.pop("schema_version", None)
    return {**facts, "digest": _folder_digest(folder)}


def _folder_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
