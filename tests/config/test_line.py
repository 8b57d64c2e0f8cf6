from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from launch.__main__ import main
from launch.config.line import (
    CommandLine,
    is_later_rank,
    override_key,
    overrides_of_ranks,
    parse_line,
    refuse_rank,
)
from launch.config.override_checks import check_overrides
from launch.config.quoting import quote_if_needed, quote_value
from launch.config.shorthand import expand
from launch.errors import UserError
from tests.messages import outline, values_of

VERBS = ("run", "plan", "lint")


def test_the_verb_is_run_when_absent() -> None:
    assert parse_line(["stage=demo"], VERBS).verb == "run"
    assert parse_line([], VERBS).verb == "run"
    assert parse_line(["--help"], VERBS).verb == "run"


def test_verb_and_json_are_split_off() -> None:
    line = parse_line(["plan", "stage=demo", "--json", "gpus=2"], VERBS)
    assert (line.verb, line.json, line.argv) == ("plan", True, ("stage=demo", "gpus=2"))


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("trl_sft gpus=1", "launch trainer=trl_sft gpus=1, trl_sft"),
        ("train.sh", "launch lint train.sh, train.sh"),
        ("sbatch x", "sbatch, submit"),
        ("pln stage=demo", "plan, pln"),
    ],
)
def test_a_first_word_of_another_habit_is_answered(line: str, values: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_line(line.split(), VERBS)
    assert outline(str(refused.value)) == f"unknown_verb, {values}"


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("train", ["run"]),
        ("trian", ["run"]),
        ("ls", ["launch help keys", "launch status"]),
        ("kill", ["launch stop RUN"]),
    ],
)
def test_a_word_of_other_tools_names_the_verb(word: str, named: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        parse_line([word], VERBS)
    assert values_of(str(refused.value.problems[0].cure)) == named


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("trl sft --learning_rate 2e-5", "launch stage=sft --learning_rate 2e-5"),
        ("grpo gpus=8", "launch stage=rlvr gpus=8"),
        ("torchrun x.py --lr 1", "launch lint -- torchrun x.py --lr 1"),
    ],
)
def test_a_line_of_another_tool_is_answered_behind_its_name(line: str, instead: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_line(line.split(), VERBS)
    assert values_of(str(refused.value.problems[0].cure)) == [instead]


def test_a_name_behind_a_file_of_data_is_not_a_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("{}\n", encoding="utf-8")
    line = CommandLine("plan", False, ("stage=sft", "data=rows.jsonl:alpaca"))
    with pytest.raises(UserError) as refused:
        check_overrides(expand(line))
    [problem] = refused.value.problems
    assert (problem.id, str(problem.cure)) == ("bad_value", "set data=rows.jsonl")


@pytest.mark.parametrize(
    ("option", "instead"), [("--hydra-help", "--help"), ("--jsn", "--json"), ("--x=1", "flags.x=1")]
)
def test_an_option_that_neither_the_verb_nor_hydra_has(option: str, instead: str) -> None:
    with pytest.raises(UserError) as refused:
        check_overrides(
            CommandLine(
                "plan", False, ("stage=sft", option, "--cfg", "job", "-p", "-x", "--resolve")
            )
        )
    [problem] = refused.value.problems
    assert (problem.id, values_of(str(problem.cure))) == ("unknown_option", [instead])


@pytest.mark.parametrize("option", ["-cd", "--config-name=x", "--resolve", "--experimental-rerun"])
def test_options_of_hydras_application_are_refused(option: str) -> None:
    with pytest.raises(UserError, match=rf"{option.partition('=')[0]}\b.* \[unknown_option\]"):
        check_overrides(CommandLine("plan", False, ("stage=sft", option)))


def test_hydras_options_and_their_values_are_not_overrides() -> None:
    line = parse_line(["plan", "stage=demo", "--cfg", "job", "-p", "recipe", "gpus=1"], VERBS)
    assert line.overrides == ("stage=demo", "gpus=1")


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("recipe.epochs=2", "recipe.epochs"),
        ("++flags.x=1", "flags.x"),
        ("~flags.x", "flags.x"),
        ("+a@b=c", "a"),
    ],
)
def test_override_key(word: str, key: str) -> None:
    assert override_key(word) == key


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["gpus=1,2"], "several_values"),
        (["flags.x=a,b"], "several_values"),
        (["stage=a,b"], "several_values"),
        (["stage=[a,b]"], "bad_value"),
        (["stage={a:b}"], "bad_value"),
        (["stage=demo", "stage=sft"], "duplicate_override"),
        (["stage=demo", "recipe.seed=1", "+recipe.seed=2"], "duplicate_override"),
        (["stage=demo", "gpus"], "not_an_override"),
    ],
)
def test_overrides_that_hydra_would_misread(overrides: list[str], expected: str) -> None:
    with pytest.raises(UserError) as refused:
        check_overrides(parse_line(["plan", *overrides], VERBS))
    assert [problem.id for problem in refused.value.problems] == [expected]


@pytest.mark.parametrize(
    "word",
    [
        "flags.x=[a,b]",
        "flags.x='a,b'",
        'flags.x="a,b"',
        "data.mix=[{name: a, share: 0.5}]",
        "name=plain",
    ],
)
def test_commas_in_quotes_and_brackets_are_one_value(word: str) -> None:
    check_overrides(parse_line(["plan", word], VERBS))


def test_multirun_takes_comma_lists() -> None:
    check_overrides(parse_line(["plan", "--multirun", "gpus=1,2"], VERBS))


def test_every_mistake_is_reported_at_once() -> None:
    with pytest.raises(UserError) as refused:
        check_overrides(parse_line(["plan", "gpus=1,2", "foo", "a=1", "a=2"], VERBS))
    assert len(refused.value.problems) == 3


def test_a_line_gives_its_overrides_away_and_takes_others() -> None:
    line = parse_line(
        ["plan", "--package", "gpus=1", "stage=demo", "++gpus=2", "~flags.x", "name=a"], VERBS
    )
    assert line.pop_overrides(("gpus", "name"))[0] == {"gpus": "2", "name": "a"}
    changed = line.without("gpus", "flags.x").with_overrides("gpus=4")
    assert changed.argv == ("--package", "gpus=1", "stage=demo", "name=a", "gpus=4")
    with pytest.raises(UserError, match=r"^override gpus: .*\[duplicate_override\]"):
        changed.with_overrides("gpus=8").without("gpus")


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("name=прогон", "прогон"),
        ("runs=~/x y", "~/x y"),
        ("runs=/data (1)/é", "/data (1)/é"),
        (
            "data.mix=[{name: /данные/мой файл.jsonl, share: 0.5}]",
            [{"name": "/данные/мой файл.jsonl", "share": 0.5}],
        ),
        ("data.mix=[{name: ~/a.jsonl}, {name: 'уже'}]", [{"name": "~/a.jsonl"}, {"name": "уже"}]),
        ("name='прогон'", "прогон"),
        ("name=it's", None),
        ("name=plain", "plain"),
        ("recipe.lora.targets=[q_proj,v_proj]", ["q_proj", "v_proj"]),
    ],
)
def test_text_that_hydras_grammar_lacks_is_quoted(override: str, value: object) -> None:
    quoted = quote_value(override)
    if value is None:
        assert quoted == override
        return
    assert OverridesParser.create().parse_override(quoted).value() == value


@pytest.mark.parametrize(
    "text", ["a", "./a-b.jsonl", "~/x", "a:b", "x@y", "a*", "", "a b", "a,b", "é", "it's", "{a}"]
)
def test_a_text_is_the_same_after_hydra_read_it(text: str) -> None:
    for override, value in (
        (f"x={quote_if_needed(text)}", text),
        (f"x=[{quote_if_needed(text)}]", [text]),
    ):
        assert OverridesParser.create().parse_override(override).value() == value


def test_a_sweep_is_quoted_value_by_value() -> None:
    assert quote_value("name=а,b", sweeps=True) == "name='а',b"
    assert quote_value("name=а,b") == "name='а,b'"


@pytest.mark.parametrize(
    ("words", "quoted"),
    [
        (["stage=a", "data.mix=[{name:", "X}]"], "'data.mix=[{name: X}]'"),
        (["data.mix=[{name:", "X,", "share:", "1}]", "gpus=1"], "'data.mix=[{name: X, share: 1}]'"),
        (["data.mix=[name:X]", "data.mix=[share:1]"], "'data.mix=[{name: X}]'"),
    ],
)
def test_an_argument_that_the_shell_split_is_recognised(words: list[str], quoted: str) -> None:
    with pytest.raises(UserError, match="shell_split") as refused:
        check_overrides(parse_line(words, ["run"]))
    assert quoted in str(refused.value)


def test_a_value_with_a_space_is_recognised() -> None:
    with pytest.raises(
        UserError, match=r"launch run stage=a name=my\b.*'name=my run' \[misplaced_verb\]"
    ):
        parse_line(["stage=a", "name=my", "run"], ["run"])
    with pytest.raises(UserError, match=r"'one'.*'name=my one' \[not_an_override\]"):
        check_overrides(parse_line(["stage=a", "name=my", "one"], ["run"]))


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("stage=sft",), "launch run stage=sft gpus=8"),
        (("stage=sft", "gpus=2"), "launch run stage=sft gpus=2"),
        (("stage=sft", "device=cpu"), "launch run stage=sft device=cpu processes=8"),
    ],
)
def test_a_rank_of_another_launcher_starts_nothing(words: tuple[str, ...], command: str) -> None:
    rank = {"LOCAL_RANK": "1", "RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}
    line = CommandLine("run", False, words)
    with pytest.raises(UserError) as refusal:
        refuse_rank(line, rank)
    [problem] = refusal.value.problems
    assert (problem.id, values_of(str(problem.cure))) == ("started_as_rank", [command])
    for harmless in (CommandLine("plan", False, ("stage=sft",)), line):
        refuse_rank(
            harmless, rank if harmless.verb == "plan" else {"ACCELERATE_MIXED_PRECISION": "bf16"}
        )


@pytest.mark.parametrize(
    ("environ", "overrides"),
    [
        ({}, []),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}, ["gpus=2"]),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}, ["gpus=4", "nodes=2"]),
        (
            {
                "LOCAL_RANK": "0",
                "WORLD_SIZE": "4",
                "ACCELERATE_USE_DEEPSPEED": "true",
                "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
                "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu",
            },
            ["gpus=4", "parallel=zero3_offload"],
        ),
    ],
)
def test_the_ranks_of_another_launcher_are_overrides(
    environ: dict[str, str], overrides: list[str]
) -> None:
    assert overrides_of_ranks(["stage=sft"], environ) == overrides
    assert overrides_of_ranks(["gpus=8", "nodes=1", "parallel=ddp"], environ) == []


def test_the_first_rank_speaks_for_all() -> None:
    assert not is_later_rank({})
    assert not is_later_rank({"RANK": "1"})  # of a node, as Kubernetes sets it
    assert not is_later_rank({"LOCAL_RANK": "0", "RANK": "0"})
    assert is_later_rank({"LOCAL_RANK": "1", "RANK": "1"})
    assert is_later_rank({"LOCAL_RANK": "0", "RANK": "4"})


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["plan", "stage=demo"], 0),  # the first rank prints the plan
        (["run", "stage=demo"], 2),
        (["submit", "stage=demo"], 2),  # once is enough
        (["stage=demo"], 2),
    ],
)
def test_another_rank_starts_nothing(
    words: list[str],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("RANK", "1")
    assert main(words) == code
    printed = capsys.readouterr()
    assert printed.out == "" and len(printed.err.splitlines()) == (1 if code else 0)
    assert not list(tmp_path.iterdir())


def test_verbs_that_start_nothing_work_in_every_rank(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("RANK", "1")
    assert main(["status", f"runs={tmp_path}"]) == 0
    assert "no runs" in capsys.readouterr().out
