"""The trainer's own parser is asked with the plan's command line, in a process of its own."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launch.check.machine.parser import parser_accepts
from launch.check.machine.rule import Host
from launch.planning.build import build_plan
from launch.planning.plan import Plan
from launch.upstream.capture import start
from launch.worker.finding import Finding
from tests.check.machine.test_machine import planned
from tests.conftest import composed, fixed_machine
from tests.integration import warm
from tests.upstream.checkouts import checkout

SCRIPT = """
from dataclasses import dataclass
from transformers import HfArgumentParser

@dataclass
class Args:
    model_name_or_path: str = ""
    num_train_epochs: int = 1
    final_lr_ratio: float | None = None

    def __post_init__(self):
        ratio = self.final_lr_ratio
        if ratio is not None and (ratio < 0 or ratio > 1):
            raise ValueError(f"no share: final_lr_ratio={ratio}")

if __name__ == "__main__":
    HfArgumentParser(Args).parse_args_into_dataclasses()
"""


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(start, "_cache_folder", lambda: folder)


@pytest.mark.slow
def test_the_parser_of_the_pin_decides(tmp_path: Path) -> None:
    root = checkout()
    if root is None:
        pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR, or fetch the submodule")
    machine = replace(fixed_machine(tmp_path, checkout=root), python=warm.python_with_cold_ranks())
    check_that_the_parser_decides(build_plan(composed("stage=demo", "trainer=finetune"), machine))


def test_the_parser_of_a_script_decides(tmp_path: Path) -> None:
    (tmp_path / "open_instruct").mkdir()
    (tmp_path / "open_instruct" / "finetune.py").write_text(SCRIPT)
    machine = replace(fixed_machine(tmp_path, checkout=tmp_path), python=sys.executable)
    plan = build_plan(composed("stage=demo", "trainer=finetune"), machine)
    options = plan.command.index("--") + 1
    plan = replace(plan, command=(*plan.command[:options], "--model_name_or_path", "x"))
    check_that_the_parser_decides(plan)


def check_that_the_parser_decides(plan: Plan) -> None:
    """Ask the parser of a plan's trainer for its own command, and for three that it refuses."""

    def finding(*more: str, of: Plan = plan) -> Finding:
        identity = plan.identity if not more else f"{plan.identity}+"
        return parser_accepts.judge(
            replace(of, command=(*of.command, *more), identity=identity), Host({})
        )

    first, again = finding(), finding()
    assert first.severity == again.severity == "pass" and first.message != again.message, (
        "it is asked once"
    )
    unknown = finding("--no_such", "1")
    assert unknown.severity == "fail"
    assert unknown.message.endswith(
        "Some specified arguments are not used by the HfArgumentParser: ['--no_such', '1']"
    )
    assert "this is a defect of launch" in str(unknown.cure)
    raised = finding("--final_lr_ratio", "1.5")
    assert raised.severity == "fail"
    assert "final_lr_ratio" in raised.message and raised.message.endswith("=1.5")
    typed = finding("--num_train_epochs", "many")
    assert typed.message.endswith(
        "argument --num_train_epochs/--num-train-epochs: invalid int value: 'many'"
    )
    edited = replace(
        plan.upstream,
        matches_pin=False,
        description="1 file differs from the lock: open_instruct/x.py",
    )
    other = finding(
        "--no_such", "1", of=replace(plan, machine=replace(plan.machine, upstream=edited))
    )
    assert "open_instruct/x.py" in str(other.cure)


def test_a_package_that_does_not_load_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "trl").mkdir()
    (tmp_path / "trl" / "__init__.py").write_text(
        'raise ImportError("libcudart.so.12: cannot open")\n'
    )
    plan = planned(tmp_path, "stage=demo", "trainer=trl_sft")
    finding = parser_accepts.judge(plan, Host({"PYTHONPATH": str(tmp_path)}))
    assert (finding.id, finding.severity) == ("import_fails", "fail")
    assert finding.message.endswith(": ImportError: libcudart.so.12: cannot open")


def test_a_package_that_the_run_has_a_placeholder_for_is_not_missed(tmp_path: Path) -> None:
    (tmp_path / "open_instruct").mkdir()
    (tmp_path / "open_instruct" / "tools.py").write_text("import vllm\nvllm.SamplingParams\n")
    (tmp_path / "open_instruct" / "dpo.py").write_text(f"import open_instruct.tools\n{SCRIPT}")
    machine = replace(fixed_machine(tmp_path, checkout=tmp_path), python=sys.executable)
    plan = build_plan(composed("stage=dpo", "trainer=dpo", "gpus=2"), machine)
    plan = replace(
        plan, command=(*plan.command[: plan.command.index("--") + 1], "--model_name_or_path", "x")
    )
    assert "unused_imports" in plan.patches
    finding = parser_accepts.judge(plan, Host({}))
    assert finding.severity == "pass", finding.message
    bare = parser_accepts.judge(replace(plan, patches=(), identity="other"), Host({}))
    assert bare.message.endswith(": ModuleNotFoundError: No module named 'vllm'")
