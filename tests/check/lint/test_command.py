"""The command itself: output, exit codes, `--upstream`, `--trainer`, and running without a
checkout.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launch import __version__
from launch.commands.lint import lint
from launch.errors import UserError
from launch.upstream.pin.lock import load_lock
from tests.check.lint.helpers import check_text
from tests.check.lint.mistakes import DPO, FINETUNE
from tests.messages import values_of
from tests.upstream.checkouts import PROJECT, checkout

GOOD = f"{FINETUNE} --learning_rate 1e-5\n"
BAD = f"# a note\n{FINETUNE} \\\n  --lerning_rate 1e-5 --use_slow_tokenizer\n"
CHECKOUT = checkout()
needs_checkout = pytest.mark.skipif(CHECKOUT is None, reason="needs an open-instruct checkout")


@pytest.fixture(autouse=True)
def no_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Use the lock's schemas on every machine; tests that need a checkout pass `--upstream`."""
    monkeypatch.delenv("OPEN_INSTRUCT_DIR", raising=False)
    monkeypatch.setattr("launch.commands.lint.ROOT", tmp_path / "no project")
    monkeypatch.chdir(tmp_path)


def run_json(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, list[dict[str, Any]]]:
    code = lint([*args, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (report["schema_version"], report["launch"]) == (2, __version__)
    assert report["pin"] == load_lock().pin
    return code, report["verdicts"]


def test_json_has_one_object_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    Path("b.sh").write_text(GOOD + BAD)
    Path("a.sh").write_text(f"{DPO} --beta $X\n")
    code, verdicts = run_json(capsys, "b.sh", "a.sh")
    assert code == 2
    assert [(verdict["file"], verdict["line"], verdict["ok"]) for verdict in verdicts] == [
        ("b.sh", 1, True),
        ("b.sh", 3, False),
        ("a.sh", 1, None),
    ]
    for found in (*verdicts[1]["problems"], *verdicts[1]["warnings"]):
        assert values_of(found.pop("message"))
        found.pop("cure")
    assert verdicts[1] == {
        "file": "b.sh",
        "line": 3,
        "script": "open_instruct/finetune.py",
        "ok": False,
        "problems": [
            {
                "line": 4,
                "id": "unknown_flag",
                "severity": "fail",
                "where": "lerning_rate",
                "allowed": False,
                "numbers": {},
            }
        ],
        "warnings": [
            {
                "line": 4,
                "id": "ignored_flag",
                "severity": "warn",
                "where": "use_slow_tokenizer",
                "allowed": False,
                "numbers": {},
            }
        ],
        "unchecked": ["FlatArguments.__post_init__ (open_instruct/finetune.py:327)"],
    }


def test_plain_output_is_a_compilers(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.sh").write_text(BAD)
    assert lint(["a.sh"]) == 2
    output = capsys.readouterr()
    assert [re.sub(r": [^:]* \[", ": ... [", line) for line in output.out.splitlines()] == [
        "a.sh:3: lerning_rate: ... [unknown_flag]",
        "a.sh:3: warning: use_slow_tokenizer: ... [ignored_flag]",
    ]
    summary, unchecked = output.err.splitlines()
    assert summary.startswith("1 command: 1 refused; ")
    assert unchecked.endswith(": FlatArguments.__post_init__ (open_instruct/finetune.py:327)")


@pytest.mark.parametrize(
    ("text", "code"), [(GOOD, 0), (BAD, 2), (f"{DPO} --beta $X\n", 0), ("echo\n", 0), ("", 0)]
)
def test_exit_code(text: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.sh").write_text(text)
    assert lint(["a.sh"]) == code
    assert lint(["a.sh", "none.sh"]) == 2
    assert re.search(r"none\.sh:1: .*\[cannot_open\]", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (GOOD, 0),
        (f"{DPO} --beta $X\n", 2),
        (f'{GOOD}eval "$X"\n', 2),
        (f"{GOOD}echo 'x\n", 2),
        ("", 0),
    ],
)
def test_strict_refuses_what_is_undecided_or_not_read(text: str, code: int) -> None:
    Path("a.sh").write_text(text)
    assert (lint(["a.sh"]), lint(["--strict", "a.sh"])) == (0, code)


def test_what_is_not_followed_counts_and_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.sh").write_text(f'{GOOD}eval "$X"\n')
    assert lint(["a.sh"]) == 0
    output = capsys.readouterr()
    assert re.search(r"^a\.sh:2: warning: .*\[not_followed\]$", output.out, re.MULTILINE)
    assert output.err.startswith("2 commands: 1 accepted, 1 undecided; ")


@pytest.mark.parametrize(
    ("command", "code", "ok"),
    [
        ((*FINETUNE.split(), "--learning_rate", "1e-5"), 0, True),
        (("accelerate", "launch", "open_instruct/finetune.py", "--lerning_rate", "$X"), 2, False),
        (("bash", "-c", f"{FINETUNE} --lerning_rate 1"), 2, False),
        ((*FINETUNE.split(), "--help"), 0, True),
        (("touch", "made"), 0, None),
    ],
)
def test_a_command_that_the_shell_has_expanded(
    command: tuple[str, ...], code: int, ok: bool | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (lint(["--json", "--", *command]), list(Path().iterdir())) == (code, [])
    (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert (verdict["file"], verdict["line"], verdict["ok"]) == ("command line", 1, ok)
    assert lint(["--strict", "--", *command]) == (0 if ok else 2)


@pytest.mark.parametrize("argv", [[], ["--"], ["a.sh", "--", "python", "x.py"], ["--json"]])
def test_files_and_a_command_exclude_each_other(argv: list[str]) -> None:
    with pytest.raises(UserError, match=r"\[usage\]"):
        lint(argv)


def test_folders_are_searched(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("x/1.sh", "x/y/2.md", "x/y/3.py", "x/z/4.yaml"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path("x/1.sh").write_text(GOOD)
    Path("x/y/2.md").write_text(f"```\n{GOOD}```\n")
    Path("x/y/3.py").write_text(GOOD)
    Path("x/z/4.yaml").write_text(f"run: {GOOD}")
    code, verdicts = run_json(capsys, "x")
    assert (code, [verdict["file"] for verdict in verdicts]) == (
        0,
        ["x/1.sh", "x/y/2.md", "x/z/4.yaml"],
    )


def test_trainer_of_flag_files(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.yaml").write_text("model_name_or_path: m\nseed: 1\nmixer_list: [d, 1.0]\n")
    assert run_json(capsys, "a.yaml")[1][0]["script"] == "open_instruct/dpo_tune_cache.py"
    code, (verdict,) = run_json(capsys, "--trainer", "finetune", "a.yaml")
    assert (code, verdict["script"], verdict["problems"][0]["where"]) == (
        2,
        "open_instruct/finetune.py",
        "mixer_list",
    )
    with pytest.raises(UserError, match=r"'nothing'.*\[unknown_trainer\]"):
        lint(["--trainer", "nothing", "a.yaml"])


SMALL_TRAINER = """
from dataclasses import dataclass
from transformers import HfArgumentParser

@dataclass
class Args:
    brand_new: int = 1

if __name__ == "__main__":
    HfArgumentParser(Args).parse_args_into_dataclasses()
"""


@pytest.mark.parametrize("form", [".", "open_instruct", "scripts", "above"])
def test_upstream_may_be_a_copy_without_git(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    copy = Path("open-instruct")
    (copy / "open_instruct").mkdir(parents=True)
    (copy / "scripts").mkdir()
    (copy / "open_instruct" / "utils.py").touch()
    (copy / "open_instruct" / "finetune.py").write_text(SMALL_TRAINER)
    script = "python open_instruct/finetune.py"
    Path("a.sh").write_text(f"{script} --brand_new 2\n{script} --lerning_rate 1\n")
    code, verdicts = run_json(
        capsys, "--upstream", "." if form == "above" else str(copy / form), "a.sh"
    )
    assert (code, [verdict["ok"] for verdict in verdicts]) == (2, [True, False])


@pytest.mark.parametrize("place", ["none", "empty", "file"])
def test_upstream_that_is_not_a_checkout(place: str) -> None:
    Path("empty").mkdir()
    Path("file").write_text("x")
    Path("a.sh").write_text(GOOD)
    with pytest.raises(UserError) as error:
        lint(["--upstream", place, "a.sh"])
    assert [problem.id for problem in error.value.problems] == ["not_open_instruct"]


def test_the_command_in_its_own_process(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text(BAD)

    def call(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "launch", "lint", *args]
        return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)

    done = call("--json", str(path))
    assert done.returncode == 2
    assert [verdict["ok"] for verdict in json.loads(done.stdout)["verdicts"]] == [False]
    # not this command's own --json
    given = call("--", *FINETUNE.split(), "--lerning_rate", "1", "--json")
    assert (given.returncode, given.stdout.count("[unknown_flag]")) == (2, 2)
    shown = call("--help")
    assert shown.returncode == 0
    assert "examples:" in shown.stdout
    assert call().returncode == 2
    wrong = call("--trainer", "nothing", str(path))
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "'nothing'" in wrong.stderr and "[unknown_trainer]" in wrong.stderr


def test_nothing_heavy_is_imported() -> None:
    program = (
        "import sys, launch.commands.lint; "
        "print({'torch', 'transformers', 'accelerate', 'rich', 'hydra', 'omegaconf'} & "
        "set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_an_unknown_value_of_a_list_has_a_name_in_the_message(tmp_path: Path) -> None:
    line = (
        "python open_instruct/finetune.py --model_name_or_path m --dataset_name x "
        "--dataset_mixer_list $DATA 1.0\n"
    )
    [verdict] = check_text(tmp_path, line)
    assert "[UNKNOWN, '1.0']" in " ".join(diagnostic.message for diagnostic in verdict.problems)


def test_a_folder_that_is_no_checkout_is_named_as_it_was_given(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--upstream=\S+/nowhere: .*\[not_open_instruct\]"):
        lint(["--upstream", str(tmp_path / "nowhere"), str(tmp_path)])
