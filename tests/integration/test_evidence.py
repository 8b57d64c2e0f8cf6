"""Runs that are not what was asked for end at their first step, and say why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration import warm
from tests.integration.conftest import launch_in, records
from tests.integration.demo_kit import give_demo
from tests.integration.test_refuted import planted
from tests.integration.test_worker_training import (
    HOLDS,
    LAUNCH,
    PATCHES,
    TRL_HOLDS,
    train,
    trainer_arguments,
)
from tests.integration.tiny_stage import TinyStage
from tests.thorough import mark_others
from tests.worker import ranks

pytestmark = pytest.mark.slow

SFT = "rms_norm,rope,swiglu,fused_linear_cross_entropy"


def run_alone(
    folder: Path, words: list[str | Path], trainer: str, environment: dict[str, str] | None = None
) -> ranks.Finished:
    """One CPU process of the worker with the trainer's usual patches."""
    patches = [word for patch in PATCHES[trainer] for word in ("--patch", patch)]
    return ranks.run(
        [*patches, *words],
        folder,
        before_entry=(*LAUNCH, "--cpu", "--num_processes", "1"),
        environment={"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **(environment or {})},
        python=warm.python(),
    )


def test_what_a_doctored_trainer_leaves_out_is_refuted(
    tmp_path: Path, tiny: TinyStage, open_instruct: Path
) -> None:
    """A finetune.py that takes --use_liger_kernel and --packing and does neither; its log looks as
    ever.
    """
    text = (open_instruct / "open_instruct" / "finetune.py").read_text(encoding="utf-8")
    doctored = text.replace(
        "elif args.use_liger_kernel:", "elif args.use_liger_kernel and not logger:"
    )
    doctored = doctored.replace("    if args.packing:\n", "    if args.packing and not logger:\n")
    assert doctored.count("and not logger:") == 2
    script = tmp_path / "open_instruct" / "finetune.py"
    script.parent.mkdir()
    script.write_text(doctored, encoding="utf-8")
    arguments = trainer_arguments("finetune", tiny, open_instruct)
    arguments[1] = script
    asked = {**HOLDS, "packing": "flatten", "liger": SFT}
    expect = [word for key, value in asked.items() for word in ("--expect", f"{key}={value}")]
    flags = ["--use_liger_kernel", "true", "--packing", "true"]
    run = run_alone(
        tmp_path, [*expect, *arguments, *flags], "finetune", {"PYTHONPATH": str(open_instruct)}
    )
    assert run.code != 0
    [error] = run.of_kind("error")
    assert (error["type"], error["ids"]) == ("Unmet", ["refuted_liger", "refuted_packing"])
    for part in (SFT, "these are: none: rms_norm is in 0 of 5 places", "packed as flatten"):
        assert part in error["message"]
    assert "packing is none: first micro batch: 4 rows of" in error["message"]
    assert error["message"].endswith("allow=[refuted_liger,refuted_packing] runs it anyway")
    assert "Step: 1" not in run.output[0]
    assert f"launch: {error['message']}" in run.output[0].splitlines()


@pytest.mark.parametrize("allow", mark_others([False, True], [False]))
def test_another_clipping_than_asked_stops_before_the_first_step(
    allow: bool, tmp_path: Path, tiny: TinyStage
) -> None:
    words = ["--expect", "grad_clip=0.5", *(["--allow", "refuted_grad_clip"] if allow else [])]
    run = run_alone(tmp_path, [*words, *trainer_arguments("trl_sft", tiny, None)], "trl_sft")
    [clip] = [event for event in run.of_kind("evidence") if event["what"] == "grad_clip"]
    assert (clip["requested"], clip["value"], clip["verdict"]) == ("0.5", "1.0", "refuted")
    place = "(seen in Accelerator.clip_grad_norm_() before the first optimizer step)"
    if allow:
        assert run.code == 0, run.describe()
        [warning] = [event["message"] for event in run.of_kind("warning")]
        assert place in warning and warning.endswith("[refuted_grad_clip], allowed")
        assert run.of_kind("step")
    else:
        assert run.code != 0
        [error] = run.of_kind("error")
        assert place in error["message"]
        assert error["message"].endswith("; allow=[refuted_grad_clip] runs it anyway")
        assert run.of_kind("step") == []


@pytest.mark.thorough
def test_trls_bins_under_zero3(tmp_path: Path, tiny: TinyStage) -> None:
    flags = ("--packing", "true", "--packing_strategy", "bfd", "--max_length", "256")
    run = train(
        tmp_path,
        "trl_sft",
        "zero3",
        tiny,
        None,
        flags=flags,
        asked={**TRL_HOLDS, "packing": "bins"},
    )
    for rank in (0, 1):
        found = {event["what"]: event for event in run.finished.of_kind("evidence", rank)}
        assert found["isolation"]["value"] == "no attention across documents"
        assert "documents" in found["packing"]["note"]
        assert found["master_dtype"]["value"] == "fp32"


@pytest.mark.thorough
def test_a_run_that_is_not_what_was_asked_exits_3(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The trainer pads, though it was told to flatten (tests/integration/planted)."""
    pytest.importorskip("trl", reason="the `train` dependencies are not installed")
    give_demo(tmp_path_factory, tmp_path)
    words = [
        "stage=demo",
        "trainer=trl_sft",
        "recipe.packing=flatten",
        "recipe.max_steps=2",
        "name=unmet",
    ]
    python = warm.python_with_cold_ranks()  # it ends in time
    ran = launch_in(tmp_path, "run", *words, python=python, **planted("padding"))
    assert ran.returncode == 3, ran.stdout + ran.stderr
    run = tmp_path / "runs" / "demo" / "unmet"
    failed = json.loads((run / "FAILED").read_text(encoding="utf-8"))
    assert (failed["exit_code"], failed["cause_id"], failed["steps"]) == (3, "refuted_packing", 0)
    stopped = (
        "stopped before its first logged step: rank 0: the rows should be packed as flatten, and "
        "the trainer's packing is none"
    )
    assert stopped in ran.stdout
    items = {
        item["what"]: item
        for item in json.loads((run / "evidence.json").read_text(encoding="utf-8"))["items"]
    }
    assert (items["packing"]["verdict"], items["packing"]["found"]) == ("refuted", "none")
    assert (items["dtype"]["verdict"], items["grad_clip"]["verdict"]) == ("proven", "unproven")
    assert items["grad_clip"]["how"] == "the run ended before it was checked"
    assert records(run / "metrics.jsonl") == []
