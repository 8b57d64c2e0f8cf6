"""The same fraction gives TRL and open-instruct the same rows, in the same order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch.worker.trl_data import load
from tests.integration.tiny_stage import make_data

pytestmark = pytest.mark.slow

AMOUNTS = ("0.25", "0.1", "10", "1.0", "1.5", "100")
THEIRS = """
import json, sys
from open_instruct import dataset_transformation as data

rows = {}
for amount in sys.argv[2:]:
    [config] = data.load_dataset_configs([sys.argv[1], amount], ["train"], [], [], None)
    rows[amount] = config.dataset["messages"][:]
print("ROWS", json.dumps(rows))
"""


def rows_in(output: str) -> object:
    [line] = [line for line in output.splitlines() if line.startswith("ROWS ")]
    return json.loads(line.removeprefix("ROWS "))


@pytest.mark.thorough
def test_the_rows_are_the_same(tmp_path: Path, open_instruct: Path) -> None:
    pytest.importorskip("trl", reason="the `train` dependencies are not installed")
    chats, _ = make_data(tmp_path / "data")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(open_instruct)}
    command = [sys.executable, "-c", THEIRS, str(chats), *AMOUNTS]
    run = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    theirs = rows_in(run.stdout)
    assert isinstance(theirs, dict)
    for amount in AMOUNTS:
        args = SimpleNamespace(
            dataset_name=str(chats.parent),
            dataset_config=None,
            dataset_streaming=False,
            dataset_train_split="train",
        )
        ours = load(args, SimpleNamespace(datasets=[]), {"subset": amount})
        assert ours["train"]["messages"][:] == theirs[amount], amount
