"""An adapter from its training to DPO on it and to a whole model, with real PEFT."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import launch_in

pytestmark = pytest.mark.slow


def read_evidence(run: Path) -> dict[str, tuple[str, str]]:
    """Return verdict and value by setting."""
    items: list[dict[str, Any]] = json.loads((run / "evidence.json").read_text(encoding="utf-8"))["items"]
    return {item["what"]: (item["verdict"], str(item["found"])) for item in items}


def test_the_adapter_trains_and_the_base_does_not(trained_adapter: Path) -> None:
    run = trained_adapter / "runs" / "demo_lora" / "sft"
    evidence = read_evidence(run)
    assert {evidence[name][0] for name in ("lora", "base_dtype", "first_update")} == {"proven"}
    assert evidence["lora"][1] == "rank 8 on 14 layers"
    assert (run / "model" / "adapter_model.safetensors").is_file()
    assert not (run / "model" / "model.safetensors").exists()


def test_dpo_goes_on_with_the_adapter_and_measures_against_it(trained_adapter: Path) -> None:
    """The reference policy is the SFT adapter: at the first step nothing has moved, and the loss is ln 2."""
    argv = ("trainer=trl_dpo", "model.path=runs/demo_lora/sft", "recipe.lora.rank=8", "recipe.lora.start=continue")
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
    torch = pytest.importorskip("torch")
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(merged)("What does `os.path.join` do?", return_tensors="pt").input_ids
    with torch.no_grad():
        whole = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)(tokens).logits
        adapted = AutoPeftModelForCausalLM.from_pretrained(merged.with_name("model"), dtype=torch.float32)
        with_adapter = adapted(tokens).logits
        with adapted.disable_adapter():
            base = adapted(tokens).logits
    error, effect = (whole - with_adapter).abs().max().item(), (with_adapter - base).abs().max().item()
    assert effect > 0.01 and error < 0.1 * effect
