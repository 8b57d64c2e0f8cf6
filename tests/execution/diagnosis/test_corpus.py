"""Holds the causes and cures to a corpus of real failures, each behind harmless lines that look
like other failures.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch.config.schema import Device, Mode
from launch.execution.diagnosis.advice import Situation
from launch.execution.diagnosis.causes import Cause, CauseFinder
from launch.execution.diagnosis.known import known
from launch.execution.diagnosis.tracebacks import printed_chain
from launch.execution.record.events import Event
from launch.planning.batch_split import Batch
from launch.planning.estimate.out_of_memory import RunSettings

CORPUS: list[dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("corpus.yaml").read_text(encoding="utf-8")
)
SITUATION = Situation(
    trainer="finetune",
    settings=RunSettings(
        batch=Batch(128, 8, 2, 8), mode=Mode.zero2, device=Device.cuda, max_seq_length=4096
    ),
    runs=Path("/data/runs"),
    cache=Path("/data/cache"),
    python="python",
)
# what healthy runs print: warnings, survived tracebacks, retries
NOISE = """\
`kernels` is not installed: No module named 'kernels'. Falling back to torch.
Could not load bitsandbytes native library: libcusparse.so.12: cannot open shared object file
[W820 socket.cpp:464] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).
/opt/env/torch/cuda/__init__.py:129: UserWarning: CUDA initialization: The NVIDIA driver on your system is too old
WARNING: ArrowInvalid while reading the cache, reading it again; No space left on device in /tmp, using /var/tmp
Traceback (most recent call last):
  File "/opt/env/lib/python3.11/site-packages/wandb/sdk/wandb_init.py", line 1000, in init
  File "/opt/env/lib/python3.11/site-packages/huggingface_hub/file_download.py", line 900, in get
huggingface_hub.errors.GatedRepoError: 401 Client Error: Cannot access gated repo
retrying in 1 s: CUDA out of memory was caught, the batch is halved once
Some weights are tied: lm_head. RuntimeError: DataLoader worker is slow (Too many open files is not the reason)
  2%|\u258f         | 14/703 [00:27<21:10,  1.86s/it]""".splitlines()
STEPS = [f"{{'loss': 1.5, 'step': {step}}}" for step in range(60)]


def table(code: int) -> list[str]:
    """What torch's elastic agent prints of rank 0."""
    head = ["Root Cause (first observed failure):", "[0]:", "  rank      : 0 (local_rank: 0)"]
    return [*head, f"  exitcode  : {code} (pid: 123)"]


def find(entry: dict[str, Any], *, by_event: bool) -> Cause:
    finder = CauseFinder([0])
    log = entry["log"].splitlines()
    finder.add_lines(0, [*NOISE, *STEPS, *log], 1.0)
    if by_event:
        chain = printed_chain(log)
        data = {
            "message": chain[-1].message,
            "type": chain[-1].type,
            "chain": [asdict(error) for error in chain],
        }
        finder.add_error(Event("error", 1.0, 0, data))
    elif "exit" in entry:
        finder.add_launcher_lines(table(entry["exit"]), 2.0)
    return finder.find_cause(1, SITUATION)


def hold(entry: dict[str, Any], cause: Cause) -> None:
    assert entry["cause"] in cause.line
    assert (cause.cure and cause.cure.id) == entry["cure"], cause
    if cause.cure is not None:
        assert cause.cure.text.startswith("possibly: ") == entry.get("possibly", False), (
            cause.cure.text
        )
        assert entry.get("text", "") in cause.cure.text


@pytest.mark.parametrize("entry", CORPUS, ids=[entry["source"] for entry in CORPUS])
def test_the_cause_and_its_cure_are_found_behind_noise(entry: dict[str, Any]) -> None:
    hold(entry, find(entry, by_event=False))
    if "Traceback" in entry["log"]:
        hold(entry, find(entry, by_event=True))


def test_the_corpus_covers_every_known_cause() -> None:
    assert len(CORPUS) >= 60
    covered = {entry["cure"] for entry in CORPUS}
    assert {cause.id for cause in known().causes} - covered <= {"nccl_timeout", "loader_killed"}


@pytest.mark.parametrize("code", [-9, -11, 1, 7])
def test_noise_alone_has_no_cure_but_that_of_the_signal(code: int) -> None:
    finder = CauseFinder([0])
    finder.add_lines(0, [*NOISE, *STEPS, "  3%|x  | 21/703 [00:41<21:10,  1.86s/it]"], 1.0)
    finder.add_launcher_lines(table(code), 2.0)
    cause = finder.find_cause(1, SITUATION)
    assert cause.line.startswith("rank 0 ") and "%|" not in cause.line
    assert (cause.cure.id if cause.cure else None) == ("killed" if code == -9 else None)
