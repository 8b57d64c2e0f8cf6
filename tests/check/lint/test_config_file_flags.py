"""The files that a command's launcher names are checked with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.check.lint.helpers import check_text

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
