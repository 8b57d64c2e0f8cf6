"""`from launch import plan, run, runs`: the same plans as the command line's, in threads too; a
real run.
"""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser

import launch
from launch.__main__ import main
from launch.api.planning import overrides
from launch.errors import UserError
from launch.worker.json_codec import to_json
from tests.execution.record.records import write_run
from tests.integration import warm


def test_importing_launch_imports_nothing_else() -> None:
    program = (
        "import sys, launch; print(sorted(name for name in sys.modules if "
        "name.startswith(('launch.', 'hydra'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="has no attribute 'plam'"):
        _ = launch.plam


@pytest.mark.parametrize(
    "value",
    [
        *(
            "a",
            "a b",
            "it's",
            'say "x"',
            "back\\slash",
            "ends\\",
            "\\'",
            "",
            "true",
            "1e-3",
            "null",
            "a,b",
            "${x}",
            "a=b",
        ),
        *(
            None,
            True,
            5e-6,
            3,
            [1, "a b"],
            [{"name": "a b.jsonl", "share": 0.5}],
            "~/x/y.jsonl",
            "s3://a/b",
        ),
    ],
)
def test_a_value_means_itself_on_the_command_line(value: Any) -> None:
    override = overrides("demo", {"flags": {"x": value}})[1]
    parsed = OverridesParser.create().parse_override(override)
    assert parsed.key_or_group == "flags.x"
    result = parsed.value()
    assert (result.text if hasattr(result, "text") else _plain(result)) == value


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return getattr(value, "text", value)


def test_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    planned = launch.plan(
        "sft", gpus=8, recipe={"learning_rate": 5e-6}, cluster={"gpu_type": "h100"}
    )
    assert planned.flags["learning_rate"].value == 5e-6
    assert planned.batch.global_ == 128 and planned.command[-2:] and planned.env
    assert planned.memory is not None and to_json(planned.memory) and planned.tokens is None
    assert planned.folder.parent == tmp_path / "runs" / "sft"
    assert planned.as_json()["batch"] == to_json(planned.batch)
    with pytest.raises(UserError) as refused:
        launch.plan("sft", gpus=3)
    assert [problem.id for problem in refused.value.problems] == ["batch_not_divisible"]


def test_two_plans_in_two_threads_and_inside_another_hydra_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    surrounding = HydraConfig.instance().cfg
    argv = list(sys.argv)
    with ThreadPoolExecutor(4) as threads:
        planned = list(threads.map(lambda gpus: launch.plan("sft", gpus=gpus), [1, 2, 4, 8] * 2))
    assert [each.batch.width for each in planned] == [1, 2, 4, 8] * 2
    assert [each.plan.identity for each in planned[:4]] == [
        each.plan.identity for each in planned[4:]
    ]
    assert HydraConfig.instance().cfg is surrounding and sys.argv == argv


@pytest.mark.slow
def test_a_run_from_its_start_to_its_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl", reason="the `train` dependencies are not installed")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as refused:
        launch.run("demo", trainer="trl_sft", python=str(tmp_path / "no_python"))
    assert refused.value.problems[0].id
    asked: dict[str, Any] = {"trainer": "trl_sft", "recipe": {"max_steps": 2}}
    asked["python"] = warm.python()
    training = launch.run("demo", **asked)
    assert training in launch.runs()
    status = training.wait(seconds=300)
    assert (status.state, status.step) == ("done", 2)
    steps = training.metrics()
    assert list(steps["step"]) == [1, 2] and (training.model / "config.json").exists()
    assert training.evidence() is not None
    assert (
        training.report(tmp_path / "mine.html")
        .read_text(encoding="utf-8")
        .startswith("<!doctype html>")
    )
    with pytest.raises(UserError, match=r"\[not_running\]"):
        training.stop()
    again = launch.run("demo", **asked)
    assert again.folder == training.folder


def test_what_the_api_returns_shows_itself_in_a_line_and_in_a_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    planned = launch.plan("sft", gpus=8, cluster={"gpu_type": "h100"})
    name = f"sft/{planned.folder.name}"
    assert (
        repr(planned)
        == f"<{name}: finetune, global 128 = 8 ranks x 1 per device x 16 accumulation>"
    )
    assert (
        repr(planned.memory).startswith("<")
        and repr(planned.memory).count("\n") == 0 < len(repr(planned.memory)) < 200
    )
    table = planned._repr_html_()
    assert re.sub(' style="[^"]*"', "", table).startswith(
        f"<table><tr><th>plan</th><th>{name}</th></tr><tr><td>stage</td><td>"
    )
    assert table.count("<tr>") == len(planned.facts()) + 1
    assert repr(launch.status()) == "<0 runs in runs>" and str(launch.status()).startswith(
        f"no runs in {tmp_path / 'runs'};"
    )
    for number in (1, 2):
        write_run(tmp_path / "runs" / "demo" / f"r{number}", steps=number)
    assert repr(launch.runs()[0]) == "<demo/r1: unfinished, step 1/1, loss 4.0000>"
    listed, compared = launch.status(), launch.compare("demo/r1", launch.runs()[1])
    assert repr(listed) == "<2 runs in runs>" and repr(compared) == "<demo/r1, demo/r2 compared>"
    assert ">demo/r2</td>" in listed._repr_html_() and ">demo/r2</th>" in compared._repr_html_()
    capsys.readouterr()
    for shown, argv in ((listed, ["status"]), (compared, ["compare", "demo/r1", "demo/r2"])):
        assert main(argv) == 0
        assert capsys.readouterr().out == f"{shown}\n"
