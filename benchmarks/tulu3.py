"""SFT as Tulu 3's script did it and as `launch` does, under DeepSpeed on GPUs, in bf16: how far are
the weights apart?

    git -C CHECKOUT archive 1b695caf9 open_instruct configs/ds_configs | tar x -C OLD
    python benchmarks/make_inputs.py INPUTS --shapes 1b
    python benchmarks/tulu3.py --old OLD --inputs INPUTS --out FILE.json [--gpus 2] [--minutes 9]

OLD is upstream's code before #1024, the last one with `--reduce_loss`; it runs with the stand-ins
that tests/equivalence/stand_ins.py lists. Every training starts from the same random weights and
takes ten steps on the same rows. A distance is a fraction of the whole update of the old script
(sum, ZeRO-3); `old_zero2` differs from that one in the order of summation alone, so its distance is
the noise of bf16.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "tests" / "equivalence" / "site"
OLD_STAND_INS = (
    "transformers_cache",
    "litellm",
    "matplotlib",
    "token_ids",
    "registered_models",
    "old_accelerator",
    "empty_group",
)
STEPS = 10
GLOBAL = 8
LENGTH = 512  # tokens of a sample at most
RATE = "3e-4"  # far above the stage's: a saved bf16 weight hides smaller updates
FAST = ("parallel=zero2", "recipe.packing=flatten", "recipe.liger=true", "recipe.balanced=true")
# {training: the old script's DeepSpeed file and reduction}, in which the first is what all are
# compared with
OLD = {
    "old": ("stage3_no_offloading_accelerate.conf", "sum"),
    "old_zero2": ("stage2_accelerate.conf", "sum"),
    "old_mean": ("stage3_no_offloading_accelerate.conf", "mean"),
}
# {training: the overrides of the stage sft}
NEW = {
    "stage": ("parallel=zero3",),
    "stage_fast": (*FAST, "recipe.per_device_batch_size=4", "recipe.gradient_checkpointing=false"),
    "tokens": ("parallel=zero3", "recipe.loss_averaging=tokens"),
    "micro_batch_means": ("parallel=zero3", "recipe.loss_averaging=micro_batch_means"),
}
ORDER = ("old", "stage", "old_zero2", "stage_fast", "tokens", "micro_batch_means", "old_mean")
PACKAGES = ("torch", "transformers", "accelerate", "deepspeed", "flash_attn", "liger_kernel")


def old_command(name: str, arguments: argparse.Namespace) -> list[str]:
    deepspeed, reduction = OLD[name]
    accumulation = GLOBAL // arguments.gpus
    model = str(arguments.inputs / "1b")
    return [
        *(
            sys.executable,
            "-m",
            "accelerate.commands.launch",
            "--mixed_precision",
            "bf16",
            "--use_deepspeed",
        ),
        *("--num_machines", "1", "--num_processes", str(arguments.gpus), "--dynamo_backend", "no"),
        *("--deepspeed_config_file", str(arguments.old / "configs" / "ds_configs" / deepspeed)),
        str(arguments.old / "open_instruct" / "finetune.py"),
        *("--model_name_or_path", model, "--tokenizer_name_or_path", model),
        *(
            "--dataset_mixer_list",
            str(arguments.inputs / "sft.jsonl"),
            "1.0",
            "--dataset_skip_cache",
            "True",
        ),
        *("--per_device_train_batch_size", "1", "--gradient_accumulation_steps", str(accumulation)),
        *(
            "--max_train_steps",
            str(STEPS),
            "--max_seq_length",
            str(LENGTH),
            "--reduce_loss",
            reduction,
        ),
        *(
            "--learning_rate",
            RATE,
            "--warmup_ratio",
            "0.2",
            "--lr_scheduler_type",
            "linear",
            "--weight_decay",
            "0.0",
        ),
        *(
            "--chat_template_name",
            "tulu",
            "--gradient_checkpointing",
            "True",
            "--use_flash_attn",
            "True",
        ),
        *(
            "--seed",
            "8",
            "--logging_steps",
            "1",
            "--output_dir",
            "out",
            "--do_not_randomize_output_dir",
            "True",
        ),
        *("--add_seed_and_date_to_exp_name", "False", "--verbose", "True"),
        *("--push_to_hub", "False", "--try_launch_beaker_eval_jobs", "False"),
    ]


def new_command(name: str, arguments: argparse.Namespace) -> list[str]:
    return [
        *(
            sys.executable,
            "-P",
            "-m",
            "launch",
            "run",
            "stage=sft",
            f"gpus={arguments.gpus}",
            "name=run",
        ),
        *(
            f"model.path={arguments.inputs / '1b'}",
            f"data.mix=[{{name: {arguments.inputs / 'sft.jsonl'}}}]",
        ),
        *(
            f"recipe.global_batch_size={GLOBAL}",
            f"recipe.max_steps={STEPS}",
            f"recipe.max_seq_length={LENGTH}",
        ),
        *(
            f"recipe.learning_rate={RATE}",
            "recipe.warmup_ratio=0.2",
            "recipe.checkpoint_steps=null",
        ),
        *("report=false", *NEW[name]),
    ]


def train(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one training in a folder of its own, and return what it did."""
    folder = arguments.work / name
    folder.mkdir(parents=True)
    is_old = name in OLD
    command = old_command(name, arguments) if is_old else new_command(name, arguments)
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    inherited = environ.get("PYTHONPATH", "")
    if is_old:
        environ["PYTHONPATH"] = os.pathsep.join([str(SITE), str(arguments.old), inherited])
        environ["EQUIVALENCE_STAND_INS"] = ",".join(OLD_STAND_INS)
    began = time.monotonic()
    log = folder / "log.txt"
    with log.open("w") as output:
        try:
            code = subprocess.run(
                command,
                cwd=folder,
                env=environ,
                check=False,
                stdout=output,
                stderr=output,
                timeout=arguments.limit,
            ).returncode
        except subprocess.TimeoutExpired:
            code = 124
    result = {"command": command, "exit_code": code, "seconds": round(time.monotonic() - began, 1)}
    if code:
        result["last_lines"] = log.read_text(errors="replace").splitlines()[-25:]
    for evidence in folder.glob("runs/*/run/evidence.json"):
        items = json.loads(evidence.read_text()).get("items", [])
        result["evidence"] = {item["what"]: item.get("found") for item in items}
    for metrics in folder.glob("runs/*/run/metrics.jsonl"):
        steps = [json.loads(line) for line in metrics.read_text().splitlines()]
        result["losses"] = [step["loss"] for step in steps if step.get("loss") is not None]
    return result


def load_weights(folder: Path) -> dict[str, Any]:
    """Return the weights of a saved model, as they are stored."""
    from safetensors.torch import load_file

    weights: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(file)
    return weights


def model_folder(work: Path, name: str) -> Path:
    [config] = (work / name).rglob("out/config.json" if name in OLD else "run/model/config.json")
    return config.parent


def distance(left: Path, right: Path, start: Path) -> float:
    """Return the distance of two models as a fraction of the update of the first. `start`: what
    both began with.
    """
    first, second, begun = load_weights(left), load_weights(right), load_weights(start)
    apart = moved = 0.0
    for name in first.keys() & second.keys() & begun.keys():  # a tied head is saved by some alone
        weight = first[name].float()
        apart += float((weight - second[name].float()).square().sum())
        moved += float((weight - begun[name].float()).square().sum())
    return math.sqrt(apart / moved)


def versions() -> dict[str, str]:
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
    parser.add_argument("--old", type=Path, required=True, help="upstream's code before #1024")
    parser.add_argument(
        "--inputs", type=Path, required=True, help="the folder that make_inputs.py wrote"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--work", type=Path, default=Path("tulu3-runs"), help="the folder of the trainings"
    )
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="no training is started after this"
    )
    parser.add_argument(
        "--limit", type=float, default=150.0, help="seconds that one training may take"
    )
    arguments = parser.parse_args()
    import torch

    arguments.old, arguments.inputs, arguments.work = (
        path.resolve() for path in (arguments.old, arguments.inputs, arguments.work)
    )
    end = time.monotonic() + 60 * arguments.minutes
    report: dict[str, Any] = {
        "schema_version": 1,
        "date": time.strftime("%Y-%m-%d"),
        "card": torch.cuda.get_device_name(0),
        "gpus": arguments.gpus,
        "versions": versions(),
        "trainings": {},
    }
    for name in ORDER:
        if time.monotonic() > end:
            break
        result = train(name, arguments)
        if (
            result["exit_code"] == 0
            and name != "old"
            and report["trainings"]["old"]["exit_code"] == 0
        ):
            folders = [model_folder(arguments.work, training) for training in ("old", name)]
            result["distance"] = distance(*folders, arguments.inputs / "1b")
        report["trainings"][name] = result
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
        print(name, result["exit_code"], result["seconds"], result.get("distance"), flush=True)


if __name__ == "__main__":
    main()
