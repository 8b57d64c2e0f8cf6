"""The files that a command's launcher names are checked with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.check.lint.helpers import check_text
from tests.thorough import mark_others

_SCRIPT = """accelerate launch \\
  --mixed_precision bf16 \\
  {flags} \\
  open_instruct/finetune.py --model_name_or_path m --logging_steps 1
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "ds.json").write_text(
        '{\n "zero_optimization": {"stag": 3}\n}\n', encoding="utf-8"
    )
    (tmp_path / "configs" / "good.json").write_text(
        '{"zero_optimization": {"stage": 3}}\n', encoding="utf-8"
    )
    (tmp_path / "configs" / "acc.yaml").write_text("num_process: 8\n", encoding="utf-8")
    (tmp_path / "scripts").mkdir()


def kinds(folder: Path, flags: str) -> list[tuple[str | None, str, int]]:
    (verdict,) = check_text(folder / "scripts", _SCRIPT.format(flags=flags))
    assert verdict.ok is (not verdict.problems)
    return [(problem.where, problem.id, problem.line) for problem in verdict.problems]


@pytest.mark.parametrize(
    "flags", ["--deepspeed_config_file configs/ds.json", "--deepspeed-config-file=configs/ds.json"]
)
def test_a_mistake_in_the_deepspeed_file(tmp_path: Path, flags: str) -> None:
    flags = flags.format("configs/ds.json")
    assert kinds(tmp_path, flags) == [("deepspeed_config_file", "unknown_deepspeed_key", 3)]
    (verdict,) = check_text(tmp_path / "scripts", _SCRIPT.format(flags=flags))
    message = str(verdict.problems[0])
    assert "configs/ds.json:2: deepspeed" in message and "'stage'" in message


def test_a_mistake_in_the_accelerate_file(tmp_path: Path) -> None:
    found = kinds(
        tmp_path, "--config_file configs/acc.yaml --deepspeed_config_file configs/good.json"
    )
    assert found == [("config_file", "unknown_accelerate_key", 3)]


@pytest.mark.parametrize(
    "flags",
    [
        "--deepspeed_config_file $DS",
        "--config_file nowhere.yaml",
        "--config_file",
        f"--config_file {'a' * 300}",
    ],
)
def test_files_that_are_not_known_or_not_here_are_not_judged(tmp_path: Path, flags: str) -> None:
    assert kinds(tmp_path, flags) == []


_DEEPSPEED = {
    "distributed_type": "DEEPSPEED",
    "compute_environment": "LOCAL_MACHINE",
    "num_processes": 1,
}
# an accelerate file's settings, the options of the command, and what is refused
CONFLICTS: list[tuple[dict[str, Any], str, str | None]] = [
    ({"deepspeed_config": {"deepspeed_config_file": "DS"}}, "", None),
    ({"deepspeed_config": {"deepspeed_config_file": "DS", "zero_stage": 3}}, "", "zero_stage"),
    (
        {"deepspeed_config": {"deepspeed_config_file": "DS", "gradient_clipping": 1.0}},
        "",
        "gradient_clipping",
    ),
    ({"deepspeed_config": {"deepspeed_config_file": "DS", "zero3_init_flag": True}}, "", None),
    ({"deepspeed_config": {"zero_stage": 2}}, "", None),
    ({"deepspeed_config": {"zero_stage": 2}}, "--deepspeed_config_file DS", "zero_stage"),
    (
        {"deepspeed_config": {"deepspeed_config_file": "DS"}, "mixed_precision": "bf16"},
        "",
        "mixed_precision",
    ),
    (
        {"deepspeed_config": {"deepspeed_config_file": "DS"}, "mixed_precision": "bf16"},
        "--mixed_precision bf16",
        None,
    ),
]
# Start accelerate's own launcher up to its plugin, which compares the settings.
_REAL = """
import os, sys
from accelerate.commands import launch
from accelerate.utils import DeepSpeedPlugin
from accelerate.utils.launch import prepare_deepspeed_cmd_env


def start(args):
    _, environment = prepare_deepspeed_cmd_env(args)
    os.environ.update(environment)
    DeepSpeedPlugin()


launch.deepspeed_launcher = start
launch.launch_command(launch.launch_command_parser().parse_args(sys.argv[1:]))
"""


@pytest.mark.slow  # accelerate takes seconds to import
@pytest.mark.parametrize(
    ("settings", "options", "refused"), mark_others(CONFLICTS, [CONFLICTS[1], CONFLICTS[-1]])
)
def test_accelerate_itself_refuses_the_same_files(
    tmp_path: Path, settings: dict[str, Any], options: str, refused: str | None
) -> None:
    deepspeed_file = str(tmp_path / "configs" / "good.json")
    text = json.dumps({**_DEEPSPEED, **settings}).replace('"DS"', json.dumps(deepspeed_file))
    file = tmp_path / "configs" / "made_up.json"
    file.write_text(text, encoding="utf-8")
    flags = f"--config_file {file} {options.replace('DS', deepspeed_file)}"
    command = [sys.executable, "-c", _REAL, *flags.split(), "train.py"]
    real = subprocess.run(command, capture_output=True, text=True, check=False)
    is_conflict = "the following accelerate config variables will be ignored" in real.stderr
    assert is_conflict or real.returncode == 0, real.stderr
    assert is_conflict == (refused is not None), real.stderr
    line = f"accelerate launch {flags} open_instruct/finetune.py --model_name_or_path m"
    (verdict,) = check_text(tmp_path / "scripts", f"{line}\n")
    ids = {problem.id for problem in verdict.problems}
    assert ids == ({"conflicting_accelerate_keys"} if refused else set())
    assert all(str(refused) in problem.message for problem in verdict.problems)


@pytest.mark.parametrize(
    ("text", "warns"),
    [
        ('{"zero_optimization": {"stage": 3}}', True),
        (
            '{"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": true}}',
            False,
        ),
        ('{"zero_optimization": {"stage": 2}}', False),
    ],
)
def test_zero3_that_cannot_save_the_model(tmp_path: Path, text: str, warns: bool) -> None:
    (tmp_path / "configs" / "zero.json").write_text(text, encoding="utf-8")
    line = _SCRIPT.format(flags="--deepspeed_config_file configs/zero.json")
    (verdict,) = check_text(tmp_path / "scripts", line)
    assert verdict.ok is True
    assert any(item.id == "unsaved_zero3_model" for item in verdict.warnings) is warns
