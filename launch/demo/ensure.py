"""Build the demo's chats, preference pairs and model where they are missing or outdated, once and
atomically.

A folder is built beside its destination, its marker (demo.json) is written last, and one rename
moves it into place. Of two concurrent builds, the one that finishes second keeps the result of the
first. There is no lock, because a lock left by a killed build would block the next one.

The rows are those of tasks.py, the same on every machine. The model is identical for one version of
the trainer's packages.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.demo import DEMO_KEY
from launch.demo.tasks import make_rows
from launch.digests import digest_folder, hash_file
from launch.errors import refusal
from launch.external import failure_reason, run_command
from launch.files import load_json, write_exact
from launch.resources import requirement
from launch.worker.json_codec import versioned

DEMO_MARKER = "demo.json"
# seconds; a build takes ten, so an older staging folder is from a killed build
ABANDONED_AFTER = 3600.0


@dataclass(frozen=True)
class BuiltFolder:
    """A complete folder."""

    facts: dict[str, Any]  # what `build` returned about its content
    built: bool  # False if it existed already


def build_once(
    folder: Path, kind: str, key: str, build: Callable[[Path], dict[str, Any]]
) -> BuiltFolder:
    """Ensure that `folder` contains what `build(empty folder)` creates for `key`, replacing one of
    another key.

    A folder is complete if its marker has this kind and key, and its files are those that were
    built: a changed one is built again.
    Raises UserError: demo_folder_taken (the folder was not built by this function), and whatever
    `build` raises.
    """
    facts = _read_current(folder, kind, key)
    if facts is not None:
        return BuiltFolder(facts, built=False)
    _refuse_foreign(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    staging = Path(
        tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".building", dir=folder.parent)
    )
    made = staging / folder.name
    made.mkdir()
    try:
        facts = build(made)
        marker = versioned({"kind": kind, "key": key, "facts": facts, "files": _digest_files(made)})
        write_exact(made / DEMO_MARKER, json.dumps(marker, indent=2) + "\n")
        while not _move_into_place(made, folder):
            existing = _read_current(folder, kind, key)
            if existing is not None:
                return BuiltFolder(existing, built=False)
            _refuse_foreign(folder)
            with contextlib.suppress(FileNotFoundError):  # another builder moved it first
                # at once, never seen half deleted
                folder.rename(Path(tempfile.mkdtemp(dir=staging)) / "stale")
        return BuiltFolder(facts, built=True)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _move_into_place(staging: Path, folder: Path) -> bool:
    try:
        staging.rename(folder)
    except OSError:
        if folder.exists():
            return False
        raise
    return True


def _refuse_foreign(folder: Path) -> None:
    """Raise unless `folder` is missing, empty or has a marker: replacing a folder deletes it."""
    is_own = folder.is_dir() and ((folder / DEMO_MARKER).is_file() or not any(folder.iterdir()))
    if folder.exists() and not is_own:
        message = (
            "the demo cannot be built in a folder that it did not create (there is no "
            f"{DEMO_MARKER})"
        )
        cure = "move the folder away, or choose another one"
        raise refusal("demo_folder_taken", message, str(folder), cure)


def _read_current(folder: Path, kind: str, key: str) -> dict[str, Any] | None:
    """Return the facts of a complete folder of this kind and key, otherwise None."""
    try:
        marker = load_json(folder / DEMO_MARKER)
        is_same = marker["kind"] == kind and marker["key"] == key
        if is_same and marker["files"] == _digest_files(folder):
            return dict(marker["facts"])
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _digest_files(folder: Path) -> dict[str, str]:
    """Return the digests of the files in `folder`, except the marker."""
    return digest_folder(folder, hash_file, DEMO_MARKER.__eq__)


def _remove_abandoned(folder: Path) -> None:
    for leftover in folder.parent.glob(f".{folder.name}.*.building"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime > ABANDONED_AFTER:
                shutil.rmtree(leftover, ignore_errors=True)


_SEED = 0
# seconds; usually ten, but importing torch from a cold network file system can take minutes
MODEL_TIMEOUT = 600.0
EXIT_MISSING_PACKAGE = 3  # make_model.py's
# with the numbers of the stage `demo`: where `demo_rlvr` starts without a run before it
_TRAINING = (
    *(
        "trl.scripts.sft",
        "--max_steps",
        "300",
        "--per_device_train_batch_size",
        "64",
        "--learning_rate",
        "2e-3",
    ),
    *(
        "--max_length",
        "1024",
        "--assistant_only_loss",
        "true",
        "--use_cpu",
        "true",
        "--bf16",
        "false",
    ),
    *("--gradient_checkpointing", "false", "--save_strategy", "no", "--report_to", "none"),
)


def ensure_rows(folder: Path, kind: str) -> BuiltFolder:
    """Ensure `folder`/train.jsonl with the demo's `chats` (one in `messages` per row),
    `preferences` (`chosen` and `rejected` messages), `labels` (`messages` and `label`) or `prompts`
    (`prompt` and `ground_truth`). The facts: its `rows`.

    Raises UserError: demo_folder_taken.
    """
    return build_once(folder, kind, DEMO_KEY, lambda staging: _write_rows(staging, kind))


def ensure_model(folder: Path, python: str | Path, *, trained: bool = False) -> BuiltFolder:
    """Ensure a seeded two-layer Llama with its tokenizer in `folder`, built by the trainer's
    interpreter `python`.

    `trained`: after a minute on the chats; before it no answer is right, so that nothing could be
    compared. The facts: `parameters`, and what else make_model.py prints.

    Raises UserError: demo_python_not_started, demo_packages_missing, demo_model_failed,
    demo_folder_taken.
    """
    kind, training = ("model trained by TRL", _TRAINING) if trained else ("model", ())
    return build_once(
        folder, kind, DEMO_KEY, lambda staging: _build_model(staging, str(python), training)
    )


def _write_rows(folder: Path, kind: str) -> dict[str, Any]:
    content = make_rows(kind)
    (folder / "train.jsonl").write_bytes(content)
    return {"rows": content.count(b"\n")}


def _build_model(folder: Path, python: str, training: Sequence[str]) -> dict[str, Any]:
    """Build the model in `folder`, and with the arguments `training` of TRL's SFT script train it
    there.
    """
    script = Path(__file__).with_name("make_model.py")
    done = _run(python, str(script), "--out", str(folder), "--seed", str(_SEED))
    if training:
        with tempfile.TemporaryDirectory(prefix="demo-chats-") as chats:
            _write_rows(Path(chats), "chats")
            model = (
                "--model_name_or_path",
                str(folder),
                "--output_dir",
                str(folder),
                "--seed",
                str(_SEED),
            )
            _run(python, "-m", *training, "--dataset_name", chats, *model)
    facts: dict[str, Any] = json.loads(done.splitlines()[-1])
    facts.pop("schema_version", None)
    return facts


def _run(python: str, *arguments: str) -> str:
    """Run a program that builds the model, in one thread as accelerate starts a rank; return what
    it prints.
    """
    command = [python, *arguments]
    where = f"python={python}"
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
        cure = (
            f"install it there: `pip install {requirement('train')}`, or set python to another "
            "interpreter"
        )
        raise refusal("demo_packages_missing", message, where, cure)
    if done.returncode != 0:
        message = f"building the demo's model failed with exit code {done.returncode}: {last_line}"
        cure = (
            "its torch and transformers may be incompatible: try to import them with that "
            "interpreter"
        )
        raise refusal("demo_model_failed", message, where, cure)
    return done.stdout.strip()
