"""Faults that a guard ends: real processes, the real supervisor and worker, a small trainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.config.guards import (
    DeadRankLimits,
    DivergenceLimits,
    GradNormLimits,
    GuardsConfig,
    MemoryCreepLimits,
    StallLimits,
    ThroughputLimits,
)
from launch.config.schema import Family
from launch.execution.facts import GuardContext
from launch.execution.record.checkpoints import Layout
from launch.execution.supervise.watch import WatchConfig
from tests.integration.faults import run

pytestmark = pytest.mark.slow
# what TRL leaves of a checkpoint, as small files that are whole
SAVE = """
import torch
from safetensors.torch import save_file
def save(number):
    folder = f"model/checkpoint-{number}"
    os.makedirs(folder)
    save_file({"w": torch.zeros(4)}, f"{folder}/model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({"x": torch.zeros(2)}, f"{folder}/{name}")
    json.dump({}, open(f"{folder}/config.json", "w"))
    json.dump({"global_step": number}, open(f"{folder}/trainer_state.json", "w"))
"""


def watched(
    home: Path, guards: GuardsConfig | None = None, every: int | None = None
) -> WatchConfig:
    layout = Layout(Family.trl, world_size=1, zero_stage=None)
    context = GuardContext(checkpoint_every=every, total_steps=100)
    return WatchConfig(
        guards=guards or GuardsConfig(), guard_context=context, output=home / "model", layout=layout
    )


def test_loss_is_nan(tmp_path: Path) -> None:
    body = """
    for number in range(1, 100):
        if number == 6: fault()
        step(number, loss=float("nan") if number >= 6 else 2.0)
        time.sleep(0.3 if number < 6 else 600)
        if number in (3, 5, 6): save(number)
    """
    finished = run(tmp_path, body, "loss is NaN", before_body=SAVE, watch_config=watched(tmp_path))
    failed = json.loads((finished.folder.path / "FAILED").read_text())
    assert (failed["exit_code"], failed["guard"]["id"]) == (3, "non_finite")
    assert failed["guard"]["numbers"]["last_good_step"] == 5
    # checkpoint-5 was written after step 5's loss: only step 6, which is bad, was computed with its
    # weights
    assert failed["checkpoint"].endswith("checkpoint-3")
    assert "written after the last known good step: checkpoint-5" in finished.shown
    assert not (tmp_path / "model" / "checkpoint-6").exists()


GUARDED = {
    "gradient norm is infinite": (
        GuardsConfig(),
        """
    for number in range(1, 100_000):
        if number == 4: fault()
        step(number, grad_norm=float("inf") if number == 4 else 0.5)
        time.sleep(0.1)
    """,
    ),
    "loss diverges": (
        GuardsConfig(divergence=DivergenceLimits(window=5)),
        """
    for number in range(1, 100_000):
        if number == 40: fault()
        step(number, loss=2.0 if number < 40 else 9.0)
        time.sleep(0.05)
    """,
    ),
    "gradient norm explodes": (
        GuardsConfig(grad_norm=GradNormLimits(steps=3)),
        """
    for number in range(1, 100_000):
        if number == 30: fault()
        step(number, grad_norm=0.8 if number < 30 else 4000.0)
        time.sleep(0.05)
    """,
    ),
    "GPU memory creeps up": (
        GuardsConfig(memory_creep=MemoryCreepLimits(window=10, windows=4)),
        """
    for number in range(1, 100_000):
        if number == 10: fault()
        step(number, memory_gib=40.0 + 0.4 * number)
        time.sleep(0.02)
    """,
    ),
    "throughput collapses": (
        GuardsConfig(throughput=ThroughputLimits(steps=10, seconds=1)),
        """
    for number in range(1, 100_000):
        if number == 40: fault()
        step(number, tokens_per_second=28000.0 if number < 40 else 900.0)
        time.sleep(0.05)
    """,
    ),
    "a rank is stopped while it imports": (
        GuardsConfig(stall=StallLimits(importing=2)),
        """
    fault()
    os.kill(os.getpid(), signal.SIGSTOP)
    """,
    ),
}


@pytest.mark.parametrize("row", GUARDED)
def test_a_guard_ends_the_run(row: str, tmp_path: Path) -> None:
    guards, body = GUARDED[row]
    run(tmp_path, body, row, guards=guards)


@pytest.mark.thorough
def test_nan_in_the_last_steps_of_a_fast_run(tmp_path: Path) -> None:
    body = """
    fault()
    for number in range(1, 4):
        step(number, loss=float("nan"))
    """
    finished = run(tmp_path, body, "loss is NaN and the run ends at once")
    assert not (finished.folder.path / "DONE").exists()


def test_a_rank_that_hangs(tmp_path: Path) -> None:
    body = """
    dist = group(600)
    import torch
    def data_loader_that_never_returns():
        time.sleep(600)
    for number in range(1, 100):
        if RANK == 1 and number == 3:
            fault()
            data_loader_that_never_returns()
        dist.all_reduce(torch.ones(1))
        if RANK == 0: step(number)
    """
    guards = GuardsConfig(stall=StallLimits(training=3, factor=1))
    finished = run(
        tmp_path, body, "a rank hangs, the others wait in a collective", ranks=2, guards=guards
    )
    stacks = finished.folder.path / "stacks"
    if "could not be inspected" in finished.shown:
        pytest.skip("py-spy may not look into other processes here")
    assert "data_loader_that_never_returns" in (stacks / "rank-1.txt").read_text()
    assert "rank 1 is in data_loader_that_never_returns (trainer.py:" in finished.shown
    assert "rank 0 waits in all_reduce (torch/distributed/distributed_c10d.py:" in finished.shown
    assert "from <module> (trainer.py:" in finished.shown


@pytest.mark.thorough
def test_a_rank_that_leaves_silently(tmp_path: Path) -> None:
    body = """
    event("phase", phase="training")
    if RANK == 1:
        fault()
        os._exit(0)
    time.sleep(600)  # as in NCCL, which does not notice; gloo would
    """
    guards = GuardsConfig(dead_rank=DeadRankLimits(silent=3))
    run(tmp_path, body, "a rank exits with status 0 while others wait", ranks=2, guards=guards)


@pytest.mark.thorough
def test_a_failed_rank_that_does_not_end(tmp_path: Path) -> None:
    """As under DeepSpeed, whose engine was measured to keep a failed rank alive for 66 s."""
    body = """
    import atexit
    event("phase", phase="training")
    open(f"rank-{RANK}-trains", "w").close()
    if RANK == 1:
        atexit.register(time.sleep, 600)
        while not os.path.exists("rank-0-trains"): time.sleep(0.02)
        fault()
        raise RuntimeError("shapes do not match")
    time.sleep(600)
    """
    guards = GuardsConfig(dead_rank=DeadRankLimits(after_error=3))
    finished = run(tmp_path, body, "a rank fails and does not end", ranks=2, guards=guards)
    failed = json.loads((finished.folder.path / "FAILED").read_text())
    assert (failed["exit_code"], failed["guard"]["id"]) == (1, "dead_rank")


def test_allow_lets_a_run_go_on(tmp_path: Path) -> None:
    body = """
    for number in range(1, 10):
        step(number, loss=float("inf"))
        time.sleep(0.1)
    """
    finished = run(
        tmp_path, body, None, watch_config=WatchConfig(guards=GuardsConfig(), allow=["non_finite"])
    )
    assert finished.outcome.exit_code == 0
    assert "warning: the loss is inf at step 1" in finished.shown
    events = (finished.folder.path / "events.jsonl").read_text().splitlines()
    (told,) = [event for event in map(json.loads, events) if event["kind"] == "guard"]
    assert (told["id"], told["stop"]) == ("non_finite", False)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("a small tmpfs needs root")
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)], check=False
    ).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_the_next_checkpoint_will_not_fit(tmp_path: Path, small_disk: Path) -> None:
    body = f"""
    fault()
    for number in range(1, 200):
        step(number)
        time.sleep(0.1 if number < 50 else 5)
        if number == 100: open("{small_disk}/model/too-much", "wb").write(b"x" * 2**24)
    """
    small = watched(small_disk, every=100)
    watch_config = WatchConfig(
        small.guards,
        guard_context=small.guard_context,
        output=small.output,
        layout=small.layout,
        checkpoint_bytes=2**24,
    )
    (small_disk / "model").mkdir()
    run(tmp_path, body, "the next checkpoint will not fit", watch_config=watch_config)
    assert not (small_disk / "model" / "too-much").exists()


@pytest.mark.thorough
def test_the_disk_is_full(tmp_path: Path, small_disk: Path) -> None:
    body = f"""
    import torch
    step(1)
    fault()
    torch.save(torch.zeros(2**23), "{small_disk}/checkpoint.pt")
    """
    run(tmp_path, body, "the disk is full")
