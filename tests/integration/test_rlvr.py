"""RLVR on CPUs, real processes: alone, on two ranks, with ZeRO and an adapter; killed and resumed; useless rewards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launch.errors import EXIT_REFUSED, EXIT_STOPPED
from tests.integration.demo_kit import give_demo

pytestmark = pytest.mark.slow

# the untrained model: its answers never end, which the sampling proof would refuse
SMALL = (
    *("stage=demo_rlvr", "model=demo", "allow=[refuted_complete_answers]", "report=false", "recipe.max_steps=4"),
    *("recipe.prompts_per_step=4", "recipe.samples_per_prompt=4", "recipe.per_device_batch_size=4"),
    *("recipe.response_length=8", "flags.mask_truncated_completions=false"),
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return give_demo(tmp_path_factory, tmp_path_factory.mktemp("rlvr"))


def start(home: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "launch", "run", *SMALL, *words]
    log = (home / "launch.log").open("w")
    return subprocess.Popen(command, cwd=home, stdout=log, stderr=subprocess.STDOUT, text=True)


def finish(home: Path, *words: str) -> tuple[int, str]:
    code = start(home, *words).wait(timeout=500)
    return code, (home / "launch.log").read_text()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("alone", ("recipe.kl_beta=0.05",)),
        ("ranks", ("processes=2",)),
        ("zero2", ("processes=2", "parallel=zero2")),
        ("adapter", ("recipe.lora.rank=4",)),
        ("adapter-bf16", ("recipe.lora.rank=4", "recipe.precision=bf16")),  # samples outside autocast
    ],
)
def test_it_trains_and_records(home: Path, name: str, words: tuple[str, ...]) -> None:
    code, output = finish(home, f"name={name}", *words)
    assert code == 0, output
    folder = home / "runs" / "demo_rlvr" / name
    steps = lines(folder / "metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    recorded = {
        "reward",
        "reward_std",
        "rewards/names_a_module/mean",
        "frac_reward_zero_std",
        "entropy",
        "verifier_failures",
    }
    recorded |= {"completions/mean_length", "completions/clipped_ratio", "generation_seconds", "verifier_seconds"}
    assert recorded <= steps[0].keys()
    assert ("kl" in steps[0]) == ("recipe.kl_beta=0.05" in words)
    events = lines(folder / "events.jsonl")
    completions = [event for event in events if event["kind"] == "completion"]
    assert sorted({event["step"] for event in completions}) == [0, 2, 3]
    evidence = {event["what"]: event for event in events if event["kind"] == "evidence"}
    assert evidence["global_batch"]["verdict"] == "proven"


def test_a_killed_run_goes_on_with_the_same_samples(home: Path) -> None:
    words = ("recipe.checkpoint_steps=2",)
    code, output = finish(home, "name=whole", *words)
    assert code == 0, output
    folder = home / "runs" / "demo_rlvr" / "killed"
    process, end = start(home, "name=killed", *words), time.monotonic() + 300
    while len(lines(folder / "metrics.jsonl")) < 3:
        assert process.poll() is None and time.monotonic() < end, (home / "launch.log").read_text()
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    code, output = finish(home, "name=killed", *words)
    assert code == 0, output
    same = ("reward", "completions/mean_length", "entropy", "grad_norm")
    whole, resumed = (lines(folder.with_name(name) / "metrics.jsonl")[-1] for name in ("whole", "killed"))
    assert {name: whole[name] for name in same} == pytest.approx({name: resumed[name] for name in same}, rel=1e-6)


@pytest.mark.parametrize(
    ("function", "code", "id"),
    [
        ("def f(completions, **_): return [0.0]", EXIT_REFUSED, "reward_proof"),
        ("def f(completions, **_): print('x'); return [1.0]", EXIT_REFUSED, "reward_proof"),
        # right in the proof; nothing that this model writes is ever a reference answer
        (
            "def f(completions, ground_truth, **_): return [float(completions[0][0]['content'] == ground_truth[0])]",
            EXIT_STOPPED,
            "refuted_reward_variance",
        ),
    ],
)
def test_a_reward_that_teaches_nothing_stops_before_it_trains(home: Path, function: str, code: int, id: str) -> None:
    own = home / "own.py"
    own.write_text(f"{function}\n", encoding="utf-8")
    ended, output = finish(home, "name=bad", "restart=true", f"recipe.verifier={own}:f")
    assert ended == code, output
    assert f"[{id}]" in output
    assert not lines(home / "runs" / "demo_rlvr" / "bad" / "metrics.jsonl")
