"""KTO for real, on the demo's labelled answers: evidence, rewards and KL, adapters, resuming, and the
evaluation against the start.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.data.files import write_lines
from tests.integration.conftest import finish, launch_in, records, stop_once
from tests.integration.reports import read_report

pytestmark = pytest.mark.slow

FEW = ("data.fraction=0.05", "recipe.global_batch_size=16", "recipe.per_device_batch_size=4")
KEYS = {
    *("beta", "loss", "undesirable_weight", "seed", "global_batch", "learning_rate", "dtype"),
    *("mixture", "max_seq_length", "gradient_checkpointing", "first_update", "saved_weights"),
}
METRICS = {"rewards/chosen", "rewards/rejected", "rewards/margin", "kl_answer", "loss", "entropy"}


def judged(run: Path) -> dict[str, Any]:
    items = json.loads((run / "evidence.json").read_text(encoding="utf-8"))["items"]
    return {item["what"]: item for item in items}


@pytest.mark.thorough
def test_every_setting_of_a_run_is_proven_and_its_rewards_and_kl_are_shown(home: Path) -> None:
    """The rows have one label after the other, and `data.validation` holds some of them out."""
    rows = []
    for number in range(160):
        answer = f"{number}" if number < 80 else f"{number}, if I am not mistaken."
        rows.append({"prompt": f"What is {number}?", "completion": answer, "up": number < 80})
    write_lines(home / "thumbs.jsonl", rows)
    words = (
        *("stage=demo_kto", "data.mix=thumbs.jsonl", "data.columns.label=up", *FEW[1:]),
        *("data.validation=0.2", "recipe.undesirable_weight=0.9", "recipe.max_steps=4"),
        *("recipe.epochs=2", "recipe.checkpoint_steps=null", "name=thumbs"),
    )
    done = launch_in(home, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    run = home / "runs" / "demo_kto" / "thumbs"
    evidence = judged(run)
    assert {evidence[name]["verdict"] for name in KEYS} == {"proven"}
    steps = records(run / "metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert all({"loss", "kl_answer"} <= step.keys() for step in steps)
    names = {name for step in steps for name in step}
    assert names >= METRICS
    assert "eval_loss" in steps[-1] and "eval_kl" in steps[-1]
    page = read_report(run).text
    for title in ("Rewards", "Reward margin", "KL divergence of an answer"):
        assert title in page


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["ddp", "zero2"])
def test_two_ranks_begin_as_the_reference(home: Path, mode: str) -> None:
    words = ("stage=demo_kto", "processes=2", f"parallel={mode}", f"name={mode}", *FEW)
    done = launch_in(home, *words, "recipe.max_steps=3")
    assert done.returncode == 0, done.stdout + done.stderr
    run = home / "runs" / "demo_kto" / mode
    evidence = judged(run)
    assert {item["verdict"] for item in evidence.values()} <= {"proven", None}
    assert evidence["first_loss"]["verdict"] == evidence["seed"]["verdict"] == "proven"


@pytest.mark.thorough
def test_a_killed_run_goes_on_to_the_same_losses(home: Path) -> None:
    words = (
        *("stage=demo_kto", *FEW, "recipe.epochs=3", "recipe.max_steps=null"),
        *("recipe.checkpoint_steps=2", "flags.precompute_ref_log_probs=true"),
    )
    whole, cut = (home / "runs" / "demo_kto" / name for name in ("whole", "cut"))
    code, told = finish(home, *words, "name=whole")
    assert code == 0, told

    def is_past_it() -> bool:
        steps = records(cut / "metrics.jsonl")
        return (cut / "model" / "checkpoint-6").is_dir() and steps[-1]["step"] > 6

    stop_once(home, is_past_it, signal.SIGKILL, *words, "name=cut")
    code, told = finish(home, *words, "name=cut")
    assert code == 0 and "(attempt 2)" in told, told
    losses = [
        {step["step"]: step["loss"] for step in records(run / "metrics.jsonl")}
        for run in (whole, cut)
    ]
    assert losses[0] == losses[1]
    model = "model/model.safetensors"
    assert (whole / model).read_bytes() == (cut / model).read_bytes()


def test_an_adapter_is_trained_and_merged(home: Path) -> None:
    words = ("stage=demo_kto", "recipe.lora.rank=4", "recipe.max_steps=3", "name=lora", *FEW)
    done = launch_in(home, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    run = home / "runs" / "demo_kto" / "lora"
    evidence = judged(run)
    names = ("lora", "lora_alpha", "lora_targets", "base_dtype", "first_update", "first_loss")
    assert {evidence[name]["verdict"] for name in names} == {"proven"}
    assert {name for step in records(run / "metrics.jsonl") for name in step} >= METRICS
    done = launch_in(home, "merge", "demo_kto/lora")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((run / "merged" / "merge.json").read_text(encoding="utf-8"))["report"]
    assert report["own_samples"] and report["error"] < 1e-4 < report["adapter_effect"]


@pytest.mark.thorough
def test_a_run_is_scored_against_its_start(home: Path) -> None:
    """After the demo's SFT, the answer alone becomes likelier, and more answers are right."""
    words = ("pipeline=demo,demo_kto", "name=scored", "report=false", "demo:trainer=trl_sft")
    done = launch_in(home, *words, "recipe.checkpoint_steps=null", "demo_kto:evaluate=true")
    assert done.returncode == 0, done.stdout + done.stderr
    run = home / "runs" / "demo_kto" / "scored"
    tasks = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))["tasks"]
    models = {task["task"]: task["models"] for task in tasks}
    for name in ("demo_pairs", "demo_all"):
        base, sft, kto = models[name]
        assert base["model"] == "base" and kto["verdict_against_previous"] == "better"
        assert kto["score"] >= sft["score"] + 0.1
