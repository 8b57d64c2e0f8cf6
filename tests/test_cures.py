"""Cures are applied: the line that follows one plans, or names another problem that does not take
it back.
"""

from __future__ import annotations

import ast
import importlib.util
import itertools
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from launch.api.cures import (
    _is_dead_end,
    apply_action,
    changed_keys,
    check_advice,
    check_cures,
    exact_actions,
    explain_problems,
    keys_of,
)
from launch.api.planning import plan_composed
from launch.commands.verbs import VERBS, help_text
from launch.config.compose import compose_once
from launch.config.line import CommandLine, parse_line
from launch.errors import UserError, actions_of
from launch.worker.finding import Action, Finding, Fix
from tests.paths import ROOT
from tests.thorough import mark_others

KINDS = {
    "finetune": "sft",
    "olmo_core_finetune": "sft",
    "trl_sft": "sft",
    "dpo_tune_cache": "dpo",
    "dpo": "dpo",
    "trl_dpo": "dpo",
    "trl_kto": "kto",
    "reward_modeling": "rm",
}
SETTINGS = """
recipe.packing=flatten | recipe.packing=bins | recipe.packing=none | recipe.liger=true | recipe.attention=flash_2
recipe.attention=eager | recipe.balanced=true | recipe.loss_averaging=tokens | recipe.loss_averaging=sum
recipe.loss=sigmoid | recipe.loss=simpo
recipe.beta=0.1 | recipe.chat_template=zephyr | recipe.chat_template=tulu | recipe.checkpoint_steps=10
recipe.eval_steps=5 | recipe.early_stop=2 | data.validation=0.1 | recipe.lora.rank=8 | recipe.lora.alpha=8
recipe.lora.rank=8 recipe.lora.dropout=0.1 | recipe.lora.rank=8 recipe.lora.quantize=nf4 | recipe.lora.start=continue
recipe.lora.rank=8 recipe.lora.targets=[q_proj] | recipe.lora.quantize=nf4 | recipe.precision=fp32
recipe.max_grad_norm=null | recipe.warmup_ratio=0.5 | recipe.lr_scheduler=cosine | recipe.epochs=3
recipe.max_seq_length=100000 | recipe.global_batch_size=7 | recipe.per_device_batch_size=3 | parallel=zero3
parallel=fsdp | parallel=ddp | parallel=single | parallel=zero3_offload | model=qwen2_5_7b | model=olmo2_1b
tracking=wandb | tracking=tensorboard | hub.push=me/x | evaluate=true | flags.use_peft=true | flags.learning_rate=1e-5
flags.bf16=true | flags.deepspeed=x.json | flags.max_length=512 | flags.report_to=wandb | flags.nosuch=1
"""
LISTED = [
    tuple(setting.split())
    for line in SETTINGS.strip().splitlines()
    for setting in line.split(" | ")
]
WIDTHS = ("device=cpu", "gpus=8")
OLMO_CORE = ("trainer=olmo_core_finetune", "model=olmo2_1b")


def outcome_of(line: CommandLine) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Return the problems of a line, and the warnings of its plan."""
    try:
        return (), plan_composed(compose_once(line)).warnings
    except UserError as error:
        return error.problems, ()


def problems_of(line: CommandLine) -> tuple[Finding, ...]:
    return outcome_of(line)[0]


def follow_cures(line: CommandLine) -> tuple[int, list[tuple[object, ...]]]:
    """Follow every cure of what is printed of a line; return their number, and those that lead
    back.
    """
    followed, dead = 0, list[tuple[object, ...]]()
    problems, warnings = outcome_of(line)
    for problem in [*check_cures(line, problems), *warnings]:
        actions = exact_actions(problem.cure)
        assert len({key for action in actions for key in keys_of(action)}) <= 3, problem
        for action in actions:
            followed += 1
            after, warnings_after = outcome_of(apply_action(action, line))
            same = any((other.id, other.where) == (problem.id, problem.where) for other in after)
            same = same and not (
                action.removes and problem.message not in {other.message for other in after}
            )
            same |= problem in warnings_after
            keys = {
                key for other in after for back in actions_of(other.cure) for key in keys_of(back)
            }
            changed = changed_keys(action)
            about = [other for other in after if any(key in str(other) for key in changed)]
            if same or (about and keys and keys <= changed):
                dead.append((line.argv, str(problem), [str(other) for other in after]))
    return followed, dead


@pytest.mark.slow
@pytest.mark.parametrize("trainer", mark_others(list(KINDS), ["finetune"]))
def test_no_cure_leads_back(trainer: str) -> None:
    followed, dead = 0, list[tuple[object, ...]]()
    for setting, width in zip(LISTED, itertools.cycle(WIDTHS), strict=False):
        line = CommandLine(
            "plan", False, (f"stage={KINDS[trainer]}", f"trainer={trainer}", width, *setting)
        )
        count, ends = follow_cures(line)
        followed, dead = followed + count, dead + ends
    print(f"{trainer}: {followed} cures followed")
    assert dead == [] and followed > 5


def test_a_cure_is_its_ways_and_the_sentence_that_names_them() -> None:
    cure = Fix.of("set {0} or {1}, or remove {2}", "a.b=1 c=[x, y]", "name=NAME", "~d")
    assert str(cure) == "set a.b=1 c=[x, y] or name=NAME, or remove d"
    assert cure.actions == (
        Action(("a.b=1", "c=[x, y]")),
        Action(("name=NAME",)),
        Action(removes="d"),
    )
    assert exact_actions(cure) == [cure.actions[0], cure.actions[2]]
    assert actions_of(Fix("`launch stage=demo name=x` continues it")) == actions_of(None) == ()


def test_a_way_replaces_what_it_is_set_for_and_an_option_with_its_value() -> None:
    line = plan_line("stage=sft", "--lora-r", "8", "name=x", "recipe.epochs=1")
    action = Action(("recipe.lora.rank=8", "recipe.epochs=2"), removes="--lora-r")
    assert apply_action(action, line).argv == (
        "stage=sft",
        "name=x",
        "recipe.lora.rank=8",
        "recipe.epochs=2",
    )


def plan_line(*argv: str) -> CommandLine:
    return CommandLine("plan", False, argv)


def test_a_way_that_the_line_contradicts_is_left_out() -> None:
    line = plan_line(
        "stage=sft",
        "trainer=finetune",
        "device=cpu",
        "recipe.lora.rank=8",
        "recipe.lora.quantize=nf4",
    )
    [problem] = check_cures(line, problems_of(line))
    assert "gpus=1" in str(problems_of(line)[0].cure)
    assert str(problem.cure) == "set trainer=trl_sft"


@pytest.mark.parametrize(
    ("line", "cures"),
    [
        (
            "plan stage=sft --load_in_4bit",
            ["set recipe.lora.rank=16 recipe.lora.quantize=nf4"],
        ),
        (
            "plan stage=sft qlora=true",
            ["set recipe.lora.rank=16 recipe.lora.quantize=nf4"],
        ),
        (
            "plan stage=sft lora_alpha=32",
            [
                (
                    "the equivalent command, with the stage's own values for all that it omits: "
                    "`launch plan stage=sft recipe.lora.rank=16 recipe.lora.alpha=32`"
                ),
            ],
        ),
        (
            "plan stage=sft device=mps --fp16 True",
            [
                "there is no fp16 here, and bf16 takes as much memory: set recipe.precision=bf16",
                "set device=cpu",
            ],
        ),
        (
            "plan stage=sft lr=1e-5 trainer=trl_dpo",
            [
                "set recipe.learning_rate=1e-5",
                "set trainer=finetune or trainer=olmo_core_finetune or trainer=trl_sft",
            ],
        ),
        ("plan stage=sft lr=1e-5", ["set recipe.learning_rate=1e-5"]),
    ],
)
def test_what_else_is_wrong_is_said_at_once(line: str, cures: list[str]) -> None:
    argv = line.split()
    try:
        parsed = parse_line(argv, list(VERBS))
        problems = problems_of(parsed)
    except UserError as error:
        parsed, problems = None, error.problems
    assert [str(problem.cure) for problem in explain_problems(argv, parsed, problems)] == cures


def test_where_no_way_works_the_override_is_removed() -> None:
    line = plan_line("stage=rm", "recipe.lora.alpha=8")
    assert "recipe.lora.rank=16" in str(problems_of(line)[0].cure)
    assert [str(problem.cure) for problem in check_cures(line, problems_of(line))] == [
        "remove recipe.lora.alpha"
    ]


@pytest.mark.parametrize(
    ("argv", "id", "cure"),
    [
        # without the override the stage's value is refused, as olmo_core_finetune always packs
        ((*OLMO_CORE, "recipe.packing=bins"), "bins_change_the_batch", None),
        (
            ("trainer=trl_sft", "recipe.packing=bins"),
            "bins_change_the_batch",
            "recipe.packing=flatten keeps the global batch size",
        ),
    ],
)
def test_a_removal_that_leads_to_a_refusal_of_the_key_is_no_cure(
    argv: tuple[str, ...], id: str, cure: str | None
) -> None:
    line = plan_line("stage=sft", "gpus=8", *argv)
    problems, warnings = outcome_of(line)
    [found] = [finding for finding in (*problems, *warnings) if finding.id == id]
    [checked] = check_cures(line, [found])
    assert (str(checked.cure) if checked.cure else None) == cure


@pytest.mark.parametrize(
    ("override", "cure"),
    [
        ("recipe.epochs=3", "remove recipe.epochs"),
        ("recipe.learning_rate=1e-5", "remove recipe.learning_rate"),
        ("recipe.packing=bins", None),  # the stage's value is refused
    ],
)
def test_an_override_is_removed_if_the_stage_plans_without_it(
    override: str, cure: str | None
) -> None:
    key = override.partition("=")[0]
    line = plan_line("stage=sft", "gpus=8", *OLMO_CORE, "recipe.packing=bins")
    line = apply_action(Action((override,)), line)
    advice = Finding.error("x", "m", f"override {key}", Fix.of("set {0}", "gpus=banana"))
    [checked] = check_cures(line, [advice])
    assert (str(checked.cure).partition(":")[0] if checked.cure else None) == cure


@pytest.mark.parametrize(
    ("message", "is_dead_end"),
    [
        ("recipe.loss=x is refused", True),
        ("recipe.loss: it is refused", True),
        ("recipe.loss_averaging=x is refused", False),
        ("flags.recipe.loss is refused", False),
    ],
)
def test_a_problem_of_a_longer_name_is_not_about_the_key(message: str, is_dead_end: bool) -> None:
    before = Finding.error("x", "m", "override recipe.loss")
    after = Finding.error("y", message)
    for action in (Action(removes="recipe.loss"), Action(("recipe.loss=dpo",))):
        assert _is_dead_end(after, before, action) is is_dead_end


def test_other_verbs_and_cures_in_words_stay() -> None:
    words = Finding.error("x", "m", "override stage", "create the folder, gpus=banana")
    assert check_cures(plan_line("stage=sft"), [words]) == [words]
    other = Finding.error("x", "m", "override gpus", Fix.of("set {0}", "gpus=banana"))
    [problem] = check_cures(
        plan_line("stage=sft", "lora_r=8"), problems_of(plan_line("stage=sft", "lora_r=8"))
    )
    assert (problem.id, exact_actions(problem.cure)) == (
        "unknown_key",
        [Action(("recipe.lora.rank=8",), removes="lora_r")],
    )
    assert check_cures(CommandLine("rollout", False, ("stage=sft",)), [other]) == [other]
    assert check_cures(plan_line("stage=sft"), [other])[0].cure is None


def test_the_cures_of_a_sweep_are_planned_with_its_first_setting() -> None:
    line = plan_line("--multirun", "stage=sft,dpo", "gpus=8", "recipe.seed=1,2")
    advice = Finding.error(
        "x", "m", "override gpus", Fix.of("set {0} or {1}", "gpus=4", "gpus=banana")
    )
    assert [str(problem.cure) for problem in check_cures(line, [advice])] == ["set gpus=4"]


def test_the_advice_of_a_plan_is_planned() -> None:
    plan = plan_composed(compose_once(plan_line("stage=sft", "gpus=8"))).plan
    advice = Finding.error(
        "x", "m", "override gpus", Fix.of("set {0} or {1}", "gpus=4", "gpus=banana")
    )
    assert [str(checked.cure) for checked in check_advice(plan, [advice])] == ["set gpus=4"]


@pytest.mark.parametrize(
    "argv",
    [
        ("stage=sft", "trainer=finetune", "gpus=4", "cluster.gpu_memory=40"),
        (
            "stage=dpo",
            "trainer=trl_dpo",
            "gpus=8",
            "cluster.gpu_memory=40",
            "recipe.per_device_batch_size=16",
        ),
    ],
)
def test_what_would_fit_a_gpu_plans(argv: tuple[str, ...]) -> None:
    line = plan_line(*argv)
    memory = plan_composed(compose_once(line)).memory
    assert memory is not None and memory.remedy is not None
    assert problems_of(apply_action(Action.parse(str(memory.remedy)), line)) == ()


COMMAND = re.compile(r"(?:`|^\$ )(?:python -m |\{[^}]*\} -m )?launch ([a-z]\w*)\b(?!=)([^`]*)")
SOURCES = [*(ROOT / "launch").rglob("*.py"), *(ROOT / "launch").rglob("*.yaml")]


@cache
def source_texts() -> list[str]:
    return [text for file in SOURCES for text in texts_of(file)]


def texts_of(file: Path) -> Iterator[str]:
    """Yield the texts of a source file; of an f-string, with `X` for what is filled in."""
    if file.suffix == ".yaml":
        yield file.read_text(encoding="utf-8")
        return
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_command_that_is_advised_exists() -> None:
    """Verbs and options of `launch ...` in every message, cure and help text."""
    found = {match.groups() for text in source_texts() for match in COMMAND.finditer(text)}
    assert len(found) > 20
    helps = {name: help_text(VERBS[name]) for name, _ in found if name in VERBS}
    unknown = [name for name, _ in found if name not in VERBS]
    options = [
        (name, option) for name, rest in found for option in re.findall(r"(?<!\S)--[a-z-]+", rest)
    ]
    missing = [(name, option) for name, option in options if option not in helps.get(name, "")]
    assert (unknown, missing) == ([], [])


# variables that launch leaves to a library, and a file of it that reads them
READ_BY = {
    "CUDA_HOME": ("torch", "utils/cpp_extension.py"),
    "CUDA_VISIBLE_DEVICES": ("torch", "cuda/__init__.py"),
    "HF_TOKEN": ("huggingface_hub", "utils/_auth.py"),
    "WANDB_API_KEY": ("wandb", "env.py"),
    "WANDB_ENTITY": ("wandb", "env.py"),
}
ADVISED_VARIABLE = re.compile(r"\b(?:export|unset|set|or) \$?([A-Z][A-Z0-9]*_[A-Z0-9_]*[A-WYZ])\b")


def test_every_variable_that_is_advised_is_read() -> None:
    """By launch, which looks it up under this name, or by the library that it is for."""
    texts = source_texts()
    advised = {name for text in texts for name in ADVISED_VARIABLE.findall(text)}
    read_by_launch = {text for text in texts if re.fullmatch(r"[A-Z][A-Z0-9_]+", text)}
    assert {"HF_TOKEN", "WANDB_API_KEY", "OPEN_INSTRUCT_DIR", "CUDA_HOME"} <= advised
    unread = []
    for name in sorted(advised):
        package, path = READ_BY.get(name, ("", ""))
        spec = importlib.util.find_spec(package) if package else None
        if spec is not None and spec.origin is not None:
            is_read = name in (Path(spec.origin).parent / path).read_text(encoding="utf-8")
        else:
            # a library that is not installed here
            is_read = name in read_by_launch or bool(package)
        unread += [] if is_read else [name]
    assert unread == []


OF_THE_PROJECT = re.compile(
    r"(?<![\w/.])(?:\./)?((?:docs|scripts|configs/tulu|accelerate_configs)/[\w./-]*\w)"
)


def test_every_file_that_is_named_exists() -> None:
    """Files of the project, and open-instruct's scripts, in every text of the code."""
    named = sorted({path for text in source_texts() for path in OF_THE_PROJECT.findall(text)})
    assert len(named) > 5
    upstream = Path(os.environ.get("OPEN_INSTRUCT_DIR") or ROOT / "external/open-instruct")
    roots = {True: upstream if (upstream / "open_instruct").is_dir() else None, False: ROOT}
    placed = [(roots[path.startswith("scripts/train")], path) for path in named]
    assert [path for root, path in placed if root is not None and not (root / path).exists()] == []


def test_a_command_is_a_way_that_is_not_planned() -> None:
    cure = Fix.of("{0}, or set {1}", "$ export CUDA_VISIBLE_DEVICES=0,1", "gpus=2")
    assert str(cure) == "`export CUDA_VISIBLE_DEVICES=0,1`, or set gpus=2"
    assert [(action.runs, action.is_exact) for action in cure.actions] == [
        ("export CUDA_VISIBLE_DEVICES=0,1", False),
        (None, True),
    ]
    assert exact_actions(cure) == [cure.actions[1]]
