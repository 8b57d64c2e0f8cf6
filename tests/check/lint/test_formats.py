"""Lint's findings for other programs: annotations, SARIF, the hook of pre-commit and the action."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch import __version__
from launch.check.lint.readers import list_files
from launch.commands.lint import lint
from launch.upstream.pin.lock import load_lock
from tests.check.lint.mistakes import FINETUNE
from tests.paths import ROOT

BAD = f"# a note\n{FINETUNE} \\\n  --lerning_rate 1e-5 --use_slow_tokenizer\n"
GOOD = f"{FINETUNE} --learning_rate 1e-5\n"


@pytest.fixture(autouse=True)
def no_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OPEN_INSTRUCT_DIR", raising=False)
    monkeypatch.setattr("launch.commands.lint.ROOT", tmp_path / "no project")
    monkeypatch.chdir(tmp_path)


def test_annotations_mark_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a,b.sh").write_text(BAD)
    assert lint(["--format", "github", "a,b.sh"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition("::")[0] for line in lines] == [
        "::error file=a%2Cb.sh,line=3,title=unknown_flag",
        "::warning file=a%2Cb.sh,line=3,title=ignored_flag",
    ]


def test_sarif_has_each_finding_and_the_versions(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.sh").write_text(BAD)
    Path("empty.sh").write_text("")
    assert lint(["--format", "sarif", "a.sh", "empty.sh"]) == 2
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    driver = run["tool"]["driver"]
    assert (driver["version"], driver["properties"]["pin"]) == (__version__, load_lock().pin)
    found = [
        (
            result["ruleId"],
            result["level"],
            result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"],
            result["locations"][0]["physicalLocation"]["region"]["startLine"],
        )
        for result in run["results"]
    ]
    assert found == [
        ("unknown_flag", "error", "a.sh", 3),
        ("ignored_flag", "warning", "a.sh", 3),
        ("empty_file", "warning", "empty.sh", 1),
    ]
    assert {rule["id"] for rule in driver["rules"]} == {
        result["ruleId"] for result in run["results"]
    }


def test_the_text_names_the_versions(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.sh").write_text(GOOD)
    assert lint(["a.sh"]) == 0
    summary = capsys.readouterr().err
    assert f"launch {__version__}" in summary and load_lock().pin[:9] in summary


def test_the_hook_is_given_what_lint_reads_of_a_folder(tmp_path: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    names = [
        "run.sh", "a.bash", "job.sbatch", "job.slurm", "x.txt", "x.cmd", "x.job", "Makefile", "a.mk",
        "justfile", "Dockerfile", "x.dockerfile", "a.yaml", "a.yml", "README.md", "a.mdx", "run.sh.j2",
        "x.tmpl", "a.ipynb", "run", "train.py", "a.csv", "a.toml", "a.json",
    ]  # fmt: skip
    for name in names:
        (tmp_path / name).write_text("x", encoding="utf-8")
    read = {path.name for path in list_files(tmp_path)}
    assert {name for name in names if re.search(hook["files"], f"scripts/{name}")} == read


def action_steps() -> list[dict[str, Any]]:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    assert action["runs"]["using"] == "composite"
    steps: list[dict[str, Any]] = action["runs"]["steps"]
    return steps


def run_step(
    step: dict[str, Any], inputs: dict[str, str], temp: Path
) -> subprocess.CompletedProcess[str]:
    """Run a step of the action in bash, with its inputs in the place of its expressions."""
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    given = {name: str(item["default"]) for name, item in action["inputs"].items()} | inputs
    environment = {
        name: re.sub(
            r"\$\{\{ *(?:inputs\.(\w+)|github\.action_path) *\}\}",
            lambda match: given[match[1]] if match[1] else str(ROOT),
            value,
        )
        for name, value in step["env"].items()
    }
    output = {"RUNNER_TEMP": str(temp), "GITHUB_OUTPUT": str(temp / "output")}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        env={**os.environ, **environment, **output},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("text", "code"), [(BAD, 2), (GOOD, 0)])
def test_the_actions_steps_annotate_the_lines(tmp_path: Path, text: str, code: int) -> None:
    """The first step's environment is this interpreter's: test_packaging installs the package."""
    install, fetch, check = action_steps()
    assert (install["name"], fetch["if"]) == ("Install launch", "inputs.upstream != ''")
    bin_folder = tmp_path / "temp" / "launch-lint" / "bin"
    bin_folder.mkdir(parents=True)
    program = bin_folder / "launch"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m launch "$@"\n')
    program.chmod(0o755)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "run.sh").write_text(text)
    inputs = {"files": "scripts", "sarif": str(tmp_path / "lint.sarif")}
    done = run_step(check, inputs, tmp_path / "temp")
    assert done.returncode == code, done.stderr
    expected = "::error file=scripts/run.sh,line=3,title=unknown_flag::"
    assert (expected in done.stdout) is (code == 2)
    (run,) = json.loads((tmp_path / "lint.sarif").read_text())["runs"]
    levels = [result["level"] for result in run["results"]]
    assert ("error" in levels) is (code == 2)
    assert (tmp_path / "temp" / "output").read_text() == f"sarif={tmp_path / 'lint.sarif'}\n"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_action_fetches_the_commit_of_upstream(tmp_path: Path) -> None:
    source = tmp_path / "source"
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    git = ["git", "-C", str(source)]
    subprocess.run(["git", "init", "-q", str(source)], check=True)
    (source / "a.txt").write_text("first")
    for command in (["add", "-A"], [*identity, "commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    subprocess.run([*git, "config", "uploadpack.allowAnySHA1InWant", "true"], check=True)
    _, fetch, _ = action_steps()
    fetch = {**fetch, "env": {**fetch["env"], "SOURCE": f"file://{source}"}}
    (tmp_path / "temp").mkdir()
    done = run_step(fetch, {"upstream": commit}, tmp_path / "temp")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "temp" / "open-instruct" / "a.txt").read_text() == "first"
