"""docs/explanation/scale.md: its tables are what `plan` and the estimates say now.
`--update-golden` writes them.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from launch import resources
from launch.config.compose import Composed
from launch.config.schema import Family
from launch.errors import UserError
from launch.execution.record.checkpoints import Layout, find_checkpoints
from launch.planning.build import build_plan
from launch.planning.estimate.memory import estimate_memory
from launch.planning.estimate.model_state import bytes_per_parameter
from launch.planning.estimate.planned_setting import planned_setting
from launch.planning.plan import Plan
from launch.slurm.peers import heartbeat_interval
from tests.conftest import composed, fixed_machine

PAGE = resources.ROOT / "docs" / "explanation" / "scale.md"
NODES = (1, 8, 64, 512)
GIB = 1 << 30


@functools.cache
def stage(*overrides: str) -> Composed:
    return composed("stage=sft", "gpus=8", *overrides)


def planned(nodes: int, *overrides: str, **recipe: int) -> Plan:
    """The plan that `nodes=N recipe.WORD=NUMBER` gives, composed once for all widths."""
    composed_stage = stage(*overrides)
    config = replace(
        composed_stage.config, nodes=nodes, recipe=replace(composed_stage.config.recipe, **recipe)
    )
    return build_plan(replace(composed_stage, config=config), fixed_machine())


def holding(nodes: int, *overrides: str) -> Plan:
    """The plan at the stage's global batch, or at the smallest that this width holds."""
    try:
        return planned(nodes, *overrides)
    except UserError:
        return planned(nodes, *overrides, global_batch_size=nodes * 8)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


def held() -> list[str]:
    rows = []
    for per_device in (1, 2, 4, 8, 16, 32):
        fit = []
        for nodes in (1, 2, 4, 8, 16, 32):
            try:
                fit.append(
                    (nodes, planned(nodes, per_device_batch_size=per_device).batch.accumulation)
                )
            except UserError:
                continue
        rows.append((per_device, ", ".join(f"{nodes} ({steps})" for nodes, steps in fit) or "none"))
    return table(("per device", "nodes of 8 GPUs, and accumulation, that 128 splits over"), rows)


def state() -> list[str]:
    rows = []
    for model, mode in [
        (model, mode) for model in ("llama3_1_8b", "llama3_1_70b") for mode in ("zero2", "zero3")
    ]:
        cells = []
        for nodes in NODES:
            plan = holding(nodes, f"model={model}", f"parallel={mode}")
            parameters = plan.config.model.shape.parameters
            assert parameters is not None and plan.parallel.mode == mode
            per_parameter = bytes_per_parameter(
                plan.parallel.mode, plan.parallel.width.world_size, plan.parallel.precision
            )
            peak = estimate_memory(planned_setting(plan, {}, flash=True)).total
            cells.append(f"{per_parameter.rank * parameters / GIB:.3g}, {peak:.0f}")
        rows.append((model, mode, *cells))
    return table(("model", "parallel", *(f"{nodes * 8} ranks" for nodes in NODES)), rows)


def checkpoint(folder: Path) -> list[str]:
    """The number of files is what a checkpoint is checked for: an empty one is told what it
    lacks.
    """
    rows = []
    for nodes in NODES:
        plan = holding(nodes)
        parameters = plan.config.model.shape.parameters
        assert parameters is not None and plan.parallel.zero_stage is not None
        ranks = plan.parallel.width.world_size
        empty = folder / f"{nodes}" / "step_1"
        empty.mkdir(parents=True)
        [partial] = find_checkpoints(
            empty.parent, Layout(Family.open_instruct, ranks, plan.parallel.zero_stage)
        )
        counted = [re.search(r"expected (\d+)", fault) for fault in partial.faults]
        files = sum(int(count[1]) if count else 1 for count in counted)
        each = (2 + 12) * parameters / GIB  # bf16 weights; fp32 master weights and two moments
        rows.append(
            (nodes, f"{ranks:,}", f"{files:,}", f"{each:.0f}", f"{each / ranks * 1024:,.0f}")
        )
    return table(("nodes", "ranks", "files", "GiB in all", "MiB a rank"), rows)


def traffic() -> list[str]:
    """A rank takes part in gathering the weights twice and scattering the gradients once a micro
    batch (ZeRO-3), or scatters gradients each micro batch and gathers weights once a step (ZeRO-2);
    two bytes an element.
    """
    rows = []
    for nodes in NODES:
        plan = holding(nodes)
        parameters = plan.config.model.shape.parameters
        assert parameters is not None
        share = (plan.batch.width - 1) / plan.batch.width
        elements = 2 * parameters * share / GIB
        steps = plan.batch.accumulation
        rows.append(
            (
                nodes,
                str(plan.batch),
                f"{3 * steps * elements:,.0f}",
                f"{(steps + 1) * elements:,.0f}",
            )
        )
    return table(("nodes", "batch", "ZeRO-3, GiB a rank and step", "ZeRO-2"), rows)


_PEAK = re.compile(r"(?<=, )\d+(?= \|)")  # in the table of memory


def same(now: str, recorded: str) -> bool:
    """Whether two tables say the same: the predicted peaks to a tenth, as the prediction is
    calibrated now and then.
    """
    peaks = [[int(peak) for peak in _PEAK.findall(text)] for text in (now, recorded)]
    return _PEAK.sub("", now) == _PEAK.sub("", recorded) and peaks[0] == pytest.approx(
        peaks[1], rel=0.1, abs=1
    )


@pytest.mark.parametrize("name", ["held", "state", "checkpoint", "traffic"])
def test_table(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    tables: dict[str, Callable[[], list[str]]] = {
        "held": held,
        "state": state,
        "checkpoint": lambda: checkpoint(tmp_path),
        "traffic": traffic,
    }
    text = PAGE.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}: written by tests/planning/test_scale.py -->\n", "<!-- end -->"
    before, rest = text.split(begin)
    recorded, after = rest.split(end, 1)
    now = "".join(f"{line}\n" for line in tables[name]())
    if request.config.getoption("--update-golden"):
        PAGE.write_text(before + begin + now + end + after, encoding="utf-8")
    elif not same(now, recorded):
        diff = difflib.unified_diff(
            recorded.splitlines(), now.splitlines(), PAGE.name, "now", lineterm=""
        )
        pytest.fail(
            "\n".join([*diff, "", "if the change is meant: scripts/test --update-golden"]),
            pytrace=False,
        )


def test_heartbeats_become_rarer_with_the_nodes() -> None:
    """Written and read per second by all nodes: node 0 reads those of all others, and they read
    that of node 0.
    """
    rates = [
        (nodes / heartbeat_interval(nodes), 2 * (nodes - 1) / heartbeat_interval(nodes))
        for nodes in NODES
    ]
    assert [(round(written), round(read)) for written, read in rates] == [
        (1, 0),
        (8, 14),
        (30, 59),
        (30, 60),
    ]
