"""Width with several nodes: the ranks, the words that each node fills in, and who refuses them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from launch.commands.plan import paste_lines
from launch.errors import UserError
from launch.planning.command import (
    MAIN_HOST,
    MAIN_PORT,
    NODE_RANK,
    NodeRendezvous,
    fill_placeholders,
)
from launch.planning.parallel import require_one_machine
from tests.conftest import composed, planned

PLACE = NodeRendezvous(1, "n1", 12345)


def test_ranks_are_nodes_times_gpus() -> None:
    single = planned("stage=sft", "gpus=8")
    several = planned("stage=sft", "nodes=4", "gpus=8")
    width = several.parallel.width
    assert (width.world_size, width.local, width.nodes, str(width)) == (32, 8, 4, "gpu4x8")
    assert (
        several.batch.global_
        == single.batch.global_
        == 32 * several.batch.per_device * several.batch.accumulation
    )
    assert "world_size=32" in several.command
    assert several.identity != single.identity


def test_processes_are_those_of_a_node() -> None:
    overrides = ["stage=demo", "nodes=2", "processes=2", "recipe.per_device_batch_size=4"]
    plan = planned(*overrides)
    assert plan.parallel.width.world_size == 4
    assert plan.env["ACCELERATE_USE_CPU"] == "true"  # without it each rank trains by itself
    assert {"distributed=MULTI_CPU", "world_size=4"} <= set(plan.command)


@pytest.mark.parametrize(
    "trainer", [["trainer=finetune"], ["trainer=olmo_core_finetune", "model=olmo2_1b"]]
)
def test_each_node_fills_in_its_place(trainer: list[str]) -> None:
    overrides = ["stage=sft", "nodes=2", "gpus=8", *trainer]
    overrides += ["recipe.packing=bins"] if len(trainer) > 1 else []
    plan = planned(*overrides)
    assert {NODE_RANK, MAIN_HOST, MAIN_PORT} <= set(plan.command)
    command = fill_placeholders(plan.command, PLACE)
    assert not any(word.startswith("$") for word in command)
    assert {"1", "n1", "12345"} <= set(command)


def test_a_pasted_command_takes_its_place_from_the_shell() -> None:
    plan = planned("stage=demo", "nodes=2")
    [text] = paste_lines(plan, [])
    shown = text.replace("/python -m", "printf '%s\\n' -m")
    environ = {**PLACE.variables(), "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(["bash", "-c", shown], env=environ, capture_output=True, check=True)
    assert ran.stdout.decode().splitlines() == list(fill_placeholders(plan.command, PLACE))[1:]


def test_one_machine_refuses_several_and_names_submit() -> None:
    with pytest.raises(UserError) as raised:
        require_one_machine(composed("stage=demo", "nodes=2").config)
    assert raised.value.problems[0].id == "several_nodes"
    assert "launch submit" in str(raised.value)
    require_one_machine(composed("stage=demo").config)


@pytest.mark.parametrize("verb", ["run", "check"])
def test_verbs_of_one_machine(verb: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "launch", verb, "stage=demo", "nodes=2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, "[several_nodes]" in ran.stderr) == (2, True), ran.stderr


def test_no_width() -> None:
    with pytest.raises(UserError, match=r"^override nodes: .*\b1\b.*\b0 \[out_of_range\]"):
        planned("stage=demo", "nodes=0")
