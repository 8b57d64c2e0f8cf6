"""What the evidence of a run costs on this machine: `python benchmarks/weight_checks.py [GIB]`.

Prints the seconds per GiB of weights of a checksum, of the check of what was saved and of the
digest in DONE. A run pays three checksums, one check and one digest. Of what every step pays it
prints the microseconds: the samples of the weights and of the gradients, and the comparison of the
optimizer's rates with the schedule. The step beside it is a forward and a backward pass of 1,024
tokens through the same weights, without attention, and without an update.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import save_file

from launch.planning.digest_cache import DigestCache
from launch.worker.evidence.optimizer import RateCheck, StepCount, transformers_rates
from launch.worker.evidence.saved_model import check_saved
from launch.worker.evidence.trainer_objects import TrainerObjects
from launch.worker.evidence.updates import PATIENCE, Updates

LAYERS, TENSORS = 32, 9  # of Llama 3.1 8B
TOKENS = 1024  # of a step
STEPS = 1000  # of the run


def build_model(gib: float, device: str) -> torch.nn.Module:
    """Return as many bf16 tensors as an 8b model has, of one size."""
    width = int((gib * 2**30 / 2 / (LAYERS * TENSORS)) ** 0.5)
    layers = [
        torch.nn.Linear(width, width, bias=False, dtype=torch.bfloat16)
        for _ in range(LAYERS * TENSORS)
    ]
    return torch.nn.ModuleList(layers).to(device)


def seconds(call: Callable[[], object], device: str, times: int = 3) -> float:
    """Return the median duration of a call; on a CPU its processor time, which other work on the
    machine leaves.
    """
    clock = time.perf_counter if device == "cuda" else time.process_time
    taken = []
    for _ in range(times):
        began = clock()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(clock() - began)
    return sorted(taken)[times // 2]


def main() -> None:
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        torch.set_num_threads(1)
    model = build_model(gib, device)
    named = dict(model.named_parameters())
    gib = sum(p.numel() * p.element_size() for p in named.values()) / 2**30
    optimizer = SimpleNamespace(
        param_groups=[{"params": list(named.values()), "lr": 1e-5, "weight_decay": 0.0}]
    )
    for parameter in named.values():
        parameter.grad = torch.ones_like(parameter)
    updates = Updates(TrainerObjects(None, model=model, optimizer=optimizer, step=0))
    requested = {"learning_rate": "1e-5", "lr_scheduler": "linear", "warmup_ratio": "0.03"}
    count = StepCount(STEPS)
    rates = RateCheck(requested, transformers_rates, count)
    due = transformers_rates("linear", 1e-5, 0.03, count)
    steps = iter(range(STEPS))

    def follow_step() -> None:
        updates.note_gradients()
        updates.after_step()

    def compare_rates() -> None:
        done = next(steps)
        rate = due(done)
        if any(finding.verdict != "proven" for finding in rates.step(done, [rate, rate])):
            raise RuntimeError("the rate of the schedule itself is refuted")

    width = next(iter(named.values())).shape[0]
    inputs = torch.randn(TOKENS, width, dtype=torch.bfloat16, device=device)

    def train_step() -> None:
        hidden = inputs
        for layer in model:
            hidden = torch.tanh(layer(hidden))
        hidden.float().mean().backward()

    for _ in range(PATIENCE + 1):  # afterwards the first update is judged
        follow_step()
    print(f"{device}, {torch.get_num_threads()} threads, {gib:.2f} GiB in {len(named)} tensors")
    print(f"checksum of every weight  {seconds(updates._checksums, device) / gib:.3f} s/GiB")
    samples = seconds(follow_step, device, 9)
    compared = seconds(compare_rates, device, 99)
    step = seconds(train_step, device)
    share = (samples + compared) / step
    print(f"samples of a step         {samples * 1e6:,.0f} us")
    print(f"rates of a step           {compared * 1e6:,.0f} us")
    print(f"a step of {TOKENS:,} tokens    {step * 1e6:,.0f} us, of which both are {share:.3%}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        save_file({name: p.detach().cpu() for name, p in named.items()}, file)
        check = seconds(lambda: check_saved(Path(folder), model, None), device)
        print(f"check of the saved files  {check / gib:.3f} s/GiB")
        digest = seconds(lambda: DigestCache(Path(folder) / "none.json").of(file), device)
        print(f"digest of the saved files {digest / gib:.3f} s/GiB")


if __name__ == "__main__":
    main()
