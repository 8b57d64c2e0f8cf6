"""The demo stages as a user runs them: every trainer on one CPU process, and on two in DDP, under
ZeRO-3, or both.

The runs on one process are tracked by W&B, offline, through the trainer's own code.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integration import warm
from tests.integration.conftest import launch_in, records
from tests.integration.reports import read_report
from tests.thorough import mark_others

STEPS = 3
TRAINERS = {
    "finetune": "demo",
    "dpo_tune_cache": "demo_dpo",
    "trl_sft": "demo",
    "trl_dpo": "demo_dpo",
}
WIDTHS = {
    "one": (["processes=1"], {"distributed": "NO", "world_size": "1"}),
    "two": (["processes=2"], {"distributed": "MULTI_CPU", "world_size": "2"}),
    "zero3": (
        ["processes=2", "parallel=zero3"],
        {"distributed": "DEEPSPEED", "world_size": "2", "zero_stage": "3"},
    ),
}
RUNS = [
    *(("finetune", width) for width in WIDTHS),
    *((trainer, width) for trainer in ("dpo_tune_cache", "trl_sft") for width in ("one", "zero3")),
    *(("trl_dpo", width) for width in ("one", "two")),
]
TRACKED = ("finetune", "dpo_tune_cache", "trl_sft")
# in every run of the suite; the others are thorough
KEPT = [("finetune", "one"), ("trl_sft", "one"), ("trl_sft", "zero3"), ("trl_dpo", "one")]
METRICS = {
    *("loss", "lr", "grad_norm", "seconds", "tokens", "tokens_padded", "padding_share"),
    *("tokens_per_second", "tokens_per_second_total"),
}
REWARDS = {"rewards/chosen", "rewards/rejected", "rewards/accuracy", "rewards/margin"}
TOKEN = "hf_" + "PlantedTokenThatMustNeverBeWritten"

pytestmark = pytest.mark.slow
FIRST_LOSS: dict[str, dict[str, float]] = {}


@pytest.mark.parametrize(("trainer", "width"), mark_others(RUNS, KEPT))
def test_demo(trainer: str, width: str, home: Path, request: pytest.FixtureRequest) -> None:
    if trainer in ("finetune", "dpo_tune_cache"):
        request.getfixturevalue("open_instruct")
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    words, expected = WIDTHS[width]
    stage = TRAINERS[trainer]
    name = f"{trainer}-{width}"
    tracked = trainer in TRACKED and width == "one" and find_spec("wandb") is not None
    words = [*words, *(["tracking=wandb_offline", "tracking_project=mine"] if tracked else [])]
    ran = launch_in(
        home,
        "run",
        *(
            f"stage={stage}",
            f"trainer={trainer}",
            f"name={name}",
            f"recipe.max_steps={STEPS}",
            *words,
        ),
        # one that starts as a user's; test_push.py and tests/test_safe_path.py do so with trl_sft
        python=warm.python_with_cold_ranks() if name == "finetune-one" else None,
        HF_TOKEN=TOKEN,
        WANDB_MODE="disabled",
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    folder = home / "runs" / stage / name

    steps = records(folder / "metrics.jsonl")
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    assert all(step["loss"] > 0 and step["schema_version"] == 1 for step in steps)
    complete = METRICS | REWARDS if stage == "demo_dpo" else METRICS
    assert all(complete <= step.keys() for step in steps)
    FIRST_LOSS.setdefault(trainer, {})[width] = steps[0]["loss"]

    events = records(folder / "events.jsonl")
    said = {event["what"]: event["value"] for event in events if event["kind"] == "evidence"}
    assert {key: str(said[key]) for key in expected} == expected

    items = json.loads((folder / "evidence.json").read_text())["items"]
    assert {item["verdict"] for item in items} == {"proven", None}
    assert {"dtype", "packing", "grad_clip", "gradient_checkpointing"} <= {
        i["what"] for i in items if i["verdict"]
    }

    plan = json.loads((folder / "plan.json").read_text())
    applied = {event["id"] for event in events if event["kind"] == "patch" and event["applied"]}
    assert applied == {patch.partition("=")[0] for patch in plan["patches"]}
    assert json.loads((folder / "DONE").read_text())["steps"] == STEPS
    assert (folder / "model" / "config.json").is_file()
    if tracked:
        (record,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
        data = record.read_bytes()
        assert b"mine" in data and f"{stage}-{name}".encode() in data
        assert b"loss" in data and b"learning_rate" in data
    assert f"done finished after {STEPS} of {STEPS} steps" in read_report(folder).text
    assert {f"rank-{rank}.log" for rank in range(int(expected["world_size"]))} <= {
        path.name for path in (folder / "logs").iterdir()
    }
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".safetensors":
            assert TOKEN.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("trainer", mark_others(list(TRAINERS), ["trl_sft"]))
def test_the_first_loss_is_the_same_at_every_width(trainer: str) -> None:
    """Same global batch, same model, same data: the loss of the first step does not depend on how
    it is split.
    """
    losses = FIRST_LOSS.get(trainer, {})
    if len(losses) < sum(name == trainer for name, _ in RUNS):
        pytest.skip("the runs above did not all run")
    reference = losses["one"]
    assert losses == pytest.approx(dict.fromkeys(losses, reference), rel=0.02)


def test_a_finished_run_says_so_and_starts_nothing(home: Path) -> None:
    """The run above, asked for again."""
    folder = home / "runs" / "demo_dpo" / "trl_dpo-one"
    if not (folder / "DONE").is_file():
        pytest.skip("the run above did not run")
    before = (folder / "metrics.jsonl").stat().st_mtime_ns
    words = [
        "run",
        "stage=demo_dpo",
        "trainer=trl_dpo",
        "name=trl_dpo-one",
        f"recipe.max_steps={STEPS}",
        "processes=1",
    ]
    again = launch_in(home, *words)
    assert again.returncode == 0
    assert "already done" in again.stdout
    assert (folder / "metrics.jsonl").stat().st_mtime_ns == before
    other = launch_in(home, *words, "recipe.seed=5")
    assert other.returncode == 2
    assert "[name_taken]" in other.stderr
