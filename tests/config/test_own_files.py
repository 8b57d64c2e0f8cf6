"""Mistakes in a user's own YAML: each is one sentence with file, line, key and cure."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.config.compose import compose_once
from launch.config.line import CommandLine
from launch.errors import UserError
from launch.worker.finding import Finding
from tests.conftest import composed
from tests.messages import outline

Refuse = Callable[..., Finding]
HEAD = "# @package _global_\n"
DEMO = HEAD + "defaults:\n  - demo\n  - _self_\n"  # 4 lines


@pytest.fixture
def refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Write files of the user's own (`group/name` -> content) and return the one problem of
    `stage=mine`.
    """
    folder = tmp_path / "настройки"
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(folder))

    def write(files: dict[str, str | bytes], *overrides: str) -> Finding:
        for name, content in files.items():
            path = folder / f"{name}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        began = time.process_time()
        with pytest.raises(UserError) as refused:
            composed("stage=mine", *overrides)
        assert time.process_time() - began < 6.0
        [problem] = refused.value.problems
        text = str(problem)
        assert "\n" not in text and "Traceback" not in text
        return Finding.error(
            problem.id,
            problem.message,
            (problem.where or "").replace(f"{folder}/", ""),
            problem.cure,
        )

    return write


SYNTAX = {
    "indentation": (DEMO + "recipe:\n  seed: 3\n   epochs: 2\n", 7, "'epochs: 2'"),
    "dedented": (DEMO + "recipe:\n    seed: 3\n  epochs: 2\n", 7, "'epochs: 2'"),
    "tab": (DEMO + "recipe:\n\tseed: 3\n", 6, ""),
    "alias": (DEMO + "recipe: &a\n  seed: *b\n", 6, "'seed: *b'"),
    "open brace": (DEMO + "recipe: {seed: 3\n", 6, ""),
    "NUL": (HEAD + "\x00\n", 2, "0x0"),
    "tag": (DEMO + "name: !!python/object:os.system x\n", 5, ""),
    "repeated key": (DEMO + "recipe:\n  seed: 3\n  seed: 4\n", 7, "'recipe.seed'"),
    "a list": (HEAD + "- a\n", 1, ""),
    "a word": ("hello\n", 1, ""),
}


@pytest.mark.parametrize("kind", SYNTAX)
def test_a_file_that_is_not_yaml(refuse: Refuse, kind: str) -> None:
    content, line, value = SYNTAX[kind]
    problem = refuse({"stage/mine": content})
    assert (problem.id, problem.where) == ("bad_yaml", f"stage/mine.yaml:{line}")
    assert value in problem.message and problem.cure


def test_a_file_that_is_not_utf8(refuse: Refuse) -> None:
    problem = refuse({"stage/mine": DEMO.encode() + b"stage:\n  description: caf\xe9\n"})
    assert (problem.id, problem.where) == ("not_utf8", "stage/mine.yaml:6")


@pytest.mark.parametrize("kind", ["disk error", "forbidden"])
def test_a_file_that_cannot_be_read(refuse: Refuse, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "настройки" / "stage" / "mine.yaml"
    file.parent.mkdir(parents=True)
    if kind == "disk error":
        file.symlink_to("/proc/self/mem")  # a regular file, whose first byte cannot be read
        if not file.is_file():
            pytest.skip("there is no /proc")
    else:
        file.write_text(DEMO)
        file.chmod(0)
        if os.access(file, os.R_OK):
            pytest.skip("this user may read everything")
    problem = refuse({})
    assert (problem.id, problem.where) == ("unreadable_file", "stage/mine.yaml")


def test_a_missing_header_is_not_a_typo(refuse: Refuse) -> None:
    without = DEMO.removeprefix(HEAD) + "recipe:\n  seed: 3\n"
    problem = refuse({"stage/mine": without})
    assert (problem.id, problem.where) == ("no_global_header", "stage/mine.yaml:1")
    problem = refuse({"stage/mine": DEMO + "recipe:\n  sed: 3\n"})
    assert outline(str(problem)) == "unknown_key at stage/mine.yaml:6, recipe.sed, recipe.seed"
    for text in (
        "# @package recipe\nseed: 3\n",
        f"defaults: [demo, _self_]\n{HEAD}recipe: {{seed: 3}}\n",
    ):
        assert refuse({"stage/mine": text}).id == "no_global_header"
    problem = refuse({"stage/mine": "\n# @package recipe\nseed: 3\n"})
    assert (problem.id, problem.where) == ("no_global_header", "stage/mine.yaml:2")


def test_other_comments_may_stand_above_the_header(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"# of me: $schema\n\n#\n{DEMO}recipe:\n  seed: 3\n", encoding="utf-8")
    assert compose_once(CommandLine("plan", False, (f"stage={file}",))).config.recipe.seed == 3


AXOLOTL = """base_model: some/model
load_in_4bit: false
datasets:
  - path: x.jsonl
    type: chat_template
  - path: y.jsonl
adapter: lora
lora_r: 32
lora_target_modules: [q_proj, v_proj]
gradient_accumulation_steps: 4
special_tokens:
  pad_token: <pad>
"""
FOUND = (
    "stage=lora_sft model.path=some/model recipe.lora.quantize=none 'data.mix=[x.jsonl,y.jsonl]'"
)
LLAMA_FACTORY = """model_name_or_path: some/model
stage: dpo
do_train: true
finetuning_type: lora
pref_beta: 0.2
"""


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("base_model: a/b\nadapter: lora\nsequence_len: 2048\n", "launch lint"),  # axolotl's
        ("model_name_or_path: a/b\nlr: 1e-5\n", "recipe.learning_rate=1e-5"),  # of no tool alone
    ],
)
def test_a_file_of_another_tool_is_said_to_be_one(refuse: Refuse, text: str, answer: str) -> None:
    """What it is here is planned in launch.api: tests/planning/test_other_tool_files.py."""
    problem = refuse({"stage/mine": text})
    assert problem.id == "other_tool" and answer in str(problem.cure)


NESTED = {
    "data:\n  mix:\n    - name: a\n    - nme: b\n": (8, "unknown_key", "data.mix[1].nme"),
    "data:\n  mix: [{name: a, share: much}]\n": (6, "bad_value", "data.mix[0].share"),
    "data:\n  mix: {name: a}\n": (6, "bad_value", "data.mix"),
    "recipe:\n  lora: 8\n": (6, "bad_value", "recipe.lora"),
    "recipe:\n  seed: null\n": (6, "bad_value", "recipe.seed"),
    "gates:\n  <<: {los_gap: 1}\n": (5, "unknown_key", "gates.los_gap"),
    "recipe.seed: 3\n": (5, "unknown_key", "recipe.seed"),
}


@pytest.mark.parametrize("text", NESTED)
def test_a_mistake_inside_of_a_list_or_a_node_has_its_line(refuse: Refuse, text: str) -> None:
    line, id, key = NESTED[text]
    problem = refuse({"stage/mine": DEMO + text})
    assert (problem.id, problem.where) == (id, f"stage/mine.yaml:{line}")
    assert re.search(rf"(^|'){re.escape(key)}\b", problem.message)


def test_all_mistakes_of_files_and_line_are_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path))
    for name, text in {
        "stage/mine": DEMO + "recipe:\n  seed: three\n  epocs: 2\n",
        "model/own": "shape:\n  layers: two\n",
    }.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / f"{name}.yaml").write_text(text)
    with pytest.raises(UserError) as refused:
        composed("stage=mine", "model=own", "gpus=two", "bogus=1")
    assert {(found.id, found.where) for found in refused.value.problems} == {
        ("bad_value", None),  # gpus
        ("unknown_key", None),  # bogus
        ("bad_value", f"{tmp_path}/stage/mine.yaml:6"),
        ("unknown_key", f"{tmp_path}/stage/mine.yaml:7"),
        ("bad_value", f"{tmp_path}/model/own.yaml:2"),
    }


def test_a_value_of_another_type(refuse: Refuse) -> None:
    problem = refuse({"stage/mine": DEMO + "recipe:\n  seed: three\n"})
    assert (problem.id, problem.where) == (
        "bad_value",
        "stage/mine.yaml:6",
    ) and "'three'" in problem.message
    problem = refuse({"stage/mine": DEMO + "recipe:\n  seed: ${nope}\n"})
    assert (problem.id, problem.where) == (
        "bad_value",
        "stage/mine.yaml:6",
    ) and "nope" in problem.message


DEFAULTS = {
    "mine": ("- mine", 3, "cyclic_defaults", "mine -> mine"),
    "other": ("- other", 3, "cyclic_defaults", "mine -> other -> mine"),
    "no such stage": ("- dmo", 3, "unknown_stage", "'dmo'"),
    "no such model": ("- override /model: dmo", 3, "unknown_model", "'dmo'"),
    "no such group": ("- override /mdel: demo", 3, "bad_defaults", "'mdel'"),
    "no override": ("- demo\n  - /model: demo", 4, "bad_defaults", "model"),
    "a list": ("- [demo]", 3, "bad_defaults", ""),
}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_a_wrong_defaults_list(refuse: Refuse, kind: str) -> None:
    entries, line, id, value = DEFAULTS[kind]
    other = HEAD + "defaults:\n  - mine\n  - _self_\n"
    problem = refuse(
        {"stage/mine": f"{HEAD}defaults:\n  {entries}\n  - _self_\n", "stage/other": other}
    )
    assert problem.id == id and value in problem.message
    assert problem.where == ("stage/other.yaml:3" if kind == "other" else f"stage/mine.yaml:{line}")


def test_defaults_that_are_no_list(refuse: Refuse) -> None:
    problem = refuse({"stage/mine": HEAD + "defaults: demo\n"})
    assert (problem.id, problem.where) == ("bad_defaults", "stage/mine.yaml:2")


def test_a_stage_without_what_it_must_set(refuse: Refuse) -> None:
    problem = refuse({"stage/mine": HEAD + "recipe:\n  seed: 3\n"})
    assert problem.id == "missing_value" and problem.where == "stage/mine.yaml"
    assert refuse({"stage/mine": ""}).id == "bad_yaml"


def test_the_other_groups_files_are_checked_too(refuse: Refuse) -> None:
    mine = DEMO + "recipe:\n  seed: 3\n"
    problem = refuse({"stage/mine": mine, "model/own": "base: a/b\n  sft: c\n"}, "model=own")
    assert (problem.id, problem.where) == ("bad_yaml", "model/own.yaml:2")
    problem = refuse({"tuned/fast": "recipe:\n  seed: 4\n"}, "model=demo", "+tuned=fast")
    assert (problem.id, problem.where) == ("no_global_header", "tuned/fast.yaml:1")


def test_a_stage_is_a_single_name(refuse: Refuse, tmp_path: Path) -> None:
    mine = DEMO + "recipe:\n  seed: 3\n"
    problem = refuse({"stage/mine": "", "stage/team/mine": mine})
    assert problem.id == "bad_yaml"
    for stage in ("../stage/demo", "team/mine"):
        with pytest.raises(UserError, match=rf"{stage}\b.*\[unknown_stage\]"):
            composed(f"stage={stage}")


def test_names_of_any_alphabet_compose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "мои настройки"
    (folder / "stage").mkdir(parents=True)
    (folder / "stage" / "опыт.yaml").write_text(
        DEMO + "stage:\n  description: проба\n", encoding="utf-8"
    )
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(folder))
    config = composed(
        "stage=опыт",
        "name=прогон",
        "runs=/прогоны (1)/x",
        "data.mix=[{name: /данные/мой файл.jsonl}]",
    )
    assert (config.config.name, config.config.runs) == ("прогон", "/прогоны (1)/x")
    assert config.config.data.mix[0].name == "/данные/мой файл.jsonl"
    assert (config.stage, config.config.stage.description) == ("опыт", "проба")


@pytest.mark.parametrize("options", [(), ("--multirun",)])
def test_a_file_that_sets_hydra_itself(
    refuse: Refuse, options: tuple[str, ...], tmp_path: Path
) -> None:
    own = DEMO + f"hydra:\n  output_subdir: written\n  run: {{dir: '{tmp_path}/written'}}\n"
    problem = refuse({"stage/mine": own}, *options)
    assert (problem.id, problem.where) == ("reserved_key", "stage/mine.yaml:5")
    base = refuse(
        {"stage/base": own, "stage/mine": HEAD + "defaults:\n  - base\n  - _self_\n"}, *options
    )
    assert (base.id, base.where) == ("reserved_key", "stage/base.yaml:5")
    assert not (tmp_path / "written").exists()


def test_a_line_is_found_in_the_file_as_it_is_now(refuse: Refuse) -> None:
    for comments in (0, 3):
        problem = refuse({"stage/mine": DEMO + "# comment\n" * comments + "recipe:\n  seed: -1\n"})
        assert (problem.id, problem.where) == ("out_of_range", f"stage/mine.yaml:{6 + comments}")
