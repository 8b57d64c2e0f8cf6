"""Every chat template in the trainers' own batches: those of `preview`, with the answers and their
ends trained on.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from launch.data.sample_problems import find_sample_problems
from launch.execution.preview import DataSet
from tests.chat_tokenizer import make_tokenizer
from tests.integration.jobs import run_jobs
from tests.integration.test_preview import (
    ROWS,
    Previewed,
    add_preview,
    add_training,
    make_plan,
    read_job,
    shown,
    trained,
)
from tests.integration.tiny_stage import TinyStage
from tests.thorough import mark_others, selected
from tests.trl_texts import OWN as OWN_FILES
from tests.trl_texts import read_texts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

TEXTS = {
    path.stem: path.read_text(encoding="utf-8") for path in OWN_FILES.glob("*.jinja")
} | read_texts()
NAMES = sorted(name for name in TEXTS if not name.endswith("_training"))
UNMARKED = ("gemma4", "llama3_1", "llama3_2")  # trl_sft refuses them
OWN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}: {% if m.role == 'assistant' %}{% "
    "generation %}{{ m.content }}"
)
OWN += "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
OWN += "{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}"
OTHERS = {
    "finetune": ("zephyr", "chatml", "qwen2_5", "qwen3_training", "llama3_1", "gemma3", "own"),
    "trl_dpo": ("zephyr", "qwen3", "llama3_2", "own"),
    "dpo_tune_cache": ("chatml", "gemma3", "own"),
}
RUNS = [
    *(("trl_sft", name) for name in (*NAMES, "own") if not name.startswith(UNMARKED)),
    *((trainer, name) for trainer, names in OTHERS.items() for name in names),
]
# in every run of the suite; the others are thorough
KEPT = {
    ("trl_sft", "own"),
    ("finetune", "zephyr"),
}
ANSWERS = ("It is one.", "It is two.")


@pytest.fixture(scope="module")
def batches(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    tiny: TinyStage,
    open_instruct: Path,
) -> dict[tuple[str, str], Previewed]:
    root = tmp_path_factory.mktemp("templates")
    write_data(root)
    jobs: list[dict[str, Any]] = []
    previewed: dict[tuple[str, str], tuple[DataSet, Path, Path]] = {}
    for trainer, name in selected(request, RUNS):
        folder = root / trainer / name
        folder.mkdir(parents=True)
        template = folder / "own.jinja"
        if name == "own":
            template.write_text(OWN, encoding="utf-8")
        model = folder / "base"
        shutil.copytree(tiny.model, model)
        tokenizer = make_tokenizer(TEXTS.get(name, OWN))
        tokenizer.chat_template = None
        tokenizer.save_pretrained(model)
        (model / "chat_template.jinja").unlink(missing_ok=True)
        kind = "dpo" if "dpo" in trainer else "sft"
        given = str(template) if name == "own" else name
        more = (
            f"recipe.chat_template={given}",
            "recipe.max_seq_length=2048",
            "allow=[short_context]",
        )
        (folder / "run").mkdir()
        for other in ("sft", "dpo"):
            (folder / f"{other}.jsonl").symlink_to(root / f"{other}.jsonl")
        plan = make_plan(folder / "run", kind, trainer, model, more)
        previewed[trainer, name] = add_preview(jobs, plan, folder / "run")
        add_training(jobs, plan, folder / "run")
    run_jobs(root, jobs, open_instruct)
    return {
        run: read_job(root / run[0] / run[1] / "run", *parts) for run, parts in previewed.items()
    }


def write_data(root: Path) -> None:
    chats = []
    for number in range(ROWS):
        turns = [f"What is {number}?", ANSWERS[0], "And then?", ANSWERS[1]]
        chats.append(
            [
                {"role": ("user", "assistant")[at % 2], "content": text}
                for at, text in enumerate(turns)
            ]
        )
    rejected = {"role": "assistant", "content": "I would rather not say."}
    rows = {
        "sft": [{"messages": chat} for chat in chats],
        "dpo": [{"chosen": chat, "rejected": [*chat[:3], rejected]} for chat in chats],
    }
    for kind, content in rows.items():
        (root / f"{kind}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in content), encoding="utf-8"
        )


@pytest.mark.parametrize(("trainer", "name"), mark_others(RUNS, KEPT))
def test_the_trainers_batches_have_the_template(
    trainer: str, name: str, batches: dict[tuple[str, str], Previewed]
) -> None:
    run = (trainer, name)
    assert shown(batches[run]) == trained(batches[run])
    assert not find_sample_problems(batches[run].samples)
    for sample in batches[run].samples.samples:
        for side in sample.sides:
            assert side.loss is not None
            text = "".join(
                piece for piece, carries in zip(side.pieces, side.loss, strict=True) if carries
            )
            answer = ANSWERS[1] if side.name != "rejected" else "I would rather not say."
            assert answer in text and "What is" not in text and "And then?" not in text
            assert (ANSWERS[0] in text) is (side.name == "messages")
