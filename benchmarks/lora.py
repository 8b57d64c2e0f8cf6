"""Full training, LoRA and QLoRA of the 8b shape on one GPU: tokens/s, memory, and what the evidence
says of each.

    python benchmarks/make_inputs.py FOLDER --shapes 8b
    python benchmarks/lora.py --inputs FOLDER --out FILE.json [--minutes 8] [--rounds 1] [--settings NAME ...]

Every setting trains the same 32 samples a step, packed (flatten), without activation checkpointing.
It is one `python -m launch rollout` at its width: the real trainer, ended after its steps, without
saving. Settings are taken in order, all of them again in each round, and each has its own time
limit; the file is written after each, so that --minutes cuts off the last ones only. Called again,
it goes on with the rest. A setting that failed is in the file with its cause.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "trl",
    "peft",
    "liger-kernel",
    "flash-attn",
    "bitsandbytes",
)
BATCH = 32  # samples of an optimizer step
WARM_UP = 2  # steps that the figures leave out
LIMIT = 110.0  # seconds of one setting
LORA = ("recipe.lora.rank=16", "recipe.learning_rate=2e-4")
TRL_FLASH = ("trainer=trl_sft", "recipe.attention=flash_2")

SETTINGS: dict[str, tuple[str, ...]] = {
    "full-finetune-liger": (
        "trainer=finetune",
        "recipe.liger=true",
        "recipe.per_device_batch_size=16",
    ),
    "lora-trl-flash-liger": (
        *TRL_FLASH,
        *LORA,
        "recipe.per_device_batch_size=8",
        "recipe.liger=true",
    ),
    "lora-trl-flash-liger-16": (
        *TRL_FLASH,
        *LORA,
        "recipe.per_device_batch_size=16",
        "recipe.liger=true",
    ),
    "lora-trl-flash-liger-32": (
        *TRL_FLASH,
        *LORA,
        "recipe.per_device_batch_size=32",
        "recipe.liger=true",
    ),
    "nf4-trl-flash-2048": (
        *(*TRL_FLASH, *LORA, "recipe.per_device_batch_size=1", "recipe.lora.quantize=nf4"),
        "recipe.max_seq_length=2048",
    ),
    "lora-trl-flash": (*TRL_FLASH, *LORA, "recipe.per_device_batch_size=8"),
    "lora-finetune-liger": (
        "trainer=finetune",
        *LORA,
        "recipe.liger=true",
        "recipe.per_device_batch_size=8",
    ),
    "lora-trl-sdpa": (
        "trainer=trl_sft",
        "recipe.attention=sdpa",
        *LORA,
        "recipe.per_device_batch_size=8",
    ),
}


def overrides(setting: str, inputs: Path, data: Path, runs: Path, steps: int) -> list[str]:
    """Return the overrides of one setting."""
    return [
        *("stage=sft", "gpus=1", f"steps={steps}", f"runs={runs}", "name=lora"),
        *(f"model.path={inputs / '8b'}", f"data.mix=[{{name:{data}}}]"),
        *(f"recipe.global_batch_size={BATCH}", "recipe.packing=flatten"),
        *("recipe.gradient_checkpointing=false", "recipe.max_steps=40", "recipe.warmup_ratio=0"),
        "allow=[gpus_busy,loss_falls,memory_room,padding,throughput_steady]",
        *(
            key
            for key in ("recipe.max_seq_length=4096",)
            if not any("max_seq" in own for own in SETTINGS[setting])
        ),
        *SETTINGS[setting],
    ]


def measure(setting: str, argv: list[str], runs: Path, limit: float) -> dict[str, Any]:
    """Run one setting and read its run folder."""
    command = [sys.executable, "-m", "launch", "rollout", *argv]
    began = time.monotonic()
    with (runs.parent / f"{setting}.log").open("w") as log:
        try:
            code = subprocess.run(
                command, check=False, stdout=log, stderr=log, timeout=limit
            ).returncode
        except subprocess.TimeoutExpired:
            code = 124
    result: dict[str, Any] = {
        "setting": setting,
        "overrides": list(SETTINGS[setting]),
        "exit_code": code,
    }
    result["wall_seconds"] = round(time.monotonic() - began, 1)
    if code:
        result["last_lines"] = (
            (runs.parent / f"{setting}.log").read_text(errors="replace").splitlines()[-12:]
        )
    for path in runs.glob("*/*/*/metrics.jsonl"):
        result |= read_steps([json.loads(line) for line in path.read_text().splitlines()])
        evidence = path.parent / "evidence.json"
        if evidence.is_file():
            items = json.loads(evidence.read_text()).get("items", [])
            result["evidence"] = {item["what"]: item.get("found") for item in items}
    return result


def read_steps(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of a run's logged steps."""
    timed = [step for step in steps[WARM_UP:] if step.get("seconds") and step.get("tokens")]
    if not timed:
        return {"steps": len(steps)}
    return {
        "steps": len(steps),
        "tokens_per_second": round(
            sum(s["tokens"] for s in timed) / sum(s["seconds"] for s in timed)
        ),
        "step_seconds": round(statistics.median(step["seconds"] for step in timed), 3),
        "tokens_a_step": round(statistics.fmean(step["tokens"] for step in timed)),
        "memory_gib": max(step.get("memory_gib", 0.0) for step in steps),
        "memory_reserved_gib": max(step.get("memory_reserved_gib", 0.0) for step in steps),
        "losses": [round(step["loss"], 4) for step in steps if step.get("loss") is not None],
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages; one that is only a folder on the path has none."""
    known = {}
    for name in PACKAGES:
        try:
            known[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            known[name] = "unknown"
    return known


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--inputs", type=Path, required=True, help="the folder that make_inputs.py wrote"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    import torch

    home = Path(tempfile.mkdtemp(prefix="lora-"))
    data = home / "data" / "train.jsonl"  # TRL takes a split from the file's name
    data.parent.mkdir()
    data.symlink_to((arguments.inputs / "sft.jsonl").resolve())
    end = time.monotonic() + 60 * arguments.minutes
    report: dict[str, Any] = {
        "schema_version": 1,
        "date": time.strftime("%Y-%m-%d"),
        "card": torch.cuda.get_device_name(0),
        "versions": versions(),
        "note": f"{BATCH} samples a step, tokens without padding, figures from step {WARM_UP + 1}; "
        "memory: peaks, GiB",
        "settings": [],
    }
    if arguments.out.exists():
        known = json.loads(arguments.out.read_text())["settings"]
        report["settings"] = [entry for entry in known if entry["exit_code"] == 0]
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    measured = {(entry["setting"], entry.get("round", 1)) for entry in report["settings"]}
    for number, setting in itertools.product(range(1, arguments.rounds + 1), arguments.settings):
        left = end - time.monotonic()
        if left < 30 or (setting, number) in measured:
            continue
        runs = home / f"{setting}-{number}" / "runs"
        runs.mkdir(parents=True)
        argv = overrides(setting, arguments.inputs.resolve(), data, runs, arguments.steps)
        result = {"round": number, **measure(setting, argv, runs, min(LIMIT, left))}
        report["settings"].append(result)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
