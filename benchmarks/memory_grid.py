"""The peak memory and the speed of real settings on this machine's GPUs, as many at a time as there
are cards.

    python benchmarks/memory_grid.py --models FOLDER --out benchmarks/h200_memory_grid.json [--steps 4] [--minutes 9]
    python benchmarks/memory_grid.py --models FOLDER --out benchmarks/h200_memory_olmo.json --only olmo2_1b --share 2

Each setting is `python -m launch rollout` at its one width: the real trainer under ZeRO or alone,
ended after its steps. FOLDER holds `1b`, `8b` and `olmo2_1b`, checkpoints of those shapes (random
weights will do). The data is made on the spot: every sample is longer than the setting's limit, so
that each row has just that many tokens and the prediction is compared with a known shape. The file
is written after each setting; one that failed is in it with its cause. They are taken in order, so
that a run that --minutes cuts short has the first ones; called again, it goes on with the rest.
With --share N up to N settings of a `1b` shape run on a card at a time: torch's peaks are those of
each process, and their step times are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGES = ("torch", "transformers", "accelerate", "deepspeed", "liger-kernel", "ai2-olmo-core")


@dataclass(frozen=True)
class Setting:
    model: str
    gpus: int
    parallel: str
    per_device: int
    length: int  # tokens of every sample
    packing: str = "none"
    liger: bool = False
    checkpointing: bool = False
    trainer: str = "finetune"

    @property
    def stage(self) -> str:
        return "dpo" if self.trainer in ("dpo_tune_cache", "dpo") else "sft"

    @property
    def name(self) -> str:
        marks = [self.packing] + ["liger"] * self.liger + ["ckpt"] * self.checkpointing
        stage = self.stage
        shape = (
            f"{self.model}-{stage}-gpu{self.gpus}-{self.parallel}-{self.per_device}x{self.length}"
        )
        return "-".join([shape, *marks])


SETTINGS = (
    # one GPU
    Setting("1b", 1, "single", 1, 4096),
    Setting("1b", 1, "single", 4, 2048),
    Setting("1b", 1, "single", 8, 1024, checkpointing=True),
    Setting("1b", 1, "single", 4, 2048, liger=True),
    Setting("1b", 1, "single", 8, 1024, "flatten"),
    Setting("1b", 1, "single", 8, 2048, "flatten", liger=True),
    Setting("1b", 1, "zero2", 4, 2048),
    Setting("1b", 1, "zero3", 4, 2048, liger=True),
    Setting("1b", 1, "single", 2, 1024, trainer="dpo_tune_cache"),
    Setting("1b", 1, "single", 4, 1024, checkpointing=True, trainer="dpo_tune_cache"),
    Setting("1b", 1, "single", 16, 1024, liger=True, checkpointing=True),
    Setting("1b", 1, "zero3_offload", 4, 2048, liger=True),
    # OLMo-core
    Setting("olmo2_1b", 1, "fsdp", 2, 2048, "bins", trainer="olmo_core_finetune"),
    Setting("olmo2_1b", 1, "fsdp", 2, 1024, "bins", trainer="dpo"),
    Setting("olmo2_1b", 1, "fsdp", 1, 4096, "bins", trainer="olmo_core_finetune"),
    Setting("olmo2_1b", 1, "fsdp", 4, 2048, "bins", trainer="olmo_core_finetune"),
    Setting(
        "olmo2_1b", 1, "fsdp", 2, 2048, "bins", checkpointing=True, trainer="olmo_core_finetune"
    ),
    Setting("olmo2_1b", 1, "fsdp", 2, 1024, trainer="dpo"),
    Setting("olmo2_1b", 1, "fsdp", 8, 2048, "bins", trainer="olmo_core_finetune"),
    Setting("olmo2_1b", 1, "fsdp", 4, 1024, trainer="dpo"),
    Setting("olmo2_1b", 1, "fsdp", 2, 4096, "bins", trainer="dpo"),
    Setting(
        "olmo2_1b", 1, "fsdp", 8, 2048, "bins", checkpointing=True, trainer="olmo_core_finetune"
    ),
    # two GPUs
    Setting("1b", 2, "zero2", 8, 1024),
    Setting("1b", 2, "zero3", 8, 1024, liger=True),
    Setting("1b", 2, "ddp", 4, 2048, liger=True),
    Setting("1b", 2, "zero3", 2, 1024, trainer="dpo_tune_cache"),
    # the larger shape
    Setting("8b", 1, "single", 4, 1024, liger=True),
    Setting("8b", 1, "single", 2, 2048, checkpointing=True),
    Setting("8b", 2, "zero3", 1, 4096, checkpointing=True),
    Setting("8b", 2, "zero3", 4, 1024, "flatten", liger=True),
    Setting("8b", 1, "single", 1, 4096, liger=True, checkpointing=True),
    Setting("8b", 1, "single", 4, 1024, "flatten", liger=True),
    Setting("8b", 2, "zero2", 2, 2048, "flatten", liger=True, checkpointing=True),
    # four GPUs
    Setting("8b", 4, "zero3", 4, 2048, "flatten", liger=True),
    Setting("8b", 4, "zero2", 4, 2048, "flatten", liger=True, checkpointing=True),
)


def make_data(folder: Path, rows: int) -> dict[str, Path]:
    """Chats and preference pairs, each longer than any limit of the grid. Seeded."""
    random.seed(1)
    words = [
        "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(2, 9)))
        for _ in range(2000)
    ]
    sft, pref = folder / "sft.jsonl", folder / "pref.jsonl"
    with sft.open("w") as chats, pref.open("w") as pairs:
        for _ in range(rows):
            user = {"role": "user", "content": " ".join(random.choices(words, k=8))}
            answers = [
                {"role": "assistant", "content": " ".join(random.choices(words, k=4500))}
                for _ in range(2)
            ]
            chats.write(json.dumps({"messages": [user, answers[0]]}) + "\n")
            pairs.write(
                json.dumps({"chosen": [user, answers[0]], "rejected": [user, answers[1]]}) + "\n"
            )
    return {"sft": sft, "dpo": pref}


def words_of(
    setting: Setting, model: Path, data: Path, runs: Path, steps: int, *, expandable_segments: bool
) -> list[str]:
    accumulation = 2
    batch = setting.per_device * setting.gpus * accumulation
    return [
        f"stage={setting.stage}",
        f"trainer={setting.trainer}",
        f"gpus={setting.gpus}",
        f"parallel={setting.parallel}",
        f"expandable_segments={str(expandable_segments).lower()}",
        f"steps={steps}",
        f"runs={runs}",
        "name=grid",
        f"model.path={model}",
        f"data.mix=[{{name:{data}}}]",
        f"recipe.global_batch_size={batch}",
        f"recipe.per_device_batch_size={setting.per_device}",
        f"recipe.max_seq_length={setting.length}",
        f"recipe.packing={setting.packing}",
        f"recipe.liger={str(setting.liger).lower()}",
        f"recipe.gradient_checkpointing={str(setting.checkpointing).lower()}",
        "recipe.chat_template=tulu",
        "recipe.max_steps=40",
        "recipe.warmup_ratio=0",
        "allow=[gpus_busy,loss_falls,first_dpo_loss,reward_accuracy]",
        *(["flags.config_name=olmo2_1B_v2"] if setting.model == "olmo2_1b" else []),
    ]


def run_launch(line: list[str], cards: list[int], log: Path, limit: float) -> dict[str, Any]:
    """Run a command of launch in the folder of its log, and return how it ended; 124 is the exit
    code of one that took longer than `limit` seconds.
    """
    environ = os.environ | {
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, cards)),
        "HF_HUB_OFFLINE": "1",
    }
    command, began = [sys.executable, "-m", "launch", *line], time.monotonic()
    with log.open("w") as output:
        try:
            code = subprocess.run(
                command,
                check=False,
                stdout=output,
                stderr=output,
                env=environ,
                cwd=log.parent,
                timeout=limit,
            ).returncode
        except subprocess.TimeoutExpired:
            code = 124
    return {"exit_code": code, "wall_seconds": round(time.monotonic() - began, 1)}


def measure(
    setting: Setting, words: list[str], cards: list[int], runs: Path, limit: float
) -> dict[str, Any]:
    """Run one setting on the cards and read what its run folder says."""
    log = runs.parent / f"{setting.name}.log"
    found = {**asdict(setting), **run_launch(["rollout", *words], cards, log, limit)}
    steps: list[dict[str, Any]] = []
    for path in runs.glob("*/*/*/metrics.jsonl"):
        steps = [json.loads(line) for line in path.read_text().splitlines()]
        for outcome in ("FAILED", "evidence.json"):
            if (path.parent / outcome).is_file():
                text = json.loads((path.parent / outcome).read_text())
                if outcome == "FAILED":
                    found["cause"] = text.get("cause")
                else:
                    found["evidence"] = {
                        one["what"]: one.get("value") for one in text.get("findings", [])
                    }
    if steps:
        later = [step["seconds"] for step in steps[2:] if "seconds" in step]
        found |= {
            "steps": len(steps),
            "memory_gib": max(step.get("memory_gib", 0.0) for step in steps),
            "memory_reserved_gib": max(step.get("memory_reserved_gib", 0.0) for step in steps),
            "tokens_a_step": steps[-1].get("tokens"),
            "step_seconds": round(statistics.median(later), 4) if later else None,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--share", type=int, default=1)
    parser.add_argument("--expandable-segments", action="store_true", help="of torch's allocator")
    parser.add_argument("--only", default="", help="settings whose name begins so")
    parser.add_argument("--cards", type=int, default=None, help="GPUs to use; all by default")
    arguments = parser.parse_args()
    import torch

    count = arguments.cards or torch.cuda.device_count()
    home = Path(tempfile.mkdtemp(prefix="grid-"))
    data = make_data(home, 300)
    end = time.monotonic() + 60 * arguments.minutes
    found: list[dict[str, Any]] = (
        json.loads(arguments.out.read_text())["settings"] if arguments.out.exists() else []
    )
    done = {
        Setting(**{key: one[key] for key in Setting.__dataclass_fields__})
        for one in found
        if one["exit_code"] != 124
    }
    found = [one for one in found if one["exit_code"] != 124]
    # of each card: settings that it has room for
    room = dict.fromkeys(range(count), arguments.share)
    changed = threading.Condition()
    facts = {
        "schema_version": 1,
        "date": time.strftime("%Y-%m-%d"),
        "card": torch.cuda.get_device_name(0),
        "card_gib": round(torch.cuda.get_device_properties(0).total_memory / 2**30, 2),
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "command": "python benchmarks/memory_grid.py --models FOLDER --out FILE",
        "note": "memory: peaks of rank 0, GiB; step_seconds: median from the third step; "
        "accumulation 2",
    }

    def one(setting: Setting, cards: list[int], takes: int) -> None:
        runs = home / setting.name / "runs"
        runs.mkdir(parents=True)
        data_path, left = data[setting.stage], max(end - time.monotonic(), 1.0)
        model, expandable = arguments.models / setting.model, arguments.expandable_segments
        words = words_of(
            setting, model, data_path, runs, arguments.steps, expandable_segments=expandable
        )
        result = measure(setting, words, cards, runs, left) | {"expandable_segments": expandable}
        if takes < arguments.share:
            result.pop("step_seconds", None)
        with changed:
            found.append(result)
            arguments.out.write_text(json.dumps({**facts, "settings": found}, indent=1) + "\n")
            told = {
                key: result.get(key)
                for key in ("memory_gib", "memory_reserved_gib", "step_seconds", "cause")
            }
            print(
                f"{setting.name}: rc={result['exit_code']} {result['wall_seconds']} s {told}",
                flush=True,
            )
            for card in cards:
                room[card] += takes
            changed.notify_all()

    threads = []
    wanted = [
        setting
        for setting in SETTINGS
        if setting.gpus <= count and setting.name.startswith(arguments.only)
    ]
    for setting in (setting for setting in wanted if setting not in done):
        takes = 1 if setting.model.endswith("1b") else arguments.share
        with changed:
            while sum(left >= takes for left in room.values()) < setting.gpus:
                changed.wait()
            if time.monotonic() > end - 40:
                break
            cards = sorted(room, key=lambda card: (-room[card], card))[: setting.gpus]
            for card in cards:
                room[card] -= takes
        threads.append(threading.Thread(target=one, args=(setting, cards, takes)))
        threads[-1].start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
