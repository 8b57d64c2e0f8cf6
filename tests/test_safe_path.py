"""No Python that launch starts imports from the working folder, which may be a folder of data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launch.execution.preview import preview_environment
from launch.execution.supervise.streams import Channel
from launch.execution.supervise.supervisor import Execution, _reaper_order
from launch.host.interpreter import inventory, missing_modules, package_folders, worker_command
from launch.resources import PYTHON_VARIABLES
from tests.conftest import planned
from tests.paths import ROOT

# imported by `python -m` itself before any of the package's own lines
BEFORE = subprocess.run(
    [sys.executable, "-P", "-c", "import runpy, sys; print(*sys.modules)"],
    capture_output=True,
    text=True,
    check=True,
).stdout.split()
STANDARD = sorted({*sys.stdlib_module_names} - {*BEFORE, "pkgutil", "__main__"})
INSTALLED = (
    "yaml",
    "hydra",
    "omegaconf",
    "antlr4",
    "psutil",
    "jinja2",
    "numpy",
    "torch",
    "transformers",
    "accelerate",
)
OTHERS = (
    "datasets",
    "trl",
    "peft",
    "deepspeed",
    "wandb",
    "pandas",
    "liger_kernel",
    "sitecustomize",
    "usercustomize",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder in which every module's name is taken by a file that writes its own name
    into `imported`.
    """
    folder = tmp_path / "data"
    (folder / "hydra_plugins").mkdir(parents=True)
    for name in (*STANDARD, *INSTALLED, *OTHERS, "hydra_plugins/plugin"):
        trap = f"open({str(tmp_path / 'imported')!r}, 'a').write('{name}\\n')\n"
        (folder / f"{name}.py").write_text(f"{trap}raise ImportError('not this one')\n")
    (folder / "chats.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
        * 40
    )
    (folder / "job.sh").write_text("python open_instruct/finetune.py --learning_rate 1e-5\n")
    monkeypatch.chdir(folder)
    for name in ("PYTHONSAFEPATH", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    return folder


def imported(folder: Path) -> list[str]:
    file = folder.parent / "imported"
    return file.read_text().split() if file.exists() else []


def launch(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "launch", *argv], capture_output=True, text=True, check=False
    )


@pytest.fixture
def other_python(tmp_path: Path) -> str:
    """An interpreter that is not the launcher's own, so that it is asked."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("plan", "stage=demo", "trainer=trl_sft"), 0),
        (("plan", "stage=sft_25pct", "gpus=8", "--json"), 0),
        (("lint", "job.sh"), 0),
        (("flags", "trl_sft", "rate"), 0),
        (("status",), 0),
        (("new", "mine", "--data", "chats.jsonl", "--print"), 0),
        (("check", "stage=demo", "trainer=trl_sft"), 0),
        (("version",), 0),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else str(value),
)
def test_a_verb_in_a_folder_of_traps(folder: Path, argv: tuple[str, ...], code: int) -> None:
    done = launch(*argv)
    assert imported(folder) == []
    assert done.returncode == code, done.stdout + done.stderr


def test_questions_to_another_interpreter(folder: Path, other_python: str) -> None:
    assert package_folders(other_python)
    assert missing_modules(other_python, ["yaml", "no_such_module"]) == ["no_such_module"]
    assert "pyyaml" in inventory(other_python).packages
    (folder / "only_here.py").write_text("")
    assert missing_modules(other_python, ["only_here"]) == ["only_here"]
    assert imported(folder) == []


def test_a_worker_that_answers_requests(folder: Path) -> None:
    done = subprocess.run(
        worker_command(sys.executable, "merging", {}), capture_output=True, text=True, check=False
    )
    assert "ValueError: MergeRequest.adapter is missing" in done.stderr and imported(folder) == []


def path_after_import(argv: list[str], first: Path) -> list[str]:
    """Return sys.path once launch is imported in a process that Python would have started with
    `argv` in `first`.
    """
    shows = (
        f"import sys; sys.argv = {argv[:1]!r}; sys.orig_argv = ['python', *{argv!r}]; "
        f"sys.path[0] = {str(first)!r}"
    )
    command = [sys.executable, "-c", f"{shows}; import launch, json; print(json.dumps(sys.path))"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    return list(json.loads(done.stdout))


@pytest.mark.parametrize("module", ["launch", "launch.slurm.script"])
def test_a_clone_that_is_not_installed_comes_last(module: str) -> None:
    path = path_after_import(["-m", module], ROOT)
    assert path[0] != str(ROOT) and path[-1] == str(ROOT)


@pytest.mark.parametrize(
    ("argv", "kept"),
    [
        (["-m", "launch"], False),
        (["-m", "pytest"], True),
        (["-m", "launcher"], True),
        (["script.py"], True),
    ],
)
def test_only_the_command_changes_the_path(tmp_path: Path, argv: list[str], kept: bool) -> None:
    """`import launch` in a notebook or in somebody's program does not."""
    assert (str(tmp_path) in path_after_import(argv, tmp_path)) == kept


@pytest.mark.slow
@pytest.mark.parametrize("gpus", ["cpu", pytest.param("cpu2", marks=pytest.mark.thorough)])
def test_a_run_in_a_folder_of_traps(folder: Path, other_python: str, gpus: str) -> None:
    pytest.importorskip("trl", reason="the `train` dependencies are not installed")
    width = ["processes=2"] if gpus == "cpu2" else []
    done = launch(
        "run",
        "stage=demo",
        "trainer=trl_sft",
        "recipe.max_steps=2",
        f"python={other_python}",
        *width,
    )
    assert imported(folder) == [], done.stderr
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("text", ["M\u00fcnchen", "\u6a21\u578b", "\U0001f680"])
def test_a_trainer_writes_utf8_in_an_ascii_locale(tmp_path: Path, text: str) -> None:
    """A model card has such characters, and Python writes files in the locale's encoding."""
    ascii_locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    file = tmp_path / "README.md"
    program = f"from pathlib import Path; Path({str(file)!r}).write_text({text!r}); print({text!r})"
    for variables, code in ((ascii_locale, 1), ({**ascii_locale, **PYTHON_VARIABLES}, 0)):
        done = subprocess.run(
            [sys.executable, "-c", program], env=variables, capture_output=True, check=False
        )
        assert done.returncode == code, done.stderr
    assert file.read_text(encoding="utf-8") == text


def test_every_start_of_a_trainer_sets_it() -> None:
    plan = planned("stage=sft", "trainer=trl_sft", "gpus=1")
    order = _reaper_order(Execution(()), "id", Channel(Path("/c"), (0,)))
    for variables in (order["set"], preview_environment(plan, Path("/p"), 1, {"PYTHONUTF8": "0"})):
        assert variables["PYTHONUTF8"] == "1" and variables["PYTHONSAFEPATH"] == "1"
