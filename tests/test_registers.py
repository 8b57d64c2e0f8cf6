"""Guards, gates, rules of check, and patches: a half-added one is told everything that it lacks.

What a trainer lacks: tests/config/test_trainers.py; a row of the table of rules:
tests/rules/test_table.py.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import yaml

from launch import resources
from launch.check.machine.rule import PreflightRule, rule
from launch.check.machine.rules import RULES
from launch.config.guards import GuardsConfig
from launch.execution.facts import Guard
from launch.execution.guards import GUARDS
from launch.planning.rules.plan_rule import PlanRule, plan_rule
from launch.planning.rules.register import RULES as PLAN_RULES
from launch.rules.code import passed
from launch.trials.rollout.gate import Gate, gate
from launch.trials.rollout.gates_across import GATES
from launch.worker.finding import Finding
from launch.worker.patches import PATCHES
from launch.worker.patches.patch import PatchInfo
from tests.config.test_ranges import KEYS, WITHOUT_RANGE, keys_without_range
from tests.paths import ROOT

RENEW = "pytest tests/docs/test_reference.py tests/config/test_keys.py --update-golden writes it"


@cache
def page(name: str) -> str:
    return (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")


@cache
def text_of_tests(folder: str) -> str:
    """Return the text of the tests below a folder of tests/."""
    return "".join(
        path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests" / folder).rglob("*.py"))
    )


def lacks(id: str, text: str, pattern: str = "`{}`") -> bool:
    return re.search(pattern.format(re.escape(id)), text) is None


def untested(names: tuple[str, ...], folder: str) -> Iterator[str]:
    if all(lacks(name, text_of_tests(folder), r"\b{}\b") for name in names):
        yield f"no test below tests/{folder} names {' or '.join(names)}"


def lacking_guard(guard: type[Guard]) -> Iterator[str]:
    """Yield everything that a guard lacks, one sentence each."""
    id = getattr(guard, "id", None)
    if id is None:
        yield "it has no id"
        return
    if guard not in [entry.judge for entry in GUARDS]:
        yield "GUARDS in launch/execution/guards.py lacks it"
    if not (inspect.getdoc(guard) or "").startswith("Detects "):
        yield "its docstring begins with what it detects: the page of rules has that sentence"
    if id not in {field.name for field in dataclasses.fields(GuardsConfig)}:
        yield f"GuardsConfig in launch/config/guards.py has no field {id} with its limits"
    elif lacks(id, page("keys.md"), r"`guards\.{}\b"):
        yield f"docs/reference/keys.md lacks guards.{id}: {RENEW}"
    yield from (
        f"{key} {WITHOUT_RANGE}" for key in keys_without_range() if key.startswith(f"guards.{id}.")
    )
    if lacks(id, page("rules.md")):
        yield f"docs/reference/rules.md lacks {id}: {RENEW}"
    yield from untested((id, guard.__name__), "execution/guards")


def lacking_gate(gate: Gate) -> Iterator[str]:
    """Yield everything that a gate of a rollout lacks, one sentence each."""
    if gate not in GATES:
        yield "GATES in launch/trials/rollout/gates_across.py does not have it"
    if not gate.summary.endswith(".") or len(gate.summary) < 30:
        yield "its docstring is its summary, a sentence"
    if not gate.source:
        yield "its source says where its figures come from"
    if gate.id in {field.name for field in dataclasses.fields(GuardsConfig)}:
        yield f"allow=[{gate.id}] would switch off the guard {gate.id} too"
    if lacks(gate.id, page("rules.md")):
        yield f"docs/reference/rules.md lacks {gate.id}: {RENEW}"
    yield from untested((gate.id,), "trials/rollout")


def lacking_rule(rule: PreflightRule) -> Iterator[str]:
    """Yield everything that a rule of check lacks, one sentence each."""
    if rule not in RULES:
        yield "RULES in launch/check/machine/rules.py lacks it"
    if not rule.summary.endswith(".") or len(rule.summary) < 40:
        yield "its docstring is its summary, a sentence"
    if lacks(rule.id, page("rules.md")):
        yield f"docs/reference/rules.md lacks {rule.id}: {RENEW}"
    yield from untested((rule.id, getattr(rule.judge, "__name__", rule.id)), "")


def lacking_plan_rule(rule: PlanRule[Any]) -> Iterator[str]:
    """Yield everything that a rule of the planning lacks, one sentence each."""
    if rule not in PLAN_RULES:
        yield "RULES in launch/planning/rules/register.py lacks it"
    if not rule.summary.endswith(".") or len(rule.summary) < 40:
        yield "its docstring is its summary, a sentence"
    if lacks(rule.id, page("rules.md")):
        yield f"docs/reference/rules.md lacks {rule.id}: {RENEW}"
    yield from untested((rule.id, getattr(rule.judge, "__name__", rule.id)), "")


def lacking_patch(patch: PatchInfo) -> Iterator[str]:
    """Yield everything that a patch lacks, one sentence each."""
    if PATCHES.get(patch.id) is not patch:
        yield "launch/worker/patches/__init__.py does not register it, or another patch has its id"
    if len(patch.reason) < 30:
        yield "reason says why upstream needs it"
    if not patch.sources:
        yield "lines has no line of upstream that it relies on"
    if patch.id not in patches_of_trainers():
        yield "no file in configs/tulu/trainer lists it under patches"
    if lacks(patch.id, page("rules.md")):
        yield f"docs/reference/rules.md lacks {patch.id}: {RENEW}"
    module = inspect.getmodule(patch.apply)
    yield from untested((patch.id, module.__name__.rpartition(".")[2] if module else patch.id), "")


@cache
def patches_of_trainers() -> set[str]:
    files = (resources.CONFIGS / "trainer").glob("*.yaml")
    return {
        patch
        for path in files
        for patch in yaml.safe_load(path.read_text(encoding="utf-8"))["patches"]
    }


def modules(package: str) -> Iterator[ModuleType]:
    module = importlib.import_module(package)
    yield module
    folders = getattr(module, "__path__", ())
    yield from (
        importlib.import_module(f"{package}.{info.name}") for info in pkgutil.iter_modules(folders)
    )


def is_guard(value: Any) -> bool:
    return isinstance(value, type) and Guard in value.__mro__[1:]


def is_a(cls: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, cls)


REGISTERS: tuple[tuple[str, Callable[[Any], bool], Callable[[Any], Iterator[str]]], ...] = (
    ("launch.execution", is_guard, lacking_guard),
    ("launch.trials.rollout", is_a(Gate), lacking_gate),
    ("launch.planning.rules", is_a(PlanRule), lacking_plan_rule),
    ("launch.check.machine", is_a(PreflightRule), lacking_rule),
    ("launch.worker.patches", is_a(PatchInfo), lacking_patch),
)


@pytest.mark.parametrize(
    ("package", "matches", "lacking"), REGISTERS, ids=[entry[0] for entry in REGISTERS]
)
def test_what_is_defined_lacks_nothing(
    package: str, matches: Callable[[Any], bool], lacking: Callable[[Any], Iterator[str]]
) -> None:
    defined = {
        id(value): (name, value)
        for module in modules(package)
        for name, value in vars(module).items()
    }
    checked = [(name, value) for name, value in defined.values() if matches(value)]
    assert len(checked) >= 8
    found = [f"{name}: {lack}" for name, value in checked for lack in lacking(value)]
    if found:
        pytest.fail("\n".join(found), pytrace=False)


@pytest.mark.parametrize("register", [GUARDS, GATES, RULES, PLAN_RULES])
def test_ids_are_unique(register: tuple[Any, ...]) -> None:
    assert len({entry.id for entry in register}) == len(register)


class Cold(Guard):
    id = "cold"


def test_a_half_added_guard_is_told_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KEYS, "guards.cold.steps", int)
    assert list(lacking_guard(Cold)) == [
        "GUARDS in launch/execution/guards.py lacks it",
        "its docstring begins with what it detects: the page of rules has that sentence",
        "GuardsConfig in launch/config/guards.py has no field cold with its limits",
        f"guards.cold.steps {WITHOUT_RANGE}",
        f"docs/reference/rules.md lacks cold: {RENEW}",
        "no test below tests/execution/guards names cold or Cold",
    ]


def test_a_half_added_gate_is_told_everything() -> None:
    @gate("stall", "")
    def nothing(_: object) -> Finding | None:
        """Too short."""
        return None

    assert list(lacking_gate(nothing)) == [
        "GATES in launch/trials/rollout/gates_across.py does not have it",
        "its docstring is its summary, a sentence",
        "its source says where its figures come from",
        "allow=[stall] would switch off the guard stall too",
        "no test below tests/trials/rollout names stall",
    ]


def test_a_half_added_rule_is_told_everything() -> None:
    name = "cold" + "_room"  # in no test

    def inspect_room(*_: object) -> Finding:
        return passed("")

    inspect_room.__name__ = name
    assert list(lacking_rule(rule(name, "room")(inspect_room))) == [
        "RULES in launch/check/machine/rules.py lacks it",
        "its docstring is its summary, a sentence",
        f"docs/reference/rules.md lacks {name}: {RENEW}",
        f"no test below tests/ names {name} or {name}",
    ]


def test_a_half_added_rule_of_the_planning_is_told_everything() -> None:
    name = "cold" + "_settings"  # in no test

    def find_nothing(_: object) -> Iterator[Finding]:
        yield from ()

    find_nothing.__name__ = name
    assert list(lacking_plan_rule(plan_rule(name)(find_nothing))) == [
        "RULES in launch/planning/rules/register.py lacks it",
        "its docstring is its summary, a sentence",
        f"docs/reference/rules.md lacks {name}: {RENEW}",
        f"no test below tests/ names {name} or {name}",
    ]


def test_a_half_added_patch_is_told_everything() -> None:
    whole = next(iter(PATCHES.values()))
    half = dataclasses.replace(whole, id="co" + "ld", reason="cold", lines={})
    assert list(lacking_patch(half))[:4] == [
        "launch/worker/patches/__init__.py does not register it, or another patch has its id",
        "reason says why upstream needs it",
        "lines has no line of upstream that it relies on",
        "no file in configs/tulu/trainer lists it under patches",
    ]
    whole = dataclasses.replace(half, lines={"trl/scripts/sft.py": {1: "x"}})
    assert "lines has no" not in " ".join(lacking_patch(whole))


def test_a_public_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for folder in ("launch", "maintain"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert len(places) > 200
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
