"""The pass of `cache_only=true` tokenises what the training reads: the same data set, with the
template of the plan, for every trainer that has a pass.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launch import resources
from launch.execution.caches import plan_cache_pass, tokenized_folder
from launch.planning.plan import Plan
from tests.integration.jobs import run_jobs, training_job
from tests.integration.test_preview import OLMO_CORE, make_plan
from tests.integration.tiny_stage import TinyStage
from tests.thorough import mark_others, selected
from tests.trl_texts import INSTALLED

pytestmark = pytest.mark.slow

ROWS = 6
QUESTION = "What is 2 plus 3?"
ANSWER = "The sum is 5."
TRAINERS = {
    "finetune": ("sft", ()),
    "olmo_core_finetune": (
        "sft",
        ("recipe.packing=bins", "recipe.max_seq_length=128", "flags.config_name=olmo2_14M"),
    ),
    "dpo_tune_cache": ("dpo", ()),
    "dpo": ("dpo", ("flags.config_name=olmo2_14M",)),
    "reward_modeling": ("rm", ()),
}
# the template, and how a user's turn of it ends: open-instruct's, launch's, TRL's, a user's file
TEMPLATES = {
    "tulu": f"<|user|>\n{QUESTION}\n<|assistant|>\n{ANSWER}",
    "chatml": f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n{ANSWER}",
    "mine.jinja": f"[user] {QUESTION} [assistant] {ANSWER}",
}
if INSTALLED is not None:
    TEMPLATES["llama3"] = f"user<|end_header_id|>\n\n{QUESTION}<|eot_id|>"
MINE = (
    "{% for turn in messages %}[{{ turn['role'] }}] {{ turn['content'] }}"
    "{% if turn['role'] == 'assistant' %}{{ eos_token }}{% endif %} {% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
CASES = [(trainer, template) for trainer in TRAINERS for template in TEMPLATES]
# in every run of the suite; the others are thorough: test_caches.py has a pass of finetune
KEPT = {
    ("dpo_tune_cache", "mine.jinja"),
}


@pytest.fixture(scope="module")
def passes(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    tiny: TinyStage,
    olmo_stage: TinyStage,
    open_instruct: Path,
) -> dict[tuple[str, str], tuple[Plan, Path]]:
    """The pass of each case and then its training, which ends with its first batch."""
    root = tmp_path_factory.mktemp("passes")
    write_rows(root)
    (root / "mine.jinja").write_text(MINE, encoding="utf-8")
    jobs: list[dict[str, Any]] = []
    plans = {}
    for trainer, template in selected(request, CASES):
        kind, more = TRAINERS[trainer]
        folder = root / f"{trainer}-{template}"
        folder.mkdir()
        name = str(root / template) if template.endswith(".jinja") else template
        model = (olmo_stage if trainer in OLMO_CORE else tiny).model
        plan = make_plan(folder, kind, trainer, model, (*more, f"recipe.chat_template={name}"))
        jobs += pass_and_training(plan, folder)
        plans[trainer, template] = plan, folder
    run_jobs(root, jobs, open_instruct)
    return plans


def write_rows(root: Path) -> None:
    start = [{"role": "user", "content": QUESTION}]
    good = [*start, {"role": "assistant", "content": ANSWER}]
    bad = [*start, {"role": "assistant", "content": "Who knows."}]
    rows = {"sft": {"messages": good}, "dpo": {"chosen": good, "rejected": bad}}
    rows["rm"] = rows["dpo"]
    for kind, row in rows.items():
        (root / f"{kind}.jsonl").write_text(f"{json.dumps(row)}\n" * ROWS, encoding="utf-8")


def pass_and_training(plan: Plan, folder: Path) -> Sequence[dict[str, Any]]:
    job = training_job(plan, folder)
    if plan.trainer in OLMO_CORE:  # torchrun's
        ranks = ("RANK", "LOCAL_RANK", "NODE_RANK")
        sizes = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "NUM_NODES")
        job["env"] |= dict.fromkeys(ranks, "0") | dict.fromkeys(sizes, "1")
        job["env"] |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29513"}
    command = plan_cache_pass(plan).command
    argv = command[command.index(str(resources.WORKER)) :]
    first = {**job, "argv": argv, "log": str(folder / "pass.log")}
    rows = 1 if plan.config.recipe.packing == "bins" else ROWS
    return [first, {**job, "rows": rows, "batches": str(folder / "batches.json")}]


@pytest.mark.parametrize(("trainer", "template"), mark_others(CASES, KEPT))
def test_the_training_reads_what_the_pass_wrote(
    passes: dict[tuple[str, str], tuple[Plan, Path]], trainer: str, template: str
) -> None:
    transformers = pytest.importorskip("transformers")
    datasets = pytest.importorskip("datasets")
    plan, folder = passes[trainer, template]
    trained = folder / "batches.json"
    log = (folder / "pass.log").read_text(encoding="utf-8")
    assert trained.is_file(), log + (folder / "training.log").read_text(encoding="utf-8")[-3000:]
    tokenized = tokenized_folder(plan)
    assert tokenized is not None
    # a training that misses the data of the pass writes another data set beside it
    [data_set] = [path for path in tokenized.iterdir() if (path / "state.json").is_file()]
    row = datasets.load_from_disk(str(data_set))[0]
    tokenizer = transformers.AutoTokenizer.from_pretrained(plan.inputs.model.local)
    column = "input_ids" if "input_ids" in row else "chosen_input_ids"
    assert TEMPLATES[template] in tokenizer.decode(row[column])
    [batch, *_] = json.loads(trained.read_text(encoding="utf-8"))
    ids = next(value for name, value in batch.items() if name.endswith("input_ids"))
    assert TEMPLATES[template] in tokenizer.decode(ids[0])
