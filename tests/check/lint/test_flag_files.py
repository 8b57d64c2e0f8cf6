"""YAML files of flags: which map, which trainer, and the command line that it represents."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.check.lint.checker import LintVerdict
from launch.check.lint.files import check_file
from launch.check.lint.flag_files import flag_arguments
from launch.check.lint.trainer_commands import find_trainer
from launch.config.yaml_nodes import Mapping, read_yaml
from tests.check.lint.helpers import check_text, locked_checker

FLAGS = "model_name_or_path: m\nlearning_rate: 1e-5\nseed: 1\nlogging_steps: 1\n"


def command_line(text: str) -> list[str]:
    (root,) = read_yaml(text)
    assert isinstance(root, Mapping)
    return [argument.text for argument in flag_arguments(root.entries())]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1", ["--a", "1"]),
        ("a: 5.0e-06", ["--a", "5.0e-06"]),
        ("a: 1e-5", ["--a", "1e-5"]),
        ("a: yes\nb: False", ["--a", "true", "--b", "false"]),
        ("a: null\nb:\nc: ~\nd: ''", ["--d", ""]),
        ("a: [x, 1.0, y, true]", ["--a", "x", "1.0", "y", "true"]),
        ("a: []", ["--a"]),
        ("a: {x: 1.0}", ["--a", '{"x": 1.0}']),
        ("a: -1", ["--a=-1"]),
        ("a: two words", ["--a", "two words"]),
        ("x: &x {a: 1, b: 2}\n<<: *x\nb: 3", ["--x", '{"a": 1, "b": 2}', "--b", "3", "--a", "1"]),
        ("a: 1\na: 2", ["--a", "1", "--a", "2"]),
    ],
)
def test_the_command_line_that_a_map_represents(text: str, expected: list[str]) -> None:
    assert command_line(text) == expected


def check_single(tmp_path: Path, text: str, trainer: str | None = None) -> LintVerdict:
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    (verdict,) = check_file(
        path, locked_checker(), None if trainer is None else find_trainer(trainer)
    ).verdicts
    return verdict


def test_a_flat_map_is_checked_for_the_first_trainer_that_accepts_it(tmp_path: Path) -> None:
    verdict = check_single(tmp_path, "# comment\n\n" + FLAGS)
    assert (verdict.ok, verdict.script, verdict.line) == (True, "open_instruct/finetune.py", 3)
    verdict = check_single(tmp_path, FLAGS + "mixer_list: [d, 1.0]\nbeta: 5\n")
    assert (verdict.ok, verdict.script) == (True, "open_instruct/dpo_tune_cache.py")
    verdict = check_single(
        tmp_path,
        "model_name_or_path: m\ndataset_name: d\noutput_dir: o\nlearning_rate: 1e-5\nmax_length: "
        "9\n",
    )
    assert verdict.script == "trl.scripts.sft"
    assert verdict.ok is not False


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("script: open_instruct/finetune.py\nargs:\n  sed: 1\n  seed: 1\n", 3),
        ("script: finetune\nseed: 1\nsed: 1\n", 2),
        (
            (
                "name: x\njobs:\n  - script: finetune.py\n    gpus: 8\n    flags: {seed: 1,\n      "
                "sed: 1}\n"
            ),
            5,
        ),
        (
            (
                "program: open_instruct/finetune.py\nparameters:\n  seed: {values: [1, 2]}\n  sed: "
                "{value: 1}\n"
            ),
            3,
        ),
        ("trainer: open_instruct.finetune\nconfig:\n  inner:\n    seed: 1\n    sed: 1\n", 4),
    ],
)
def test_a_script_beside_the_map_names_the_trainer(tmp_path: Path, text: str, line: int) -> None:
    verdict = check_single(tmp_path, text)
    assert (verdict.script, verdict.line) == ("open_instruct/finetune.py", line)
    assert "sed" in [problem.where for problem in verdict.problems if problem.id == "unknown_flag"]


def test_a_map_somewhere_inside(tmp_path: Path) -> None:
    inner = "".join(f"    {line}\n" for line in (FLAGS + "sed: 2").splitlines())
    verdict = check_single(tmp_path, f"job:\n  name: x\n  flags:\n{inner}")
    assert (verdict.ok, verdict.line) == (False, 4)
    assert [(problem.where, problem.line) for problem in verdict.problems] == [("sed", 8)]


def test_the_trainer_that_is_named_is_taken_even_if_nothing_fits(tmp_path: Path) -> None:
    verdict = check_single(tmp_path, FLAGS, "dpo_tune_cache")
    assert (verdict.script, verdict.ok) == ("open_instruct/dpo_tune_cache.py", True)
    verdict = check_single(tmp_path, "foo: 1\nbar: 2\n", "open_instruct/finetune.py")
    assert {problem.where for problem in verdict.problems} >= {"foo", "bar"}


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("dataset_mixer_list: a 1.0", True),
        ("dataset_mixer_list: '[a, 1.0]'", True),
        ("dataset_mixer_list: [a, 1.0]", False),
        ("dataset_mixer_list_splits: train", True),
        ("report_to: wandb", False),
        ("exp_name: a b c", False),
    ],
)
def test_a_list_that_is_written_as_one_string(tmp_path: Path, line: str, refused: bool) -> None:
    verdict = check_single(tmp_path, FLAGS + line + "\n", "finetune")
    assert verdict.ok is not refused
    kinds = [(problem.where, problem.id, problem.line) for problem in verdict.problems]
    assert kinds == ([(line.partition(":")[0], "bad_type", 5)] if refused else [])


@pytest.mark.parametrize(
    "text",
    [
        "mixed_precision: bf16\nnum_processes: 8\nuse_cpu: false\n",
        "zero_optimization: {stage: 3}\ntrain_batch_size: auto\n",
        "on: push\njobs: {test: {steps: [{run: pytest}]}}\n",
        "- 1\n- 2\n",
        "just text\n",
        "learning_rate: 1\nx: 1\ny: 2\nz: 3\n",
    ],
)
def test_other_yaml_is_left_alone(tmp_path: Path, text: str) -> None:
    assert check_text(tmp_path, text, "a.yaml") == []
