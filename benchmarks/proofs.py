"""The proofs of a recipe's numbers on one GPU: sound runs, and runs with a planted fault.

    python benchmarks/proofs.py --models FOLDER [--out FILE] [--limit SECONDS] [TRAINER[:FAULT] ...]

FOLDER is made by benchmarks/make_inputs.py with the shapes 1b and olmo2_1b. A sound run ends as
done. A fault is planted in the trainer's own process by tests/integration/planted, and the run has
to stop with the id of the key that the fault changes. FILE holds a line for each run, with what was
proven and refuted, and keeps the lines of runs that are not asked for this time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rlvr_grid import make_data

ROOT = Path(__file__).parent.parent
PLANTED = ROOT / "tests" / "integration" / "planted"
PACKAGES = (
    *("torch", "transformers", "accelerate", "trl", "peft"),
    *("ai2-olmo-core", "flash-attn", "vllm"),
)
_ROWS = 48  # of the first data set; the second has as many, of which half are trained


@dataclass(frozen=True)
class Trainer:
    """What a trainer is started with, and the faults that are planted in it."""

    words: tuple[str, ...]
    data: str  # sft, pref or prompts
    faults: tuple[str, ...]
    model: str = "1b"


RLVR_ALLOWED = (
    *("disk_full", "missing_packages", "no_checkout", "gpus_busy", "reward_proof"),
    *("bf16_sampling", "refuted_reward_variance", "refuted_complete_answers"),
)
RLVR = (
    "stage=rlvr",
    "recipe.prompts_per_step=8",
    "recipe.samples_per_prompt=8",
    "recipe.global_batch_size=64",
    "recipe.per_device_batch_size=16",
    "recipe.response_length=128",
    "recipe.max_seq_length=384",
    "recipe.kl_beta=0.0",
    "recipe.learning_rate=1e-5",
    "recipe.truncated_reward=null",
    "recipe.epochs=1",
    "recipe.max_steps=3",
    "guards.length_limit=null",
    f"allow=[{','.join(RLVR_ALLOWED)}]",
)
TRAINERS = {
    "finetune": Trainer(("stage=sft", "trainer=finetune"), "sft", ("rate",)),
    "trl_sft": Trainer(
        ("stage=sft", "trainer=trl_sft", "recipe.loss_averaging=null"), "sft", ("rows",)
    ),
    "lora": Trainer(("stage=lora_sft",), "sft", ("alpha",)),
    "dpo_tune_cache": Trainer(("stage=dpo", "trainer=dpo_tune_cache"), "pref", ("seed",)),
    "trl_dpo": Trainer(("stage=dpo", "trainer=trl_dpo"), "pref", ("beta",)),
    "reward_modeling": Trainer(
        (
            "stage=rm",
            "trainer=reward_modeling",
            "recipe.epochs=1",
            "recipe.lr_scheduler=constant",
            "recipe.warmup_ratio=null",
        ),
        "pref",
        ("limit",),
    ),
    "olmo_core_finetune": Trainer(
        (
            "stage=sft",
            "trainer=olmo_core_finetune",
            "model=olmo2_1b",
            "flags.config_name=olmo2_1B_v2",
            "recipe.packing=bins",
            "recipe.loss_averaging=null",
            "recipe.global_batch_size=2",  # ten steps of packed rows: the fault is after the fourth
        ),
        "sft",
        ("schedule",),
        "olmo2_1b",
    ),
    "rlvr_colocate": Trainer((*RLVR, "recipe.generation=vllm_colocate"), "prompts", ("sampler",)),
    "rlvr_server": Trainer(
        (*RLVR, "recipe.generation=vllm_server", "recipe.server_gpus=0"), "prompts", ("sampler",)
    ),
}
SHARED = (
    "gpus=1",
    "report=false",
    "recipe.chat_template=tulu",
    "recipe.gradient_checkpointing=false",
    "recipe.global_batch_size=8",
    "recipe.per_device_batch_size=2",
    "recipe.lr_scheduler=linear",
    "recipe.max_steps=null",
    "recipe.epochs=2",
    "recipe.seed=7",
    "recipe.checkpoint_steps=null",
    "allow=[disk_full,missing_packages,upstream_mismatch,no_checkout]",
)


def mixture(models: Path, home: Path, kind: str) -> str:
    """Write two data sets, and return the mixture of the one and of half of the other; of prompts,
    one data set and its verifier.
    """
    if kind == "prompts":
        return f"data.mix=[{{name: {make_data(home)}}}]"
    lines = (models / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    entries = []
    for number, share in enumerate((1.0, 0.5)):
        file = home / f"{kind}-{number}.jsonl"
        part = lines[number * _ROWS : (number + 1) * _ROWS]
        file.write_text("".join(part), encoding="utf-8")
        entries.append(f"{{name: {file}, share: {share}}}")
    return f"data.mix=[{', '.join(entries)}]"


def train(models: Path, home: Path, name: str, fault: str, limit: float) -> dict[str, Any]:
    """Make one run, and return what it showed."""
    trainer = TRAINERS[name]
    words = {word.partition("=")[0]: word for word in (*SHARED, *trainer.words)}
    command = [
        sys.executable,
        "-m",
        "launch",
        "run",
        f"name={name}-{fault or 'sound'}",
        f"runs={home / 'runs'}",
        f"model.path={models / trainer.model}",
        mixture(models, home, trainer.data),
        *words.values(),
    ]
    if trainer.data == "prompts":
        command.append(f"recipe.verifier={home / 'rules.py'}:share_of_e")
    environ = dict(os.environ)
    path = [ROOT, *environ.get("PYTHONPATH", "").split(os.pathsep)]
    if fault:
        path.insert(0, PLANTED)
        environ["LAUNCH_TEST_FAULT"] = fault
    environ["PYTHONPATH"] = os.pathsep.join(str(folder) for folder in path if str(folder))
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            check=False,
            cwd=home,
            env=environ,
            capture_output=True,
            text=True,
            timeout=limit,
        )
        code: int | None = done.returncode
        output = done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        code = None
        output = (error.stdout or b"").decode() + (error.stderr or b"").decode()
    files = list((home / "runs").glob(f"*/{name}-{fault or 'sound'}/evidence.json"))
    items = json.loads(files[0].read_text(encoding="utf-8"))["items"] if files else []
    verdicts = {item["what"]: item.get("verdict") for item in items}
    return {
        "trainer": name,
        "fault": fault or None,
        "exit_code": code,  # null: it ran past its limit
        "seconds": round(time.monotonic() - began),
        "proven": sorted(what for what, verdict in verdicts.items() if verdict == "proven"),
        "refuted": sorted(what for what, verdict in verdicts.items() if verdict == "refuted"),
        "last_lines": [] if code in (0, 3) else output.splitlines()[-12:],
    }


def read_versions() -> dict[str, str]:
    """Return the versions of the packages that are installed."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="*", metavar="TRAINER[:FAULT]", help="all without any")
    parser.add_argument("--models", type=Path, required=True, help="folder of make_inputs.py")
    parser.add_argument("--out", type=Path, default=Path("proofs.json"))
    parser.add_argument("--limit", type=float, default=300, help="seconds of a run")
    options = parser.parse_args()
    every = [(name, fault) for name, spec in TRAINERS.items() for fault in ("", *spec.faults)]
    asked = [tuple(word.partition(":")[::2]) for word in options.runs] or every
    content: dict[str, Any] = {"versions": read_versions(), "runs": []}
    if options.out.is_file():
        content["runs"] = json.loads(options.out.read_text(encoding="utf-8"))["runs"]
    for name, fault in asked:
        with tempfile.TemporaryDirectory(prefix="proofs-") as home:
            line = train(options.models.absolute(), Path(home), name, fault, options.limit)
        print(json.dumps(line), flush=True)
        kept = [
            run for run in content["runs"] if (run["trainer"], run["fault"] or "") != (name, fault)
        ]
        content["runs"] = [*kept, line]
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
