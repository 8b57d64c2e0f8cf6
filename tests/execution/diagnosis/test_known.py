"""The table of known causes is data, checked here."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch.execution.diagnosis.advice import Situation
from launch.execution.diagnosis.known import KNOWN_FILE, KnownCause, known
from launch.worker.json_codec import from_json
from tests.paths import ROOT

CONTENT = yaml.safe_load(KNOWN_FILE.read_text(encoding="utf-8"))


def mistake(entry: Mapping[str, Any]) -> str | None:
    """Return what is wrong with an entry of known.yaml; None for a right one."""
    keys = {field.name for field in fields(KnownCause)}
    if unknown := entry.keys() - keys:
        return f"unknown key {', '.join(sorted(unknown))}; the keys are {', '.join(sorted(keys))}"
    try:
        cause = from_json(KnownCause, entry)
        re.compile(cause.errors or "")
        re.compile(cause.raised_in or "")
        groups = re.compile(cause.pattern).groupindex
        if (cause.cure is None) == (cause.computed is None):
            return "must have either a cure or the name of a function that computes one"
        (cause.cure or "").format(**dict.fromkeys(groups, ""))
    except (ValueError, LookupError, re.error) as error:
        return f"{type(error).__name__}: {error}"
    return None


def test_every_entry_is_right() -> None:
    entries = CONTENT["causes"]
    assert {entry.get("id"): wrong for entry in entries if (wrong := mistake(entry))} == {}
    assert len(known().causes) == len(entries)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"cause": "typo"}, "unknown key cause; the keys are certain, computed, cure"),
        ({"cure": "rename {nome}"}, "KeyError: 'nome'"),
        ({"cure": "rename {}"}, "IndexError"),
        ({"cure": "rename {"}, "ValueError"),
        ({"computed": "no_gpu"}, "must have either a cure or"),
        ({"pattern": "("}, "missing ), unterminated subpattern"),
        ({"pattern": None}, "KnownCause.pattern is not a str: None"),
        ({"errors": "["}, "unterminated character set"),
        ({"certain": "no"}, "KnownCause.certain is not a bool: 'no'"),
        ({"id": 3}, "KnownCause.id is not a str: 3"),
    ],
)
def test_a_wrong_entry_is_found(change: dict[str, object], expected: str) -> None:
    right = {"id": "x", "errors": "ValueError", "pattern": "(?P<name>a)", "cure": "rename {name}"}
    assert mistake(right) is None
    assert expected in str(mistake(right | change))


def test_the_sections_are_those_that_are_read() -> None:
    assert CONTENT.keys() == {"causes", "phrases", "packages"}
    sources = "".join(path.read_text(encoding="utf-8") for path in KNOWN_FILE.parent.glob("*.py"))
    assert (
        set(re.findall(r'\.phrases\["(\w+)"\]', sources))
        == CONTENT["phrases"].keys()
        == known().phrases.keys()
    )


def test_computed_cures_are_methods_of_a_situation() -> None:
    computed = {cause.computed for cause in known().causes if cause.computed}
    methods = inspect.getmembers(Situation, inspect.isfunction)
    assert computed == {
        name for name, method in methods if "match" in inspect.signature(method).parameters
    }


def test_packages_are_those_of_the_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for extra, names in known().packages.items():
        required = "".join(extras[extra]).lower().replace("-", "_")
        missing = {name for name in names if name not in required} - {
            "absl",
            "olmo_core",
            "beaker",
            "dateutil",
            "liger_kernel",
        }
        assert not missing, (extra, missing)


def test_a_plan_does_not_read_it(tmp_path: Path) -> None:
    program = (
        "import sys; from launch.__main__ import main; main(['plan', 'stage=demo', 'device=cpu', "
        "'trainer=trl_sft']); "
        "print('launch.execution.diagnosis.known' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith("False\n")
