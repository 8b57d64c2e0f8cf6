"""Files of other tools give the same training: the numbers that decide it are compared with the flags
of the line that is printed, which other_tool_files.yaml has for each file.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch.api.cures import explain_problems
from launch.config.compose import compose_once
from launch.config.line import parse_line
from launch.config.other_tool_files import recognise_tool
from launch.errors import UserError
from launch.planning.build import plan_line
from launch.planning.other_tool_files import translate_file
from launch.worker.finding import Finding

TABLE: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("other_tool_files.yaml").read_text("utf-8")
)
CASES = [(tool, name, case) for tool, cases in TABLE.items() for name, case in cases.items()]
IDS = [f"{tool}: {name}" for tool, name, _ in CASES]


def answer_to(folder: Path, settings: dict[str, Any], *overrides: str) -> Finding:
    """Write a file and return the answer to its line, as the command prints it."""
    path = folder / "theirs.yaml"
    path.write_text(yaml.safe_dump(settings), "utf-8")
    argv = ["plan", str(path), *overrides]
    line = parse_line(argv, ["plan"])
    with pytest.raises(UserError) as refused:
        compose_once(line)
    (problem,) = explain_problems(argv, line, refused.value.problems)
    assert problem.id == "other_tool" and problem.where == f"{path}:1"
    return problem


def _plans(answer: str) -> bool:
    """Return whether the line of an answer plans."""
    command = answer.partition("the command without it: `")[2].partition("`")[0]
    try:
        plan_line(parse_line(shlex.split(command)[1:], ["plan"]))
    except UserError:
        return False
    return True


@pytest.mark.parametrize(("tool", "name", "case"), CASES, ids=IDS)
def test_the_line_trains_with_the_numbers_of_the_file(
    tool: str, name: str, case: dict[str, Any], tmp_path: Path
) -> None:
    if "dataset_info" in case:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "dataset_info.json").write_text(json.dumps(case["dataset_info"]))
    gpus = case.get("gpus")
    problem = answer_to(tmp_path, case["file"], *([f"gpus={gpus}"] if gpus else []))
    assert recognise_tool(case["file"]) == tool and tool in problem.message
    answer = str(problem.cure)
    if "missing" in case:
        missing = answer.partition("this is missing")[2].partition("the command without it")[0]
        assert case["missing"] in missing
        assert _plans(answer) != ("cannot be planned" in answer)
        return
    assert "this is missing" not in answer
    assert case.get("differs", "") in answer.partition("what differs")[2]
    command = str(problem.cure and problem.cure.actions[0].runs)
    plan = plan_line(parse_line(shlex.split(command)[1:], ["plan"]))
    flags = {flag: plan.flags[flag].value for flag in plan.flags}
    assert {flag: flags.get(flag) for flag in case["trains"]} == case["trains"]
    ranks = gpus or case.get("gpus_of_file", 1)
    assert plan.parallel.width.world_size == ranks
    micro, accumulation = (
        case["trains"].get(flag)
        for flag in ("per_device_train_batch_size", "gradient_accumulation_steps")
    )
    if micro and accumulation:
        assert plan.batch.global_ == micro * accumulation * ranks
        assert f"{micro} x {accumulation} x " in answer and f"= {plan.batch.global_}" in answer


def test_there_are_twenty_files() -> None:
    assert {tool: len(cases) for tool, cases in TABLE.items()} == {
        "axolotl": 10,
        "LLaMA-Factory": 5,
        "TRL": 5,
    }


def test_what_the_line_sets_wins(tmp_path: Path) -> None:
    settings = TABLE["axolotl"]["a small model with nothing but the data"]["file"]
    answer = str(answer_to(tmp_path, settings, "gpus=2", "recipe.epochs=3").cure)
    assert "recipe.epochs=3" in answer and "4 x 1 x 2 GPUs = 8" in answer


@pytest.mark.parametrize(
    ("names", "tool"),
    [
        (("defaults", "recipe", "model_name_or_path", "dataset_name", "learning_rate"), None),
        (("model_name_or_path", "dataset_mixer_list", "learning_rate", "dataset_name"), None),
        (("model_name_or_path", "learning_rate"), None),
        (("compute_environment", "num_processes", "mixed_precision"), None),
        (("base_model", "datasets", "adapter"), "axolotl"),
        (("model_name_or_path", "stage", "template", "dataset"), "LLaMA-Factory"),
        (("model_name_or_path", "dataset_name", "max_length"), "TRL"),
        (("template", "finetuning_type", "export_dir"), "LLaMA-Factory"),
        (("tokenizer", "dataset", "model", "checkpointer"), "torchtune"),
        (("actor_rollout_ref", "data", "algorithm", "trainer"), "verl"),
        (("data", "model", "optim", "trainer"), "verl"),
        (("data", "model", "trainer", "recipe"), None),
    ],
)
def test_the_tool_of_a_file_is_known_by_its_keys(names: tuple[str, ...], tool: str | None) -> None:
    assert recognise_tool(names) == tool


# What a key of a file stands for where it changes nothing: a value that is the tool's default here.
_DEFAULTS = (None, False, "none", "no", 0, 0.0, [], "auto", "", 1)


def _without(settings: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != key}


EXAMPLES = [case for case in CASES if case[1] == next(iter(TABLE[case[0]]))]


@pytest.mark.parametrize(("tool", "name", "case"), EXAMPLES, ids=[tool for tool, *_ in EXAMPLES])
def test_every_key_of_a_file_is_translated_or_named(
    tool: str, name: str, case: dict[str, Any], tmp_path: Path
) -> None:
    """A file with further keys about evaluation, checkpoints and its folder, too: without a key the
    answer is another one, or names it.
    """
    settings = {
        **case["file"],
        "output_dir": "./out",
        "run_name": "first",
        "logging_steps": 25,
        "resume_from_checkpoint": "out/checkpoint-1",
    }
    if tool == "axolotl":
        settings |= {"evals_per_epoch": 4, "saves_per_epoch": 1}
    else:
        settings |= {"eval_strategy": "steps", "eval_steps": 7, "save_strategy": "epoch"}
    if "dataset_info" in case:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "dataset_info.json").write_text(json.dumps(case["dataset_info"]))
    translated = _translated(settings, tool, tmp_path)
    lost = [
        key
        for key, value in settings.items()
        if value not in _DEFAULTS
        and key not in translated
        and translated == _translated(_without(settings, key), tool, tmp_path)
    ]
    kept = _of_defaults(lost, settings, tool, tmp_path)
    assert [key for key in lost if key not in kept] == []


def _translated(settings: dict[str, Any], tool: str, folder: Path) -> str:
    """Return the line and the remarks of a translation, without planning it."""
    translation = translate_file(settings, tool, folder / "theirs.yaml")
    return " ".join([*translation.lines, *translation.remarks, *translation.missing])


def _of_defaults(keys: list[str], settings: dict[str, Any], tool: str, folder: Path) -> list[str]:
    """Return the keys whose value is the tool's default: another value changes the line."""
    line = _translated(settings, tool, folder)
    return [
        key
        for key in keys
        if any(
            line != _translated({**settings, key: other}, tool, folder)
            for other in (3, 0.3, "other", True, False)
        )
    ]
