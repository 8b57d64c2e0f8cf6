"""The wheel holds all that a plan needs: installed without a checkout, it plans what the checkout
plans.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from launch import resources

# what would let the installed package find the checkout, or an open-instruct
_LEADING_BACK = ("PYTHONPATH", "OPEN_INSTRUCT_DIR", "LAUNCH_CONFIG_DIR", "VIRTUAL_ENV")
PLAN = ("plan", "stage=sft_25pct", "gpus=8", "--json")

pytestmark = pytest.mark.slow


def clean_environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _LEADING_BACK}


def run(argv: Sequence[str | Path], cwd: Path) -> str:
    done = subprocess.run(
        argv, cwd=cwd, env=clean_environ(), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def processor_seconds() -> float:
    """Return the time that finished subprocesses took of the processor: downloads and other tests
    do not count.
    """
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without the network: hatchling is among the development packages."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        ".",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        folder,
    ]
    run([*build, "--no-index", "--disable-pip-version-check", "--quiet"], resources.ROOT)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `launch` of a virtual environment with the wheel, the packages that it requires,
    and nothing else.
    """
    folder = tmp_path_factory.mktemp("installed") / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", folder], folder.parent)
    python = folder / "bin" / "python"
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        wheel,
        "-c",
        resources.ROOT / "constraints.txt",
    ]
    began = processor_seconds()
    run([*install, "--disable-pip-version-check", "--quiet"], folder.parent)
    (folder / "seconds").write_text(str(processor_seconds() - began), encoding="utf-8")
    return folder / "bin" / "launch"


def test_the_wheel_has_the_data_files(wheel: Path) -> None:
    package = resources.ROOT / "launch"
    files = {
        path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    data = {
        path
        for path in files
        if not any(part.startswith(".") for part in path.relative_to(package).parts)
    }
    assert {path.suffix for path in data} >= {".yaml", ".json", ".j2", ".jinja", ".js", ".css"}
    assert {path.relative_to(resources.ROOT).as_posix() for path in data} <= set(
        zipfile.ZipFile(wheel).namelist()
    )


def test_the_wheel_leaves_the_tools_of_the_maintainers_out(wheel: Path) -> None:
    assert (resources.ROOT / "maintain" / "__main__.py").is_file()
    folders = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in folders if not name.endswith(".dist-info")} == {"launch"}


def test_the_installed_package_names_the_place_of_those_tools(
    installed: Path, tmp_path: Path
) -> None:
    assert "python -m maintain" in run([installed, "upstream"], tmp_path)
    done = subprocess.run(
        [installed, "upstream", "bump", "origin/main"],
        cwd=tmp_path,
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2
    assert "in a clone of the project" in done.stderr and "[maintainers_command]" in done.stderr


def test_nothing_that_trains_comes_with_the_package(installed: Path, tmp_path: Path) -> None:
    versions = json.loads(run([installed, "version", "--json"], tmp_path))
    assert versions["packages"].keys() == {"hydra-core"}


def test_the_cures_of_an_installed_package_need_no_clone(installed: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"messages": [{"role": "user", "content": "A?"}, {"role": "assistant", "content": '
        '"B."}]}\n' * 16
    )
    for words, named in (
        (
            ["run", "stage=demo", "trainer=finetune"],
            "git clone https://github.com/allenai/open-instruct",
        ),
        (["run", "stage=demo", "trainer=trl_sft"], ""),
        (
            [
                *("preview", "stage=sft", "trainer=trl_sft", f"data.mix=[{rows}]"),
                "allow=[hub_unreachable]",  # it comes before the trainer is started
            ],
            "No module named 'trl'",
        ),
    ):
        argv = [installed, *words]
        done = subprocess.run(
            argv,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=clean_environ(),
        )
        assert done.returncode == 2
        assert "pip install 'tulu-launch[train" in done.stderr
        assert named in done.stderr
        assert not [
            word
            for word in ("submodule", "constraints.txt", "scripts/", "-e '.")
            if word in done.stderr
        ]


def test_an_installation_without_torch_submits_for_an_interpreter_of_the_nodes(
    installed: Path, tmp_path: Path
) -> None:
    argv = [installed, "submit", "stage=demo", "trainer=trl_sft", "nodes=2"]
    for words, is_refused in (([], True), (["cluster.python=/shared/env/bin/python"], False)):
        done = subprocess.run(
            [*argv, *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=clean_environ(),
        )
        refused = [line for line in done.stderr.splitlines() if "missing_packages" in line]
        assert bool(refused) == is_refused, done.stderr
        assert all("set cluster.python=PATH" in line for line in refused)


def test_an_installation_without_torch_is_small_and_quick(installed: Path) -> None:
    assert float((installed.parent.parent / "seconds").read_text(encoding="utf-8")) < 20
    packages = next(installed.parent.parent.glob("lib/python3*/site-packages"))
    size = sum(file.stat().st_size for file in packages.rglob("*") if file.is_file())
    assert size < 40e6
    assert not [name for name in ("torch", "numpy") if (packages / name).exists()]


def test_the_installed_package_plans_what_the_checkout_plans(
    installed: Path, tmp_path: Path
) -> None:
    plan = json.loads(run([installed, *PLAN], tmp_path))
    assert "by the lock" in plan["upstream"]["description"]
    assert all(Path(file).is_file() and "launch/shipped" in file for file in plan["files"])
    assert plan["flags"]["max_seq_length"]["where"].startswith("configs/tulu/stage/")
    checkout = json.loads(run([sys.executable, "-m", "launch", *PLAN], tmp_path))
    assert (plan["identity"], plan["flags"].keys()) == (
        checkout["identity"],
        checkout["flags"].keys(),
    )


def test_the_installed_package_has_its_templates(installed: Path, tmp_path: Path) -> None:
    tulu = (
        "plan",
        "stage=demo",
        "trainer=trl_sft",
        "gpus=0",
        "recipe.chat_template=tulu",
        "--json",
    )
    plan = json.loads(run([installed, *tulu], tmp_path))
    assert Path(plan["flags"]["chat_template_path"]["value"]).is_file()
    qwen3 = (
        "plan",
        "stage=sft",
        "trainer=trl_sft",
        "gpus=8",
        "recipe.chat_template=qwen3",
        "--json",
    )
    plan = json.loads(run([installed, *qwen3], tmp_path))  # by the lock: there is no TRL
    assert (
        plan["identity"]
        == json.loads(run([sys.executable, "-m", "launch", *qwen3], tmp_path))["identity"]
    )
    assert not list(installed.parent.parent.glob("lib/python3*/site-packages/trl*"))
    run(
        [
            installed,
            "submit",
            "stage=sft_25pct",
            "gpus=8",
            "dry_run=true",
            "tokenize_first=false",
            "name=job",
        ],
        tmp_path,
    )
    [script] = tmp_path.rglob("job.sbatch")
    assert "#SBATCH" in script.read_text(encoding="utf-8")


def test_the_installed_package_lints(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(
        "python open_instruct/finetune.py --learning_rate 1e-5\n", encoding="utf-8"
    )
    run([installed, "lint", "train.sh"], tmp_path)


def test_the_installed_package_lists_flags_and_its_version(installed: Path, tmp_path: Path) -> None:
    assert "learning_rate" in run([installed, "flags", "finetune", "learning_rate"], tmp_path)
    assert run([installed, "--version"], tmp_path).startswith("launch ")


def test_a_launch_py_of_the_user_does_not_replace_the_console_script(
    installed: Path, tmp_path: Path
) -> None:
    (tmp_path / "launch.py").write_text(
        "raise SystemExit('the file of the user')\n", encoding="utf-8"
    )
    assert json.loads(run([installed, *PLAN], tmp_path))["stage"] == "sft_25pct"


@pytest.mark.thorough
def test_the_installed_package_trains_with_the_python_of_another_environment(
    installed: Path, tmp_path: Path
) -> None:
    pytest.importorskip("trl", reason="the `train` dependencies are not installed")
    demo = (
        "run",
        "stage=demo",
        "trainer=trl_sft",
        "recipe.max_steps=2",
        "name=two",
        f"python={sys.executable}",
    )
    assert "done: 2 steps" in run([installed, *demo], tmp_path)
    assert (tmp_path / "runs" / "demo" / "two" / "DONE").exists()
