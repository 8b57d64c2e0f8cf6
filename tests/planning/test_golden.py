"""The exact command of the main cases, as a person would paste it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest

from launch.commands.plan import paste_lines
from tests.conftest import planned

CASES = {
    "sft_25pct-gpu8": ["stage=sft_25pct", "gpus=8"],
    "sft-gpu1": ["stage=sft", "gpus=1"],
    "sft-gpu2-flatten-liger": ["stage=sft", "gpus=2", "recipe.packing=flatten", "recipe.liger=true"],
    "sft_10pct-gpu8-trl": ["stage=sft_10pct", "gpus=8", "trainer=trl_sft"],
    "dpo-gpu8": ["stage=dpo", "gpus=8"],
    "dpo-gpu1": ["stage=dpo", "gpus=1"],
    "dpo-gpu8-trl": ["stage=dpo", "gpus=8", "trainer=trl_dpo"],
    "dpo-gpu8-zero3_offload-70b": [
        *("stage=dpo", "gpus=8", "model=llama3_1_70b", "data=tulu3_dpo_70b"),
        *("recipe.learning_rate=2e-7", "parallel=zero3_offload"),
    ],
    "demo-cpu1": ["stage=demo"],
    "demo-cpu2": ["stage=demo", "processes=2"],
    "demo-cpu2-zero3": ["stage=demo", "processes=2", "parallel=zero3"],
    "sft_25pct-2nodes-gpu8": ["stage=sft_25pct", "nodes=2", "gpus=8"],
    "sft-2nodes-gpu8-olmo_core": [
        *("stage=sft", "nodes=2", "gpus=8", "trainer=olmo_core_finetune", "model=olmo2_1b", "recipe.packing=bins"),
    ],
    "demo-2nodes-cpu2-trl": [
        "stage=demo",
        "trainer=trl_sft",
        "nodes=2",
        "processes=2",
        "recipe.per_device_batch_size=4",
    ],
    "lora_sft-gpu1": ["stage=lora_sft", "gpus=1"],
    "lora_sft-gpu2-finetune": ["stage=lora_sft", "gpus=2", "trainer=finetune", "parallel=ddp"],
    "lora_dpo-gpu2-nf4": ["stage=lora_dpo", "gpus=2", "parallel=ddp", "recipe.lora.quantize=nf4"],
    "demo-cpu1-trl": ["stage=demo", "trainer=trl_sft"],
    "demo_dpo-cpu1": ["stage=demo_dpo"],
    "demo_rlvr-cpu2": ["stage=demo_rlvr", "processes=2"],
    "rlvr-gpu8": ["stage=rlvr", "gpus=8"],
    "demo_dpo-cpu2-trl": ["stage=demo_dpo", "trainer=trl_dpo", "processes=2"],
}


@pytest.mark.parametrize("case", CASES)
def test_rendered_command(case: str, golden: Callable[[str, Sequence[str]], None]) -> None:
    plan = planned(*CASES[case])
    lines = "\n".join(paste_lines(plan, [])).split("\n")
    neutral = [re.sub(r"-[0-9a-f]{16}\b", "-{demo_key}", line.replace(plan.identity, "{identity}")) for line in lines]
    golden(case, [re.sub(r"/lengths/[0-9a-f]{8}\.json", "/lengths/{lengths_key}.json", line) for line in neutral])
