"""The parsers of the verbs: what they take, in which order, and how they refuse the rest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from launch import __version__
from launch.__main__ import main
from launch.commands.run_parsers import build_generate_parser, build_logs_parser, build_report_parser
from launch.commands.tool_parsers import build_check_parser, build_preview_parser
from launch.commands.verbs import VERBS
from launch.config.line import CommandLine
from launch.errors import EXIT_DONE, EXIT_REFUSED, UserError
from launch.evaluation.generation import Sampling

WITH_PARSER = [name for name, verb in VERBS.items() if verb.parser()]


def test_options_and_keys_stand_anywhere() -> None:
    options = build_report_parser().parse(["a", "--output", "x.html", "b", "runs=~/r"])
    assert (options.names, options.output, options.runs) == (["a", "b"], Path("x.html"), Path.home() / "r")
    options = build_logs_parser().parse(["-f", "a"])
    assert (options.name, options.follow, options.rank, options.runs) == ("a", True, None, Path("runs"))


@pytest.mark.parametrize("prompt", ["x=5; what is x?", "- a list", "-5 degrees, in F?", "--force is what?", "a\n--b=c"])
def test_a_prompt_is_not_read_as_a_key_or_an_option(prompt: str) -> None:
    assert build_generate_parser().parse(["run", prompt, "seed=3"]).names == ["run", prompt]


def test_a_key_keeps_its_value() -> None:
    parser = build_generate_parser()
    assert parser.parse(["run", "x", "system=Be brief: a=b --c\nd"]).system == "Be brief: a=b --c\nd"
    assert parser.parse(["run", "x", "system="]).system == ""
    assert parser.parse(["run", "x", "max_tokens=9", "temperature=.5"]).max_tokens == 9


def test_the_defaults_of_generate_are_those_of_sampling() -> None:
    options = vars(build_generate_parser().parse(["run", "x"]))
    assert {name: options[name] for name in vars(Sampling())} == vars(Sampling())


def test_what_is_left_of_a_line_goes_to_hydra_in_order() -> None:
    line = CommandLine("preview", True, ("stage=sft", "n=7", "--cfg", "job", "recipe.seed=-1", "~data.mix"))
    options, rest = build_preview_parser().pop(line)
    assert (options.n, options.json, options.html) == (7, True, False)
    assert rest.argv == ("stage=sft", "--cfg", "job", "recipe.seed=-1", "~data.mix")
    options, rest = build_check_parser().pop(CommandLine("check", False, ("stage=sft", "--rows", "5", "gpus=8")))
    assert (options.rows, rest.argv) == (5, ("stage=sft", "gpus=8"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("logs", "'logs' needs RUN; launch logs RUN [--follow]"),
        ("logs a b", "'logs' does not take 'b'; launch logs RUN"),
        ("logs --folow", "'logs' has no option --folow; did you mean '--follow'?"),
        ("logs a --rank", "--rank needs a value"),
        ("eval a report=no", "report must be true or false, got 'no'"),
        ("logs a --rank x", "--rank must be an integer, 0 or greater, got 'x'"),
        ("logs a --job=x", "--job takes no value"),
        ("logs a --job --rank 1", "--rank and --job exclude each other"),
        ("logs a rums=x", "'logs' has no key rums; did you mean 'runs'?"),
        ("eval a limit=0", "override limit: limit must be an integer, 1 or greater, got '0' [bad_value]"),
        ("eval a limit=1 limit=2", "override limit: 'limit' is set twice; remove one [duplicate_override]"),
        ("generate a top_p=2 x", "top_p must be a number, between 0.001 and 1, got '2'"),
        ("new mine --dat x", "'new' has no option --dat; did you mean '--data'"),
        ("upstream stauts", "unknown action 'stauts'; did you mean 'status'?"),
        ("upstream diff", "'upstream diff' needs a COMMIT; launch upstream status"),
        ("upstream status --force", "'upstream status' has no option --force"),
        ("lint", "'lint' needs either files or -- COMMAND; launch lint [FILE ...]"),
        ("flags finetune a b", "'flags' does not take 'b'"),
        ("version --jsno", "'version' has no option --jsno; did you mean '--json'?"),
        ("help plan run", "'help' does not take 'run'"),
        ("check stage=demo --rows 0", "--rows must be an integer, 1 or greater, got '0'"),
        ("preview stage=demo n=x", "override n: n must be an integer, between 1 and 1000, got 'x' [bad_value]"),
    ],
)
def test_a_refusal_names_the_mistake_and_the_cure(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == EXIT_REFUSED
    shown = capsys.readouterr()
    (error,) = shown.err.splitlines()
    assert message in error and re.search(r" \[\w+\]$", error) and not shown.out


@pytest.mark.parametrize("name", WITH_PARSER)
def test_the_usage_names_every_argument(name: str) -> None:
    parser = VERBS[name].parser()
    assert parser and parser.usage
    missing = [option for option in parser.options if option.startswith("--") and option not in parser.usage]
    keys = [key for key in parser.keys if f"{key}=" not in parser.usage and "key=value" not in parser.usage]
    assert not missing and not keys


def test_building_the_parsers_imports_neither_hydra_nor_the_verbs() -> None:
    program = (
        "import sys; from launch.commands.verbs import VERBS; [verb.parser() for verb in VERBS.values()]; "
        "print([name for name in sys.modules if name.split('.')[0] in ('hydra', 'omegaconf', 'yaml', 'psutil')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_runs_record_is_read_without_the_configuration() -> None:
    """Completion lists the runs by it, at each press of TAB."""
    program = "import sys, launch.execution.record.reader; print('omegaconf' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
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
@pytest.mark.parametrize("line", ["plan stage=nosuch", "status --nope", "plan stage=demo recipe.epochs=-1"])
def test_a_refusal_that_cannot_be_printed_has_the_same_exit_code(line: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "launch", *line.split()], stderr=full, check=False, timeout=60)
    assert done.returncode == EXIT_REFUSED
