"""`check_argv` on single command lines, including tokens of unknown value."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launch.upstream.pin.lock import locked_schema
from launch.upstream.rules import parser
from launch.upstream.rules.argv import check_argv
from launch.upstream.rules.conversion import UNKNOWN
from launch.upstream.rules.parser import ArgvToken
from launch.upstream.schema import Schema
from tests.upstream.captured import synthetic_schema
from tests.upstream.test_random_argv import argv_for

NEEDED = ["--needed=a", "--needed_choice=p", "--needed_list=1", "--factory_choice=fast"]


def variable(name: str, prefix: str = "", splits: bool = True) -> ArgvToken:
    return ArgvToken(f"{prefix}${name}", True, prefix, splits)


def _text(argument: str | ArgvToken) -> str:
    return argument if isinstance(argument, str) else argument.text


def kinds(
    argv: Sequence[str | ArgvToken], base: Sequence[str] = NEEDED
) -> list[tuple[str, str | None, int | None]]:
    report = check_argv(synthetic_schema(), [*argv, *base])
    return [(p.id, p.where, index) for index, p in report.problems]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--stesp", "1"], [("unknown_flag", "stesp", 0)]),
        (["--typed-mapping_", "1"], [("unknown_flag", "typed-mapping_", 0)]),
        (["-steps", "1"], [("unknown_flag", "steps", 0)]),
        (["--typed_map", "1"], [("abbreviated", "typed_map", 0)]),
        (["--maybe", "1"], [("abbreviated", "maybe", 0)]),
        (["--steps", "1", "--on", "--steps=2"], [("duplicate", "steps", 3)]),
        (["--on", "true", "--no_on"], [("duplicate", "on", 2)]),
        (["--steps", "1e4"], [("bad_type", "steps", 1)]),
        (["--steps=1e4"], [("bad_type", "steps", 0)]),
        (["--on", "maybe"], [("bad_type", "on", 1)]),
        (["--numbers", "1", "two"], [("bad_type", "numbers", 2)]),
        (["--mode", "medium"], [("bad_choice", "mode", 1)]),
        (["--steps"], [("missing_value", "steps", 0)]),
        (["--columns"], [("missing_value", "columns", 0)]),
        (["--rate", "-1e-5"], [("missing_value", "rate", 0)]),
        (["stray", "--steps", "1", "2"], [("positional", None, 0), ("positional", None, 3)]),
        (["--no_on=false"], [("bad_type", "on", 0)]),
        (["--mapping", '{"a": 1}'], [("bad_type", "mapping", 1)]),
        (["--steps", "-1"], [("contradiction", "steps", 0)]),
        (["--short", "y"], []),
        (["--optional_value"], []),
        (["--number_or_text", "5"], []),
    ],
)
def test_one_problem(argv: list[str], expected: list[tuple[str, str | None, int | None]]) -> None:
    assert kinds(argv) == expected
    assert check_argv(synthetic_schema(), [*argv, *NEEDED]).ok is (not expected)


def test_all_problems_at_once() -> None:
    argv = [
        "x",
        "--stesp",
        "1",
        "--mode",
        "medium",
        "--mode",
        "fast",
        "--chosen=b",
        "--picked=3",
        "--steps=-1",
    ]
    problems = kinds(argv, base=[])
    assert problems == [
        ("positional", None, 0),
        ("unknown_flag", "stesp", 1),
        ("bad_choice", "mode", 4),
        ("duplicate", "mode", 5),
        ("contradiction", "chosen", 7),
        ("contradiction", "steps", 9),
        ("missing_required", "needed", None),
        ("missing_required", "needed_choice", None),
        ("missing_required", "factory_choice", None),
        ("missing_required", "needed_list", None),
    ]


def test_cures_name_the_correct_spelling() -> None:
    def cure(*argv: str) -> str:
        return str(check_argv(synthetic_schema(), [*argv, *NEEDED]).problems[0][1].cure)

    assert cure("--stesp", "1") == "did you mean --steps or --switches?"
    assert cure("--typed-mapping_", "1") == "did you mean --typed_mapping or --mapping?"
    assert cure("--steps", "1e4") == "write 10000"
    assert cure("--rate", "-1e-5") == "write --rate=-1e-5: the value begins with '-'"
    assert cure("--numbers=1", "2") == "write --numbers 1 2: '=' takes one value"
    assert cure("--mode", "fats") == "did you mean 'fast'?"
    assert cure("--no_on", "true") == "--no_on takes no value"


@pytest.mark.parametrize(
    ("argv", "ok"),
    [
        (["--left", variable("NAME")], True),
        (["--left", variable("NAME", "runs/")], True),
        ([variable("NAME", "--left=")], True),
        (["--name", variable("NAME")], None),  # __post_init__ refuses `gpux`
        (["--mode", "slow", "--columns", variable("A")], None),  # which may be four
        (["--mode", "slow", "--columns", variable("A", splits=False)], False),
        (["--columns", variable("A"), variable("B")], True),
        (["--json_text", variable("JSON", splits=False)], True),
        (["--steps", variable("STEPS")], None),
        ([variable("STEPS", "--steps=")], None),
        (["--mode", variable("MODE")], None),
        (["--mode", variable("MODE", "fa")], None),
        (["--mode", variable("MODE", "x")], False),
        (["--on", variable("ON")], None),
        ([variable("FLAG", "--"), "1"], None),
        ([variable("ARGS")], None),
        ([variable("ARGS"), "value"], None),
        ([variable("ARGS"), "--stesp", "1"], False),
        ([variable("FLAG", "--stesp=")], False),
        (["--mapping", variable("DICT")], None),
        (["--steps", "1", variable("ARGS")], None),
        (["--name", variable("X"), "stray"], False),
        (["--mode", "slow", "--maybe_int", variable("N")], False),
    ],
    ids=lambda argv: " ".join(map(_text, argv)) if isinstance(argv, list) else str(argv),
)
def test_unknown_tokens(argv: list[str | ArgvToken], ok: bool | None) -> None:
    report = check_argv(synthetic_schema(), [*NEEDED, *argv])
    assert report.ok is ok
    assert bool(report.undecided) or ok is not None


def test_unknown_tokens_may_contain_required_flags() -> None:
    report = check_argv(synthetic_schema(), [variable("ARGS")])
    assert not report.problems
    assert report.ok is None
    assert "whether the required needed is given" in report.undecided


def test_given_values_are_never_none() -> None:
    """`--maybe_int $N` is an int, whichever: `slow and on` is certain (upstream:
    `dataset_mixer_list is not None`).
    """
    report = check_argv(synthetic_schema(), ["--mode=slow", "--maybe_int", variable("N"), *NEEDED])
    assert report.values["maybe_int"] is UNKNOWN
    ((_, problem),) = report.problems
    assert (problem.id, problem.where) == ("contradiction", "mode")
    given = (
        "mode 'slow' and maybe_int (given) and on True (its default): the trainer's own "
        "error: "
        "slow and on"
    )
    assert problem.message.startswith(f"{given} (synthetic.py:")


@st.composite
def hidden(draw: st.DrawFn) -> tuple[list[str], list[str | ArgvToken]]:
    """A command line, and the same with some plain arguments that only a shell could expand."""
    argv = draw(argv_for(synthetic_schema()))
    if draw(st.booleans()):
        argv += NEEDED
    tokens: list[str | ArgvToken] = []
    for argument in argv:
        if not draw(st.integers(0, 2)) and argument and not argument.startswith("-"):
            known = draw(st.integers(0, len(argument)))
            tokens.append(
                ArgvToken(f"{argument[:known]}$X", True, argument[:known], draw(st.booleans()))
            )
        elif not draw(st.integers(0, 5)) and "=" in argument and argument.startswith("--"):
            known = argument.index("=") + 1
            tokens.append(
                ArgvToken(f"{argument[:known]}$X", True, argument[:known], draw(st.booleans()))
            )
        else:
            tokens.append(argument)
    return argv, tokens


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pair=hidden())
def test_verdicts_about_unknown_tokens_hold_for_every_value(
    pair: tuple[list[str], list[str | ArgvToken]],
) -> None:
    argv, tokens = pair
    known, unknown = check_argv(synthetic_schema(), argv), check_argv(synthetic_schema(), tokens)
    if unknown.refused is not None:
        assert unknown.refused == known.refused, (unknown, known)
    if unknown.ok is not None:
        assert unknown.ok == known.ok


def test_some_scripts_take_a_yaml_file_first(schema_of: Callable[[str], Schema]) -> None:
    schema = schema_of("reward_modeling")
    assert schema.yaml_file
    report = check_argv(schema, ["train.yaml", "--learning_rate=1"])
    assert (report.ok, report.problems) == (None, [])
    assert not schema_of("finetune").yaml_file
    assert check_argv(schema_of("finetune"), ["train.yaml"]).ok is False


def test_trl_takes_a_config_file(schema_of: Callable[[str], Schema]) -> None:
    schema = schema_of("trl_sft")
    assert schema.config_flag
    assert check_argv(schema, ["--use_cpu", "--config", "sft.yaml"]).ok is None
    assert check_argv(schema, ["--config", "sft.yaml", "--lerning_rate", "1"]).ok is False
    assert check_argv(schema, ["--config"]).problems[0][1].id == "missing_value"
    config = {"fp16": True}
    assert check_argv(schema, ["--config", "sft.yaml", "--output_dir", "x"], config).ok is True
    both = check_argv(schema, ["--config", "sft.yaml", "--bf16", "true"], config)
    assert [problem.id for _, problem in both.problems] == ["contradiction"]


def test_help_ends_the_parsing() -> None:
    assert check_argv(synthetic_schema(), ["--help"]).ok is True
    assert check_argv(synthetic_schema(), ["-h", "--stesp"]).ok is True


def test_a_line_in_parts_is_split_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    schema, draw = locked_schema("finetune"), random.Random(3)
    words = ["x", "-1", "-1e5", "-x", "a b", "true", "--nope", "--nope=3", "-", "--", "--help"]
    for _ in range(300):
        flags = [f"--{draw.choice(list(schema.fields))}" for _ in range(6)]
        line = draw.choices([*flags, *words, f"{flags[0]}=1", flags[1][:6]], k=14)
        tokens = [
            (at, parser.ArgvToken(word, draw.random() < 0.1, splits=True))
            for at, word in enumerate(line)
        ]
        split = []
        for size in (1, 3, len(line) + 1):
            monkeypatch.setattr(parser, "_PART_LENGTH", size)
            split.append(parser.split_argv(schema, tokens))
        assert split[0] == split[1] == split[2], line
