"""The parsers of the verbs: what they take, in which order, and how they refuse the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from launch import __version__
from launch.__main__ import main
from launch.commands.run_parsers import (
    build_generate_parser,
    build_logs_parser,
    build_report_parser,
)
from launch.commands.tool_parsers import build_check_parser, build_preview_parser
from launch.commands.verbs import VERBS
from launch.config.line import CommandLine
from launch.errors import EXIT_DONE, EXIT_REFUSED, UserError
from launch.evaluation.generation import Sampling
from tests.messages import outline

WITH_PARSER = [name for name, verb in VERBS.items() if verb.parser()]


def test_options_and_keys_stand_anywhere() -> None:
    options = build_report_parser().parse(["a", "--output", "x.html", "b", "runs=~/r"])
    assert (options.names, options.output, options.runs) == (
        ["a", "b"],
        Path("x.html"),
        Path.home() / "r",
    )
    options = build_logs_parser().parse(["-f", "a"])
    assert (options.name, options.follow, options.rank, options.runs) == (
        "a",
        True,
        None,
        Path("runs"),
    )


@pytest.mark.parametrize(
    "prompt", ["x=5; what is x?", "- a list", "-5 degrees, in F?", "--force is what?", "a\n--b=c"]
)
def test_a_prompt_is_not_read_as_a_key_or_an_option(prompt: str) -> None:
    assert build_generate_parser().parse(["run", prompt, "seed=3"]).names == ["run", prompt]


def test_a_key_keeps_its_value() -> None:
    parser = build_generate_parser()
    assert (
        parser.parse(["run", "x", "system=Be brief: a=b --c\nd"]).system == "Be brief: a=b --c\nd"
    )
    assert parser.parse(["run", "x", "system="]).system == ""
    assert parser.parse(["run", "x", "max_tokens=9", "temperature=.5"]).max_tokens == 9


@pytest.mark.parametrize(
    ("key", "least", "beyond"),
    [
        ("temperature", ("0", "100"), ("-0.1", "100.1")),
        ("top_p", ("0.001", "1"), ("0", "1.1")),
        ("seed", ("0", "4294967295"), ("-1", "4294967296")),
        ("max_tokens", ("1", "100000"), ("0",)),
    ],
)
def test_the_numbers_of_generate_have_ranges(
    key: str, least: tuple[str, ...], beyond: tuple[str, ...]
) -> None:
    parser = build_generate_parser()
    for value in least:
        assert float(vars(parser.parse(["run", "x", f"{key}={value}"]))[key]) == float(value)
    for value in beyond:
        with pytest.raises(UserError):
            parser.parse(["run", "x", f"{key}={value}"])


def test_the_defaults_of_generate_are_those_of_sampling() -> None:
    options = vars(build_generate_parser().parse(["run", "x"]))
    assert {name: options[name] for name in vars(Sampling())} == vars(Sampling())


def test_what_is_left_of_a_line_goes_to_hydra_in_order() -> None:
    line = CommandLine(
        "preview", True, ("stage=sft", "n=7", "--cfg", "job", "recipe.seed=-1", "~data.mix")
    )
    options, rest = build_preview_parser().pop(line)
    assert (options.n, options.json, options.html) == (7, True, False)
    assert rest.argv == ("stage=sft", "--cfg", "job", "recipe.seed=-1", "~data.mix")
    options, rest = build_check_parser().pop(
        CommandLine("check", False, ("stage=sft", "--rows", "5", "gpus=8"))
    )
    assert (options.rows, rest.argv) == (5, ("stage=sft", "gpus=8"))


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("logs", "usage at command line, logs, launch logs latest"),
        ("logs -f", "usage at command line, logs, launch logs latest -f"),
        ("stop", "usage at command line, stop, launch stop latest"),
        ("logs a b", "usage at command line, b, logs"),
        ("logs --folow", "unknown_option at command line, --folow, logs"),
        ("logs a --rank", "usage at command line, --rank"),
        ("eval a report=no", "bad_value at override report, no"),
        ("logs a --rank x", "bad_value at command line, --rank, 0, x"),
        ("logs a --job=x", "usage at command line, --job"),
        ("logs a --job --rank 1", "usage at command line, --job, --rank"),
        ("logs a rums=x", "unknown_option at command line, logs, runs"),
        ("eval a limit=0", "bad_value at override limit, 0, 1"),
        ("eval a limit=1 limit=2", "duplicate_override at override limit"),
        ("eval a batch_size=0", "bad_value at override batch_size, 0, 1"),
        ("generate a top_p=2 x", "bad_value at override top_p, 0.001, 1, 2"),
        ("generate a temperature=-1 x", "bad_value at override temperature, -1, 0, 100"),
        ("generate a seed=-1 x", "bad_value at override seed, -1, 0"),
        ("generate a max_tokens=0 x", "bad_value at override max_tokens, 0, 1"),
        ("new mine --dat x", "unknown_option at command line, --dat, --data, new"),
        ("upstream stauts", "bad_value at command line, status, stauts"),
        ("upstream status HEAD", "usage at command line, HEAD, upstream"),
        ("upstream status --force", "unknown_option at command line, --force, upstream"),
        ("lint", "usage at command line, lint"),
        ("flags finetune a b", "usage at command line, b, flags"),
        ("version --jsno", "unknown_option at command line, --jsno, --json, version"),
        ("help plan run", "usage at command line, help, run"),
        ("check stage=demo --rows 0", "bad_value at command line, --rows, 0, 1"),
        ("preview stage=demo n=x", "bad_value at override n, 1, 1000, x"),
    ],
)
def test_a_refusal_names_the_mistake_and_the_cure(
    line: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == EXIT_REFUSED
    shown = capsys.readouterr()
    (error,) = shown.err.splitlines()
    assert set(answer.split(", ")) <= set(outline(error).split(", ")) and not shown.out


@pytest.mark.parametrize("name", WITH_PARSER)
def test_the_usage_names_every_argument(name: str) -> None:
    parser = VERBS[name].parser()
    assert parser and parser.usage
    assert "--help" not in parser.options  # that is answered before a parser is built
    missing = [
        option
        for option in parser.options
        if option.startswith("--") and option not in parser.usage
    ]
    keys = [
        key
        for key in parser.keys
        if f"{key}=" not in parser.usage and "key=value" not in parser.usage
    ]
    assert not missing and not keys


def test_building_the_parsers_imports_neither_hydra_nor_the_verbs() -> None:
    program = (
        "import sys; from launch.commands.verbs import VERBS; [verb.parser() for verb in "
        "VERBS.values()]; "
        "print([name for name in sys.modules if name.split('.')[0] in ('hydra', 'omegaconf', "
        "'yaml', 'psutil')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_a_runs_record_is_read_without_the_configuration() -> None:
    """Completion lists the runs by it, at each press of TAB."""
    program = "import sys, launch.execution.record.run; print('omegaconf' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"


def test_an_unknown_option_of_a_parser_raises_no_traceback() -> None:
    for name in WITH_PARSER:
        parser = VERBS[name].parser()
        assert parser
        if not VERBS[name].composes:
            with pytest.raises(UserError, match=r"\[unknown_option\]"):
                parser.parse(["--no-such-option"])


def test_the_version_is_ours_behind_a_verb_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "stage=demo", "--version"]) == EXIT_DONE
    assert capsys.readouterr().out.startswith(f"launch {__version__}, Python ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize(
    "line", ["plan stage=nosuch", "status --nope", "plan stage=demo recipe.epochs=-1"]
)
def test_a_refusal_that_cannot_be_printed_has_the_same_exit_code(line: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "launch", *line.split()], stderr=full, check=False, timeout=60
        )
    assert done.returncode == EXIT_REFUSED
