"""Balanced batches and token weighting in the real finetune.py: the same samples in each step, and
the same loss.
"""

from __future__ import annotations

import ast
import json
import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration import warm
from tests.integration.test_worker_training import LAUNCH
from tests.integration.tiny_stage import TinyStage
from tests.worker import ranks

pytestmark = pytest.mark.slow

STEPS = 4
GLOBAL = 8
LOOP = "        for batch in active_dataloader:\n"
# what a step was made of: the tokens of each of its documents
TELL = """            _ids, _mask, _at = batch["input_ids"], batch.get("attention_mask"), batch.get("position_ids")
            if _at is not None:
                _starts = [*(_at[0] == 0).nonzero().flatten().tolist(), _ids.shape[1]]
                _documents = [_ids[0, a:b].tolist() for a, b in zip(_starts, _starts[1:])]
            else:
                _documents = [row[seen.bool()].tolist() for row, seen in zip(_ids, _mask)]
            print("DOCUMENTS", json.dumps([completed_steps, _documents]), flush=True)
"""


@dataclass(frozen=True)
class Trained:
    """`documents`: the samples of each step over all ranks, sorted; `metrics`: what the trainer
    logged of each.
    """

    finished: ranks.Finished
    documents: list[list[list[int]]]
    metrics: list[dict[str, Any]]

    def values(self, name: str) -> list[float]:
        return [float(step[name]) for step in self.metrics]

    def proven(self, rank: int = 0) -> dict[str, Any]:
        return {
            e["what"]: e["value"]
            for e in self.finished.of_kind("evidence", rank)
            if e.get("verdict") == "proven"
        }


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory, open_instruct: Path) -> Path:
    """finetune.py with the samples of each micro batch printed."""
    text = (open_instruct / "open_instruct" / "finetune.py").read_text(encoding="utf-8")
    assert text.count(LOOP) == 1
    path = tmp_path_factory.mktemp("telling") / "open_instruct" / "finetune.py"
    path.parent.mkdir()
    path.write_text(text.replace(LOOP, LOOP + TELL), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chats whose answers differ much in length."""
    draw = random.Random(1)
    answers = [
        " ".join(str(draw.randrange(100)) for _ in range(max(1, int(draw.lognormvariate(2.2, 1)))))
        for _ in range(70)
    ]
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"What is {i}?"},
                {"role": "assistant", "content": answer},
            ]
        }
        for i, answer in enumerate(answers)
    ]
    path = tmp_path_factory.mktemp("chats") / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Setting:
    world: int
    per_device: int
    flat: bool
    balanced: bool
    weighted: bool


def train(
    folder: Path, programs: tuple[Path, Path], tiny: TinyStage, chats: Path, this: Setting
) -> Trained:
    """Trains STEPS steps; `programs`: the script that is run and the checkout that it imports
    from.
    """
    folder.mkdir()
    asked = {
        "loss_averaging": "tokens" if this.weighted else "micro_batch_means",
        "packing": "flatten" if this.flat else "none",
    }
    patches = ["finetune_local_model", "cuda_memory_on_cpu"]
    if this.balanced:
        patches.append("balanced_batches")
        asked["balanced"] = "true"
    if this.weighted:
        patches.append("token_weighting")
    lengths = folder.parent / "lengths.json"
    patches += ["finetune_steps", "evidence", f"lengths={lengths}"]
    words = [word for patch in patches for word in ("--patch", patch)]
    words += [word for key, value in asked.items() for word in ("--expect", f"{key}={value}")]
    words += ["--expect", f"world_size={this.world}"]
    accumulation = GLOBAL // this.world // this.per_device
    flags = {
        "model_name_or_path": tiny.model,
        "tokenizer_name_or_path": tiny.model,
        "dataset_local_cache_dir": folder.parent / "tokenized",
        "per_device_train_batch_size": this.per_device,
        "gradient_accumulation_steps": accumulation,
        "max_train_steps": STEPS,
        "max_seq_length": 128,
        "learning_rate": 1e-3,
        "clip_grad_norm": 1000,  # measured, and never clipped
        "logging_steps": 1,
        "packing": str(this.flat).lower(),
        "output_dir": "out",
        "do_not_randomize_output_dir": "true",
        "verbose": "true",
        "push_to_hub": "false",
        "try_launch_beaker_eval_jobs": "false",
    }
    trainer = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    finished = ranks.run(
        [*words, "--script", programs[0], "--", "--dataset_mixer_list", chats, "1.0", *trainer],
        folder,
        before_entry=(
            *LAUNCH,
            *(("--cpu",) if this.world == 1 else ("--multi_gpu",)),
            "--num_processes",
            str(this.world),
        ),
        ranks=this.world,
        python=warm.python(),
        environment={
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(programs[1]),
            **({} if this.world == 1 else {"ACCELERATE_USE_CPU": "true"}),
        },
    )
    assert finished.code == 0, finished.describe()
    documents: defaultdict[int, list[list[int]]] = defaultdict(list)
    for output in finished.output:
        for line in output.splitlines():
            if line.startswith("DOCUMENTS "):
                step, found = json.loads(line.removeprefix("DOCUMENTS "))
                documents[step] += found
    logged = [
        line for line in finished.output[0].splitlines() if line.startswith("metrics_to_log=")
    ]
    trained = Trained(
        finished,
        [sorted(documents[step]) for step in range(STEPS)],
        [ast.literal_eval(line.partition("=")[2]) for line in logged],
    )
    assert asked.items() <= trained.proven(rank=this.world - 1).items()
    assert len(trained.metrics) == STEPS
    assert [len(step) for step in trained.documents] == [GLOBAL] * STEPS
    return trained


def test_the_same_samples_and_the_same_loss_however_they_are_dealt(
    tmp_path: Path, tiny: TinyStage, open_instruct: Path, script: Path, chats: Path
) -> None:
    def trained(name: str, this: Setting) -> Trained:
        return train(tmp_path / name, (script, open_instruct), tiny, chats, this)

    plain = trained(
        "plain", Setting(world=1, per_device=1, flat=False, balanced=False, weighted=True)
    )
    dealt = trained(
        "dealt", Setting(world=2, per_device=2, flat=True, balanced=True, weighted=True)
    )
    means = trained(
        "means", Setting(world=1, per_device=4, flat=False, balanced=True, weighted=False)
    )
    assert dealt.documents == plain.documents
    assert means.documents == plain.documents
    assert plain.documents[0] != plain.documents[1]

    # bf16 has 8 bits: the losses are those of the same mean, the norms are equal to the last bit or
    # nearly
    assert dealt.values("train_loss") == pytest.approx(plain.values("train_loss"), rel=2e-4)
    assert dealt.values("grad_norm") == pytest.approx(plain.values("grad_norm"), rel=0.01)
    off = [
        abs(a / b - 1)
        for a, b in zip(means.values("grad_norm"), plain.values("grad_norm"), strict=True)
    ]
    assert max(off) > 0.05  # means of micro-batch means are another loss

    imbalance = dealt.values("imbalance")
    assert all(a <= b for a, b in zip(imbalance, dealt.values("imbalance_upstream"), strict=True))
    assert imbalance != dealt.values("imbalance_upstream")
    [first, *_] = [
        event for event in dealt.finished.of_kind("evidence") if event["what"] == "balance"
    ]
    assert first["value"].startswith(f"{imbalance[0]:.3f}, upstream's order ")
    assert dealt.finished.of_kind("warning") == []

    lengths = json.loads((tmp_path / "lengths.json").read_text(encoding="utf-8"))
    assert sum(lengths["tokens"].values()) == 70
    seen = {len(document) for step in plain.documents for document in step}
    assert seen <= {int(length) for length in lengths["tokens"]}
