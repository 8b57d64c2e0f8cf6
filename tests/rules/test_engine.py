"""The conditions of the table of rules, and how a row becomes a finding."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from launch.rules.conditions import CONDITIONS
from launch.rules.engine import apply_rules
from launch.rules.facts import ABSENT, UNKNOWN, Place, Source
from launch.rules.table import TABLE_FILE, BadRowError, parse_rules
from launch.worker.finding import Finding


@dataclass
class WrittenFacts:
    """Facts that are written down."""

    values: Mapping[str, Any]
    place: Place = Place.plan
    trainer: str = "finetune"
    family: str = "open_instruct"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, Source | None] = field(default_factory=dict)

    def value(self, name: str) -> Any:
        return self.values.get(name, ABSENT)

    def default(self, flag: str) -> Any:
        return self.defaults.get(flag)

    def source(self, flag: str) -> Source | None:
        return self.sources.get(flag, Source.user)

    def known_names(self, flag: str) -> Sequence[str]:
        return ("tulu",) if flag == "template" else ()

    def locate(self, name: str) -> str:
        return f"override {name}"


def find(row: str, facts: WrittenFacts) -> list[Finding]:
    """Return what an entry of the table finds."""
    head = "x:\n  severity: error\n"
    message = "" if "message:" in row else "  message: bad\n"
    return apply_rules(facts, parse_rules(f"{head}{message}{row}"))


@pytest.mark.parametrize(
    ("condition", "fulfils", "fails"),
    [
        ("true", [True, "true"], [False, 1, None]),
        ("3", [3, 3.0], [4, True, "4"]),
        ("[a, b]", ["a", "b"], ["c"]),
        ("null", [None], [0, False]),
        ("{not: true}", [False, None], [True]),
        ("{given: true}", [0, ""], [None]),
        ("{below: 0}", [-1, -0.5], [0, True, "-1", None]),
        ("{above: 1}", [1.5], [1, "2"]),
        ("{outside: '(0, 1]'}", [0, -1, 1.5, float("nan")], [0.5, 1, True, "0"]),
        ("{outside: '[1, inf) or -1'}", [0, -2], [1, 9, -1]),
        ("{contains: /}", ["a/b"], ["a", 1, ["a/b"]]),
        ("{matches: a|b.*}", ["a", "bc", ["x", "a"]], ["ab", ["x"], []]),
        ("{matches_not: a|b.*}", ["ab", ["x"], None], ["a", ["x", "a"]]),
        ("{lacks: [a, b]}", [["c"]], [["a"], [], "c", [UNKNOWN]]),
        ("{length: odd}", [["a"]], [["a", "b"], [], "a", ["a", UNKNOWN, "b"]]),
        ("{length: even}", [["a", "b"]], [["a"], [], "a", ["a", UNKNOWN]]),
        ("{count_to: 5}", [["a", "5"]], [["a", "6"], ["a", "1.0"], ["a"]]),
        ("{above: 1, below: 3}", [2], [1, 3]),
    ],
)
def test_a_condition_on_a_value(condition: str, fulfils: list[Any], fails: list[Any]) -> None:
    row = f"  flag: flag_\n  when: {{flag: {condition}}}"
    for value in fulfils:
        assert find(row, WrittenFacts({"flag_": value})), value
    for value in (*fails, UNKNOWN):
        assert not find(row, WrittenFacts({"flag_": value})), value


def test_a_flag_that_is_not_given() -> None:
    assert find("  flag: a\n  when: {flag: {given: false}}", WrittenFacts({}))
    assert find("  when: {a: {not: 1}}", WrittenFacts({}))
    assert not find("  flag: a\n  when: {flag: {not: 1}}", WrittenFacts({})), (
        "a row's flag is given"
    )


def test_names_of_the_checkout_and_who_sets_a_flag() -> None:
    assert find("  when: {template: {named: false}}", WrittenFacts({"template": "tulo"}))
    assert not find("  when: {template: {named: false}}", WrittenFacts({"template": "tulu"}))
    assert find("  when: {template: {named: true}}", WrittenFacts({"template": "tulu"}))
    assert not find("  when: {template: {named: true}}", WrittenFacts({"template": "tulo"}))
    for operand in ("true", "false"):  # nobody knows the names
        row = f"  when: {{other: {{named: {operand}}}}}"
        assert not find(row, WrittenFacts({"other": "tulo"}))
    by_launch = WrittenFacts({"a": UNKNOWN}, sources={"a": Source.launch})
    assert find("  flag: a\n  when: {flag: {from: launch}}", by_launch)
    assert not find("  flag: a\n  when: {flag: {not_from: launch}}", by_launch)
    perhaps = WrittenFacts({"a": UNKNOWN}, sources={"a": None})  # a shell variable may give it
    assert not find("  flag: a\n  when: {flag: {from: user}}", perhaps)
    assert not find("  flag: a\n  when: {flag: {not_from: launch}}", perhaps)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("when: {a: {blow: 0}}", "when a: there is no condition 'blow': is, not, given"),
        ("when: {a: {length: uneven}}", "when a: 'length' takes even or odd, got uneven"),
        ("when: {a: {named: tulu}}", "when a: 'named' takes true or false, got tulu"),
        ("when: {a: {from: users}}", "when a: 'from' takes user or recipe or launch, got users"),
        ("when: {a: {below: '0'}}", "when a: 'below' takes a number, got 0"),
        ("when: {a: {matches: '('}}", "when a: 'matches' takes a regular expression, got ("),
        ("when: {a: {outside: 0-1}}", "when a: '0-1' is not a range such as [0, 1)"),
        ("whenn: {a: 1}", "there is no field 'whenn': allow, at"),
        ("severity: fatal", "severity is error or warning, got fatal"),
        ("severity: error, only: lint", "lint only warns: leave severity out beside only: lint"),
    ],
)
def test_a_row_that_says_something_impossible_is_named_when_the_table_is_read(
    row: str, fault: str
) -> None:
    table = f"""
first: {{severity: error, message: good}}
second:
  severity: error
  message: bad
  rows:
    - {{flag: a}}
    - {{flag: b, {row}}}"""
    with pytest.raises(BadRowError, match=re.escape(f"second, row 2: {fault}")):
        parse_rules(table)


def test_a_row_of_lint_alone_has_no_severity() -> None:
    """It is a warning, also in an entry whose other rows are errors."""
    (of_lint,) = parse_rules("a: {only: lint, flag: x, message: bad}")
    assert of_lint.severity == "warning"
    shared = "a: {severity: error, message: bad, rows: [{flag: x}, {flag: y, only: lint}]}"
    assert [rule.severity for rule in parse_rules(shared)] == ["error", "warning"]
    with pytest.raises(BadRowError, match="a, row 1: lint only warns"):
        parse_rules("a: {severity: warning, only: lint, flag: x, message: bad}")
    with pytest.raises(BadRowError, match="a, row 1: severity is error or warning, got None"):
        parse_rules("a: {flag: x, message: bad}")


def test_a_message_is_filled_once() -> None:
    """A user's value with braces stays as it is; the row's reason has placeholders of its own."""
    row = """
  flag: a
  message: "{value}: {reason}"
  reason: '{trainer} dies of it'"""
    values = {"a": "{trainer} {reason}", "trainer": "finetune"}
    (found,) = find(row, WrittenFacts(values))
    assert found.message == "{trainer} {reason}: finetune dies of it"


def test_every_condition_is_explained_in_the_head_of_the_table() -> None:
    head = TABLE_FILE.read_text(encoding="utf-8").partition("\n\n")[0]
    explained = set(re.findall(r"{(\w+): ", head)) | {"is", "not_from"}
    assert CONDITIONS.keys() <= explained


def test_rows_share_what_stands_beside_them() -> None:
    row = """
  message: "{flag} {value}: {reason}, {recipe.liger}"
  when: {flag: {above: 1}}
  fix: ["set {0}, or {1}", "flags.{flag}=1", "gpus=N"]
  rows:
    - {flags: [a, b], reason: one}
    - {flag: c, reason: two, trainers: [trl], when: {flag: {below: 9}}}"""
    values = {"a": 2, "b": 1, "c": 3, "recipe.liger": True}
    first, second = find(row, WrittenFacts(values))
    assert (first.message, first.where) == ("a 2: one, true", "override a")
    assert str(first.cure) == "set flags.a=1, or gpus=N"
    assert second.message == "c 3: two, true"


def test_each_need_that_is_not_met_is_a_message_of_its_own() -> None:
    row = "  flag: a\n  message: '{other} {other_value}, not {choices}'\n  needs: {b: x|y, c: z}"
    found = find(row, WrittenFacts({"a": 1, "b": "w", "c": "v"}))
    assert [finding.message for finding in found] == ["b w, not x, y", "c v, not z"]
    assert not find(row, WrittenFacts({"a": 1, "b": ["w", "y"], "c": UNKNOWN}))
    assert not find(row, WrittenFacts({"a": 1, "b": "x"}, defaults={"c": "z"}))
    assert not find(row, WrittenFacts({"a": 1, "b": "x"}, defaults={"c": UNKNOWN}))


def test_lint_has_sentences_of_its_own() -> None:
    row = "  flag: a\n  in_lint: '{reason}'\n  reason: why"
    assert [finding.message for finding in find(row, WrittenFacts({"a": 1}))] == ["bad"]
    in_lint = find(row, WrittenFacts({"a": 1}, place=Place.lint))
    assert [finding.message for finding in in_lint] == ["why"]
