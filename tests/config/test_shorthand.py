"""Short forms on the command line: what each stands for, and a stage given by its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.config.compose import compose_once
from launch.config.line import CommandLine, parse_line
from launch.config.shorthand import expand
from launch.errors import UserError

OWN = (
    "# @package _global_\ndefaults:\n  - demo\n  - override /trainer: trl_sft\n  - "
    "_self_\nrecipe:\n  seed: 7\n"
)


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        ("model=meta-llama/Llama-3.2-1B", "model.path=meta-llama/Llama-3.2-1B"),
        ("model=./here", "model.path=./here"),
        ("model=qwen2_5_7b", "model=qwen2_5_7b"),
        ("data.mix=chats.jsonl", "data.mix=[{name: chats.jsonl}]"),
        ("data.mix=[chats.jsonl]", "data.mix=[{name: chats.jsonl}]"),
        ("data.mix=a.jsonl,org/set", "data.mix=[{name: a.jsonl},{name: org/set}]"),
        ("data.mix=[a.jsonl, 'b c.jsonl']", "data.mix=[{name: a.jsonl},{name: 'b c.jsonl'}]"),
        ("data.mix=[{name: x, share: 0.5}]", "data.mix=[{name: x, share: 0.5}]"),
        ("data.mix=${recipe}", "data.mix=${recipe}"),
        ("data.mix=[]", "data.mix=[]"),
        ("data=rows.jsonl", "data.mix=[{name: rows.jsonl}]"),
        ("data=org/set", "data.mix=[{name: org/set}]"),
        ("data=tulu3_sft", "data=tulu3_sft"),
        ("data.validation=20%", "data.validation=0.2"),
        ("allow=disk", "allow=[disk]"),
        ("allow=disk,gpus_busy", "allow=[disk,gpus_busy]"),
        ("allow=[disk]", "allow=[disk]"),
        ("stage.tasks=gsm8k", "stage.tasks=[gsm8k]"),
        ("recipe.lora.targets=all-linear", "recipe.lora.targets=all-linear"),
        ("recipe.lora.targets=q_proj,v_proj", "recipe.lora.targets=[q_proj,v_proj]"),
        ("data.validation=2.5%", "data.validation=0.025"),
        ("data.validation=held_out.jsonl", "data.validation=held_out.jsonl"),
    ],
)
def test_short_forms(short: str, whole: str) -> None:
    assert expand(CommandLine("plan", False, ("stage=sft", short))).argv == ("stage=sft", whole)


def test_a_name_with_quotes_and_commas_is_one_entry_after_hydra_read_it() -> None:
    composed = compose_once(CommandLine("plan", False, ("stage=sft", "data.mix=it's & mine.jsonl")))
    assert [entry.name for entry in composed.config.data.mix] == ["it's & mine.jsonl"]


@pytest.mark.parametrize("given", ["stage={}", "{}"])
def test_a_stage_by_its_file(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    composed = compose_once(parse_line(["plan", given.format("./mine.yaml"), "gpus=0"], ["plan"]))
    assert (composed.stage, composed.config.recipe.seed, composed.config.trainer.name) == (
        "mine",
        7,
        "trl_sft",
    )
    assert composed.origins.overrides == (f"stage={tmp_path}/mine.yaml", "gpus=0"), (
        "another process can use it"
    )
    assert composed.origins.of("recipe.seed").where == f"{tmp_path}/mine.yaml:7"


@pytest.mark.parametrize("place", ["a=b, [c] (1)", "it's", "mé {x}"])
def test_a_stage_file_in_a_folder_of_any_name(place: str, tmp_path: Path) -> None:
    file = tmp_path / place / "demo.yaml"
    file.parent.mkdir()
    file.write_text(OWN, encoding="utf-8")
    composed = compose_once(CommandLine("plan", False, (f"stage={file}",)))
    assert (composed.stage, composed.config.recipe.seed) == ("demo", 7), (
        "and not the shipped stage of this name"
    )
    again = compose_once(CommandLine("plan", False, composed.origins.overrides))
    assert again.origins.of("recipe.seed").where == f"{file}:7"


def test_a_stage_file_is_checked_as_the_users_own_ones_are(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(OWN + "hydra: {run: {dir: x}}\n", encoding="utf-8")
    with pytest.raises(UserError, match="reserved_key"):
        compose_once(CommandLine("plan", False, (f"stage={file}",)))
    file.write_text(OWN + "  lerning_rate: 1\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"bad\.yaml:8: .*'recipe\.lerning_rate'.*\[unknown_key\]"):
        compose_once(CommandLine("plan", False, (f"stage={file}",)))


@pytest.mark.parametrize("value", ["/nonexistent/mine.yaml", "./mine.yaml", "some/where"])
def test_a_stage_file_that_is_not_there(value: str) -> None:
    with pytest.raises(UserError, match=r"\[unknown_stage\]"):
        compose_once(CommandLine("plan", False, (f"stage={value}",)))


def test_a_file_that_is_not_yaml(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match=r"notes\.txt.*\[unknown_stage\]"):
        compose_once(CommandLine("plan", False, (f"stage={tmp_path}/notes.txt",)))


def test_the_file_of_an_unknown_option_is_no_stage() -> None:
    with pytest.raises(UserError) as refused:
        compose_once(parse_line(["plan", "--config_file", "zero3.yaml", "stage=demo"], ["plan"]))
    assert [problem.id for problem in refused.value.problems] == ["unknown_option"]
