"""`trl sft` accepts the options of `accelerate launch` besides its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.check.lint.accelerate_options import drop_launcher_flags, read_launcher_flags
from launch.check.lint.checker import CommandChecker
from launch.check.lint.schemas import TrainerSchemas
from launch.check.lint.shell_syntax import Argument, literal_argument
from launch.host.interpreter import installed_version
from launch.upstream.libraries.library_keys import library_keys
from tests.check.lint.helpers import check_text, live_checker, locked_checker
from tests.upstream.checkouts import SITE_PACKAGES

FLAGS = read_launcher_flags(tuple(SITE_PACKAGES))
needs_accelerate = pytest.mark.skipif(FLAGS is None, reason="needs an installed accelerate")
COMMAND = "trl sft --model_name_or_path m --dataset_name d --output_dir o"


@needs_accelerate
def test_options_are_read_from_accelerates_source() -> None:
    assert FLAGS is not None
    takes_value = {
        name: FLAGS.get(name)
        for name in ("--num_processes", "--num-processes", "--multi_gpu", "--config_file")
    }
    assert takes_value == {
        "--num_processes": True,
        "--num-processes": True,
        "--multi_gpu": False,
        "--config_file": True,
    }
    assert "--learning_rate" not in FLAGS


def test_drop_launcher_flags() -> None:
    flags = {"--n": True, "--cpu": False, "--seed": True}
    arguments = [
        literal_argument(text, 1)
        for text in ["--a", "--n", "2", "--n=3", "--cpu", "x", "--seed", "1"]
    ]
    arguments.append(Argument("--n=$X", 1, is_resolved=False, prefix="--n="))
    assert [argument.text for argument in drop_launcher_flags(arguments, flags, {"seed"})] == [
        "--a",
        "x",
        "--seed",
        "1",
    ]


@needs_accelerate
@pytest.mark.parametrize(
    ("more", "ok"),
    [
        ("--num_processes 4 --mixed_precision bf16", True),
        ("--multi_gpu --accelerate_config zero3 --learning_rate 1e-5", True),
        ("--num_proceses 4", False),
        ("--num_processes 4 --lerning_rate 1", False),
    ],
)
@pytest.mark.parametrize("packages", [SITE_PACKAGES, []], ids=["installed", "locked"])
def test_verdicts(tmp_path: Path, more: str, ok: bool, packages: list[Path]) -> None:
    checker = CommandChecker(TrainerSchemas(None, packages))
    (verdict,) = check_text(tmp_path, f"{COMMAND} {more}\n", checker=checker)
    assert verdict.ok is ok
    (verdict,) = check_text(
        tmp_path, f"python -m trl.scripts.sft {COMMAND[8:]} {more}\n", checker=checker
    )
    assert verdict.ok is False


def test_the_locked_options_of_accelerate_are_those_of_its_source() -> None:
    if installed_version("accelerate", SITE_PACKAGES) != library_keys("accelerate", []).version:
        pytest.skip("the locked accelerate is not installed")
    assert read_launcher_flags(()) == read_launcher_flags(tuple(SITE_PACKAGES))


@pytest.mark.parametrize("given", ["--reduce_loss sum", "--reduce_loss=sum", "--reduce_loss 'sum'"])
def test_a_removed_flag_is_answered_with_the_line_of_launch(tmp_path: Path, given: str) -> None:
    sft = f"python open_instruct/finetune.py --model_name_or_path m {given}\n"
    (verdict,) = check_text(tmp_path, sft, checker=locked_checker())
    [found] = verdict.problems
    assert found.id == "unknown_flag" and "#1024" in found.message
    assert "recipe.loss_averaging=sum" in str(found.cure)
    dpo = f"python open_instruct/dpo_tune_cache.py --model_name_or_path m {given}\n"
    (verdict,) = check_text(tmp_path, dpo, checker=locked_checker())
    [found] = verdict.problems
    assert found.id == "unknown_flag" and "=" not in str(found.cure)


def test_the_mean_needs_no_flag(tmp_path: Path) -> None:
    line = "python open_instruct/finetune.py --model_name_or_path m --reduce_loss mean\n"
    (verdict,) = check_text(tmp_path, line, checker=locked_checker())
    [found] = verdict.problems
    assert found.id == "unknown_flag" and "=" not in str(found.cure)


@pytest.mark.parametrize("script", ["finetune", "dpo"])
def test_arguments_in_a_file_beside_the_script_are_warned_of(tmp_path: Path, script: str) -> None:
    """HfArgumentParser puts those of finetune.args before the command's own."""
    package = tmp_path / "checkout" / "open_instruct"
    package.mkdir(parents=True)
    for name in ("utils.py", "finetune.py", f"{script}.args"):
        (package / name).touch()
    command = "python open_instruct/finetune.py --model_name_or_path m --logging_steps 1\n"
    [verdict] = check_text(tmp_path, command, checker=live_checker(tmp_path / "checkout"))
    found = [(warning.id, warning.line) for warning in verdict.warnings]
    assert (("arguments_file", 1) in found) == (script == "finetune")


@pytest.mark.parametrize(
    ("flags", "ineffective"),
    [
        ("--lora_r 8 --save_steps 10 --warmup_steps 5", ["lora_r"]),  # save_strategy is steps
        ("--lora_r 8 --use_peft", []),
        ("--lora_r 8 $MORE", []),
        ("--save_steps 10 --save_strategy no", ["save_steps"]),
        ("--save_steps 10 --save_strategy $STRATEGY", []),
        ("--lora_r 8 --config missing.yaml", []),
        ("--lora_r 8 --config peft.yaml", []),
    ],
)
def test_a_flag_without_effect_depends_on_the_defaults_of_the_others(
    tmp_path: Path, flags: str, ineffective: list[str]
) -> None:
    (tmp_path / "peft.yaml").write_text("use_peft: true\n", encoding="utf-8")
    (verdict,) = check_text(tmp_path, f"{COMMAND} {flags}\n", checker=locked_checker())
    found = [warning for warning in verdict.warnings if warning.id == "ineffective_flag"]
    assert [warning.where for warning in found] == ineffective
