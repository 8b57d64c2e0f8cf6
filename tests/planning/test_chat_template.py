"""A stage on a run's model has the run's chat template, or says so."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from launch import resources
from launch.api.plan_facts import plan_facts
from launch.errors import UserError, actions_of
from launch.planning.build import build_plan
from launch.planning.plan import Plan
from launch.worker.finding import Finding
from launch.worker.json_codec import versioned
from tests.conftest import composed, fixed_machine, problems
from tests.trl_texts import install_trl, read_texts

TULU = Path(resources.ROOT, "launch", "templates", "tulu.jinja")
QWEN3 = "9ea43caa43fbdb12"  # the digest of both forms of TRL 1.16's qwen3


def make_run(
    folder: Path, *, flags: dict[str, str], patches: tuple[str, ...] = (), template: str = "{{ x }}"
) -> Path:
    """A finished SFT run; its model is in `model`, with the chat template in its tokenizer."""
    (folder / "model").mkdir(parents=True)
    recorded = {name: {"value": value} for name, value in flags.items()}
    (folder / "plan.json").write_text(json.dumps({"flags": recorded, "patches": patches}))
    (folder / "DONE").write_text("{}")
    (folder / "model" / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


def planned(run: Path, *words: str, allow: str = "incomplete_model") -> Plan:
    return build_plan(
        composed("stage=demo_dpo", f"model.path={run}", f"allow=[{allow}]", *words), fixed_machine()
    )


@pytest.mark.parametrize("trainer", ["dpo_tune_cache", "trl_dpo"])
def test_another_template_than_the_runs_is_refused(tmp_path: Path, trainer: str) -> None:
    run = make_run(tmp_path / "run", flags={"chat_template_name": "zephyr"})
    with pytest.raises(UserError) as error:
        planned(run, f"trainer={trainer}", "recipe.chat_template=tulu")
    [problem] = error.value.problems
    assert problem.id == "other_chat_template"
    assert "recipe.chat_template=tulu" in problem.message and "zephyr" in problem.message
    planned(
        run,
        f"trainer={trainer}",
        "recipe.chat_template=tulu",
        allow="incomplete_model,other_chat_template",
    )
    planned(run, f"trainer={trainer}")  # takes the model's own


def test_the_names_of_all_trainers(tmp_path: Path) -> None:
    file = "/project/launch/templates/tulu.jinja"
    runs = (
        make_run(tmp_path / "a", flags={"chat_template_name": "tulu"}),
        make_run(tmp_path / "b", flags={"chat_template_path": file}),
        make_run(tmp_path / "c", flags={}, patches=(f"chat_template={file}",)),
        make_run(
            tmp_path / "d", flags={}, template="{{ bos_token }}" + TULU.read_text(encoding="utf-8")
        ),
    )
    for run in runs:
        planned(run, "recipe.chat_template=tulu")
    staged = f"/runs/.cache/chat_templates/qwen3-{QWEN3}/qwen3.jinja"
    planned(
        make_run(tmp_path / "trl", flags={"chat_template_path": staged}),
        "recipe.chat_template=qwen3",
    )
    own = make_run(tmp_path / "own", flags={"chat_template_path": "/home/me/templates/tulu.jinja"})
    with pytest.raises(UserError, match=r"/home/me/templates/tulu\.jinja.*\[other_chat_template\]"):
        planned(own, "recipe.chat_template=tulu")


@pytest.mark.parametrize("name", ["gemma", "qwen3", "gemma3", "glm4moe_training"])
def test_trls_template_in_a_tokenizer_is_recognised_by_its_digest(
    name: str, tmp_path: Path
) -> None:
    text = read_texts().get(name) or pytest.skip("TRL is not installed")
    text = text.replace("\r\n", "\n")  # as Python reads the file
    for number, own in enumerate((text, text.strip(), "{{ bos_token }}" + text, text + "\n")):
        run = make_run(tmp_path / str(number), flags={}, template=own)
        planned(run, f"recipe.chat_template={name}")  # fixed_machine has no TRL
    with pytest.raises(UserError, match=r"\[other_chat_template\]"):
        planned(
            make_run(tmp_path / "other", flags={}, template=text + "{{ x }}"),
            f"recipe.chat_template={name}",
        )


def test_a_tokenizers_own_template_is_compared_by_its_text(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", flags={})
    with pytest.raises(UserError, match=r"\[other_chat_template\]"):
        planned(run, "recipe.chat_template=tulu")


def test_a_model_that_is_no_runs_is_not_compared(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", flags={"chat_template_name": "zephyr"})
    (run / "plan.json").unlink()
    planned(run / "model", "recipe.chat_template=tulu")
    planned(make_run(tmp_path / "sft", flags={"chat_template_name": "zephyr"}))


def find_problem(*overrides: str, cwd: Path = Path("/cwd")) -> Finding:
    [found] = problems(*overrides, machine=fixed_machine(cwd=cwd))
    return found


def refusal(*overrides: str, cwd: Path = Path("/cwd")) -> str:
    return str(find_problem(*overrides, cwd=cwd))


SFT = ("stage=sft", "trainer=trl_sft")


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
    more = (
        ("model=olmo2_1b", "recipe.packing=bins")
        if trainer in ("olmo_core_finetune", "dpo")
        else ()
    )
    more = (*more, "recipe.loss=dpo") if trainer == "trl_dpo" else more
    digests: dict[Path, str] = {own: "aaaa"}
    machine = fixed_machine(cwd=tmp_path, digest=digests.get)
    identities = set()
    for name in ("qwen3_training", "zephyr", "mine.jinja"):
        stage = f"stage={'demo_rlvr' if kind == 'rlvr' else kind}"
        plan = build_plan(
            composed(stage, f"trainer={trainer}", f"recipe.chat_template={name}", *more), machine
        )
        file = str(
            own
            if name.endswith("jinja")
            else plan.cache / f"chat_templates/qwen3-{QWEN3}/{name}.jinja"
        )
        file = str(TULU.with_name("zephyr.jinja")) if name == "zephyr" else file
        if plan.trainer == "trl_sft":
            assert plan.flags["chat_template_path"].value == file
        elif plan.trainer.startswith("trl"):
            assert f"chat_template={file}" in plan.options
        else:
            assert plan.flags["chat_template_name"].value == Path(name).stem
            assert (f"chat_template={file}" in plan.patches) is (name != "zephyr")
        expected = file if name.endswith("jinja") else name
        assert (
            f"chat_template={expected}" in plan.command[plan.command.index("--expect") :]
            or "olmo" in trainer
        )
        identities.add(plan.identity)
    digests[own] = "bbbb"
    identities.add(plan.identity)
    again = build_plan(
        composed(stage, f"trainer={trainer}", "recipe.chat_template=mine.jinja", *more), machine
    )
    assert again.identity not in identities  # the file's content decides


def test_a_flag_of_the_users_wins_over_the_recipes_file() -> None:
    overrides = (
        "stage=sft",
        "recipe.chat_template=qwen3",
        "flags.chat_template_name=tulu",
        "allow=[flag_over_recipe]",
    )
    plan = build_plan(composed(*overrides), fixed_machine())
    assert not any("chat_template=" in patch for patch in plan.patches)


def test_a_family_answers_with_its_names() -> None:
    sentence = refusal(*SFT, "recipe.chat_template=qwen")
    assert (
        "qwen2_5, " in sentence
        and "qwen3_instruct_2507" in sentence
        and "_training" not in sentence
    )
    plan = build_plan(composed(*SFT, "recipe.chat_template=gemma"), fixed_machine())
    [warning] = [problem for problem in plan.warnings if problem.id == "first_of_family"]
    assert "gemma3, gemma4" in str(warning.cure)
    plan = build_plan(composed(*SFT, "recipe.chat_template=qwen3"), fixed_machine())
    assert not [problem for problem in plan.warnings if problem.id == "first_of_family"]
    assert "/cwd/no.jinja" in refusal(*SFT, "recipe.chat_template=no.jinja")


def test_a_template_without_marks_is_refused_where_masks_need_them(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("{{ messages }}", encoding="utf-8")
    for template in ("llama3_1", "mine.jinja"):
        problem = find_problem(*SFT, f"recipe.chat_template={template}", cwd=tmp_path)
        assert problem.id == "no_generation_marks"
        assert problem.where == "override recipe.chat_template"
        actions = [str(action) for action in actions_of(problem.cure)]
        assert actions == ["trainer=finetune", "flags.assistant_only_loss=false"]
    for more in (actions[:1], [SFT[1], actions[1]]):
        build_plan(composed("stage=sft", "recipe.chat_template=llama3_1", *more), fixed_machine())
    (tmp_path / "mine.jinja").write_text("{% generation %}{% endgeneration %}", encoding="utf-8")
    build_plan(composed(*SFT, "recipe.chat_template=mine.jinja"), fixed_machine(tmp_path))


@pytest.mark.parametrize("trainer", ["finetune", "trl_sft", "dpo_tune_cache", "trl_dpo"])
def test_a_tokenizer_without_a_template_is_refused_when_its_files_are_here(
    trainer: str, tmp_path: Path
) -> None:
    model = tmp_path / "base"
    model.mkdir()
    config = model / "tokenizer_config.json"
    kind = "dpo" if "dpo" in trainer else "sft"
    overrides = (
        f"stage={kind}",
        f"trainer={trainer}",
        f"model.path={model}",
        "allow=[incomplete_model]",
    )
    overrides = (*overrides, "recipe.loss=dpo") if trainer == "trl_dpo" else overrides
    unset = (*overrides, "recipe.chat_template=null")
    build_plan(composed(*unset), fixed_machine())  # no tokenizer here: nothing is known
    config.write_text('{"eos_token": "</s>"}', encoding="utf-8")
    assert str(model) in refusal(*unset) and "recipe.chat_template=tulu" in refusal(*unset)
    build_plan(composed(*overrides, "recipe.chat_template=tulu"), fixed_machine())
    for template in ("{% generation %}", [{"name": "default", "template": "{%- generation -%}"}]):
        config.write_text(json.dumps({"chat_template": template}), encoding="utf-8")
        build_plan(composed(*unset), fixed_machine())


def test_trls_own_form_of_a_template_has_the_marks(tmp_path: Path) -> None:
    model = tmp_path / "chat"
    model.mkdir()
    overrides = (
        *SFT,
        f"model.path={model}",
        "allow=[incomplete_model]",
        "recipe.chat_template=null",
    )
    (model / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    text = read_texts().get("qwen2_5") or pytest.skip("TRL is not installed")
    (model / "chat_template.jinja").write_text(text, encoding="utf-8")
    build_plan(composed(*overrides), fixed_machine())
    # TRL compares the texts
    (model / "chat_template.jinja").write_text(text + " ", encoding="utf-8")
    assert str(model) in refusal(*overrides)


@pytest.mark.parametrize("name", ["qwen3", "./mine.jinja"])
def test_a_trainer_that_has_only_names_says_so(name: str) -> None:
    overrides = ("stage=rlvr", "trainer=grpo_fast", "gpus=8", f"recipe.chat_template={name}")
    sentence = refusal(*overrides)
    assert "grpo_fast" in sentence


OTHER = {
    "qwen3": "{{ messages }}",
    "qwen3_training": "{% generation %}{{ messages }}{% endgeneration %}",
}


def plan_qwen3(
    root: Path, *overrides: str, trainers: Path | None = None, own: Path | None = None
) -> Plan:
    """Plan with TRL's qwen3 where the trainer's interpreter and launch's own have these packages,
    and no other ones.
    """
    machine = replace(
        fixed_machine(cwd=root),
        packages=[trainers] if trainers else [],
        own_packages=[own] if own else [],
        environ={"XDG_CACHE_HOME": str(root / "home")},
    )
    stage = "stage=dpo" if "trainer=trl_dpo" in overrides else "stage=sft"
    line = (stage, "gpus=8", "recipe.chat_template=qwen3", f"runs={root / 'runs'}", *overrides)
    return build_plan(composed(*line), machine)


@pytest.mark.parametrize("trainer", ["finetune", "trl_sft"])
def test_a_plan_is_the_same_wherever_the_text_is(trainer: str, tmp_path: Path) -> None:
    texts = read_texts() or pytest.skip("TRL is not installed")
    with_trainers = plan_qwen3(
        tmp_path / "a", f"trainer={trainer}", trainers=install_trl(tmp_path / "x", texts)
    )
    with_own = plan_qwen3(
        tmp_path / "b", f"trainer={trainer}", own=install_trl(tmp_path / "y", texts)
    )
    kept = plan_qwen3(tmp_path / "a", f"trainer={trainer}")  # the first one's cache
    without = plan_qwen3(tmp_path / "c", f"trainer={trainer}")
    plans = (with_trainers, with_own, kept, without)
    assert len({plan.identity for plan in plans}) == 1
    assert [versioned(plan)["chat_template"]["is_here"] for plan in plans] == [
        True,
        True,
        True,
        False,
    ]
    for plan, folder in zip(plans, ("x", "y", "a/home"), strict=False):
        assert f"in {tmp_path / folder}" in facts(plan)
    assert "by its digest in the lock: `check` and `run` read the text" in facts(without)
    assert "by its digest" not in facts(kept)
    assert not [
        problem
        for plan in plans
        for problem in plan.warnings
        if problem.id == "other_template_text"
    ]


def facts(plan: Plan) -> str:
    return dict(plan_facts(plan, None, None))["template"]


@pytest.mark.parametrize("trainer", ["finetune", "trl_sft", "trl_dpo"])
def test_another_versions_text_is_used_and_makes_another_run(trainer: str, tmp_path: Path) -> None:
    kind = ("recipe.loss=dpo",) if trainer == "trl_dpo" else ()
    other = install_trl(tmp_path / "x", OTHER, "1.17.0")
    plans = [
        plan_qwen3(tmp_path, *kind, f"trainer={trainer}"),
        plan_qwen3(tmp_path, *kind, f"trainer={trainer}", trainers=other),
        plan_qwen3(
            tmp_path,
            *kind,
            f"trainer={trainer}",
            trainers=install_trl(
                tmp_path / "y", OTHER | {"qwen3_training": "{% generation %}"}, "1.18.0"
            ),
        ),
    ]
    assert len({plan.identity for plan in plans}) == 3
    [warning] = [problem for problem in plans[1].warnings if problem.id == "other_template_text"]
    assert all(value in warning.message for value in ("qwen3", "1.17.0", str(other), "1.16.0"))
    assert plans[1].finder.find("qwen3").text == OTHER["qwen3"]
    if trainer == "finetune":  # upstream's own key has the template's name alone
        caches = [plan.flags["dataset_local_cache_dir"].value for plan in plans]
        assert len(set(caches)) == 3


@pytest.mark.parametrize("name", [None, "mine"])
def test_an_unfinished_run_keeps_the_text_that_it_began_with(
    name: str | None, tmp_path: Path
) -> None:
    line = () if name is None else (f"name={name}",)
    before = plan_qwen3(tmp_path, *line, trainers=install_trl(tmp_path / "x", OTHER, "1.17.0"))
    before.folder.mkdir(parents=True)
    (before.folder / "plan.json").write_text(json.dumps(versioned(before)), encoding="utf-8")
    assert before.template and before.template.trl
    before.finder.stage(before.template.trl)
    shutil.rmtree(tmp_path / "home")
    changed = install_trl(tmp_path / "y", {"qwen3": "{{ 1 }}"}, "1.18.0")
    for packages in (changed, None):
        again = plan_qwen3(tmp_path, *line, trainers=packages)
        assert (again.identity, again.folder, again.command) == (
            before.identity,
            before.folder,
            before.command,
        )
        assert again.template and again.template.trl and again.template.trl.texts == OTHER
        assert "as this run began with it" in facts(again)
    # other settings, or a wish to start over, make it another run
    assert (
        plan_qwen3(tmp_path, *line, "recipe.seed=7", trainers=changed).template != before.template
    )
    over = plan_qwen3(tmp_path, *line, "restart=true", trainers=changed)
    assert over.identity != before.identity and "TRL 1.18.0" in facts(over)
    (before.folder / "DONE").write_text("{}", encoding="utf-8")
    after = plan_qwen3(tmp_path, *line, trainers=changed)
    assert (after.identity == before.identity) is (name is not None)
    shutil.rmtree(before.cache / "chat_templates")  # the text is nowhere any more
    assert plan_qwen3(tmp_path, *line, trainers=changed).identity != before.identity


def test_an_overridden_path_of_the_users_is_no_template_of_trls(tmp_path: Path) -> None:
    other = tmp_path / "mine.jinja"
    other.write_text("{% generation %}", encoding="utf-8")
    line = ("trainer=trl_sft", f"flags.chat_template_path={other}", "allow=[flag_over_recipe]")
    plan = plan_qwen3(tmp_path, *line)
    assert plan.flags["chat_template_path"].value == str(other)
    assert plan.trl_template is None and "chat_template" not in versioned(plan)
