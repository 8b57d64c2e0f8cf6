"""Build the demo's chats, preference pairs and model where they are missing or outdated.

The rows are files of this package, questions about Python 3.11.7's standard library that its docstrings answer (under
PYTHON-LICENSE.txt). The model is identical for one version of the trainer's packages.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launch.demo import DEMO_KEY
from launch.demo.folders import BuiltFolder, build_once
from launch.errors import refusal
from launch.external import failure_reason, run_command
from launch.resources import requirement

SEED = 0
MODEL_TIMEOUT = 600.0  # seconds; usually ten, but importing torch from a cold network file system can take minutes
EXIT_MISSING_PACKAGE = 3  # make_model.py's
_HELD_OUT = 10  # every tenth prompt is for evaluation
# with the numbers of the stage `demo`: where `demo_rlvr` starts without a run before it
_TRAINING = (
    *("trl.scripts.sft", "--max_steps", "100", "--per_device_train_batch_size", "16", "--learning_rate", "2e-3"),
    *("--max_length", "256", "--assistant_only_loss", "true", "--use_cpu", "true", "--bf16", "false"),
    *("--gradient_checkpointing", "false", "--save_strategy", "no", "--report_to", "none"),
)


def ensure_rows(folder: Path, kind: str) -> BuiltFolder:
    """Ensure `folder`/train.jsonl with the demo's `chats` (one in `messages` per row), `preferences` (`chosen` and
    `rejected` messages) or `prompts` (see `prompt_rows`). The facts: its `rows`.

    Raises UserError: demo_folder_taken.
    """
    return build_once(folder, kind, DEMO_KEY, lambda staging: _write_rows(staging, kind))


def ensure_model(folder: Path, python: str | Path, *, trained: bool = False) -> BuiltFolder:
    """Ensure a seeded two-layer Llama with its tokenizer in `folder`, built by the trainer's interpreter `python`.

    `trained`: after a hundred steps on the chats; before them it never ends an answer, so that nothing could be
    compared. The facts: `parameters`, and what else make_model.py prints.

    Raises UserError: demo_python_not_started, demo_packages_missing, demo_model_failed, demo_folder_taken.
    """
    kind, training = ("model trained by TRL", _TRAINING) if trained else ("model", ())
    return build_once(folder, kind, DEMO_KEY, lambda staging: _build_model(staging, str(python), training))


def prompt_rows() -> tuple[list[str], list[str]]:
    """Return the questions of the chats (`prompt`) with the modules that they are about (`ground_truth`), a JSON object
    each: to train on, and every tenth, held out."""
    questions = [json.loads(chat)["messages"][0] for chat in read_rows("chats").splitlines()]
    rows = [
        json.dumps({"prompt": [question], "ground_truth": module[1]})
        for question in questions
        if (module := re.search(r"`(\w+)", question["content"]))
    ]
    return [row for number, row in enumerate(rows) if number % _HELD_OUT], rows[::_HELD_OUT]


def read_rows(kind: str) -> bytes:
    """Return the rows of `ensure_rows`, one JSON object a line in ASCII."""
    if kind == "prompts":
        return "".join(f"{row}\n" for row in prompt_rows()[0]).encode()
    return gzip.decompress((Path(__file__).parent / f"{kind}.jsonl.gz").read_bytes())


def _write_rows(folder: Path, kind: str) -> dict[str, Any]:
    content = read_rows(kind)
    (folder / "train.jsonl").write_bytes(content)
    return {"rows": content.count(b"\n")}


def _build_model(folder: Path, python: str, training: Sequence[str]) -> dict[str, Any]:
    """Build the model in `folder`, and with the arguments `training` of TRL's SFT script train it there."""
    with tempfile.TemporaryDirectory(prefix="demo-chats-") as chats:
        _write_rows(Path(chats), "chats")
        script, data = Path(__file__).with_name("make_model.py"), str(Path(chats, "train.jsonl"))
        done = _run(python, str(script), "--chats", data, "--out", str(folder), "--seed", str(SEED))
        if training:
            model = ("--model_name_or_path", str(folder), "--output_dir", str(folder), "--seed", str(SEED))
            _run(python, "-m", *training, "--dataset_name", chats, *model)
    facts: dict[str, Any] = json.loads(done.splitlines()[-1])
    facts.pop("schema_version", None)
    return facts


def _run(python: str, *arguments: str) -> str:
    """Run a program that builds the model, in one thread as accelerate starts a rank; return what it prints."""
    command, where = [python, *arguments], f"python={python}"
    try:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        done = run_command(command, timeout=MODEL_TIMEOUT, env=environment)
    except OSError as error:
        message = f"the trainer's interpreter cannot be started: {error.strerror or error}"
        cure = "set python to the interpreter that has the trainer's packages"
        raise refusal("demo_python_not_started", message, where, cure) from error
    except subprocess.TimeoutExpired as error:
        message = f"building the demo's model did not finish within {MODEL_TIMEOUT:.0f} s"
        cure = f"run it by hand to see where it hangs: {' '.join(command)}"
        raise refusal("demo_model_failed", message, where, cure) from error
    last_line = failure_reason(done)
    if done.returncode == EXIT_MISSING_PACKAGE:
        message = f"the trainer's interpreter has no package '{last_line}'"
        cure = f"install it there: `pip install {requirement('train')}`, or set python to another interpreter"
        raise refusal("demo_packages_missing", message, where, cure)
    if done.returncode != 0:
        message = f"building the demo's model failed with exit code {done.returncode}: {last_line}"
        cure = "its torch and transformers may be incompatible: try to import them with that interpreter"
        raise refusal("demo_model_failed", message, where, cure)
    return done.stdout.strip()
