"""The entry point with real processes: what the trainer sees, how it ends, and what comes through
the FIFOs.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.worker import ranks

WORKER = ranks.ENTRY.parent
SEES = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv, "path": sys.path[:2], "name": __name__, "file": __file__, "spec": __spec__ and __spec__.name,
}))
"""


def script(folder: Path, code: str, name: str = "trainer_script.py") -> Path:
    path = folder / "scripts" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(code, encoding="utf-8")
    return path


def seen(command: list[str], folder: Path, **environment: str) -> dict[str, object]:
    """What SEES printed when run by `command` in `folder`."""
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    run = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return dict(json.loads(run.stdout))


@pytest.mark.parametrize("safe", ["", "1"])
def test_a_script_sees_what_python_would_show_it(tmp_path: Path, safe: str) -> None:
    path = script(tmp_path, SEES)
    for form in (str(path), os.path.relpath(path, tmp_path)):
        plain = seen([form, "--a", "1", "--", "b"], tmp_path, PYTHONSAFEPATH=safe)
        worker = seen(
            [str(ranks.ENTRY), "--script", form, "--", "--a", "1", "--", "b"],
            tmp_path,
            PYTHONSAFEPATH=safe,
        )
        plain["argv"] = [str(path), *plain["argv"][1:]]  # type: ignore[index]  # always absolute under the worker
        assert worker == plain


@pytest.mark.parametrize(
    ("visible", "ranks_in_all", "expected"),
    [
        (None, None, "0"),
        ("2,3", None, "2"),
        ("MIG-a,MIG-b", "1", "MIG-a"),
        ("2,3", "2", "2,3"),
        ("", None, ""),
    ],
)
def test_a_rank_that_is_alone_sees_one_gpu(
    tmp_path: Path, visible: str | None, ranks_in_all: str | None, expected: str
) -> None:
    """Of two visible ones TRL would use both, whatever the plan counts: device_map="auto"."""
    path = script(tmp_path, "import json, os; print(json.dumps(dict(os.environ)))")
    given = {"CUDA_VISIBLE_DEVICES": visible, "WORLD_SIZE": ranks_in_all}
    environment = {name: value for name, value in given.items() if value is not None}
    worker = seen([str(ranks.ENTRY), "--script", str(path), "--"], tmp_path, **environment)
    assert worker["CUDA_VISIBLE_DEVICES"] == expected


def test_no_module_of_the_worker_shadows_one_of_the_trainer(tmp_path: Path) -> None:
    names = sorted(path.stem for path in WORKER.glob("*.py") if path.stem != "__init__")
    for name in names:
        script(tmp_path, f"mine = {name!r}", f"{name}.py")
    script(tmp_path, "mine = 'patches'", "patches.py")
    code = "\n".join(
        f"import {name}; assert {name}.mine == {name!r}" for name in [*names, "patches"]
    )
    run = ranks.run(["--script", script(tmp_path, code)], tmp_path)
    assert run.code == 0, run.describe()


def test_the_worker_parses_as_python_3_10_and_needs_only_the_standard_library() -> None:
    for path in WORKER.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))
        for node in tree.body:
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [str(node.module)]
            else:
                continue
            for name in names:
                assert name.partition(".")[0] in sys.stdlib_module_names, (
                    f"{path.name} imports {name} at load"
                )


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("sys.exit()", 0),
        ("sys.exit(0)", 0),
        ("sys.exit(3)", 3),
        ("sys.exit('stopped because')", 1),
        ("pass", 0),
    ],
)
def test_exit_codes_are_the_trainers_own(tmp_path: Path, ending: str, code: int) -> None:
    run = ranks.run(["--script", script(tmp_path, f"import sys\n{ending}")], tmp_path)
    assert run.code == code
    errors = run.of_kind("error")
    assert len(errors) == (1 if code else 0)
    if code == 3:
        assert errors[0]["message"] == "the trainer exited: 3"
        assert errors[0]["type"] == "SystemExit"
    if code == 1:
        assert errors[0]["message"] == "the trainer exited: stopped because"
        assert "stopped because" in run.output[0]


def test_an_exception_is_told_and_its_traceback_printed(tmp_path: Path) -> None:
    path = script(tmp_path, "def deep():\n    raise KeyError('no such thing')\n\ndeep()\n")
    run = ranks.run(["--script", path], tmp_path)
    assert run.code == 1
    [error] = run.of_kind("error")
    assert error["schema_version"] == 1
    assert error["rank"] == 0
    assert error["type"] == "KeyError"
    assert error["message"] == "'no such thing'"
    assert error["lines"][:2] == [f"{path}:2 in deep", f"{path}:4 in <module>"]
    assert "Traceback (most recent call last)" in run.output[0]
    assert run.output[0].rstrip().endswith("KeyError: 'no such thing'")


def test_children_find_the_functions_of_the_script(tmp_path: Path) -> None:
    code = """
import multiprocessing, sys

def double(number):
    return 2 * number

if __name__ == "__main__":
    for start in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(start).Pool(1) as pool:
            print(start, pool.map(double, [1, 2]))
"""
    run = ranks.run(["--script", script(tmp_path, code)], tmp_path)
    assert run.code == 0, run.describe()
    assert run.output[0].splitlines() == ["fork [2, 4]", "spawn [2, 4]", "forkserver [2, 4]"]


def test_everything_a_rank_prints_goes_through_its_own_fifo(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys\n"
        "print('printed \\u2705')\n"
        "os.write(1, b'written\\n')\n"
        "subprocess.run(['sh', '-c', 'echo from a child; echo on stderr >&2'])\n"
        "print('last', end='')\n"
    )
    # An encoding that has no emoji: upstream prints some, and must not die of them.
    environment = {"RANK": "1", "PYTHONIOENCODING": "ascii"}
    run = ranks.run(
        ["--script", script(tmp_path, code)], tmp_path, ranks=2, environment=environment
    )
    assert run.code == 0, run.describe()
    assert run.printed == ""
    assert run.output == ("", "printed \u2705\nwritten\nfrom a child\non stderr\nlast")
    assert run.events[0] == ()
    assert [(event["kind"], event["rank"]) for event in run.events[1]] == [("phase", 1)]


@pytest.mark.parametrize("channel", [None, "nowhere"])
def test_without_a_supervisor_output_stays_where_it_was(
    tmp_path: Path, channel: str | None
) -> None:
    environment = {
        key: value for key, value in os.environ.items() if key not in ("LAUNCH_CHANNEL", "RANK")
    }
    if channel:
        (tmp_path / channel).mkdir()
        os.mkfifo(tmp_path / channel / "rank-0.out")  # made, but nobody reads it
        environment["LAUNCH_CHANNEL"] = str(tmp_path / channel)
    command = [sys.executable, str(ranks.ENTRY), "--script", str(script(tmp_path, "print('here')"))]
    run = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout == "here\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "one of the arguments --script --entry is required"),
        (["--script", "a", "--entry", "trl.scripts.sft"], "not allowed with"),
        (["--patch", "no_such", "--script", "a"], "unknown patch 'no_such'; known are "),
        (["--patch", "lengths", "--script", "a"], "patch lengths takes a value: lengths=VALUE"),
        (["--entry", "trl.scripts.rlhf"], "invalid choice: 'trl.scripts.rlhf'"),
        (
            ["--option", "subset", "--entry", "trl.scripts.sft"],
            "option subset takes a value: subset=VALUE",
        ),
        (
            ["--option", "subst=1", "--entry", "trl.scripts.sft"],
            "unknown option 'subst'; known are adapter_init, chat_template, ",
        ),
        (
            ["--option", "continue_adapter=1", "--entry", "trl.scripts.dpo"],
            "option continue_adapter takes no value",
        ),
        (["--option", "subset=1", "--script", "a"], "--option belongs to --entry"),
        (["--patch", "dpo_steps=1", "--script", "a"], "patch dpo_steps takes no value"),
        (["--expect", "world=2", "--script", "a"], "unknown expectation 'world'"),
        (
            ["--expect", "zero_stage", "--script", "a"],
            "expectation zero_stage takes a value: zero_stage=VALUE",
        ),
        (["--scrip", "a", "--script", "b"], "unrecognized arguments: --scrip a"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_2(
    tmp_path: Path, arguments: list[str], says: str
) -> None:
    run = ranks.run(arguments, tmp_path)
    assert run.code == 2
    assert says in run.output[0]
    assert "Traceback" not in run.output[0]


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux can tie a process to its parent"
)
def test_a_rank_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    waits = script(
        tmp_path, "import os, sys, time\nprint(os.getpid(), flush=True)\ntime.sleep(120)\n"
    )
    starts = script(
        tmp_path,
        "import subprocess, sys\nsubprocess.run([sys.executable, *sys.argv[1:]])\n",
        "launcher.py",
    )
    environment = {key: value for key, value in os.environ.items() if key != "LAUNCH_CHANNEL"}
    command = [sys.executable, str(starts), str(ranks.ENTRY), "--script", str(waits)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as launcher:
        assert launcher.stdout is not None
        rank = int(launcher.stdout.readline())
        launcher.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while _alive(rank) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(rank)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # in a container nobody may reap it
