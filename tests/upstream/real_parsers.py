"""The client of `parser_server.py`: the real parsers, each in a process for the whole test session,
with the imports of its libraries done.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from launch.upstream.trainers import ENTRIES, TRL
from tests.integration import warm
from tests.paths import ROOT
from tests.upstream.checkouts import checkout

HERE = Path(__file__).parent
SYNTHETIC = HERE / "synthetic_trainer"
# a gsutil that fails at once, where the real one would ask its servers for minutes
NO_CLOUD = ROOT / "tests" / "fixtures" / "no_cloud"


class RealParsers:
    """Sends requests to the real parsers, whose scripts are started on the first request for
    each.
    """

    def __init__(self) -> None:
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def query(self, trainer: str, **request: Any) -> Any:
        if trainer not in self.processes:
            self.processes[trainer] = self._start(trainer)
        process = self.processes[trainer]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        response = process.stdout.readline()
        if not response:
            raise AssertionError(f"the process of {trainer}'s parser ended with {process.wait()}")
        return json.loads(response)

    def close(self) -> None:
        for process in self.processes.values():
            process.communicate()

    @staticmethod
    def _start(trainer: str) -> subprocess.Popen[str]:
        entry, root = (
            ENTRIES.get(trainer, "script.py"),
            SYNTHETIC if trainer == "synthetic" else checkout(),
        )
        return subprocess.Popen(
            [
                sys.executable if trainer == "synthetic" else warm.python(),
                str(HERE / "parser_server.py"),
                entry,
                *([] if trainer in TRL else [str(root)]),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={
                **{key: os.environ[key] for key in os.environ if not key.startswith("BEAKER")},
                "HF_HUB_OFFLINE": "1",
                "TRANSFORMERS_OFFLINE": "1",
                "WANDB_MODE": "disabled",
                "CUDA_VISIBLE_DEVICES": "",
                "PATH": f"{NO_CLOUD}{os.pathsep}{os.environ['PATH']}",
            },
        )
