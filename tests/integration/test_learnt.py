"""Which answers each trainer learns with data.train_on, and what it learns of plain text: decoded from
its own samples, and proven in a run by its own labels.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from launch import resources
from launch.data.sample_problems import find_sample_problems
from launch.data.samples import PairSide, TokenizedSamples
from launch.execution.caches import plan_cache_pass
from launch.execution.samples import describe_side
from launch.planning.build import plan_on_this_machine
from launch.planning.plan import Plan
from tests.conftest import composed
from tests.data.files import write_lines
from tests.integration.jobs import run_jobs, training_job
from tests.integration.test_shapes import Previewed, add_preview, read_samples, text_of
from tests.integration.tiny_stage import TinyStage
from tests.thorough import mark_others, selected
from tests.trl_texts import INSTALLED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(INSTALLED is None, reason="TRL is not installed"),
]

LENGTH = 128  # tokens of a row
BINS = "recipe.packing=bins"
LORA = "recipe.lora.rank=4"


class Case(NamedTuple):
    """A trainer, what it learns, and what else is set."""

    trainer: str
    learns: str
    more: tuple[str, ...] = ()
    trains: bool = False  # whether the test trains with it, too


CASES = {
    "finetune last": Case("finetune", "last", trains=True),
    "finetune all": Case("finetune", "all"),
    "olmo last": Case(
        "olmo_core_finetune", "last", (BINS, "flags.config_name=olmo2_14M"), trains=True
    ),
    "trl all": Case("trl_sft", "all"),
    "trl last": Case("trl_sft", "last", trains=True),
    "trl last in bins": Case("trl_sft", "last", (BINS,), trains=True),
    "trl marked": Case("trl_sft", "marked", trains=True),
    "trl marked, flattened": Case("trl_sft", "marked", ("recipe.packing=flatten",), trains=True),
    "adapter last": Case("trl_sft", "last", (LORA,)),
    "adapter marked": Case("trl_sft", "marked", (LORA,)),
    "trl text": Case("trl_sft", "text", (BINS,), trains=True),
    "adapter text": Case("trl_sft", "text", (BINS, LORA)),
}
# in every run of the suite; the others are thorough
KEPT = ("finetune last", "trl last in bins", "trl marked")
# What each row says: the words of its answers, and which of them are marked. Answers may be equal.
ROWS = (
    (("one", "two", "three"), (True, False, True)),
    (("yes", "yes"), (True, False)),
    (("a", "a", "b"), (False, True, False)),
    (("alone",), (True,)),
)
TEXTS = ("A short text.", "A long text. " + "It goes on and on. " * 60)


def chat(answers: Sequence[str], marks: Sequence[bool] | None) -> dict[str, Any]:
    turns: list[dict[str, Any]] = []
    for number, answer in enumerate(answers):
        turns.append({"role": "user", "content": "a" if number else f"Say {' '.join(answers)}"})
        turns.append({"role": "assistant", "content": answer})
        if marks is not None:
            turns[-1]["train"] = marks[number]
    return {"messages": turns}


def due_answers(learns: str, answers: Sequence[str], marks: Sequence[bool]) -> list[str]:
    if learns == "last":
        return list(answers[-1:])
    pairs = zip(answers, marks, strict=True)
    return [answer for answer, is_marked in pairs if learns == "all" or is_marked]


def make_plan(root: Path, name: str, model: Path) -> Plan:
    case = CASES[name]
    folder = root / name.replace(",", "").replace(" ", "-")
    folder.mkdir()
    key = "data.format" if case.learns == "text" else "data.train_on"
    words = [
        "stage=sft",
        f"trainer={case.trainer}",
        f"model.path={model}",
        f"data.mix=[{{name: {root / case.learns}}}]",
        f"{key}={case.learns}",
        f"runs={folder}",
        "device=cpu",
        "recipe.global_batch_size=1",
        "recipe.per_device_batch_size=1",
        "recipe.gradient_checkpointing=false",
        "recipe.warmup_ratio=null",
        "recipe.max_steps=1",
        f"recipe.max_seq_length={LENGTH}",
        *case.more,
    ]
    return plan_on_this_machine(composed(*words))


def train(plan: Plan, folder: Path) -> list[dict[str, Any]]:
    """The jobs of a training of one step, whose events go to a file."""
    job = training_job(plan, folder)
    jobs = []
    if plan.config.trainer.tokenized_first:
        ranks = dict.fromkeys(("RANK", "LOCAL_RANK", "NODE_RANK"), "0")
        sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "NUM_NODES"), "1")
        job["env"] |= {**ranks, **sizes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531"}
        command = plan_cache_pass(plan).command
        argv = command[command.index(str(resources.WORKER)) :]
        jobs.append({**job, "argv": argv, "log": str(folder / "pass.log")})
    channel = folder / "channel"
    channel.mkdir()
    (channel / "rank-0.events").touch()
    return [*jobs, {**job, "env": {**job["env"], "LAUNCH_CHANNEL": str(channel)}}]


@pytest.fixture(scope="module")
def previews(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    tiny: TinyStage,
    olmo_stage: TinyStage,
    open_instruct: Path,
) -> dict[str, Previewed]:
    """The samples of every case that is run, and the trainings; all jobs in one process."""
    root = tmp_path_factory.mktemp("learnt")
    for learns in ("all", "last", "marked"):
        rows = [chat(words, marks if learns == "marked" else None) for words, marks in ROWS]
        write_lines(root / learns / "train.jsonl", rows)
    write_lines(root / "text" / "train.jsonl", [{"text": text} for text in TEXTS])
    jobs: list[dict[str, Any]] = []
    previewed = {}
    for name in selected(request, list(CASES)):
        case = CASES[name]
        is_olmo = case.trainer == "olmo_core_finetune"
        plan = make_plan(root, name, (olmo_stage if is_olmo else tiny).model)
        folder = plan.runs
        previewed[name] = add_preview(jobs, plan, folder)
        if case.trains:
            jobs += train(plan, folder)
    run_jobs(root, jobs, open_instruct)
    return previewed


def sides_of(data: TokenizedSamples) -> list[PairSide]:
    return [sample.sides[0] for sample in data.samples]


CHATS = [name for name in CASES if CASES[name].learns != "text"]


@pytest.mark.parametrize("name", mark_others(CHATS, KEPT))
def test_the_requested_answers_are_learnt_and_no_others(
    previews: dict[str, Previewed], name: str
) -> None:
    learns = CASES[name].learns
    data = read_samples(previews[name])
    assert len(data.samples) == len(ROWS)
    assert find_sample_problems(data) == []
    for side, (words, marks) in zip(sides_of(data), ROWS, strict=True):
        learnt = [text for text in text_of(side, loss=True).split("\0") if text]
        due = due_answers(learns, words, marks)
        assert [text.partition("<|")[0].strip() for text in learnt] == due
        numbers = [2 * n + 1 for n, word in enumerate(words) if is_due(learns, n, words, marks)]
        answers = dict(side.answers)
        assert [number for number, is_learnt in answers.items() if is_learnt] == (
            numbers if len(words) > 1 else []
        )
        if len(words) > len(due):
            described = ", ".join(str(number + 1) for number in numbers)
            assert describe_side(side).endswith(described)


def is_due(learns: str, number: int, words: Sequence[str], marks: Sequence[bool]) -> bool:
    if learns == "last":
        return number == len(words) - 1
    return learns == "all" or marks[number]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["trl text", "adapter text"])
def test_every_token_of_a_text_is_learnt(previews: dict[str, Previewed], name: str) -> None:
    data = read_samples(previews[name])
    assert find_sample_problems(data) == []
    for side, text in zip(sides_of(data), TEXTS, strict=True):
        assert "".join(side.pieces).removesuffix("<|eos|>").strip() == text.strip()
        assert side.pieces[-1] == "<|eos|>"
        assert side.loss is not None and all(side.loss)
        assert not side.is_truncated
    assert len(sides_of(data)[1].ids) > 2 * LENGTH  # its pieces are in several rows


TRAINED = [name for name in CASES if CASES[name].trains]


@pytest.mark.parametrize("name", mark_others(TRAINED, KEPT))
def test_a_run_proves_what_it_learns(previews: dict[str, Previewed], name: str) -> None:
    folder = previews[name].out.parent
    log = (folder / "training.log").read_text(encoding="utf-8")
    lines = (folder / "channel" / "rank-0.events").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    found = [event for event in events if event.get("what") == "train_on"]
    assert [event["verdict"] for event in found] == ["proven"], log[-3000:]
    assert found[0]["value"] == CASES[name].learns
    assert not found[0]["note"].startswith("0")
