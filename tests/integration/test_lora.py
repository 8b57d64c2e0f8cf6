"""An adapter from its training by each trainer to DPO on it and to a whole model, with real
PEFT.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import launch_in
from tests.thorough import mark_others

pytestmark = pytest.mark.slow

STAGES = {
    "trl_sft": ("stage=demo_lora", "recipe.max_steps=3"),
    "finetune": ("stage=demo_lora", "trainer=finetune", "recipe.max_steps=3"),
    "trl_dpo": ("stage=demo_dpo", "trainer=trl_dpo", "recipe.lora.rank=8", "recipe.max_steps=2"),
    "dpo_tune_cache": (
        "stage=demo_dpo",
        "recipe.lora.rank=8",
        "recipe.max_steps=2",
        "data.fraction=0.05",
    ),
}
CASES = (
    *(("finetune", "single"), ("finetune", "zero3"), ("dpo_tune_cache", "ddp")),
    *(("trl_sft", "zero2"), ("trl_dpo", "zero3")),
)
# in every run of the suite; the others are thorough: test_pipelines.py has an adapter of trl_dpo, and
# test_demo.py ZeRO-3
KEPT = (("finetune", "single"),)


def read_evidence(run: Path) -> dict[str, tuple[str, str]]:
    """Return verdict and value by setting."""
    items: list[dict[str, Any]] = json.loads((run / "evidence.json").read_text(encoding="utf-8"))[
        "items"
    ]
    return {item["what"]: (item["verdict"], str(item["found"])) for item in items}


def test_the_adapter_trains_and_the_base_does_not(trained_adapter: Path) -> None:
    run = trained_adapter / "runs" / "demo_lora" / "sft"
    evidence = read_evidence(run)
    assert {evidence[name][0] for name in ("lora", "base_dtype", "first_update")} == {"proven"}
    assert evidence["lora"][1] == "rank 8 on 14 layers"
    assert (run / "model" / "adapter_model.safetensors").is_file()
    assert not (run / "model" / "model.safetensors").exists()


@pytest.mark.parametrize(("trainer", "mode"), mark_others(CASES, KEPT))
def test_every_trainer_counts_what_it_trains_and_moves_nothing_else(
    trainer: str, mode: str, home: Path
) -> None:
    pytest.importorskip(
        "trl" if trainer.startswith("trl") else "ray", reason="the trainer is not installed"
    )
    name = f"{trainer}-{mode}"
    words = (
        *STAGES[trainer],
        f"processes={1 if mode == 'single' else 2}",
        f"parallel={mode}",
        f"name={name}",
    )
    done = launch_in(home, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = (home / "runs").glob(f"*/{name}")
    evidence = json.loads((run / "evidence.json").read_text(encoding="utf-8"))["items"]
    found = {item["what"]: item for item in evidence}
    assert {
        found[name]["verdict"] for name in ("lora", "base_dtype", "first_update", "world_size")
    } == {"proven"}
    assert found["lora"]["found"] == "rank 8 on 14 layers"
    assert "34,816 of 434,048 parameters are trained" in found["lora"]["note"]
    assert found["first_update"]["found"] == "adapter"
    inputs = found.get("adapter_inputs", {}).get("found")
    # DeepSpeed has no autocast, in which they need no cast, nor has fp32, which TRL trains in on a
    # CPU
    assert inputs == (None if mode.startswith("zero") or trainer.startswith("trl") else "not cast")
    assert "14 of 28 trained tensors changed, 0 of 21 frozen ones" in found["first_update"]["note"]
    assert (run / "model" / "adapter_model.safetensors").is_file()
    assert not (run / "model" / "model.safetensors").exists()


@pytest.mark.thorough
def test_from_sft_to_dpo_to_its_merge_and_on(trained_adapter: Path) -> None:
    """DPO trains a new adapter on the merge of SFT's; its own merge is what the next DPO trains
    whole.
    """
    argv = (
        "trainer=trl_dpo",
        "model.path=runs/demo_lora/sft",
        "recipe.lora.rank=4",
        "recipe.max_steps=2",
    )
    done = launch_in(trained_adapter, "stage=demo_dpo", *argv, "name=first")
    assert done.returncode == 0, done.stdout + done.stderr
    first = trained_adapter / "runs" / "demo_dpo" / "first"
    base = json.loads((first / "model" / "adapter_config.json").read_text(encoding="utf-8"))
    assert base["base_model_name_or_path"] == str(
        trained_adapter / "runs" / "demo_lora" / "sft" / "merged"
    )
    done = launch_in(trained_adapter, "merge", "demo_dpo/first")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((first / "merged" / "merge.json").read_text(encoding="utf-8"))["report"]
    assert report["own_samples"] and report["same_first_choice"] == pytest.approx(1.0, abs=0.01)
    assert report["error"] < 1e-4 < report["adapter_effect"]
    words = ("model.path=runs/demo_dpo/first/merged", "data.fraction=0.05", "recipe.max_steps=2")
    done = launch_in(trained_adapter, "stage=demo_dpo", *words, "name=second")
    assert done.returncode == 0, done.stdout + done.stderr
    for run in (first, trained_adapter / "runs" / "demo_dpo" / "second"):
        step = json.loads((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
        assert step["step"] == 1 and step["loss"] == pytest.approx(math.log(2), abs=2e-3)


@pytest.mark.thorough
def test_trl_dpo_has_the_recipes_chat_template(home: Path) -> None:
    [model] = (home / "runs" / ".cache" / "demo").glob("model-*")
    shutil.copytree(model, home / "mine")
    (home / "mine" / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    words = (
        "model.path=./mine",
        "recipe.chat_template=tulu",
        "recipe.lora.rank=8",
        "recipe.max_steps=2",
        "name=one",
    )
    done = launch_in(home, "stage=demo_dpo", "trainer=trl_dpo", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    run = home / "runs" / "demo_dpo" / "one"
    assert read_evidence(run)["chat_template"] == ("proven", "tulu")
    assert "<|assistant|>" in (run / "model" / "chat_template.jinja").read_text(encoding="utf-8")


@pytest.mark.thorough
def test_dpo_goes_on_with_the_adapter_and_measures_against_it(trained_adapter: Path) -> None:
    """The reference policy is the SFT adapter: at the first step nothing has moved, and the loss is
    ln 2.
    """
    argv = (
        "trainer=trl_dpo",
        "model.path=runs/demo_lora/sft",
        "recipe.lora.rank=8",
        "recipe.lora.start=continue",
    )
    done = launch_in(trained_adapter, "stage=demo_dpo", *argv, "name=dpo", "recipe.max_steps=2")
    assert done.returncode == 0, done.stdout + done.stderr
    run = trained_adapter / "runs" / "demo_dpo" / "dpo"
    first = json.loads((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert first["step"] == 1 and first["loss"] == pytest.approx(math.log(2), abs=2e-3)
    assert read_evidence(run)["first_update"][0] == "proven"


def test_the_merged_model_is_the_base_with_the_adapter(trained_adapter: Path) -> None:
    done = launch_in(trained_adapter, "merge", "demo_lora/sft")
    assert done.returncode == 0, done.stdout + done.stderr
    merged = trained_adapter / "runs" / "demo_lora" / "sft" / "merged"
    assert (merged / "model.safetensors").is_file() and (merged / "tokenizer.json").is_file()
    trained = merged.with_name("model")
    assert (merged / "chat_template.jinja").read_bytes() == (
        trained / "chat_template.jinja"
    ).read_bytes()
    adapter = json.loads((trained / "adapter_config.json").read_text(encoding="utf-8"))
    base_config = Path(adapter["base_model_name_or_path"], "generation_config.json").read_text(
        encoding="utf-8"
    )
    assert json.loads(
        (merged / "generation_config.json").read_text(encoding="utf-8")
    ) == json.loads(base_config)
    torch = pytest.importorskip("torch")
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(merged)(
        "What does `os.path.join` do?", return_tensors="pt"
    ).input_ids
    with torch.no_grad():
        whole = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)(tokens).logits
        adapted = AutoPeftModelForCausalLM.from_pretrained(
            merged.with_name("model"), dtype=torch.float32
        )
        with_adapter = adapted(tokens).logits
        with adapted.disable_adapter():
            base = adapted(tokens).logits
    error, effect = (
        (whole - with_adapter).abs().max().item(),
        (with_adapter - base).abs().max().item(),
    )
    assert effect > 0.01 and error < 0.1 * effect


def test_an_adapter_on_4_bit_weights_is_trained_and_merged_into_whole_ones(home: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    done = launch_in(home, *STAGES["trl_sft"], "recipe.lora.quantize=nf4", "name=nf4")
    assert done.returncode == 0, done.stdout + done.stderr
    run = home / "runs" / "demo_lora" / "nf4"
    evidence = read_evidence(run)
    assert evidence["base_dtype"] == ("proven", "nf4")
    assert {evidence[name][0] for name in ("lora", "first_update")} == {"proven"}

    done = launch_in(home, "merge", "demo_lora/nf4")
    assert done.returncode == 0, done.stdout + done.stderr
    merged = json.loads((run / "merged" / "merge.json").read_text(encoding="utf-8"))["report"]
    # of the merged model, against the base in its own type and the adapter
    assert merged["error"] < 1e-4
    # against the 4-bit base that was trained
    assert merged["error"] < merged["quantized_error"] < 0.2
    assert merged["dtype"] == "float32" and not json.loads(
        (run / "merged" / "config.json").read_text()
    ).get("quantization_config")


@pytest.mark.thorough
def test_another_kind_of_adapter_with_8_bit_states_is_proven_and_merged(home: Path) -> None:
    pytest.importorskip("bitsandbytes")
    kind = ("recipe.lora.dora=true", "recipe.lora.rslora=true", "recipe.lora.init=pissa")
    words = ("stage=demo_lora", *kind, "recipe.optimizer=adamw_8bit", "recipe.max_steps=3")
    done = launch_in(home, *words, "name=kind")
    assert done.returncode == 0, done.stdout + done.stderr
    run = home / "runs" / "demo_lora" / "kind"
    evidence = read_evidence(run)
    proven = ("lora", "lora_dora", "lora_rslora", "lora_init", "optimizer", "first_update")
    assert {evidence[name][0] for name in (*proven, "saved_weights")} == {"proven"}
    assert evidence["optimizer"][1] == "adamw_8bit" and evidence["lora_init"][1] == "pissa"
    done = launch_in(home, "merge", "demo_lora/kind")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((run / "merged" / "merge.json").read_text(encoding="utf-8"))["report"]
    assert report["own_samples"] and report["error"] < 1e-4


@pytest.mark.thorough
@pytest.mark.parametrize("optimizer", ["paged_adamw_8bit", "adafactor"])
def test_an_adapter_is_trained_by_the_recipes_optimizer(optimizer: str, home: Path) -> None:
    pytest.importorskip("bitsandbytes")
    words = ("stage=demo_lora", f"recipe.optimizer={optimizer}", "recipe.max_steps=3")
    done = launch_in(home, *words, f"name={optimizer}")
    assert done.returncode == 0, done.stdout + done.stderr
    evidence = read_evidence(home / "runs" / "demo_lora" / optimizer)
    assert evidence["optimizer"] == ("proven", optimizer)
    assert {evidence[name][0] for name in ("lora", "first_update", "saved_weights")} == {"proven"}
