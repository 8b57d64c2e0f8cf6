"""The real trainers under the worker: one process, two, and two under DeepSpeed, all on CPU.

Every run states what it expects of the trainer's own state, so that "two ranks under ZeRO-3" was
that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launch.execution.record.events import Metrics, read_event
from tests.integration import warm
from tests.integration.tiny_stage import TinyStage
from tests.thorough import mark_others
from tests.worker import ranks

pytestmark = pytest.mark.slow

STEPS = 4
LAUNCH = ("-m", "accelerate.commands.launch", "--num_machines", "1", "--dynamo_backend", "no")
STATE = {"single": "NO", "ddp": "MULTI_CPU", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED"}
RECIPE = (
    *(
        "--per_device_train_batch_size",
        "4",
        "--gradient_accumulation_steps",
        "2",
        "--learning_rate",
        "1e-3",
    ),
    *("--logging_steps", "1", "--output_dir", "out"),
)
OPEN_INSTRUCT = (
    *RECIPE,
    *(
        "--max_train_steps",
        str(STEPS),
        "--max_seq_length",
        "128",
        "--do_not_randomize_output_dir",
        "true",
    ),
    *("--push_to_hub", "false", "--try_launch_beaker_eval_jobs", "false"),
)
TRL = (
    *RECIPE,
    "--max_steps",
    str(STEPS),
    "--max_length",
    "128",
    "--report_to",
    "none",
    "--bf16",
    "false",
)
PATCHES = {
    "finetune": (
        "finetune_local_model",
        "cuda_memory_on_cpu",
        "finetune_steps",
        "dataset_cache",
        "saving",
        "evidence",
    ),
    "dpo_tune_cache": (
        "dpo_single_process_group",
        "dpo_cpu_device",
        "dpo_unlisted_gpu",
        "dpo_steps",
        "dpo_reference_cache",
        "saving",
        "evidence",
    ),
    "trl_sft": ("evidence",),
    "trl_dpo": ("evidence",),
}
# what holds for these recipes: open-instruct trains in bf16 and does not clip, TRL clips at 1.0 and
# checkpoints
HOLDS = {"dtype": "bf16", "packing": "none", "gradient_checkpointing": "false", "grad_clip": "none"}
TRL_HOLDS = {
    "dtype": "fp32",
    "packing": "none",
    "gradient_checkpointing": "true",
    "grad_clip": "1.0",
}


def holds(parallel: str) -> dict[str, str]:
    """HOLDS, as this file's DeepSpeed file changes it: without a word on bf16 ZeRO-3 makes the
    weights fp32.
    """
    return {**HOLDS, "dtype": "fp32" if parallel == "zero3" else "bf16"}


@dataclass(frozen=True)
class Run:
    """A finished training run and the folder it ran in."""

    finished: ranks.Finished
    folder: Path

    def steps(self) -> list[dict[str, Any]]:
        """The steps as metrics.jsonl has them."""
        metrics, events = Metrics(), filter(None, map(read_event, self.finished.of_kind("step")))
        return [step for event in events if (step := metrics.add(event)) is not None]


def trainer_arguments(trainer: str, tiny: TinyStage, checkout: Path | None) -> list[str | Path]:
    """The worker's arguments from `--script` or `--entry` on."""
    model = ("--model_name_or_path", tiny.model)
    if trainer == "finetune":
        assert checkout is not None
        data = (
            "--dataset_mixer_list",
            tiny.chats,
            "1.0",
            "--checkpointing_steps",
            "2",
        )
        script = checkout / "open_instruct" / "finetune.py"
        return [
            "--script",
            script,
            "--",
            *model,
            "--tokenizer_name_or_path",
            tiny.model,
            *data,
            *OPEN_INSTRUCT,
        ]
    if trainer == "dpo_tune_cache":
        assert checkout is not None
        data = ("--mixer_list", tiny.preferences, "1.0", "--skip_cache", "true")
        script = checkout / "open_instruct" / "dpo_tune_cache.py"
        return [
            "--script",
            script,
            "--",
            *model,
            "--tokenizer_name_or_path",
            tiny.model,
            *data,
            *OPEN_INSTRUCT,
        ]
    rows = tiny.chats if trainer == "trl_sft" else tiny.preferences
    module = f"trl.scripts.{trainer.removeprefix('trl_')}"
    options = ("--option", "subset=0.5") if trainer == "trl_sft" else ()
    return [*options, "--entry", module, "--", *model, "--dataset_name", rows.parent, *TRL]


def train(
    folder: Path,
    trainer: str,
    parallel: str,
    tiny: TinyStage,
    checkout: Path | None,
    *,
    patch_zero: bool = True,
    flags: Sequence[str] = (),
    asked: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> Run:
    """Trains STEPS steps in `folder`: one process for `single`, else two. `flags` go to the
    trainer; `asked` is what is expected and found besides the distributed state, as strings;
    `options` are of launch's own entry.
    """
    world = 1 if parallel == "single" else 2
    environment = {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "REFERENCE_LOGPROBS_CACHE_PATH": str(folder.parent / f"reference-{trainer}"),
    }
    if checkout is not None:
        environment["PYTHONPATH"] = str(checkout)
    patches = PATCHES[trainer]
    if parallel.startswith("zero"):
        config = folder / "deepspeed.json"
        automatic = (
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
        )
        zero = {"stage": int(parallel[-1]), "stage3_gather_16bit_weights_on_model_save": True}
        config.write_text(
            json.dumps({"zero_optimization": zero, **dict.fromkeys(automatic, "auto")})
        )
        launch = ("--use_deepspeed", "--deepspeed_config_file", str(config))
        if patch_zero:
            patches = (*patches, "deepspeed_on_cpu")
    elif parallel == "ddp":
        environment["ACCELERATE_USE_CPU"] = "true"
        launch = ("--multi_gpu",)
    else:
        launch = ("--cpu",)
    expected = {
        "distributed": STATE[parallel],
        "world_size": world,
        "zero_stage": int(parallel[-1]) if parallel.startswith("zero") else 0,
        "device": "cpu",
    }
    own = [word for patch in patches for word in ("--patch", patch)]
    asked = (TRL_HOLDS if trainer.startswith("trl") else HOLDS) if asked is None else asked
    pairs = {**expected, **asked}
    own += [word for key, value in pairs.items() for word in ("--expect", f"{key}={value}")]
    finished = ranks.run(
        [
            *own,
            *(word for text in options for word in ("--option", text)),
            *trainer_arguments(trainer, tiny, checkout),
            *flags,
        ],
        folder,
        before_entry=(*LAUNCH, *launch, "--num_processes", str(world)),
        ranks=world,
        environment=environment,
        python=warm.python(),
    )
    if patch_zero:
        assert finished.code == 0, finished.describe()
        for rank in range(world):
            proven = [
                event
                for event in finished.of_kind("evidence", rank)
                if event.get("verdict") == "proven"
            ]
            assert {event["what"]: event["value"] for event in proven}.items() >= pairs.items()
            applied = {event["id"]: event["applied"] for event in finished.of_kind("patch", rank)}
            assert applied == {
                patch.partition("=")[0]: patch != "dpo_unlisted_gpu" for patch in patches
            }
        assert_whole_model_saved(folder / "out", tiny)
    return Run(finished, folder)


def assert_whole_model_saved(output: Path, tiny: TinyStage) -> None:
    """The same tensors in the same shapes as the model that went in, and not the same values."""
    from safetensors.torch import load_file

    before, after = (
        load_file(tiny.model / "model.safetensors"),
        load_file(output / "model.safetensors"),
    )
    assert {name: tensor.shape for name, tensor in after.items()} == {
        name: before[name].shape for name in before
    }
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not after[name].equal(before[name].to(after[name].dtype))


def assert_steps_told(run: Run) -> None:
    """Every step once, by the first rank alone, with figures that can be, and a loss that falls."""
    assert [event["steps"] for event in run.finished.of_kind("total_steps")] == [STEPS]
    steps = run.steps()
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    for step in steps:
        assert math.isfinite(step["loss"])
        assert 0 <= step["lr"] <= 1e-3
        assert step["tokens"] > 0
        assert step["seconds"] > 0
        assert step["tokens"] <= step["tokens_padded"]
        assert step["grad_norm"] > 0
    assert steps[-1]["loss"] < steps[0]["loss"] - 0.1
    for rank in range(1, len(run.finished.events)):
        assert run.finished.of_kind("step", rank) == []


@pytest.mark.parametrize("parallel", mark_others(["single", "zero2"], ["single"]))
def test_finetune(parallel: str, tmp_path: Path, tiny: TinyStage, open_instruct: Path) -> None:
    """Packed on one process, padded on two; test_demo.py has the other modes."""
    packed = parallel == "single"
    flags = ("--packing", "true", "--clip_grad_norm", "0.5") if packed else ()
    # accelerate makes 1.0 of a DeepSpeed file without a word on clipping, whatever the trainer says
    clip = "0.5" if packed else "1.0"
    asked = {**holds(parallel), "packing": "flatten" if packed else "none", "grad_clip": clip}
    run = train(tmp_path, "finetune", parallel, tiny, open_instruct, flags=flags, asked=asked)
    found = {event["what"]: event for event in run.finished.of_kind("evidence")}
    assert found["attention"]["value"] == "sdpa"
    assert ("isolation" in found) == packed
    if packed:
        assert found["isolation"]["verdict"] == "proven"
        assert (
            "1 row of" in found["packing"]["note"]
            and "with 4 documents" in found["packing"]["note"]
        )
    assert_steps_told(run)
    # no CUDA, and nothing pretends there is
    assert not any("memory_gib" in step for step in run.steps())
    phases = [event["phase"] for event in run.finished.of_kind("phase")]
    assert phases == ["import", "tokenize", "load", "training", "checkpoint", "checkpoint", "save"]
    for rank in range(1 if packed else 2):
        [cache] = [
            event
            for event in run.finished.of_kind("evidence", rank)
            if event["what"] == "dataset_cache"
        ]
        assert cache["value"] == ("hit" if rank else "built")
        assert (tmp_path / cache["path"] / "dataset_statistics.json").is_file()
    if not packed:
        others = [event["phase"] for event in run.finished.of_kind("phase", 1)]
        assert others == ["import"]


def test_dpo_tune_cache(
    tmp_path_factory: pytest.TempPathFactory, tiny: TinyStage, open_instruct: Path
) -> None:
    """Alone and on two; the first makes the reference cache that the other loads."""
    above = tmp_path_factory.mktemp("dpo")
    for parallel in ("single", "ddp"):
        folder = above / parallel
        folder.mkdir()
        flags, asked = ("--max_grad_norm", "1.0"), {**holds(parallel), "grad_clip": "1.0"}
        run = train(
            folder, "dpo_tune_cache", parallel, tiny, open_instruct, flags=flags, asked=asked
        )
        assert_steps_told(run)
        assert {"rewards/accuracy", "rewards/margin", "logps/chosen"} <= run.steps()[0].keys()
        # the reference is the policy itself
        assert run.steps()[0]["loss"] == pytest.approx(math.log(2), abs=0.02)
        [cache] = [
            event["value"]
            for event in run.finished.of_kind("evidence")
            if event["what"] == "reference_logprobs_cache"
        ]
        assert cache == ("built" if parallel == "single" else "hit")
        phases = [event["phase"] for event in run.finished.of_kind("phase")]
        assert phases == ["import", "reference_logprobs", "training", "save"]
        groups = [
            event["value"]
            for event in run.finished.of_kind("evidence")
            if event["what"] == "process_group"
        ]
        assert groups == (["gloo"] if parallel == "single" else [])


@pytest.mark.thorough
def test_trl_sft_on_half_the_rows(tmp_path: Path, tiny: TinyStage) -> None:
    run = train(tmp_path, "trl_sft", "single", tiny, None)
    assert_steps_told(run)
    assert "64 -> 32 rows (subset 0.5)" in run.finished.output[0]
    assert run.steps()[-1]["epoch"] == 1.0  # 4 steps of 8 rows are all of the 32
    assert [event["phase"] for event in run.finished.of_kind("phase")] == [
        "import",
        "load",
        "tokenize",
        "training",
        "checkpoint",
        "save",
    ]


@pytest.mark.thorough
def test_trl_sft_flattened(tmp_path: Path, tiny: TinyStage) -> None:
    """The samples are cut to the length that TRL itself would not take together with
    padding_free.
    """
    limit, lengths = 24, tmp_path / "lengths.json"
    flags = ("--padding_free", "true", "--max_length", str(limit))
    asked = {**TRL_HOLDS, "packing": "flatten"}
    run = train(
        tmp_path,
        "trl_sft",
        "single",
        tiny,
        None,
        flags=flags,
        asked=asked,
        options=(f"lengths={lengths}",),
    )
    assert_steps_told(run)
    assert all(step["tokens"] == step["tokens_padded"] for step in run.steps())
    counted = {
        int(length): count for length, count in json.loads(lengths.read_text())["tokens"].items()
    }
    assert max(counted) == limit and counted[limit] > 1
    found = {event["what"]: event for event in run.finished.of_kind("evidence")}
    assert "1 row of" in found["packing"]["note"] and "with 4 documents" in found["packing"]["note"]


def test_ranks_that_would_train_alone_are_stopped(tmp_path: Path, tiny: TinyStage) -> None:
    """DeepSpeed without a GPU and without its patch: accelerate believes that each of the two ranks
    is alone.
    """
    run = train(tmp_path, "trl_sft", "zero3", tiny, None, patch_zero=False)
    assert run.finished.code == 1
    sentence = "the plan has 2 ranks, and the trainer counts 1: without a GPU accelerate needs"
    told = [error["message"] for rank in (0, 1) for error in run.finished.of_kind("error", rank)]
    assert told, run.finished.describe()
    assert all(message.startswith(sentence) for message in told)
    assert run.steps() == []
    last = run.finished.output[0].splitlines()[-1]
    assert last == f"launch: {told[0]}"
