"""`launch upstream`: the pin, the checkout and the gitlink, and where the maintainers' tools are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.commands.upstream import upstream
from launch.errors import UserError
from launch.upstream.pin.checkout import DIR_VARIABLE
from launch.upstream.pin.lock import load_lock
from tests.paths import ROOT
from tests.upstream.checkouts import checkout


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkout, named by the variable."""
    root = checkout()
    if root is None:
        pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR, or fetch the submodule")
    monkeypatch.setenv(DIR_VARIABLE, str(root))
    return root


@pytest.mark.parametrize("arguments", [[], ["status"]])
def test_status_as_text(
    arguments: list[str], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert upstream(arguments) == 0
    shown = capsys.readouterr().out
    assert load_lock().pin in shown and "python -m maintain" in shown


def test_status_as_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert upstream(["status", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["schema_version"], content["pin"]) == (1, load_lock().pin)
    assert content["checkout"]["dir"] == str(root)
    assert content["checkout"]["found_by"] == DIR_VARIABLE


@pytest.mark.parametrize(
    ("gitlink", "shown"),
    [
        (None, "unknown: no git index"),
        (load_lock().pin, "(the pin)"),
        ("1a2b3c4d5e" * 4, "python -m maintain bump 1a2b3c4d5`"),
    ],
)
def test_the_gitlink_is_compared_with_the_pin(
    gitlink: str | None,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("launch.commands.upstream.read_gitlink", lambda project: gitlink)
    assert upstream([]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("gitlink")]
    assert shown in line


def test_without_a_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(DIR_VARIABLE, raising=False)
    monkeypatch.setattr("launch.commands.upstream.ROOT", tmp_path)
    assert upstream(["status"]) == 0
    assert "git submodule update --init" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [["diff"], ["diff", "origin/main", "--json"], ["bump", "1a2b", "--rename", "a=b", "--force"]],
)
@pytest.mark.parametrize("in_clone", [True, False])
def test_a_tool_of_the_maintainers_is_named_with_its_place(
    arguments: list[str], in_clone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.commands.upstream.IN_CLONE", in_clone)
    with pytest.raises(UserError) as refused:
        upstream(arguments)
    [problem] = refused.value.problems
    assert (problem.id, problem.where) == ("maintainers_command", "command line")
    assert f"`python -m maintain {' '.join(arguments)}`" in str(problem.cure)
    assert (str(ROOT) in str(problem.cure)) is in_clone


@pytest.mark.parametrize("arguments", [["status", "HEAD"], ["--upstream"]])
def test_arguments_that_it_does_not_take(arguments: list[str]) -> None:
    with pytest.raises(UserError, match="usage"):
        upstream(arguments)
