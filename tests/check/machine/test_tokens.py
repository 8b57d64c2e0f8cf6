"""The rule that most of the work must not be padding, on the file that tokenising writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from launch.check.machine.inputs import padding_is_low
from launch.check.machine.rule import Host
from launch.planning.plan import Plan
from launch.worker.columns import SampleLengths, build_content
from launch.worker.finding import Finding
from tests.conftest import planned
from tests.messages import values_of

DPO = ("stage=dpo", "model.path=some/model", "recipe.max_seq_length=4096", "gpus=2")


def inspect_padding(plan: Plan) -> Finding:
    return padding_is_low.judge(plan, Host({}, None))


def plan_of(file: Path, *overrides: str) -> Plan:
    """A plan whose data are 500 pairs of 300 and 200 tokens."""
    chosen, rejected = [300] * 500, [200] * 500
    file.write_text(
        json.dumps(build_content(SampleLengths((chosen, rejected), None))), encoding="utf-8"
    )
    return replace(planned(*DPO, *overrides), lengths_file=file)


def test_rows_that_stay_empty_are_warned_of(tmp_path: Path) -> None:
    olmo = ("trainer=dpo", "flags.config_name=olmo2_1B_v2", "recipe.packing=bins")
    few = inspect_padding(plan_of(tmp_path / "a.json", *olmo, "recipe.global_batch_size=4"))
    assert few.severity == "warn" and {"2", "12", "4,096"} <= set(values_of(few.message))
    assert "recipe.per_device_batch_size=16 recipe.global_batch_size=32" in str(few.cure)
    many = (*olmo, "recipe.global_batch_size=26")
    reference = inspect_padding(plan_of(tmp_path / "b.json", *many))
    assert reference.severity == "warn" and "76" in values_of(reference.message)
    assert "recipe.per_device_batch_size=13" in str(reference.cure)
    full = inspect_padding(plan_of(tmp_path / "c.json", *many, "recipe.per_device_batch_size=13"))
    assert full.severity == "pass" and {"12.8", "78"} <= set(values_of(full.message))


def test_where_nothing_is_known_or_filled_it_is_skipped(tmp_path: Path) -> None:
    unknown = plan_of(tmp_path / "a.json", "trainer=dpo", "flags.config_name=olmo2_1B_v2")
    (tmp_path / "a.json").unlink()
    assert inspect_padding(unknown).severity == "skipped"
    assert inspect_padding(plan_of(tmp_path / "b.json")).severity == "skipped"  # dpo_tune_cache
