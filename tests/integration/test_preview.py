"""`preview` for each trainer: what it shows is what the trainer's own first batch holds; faulty
templates are named.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launch import resources
from launch.data.sample_problems import find_sample_problems
from launch.data.samples import TokenizedSamples, parse_samples
from launch.execution.caches import plan_cache_pass
from launch.execution.preview import (
    DataSet,
    preview_command,
    preview_environment,
    write_request,
    write_samples,
)
from launch.planning.build import plan_on_this_machine
from launch.planning.plan import Plan
from tests.conftest import composed
from tests.integration.conftest import launch_in
from tests.integration.jobs import run_jobs, training_job
from tests.integration.tiny_stage import ANSWER, CHAT_TEMPLATE, OTHER, TinyStage, marked_template
from tests.thorough import mark_others, selected

pytestmark = pytest.mark.slow

ROWS = 6
MAX_LENGTH = 96
SYSTEM = {"role": "system", "content": "Answer briefly."}
NO_SYSTEM = CHAT_TEMPLATE.replace("in messages %}", "in messages if message['role'] != 'system' %}")
NO_END = CHAT_TEMPLATE.replace("{{ eos_token }}", "")
# an end, and nothing or a part of the answer before it
NO_ANSWER = CHAT_TEMPLATE.replace(
    "{{ message['content'] }}{% if message['role'] == 'assistant' %}",
    "{% if message['role'] != 'assistant' %}{{ message['content'] }}{% else %}",
)
CUT_ANSWER = NO_ANSWER.replace("{% else %}", "{% else %}{{ message['content'][:6] }}")
UNMARKED_ANSWER = marked_template(
    "{{ '<|assistant|>' + message['content'] }}{% generation %}{{ eos_token }}{% endgeneration %}"
)
TWO_BOS = "{{ bos_token }}{{ bos_token }}" + CHAT_TEMPLATE
# trl_sft learns what a template marks
UNMARKED_END = marked_template(ANSWER.replace(" + eos_token", "") + "{{ eos_token }}")
MARKED_USER = marked_template(other="{% generation %}" + OTHER + "{% endgeneration %}")
MARKED_NO_SYSTEM = marked_template(
    other="{% if message['role'] != 'system' %}" + OTHER + "{% endif %}"
)
# which leaves a pad token that is the end token
SIMPLE = "flags.get_tokenizer_fn=get_tokenizer_simple_v1"
TULU = "recipe.chat_template=tulu"  # which marks the answers, as TRL needs it
TRAINED = {
    "finetune": ("sft", ()),
    "finetune flat": ("sft", ("recipe.packing=flatten",)),
    "dpo_tune_cache": ("dpo", ()),
    "dpo": ("dpo", ("flags.config_name=olmo2_14M",)),
    "olmo_core_finetune": (
        "sft",
        (TULU, "recipe.packing=bins", "recipe.max_seq_length=128", "flags.config_name=olmo2_14M"),
    ),
    "reward_modeling": ("rm", ()),
    "trl_sft": ("sft", (TULU,)),
    "trl_sft bins": ("sft", (TULU, "recipe.packing=bins")),
    "trl_dpo": ("dpo", ()),
}
OLMO_CORE = ("dpo", "olmo_core_finetune")
# in every run of the suite; test_template_batches.py has finetune and trl_sft with other templates
KEPT = ("finetune flat", "dpo_tune_cache", "trl_sft bins", "trl_dpo")
FAULTS = {
    "loss_on_user": ("sft", "trl_sft", ("flags.assistant_only_loss=false",), CHAT_TEMPLATE, {}),
    "loss_on_user marks": ("sft", "trl_sft", (), MARKED_USER, {}),
    "no_end_of_turn": ("sft", "finetune", (), NO_END, {}),
    "no_end_of_turn marks": ("sft", "trl_sft", (), UNMARKED_END, {}),
    "system_dropped marks": ("sft", "trl_sft", (), MARKED_NO_SYSTEM, {}),
    "double_bos": ("sft", "finetune", (), TWO_BOS, {}),
    "system_dropped": ("sft", "finetune", (), NO_SYSTEM, {}),
    "no_loss_tokens": ("sft", "finetune", ("recipe.max_seq_length=8",), CHAT_TEMPLATE, {}),
    "no_loss_tokens trl": ("sft", "trl_sft", (TULU, "recipe.max_seq_length=8"), CHAT_TEMPLATE, {}),
    "answer_changed": ("sft", "finetune", (), NO_ANSWER, {}),
    # every answer is beyond the limit, and the template is wrong all the same
    "no_loss_tokens+answer_changed": (
        "sft",
        "finetune",
        ("recipe.max_seq_length=24",),
        CUT_ANSWER,
        {},
    ),
    "no_loss_tokens+answer_changed marks": ("sft", "trl_sft", (), UNMARKED_ANSWER, {}),
    "answer_changed pairs": ("dpo", "trl_dpo", (), CUT_ANSWER, {}),
    "answer_changed rewards": ("rm", "reward_modeling", (), CUT_ANSWER, {}),
    "pad_is_end": ("rm", "reward_modeling", (SIMPLE,), CHAT_TEMPLATE, {"pad_token": "<|eos|>"}),
}
KEPT_FAULTS = (
    "loss_on_user marks",
    "no_end_of_turn",
    "system_dropped",
    "answer_changed pairs",
)


@dataclass(frozen=True)
class Previewed:
    """The samples of `preview`, and the first batches of the trainer (empty for a job that does not
    train).
    """

    samples: TokenizedSamples
    batches: list[dict[str, Any]]


@pytest.fixture(scope="module")
def previews(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    tiny: TinyStage,
    olmo_stage: TinyStage,
    open_instruct: Path,
) -> dict[str, Previewed]:
    """Everything in one process: importing the trainers' libraries takes most of the time."""
    root = tmp_path_factory.mktemp("previews")
    write_data(root)
    jobs: list[dict[str, Any]] = []
    previewed: dict[str, tuple[DataSet, Path, Path]] = {}
    for name in selected(request, list(TRAINED)):
        kind, more = TRAINED[name]
        trainer = name.partition(" ")[0]
        plan = make_plan(
            root / name, kind, trainer, (olmo_stage if trainer in OLMO_CORE else tiny).model, more
        )
        previewed[name] = add_preview(jobs, plan, root / name)
        add_training(jobs, plan, root / name)
    for name in selected(request, list(FAULTS)):
        kind, trainer, more, template, changes = FAULTS[name]
        model = change_tokenizer(tiny.model, root / name / "model", template, changes)
        plan = make_plan(root / name, kind, trainer, model, more)
        previewed[name] = add_preview(jobs, plan, root / name)
    run_jobs(root, jobs, open_instruct)
    return {name: read_job(root / name, *parts) for name, parts in previewed.items()}


def write_data(root: Path) -> None:
    """Write chats with a system turn, one of which is longer than MAX_LENGTH, and pairs of the same
    questions.
    """
    answers = [f"It is {number}." if number else "It is " + "nine " * 40 for number in range(ROWS)]
    chats, pairs = [], []
    for number, answer in enumerate(answers):
        start = [SYSTEM, {"role": "user", "content": f"What is {number} plus 0?"}]
        if number == 1:
            start += [
                {"role": "assistant", "content": "Which one?"},
                {"role": "user", "content": "The first."},
            ]
        chats.append({"messages": [*start, {"role": "assistant", "content": answer}]})
        rejected = {"role": "assistant", "content": "I would rather not say."}
        pairs.append({"chosen": chats[-1]["messages"], "rejected": [*start, rejected]})
    for kind, rows in {"sft": chats, "dpo": pairs, "rm": pairs}.items():
        (root / f"{kind}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
        )


def make_plan(folder: Path, kind: str, trainer: str, model: Path, more: Sequence[str]) -> Plan:
    data = folder.parent / f"{kind}.jsonl"
    overrides = [
        f"stage={kind}",
        f"trainer={trainer}",
        f"model.path={model}",
        f"data.mix=[{{name: {data}}}]",
    ]
    # the reference pass of dpo.py needs four times as many samples (dpo.py:217), and packed rows
    # are few
    batch = 1 if trainer in OLMO_CORE else ROWS
    overrides += [f"runs={folder}", "device=cpu", f"recipe.global_batch_size={batch}"]
    overrides += [f"recipe.per_device_batch_size={batch}", "recipe.gradient_checkpointing=false"]
    if trainer != "reward_modeling":
        overrides += ["recipe.warmup_ratio=null", "recipe.max_steps=1"]
    given = {override.partition("=")[0] for override in more}
    if "recipe.chat_template" not in given:
        overrides.append("recipe.chat_template=null")
    if "recipe.max_seq_length" not in given:
        overrides.append(
            f"recipe.max_seq_length={256 if trainer == 'reward_modeling' else MAX_LENGTH}"
        )
    if trainer == "trl_dpo":
        overrides.append("recipe.loss=dpo")
    configuration = composed(*overrides, *more)
    return plan_on_this_machine(configuration)


def add_preview(jobs: list[dict[str, Any]], plan: Plan, folder: Path) -> tuple[DataSet, Path, Path]:
    folder.mkdir(exist_ok=True)
    [entry] = plan.inputs.mixture
    data = write_samples(entry, folder / "0", ROWS)
    request, out = write_request(plan, folder, rows=ROWS, detail=ROWS)
    argv = preview_command(plan, [data], folder, request)[1:]
    env = preview_environment(plan, folder, ROWS, {})
    jobs.append({"argv": argv, "env": env, "cwd": str(folder), "log": str(folder / "preview.log")})
    return data, out, folder / "batches.json"


def add_training(jobs: list[dict[str, Any]], plan: Plan, folder: Path) -> None:
    job = training_job(plan, folder)
    if plan.trainer in OLMO_CORE:  # torchrun's
        env = job["env"]
        env |= {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
        }
        env |= {"MASTER_PORT": "29511", "NUM_NODES": "1"}
    rows = 1 if plan.config.recipe.packing == "bins" else ROWS  # a packed row holds several samples
    if plan.config.trainer.tokenized_first:
        command = plan_cache_pass(plan).command
        first = command[command.index(str(resources.WORKER)) :]
        jobs.append({**job, "argv": first, "log": str(folder / "tokenizing.log")})
    jobs.append({**job, "rows": rows, "batches": str(folder / "batches.json")})


def change_tokenizer(model: Path, folder: Path, template: str, changes: dict[str, str]) -> Path:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = template
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    shutil.copytree(model, folder)
    tokenizer.save_pretrained(folder)
    return folder


def read_job(folder: Path, data: DataSet, out: Path, batch: Path) -> Previewed:
    assert out.is_file(), (folder / "preview.log").read_text(encoding="utf-8")[-3000:]
    samples = parse_samples(json.loads(out.read_text(encoding="utf-8")), [data.places])
    if not (folder / "training.log").is_file():
        return Previewed(samples, [])
    assert batch.is_file(), (folder / "training.log").read_text(encoding="utf-8")[-3000:]
    return Previewed(samples, json.loads(batch.read_text(encoding="utf-8")))


Sequences = set[tuple[str, tuple[int, ...], tuple[bool, ...]]]


def shown(previewed: Previewed) -> Sequences:
    """Return the sequences of `preview`: side, tokens, and which of them carry loss."""
    sides = [side for sample in previewed.samples.samples if sample.kept for side in sample.sides]
    return {(side.name, side.ids, side.loss or (False,) * len(side.ids)) for side in sides}


def trained(previewed: Previewed) -> Sequences:
    """Return the sequences of the trainer's batches, without padding."""
    if previewed.batches and "label_mask" in previewed.batches[0]:
        return packed_samples(previewed.batches[0], shown(previewed), previewed.samples.pad)
    return set().union(*(sequences(batch, previewed.samples.pad) for batch in previewed.batches))


def packed_samples(batch: dict[str, Any], known: Sequences, pad: int | None) -> Sequences:
    """Return which of the known samples OLMo-core's rows consist of; nothing but padding is
    left.
    """
    found: Sequences = set()
    for ids, mask in zip(batch["input_ids"], batch["label_mask"], strict=True):
        place = 0
        while any(mask[place:]):
            sample = next(
                (
                    (side, tokens, loss)
                    for side, tokens, loss in known
                    if tuple(ids[place : place + len(tokens)]) == tokens
                    and tuple(mask[place : place + len(tokens)]) == loss
                ),
                None,
            )
            assert sample is not None, f"the row holds another sample at token {place}"
            found.add(sample)
            place += len(sample[1])
        assert set(ids[place:]) <= {pad}
    return found


def sequences(batch: dict[str, Any], pad: int | None) -> Sequences:
    if "completion_mask" in batch:  # TRL's pairs: the chosen halves, then the rejected ones
        rows = zip(
            batch["input_ids"], batch["attention_mask"], batch["completion_mask"], strict=True
        )
        names = ["chosen"] * ROWS + ["rejected"] * ROWS
        return {
            (name, tuple(ids[: sum(mask)]), tuple(map(bool, loss[: sum(mask)])))
            for name, (ids, mask, loss) in zip(names, rows, strict=True)
        }
    found: Sequences = set()
    for prefix in ("", "chosen_", "rejected_"):
        for number, ids in enumerate(batch.get(f"{prefix}input_ids", ())):
            labels = (
                batch[f"{prefix}labels"][number]
                if f"{prefix}labels" in batch
                else [-100] * len(ids)
            )
            for start, end in documents(batch, prefix, number, ids, pad):
                loss = tuple(label != -100 for label in labels[start:end])
                found.add((prefix.rstrip("_") or "messages", tuple(ids[start:end]), loss))
    return found


def documents(
    batch: dict[str, Any], prefix: str, number: int, ids: list[int], pad: int | None
) -> Iterator[tuple[int, int]]:
    if "position_ids" in batch:
        starts = [
            place for place, position in enumerate(batch["position_ids"][number]) if position == 0
        ]
        yield from zip(starts, [*starts[1:], len(ids)], strict=True)
    elif f"{prefix}attention_mask" in batch:
        yield 0, sum(batch[f"{prefix}attention_mask"][number])
    else:
        yield 0, len(ids) - ids[::-1].index(next(token for token in reversed(ids) if token != pad))


# parts of the description of the first batch
DESCRIBED = {
    "finetune": (f"{ROWS} rows of {MAX_LENGTH} tokens, ",),
    "finetune flat": (f"{ROWS} documents in 1 row of ", ", 0% padding"),
    "trl_sft bins": (" documents in ",),
    "trl_dpo": (f"{2 * ROWS} rows of {MAX_LENGTH} tokens",),
}


@pytest.mark.parametrize("name", mark_others(list(TRAINED), KEPT))
def test_preview_shows_what_the_trainer_trains_on(
    name: str, previews: dict[str, Previewed]
) -> None:
    assert shown(previews[name]) == trained(previews[name])
    assert len(shown(previews[name])) == ROWS * (2 if TRAINED[name][0] != "sft" else 1)
    longest = previews[name].samples.samples[0].sides[0]
    assert longest.is_truncated == (name != "reward_modeling")
    text = "".join(
        piece for piece, turn in zip(longest.pieces, longest.turns, strict=True) if turn == 1
    )
    assert text == "What is 0 plus 0?"
    assert not find_sample_problems(previews[name].samples)
    batch = previews[name].samples.batch
    assert batch is not None
    for part in DESCRIBED.get(name, ()):
        assert part in batch.describe()


@pytest.mark.parametrize("name", mark_others(list(FAULTS), KEPT_FAULTS))
def test_a_fault_of_template_or_masks_is_named(name: str, previews: dict[str, Previewed]) -> None:
    problems = find_sample_problems(previews[name].samples)
    assert [problem.id for problem in problems] == name.partition(" ")[0].split("+")
    assert str(problems[0].where).startswith("/")
    assert ":" in str(problems[0].where)


def test_the_verb_shows_tokens_and_their_loss(tiny: TinyStage, tmp_path: Path) -> None:
    words = (
        "stage=sft",
        "trainer=trl_sft",
        f"model.path={tiny.model}",
        f"data.mix=[{{name: {tiny.chats}}}]",
        "recipe.max_seq_length=256",
    )
    validation = (
        "data.validation=0.2",
        "recipe.eval_steps=2",
        "recipe.checkpoint_steps=2",
        "recipe.early_stop=2",
    )
    shown = launch_in(tmp_path, "preview", *words, *validation, "device=cpu", "n=2", "--json")
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr.startswith("launch: starting trl_sft to tokenize the samples\n")
    content = json.loads(shown.stdout)
    assert [len(sample["sides"]) for sample in content["samples"]] == [1, 1]
    tokens = content["samples"][0]["sides"][0]["tokens"]
    answer = "".join(token["text"] for token in tokens if token["loss"])
    first = json.loads(tiny.chats.read_text(encoding="utf-8").splitlines()[0])
    assert answer == first["messages"][-1]["content"] + "<|eos|>"
    assert content["warnings"] == []
    assert not (tmp_path / "runs" / "sft").exists()


@pytest.mark.thorough
def test_data_that_the_run_would_stream_is_shown(tiny: TinyStage, tmp_path: Path) -> None:
    words = (
        "stage=sft",
        "trainer=trl_sft",
        f"model.path={tiny.model}",
        f"data.mix=[{{name: {tiny.chats}}}]",
        "recipe.max_seq_length=256",
    )
    streamed = ("flags.dataset_streaming=true", "recipe.max_steps=2")
    shown = launch_in(tmp_path, "preview", *words, *streamed, "device=cpu", "n=2", "--json")
    assert shown.returncode == 0, shown.stderr
    assert len(json.loads(shown.stdout)["samples"]) == 2


def test_check_reads_all_rows(tiny: TinyStage, tmp_path: Path) -> None:
    lines = tiny.chats.read_text(encoding="utf-8").splitlines()[:4]
    long = {
        "messages": [
            {"role": "user", "content": "nine " * 200},
            {"role": "assistant", "content": "No."},
        ]
    }
    data = tmp_path / "mine.jsonl"
    data.write_text("\n".join([*lines, lines[1], json.dumps(long), ""]), encoding="utf-8")
    words = [
        "stage=sft",
        "trainer=trl_sft",
        f"model.path={tiny.model}",
        f"data.mix=[{{name: {data}}}]",
        "device=cpu",
    ]
    words += [
        "recipe.global_batch_size=2",
        "recipe.max_seq_length=128",
        "recipe.gradient_checkpointing=false",
    ]
    checked = launch_in(tmp_path, "check", *words, "--json")
    findings = {finding["id"]: finding for finding in json.loads(checked.stdout)["findings"]}
    facts = findings["data_tokens"]["facts"]
    assert facts.startswith("mine.jsonl: 6 rows of "), checked.stderr
    assert (
        f"; 16.7% truncated; 1 without a token that carries loss (first: {data}:6); 1 duplicate"
        in facts
    )
    assert facts.endswith(f"(first: {data}:5)")
    assert findings["no_loss_tokens"]["verdict"] == "warn"
    assert "launch: starting trl_sft to tokenize the local data\n" in checked.stderr
