"""Validation with TRL's real trainers: the loss is that of the held-out rows, which are never
trained on; an early stop ends the run with its best checkpoint, and so does a resumed one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launch import resources
from launch.planning.build import plan_on_this_machine
from launch.planning.plan import Plan
from launch.worker.trl_data import split_rows, subset_rows
from tests.conftest import composed
from tests.data.files import write_lines
from tests.integration.conftest import launch_in, records
from tests.integration.jobs import run_jobs, training_job
from tests.integration.reports import read_report
from tests.integration.tiny_stage import TinyStage

pytestmark = pytest.mark.slow

PER_DEVICE = 4
BETA = 0.5
RECIPE = (
    *(
        "device=cpu",
        "recipe.global_batch_size=8",
        f"recipe.per_device_batch_size={PER_DEVICE}",
        "recipe.epochs=1",
    ),
    *("recipe.max_seq_length=128", "recipe.warmup_ratio=null", "recipe.lr_scheduler=constant"),
)
STOPPED_AT, BEST, LAST = 6, 2, 8
TULU = (resources.ROOT / "launch" / "templates" / "tulu.jinja").read_text(encoding="utf-8")


def stage_words(stage: str, trainer: str, tiny: TinyStage) -> list[str]:
    data = tiny.chats if trainer == "trl_sft" else tiny.preferences
    mix = f"data.mix=[{{name: {data}}}]"
    return [
        f"stage={stage}",
        f"trainer={trainer}",
        "data.build=null",
        mix,
        f"model.path={tiny.model}",
        *RECIPE,
    ]


# an early stop


@pytest.fixture(scope="module")
def stopped(
    tmp_path_factory: pytest.TempPathFactory, tiny: TinyStage
) -> tuple[Path, list[str], str]:
    """A finished run that learns sums and is measured on other sentences: their loss rises from the
    start.
    """
    home = tmp_path_factory.mktemp("stopped")
    answers = ["Nobody knows who wrote it. " * (number % 3 + 1) for number in range(6)]
    chats = [
        {
            "messages": [
                {"role": "user", "content": f"Who wrote book {n}?"},
                {"role": "assistant", "content": answer},
            ]
        }
        for n, answer in enumerate(answers)
    ]
    (home / "held_out.jsonl").write_text(
        "".join(json.dumps(chat) + "\n" for chat in chats), encoding="utf-8"
    )
    words = [
        *stage_words("demo", "trl_sft", tiny),
        "recipe.chat_template=tulu",
        "recipe.learning_rate=0.01",
        "name=x",
    ]
    words += [f"recipe.max_steps={LAST}", "data.validation=held_out.jsonl", "recipe.early_stop=2"]
    words += [f"recipe.eval_steps={BEST}", f"recipe.checkpoint_steps={BEST}"]
    done = launch_in(home, "run", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return home, words, done.stdout


@pytest.mark.thorough
def test_the_run_stops_early_and_every_record_shows_it(
    stopped: tuple[Path, list[str], str],
) -> None:
    home, _, printed = stopped
    folder = home / "runs" / "demo" / "x"
    steps = records(folder / "metrics.jsonl")
    assert [step["step"] for step in steps] == list(range(1, STOPPED_AT + 1))
    losses = {step["step"]: step["eval_loss"] for step in steps if "eval_loss" in step}
    assert list(losses) == [2, 4, 6]
    assert losses[2] < losses[4] < losses[6]
    outcome = json.loads((folder / "DONE").read_text())
    reason = (
        f"stopped early at step 6: 2 evaluations without an eval_loss below {losses[2]:.4f} "
        "(step 2)"
    )
    assert (outcome["steps"], outcome["planned_steps"]) == (STOPPED_AT, LAST)
    assert outcome["validation"] == {
        "step": STOPPED_AT,
        "eval_loss": losses[6],
        "best": {
            "step": BEST,
            "eval_loss": losses[2],
            "checkpoint": "checkpoint-2",
            "is_model": True,
        },
        "early_stop": reason,
        "sets": {},
    }
    assert f"evaluation at step 4: eval_loss {losses[4]:.4f}" in printed
    assert reason in printed
    assert f"best {losses[2]:.4f} at step 2 (checkpoint-2, which is the model)" in printed
    status = launch_in(home, "status").stdout
    assert f"{losses[6]:.4f} (best {losses[2]:.4f} at 2)" in status
    assert f"  {reason}" in status.splitlines()
    assert "validation loss at step 6" in read_report(folder).text


def test_eval_loss_is_the_loss_on_the_held_out_rows(stopped: tuple[Path, list[str], str]) -> None:
    from safetensors.torch import load_file

    home = stopped[0]
    folder = home / "runs" / "demo" / "x"
    logged = {
        step["step"]: step["eval_loss"]
        for step in records(folder / "metrics.jsonl")
        if "eval_loss" in step
    }
    rows = [row["messages"] for row in records(home / "held_out.jsonl")]
    by_hand = {step: chat_loss(folder / "model" / f"checkpoint-{step}", rows) for step in logged}
    assert by_hand == pytest.approx(logged, rel=1e-4)
    best, model = (
        load_file(path / "model.safetensors")
        for path in (folder / "model/checkpoint-2", folder / "model")
    )
    assert all(model[name].equal(best[name]) for name in best)


def chat_loss(model_folder: Path, chats: Sequence[list[dict[str, str]]]) -> float:
    """Return the mean over samples of their batch's mean over the answers' tokens, as transformers'
    Trainer has it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = (
        of.from_pretrained(model_folder) for of in (AutoTokenizer, AutoModelForCausalLM)
    )
    total = 0.0
    for start in range(0, len(chats), PER_DEVICE):
        batch = chats[start : start + PER_DEVICE]
        summed, tokens = 0.0, 0
        for chat in batch:
            options = {
                "return_dict": True,
                "return_assistant_tokens_mask": True,
                "chat_template": TULU,
            }
            encoded = tokenizer.apply_chat_template(chat, **options)
            ids, mask = (
                torch.tensor([encoded["input_ids"]]),
                torch.tensor(encoded["assistant_masks"]).bool(),
            )
            with torch.no_grad():
                logits = model(input_ids=ids).logits[0, :-1].float()
            nll = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
            summed, tokens = summed + float(nll[mask[1:]].sum()), tokens + int(mask[1:].sum())
        total += summed / tokens * len(batch)
    return total / len(chats)


@pytest.mark.thorough
def test_a_run_killed_while_it_saves_ends_as_it_would_have(
    stopped: tuple[Path, list[str], str],
) -> None:
    home, words, _ = stopped
    folder = home / "runs" / "demo" / "x"
    before = json.loads((folder / "DONE").read_text())
    for lost in (
        folder / "DONE",
        folder / "model" / "model.safetensors",
        folder / "model" / "config.json",
    ):
        lost.unlink()
    resumed = launch_in(home, "run", *words)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "resumes from checkpoint-6" in resumed.stdout
    after = json.loads((folder / "DONE").read_text())
    assert {name: after[name] for name in ("steps", "validation")} == {
        name: before[name] for name in ("steps", "validation")
    }
    best, model = (
        path / "model.safetensors" for path in (folder / "model" / "checkpoint-2", folder / "model")
    )
    assert model.read_bytes() == best.read_bytes()
    assert len(records(folder / "metrics.jsonl")) == STOPPED_AT


# the rows


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny: TinyStage
) -> dict[str, tuple[Plan, Path]]:
    """Workers without their launcher, in one process: `sft` and `demo_dpo` end after the batches of
    an epoch, which they record; `dpo` trains two steps and saves, for the one test that asks.
    """
    root = tmp_path_factory.mktemp("trained")
    words = {
        "sft": [
            *stage_words("demo", "trl_sft", tiny),
            "recipe.max_steps=null",
            "recipe.chat_template=tulu",
        ],
        "demo_dpo": [
            "stage=demo_dpo",
            "trainer=trl_dpo",
            "recipe.max_steps=null",
            "data.fraction=0.02",
        ],
        "dpo": [
            *stage_words("demo_dpo", "trl_dpo", tiny),
            "recipe.max_steps=2",
            "recipe.checkpoint_steps=2",
        ],
    }
    words["dpo"] += ["recipe.loss=dpo", f"recipe.beta={BETA}", "recipe.learning_rate=0.003"]
    if not any(
        item.name == "test_the_eval_loss_of_dpo_is_that_of_the_held_out_pairs"
        for item in request.session.items
    ):
        del words["dpo"]
    jobs, plans = [], {}
    for name, overrides in words.items():
        configuration = composed(
            *overrides, "data.validation=0.1", f"runs={root / name}", f"cache={root / 'cache'}"
        )
        plan = plan_on_this_machine(configuration)
        job = training_job(plan, root, name)
        if name != "dpo":
            job |= {"rows": len(trained_rows(plan)), "batches": str(root / f"{name}.json")}
        jobs.append(job)
        plans[name] = (plan, root / f"{name}.json")
    run_jobs(root, jobs)
    return plans


def trained_rows(plan: Plan) -> list[dict[str, Any]]:
    """Return the rows that a plan should train on."""
    [entry] = plan.inputs.mixture
    assert entry.source.local is not None
    rows = records(entry.source.local)
    kept = split_rows(rows, 0.1)[0] if plan.inputs.held_out else range(len(rows))
    chosen = subset_rows(repr(entry.share), len(kept)) if entry.share != 1.0 else range(len(kept))
    return [rows[kept[number]] for number in chosen]


def held_out_rows(plan: Plan) -> list[dict[str, Any]]:
    [entry] = plan.inputs.mixture
    assert entry.source.local is not None
    if plan.inputs.held_out:
        rows = records(entry.source.local)
        return [rows[number] for number in split_rows(rows, 0.1)[1]]
    return records(entry.source.local.with_name("validation.jsonl"))


@pytest.mark.parametrize("name", ["sft", "demo_dpo"])
def test_the_batches_of_an_epoch_hold_the_rows_to_train_on_and_none_of_the_others(
    name: str, trained: dict[str, tuple[Plan, Path]]
) -> None:
    from transformers import AutoTokenizer

    plan, batches = trained[name]
    tokenizer = AutoTokenizer.from_pretrained(plan.inputs.model.reference)
    column, template = ("messages", {"chat_template": TULU}) if name == "sft" else ("chosen", {})

    def tokens_of(rows: list[dict[str, Any]]) -> set[tuple[int, ...]]:
        encoded = (
            tokenizer.apply_chat_template(row[column], return_dict=True, **template) for row in rows
        )
        return {tuple(item["input_ids"]) for item in encoded}

    assert batches.is_file(), batches.with_suffix(".log").read_text(encoding="utf-8")[-3000:]
    seen = set()
    for batch in json.loads(batches.read_text(encoding="utf-8")):
        # of pairs the chosen halves come first
        count = len(batch["input_ids"]) // (1 if name == "sft" else 2)
        for ids, mask in list(zip(batch["input_ids"], batch["attention_mask"], strict=True))[
            :count
        ]:
            seen.add(tuple(ids[: sum(mask)]))
    assert seen == tokens_of(trained_rows(plan))
    held_out = tokens_of(held_out_rows(plan))
    assert len(held_out) >= 5
    assert not seen & held_out


@pytest.mark.thorough
def test_the_eval_loss_of_dpo_is_that_of_the_held_out_pairs(
    trained: dict[str, tuple[Plan, Path]],
) -> None:
    plan, batches = trained["dpo"]
    checkpoint = plan.model_dir / "checkpoint-2"
    assert checkpoint.is_dir(), batches.with_suffix(".log").read_text(encoding="utf-8")[-3000:]
    log = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
    [logged] = [entry["eval_loss"] for entry in log if "eval_loss" in entry]
    assert logged == pytest.approx(
        pair_loss(checkpoint, Path(plan.inputs.model.reference), held_out_rows(plan)), rel=1e-4
    )


def pair_loss(model_folder: Path, reference_folder: Path, pairs: list[dict[str, Any]]) -> float:
    """Return the mean of DPO's loss over pairs, against the reference model."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(reference_folder)
    models = [
        AutoModelForCausalLM.from_pretrained(folder) for folder in (model_folder, reference_folder)
    ]

    def log_ratio(chat: list[dict[str, str]]) -> float:
        ids = torch.tensor([tokenizer.apply_chat_template(chat, return_dict=True)["input_ids"]])
        prompt = tokenizer.apply_chat_template(
            chat[:-1], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        sums = []
        for model in models:
            with torch.no_grad():
                log_probs = model(input_ids=ids).logits[0, :-1].float().log_softmax(-1)
            chosen = log_probs.gather(1, ids[0, 1:, None])[:, 0]
            sums.append(float(chosen[len(prompt) - 1 :].sum()))
        return sums[0] - sums[1]

    margins = torch.tensor(
        [log_ratio(pair["chosen"]) - log_ratio(pair["rejected"]) for pair in pairs]
    )
    return float(-torch.nn.functional.logsigmoid(BETA * margins).mean())


# several validation sets


@pytest.mark.thorough
def test_each_validation_set_has_a_curve_of_its_own(tiny: TinyStage, tmp_path: Path) -> None:
    chats = [row["messages"] for row in records(tiny.chats)]
    write_lines(tmp_path / "sums.jsonl", [{"messages": turns} for turns in chats])
    others = []
    for question, answer in chats:
        asked = {**question, "content": f"Please add: {question['content']}"}
        others.append({"messages": [asked, answer]})
    write_lines(tmp_path / "other_sums.jsonl", others)
    words = stage_words("demo", "trl_sft", tiny)
    words[3] = "data.mix=[{name: ./sums.jsonl}, {name: ./other_sums.jsonl}]"
    sets = "[{name: ./sums.jsonl, share: 0.25}, {name: ./other_sums.jsonl, share: 0.125}]"
    words += [f"data.validation={sets}", "recipe.eval_steps=2", "recipe.checkpoint_steps=2"]
    words += ["recipe.early_stop=5", "recipe.max_steps=4", "recipe.chat_template=tulu", "name=sets"]
    done = launch_in(tmp_path, "run", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "runs" / "demo" / "sets"
    evaluated = [step for step in records(folder / "metrics.jsonl") if "eval_loss" in step]
    assert [step["step"] for step in evaluated] == [2, 4]
    held_out = {}
    for file in tmp_path.glob("runs/.cache/data/*/validation.jsonl"):
        rows = [row["messages"] for row in records(file)]
        trained = [row["messages"] for row in records(file.with_name("train.jsonl"))]
        assert not [turns for turns in rows if turns in trained]
        is_other = rows[0][0]["content"].startswith("Please")
        held_out["other_sums" if is_other else "sums"] = rows
    assert {name: len(rows) for name, rows in held_out.items()} == {"sums": 16, "other_sums": 8}
    for step in evaluated:
        model = folder / "model" / f"checkpoint-{step['step']}"
        for name, rows in held_out.items():
            assert step[f"eval_loss/{name}"] == pytest.approx(chat_loss(model, rows), rel=1e-4)
        mean = (2 * step["eval_loss/sums"] + step["eval_loss/other_sums"]) / 3
        assert step["eval_loss"] == pytest.approx(mean)
    best = min(evaluated, key=lambda step: step["eval_loss"])
    validation = json.loads((folder / "DONE").read_text())["validation"]
    assert validation["best"]["step"] == best["step"] and validation["best"]["is_model"]
    text = read_report(folder).text
    assert "validation: sums" in text and "validation: other_sums" in text
    status = launch_in(tmp_path, "status").stdout
    assert f"sums {evaluated[-1]['eval_loss/sums']:.4f}" in status


@pytest.mark.thorough
def test_streamed_rows_are_trained_on_and_the_held_out_ones_evaluated(
    tiny: TinyStage, tmp_path: Path
) -> None:
    words = stage_words("demo", "trl_sft", tiny)
    words += ["flags.dataset_streaming=true", "recipe.chat_template=tulu", "name=stream"]
    done = launch_in(tmp_path, "run", *words, "recipe.max_steps=3", "data.validation=0.25")
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "runs" / "demo" / "stream"
    steps = records(folder / "metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2, 3]
    [file] = tmp_path.glob("runs/.cache/data/*/validation.jsonl")
    held_out = [row["messages"] for row in records(file)]
    assert steps[-1]["eval_loss"] == pytest.approx(chat_loss(folder / "model", held_out), rel=1e-4)
