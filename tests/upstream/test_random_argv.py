"""Random command lines, checked by the real HfArgumentParser and by `check_argv`.

They agree on what is refused, on the values where nothing is, and on what `__post_init__` raises.
The exceptions, where `check_argv` is stricter on purpose (the command isn't `ok` although argparse
takes it), are the table STRICTER.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launch.upstream.rules.argv import check_argv
from launch.upstream.rules.conversion import UNKNOWN
from launch.upstream.rules.parser import list_options
from launch.upstream.schema import Field, Schema
from tests.upstream.real_parsers import RealParsers

# kind of problem: why argparse's own answer is not good enough
STRICTER = {
    "abbreviated": "argparse completes a unique prefix; upstream's next flag with that prefix "
    "breaks the script",
    "duplicate": "argparse keeps the last value and says nothing about the first",
}

# of the synthetic trainer: what a handler raises is left undecided (test_contradictions.py)
IN_A_HANDLER = "ValueError: bad gpu name"
TEXTS = {
    "int": ["0", "3", "-2", "1e4", "1.0", " 5 ", "1_000", "x", ""],
    "float": ["0.5", "-1", "-1e-5", "nan", "1e400", "-.5", "x", "", "none"],
    "bool": ["true", "False", "yes", "n", "1", "on", "", "None"],
    "str": [
        "text",
        "",
        "-",
        "two words",
        "-dashed",
        "--dashed with space",
        "-5",
        "none",
        "a=b",
        "gpu1",
        "gpux",
    ],
    "choice": ["nope", "", "1", "two"],
    "enum": ["nope", "red"],
    "dict": ["{}", "", "none", '{"a": 1}'],
}


@st.composite
def argv_for(draw: st.DrawFn, schema: Schema) -> list[str]:
    every = list_options(schema)
    argv: list[str] = []
    for option in draw(st.lists(st.sampled_from(every), max_size=6)):
        flag = draw(st.sampled_from(option.strings))
        if draw(st.integers(0, 9)) == 0:
            flag = flag[: draw(st.integers(3, len(flag)))]
        argv += draw(_with_value(flag, option.field, option.nargs))
    for option in every:
        if option.required and draw(st.integers(0, 5)):
            argv += [option.strings[0], _valid_text(option.field)]
    noise = st.sampled_from(
        ["--unknown_flag", "positional", "--", "-x", "--max-seq_length=3", "-1", ""]
    )
    for argument in draw(st.lists(noise, max_size=1)) if draw(st.integers(0, 4)) == 0 else []:
        argv.insert(draw(st.integers(0, len(argv))), argument)
    return [
        argument
        for argument in argv
        if argument not in ("-h", "--help", "--he", "--hel", "--config")
    ]


def _with_value(flag: str, item: Field, nargs: str | None) -> st.SearchStrategy[list[str]]:
    pool = [*TEXTS.get(item.kind, TEXTS["str"]), *(str(choice) for choice in item.choices or ())]
    text = st.sampled_from(pool) | st.just(_valid_text(item))
    counts = {"0": (0, 0, 1), "?": (0, 1, 1, 2), "+": (0, 1, 2, 3), None: (1, 1, 1, 0, 2)}[nargs]
    spaced = (
        st.sampled_from(counts)
        .flatmap(lambda n: st.lists(text, min_size=n, max_size=n))
        .map(lambda w: [flag, *w])
    )
    return st.one_of(spaced, spaced, text.map(lambda w: [f"{flag}={w}"]))


def _valid_text(item: Field) -> str:
    if item.choices:
        return str(item.choices[-1])
    return {"int": "3", "float": "0.5", "bool": "false"}.get(item.kind, "word")


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    if isinstance(ours, float) and math.isnan(ours):
        return isinstance(theirs, float) and math.isnan(theirs)
    return ours is UNKNOWN or (isinstance(theirs, str) and theirs.startswith("<")) or ours == theirs


def compare(
    schema: Schema, real_parsers: RealParsers, trainer: str, argv: list[str], machine: bool
) -> None:
    """`machine`: what `__post_init__` raises depends on this machine, so only our certain refusals
    are compared.
    """
    report = check_argv(schema, argv)
    real = real_parsers.query(trainer=trainer, argv=argv)
    raised = [problem for _, problem in report.problems if problem.id == "contradiction"]
    refused = real["parse"] is not None or bool(real["left"])
    if any(schema.fields[name].kind in ("object", "unknown") for name in report.given):
        return  # whether the text converts is not known
    assert bool(report.rejected) == refused, (argv, report.problems, real)
    if refused:
        assert report.ok is False
        return
    for name, value in report.values.items():
        assert _same(value, real["values"][name]), (argv, name, value, real["values"][name])
    if raised:
        assert real["raised"] is not None, (argv, raised)
        assert report.ok is False
    elif not machine:
        assert real["raised"] in (None, IN_A_HANDLER), (argv, real["raised"], report)
    if report.ok is False and not raised:
        kinds = {problem.id for _, problem in report.problems}
        assert kinds
        assert kinds <= set(STRICTER)
    elif report.ok is None:
        assert report.undecided


def _settings(examples: int) -> settings:
    checks = [
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.large_base_example,
    ]
    return settings(max_examples=examples, deadline=None, suppress_health_check=checks)


TRAINERS = (
    "finetune",
    "dpo_tune_cache",
    "trl_sft",
    "dpo",
    "olmo_core_finetune",
    "reward_modeling",
    "grpo_fast",
    "grpo",
    "trl_dpo",
)
LINES = [
    ("synthetic", 400),
    *(pytest.param(trainer, 40, marks=pytest.mark.slow) for trainer in TRAINERS),
    *(pytest.param(trainer, 150, marks=pytest.mark.thorough) for trainer in TRAINERS),
]


@pytest.mark.parametrize(("trainer", "examples"), LINES)
def test_random_command_lines(
    trainer: str, examples: int, schema_of: Callable[[str], Schema], real_parsers: RealParsers
) -> None:
    schema = schema_of(trainer)

    @_settings(examples)
    @given(argv=argv_for(schema))
    def agree(argv: list[str]) -> None:
        compare(schema, real_parsers, trainer, argv, machine=trainer.startswith("trl"))

    agree()


# Found by random search, or nearly missed.
KNOWN_ARGV = [
    ["--learning_rate", "-1e-5"],
    ["--learning_rate=-1e-5"],
    ["--learning", "1"],
    ["--chat_template", "tulu"],
    ["--no_push_to_hub=false", "--try_launch_beaker_eval_jobs", "0"],
    ["--no_push_to_hub", "true"],
    ["--push_to_hub", "--no-push_to_hub"],
    ["--push_to_hub", "false", "--no_try_launch_beaker_eval_jobs"],
    ["--oe_eval_tasks=a", "b"],
    ["--oe_eval_tasks"],
    ["--dataset_mixer", ""],
    ["--dataset_mixer", '{"a": 1.0}'],
    ["--final_lr_ratio", "0.1", "--lr_scheduler_type", "cosine"],
    ["--final_lr_ratio", "1.5"],
    ["--additional_model_arguments", "{"],
    ["--additional_model_arguments", '{"a": 1}'],
    ["--max-seq_length", "8"],
    ["--", "--packing"],
    ["--packing", "--", "true"],
    ["-learning_rate", "1"],
    ["--exp_name", "--dashed with space"],
    ["--exp_name", ""],
    ["--=x"],
    ["", "--packing"],
]


@pytest.mark.slow
@pytest.mark.parametrize("argv", KNOWN_ARGV, ids=" ".join)
def test_known_command_lines(
    argv: list[str], schema_of: Callable[[str], Schema], real_parsers: RealParsers
) -> None:
    schema = schema_of("finetune")
    compare(schema, real_parsers, "finetune", argv, machine=False)


@pytest.mark.parametrize("rate", ["nan", "inf", "-inf", "1e308", "0.5"])
def test_numbers_that_are_not_finite_are_calculated_with(
    rate: str, schema_of: Callable[[str], Schema], real_parsers: RealParsers
) -> None:
    needed = ["--needed", "word", "--needed_list", "0.5", "--needed_choice", "q"]
    schema = schema_of("synthetic")
    compare(schema, real_parsers, "synthetic", [*needed, f"--rate={rate}"], machine=False)
