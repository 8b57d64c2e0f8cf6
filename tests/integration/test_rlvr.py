"""RLVR on CPUs, real processes: alone, on two ranks, with ZeRO and an adapter; killed and resumed;
useless rewards.
"""

from __future__ import annotations

import json
import re
import signal
import statistics
from pathlib import Path

import psutil
import pytest

from launch.errors import EXIT_REFUSED, EXIT_STOPPED
from tests.integration import warm
from tests.integration.conftest import finish, launch_in, records, stop_once

pytestmark = pytest.mark.slow

# the untrained model: none of its answers is right, so that another verifier scores them, and they
# never end, which the sampling proof would refuse
LENGTH = """
def length(completions, **_):
    return [len(completions[0][0]["content"]) % 3 / 2]
"""
SMALL = (
    *(
        "stage=demo_rlvr",
        "model=demo",
        "allow=[refuted_complete_answers,reward_proof]",
        "report=false",
    ),
    *("recipe.verifier=length.py:length", "recipe.max_steps=4"),
    *("recipe.prompts_per_step=4", "recipe.samples_per_prompt=4", "recipe.per_device_batch_size=4"),
    *("recipe.response_length=16", "recipe.truncated_reward=null"),
)
PROVEN = "allow=[refuted_complete_answers]"  # the proof of the verifier is not left out

# on a CPU its cache takes most of the memory unless it has a size
BATCHED = (
    "recipe.generation=continuous",
    'flags.transformers_continuous_batching_config=\'{"num_blocks": 64, "max_batch_tokens": 512}\'',
)


def small(*words: str) -> tuple[str, ...]:
    """Return a small run's overrides, of which `words` replace some."""
    keys = {word.partition("=")[0] for word in words}
    return (*(word for word in SMALL if word.partition("=")[0] not in keys), *words)


def train(home: Path, *words: str, python: str | None = None) -> tuple[int, str]:
    """Return the exit code of a small run and what it printed."""
    (home / "length.py").write_text(LENGTH, encoding="utf-8")
    return finish(home, *small(*words), python=python)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("batched", ("recipe.kl_beta=0.05", *BATCHED)),
        pytest.param("zero3", ("processes=2", "parallel=zero3"), marks=pytest.mark.thorough),
        pytest.param(
            "adapter",
            ("processes=2", "parallel=zero2", "recipe.lora.rank=4"),
            marks=pytest.mark.thorough,
        ),
        # samples outside autocast
        pytest.param(
            "adapter-bf16",
            ("recipe.lora.rank=4", "recipe.precision=bf16"),
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_it_trains_and_records(home: Path, name: str, words: tuple[str, ...]) -> None:
    code, output = train(home, f"name={name}", *words)
    assert code == 0, output
    folder = home / "runs" / "demo_rlvr" / name
    steps = records(folder / "metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    recorded = {
        "reward",
        "reward_std",
        "rewards/length/mean",
        "frac_reward_zero_std",
        "entropy",
        "verifier_failures",
    }
    recorded |= {
        "completions/mean_length",
        "completions/clipped_ratio",
        "generation_seconds",
        "verifier_seconds",
    }
    assert recorded <= steps[0].keys()
    assert ("kl" in steps[0]) == ("recipe.kl_beta=0.05" in words)
    events = records(folder / "events.jsonl")
    completions = [event for event in events if event["kind"] == "completion"]
    assert sorted({event["step"] for event in completions}) == [0, 2, 4]
    evidence = {event["what"]: event for event in events if event["kind"] == "evidence"}
    assert evidence["global_batch"]["verdict"] == "proven"
    # the batch that trains: sampling takes all 16 answers of a step at once
    of_batch = evidence["packing"]["note"]
    assert of_batch.startswith("first micro batch: 4 rows of") and "documents" not in of_batch
    shown = {
        what: evidence[what]["value"]
        for what in ("rewards", "samples_per_prompt", "reference", "sampler_weights")
    }
    reference = "starting model" if "recipe.kl_beta=0.05" in words else "none"
    expected = {"rewards": "the verifiers'", "samples_per_prompt": "4", "reference": reference}
    assert shown == {**expected, "sampler_weights": "trained"}


def test_a_killed_run_goes_on_with_the_same_samples(home: Path) -> None:
    words = ("recipe.checkpoint_steps=2",)
    code, output = train(home, "name=whole", *words)
    assert code == 0, output
    folder = home / "runs" / "demo_rlvr" / "killed"
    metrics = folder / "metrics.jsonl"
    stop_once(
        home, lambda: len(records(metrics)) >= 3, signal.SIGKILL, *small("name=killed", *words)
    )
    code, output = train(home, "name=killed", *words)
    assert code == 0, output
    same = ("reward", "completions/mean_length", "entropy", "grad_norm")
    whole, resumed = (
        records(folder.with_name(name) / "metrics.jsonl")[-1] for name in ("whole", "killed")
    )
    assert {name: whole[name] for name in same} == pytest.approx(
        {name: resumed[name] for name in same}, rel=1e-6
    )


@pytest.mark.thorough
@pytest.mark.timeout(2400)
def test_the_recipe_in_miniature_teaches(home: Path) -> None:
    """Three stages as one command, the last with fewer steps; `eval` shows the gain of each, and
    answers that end.
    """
    words = (
        "pipeline=demo,demo_dpo,demo_rlvr",
        "name=mini",
        "report=false",
        "recipe.checkpoint_steps=null",
    )
    words += ("demo_rlvr:recipe.max_steps=24", "demo_rlvr:evaluate=true")
    done = launch_in(home, "run", *words)
    assert done.returncode == 0, done.stderr
    folder = home / "runs" / "demo_rlvr" / "mini"
    rewards = [step["reward"] for step in records(folder / "metrics.jsonl")]
    assert statistics.fmean(rewards[-4:]) >= statistics.fmean(rewards[:4]) + 0.15
    tasks = {
        task["task"]: task for task in json.loads((folder / "evaluation.json").read_text())["tasks"]
    }
    assert [name for name, task in tasks.items() if task["broken"]] == []
    scores = {name: [model["score"] for model in task["models"]] for name, task in tasks.items()}
    base, sft, _, _ = scores["demo_all"]
    assert base <= 0.02 and sft >= 0.3
    base, sft, dpo, rlvr = scores["demo_reward"]
    # of fewer steps; one answer a question is sampled
    assert base <= 0.02 and dpo > sft > base and rlvr >= dpo + 0.1
    assert scores["demo_pairs"][2] >= scores["demo_pairs"][1] + 0.05


ASKED = [{"role": "user", "content": "?"}]
GOOD_ROWS = [
    {"messages": ASKED, "ground_truth": str(truth), "dataset": "gsm8k"} for truth in range(1, 5)
]
LONG_ROW = {**GOOD_ROWS[0], "messages": [{"role": "user", "content": "word " * 500}]}


@pytest.mark.thorough
def test_a_verifier_that_does_not_answer_is_one_sentence_and_leaves_nothing(home: Path) -> None:
    """The proof's other sentences are in tests/worker/test_reward_proof.py."""
    own = home / "own.py"
    own.write_text("def f(**_): __import__('time').sleep(600)\n", encoding="utf-8")
    ended, output = train(
        home, "name=bad", PROVEN, f"recipe.verifier={own}:f", "guards.verifier.seconds=2"
    )
    assert ended == EXIT_REFUSED, output
    (problem,) = [line for line in output.splitlines() if line.endswith("]") and "launch: " in line]
    assert "`f` did not answer within 2 s on" in problem and problem.endswith("[reward_proof]")
    assert not (home / "runs" / "demo_rlvr" / "bad").exists()
    left = [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(home)]
    assert not left


@pytest.mark.thorough
def test_several_data_sets_are_proven_and_trained_on(home: Path) -> None:
    """Each with its share; one of them has `messages`, as upstream's mixtures, and the other one
    `prompt`.
    """
    parts = [
        [{**row, "ground_truth": "json"} for row in GOOD_ROWS],
        [{"prompt": "?", "ground_truth": "re"}] * 8,
    ]
    for name, rows in zip("ab", parts, strict=True):
        (home / f"{name}.jsonl").write_text(
            "".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8"
        )
    words = (
        "name=mixed",
        "data.mix=[{name: a.jsonl}, {name: b.jsonl, share: 0.5}]",
        "recipe.max_steps=2",
    )
    code, output = train(home, *words)
    assert code == 0, output
    log = (home / "runs" / "demo_rlvr" / "mixed" / "logs" / "rank-0.log").read_text()
    assert "4 -> 4 rows (subset 1.0)" in log and "8 -> 4 rows (subset 0.5)" in log
    with (home / "b.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(LONG_ROW) + "\n")
    code, output = train(home, "name=long", PROVEN, *words[1:])
    assert (
        code == EXIT_REFUSED
        and "1 prompt longer than the 240 tokens" in output
        and "row 13 has" in output
    )


@pytest.mark.thorough
def test_a_reward_that_never_differs_stops_before_it_trains(home: Path) -> None:
    """Right in the proof; nothing that this model writes is ever a reference answer."""
    own = home / "own.py"
    own.write_text(
        "def f(completions, ground_truth, **_): return [float(completions[0][0]['content'] == "
        "ground_truth[0])]\n"
    )
    ended, output = train(home, "name=never", PROVEN, f"recipe.verifier={own}:f")
    assert ended == EXIT_STOPPED, output
    assert "[refuted_reward_variance]" in output
    assert not records(home / "runs" / "demo_rlvr" / "never" / "metrics.jsonl")


STALE = """
import builtins, contextlib, copy, sys

_import, _copies = builtins.__import__, []

@contextlib.contextmanager
def _stale(model, *args, **kwargs):
    if not _copies:
        _copies.append(copy.deepcopy(model))
        _copies[0].__dict__.pop("forward", None)  # TRL binds it to the model it came from
    yield _copies[0]

def _with_stale_sampler(name, *args, **kwargs):
    module = _import(name, *args, **kwargs)
    trainer = sys.modules.get("trl.trainer.grpo_trainer")
    if hasattr(trainer, "GRPOTrainer"):
        trainer.unwrap_model_for_generation = _stale
    return module

builtins.__import__ = _with_stale_sampler
"""


@pytest.mark.thorough
def test_a_sampler_that_keeps_the_old_weights_is_refuted(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What verl #7495 lost two months to, made in TRL's own trainer: it samples from a copy of the
    first weights.
    """
    (home / "stale").mkdir()
    (home / "stale" / "sitecustomize.py").write_text(STALE)
    monkeypatch.setenv("PYTHONPATH", str(home / "stale"))
    # which read sitecustomize.py
    code, output = train(home, "name=stale", python=warm.python_with_cold_ranks())
    assert code == EXIT_STOPPED, output
    assert "[refuted_sampler_weights]" in output


@pytest.mark.thorough
def test_a_rollout_compares_the_rewards_of_its_widths(home: Path) -> None:
    (home / "length.py").write_text(LENGTH, encoding="utf-8")
    done = launch_in(home, "rollout", *small("device=cpu", "processes=1,2", "steps=3", "name=two"))
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((home / "runs" / "demo_rlvr" / "rollout-two" / "rollout.json").read_text())
    gates = [{gate["id"]: gate["message"] for gate in width["gates"]} for width in record["runs"]]
    assert "same_rewards" not in gates[0] and "sampling alone makes" in gates[1]["same_rewards"]
    for width in gates:
        assert re.search(r"generation [\d,]+ tokens/s, training [\d,]+", width["generation_speed"])


TURNS = f"""
import itertools

_calls = itertools.count()
{LENGTH}
def constant(completions, **columns):
    return length(completions) if next(_calls) < 160 else [0.0]  # the proof's 128 answers and two steps
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("function", "words", "guard"),
    [
        ("constant", ("recipe.max_steps=8", "guards.reward_variance.steps=2"), "reward_variance"),
        (
            "length",
            ("guards.length_limit.steps=2", "guards.length_limit.share=0.5"),
            "length_limit",
        ),
    ],
)
def test_a_run_that_goes_wrong_is_stopped_by_its_guard(
    home: Path, function: str, words: tuple[str, ...], guard: str
) -> None:
    """A reward function that turns constant, and answers that never end; test_guards.py has the
    guards as a table.
    """
    (home / "turns.py").write_text(TURNS, encoding="utf-8")
    own = (f"recipe.verifier={home / 'turns.py'}:{function}", "recipe.response_length=8")
    own += ("recipe.per_device_batch_size=16",)
    ended, output = train(home, f"name={guard}", *own, *words)
    assert ended == EXIT_STOPPED, output
    failed = json.loads(
        (home / "runs" / "demo_rlvr" / guard / "FAILED").read_text(encoding="utf-8")
    )
    assert failed["cause_id"] == guard
