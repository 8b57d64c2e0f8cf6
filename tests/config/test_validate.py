"""Keys that Hydra's `+` adds, maps of a trainer's file, and ids of `allow`."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch.__main__ import main
from launch.check.machine.rules import RULES
from launch.commands.drafts import locate_option
from launch.config.allow import allowable_ids
from launch.config.guards import GuardsConfig
from launch.config.validate import _path_problems, odd_path_reason
from launch.errors import UserError
from launch.execution.facts import GuardContext
from launch.execution.guards import build_guards
from launch.planning.rules.register import RULES as PLAN_RULES
from launch.rules.table import table
from launch.trials.rollout.gates_across import GATES
from launch.worker.expectations import EVIDENCE, STATE
from launch.worker.finding import Finding
from tests.conftest import composed
from tests.messages import outline
from tests.paths import ROOT

MISTAKES = {  # an override, and the outline of its message (tests/messages.py)
    "+recipe.lerning_rate=1": "unknown_key, recipe.learning_rate=1, recipe.lerning_rate",
    "++recipe.lora.rnk=4": "unknown_key, recipe.lora.rank=4, recipe.lora.rnk",
    "+learning_rate=1": "unknown_key, learning_rate, recipe.learning_rate=1",
    "++guards.stall.trainig=5": "unknown_key, guards.stall.trainig, guards.stall.training=5",
    "+cluster.partitions=x": "unknown_key, cluster.partition=x, cluster.partitions",
    "+zzz=1": "unknown_key, flags.zzz=1, zzz",
    "++data.mix=${recipe}": "bad_value at override data.mix",
    "allow=[divergense]": "unknown_id at override allow, allow=[divergense], divergence",
    "allow=[batch_not_divisible]": "unknown_id at override allow, allow=[batch_not_divisible]",
}


@pytest.mark.parametrize("override", MISTAKES)
def test_a_name_is_looked_up_where_it_is_set(override: str) -> None:
    with pytest.raises(UserError) as refused:
        composed("stage=sft", override)
    assert outline(str(refused.value)) == MISTAKES[override]


@pytest.mark.parametrize("prefix", ["", "+", "++"])
@pytest.mark.parametrize(
    "override", ["flags.anything=1", "cluster.env.A=b", "data.columns.messages=talk"]
)
def test_maps_are_open(prefix: str, override: str) -> None:
    assert composed("stage=sft", prefix + override).stage == "sft"


def ids_in_source() -> set[str]:
    """Return the ids that the package itself looks for in an `allow` list, or returns for a
    rule.
    """
    ids = set()
    for path in (ROOT / "launch").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_test = isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant)
            if is_test and ast.unparse(node.comparators[0]).endswith("allow"):
                ids.add(str(node.left.value))
            is_failure = isinstance(node, ast.Call) and ast.unparse(node.func) == "failed"
            if is_failure and len(node.args) == 4 and isinstance(node.args[3], ast.Constant):
                ids.add(str(node.args[3].value))
    return ids


_SLURM_SOURCES = ("slurm/partitions.py", "slurm/cluster.py")


WEIGHTS = (
    "architecture",
    "weights",
    "schedule_peak",
    "movable_weights",
    "gradients",
    "last_update",
    "saved_weights",
)


def test_allow_takes_every_rule_guard_gate_and_expectation() -> None:
    expected = {rule.id for rule in RULES} | {gate.id for gate in GATES} | ids_in_source()
    expected |= {rule.id for rule in (*PLAN_RULES, *table()) if rule.allow}
    expected |= {guard.id for guard in build_guards(GuardsConfig(), GuardContext())}
    expected |= {
        f"{verdict}_{key}"
        for verdict in ("refuted", "unproven")
        for key in (*STATE, *EVIDENCE, *WEIGHTS)
    }
    missing = expected - allowable_ids()
    assert not missing
    extra = allowable_ids() - expected
    sources = "".join((ROOT / "launch" / folder).read_text() for folder in _SLURM_SOURCES)
    for file in (
        "trials/bench/engine.py",
        "check/machine/parser.py",
        "planning/read_files.py",
        "planning/saved_model.py",
        "execution/resume.py",
        "data/sample_problems.py",
        "data/samples.py",
        "pipelines/links.py",
    ):
        sources += (ROOT / "launch" / file).read_text(encoding="utf-8")
    assert [
        id for id in extra if f'Finding.error("{id}"' not in sources and f'"{id}",' not in sources
    ] == []


TOKEN = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz01234567"


@pytest.mark.parametrize(
    ("override", "cure"),
    [
        (f"flags.hub_token={TOKEN}", "HF_TOKEN"),
        ("flags.hub_token=${oc.env:MY_TOKEN}", "HF_TOKEN"),
        ("flags.wandb_api_key=0123456789", "WANDB_API_KEY"),
        (f"name={TOKEN}", "set another value"),
        (f"data.mix=[{{name: 'https://me:{TOKEN}@host/x.jsonl'}}]", "set another value"),
    ],
)
def test_a_secret_on_the_line_is_refused_without_showing_it(
    override: str, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "swordfish-of-mine")
    with pytest.raises(UserError, match="secret_on_line") as refused:
        composed("stage=sft", override)
    assert TOKEN not in str(refused.value) and cure in str(refused.value)
    assert composed("stage=sft", "flags.hub_token=null").stage == "sft"


def test_a_secret_in_a_file_is_refused_with_its_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "stage").mkdir()
    text = (
        "# @package _global_\ndefaults:\n  - sft\n  - _self_\nflags:\n  hub_token: "
        "${oc.env:MY_TOKEN}\n"
    )
    (tmp_path / "stage" / "mine.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("MY_TOKEN", "swordfish-of-mine")
    with pytest.raises(UserError, match="secret_on_line") as refused:
        composed("stage=mine")
    assert refused.value.problems[0].where == f"{tmp_path}/stage/mine.yaml:6"


@pytest.mark.parametrize(
    "override",
    [
        "name=${oc.env:MY_API_KEY}",
        "name=a-${oc.env:MY_API_KEY}.b",
        "name=${stage.tasks[0]}",
        "runs=/tmp/${oc.env:MY_API_KEY}",
        "cache=${oc.env:MY_API_KEY}",
        "python=/opt/${oc.env:MY_API_KEY}/python",
        "tracking_project=${oc.env:MY_API_KEY}",
        "tracking_entity=${oc.env:MY_API_KEY}",
        "hub.push=me/${oc.env:MY_API_KEY}",
        "model.path=./${oc.env:MY_API_KEY}",
        "data.mix=[{name: '${oc.env:MY_API_KEY}.jsonl'}]",
        "flags.run_name=${oc.env:MY_API_KEY}",
        "upstream.dir=${oc.env:MY_API_KEY}",
    ],
)
def test_a_secret_that_an_interpolation_puts_into_a_name(
    override: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In an override, and in the file of a stage; nothing is made under that name."""
    monkeypatch.chdir(tmp_path)
    secret = "5f0c9d7e3b1a48669d21c0ffee5f0c9d7e3b1a48"
    monkeypatch.setenv("MY_API_KEY", secret)
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path / "config"))
    (tmp_path / "config" / "stage").mkdir(parents=True)
    key, _, value = override.partition("=")
    node = yaml.safe_load(value) if value.startswith("[") else value
    for part in reversed(key.split(".")):
        node = {part: node}
    tasks = {"stage": {"tasks": ["${oc.env:MY_API_KEY}"]}} if "tasks" in value else {}
    content = yaml.safe_dump({"defaults": ["demo", "_self_"], **node, **tasks})
    (tmp_path / "config" / "stage" / "mine.yaml").write_text(f"# @package _global_\n{content}")
    line = ["stage=demo", override, *(["stage.tasks=['${oc.env:MY_API_KEY}']"] if tasks else [])]
    for argv in (["stage=mine"], line):
        assert main(["run", "trainer=trl_sft", *argv]) == 2
        shown = capsys.readouterr()
        assert "secret_on_line" in shown.err and secret not in shown.err + shown.out
    assert [path for path in tmp_path.rglob("*") if secret in str(path)] == []
    assert [path.name for path in tmp_path.iterdir()] == ["config"]


def test_a_secret_as_the_name_of_a_drafted_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path))
    with pytest.raises(UserError, match="secret_on_line") as refused:
        locate_option("stage", TOKEN, None)
    assert TOKEN not in str(refused.value)


def test_what_is_printed_holds_no_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "swordfish-of-mine")
    description = f"stage.description='${{oc.env:HF_TOKEN}} \x1b[31mred {TOKEN[:20]}'"
    assert main(["plan", "stage=sft", "gpus=1", "stage.description=${oc.env:HF_TOKEN}"]) == 0
    assert (
        main(
            [
                "plan",
                "stage=sft",
                "stage.description=${oc.env:HF_TOKEN}",
                "--cfg",
                "job",
                "--resolve",
            ]
        )
        == 0
    )
    assert main(["plan", "stage=swordfish-of-mine"]) == 2
    assert main(["plan", "stage=sft", description]) == 2
    output = "".join(capsys.readouterr())
    assert "swordfish" not in output and TOKEN[:20] not in output and "\x1b" not in output


@pytest.mark.parametrize("key", ["runs", "cache", "python", "upstream.dir"])
@pytest.mark.parametrize("path", ["~nosuchuser/x", "a" * 300, f"/tmp/{'b' * 300}/x", "x/" * 3000])
def test_a_path_that_no_file_can_have(key: str, path: str) -> None:
    with pytest.raises(UserError, match=rf"^override {key}: .*\[bad_path\]"):
        composed("stage=sft", f"{key}={path}")


@pytest.mark.parametrize("group", ["stage", "trainer", "model", "data", "cluster", "parallel"])
def test_a_choice_that_no_file_can_have(group: str) -> None:
    line = ["stage=sft", f"{group}={'a' * 300}"]
    with pytest.raises(UserError, match=rf"'a*'.*\[unknown_{group}\]"):
        composed(*line[group == "stage" :])


def test_a_name_with_room_for_its_lock() -> None:
    assert composed("stage=sft", f"name={'a' * 200}").config.name
    with pytest.raises(UserError, match=r"\b202\b.*\b200\b.*\[bad_name\]"):
        composed("stage=sft", f"name={'ж' * 101}")


@pytest.mark.parametrize(
    ("override", "unset"),
    [
        *(("model.path=", "model.path=null"), ("model.path=' '", "model.path=null")),
        *(
            ("runs=", ""),
            ("cache=''", "cache=null"),
            ("cluster.partition=", "cluster.partition=null"),
        ),
        ("data.mix=[{name: ''}]", ""),
    ],
)
def test_a_text_that_is_empty(override: str, unset: str) -> None:
    """As of `model.path=$MODEL` where the shell has no MODEL: the stage's own model would be
    trained instead.
    """
    with pytest.raises(UserError) as caught:
        composed("stage=sft", "gpus=1", override)
    [problem] = caught.value.problems
    assert (problem.id, problem.where) == ("empty_value", f"override {override.partition('=')[0]}")
    assert unset in str(problem.cure) and ("=null" in str(problem.cure)) == bool(unset)


ODD = [
    "a\nb",
    "a\rb",
    "a\tb",
    "a::b",
    "zip://a",
    "a\u200bb",
    "a\u202eb",
    "a\u2028b",
    "a\x7fb",
    "a\x00b",
]


def path_problems(key: str, path: str) -> list[Finding]:
    composition = composed("stage=sft")
    node: Any = composition.config
    *groups, name = key.split(".")
    for group in groups:
        node = node.mix[0] if group == "mix" else getattr(node, group)
    setattr(node, name, path)
    return list(_path_problems(composition.config, composition.origins))


@pytest.mark.parametrize(
    "key", ["runs", "cache", "python", "upstream.dir", "model.path", "model.sft"]
)
def test_what_a_library_reads_as_more_than_a_path_is_refused(key: str) -> None:
    for path in (ODD[0], "a::b"):
        [problem] = path_problems(key, path)
        assert problem.id == "bad_path"
        assert problem.message.isprintable() and problem.message.isascii()


@pytest.mark.parametrize("path", ODD)
def test_characters_and_separators_that_no_path_may_hold(path: str) -> None:
    assert odd_path_reason(path)


@pytest.mark.parametrize(
    "path",
    [
        "/a b/c",
        "/data/2026-11-23T10:00:00",
        "/m\u00f6glich/\u6a21\u578b",
        "/a/[b]{c}*?",
        "/a'b\"c",
        "org/name",
        "./a+b=c,d@e~f",
    ],
)
def test_other_characters_of_a_path_are_allowed(path: str) -> None:
    assert odd_path_reason(path, "runs") is None


def test_the_path_of_a_checkout_has_no_colon() -> None:
    assert odd_path_reason("/a:b", "upstream.dir") and not odd_path_reason("/a:b", "runs")


def test_the_working_folder_counts_for_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a::b").mkdir()
    composed("stage=sft")
    monkeypatch.chdir(tmp_path / "a::b")
    with pytest.raises(UserError, match=r"\[bad_path\]"):
        composed("stage=sft")


def test_plan_refuses_the_path_of_data(capsys: pytest.CaptureFixture[str]) -> None:
    """A line break ended in a StopIteration of datasets."""
    assert main(["plan", "stage=sft", "trainer=trl_sft", 'data.mix=[{name: "/d/a\nb.jsonl"}]']) == 2
    assert "[bad_path]" in capsys.readouterr().err
