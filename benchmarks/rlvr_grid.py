"""The peak memory and the time of RLVR's steps on one GPU: all weights and adapters, three ways to
generate.

    python benchmarks/make_inputs.py FOLDER --shapes 1b 8b
    python benchmarks/rlvr_grid.py --models FOLDER --out benchmarks/h200_rlvr_grid.json [--minutes 25] [--only 1b]
    python benchmarks/rlvr_grid.py --models FOLDER --out benchmarks/h200_rlvr_vllm.json --vllm

Each setting is `python -m launch run` for three steps (six with vLLM), on random weights, whose
answers hardly ever end: a completion has `response` tokens. With --vllm the settings are those of
vLLM in the trainer's process or in its own, and one of transformers beside them. `tokens` of a step are those of
prompts and completions. The file is written after each setting, with the cause of one that failed;
called again, it goes on with those that are missing.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from memory_grid import run_launch

PACKAGES = ("torch", "transformers", "accelerate", "trl", "peft", "flash-attn", "vllm")
PROMPT_WORDS = 30
FIELDS = (
    *("step", "seconds", "generation_seconds", "verifier_seconds", "training_seconds", "tokens"),
    *("weights_seconds", "logprobs_seconds", "step_time", "grad_norm"),
    *("memory_gib", "memory_reserved_gib", "completions/mean_length"),
    *("sampling/sampling_logp_difference/mean", "sampling/sampling_logp_difference/max"),
)


@dataclass(frozen=True)
class Setting:
    model: str
    prompts: int  # of a step
    samples: int  # of a prompt
    per_device: int
    response: int
    lora: bool = False
    continuous: bool = False
    bf16_weights: bool = False  # trained in bf16, without fp32 weights
    checkpointing: bool = True
    kl_beta: float = 0.01
    vllm: bool = False
    server: bool = False  # vLLM in a process of its own, on the same card

    @property
    def name(self) -> str:
        marks = [
            f"{mark}"
            for mark in ("lora", "continuous", "vllm", "server", "bf16_weights", "checkpointing")
            if getattr(self, mark)
        ]
        shape = f"{self.model}-{self.prompts}x{self.samples}-by{self.per_device}-{self.response}-kl{self.kl_beta}"
        return "-".join([shape, *marks])


SETTINGS = (
    Setting("1b", 8, 8, 16, 256, continuous=True, bf16_weights=True, kl_beta=0.0),
    Setting("1b", 8, 8, 16, 256, lora=True, continuous=True),
    Setting("8b", 8, 8, 4, 128, bf16_weights=True, continuous=True, kl_beta=0.0),
    Setting("1b", 8, 8, 32, 256, kl_beta=0.0, checkpointing=False),
    Setting("1b", 32, 8, 8, 512),
    Setting("8b", 8, 8, 4, 128, lora=True),
    Setting("8b", 8, 8, 4, 128, lora=True, continuous=True),
    Setting("1b", 32, 8, 8, 512, lora=True),
    Setting("8b", 8, 8, 4, 128, bf16_weights=True, kl_beta=0.0),
    Setting("8b", 48, 8, 2, 384, lora=True),
    Setting("8b", 8, 8, 4, 128, lora=True, checkpointing=False),
    Setting("1b", 96, 8, 16, 384, lora=True, kl_beta=0.0),
)

VLLM_SETTINGS = (
    Setting("1b", 8, 8, 16, 256, vllm=True, kl_beta=0.0, checkpointing=False),
    Setting("1b", 8, 8, 16, 256, kl_beta=0.0, checkpointing=False),
    Setting("1b", 8, 8, 16, 256, vllm=True, lora=True, checkpointing=False),
    Setting("8b", 8, 8, 8, 256, vllm=True, lora=True, kl_beta=0.0, checkpointing=False),
    Setting("1b", 8, 8, 16, 256, vllm=True, server=True, kl_beta=0.0, checkpointing=False),
)

REWARD = """def share_of_e(completions, **columns):
    texts = [answer[0]["content"] for answer in completions]
    return [text.count("e") / max(1, len(text)) for text in texts]
"""


def make_data(folder: Path) -> Path:
    """Prompts of 30 words each, and their verifier. Seeded."""
    draw = random.Random(1)
    words = [
        "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9)))
        for _ in range(2000)
    ]
    rows = [
        {"prompt": " ".join(draw.choices(words, k=PROMPT_WORDS)), "ground_truth": "eeee"}
        for _ in range(600)
    ]
    (folder / "prompts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "rules.py").write_text(REWARD)
    return folder / "prompts.jsonl"


def overrides(setting: Setting, model: Path, data: Path, runs: Path) -> list[str]:
    allowed = (
        "[gpus_busy,reward_proof,bf16_sampling,refuted_reward_variance,refuted_complete_answers]"
    )
    words = [
        *(
            "stage=rlvr",
            "gpus=1",
            f"runs={runs}",
            "name=grid",
            f"model.path={model}",
            f"data.mix=[{{name:{data}}}]",
        ),
        f"recipe.verifier={data.with_name('rules.py')}:share_of_e",
        "recipe.truncated_reward=null",
        *(
            f"recipe.prompts_per_step={setting.prompts}",
            f"recipe.samples_per_prompt={setting.samples}",
        ),
        f"recipe.per_device_batch_size={setting.per_device}",
        *(
            f"recipe.response_length={setting.response}",
            f"recipe.max_seq_length={setting.response + 256}",
        ),
        f"recipe.gradient_checkpointing={str(setting.checkpointing).lower()}",
        *(
            f"recipe.kl_beta={setting.kl_beta}",
            "recipe.chat_template=tulu",
            f"recipe.attention={'flash_2' if find_spec('flash_attn') else 'auto'}",
        ),
        f"recipe.max_steps={6 if setting.vllm else 3}",
        *(
            "guards.length_limit=null",
            "recipe.checkpoint_steps=null",
            "report=false",
            f"allow={allowed}",
        ),
    ]
    if setting.lora:
        words.append("recipe.lora.rank=16")
    if setting.continuous:
        words.append("recipe.generation=continuous")
        # with torch 2.11 the capture of a graph fails
        words.append("flags.transformers_continuous_batching_config={use_cuda_graph: false}")
    if setting.vllm:
        words += ["recipe.generation=vllm_colocate", "recipe.learning_rate=1e-5"]
    if setting.server:
        words += ["recipe.generation=vllm_server", "recipe.server_gpus=0"]
        words.remove("recipe.generation=vllm_colocate")
    if setting.bf16_weights:
        words.append("flags.dtype=bfloat16")
    return words


def measure(setting: Setting, words: list[str], runs: Path, limit: float) -> dict[str, Any]:
    """Run one setting and read its folder."""
    log = runs.parent / f"{setting.name}.log"
    result = {**asdict(setting), **run_launch(["run", *words], [0], log, limit)}
    folder = next(runs.glob("rlvr/*"), runs)
    steps = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in steps.read_text().splitlines()] if steps.is_file() else []
    evidence = folder / "evidence.json"
    if evidence.is_file():
        items = json.loads(evidence.read_text())["items"]
        result["sampler_weights"] = [item for item in items if item["what"] == "sampler_weights"]
    result["steps"] = [{name: step[name] for name in FIELDS if name in step} for step in lines]
    started = re.search(r"vLLM's server answers after (\d+) s", log.read_text())
    if started:
        result["server_start_seconds"] = int(started[1])
    if result["exit_code"]:
        print(log.read_text()[-3000:], flush=True)
        failed = folder / "FAILED"
        result["cause"] = (
            json.loads(failed.read_text()).get("cause")
            if failed.is_file()
            else log.read_text()[-600:]
        )
    return result


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--vllm", action="store_true", help="the settings with vLLM")
    parser.add_argument("--only", default="", help="settings whose name begins so")
    arguments = parser.parse_args()
    import torch

    end = time.monotonic() + 60 * arguments.minutes
    home = Path(tempfile.mkdtemp(prefix="rlvr-"))
    data = make_data(home)
    results = json.loads(arguments.out.read_text())["settings"] if arguments.out.exists() else []
    results = [result for result in results if result["exit_code"] != 124]
    done = {
        Setting(**{key: result[key] for key in Setting.__dataclass_fields__ if key in result})
        for result in results
    }
    facts = {
        "schema_version": 1,
        "date": time.strftime("%Y-%m-%d"),
        "card": torch.cuda.get_device_name(0),
        "card_gib": round(torch.cuda.get_device_properties(0).total_memory / 2**30, 2),
        "versions": {name: _version(name) for name in PACKAGES},
        "command": "python benchmarks/rlvr_grid.py --models FOLDER --out FILE",
        "note": "random weights; the first step's training_seconds hold the sampling of the start "
        "model",
    }
    for setting in VLLM_SETTINGS if arguments.vllm else SETTINGS:
        left = end - time.monotonic()
        if setting in done or not setting.name.startswith(arguments.only) or left < 60:
            continue
        runs = home / setting.name / "runs"
        runs.mkdir(parents=True)
        words = overrides(setting, (arguments.models / setting.model).resolve(), data, runs)
        result = measure(setting, words, runs, min(left, 240.0))
        results.append(result)
        arguments.out.write_text(json.dumps({**facts, "settings": results}, indent=1) + "\n")
        if not result["exit_code"]:
            shutil.rmtree(runs)
        last = result["steps"][-1] if result["steps"] else {}
        print(
            f"{setting.name}: rc={result['exit_code']} {result['wall_seconds']} s {last}",
            flush=True,
        )


if __name__ == "__main__":
    main()
