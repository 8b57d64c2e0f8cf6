"""A stage on a run's model has the run's chat template, or says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch import resources
from launch.errors import UserError
from launch.planning.plan import Plan, build_plan
from tests.conftest import composed, fixed_machine, problems

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


def refusal(*overrides: str, cwd: Path = Path("/cwd")) -> str:
    [found] = problems(*overrides, machine=fixed_machine(cwd=cwd))
    return str(found)


SFT = ("stage=sft", "trainer=trl_sft")
CURE = "trainer=finetune, which needs no marks"


@pytest.mark.parametrize(
    ("trainer", "kind"),
    [
        ("finetune", "sft"),
        ("olmo_core_finetune", "sft"),
        ("dpo_tune_cache", "dpo"),
        ("dpo", "dpo"),
        ("reward_modeling", "rm"),
        ("trl_sft", "sft"),
        ("trl_dpo", "dpo"),
        ("trl_grpo", "rlvr"),
    ],
)
def test_every_trainer_takes_names_and_files(trainer: str, kind: str, tmp_path: Path) -> None:
    own = tmp_path / "mine.jinja"
    own.write_text("{% generation %}", encoding="utf-8")
    more = ("model=olmo2_1b", "recipe.packing=bins") if trainer in ("olmo_core_finetune", "dpo") else ()
    more = (*more, "recipe.loss=dpo") if trainer == "trl_dpo" else more
    digests: dict[Path, str] = {own: "aaaa"}
    machine = fixed_machine(cwd=tmp_path, digest=digests.get)
    identities = set()
    for name in ("qwen3_training", "zephyr", "mine.jinja"):
        stage = f"stage={'demo_rlvr' if kind == 'rlvr' else kind}"
        plan = build_plan(composed(stage, f"trainer={trainer}", f"recipe.chat_template={name}", *more), machine)
        file = str(own) if name.endswith("jinja") else str(TULU.parent / f"trl/{name}.jinja")
        file = str(TULU.with_name("zephyr.jinja")) if name == "zephyr" else file
        if plan.trainer == "trl_sft":
            assert plan.flags["chat_template_path"].value == file
        elif plan.trainer.startswith("trl"):
            assert f"chat_template={file}" in plan.options
        else:
            assert plan.flags["chat_template_name"].value == Path(name).stem
            assert (f"chat_template={file}" in plan.patches) is (name != "zephyr")
        expected = file if name.endswith("jinja") else name
        assert f"chat_template={expected}" in plan.command[plan.command.index("--expect") :] or "olmo" in trainer
        identities.add(plan.identity)
    digests[own] = "bbbb"
    identities.add(plan.identity)
    again = build_plan(composed(stage, f"trainer={trainer}", "recipe.chat_template=mine.jinja", *more), machine)
    assert again.identity not in identities  # the file's content decides


def test_a_flag_of_the_users_wins_over_the_recipes_file() -> None:
    overrides = ("stage=sft", "recipe.chat_template=qwen3", "flags.chat_template_name=tulu", "allow=[flag_over_recipe]")
    plan = build_plan(composed(*overrides), fixed_machine())
    assert not any("chat_template=" in patch for patch in plan.patches)


def test_a_family_answers_with_its_names() -> None:
    sentence = refusal(*SFT, "recipe.chat_template=qwen")
    assert "choose from qwen2_5, " in sentence and "qwen3_instruct_2507" in sentence and "_training" not in sentence
    plan = build_plan(composed(*SFT, "recipe.chat_template=gemma"), fixed_machine())
    [warning] = [problem for problem in plan.warnings if problem.id == "first_of_family"]
    assert "gemma3, gemma4" in str(warning.cure)
    plan = build_plan(composed(*SFT, "recipe.chat_template=qwen3"), fixed_machine())
    assert not [problem for problem in plan.warnings if problem.id == "first_of_family"]
    assert "/cwd/no.jinja is not a file" in refusal(*SFT, "recipe.chat_template=no.jinja")


def test_a_template_without_marks_is_refused_where_masks_need_them(tmp_path: Path) -> None:
    assert CURE in refusal(*SFT, "recipe.chat_template=llama3_1")
    (tmp_path / "mine.jinja").write_text("{{ messages }}", encoding="utf-8")
    assert CURE in refusal(*SFT, "recipe.chat_template=mine.jinja", cwd=tmp_path)
    for more in (("trainer=finetune",), ("trainer=trl_sft", "flags.assistant_only_loss=false")):
        build_plan(composed("stage=sft", "recipe.chat_template=llama3_1", *more), fixed_machine())


@pytest.mark.parametrize("trainer", ["finetune", "trl_sft", "dpo_tune_cache", "trl_dpo"])
def test_a_tokenizer_without_a_template_is_refused_when_its_files_are_here(trainer: str, tmp_path: Path) -> None:
    model = tmp_path / "base"
    model.mkdir()
    config = model / "tokenizer_config.json"
    kind = "dpo" if "dpo" in trainer else "sft"
    overrides = (f"stage={kind}", f"trainer={trainer}", f"model.path={model}", "allow=[incomplete_model]")
    overrides = (*overrides, "recipe.loss=dpo") if trainer == "trl_dpo" else overrides
    unset = (*overrides, "recipe.chat_template=null")
    build_plan(composed(*unset), fixed_machine())  # no tokenizer here: nothing is known
    config.write_text('{"eos_token": "</s>"}', encoding="utf-8")
    assert f"the tokenizer in {model} has no chat template" in refusal(*unset)
    assert "set recipe.chat_template=tulu or another" in refusal(*unset)
    build_plan(composed(*overrides, "recipe.chat_template=tulu"), fixed_machine())
    for template in ("{% generation %}", [{"name": "default", "template": "{%- generation -%}"}]):
        config.write_text(json.dumps({"chat_template": template}), encoding="utf-8")
        build_plan(composed(*unset), fixed_machine())


def test_trls_own_form_of_a_template_has_the_marks(tmp_path: Path) -> None:
    model = tmp_path / "chat"
    model.mkdir()
    overrides = (*SFT, f"model.path={model}", "allow=[incomplete_model]", "recipe.chat_template=null")
    (model / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    text = TULU.with_name("trl").joinpath("qwen2_5.jinja").read_text(encoding="utf-8")
    (model / "chat_template.jinja").write_text(text, encoding="utf-8")
    build_plan(composed(*overrides), fixed_machine())
    (model / "chat_template.jinja").write_text(text + " ", encoding="utf-8")  # TRL compares the texts
    assert f"the chat template of {model} does not mark the answers" in refusal(*overrides)


@pytest.mark.parametrize("name", ["qwen3", "./mine.jinja"])
def test_a_trainer_that_has_only_names_says_so(name: str) -> None:
    overrides = ("stage=rlvr", "trainer=grpo_fast", "gpus=8", f"recipe.chat_template={name}")
    sentence = refusal(*overrides)
    assert "grpo_fast has no chat template" in sentence and "the model's tokenizer" in sentence
