"""The GPU rules, against a program that answers like nvidia-smi."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.check.machine.gpus import enough_gpus, gpus_are_free
from launch.check.machine.memory import model_fits, state_bytes
from launch.check.machine.rule import Host
from launch.host.nvidia import query_gpus
from launch.planning.plan import Plan, build_plan
from tests.conftest import composed, fixed_machine

CARD = "{index}, GPU-{index}aaa, NVIDIA H100 80GB HBM3, 81559, {used}, {busy}, 570.86"


def driver(folder: Path, used: list[int], busy: int = 0, processes: str = "", sleep: str = "") -> dict[str, str]:
    """The environment of a machine with a card for each of `used`, MiB."""
    cards = "\n".join(CARD.format(index=i, used=mib, busy=busy) for i, mib in enumerate(used))
    (folder / "cards").write_text(cards + "\n", encoding="utf-8")
    (folder / "processes").write_text(processes, encoding="utf-8")
    program = folder / "nvidia-smi"
    text = f'#!/bin/sh\n{sleep}\ncase "$1" in --query-gpu*) cat {folder}/cards;; *) cat {folder}/processes;; esac\n'
    program.write_text(text, encoding="utf-8")
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def planned(*overrides: str) -> Plan:
    return build_plan(composed(*overrides), fixed_machine())


def machine(environ: dict[str, str]) -> Host:
    return Host(environ, query_gpus(environ))


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (None, ["0", "1", "2"]),
        ("2,0", ["2", "0"]),
        ("1,7,2", ["1"]),
        ("", []),
        ("GPU-1a", ["1"]),
        ("-1", []),
        ("1,1", ["1"]),
    ],
)
def test_visible_cards_are_those_that_cuda_would_show(tmp_path: Path, shown: str | None, expected: list[str]) -> None:
    environ = driver(tmp_path, [0, 0, 0]) | ({} if shown is None else {"CUDA_VISIBLE_DEVICES": shown})
    assert [gpu.index for gpu in query_gpus(environ).seen] == expected


def test_too_few_gpus_says_how_many_there_are_and_what_hides_the_others(tmp_path: Path) -> None:
    environ = driver(tmp_path, [0, 0, 0, 0])
    finding = enough_gpus.inspect(planned("stage=sft", "gpus=8"), machine(environ))
    assert (finding.level, finding.cure) == ("fail", "set gpus=4")
    finding = enough_gpus.inspect(planned("stage=sft", "gpus=4"), machine(environ | {"CUDA_VISIBLE_DEVICES": "3"}))
    assert "one GPU (CUDA_VISIBLE_DEVICES hides 3)" in finding.message
    assert enough_gpus.inspect(planned("stage=sft", "gpus=4"), machine(environ)).level == "pass"
    nothing = enough_gpus.inspect(planned("stage=sft"), machine({"PATH": "/nowhere"}))
    assert "no GPU: nvidia-smi is not installed" in nothing.message


def test_a_driver_that_fails_is_quoted(tmp_path: Path) -> None:
    environ = driver(tmp_path, [0], sleep="echo 'Driver/library version mismatch'; exit 9")
    finding = enough_gpus.inspect(planned("stage=sft"), machine(environ))
    assert finding.level == "fail" and "Driver/library version mismatch" in finding.message


def test_a_card_with_somebody_on_it_is_named_with_those_that_are_free(tmp_path: Path) -> None:
    environ = driver(tmp_path, [70_000, 4, 4], processes="GPU-0aaa, 4242, /opt/py/python3, 69990\n")
    finding = gpus_are_free.inspect(planned("stage=sft", "gpus=2"), machine(environ))
    assert finding.level == "fail"
    assert finding.message == "GPU 0: 70000 of 81559 MiB in use by process 4242 (python3)"
    assert finding.cure and finding.cure.startswith("`export CUDA_VISIBLE_DEVICES=1,2`")
    free = machine(environ | {"CUDA_VISIBLE_DEVICES": "1,2"})
    assert gpus_are_free.inspect(planned("stage=sft", "gpus=2"), free).level == "pass"


def test_memory_taken_by_nobody_visible_fails_and_mere_work_warns(tmp_path: Path) -> None:
    hidden = gpus_are_free.inspect(planned("stage=sft"), machine(driver(tmp_path, [9000])))
    assert hidden.level == "fail" and "is not visible from here" in hidden.message
    working = gpus_are_free.inspect(planned("stage=sft"), machine(driver(tmp_path, [4], busy=97)))
    assert working.level == "warn" and "GPU 0 is 97% busy" in working.message


@pytest.mark.parametrize(
    ("overrides", "gib"),
    [
        (["gpus=1"], 8.03 * 8),  # bf16 weights, gradients and two moments
        (["gpus=8", "parallel=zero1"], 8.03 * (4 + 12 / 8)),
        (["gpus=8", "parallel=zero2"], 8.03 * (2 + 14 / 8)),
        (["gpus=8"], 8.03 * 16 / 8),
        (["gpus=8", "parallel=zero3_offload"], 0),
    ],
)
def test_the_state_of_8b_by_how_it_is_shared(overrides: list[str], gib: float) -> None:
    assert state_bytes(planned("stage=sft", *overrides), 8.03e9)[0] == pytest.approx(gib * 1e9)


def test_a_model_that_cannot_fit_fails_and_one_that_may_passes(tmp_path: Path) -> None:
    host = machine(driver(tmp_path, [0] * 8) | {"HOME": str(tmp_path)})
    finding = model_fits.inspect(planned("stage=sft", "gpus=8", "model=llama3_1_70b"), host)
    assert finding.level == "fail"
    assert "take 132 GiB on each GPU" in finding.message
    assert finding.cure and "zero3_offload" in finding.cure
    fits = model_fits.inspect(planned("stage=sft", "gpus=8"), host)
    assert fits.level == "pass" and "take 15 GiB" in fits.message and "per GPU: fits" in fits.message
    large = model_fits.inspect(planned("stage=sft", "gpus=8", "recipe.per_device_batch_size=16"), host)
    assert large.level == "warn" and large.cure and "recipe.liger=true" in large.cure
    adapter = model_fits.inspect(planned("stage=sft", "model=llama3_1_70b", "flags.use_lora=true"), host)
    assert adapter.level == "skipped"
    other = model_fits.inspect(planned("stage=sft", "model.path=somebody/else"), host)
    assert other.level == "skipped" and "somebody/else" in other.message


def test_a_plan_whose_first_micro_batch_does_not_fit_is_refused_unless_allowed(tmp_path: Path) -> None:
    """The setting that `tune` chose for four GPUs, on one: the state alone fits, and the second gradient does not."""
    host = machine(driver(tmp_path, [0]) | {"HOME": str(tmp_path)})
    tuned = ("stage=sft", "parallel=zero2", "recipe.per_device_batch_size=16", "recipe.packing=flatten")
    tuned += ("recipe.liger=true", "recipe.gradient_checkpointing=false")
    finding = model_fits.inspect(planned(*tuned, "gpus=1", "model=llama3_1_8b"), host)
    assert finding.level == "fail" and finding.cure and "parallel=single" in finding.cure
    smaller = planned("stage=sft", "gpus=1", "model=llama3_1_8b")
    assert model_fits.inspect(smaller, host).level == "pass"
