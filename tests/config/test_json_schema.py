"""`launch schema`: the JSON Schema accepts every stage that ships and is drafted, and no mistake
that Hydra refuses.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch import resources
from launch.__main__ import main
from launch.config.json_schema import stage_schema
from tests.data.files import CHAT, write_lines

jsonschema = pytest.importorskip("jsonschema", reason="the `open-instruct` dependencies bring it")
STAGES = sorted((resources.CONFIGS / "stage").glob("*.yaml"))


@cache
def validator() -> Any:
    return jsonschema.Draft202012Validator(stage_schema())


def errors(content: Any) -> list[str]:
    return ["/".join(map(str, error.path)) for error in validator().iter_errors(content)]


def test_it_is_printed_and_is_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == main(["schema", "--json"]) == 0
    printed = capsys.readouterr().out
    once = json.loads(printed[: len(printed) // 2])
    assert once == stage_schema()
    jsonschema.Draft202012Validator.check_schema(once)


@pytest.mark.parametrize("path", STAGES, ids=[path.stem for path in STAGES])
def test_shipped_stages_are_valid(path: Path) -> None:
    assert errors(yaml.safe_load(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("mistake", "place"),
    [
        ("recipe: {learnin_rate: 1}", "recipe"),
        ("recipe: {epochs: 0}", "recipe/epochs"),
        ("recipe: {epochs: 1.5}", "recipe/epochs"),
        ("recipe: {learning_rate: 0}", "recipe/learning_rate"),
        ("recipe: {packing: bin}", "recipe/packing"),
        ("recipe: {lora: 8}", "recipe/lora"),
        ("recipe: {lora: {rank: -1}}", "recipe/lora/rank"),
        ("data: {mix: FILE}", "data/mix"),
        ("data: {mix: [{nam: FILE}]}", "data/mix/0"),
        ("stage: sft", "stage"),
        ("tuned: {}", ""),
        ("gpus: many", "gpus"),
        ("allow: padding", "allow"),
    ],
)
def test_a_mistake_is_found_where_it_is(mistake: str, place: str) -> None:
    assert errors(yaml.safe_load(mistake)) == [place]


@pytest.mark.parametrize(
    "text",
    [
        "recipe: {epochs: '${oc.env:EPOCHS}'}",
        "name: 7",
        "recipe: {max_steps: null, loss_averaging: tokens, lora: {targets: [q_proj]}}",
        "data: {mix: [{name: a.jsonl, share: 2}], validation: 0.02, columns: {prompt: frage}}",
        "flags: {anything: [1, 2]}",
        "guards: null",
    ],
)
def test_what_hydra_takes_is_valid(text: str) -> None:
    assert errors(yaml.safe_load(text)) == []


def test_a_drafted_stage_names_the_schema_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path / "conf"))
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "chats.jsonl", [CHAT] * 40)
    (tmp_path / "conf/stage").mkdir(parents=True)
    (tmp_path / "conf/stage/stage.schema.json").write_text("of an earlier version")
    assert main(["new", "mine", "--data", "chats.jsonl", "--model", "demo"]) == 0
    lines = (tmp_path / "conf/stage/mine.yaml").read_text(encoding="utf-8").splitlines()
    assert lines[:2] == [
        "# yaml-language-server: $schema=./stage.schema.json",
        "# @package _global_",
    ]
    assert (
        json.loads((tmp_path / "conf/stage/stage.schema.json").read_text(encoding="utf-8"))
        == stage_schema()
    )
    assert errors(yaml.safe_load("\n".join(lines))) == []
    assert main(["plan", "stage=mine", "gpus=0"]) == 0
