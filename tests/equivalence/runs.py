"""Runs the old scripts, and `launch` on the same rows at the same width, and compares what they
trained.

The old scripts are those of the checkout's history. They are unpacked from git for a test and never
kept.
"""

from __future__ import annotations

import io
import json
import math
import os
import random
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT

# the parent of bb98dbcac, which removed --reduce_loss
BEFORE_1024 = "1b695caf94e7223fccbc457f1940398562d342dd"
RELEASE = "30d11b4fb9e363f32214e484aeac86ded419a9ef"  # of 2024-11-20: it added docs/tulu3.md
STEPS = 10
GLOBAL = 4
_SITE = Path(__file__).parent / "site"
_SECONDS = 900
_OLD_STAND_INS = (
    *(
        "transformers_cache",
        "litellm",
        "matplotlib",
        "token_ids",
        "gpu_memory",
        "registered_models",
    ),
    "old_accelerator",
)
BOTH = ("fp32", "record")
BF16 = ("record",)


def unpack(checkout: Path, commit: str, folder: Path) -> Path:
    """Unpack the Python files of a commit into `folder`; skips the test where the checkout's
    history lacks it.
    """
    git = ["git", "-C", str(checkout), "archive", commit, ":(glob)open_instruct/**/*.py"]
    done = subprocess.run(git, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(
            f"the checkout has no history with {commit[:9]}: fetch it whole (git fetch --unshallow)"
        )
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@dataclass(frozen=True)
class Kit:
    """What both sides of a comparison start from."""

    source: Path  # of the commit before #1024
    model: Path
    chats: Path
    pairs: Path


@dataclass(frozen=True)
class Trained:
    """A finished training: the model that it left, and what each rank recorded."""

    model: Path
    records: Path

    @cached_property
    def lines(self) -> list[list[dict[str, Any]]]:
        """What each rank recorded."""
        files = sorted(self.records.glob("rank-*.jsonl"))
        return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]

    @property
    def batches(self) -> list[list[Any]]:
        """The micro batches of each rank, in order: token ids, labels, masks."""
        return [[line["batch"] for line in rank if "batch" in line] for rank in self.lines]

    @property
    def rates(self) -> list[list[float]]:
        """The learning rates of each step."""
        return [line["rates"] for line in self.lines[0] if "rates" in line]

    @property
    def norms(self) -> list[float]:
        """The norm of the gradient of each step, once it was clipped."""
        return [line["norm"] for line in self.lines[0] if "norm" in line]

    def samples(self, step: int) -> list[list[int]]:
        """The token ids of a step's samples over all ranks, without padding, sorted."""
        found: list[list[int]] = []
        for rank in self.batches:
            size = len(rank) // STEPS
            for batch in rank[step * size : (step + 1) * size]:
                found += _split(batch)
        return sorted(found)

    @cached_property
    def weights(self) -> dict[str, Any]:
        from safetensors.torch import load_file

        return {
            name: tensor.double()
            for name, tensor in load_file(self.model / "model.safetensors").items()
        }


def _split(batch: dict[str, Any]) -> list[list[int]]:
    """Return the samples of a micro batch: of a padded one by its mask, of a packed one by its
    positions.
    """
    rows: list[list[int]] = batch["input_ids"]
    masks: Any = batch.get("attention_mask")
    positions: Any = batch.get("position_ids")
    if masks is not None and len(masks[0]) == len(rows[0]):
        return [
            [token for token, seen in zip(row, mask, strict=True) if seen]
            for row, mask in zip(rows, masks, strict=True)
        ]
    starts = [place for place, position in enumerate(positions[0]) if position == 0]
    return [
        rows[0][start:end] for start, end in zip(starts, [*starts[1:], len(rows[0])], strict=True)
    ]


def distance(left: Trained, right: Trained, start: Path) -> float:
    """Return the distance of two models as a fraction of the update of the first. `start`: what
    both began with.
    """
    begun = Trained(start, start).weights
    assert left.weights.keys() == right.weights.keys()
    apart = sum(
        float((left.weights[name] - right.weights[name]).square().sum()) for name in left.weights
    )
    moved = sum(
        float((left.weights[name] - begun[name]).square().sum())
        for name in left.weights
        if name in begun
    )
    assert moved > 0
    return math.sqrt(apart / moved)


Measure = Callable[..., float]  # of two trained models, and the figure's name


def _environment(folder: Path, stand_ins: Sequence[str], *paths: Path) -> dict[str, str]:
    """Return the variables of a run, without those that a surrounding launcher set."""
    records = folder / "records"
    records.mkdir(parents=True)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    }
    return {
        **inherited,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join(map(str, (_SITE, *paths))),
        "EQUIVALENCE_STAND_INS": ",".join(stand_ins),
        "EQUIVALENCE_RECORD": str(records),
    }


def _run(command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, (
        f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    )


def train_old(
    folder: Path,
    source: Path,
    script: str,
    flags: Sequence[str],
    *,
    ranks: int = 2,
    stand_ins: Sequence[str] = BOTH,
) -> Trained:
    """Train with an old script, whose flags name the output `out`."""
    environment = _environment(folder, (*_OLD_STAND_INS, *stand_ins), source)
    launcher = ["--cpu"] if ranks == 1 else ["--multi_gpu"]
    if ranks > 1:
        environment["ACCELERATE_USE_CPU"] = "true"  # accelerate's --cpu starts one process only
    command = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        *launcher,
        "--num_processes",
        str(ranks),
    ]
    command += [
        "--num_machines",
        "1",
        "--main_process_port",
        "0",
        "--mixed_precision",
        "bf16",
        "--dynamo_backend",
        "no",
    ]
    _run([*command, str(source / "open_instruct" / script), *flags], folder, environment)
    [config] = (folder / "out").rglob("config.json")
    return Trained(config.parent, folder / "records")


def train_launch(
    folder: Path,
    overrides: Sequence[str],
    *,
    ranks: int = 2,
    stand_ins: Sequence[str] = BOTH,
) -> Trained:
    """Train a stage of `launch` on the CPU, with the pinned script."""
    environment = _environment(folder, stand_ins, ROOT)
    own = (
        "device=cpu",
        f"processes={ranks}",
        "name=run",
        "report=false",
        f"recipe.global_batch_size={GLOBAL}",
    )
    allow = "allow=[refuted_dtype]" if "fp32" in stand_ins else "allow=[]"
    _run(
        [sys.executable, "-P", "-m", "launch", "run", *overrides, *own, allow], folder, environment
    )
    [config] = folder.glob("runs/*/run/model/**/config.json")
    return Trained(config.parent, folder / "records")


def write_rows(folder: Path) -> tuple[Path, Path]:
    """Write chats and pairs of very different lengths, some beyond the longest sample; seeded."""
    draw = random.Random(48)

    def turn(role: str, words: int) -> dict[str, str]:
        return {"role": role, "content": " ".join(str(draw.randrange(100)) for _ in range(words))}

    def length(mean: float) -> int:
        return max(1, int(draw.lognormvariate(mean, 1.2)))

    chats = []
    for number in range(90):
        messages = [turn("user", 3), turn("assistant", length(2.5))]
        messages += [turn("user", 2), turn("assistant", length(2))] if number % 4 == 0 else []
        chats.append({"messages": messages})
    pairs = []
    for _ in range(STEPS * GLOBAL):
        question = turn("user", 3)
        pairs.append(
            {side: [question, turn("assistant", length(2))] for side in ("chosen", "rejected")}
        )
    paths = []
    for name, rows in (("chats", chats), ("pairs", pairs)):
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        paths.append(path)
    return paths[0], paths[1]
