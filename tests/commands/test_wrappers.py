"""The batch scripts in scripts/: that they are what `submit` renders, without what is of one
machine.

`--update-golden` writes them.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from pathlib import Path

import pytest

from launch import resources
from launch.__main__ import main

ROOT = resources.ROOT
PYTHON = ".venv/bin/python"
# explains itself when the job is submitted from another folder
GUARD = (
    f"test -x {PYTHON} || {{ echo 'sbatch this from the clone, after ./scripts/setup' >&2; "
    f"exit 2; }}"
)
WRITER = "./scripts/test tests/commands/test_wrappers.py --update-golden"
# every node with eight GPUs has 32 CPUs, and not every one has 64
_CPUS = "cluster.cpus_per_rank=4"
# script -> the overrides of the `submit` that would render it
WRAPPERS: dict[str, tuple[str, ...]] = {
    "demo_2nodes": (
        "stage=demo",
        "trainer=trl_sft",
        "nodes=2",
        "recipe.max_steps=20",
        "name=2nodes",
        _CPUS,
    ),
    "sft_1node": ("stage=sft", "gpus=8", "name=1node", _CPUS),
    "sft_4nodes": ("stage=sft", "nodes=4", "gpus=8", "name=4nodes", _CPUS),
    "dpo_1node": ("stage=dpo", "gpus=8", "name=1node", _CPUS),
    "dpo_4nodes": ("stage=dpo", "nodes=4", "gpus=8", "name=4nodes", _CPUS),
    "dpo_after_sft": (
        "stage=dpo",
        "gpus=8",
        "model.path=runs/sft/4nodes/model",
        "name=after-sft-4nodes",
        _CPUS,
    ),
    "rm_1node": ("stage=rm", "gpus=8", "name=1node", _CPUS),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_is_what_submit_renders(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("OPEN_INSTRUCT_DIR", "LAUNCH_CONFIG_DIR"):
        monkeypatch.delenv(variable, raising=False)
    assert main(["submit", *WRAPPERS[name], "dry_run=true", "tokenize_first=false"]) == 0
    [rendered_by_submit] = (tmp_path / "runs" / ".jobs").glob("*/*/job.sbatch")
    rendered = rendered_by_submit.read_text(encoding="utf-8")
    # what is of this machine, this folder and this plan
    rendered = rendered.replace(sys.executable, PYTHON).replace("launch submit", WRITER)
    rendered = rendered.replace(f"={tmp_path}/", "=").replace(f" {tmp_path}/", " ")
    rendered = re.sub(r"^cd .*\n", "", rendered, flags=re.MULTILINE)
    rendered = re.sub(r"^#SBATCH --comment=launch:.*\n", "", rendered, flags=re.MULTILINE)
    rendered = rendered.replace(f"{tmp_path}/runs/", "runs/")
    rendered = re.sub(r"^(#SBATCH --output=).*", r"\1%x-%j.log", rendered, flags=re.MULTILINE)
    rendered = re.sub(r"^export LAUNCH_PLAN=\w+\n", f"{GUARD}\n", rendered, flags=re.MULTILINE)
    path = ROOT / "scripts" / f"{name}.sbatch"
    if request.config.getoption("--update-golden"):
        path.write_text(rendered, encoding="utf-8")
        path.chmod(0o755)
    recorded = path.read_text(encoding="utf-8") if path.is_file() else ""
    diff = list(
        difflib.unified_diff(recorded.splitlines(), rendered.splitlines(), name, "now", lineterm="")
    )
    if diff:
        pytest.fail("\n".join([*diff, "", f"if the change is intended: {WRITER}"]), pytrace=False)
    assert os.access(path, os.X_OK)


def test_hold_nothing_of_a_machine() -> None:
    for path in [*(ROOT / "scripts").glob("*.sbatch"), ROOT / "scripts" / "sft_then_dpo"]:
        text = path.read_text(encoding="utf-8")
        assert str(ROOT) not in text and str(Path.home()) not in text and sys.prefix not in text
        assert not re.search(r"(?<![\w/!.>])/(?!bin/bash|usr/bin/env|dev/)[a-z]", text), path
    assert {path.stem for path in (ROOT / "scripts").glob("*.sbatch")} == set(WRAPPERS)
