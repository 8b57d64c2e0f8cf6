"""open-instruct's OLMo-core trainers, trained for real on CPU processes: dpo.py packed on two,
olmo_core_finetune.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.integration import tiny_stage
from tests.integration.conftest import launch_in, records

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("open_instruct")]
STEPS = 3
WEIGHTS = {"first_update", "gradients", "last_update", "saved_weights"}
RECIPE = (
    *(
        "device=cpu",
        "recipe.packing=bins",
        "recipe.max_seq_length=128",
        "recipe.gradient_checkpointing=false",
    ),
    *(
        f"recipe.max_steps={STEPS}",
        "recipe.warmup_ratio=0",
        "recipe.chat_template=tulu",
        "flags.config_name=olmo2_14M",
    ),
)


def verdicts(folder: Path) -> dict[str, dict[str, Any]]:
    items = json.loads((folder / "evidence.json").read_text(encoding="utf-8"))["items"]
    return {item["what"]: item for item in items}


@pytest.mark.thorough
def test_packed_dpo_on_two_processes(olmo_stage: tiny_stage.TinyStage, tmp_path: Path) -> None:
    batch = ("recipe.global_batch_size=8", "recipe.per_device_batch_size=2", "processes=2")
    words = (
        f"model.path={olmo_stage.model}",
        f"data.mix=[{{name: {olmo_stage.preferences}}}]",
        "name=packed",
        *RECIPE,
        *batch,
    )
    ran = launch_in(tmp_path, "run", "stage=dpo", "trainer=dpo", *words)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    folder = tmp_path / "runs" / "dpo" / "packed"
    steps = records(folder / "metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2, 3]
    # the reference packs otherwise, and agrees
    assert steps[0]["loss"] == pytest.approx(math.log(2), abs=2e-3)
    assert all(step["tokens_padded"] == 2 * 2 * 128 > step["tokens"] > 0 for step in steps)
    assert all(0 < step["grad_norm"] < 1000 and "rewards/margin" in step for step in steps)
    found = verdicts(folder)
    asked = {what for what, item in found.items() if item["verdict"] is not None}
    assert asked >= {
        "world_size",
        "device",
        "dtype",
        "packing",
        "grad_clip",
        "gradient_checkpointing",
        "isolation",
    }
    assert {found[what]["verdict"] for what in asked} == {"proven"} and asked >= WEIGHTS
    assert found["saved_weights"]["how"].startswith("two rows of each tensor in hf_model/")
    assert found["isolation"]["found"] == "no attention across documents"
    assert found["sharding"]["found"].startswith("fsdp")
    assert found["reference_logprobs"]["found"].startswith("64 pairs in ")
    assert (folder / "model" / "hf_model" / "model.safetensors").is_file() and (
        folder / "DONE"
    ).is_file()
    order = [
        event["phase"] for event in records(folder / "events.jsonl") if event["kind"] == "phase"
    ]
    assert order.index("reference_logprobs") < order.index("first_step") < order.index("training")
    assert "checkpoint" not in order[: order.index("training")]
    assert not list(folder.glob("model/step0*"))
    told = launch_in(tmp_path, "plan", "stage=dpo", "trainer=dpo", *words).stdout
    # by the lengths that the run's tokenising wrote
    assert "packing     rows of 128 tokens hold" in told


def test_sft_tokenises_first_and_not_twice(
    olmo_stage: tiny_stage.TinyStage, tmp_path: Path
) -> None:
    batch = ("recipe.global_batch_size=2", "recipe.per_device_batch_size=1", "processes=1")
    words = (
        f"model.path={olmo_stage.model}",
        f"data.mix=[{{name: {olmo_stage.chats}}}]",
        *RECIPE,
        *batch,
    )
    ran = launch_in(
        tmp_path, "run", "stage=sft", "trainer=olmo_core_finetune", "name=packed", *words
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "olmo_core_finetune needs its data tokenised first" in ran.stdout
    folder = tmp_path / "runs" / "sft" / "packed"
    steps = records(folder / "metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert all(
        step["loss"] > 0 and step["tokens_padded"] == 2 * 128 >= step["tokens"] > 0
        for step in steps
    )
    found = verdicts(folder)
    assert {item["verdict"] for item in found.values() if item["verdict"] is not None} == {"proven"}
    assert (
        found.keys() >= WEIGHTS and "saved tensors were compared" in found["saved_weights"]["note"]
    )
    assert found["saved_weights"]["how"].startswith("two rows of each tensor in hf_model/")
    assert (folder / "model" / "hf_model" / "model.safetensors").is_file() and list(
        folder.glob("model/step3")
    )
    assert (found["packing"]["found"], found["isolation"]["found"]) == (
        "bins",
        "no attention across documents",
    )
    [statistics] = tmp_path.glob("runs/.cache/tokenized/*/numpy_sft/*/dataset_statistics.json")
    again = launch_in(
        tmp_path, "run", "stage=sft", "trainer=olmo_core_finetune", "cache_only=true", *words
    )
    assert (
        again.returncode == 0
        and f"tokenised data: {statistics.parent} (already there" in again.stdout
    )
