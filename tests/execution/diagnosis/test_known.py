"""The table of known causes is data, checked as it is read."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from launch.execution.diagnosis import advice
from launch.execution.diagnosis.known import FILE, known, load_known
from tests.paths import ROOT

ENTRY = {"id": "x", "errors": "ValueError", "pattern": "(?P<name>a)", "cure": "rename {name}"}


def write(path: Path, **changes: object) -> Path:
    content = {"causes": [ENTRY], **{key: yaml.safe_load(FILE.read_text())[key] for key in ("phrases", "packages")}}
    path.write_text(yaml.safe_dump({key: value for key, value in (content | changes).items() if value is not None}))
    return path


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"cause": "typo"}, "cause 1 (x): unknown key cause; the keys are certain, computed, cure"),
        ({"cure": "rename {nome}"}, "cause 1 (x): the cure uses 'nome', which is not a named group"),
        ({"cure": "rename {}"}, "which is not a named group"),
        ({"cure": "rename {"}, "which is not a named group"),
        ({"computed": "no_gpu"}, "must have either a cure or"),
        ({"pattern": "("}, "cause 1 (x): missing ), unterminated subpattern"),
        ({"pattern": None}, "cause 1 (x): KnownCause.pattern is not a str: None"),
        ({"errors": "["}, "cause 1 (x): unterminated character set"),
        ({"certain": "no"}, "KnownCause.certain is not a bool: 'no'"),
        ({"id": 3}, "cause 1 (3): KnownCause.id is not a str: 3"),
    ],
)
def test_a_wrong_entry_is_named(change: dict[str, object], expected: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as refused:
        load_known(write(tmp_path / "k.yaml", causes=[ENTRY | change]))
    assert expected in str(refused.value) and str(tmp_path) in str(refused.value)


def test_wrong_sections_are_named(tmp_path: Path) -> None:
    assert load_known(write(tmp_path / "k.yaml")).causes[0].id == "x"
    for changes in ({"cases": []}, {"packages": None}, {"phrases": {"fatal": "x"}}):
        with pytest.raises(ValueError, match="must"):
            load_known(write(tmp_path / "k.yaml", **changes))


def test_computed_cures_are_functions_of_advice() -> None:
    computed = {cause.computed for cause in known().causes if cause.computed}
    functions = [value for _, value in inspect.getmembers(advice, inspect.isfunction)]
    assert computed == {
        value.__name__ for value in functions if next(iter(inspect.signature(value).parameters)) == "match"
    }


def test_packages_are_those_of_the_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
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
        "import sys; from launch.__main__ import main; main(['plan', 'stage=demo', 'device=cpu', 'trainer=trl_sft']); "
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
