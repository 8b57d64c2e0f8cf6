"""A stage on a run's model has the run's chat template, or says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch import resources
from launch.errors import UserError
from launch.planning.plan import Plan, build_plan
from tests.conftest import composed, fixed_machine

TULU = Path(resources.ROOT, "launch", "templates", "tulu.jinja")


def make_run(folder: Path, *, flags: dict[str, str], patches: tuple[str, ...] = (), template: str = "{{ x }}") -> Path:
    """A finished SFT run; its model is in `model`, with the chat template in its tokenizer."""
    (folder / "model").mkdir(parents=True)
    recorded = {name: {"value": value} for name, value in flags.items()}
    (folder / "plan.json").write_text(json.dumps({"flags": recorded, "patches": patches}))
    (folder / "DONE").write_text("{}")
    (folder / "model" / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


def planned(run: Path, *words: str, allow: str = "incomplete_model") -> Plan:
    return build_plan(composed("stage=demo_dpo", f"model.path={run}", f"allow=[{allow}]", *words), fixed_machine())


@pytest.mark.parametrize("trainer", ["dpo_tune_cache", "trl_dpo"])
def test_another_template_than_the_runs_is_refused(tmp_path: Path, trainer: str) -> None:
    run = make_run(tmp_path / "run", flags={"chat_template_name": "zephyr"})
    with pytest.raises(UserError) as error:
        planned(run, f"trainer={trainer}", "recipe.chat_template=tulu")
    [problem] = error.value.problems
    assert problem.id == "other_chat_template"
    assert "recipe.chat_template=tulu" in problem.message and "trained the model with zephyr" in problem.message
    planned(run, f"trainer={trainer}", "recipe.chat_template=tulu", allow="incomplete_model,other_chat_template")
    planned(run, f"trainer={trainer}")  # takes the model's own


def test_the_names_of_all_trainers(tmp_path: Path) -> None:
    file = "/project/launch/templates/tulu.jinja"
    runs = (
        make_run(tmp_path / "a", flags={"chat_template_name": "tulu"}),
        make_run(tmp_path / "b", flags={"chat_template_path": file}),
        make_run(tmp_path / "c", flags={}, patches=(f"trl_chat_template={file}",)),
        make_run(tmp_path / "d", flags={}, template="{{ bos_token }}" + TULU.read_text(encoding="utf-8")),
    )
    for run in runs:
        planned(run, "recipe.chat_template=tulu")


def test_a_tokenizers_own_template_is_compared_by_its_text(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", flags={})
    with pytest.raises(UserError, match="the tokenizer's own"):
        planned(run, "recipe.chat_template=tulu")


def test_a_model_that_is_no_runs_is_not_compared(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", flags={"chat_template_name": "zephyr"})
    (run / "plan.json").unlink()
    planned(run / "model", "recipe.chat_template=tulu")
    planned(make_run(tmp_path / "sft", flags={"chat_template_name": "zephyr"}))
