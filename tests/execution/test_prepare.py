"""What a run makes and looks up before it starts: waits are announced, what exists is kept, patches
must exist.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from launch.check.machine.inputs import template_text_is_here
from launch.check.machine.rule import Host
from launch.errors import UserError
from launch.execution.prepare import prepare_inputs, stage_template
from launch.execution.record.changes import describe_patches
from launch.planning.build import build_plan, plan_on_this_machine
from launch.planning.plan import Plan
from tests.conftest import composed, fixed_machine, planned
from tests.data.files import chat, write_lines
from tests.messages import outline
from tests.trl_texts import install_trl


def test_local_data_is_staged_once_and_announced(tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    ] * 128
    chats.write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = (
        "stage=sft",
        "trainer=trl_sft",
        "device=cpu",
        f"runs={tmp_path}/runs",
        f"data.mix=[{{name: {chats}}}]",
    )
    configuration = composed(*overrides)
    plan = plan_on_this_machine(configuration)
    printed: list[str] = []
    prepare_inputs(plan, printed.append)
    assert [line.split(" ")[0] for line in printed] == ["staging", "staged"]
    assert "128 rows" in printed[1]
    prepare_inputs(plan, printed.append)
    assert len(printed) == 2


def test_rows_that_one_data_set_holds_out_and_another_one_trains_on_are_named(
    tmp_path: Path,
) -> None:
    rows = [chat(f"Question {number}", "Answer") for number in range(200)]
    others = [chat(f"Other {number}", "Answer") for number in range(200)]
    write_lines(tmp_path / "a.jsonl", rows)
    write_lines(tmp_path / "b.jsonl", [*rows[:100], *others])
    write_lines(tmp_path / "c.jsonl", others)
    for name, ids in (("b", ["validation_trained"]), ("c", [])):
        mix = (
            f"data.mix=[{{name: {tmp_path}/a.jsonl}},{{name: {tmp_path}/{name}.jsonl,share: 0.5}}]"
        )
        plan = plan_on_this_machine(
            composed(
                "stage=sft",
                "trainer=trl_sft",
                "device=cpu",
                f"runs={tmp_path}/runs",
                "data.validation=0.1",
                mix,
            )
        )
        try:
            prepare_inputs(plan, lambda _: None)
            found = []
        except UserError as error:
            found = [problem.id for problem in error.problems]
        assert found == ids


QWEN3 = ("stage=sft", "trainer=trl_sft", "recipe.chat_template=qwen3")
TEXTS = {
    "qwen3": "{{ messages }}",
    "qwen3_training": "{% generation %}{{ messages }}{% endgeneration %}",
}


def plan_qwen3(root: Path, *packages: Path) -> Plan:
    machine = replace(
        fixed_machine(root), own_packages=packages, environ={"XDG_CACHE_HOME": str(root / "home")}
    )
    return build_plan(composed(*QWEN3), machine)


def test_both_forms_of_trls_template_are_staged_where_the_trainer_reads_them(
    tmp_path: Path,
) -> None:
    plan = plan_qwen3(tmp_path, install_trl(tmp_path / "packages", TEXTS, "1.17.0"))
    stage_template(plan)
    file = Path(str(plan.flags["chat_template_path"].value))
    staged = {path.stem: path.read_text(encoding="utf-8") for path in file.parent.iterdir()}
    assert (file.name, staged) == ("qwen3.jinja", TEXTS)
    finding = template_text_is_here.judge(plan, Host({}))
    assert (finding.severity, finding.message) == (
        "pass",
        f"qwen3 of TRL 1.17.0 in {tmp_path / 'packages'}",
    )
    stage_template(planned("stage=sft"))  # tulu is this project's own


def test_a_text_that_is_nowhere_is_refused_with_the_command_that_brings_it(tmp_path: Path) -> None:
    plan = plan_qwen3(tmp_path)
    finding = template_text_is_here.judge(plan, Host({}))
    assert (finding.severity, finding.where) == ("fail", "override recipe.chat_template")
    assert "`pip install trl==1.16.0 --no-deps`" in str(finding.cure)
    with pytest.raises(UserError) as refusal:
        stage_template(plan)
    assert refusal.value.problems == (replace(finding, id="no_template_text"),)
    assert not (plan.cache / "chat_templates").exists()


def test_a_patch_that_does_not_exist() -> None:
    plan = planned("stage=sft", "trainer.patches=[evidnce,evidence]")
    with pytest.raises(UserError) as refusal:
        describe_patches(plan)
    expected = "unknown_patch at trainer.patches, evidence, evidnce"
    assert outline(str(refusal.value)) == expected
