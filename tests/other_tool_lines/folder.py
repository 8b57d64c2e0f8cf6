"""A folder with the files that the lines name: small data of each form, and files of other tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
_ROWS = range(24)
_DATA: dict[str, list[dict[str, Any]]] = {
    "chats": [
        {
            "messages": [
                {"role": "user", "content": f"What is {n}+{n}?"},
                {"role": "assistant", "content": str(2 * n)},
            ]
        }
        for n in _ROWS
    ],
    "sharegpt": [
        {
            "conversations": [
                {"from": "human", "value": f"Say {n}"},
                {"from": "gpt", "value": f"{n}"},
            ]
        }
        for n in _ROWS
    ],
    "alpaca": [{"instruction": f"Double {n}", "input": "", "output": str(2 * n)} for n in _ROWS],
    "pairs": [
        {"prompt": f"What is {n}+1?", "chosen": str(n + 1), "rejected": str(n)} for n in _ROWS
    ],
    "math": [{"question": f"What is {n}+1?", "answer": str(n + 1)} for n in _ROWS],
    "text": [{"text": f"Once upon a time there were {n} bears."} for n in _ROWS],
}
_FILES: dict[str, dict[str, Any]] = {
    "axolotl_lora": {
        "base_model": MODEL,
        "datasets": [{"path": "data/chats.jsonl", "type": "chat_template"}],
        "adapter": "lora",
        "lora_r": 16,
        "lora_target_linear": True,
        "sequence_len": 2048,
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "learning_rate": 0.0002,
    },
    "trl_sft": {
        "model_name_or_path": MODEL,
        "dataset_name": "data/chats.jsonl",
        "learning_rate": 2.0e-5,
        "num_train_epochs": 1,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 8,
        "packing": True,
    },
    "trl_grpo": {
        "model_name_or_path": MODEL,
        "dataset_name": "data/math.jsonl",
        "reward_funcs": ["reward.exact_reward"],
        "num_generations": 8,
        "max_completion_length": 128,
        "beta": 0.04,
        "learning_rate": 1.0e-6,
    },
    "torchtune": {
        "tokenizer": {
            "_component_": "torchtune.models.qwen2_5.qwen2_5_tokenizer",
            "max_seq_len": 1024,
        },
        "dataset": {
            "_component_": "torchtune.datasets.chat_dataset",
            "source": "json",
            "data_files": "data/chats.jsonl",
        },
        "checkpointer": {"checkpoint_dir": MODEL},
        "batch_size": 2,
        "epochs": 1,
        "optimizer": {"_component_": "torch.optim.AdamW", "lr": 2.0e-5},
        "gradient_accumulation_steps": 8,
        "dtype": "bf16",
    },
    "verl": {
        "data": {
            "train_files": "data/math.jsonl",
            "train_batch_size": 16,
            "max_response_length": 256,
        },
        "actor_rollout_ref": {
            "model": {"path": MODEL},
            "actor": {"optim": {"lr": 1.0e-6}, "kl_loss_coef": 0.001},
            "rollout": {"name": "vllm", "n": 8, "tensor_model_parallel_size": 1},
        },
        "critic": {"model": {"path": "me/critic"}},
        "algorithm": {"adv_estimator": "grpo"},
        "custom_reward_function": {"path": "reward.py", "name": "exact_reward"},
        "trainer": {"n_gpus_per_node": 8, "nnodes": 2, "total_epochs": 1},
    },
    "accelerate": {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "mixed_precision": "bf16",
        "num_machines": 2,
        "num_processes": 16,
    },
    "llama_factory": {
        "model_name_or_path": MODEL,
        "stage": "sft",
        "finetuning_type": "full",
        "deepspeed": "ds_z3.json",
        "dataset_dir": "data",
        "dataset": "ours",
        "max_samples": 6,
        "template": "qwen",
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1.0e-5,
        "num_train_epochs": 1.0,
    },
    "llama_factory_merge": {
        "model_name_or_path": MODEL,
        "adapter_name_or_path": "saves/lora",
        "template": "qwen",
        "finetuning_type": "lora",
        "export_dir": "out",
    },
}
_JSON: dict[str, dict[str, Any]] = {
    "ds_z3.json": {
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
        "train_micro_batch_size_per_gpu": "auto",
    },
    "ds_z2.json": {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
    "data/dataset_info.json": {
        "ours": {"file_name": "alpaca.jsonl"},
        "theirs": {"file_name": "sharegpt.jsonl", "formatting": "sharegpt"},
    },
}
_REWARD = """\
def exact_reward(completions, answer, **columns):
    return [float(right in text) for text, right in zip(completions, answer)]
"""
_TWO_REWARDS = """\
def short(completions, **columns):
    return [float(len(text) < 80) for text in completions]


def polite(completions, **columns):
    return [float("please" in text) for text in completions]
"""
_JOB = """\
#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=8
#SBATCH --time=12:00:00
#SBATCH -p gpu
#SBATCH --output=%j.log
srun accelerate launch --num_processes 16 --num_machines 2 open_instruct/finetune.py \\
    --model_name_or_path {model} --output_dir $OUT \\
    --learning_rate 1e-5
"""


def write_folder(folder: Path) -> None:
    """Write the files into an empty folder, in which the lines are typed."""
    data = folder / "data"
    data.mkdir()
    for name, rows in _DATA.items():
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        (data / f"{name}.jsonl").write_text(text, encoding="utf-8")
    rows = [f"Capital {n}?,City {n}" for n in _ROWS]
    (data / "qa.csv").write_text("\n".join(["prompt,completion", *rows]), encoding="utf-8")
    for name, settings in _FILES.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    for name, content in _JSON.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    (folder / "train.sbatch").write_text("#!/bin/bash\nsrun python train.py\n", encoding="utf-8")
    (folder / "job.slurm").write_text(_JOB.format(model=MODEL), encoding="utf-8")
    (folder / "two.py").write_text(_TWO_REWARDS, encoding="utf-8")
    (folder / "reward.py").write_text(_REWARD, encoding="utf-8")
