"""What a shell offers, and how long it takes."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from launch.commands.shell_completion import candidates
from tests.paths import ROOT


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("launch ", ["plan", "run", "stage="]),
        ("launch pl", ["plan"]),
        ("launch plan stage=s", ["stage=sft", "stage=sft_10pct", "stage=sft_25pct"]),
        ("launch stage=de", ["stage=demo", "stage=demo_dpo"]),
        ("launch plan stage=sft recipe.pack", ["recipe.packing="]),
        (
            "launch plan stage=sft recipe.packing=",
            ["recipe.packing=bins", "recipe.packing=flatten", "recipe.packing=none"],
        ),
        ("launch plan stage=sft recipe.liger=", ["recipe.liger=false", "recipe.liger=true"]),
        ("launch run stage=dpo_10pct flags.mixer", ["flags.mixer_list="]),
        ("launch run stage=sft trainer=trl_sft flags.max_len", ["flags.max_length="]),
        ("launch flags trl", ["trl_dpo", "trl_sft"]),
        ("launch flags finetune learning", ["learning_rate"]),
        ("launch help ro", ["rollout"]),
        ("launch lint train", []),
        ("launch lint --", ["--help", "--json", "--trainer", "--upstream"]),
        ("launch logs gpu8 --fo", ["--follow"]),
        ("launch generate a temp", ["temperature="]),
        ("launch check stage=demo --", ["--cfg", "--help", "--json", "--rows"]),
        ("launch stage=demo --c", ["--cfg"]),
    ],
)
def test_candidates(line: str, some: list[str]) -> None:
    found = candidates(line)
    assert set(some) <= set(found) and all(
        word.startswith(line.rpartition(" ")[2]) for word in found
    )
    assert bool(found) == bool(some) and "node" not in found


def test_runs_and_the_users_own_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "sft" / "gpu8-1234"
    run.mkdir(parents=True)
    (run / "plan.json").write_text("{}")
    for verb in ("logs", "stop", "status"):
        assert candidates(f"launch {verb} ru") == ["runs="]
        assert candidates(f"launch {verb} sft/g") == ["sft/gpu8-1234"]
    stages = tmp_path / "mine" / "stage"
    stages.mkdir(parents=True)
    (stages / "chats.yaml").write_text("defaults:\n  - dpo # start\n")
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path / "mine"))
    assert candidates("launch plan stage=ch") == ["stage=chats"]
    assert "flags.mixer_list=" in candidates("launch plan stage=chats flags.")


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (
            "launch plan stage=sft recipe.packing=",
            "recipe.packing=bins recipe.packing=flatten recipe.packing=none",
        ),
        ("launch report x --o", "--output"),
        ("launch preview stage=demo --ht", "--html"),
    ],
)
def test_the_shell_gets_an_answer_at_once(line: str, answer: str, tmp_path: Path) -> None:
    environ = {
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "PYTHONPATH": str(ROOT),
        "PATH": "",
        "HOME": str(tmp_path),
    }

    def cpu_seconds(*arguments: str, expected: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, *arguments],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.stdout.split() == expected.split()
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # 0.3 s on a machine whose Python imports these in 0.05 s, and in proportion on a slower one
    imports = ("-c", "import argparse, inspect, logging, yaml")
    unit = min(cpu_seconds(*imports, expected="") for _ in range(3)) / 0.05
    shell = ("-m", "launch", "-sc", "query=bash")
    assert min(cpu_seconds(*shell, expected=answer) for _ in range(3)) < 0.3 * max(1.0, unit)
