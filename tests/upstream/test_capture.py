"""Capture: a script's own parser is kept, whatever the script does besides, and nothing of it is
left.
"""

from __future__ import annotations

import os
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.host.interpreter import package_folders
from launch.upstream.capture import start
from launch.upstream.capture.process import isolated_environment, run_isolated
from launch.upstream.capture.start import capture_schema
from launch.upstream.pin.lock import load_lock, locked_schema
from launch.upstream.rules.argv import check_argv
from launch.upstream.schema import schema_from_json, schema_to_json
from maintain.commit import extracted
from tests.integration import warm
from tests.upstream.captured import SCRIPT, capture_script, write_files
from tests.upstream.checkouts import has_commit


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(start, "_cache_folder", lambda: folder)
    return folder


@pytest.mark.slow
def test_the_trainer_of_the_pin_has_the_locked_flags(upstream: Path) -> None:
    pin = load_lock().pin
    if not has_commit(upstream, pin):
        pytest.skip("the checkout lacks the pinned commit")
    with extracted(upstream, pin) as root:
        python = warm.python_with_cold_ranks()
        captured = capture_schema("open_instruct/finetune.py", root, python)
    locked = locked_schema("finetune")
    assert captured.fields == locked.fields
    assert captured.post_init == locked.post_init
    assert captured.files.items() <= load_lock().files.items()
    assert captured.names.items() <= load_lock().names.items()
    assert schema_from_json(schema_to_json(captured)) == captured


def test_what_a_script_does_before_its_parser(tmp_path: Path) -> None:
    """It prints, forks, starts a process that stays, deletes its own working folder and reads the
    environment.
    """
    preamble = """
    import os, pathlib, shutil, subprocess, sys
    from transformers import HfArgumentParser
    print('{"error": "not the result"}', flush=True)
    if os.fork() == 0:
        sys.exit("in the fork")
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    bare = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={})
    pids = f"{sleeper.pid},{bare.pid}"
    pathlib.Path(__file__).with_name("notes").write_text(f"{pids} {os.getcwd()} {os.environ.get('HF_TOKEN')}")
    shutil.rmtree(os.getcwd())
    """
    os.environ["HF_TOKEN"] = "hf_secret"
    try:
        schema = capture_script(tmp_path, textwrap.dedent(preamble) + textwrap.dedent(SCRIPT))
    finally:
        del os.environ["HF_TOKEN"]
    assert list(schema.fields) == ["x"]
    pids, folder, token = (tmp_path / "notes").read_text().split()
    assert token == "None"
    assert not Path(folder).exists()
    deadline = time.monotonic() + 10
    while any(map(_is_running, map(int, pids.split(",")))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_is_running, map(int, pids.split(",")))), "what the script started has ended"


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it ended before it parsed its arguments"),
        (
            "import argparse\nargparse.ArgumentParser().parse_args([])\n",
            "it ended before it parsed its arguments",
        ),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        ("import os\nos._exit(7)\n", "exit code 7"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "exit code -9"),
        ("x = (1,\ny = 2\n", "SyntaxError"),
        (
            (
                "import transformers\nif transformers.__version__ < '99': raise "
                "ImportError('transformers 99 is needed')"
            ),
            "ImportError: transformers 99 is needed",
        ),
        (
            "from transformers import HfArgumentParser99\n",
            "ImportError: cannot import name 'HfArgumentParser99'",
        ),
        ("import time\ntime.sleep(600)\n", "it did not end within 3 s"),
        (
            SCRIPT.replace("x: int = 1", "pair: int | float = 1"),
            "ValueError: Only `Union[X, NoneType]`",
        ),
    ],
)
def test_a_script_that_does_not_reach_its_parser_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    if "sleep" in text:
        monkeypatch.setattr(start, "_SECONDS", 3.0)
    with pytest.raises(UserError) as refusal:
        capture_script(tmp_path, text)
    (problem,) = refusal.value.problems
    assert problem.id == "trainer_unreadable"
    assert "the flags of train.py are unknown" in problem.message
    assert reason in problem.message
    assert problem.cure


def test_a_script_that_is_missing_and_an_interpreter_that_is(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="trainer_script_missing"):
        capture_schema("train.py", tmp_path, sys.executable)
    write_files(tmp_path, {"train.py": SCRIPT})
    with pytest.raises(UserError, match="can't be started"):
        capture_schema("train.py", tmp_path, str(tmp_path / "no-python"))


def test_a_package_that_is_missing_has_a_stand_in(tmp_path: Path) -> None:
    preamble = """
    import no_such_package.config as config
    from no_such_package import Mode, retry
    config.Settings.__dataclass_fields__["size"].type = int

    @retry.on_exception(retry.expo, max_tries=3)
    def decorated(): return 5

    class Derived(config.Base): pass
    assert decorated() == 5
    """
    text = textwrap.dedent(preamble) + textwrap.dedent(SCRIPT).replace(
        "x: int = 1", "x: int = 1\n    mode: Mode = None"
    )
    schema = capture_script(tmp_path, text)
    assert [name for name, version in schema.packages.items() if not version] == ["no_such_package"]
    assert schema.fields["x"].kind == "int"
    assert "Mode is of a package that is not installed" in schema.fields["mode"].unknown["type"]
    assert check_argv(schema, ["--mode", "a"]).ok is None


def test_options_added_with_add_argument_make_unknown_flags_undecided(tmp_path: Path) -> None:
    added = "parser = HfArgumentParser(Args)\n        parser.add_argument('--more')\n        parser"
    schema = capture_script(tmp_path, SCRIPT.replace("HfArgumentParser(Args)", added))
    assert check_argv(schema, ["--more", "1"]).ok is None
    assert check_argv(schema, ["--x", "a"]).ok is False


def test_the_cache_holds_for_the_content(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Used for the same files, in another folder too; not for an edited one, nor when it is
    damaged.
    """
    imports = (
        "from helper import DEFAULT\n    import setuptools, jaraco.context\n    from dataclasses"
    )
    script = SCRIPT.replace("= 1", "= DEFAULT").replace("from dataclasses", imports)
    helper = {"helper.py": "DEFAULT = 1\n", "train.py": script}
    one, other = write_files(tmp_path / "one", helper), write_files(tmp_path / "other", helper)

    def captures(root: Path) -> tuple[int, int]:
        schema = capture_schema("train.py", root, sys.executable)
        return schema.fields["x"].default, capsys.readouterr().err.count("once for this content")

    assert captures(one) == (1, 1)
    assert captures(one) == (1, 0)
    assert captures(other) == (1, 0)
    monkeypatch.chdir(other)
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    assert captures(one) == (1, 0), "wherever the launcher is started"
    (one / "helper.py").write_text("DEFAULT = 2\n")
    assert captures(one) == (2, 1)
    assert captures(other) == (1, 0)
    newer = Path("/venv/lib/python3.99/site-packages")
    with monkeypatch.context() as patch:
        patch.setattr(start, "package_folders", lambda python: [*package_folders(python), newer])
        assert captures(other) == (1, 1), "another version of the interpreter at the same path"
    for damaged in (
        lambda text: text[:200],
        lambda text: '{"files": 1}',
        lambda text: '{"files": {}, "packages": 1}',
    ):
        for file in cache.iterdir():
            file.write_text(damaged(file.read_text()))
        assert captures(one) == (2, 1)
        assert captures(one) == (2, 0)


def test_a_cache_that_cannot_be_written_and_two_captures_at_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path, {"train.py": SCRIPT})
    results: list[int] = []

    def capture() -> None:
        results.append(capture_schema("train.py", tmp_path, sys.executable).fields["x"].default)

    threads = [threading.Thread(target=capture) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [1, 1]
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(start, "_cache_folder", lambda: Path("/proc/no/cache"))
    capture()
    assert results == [1, 1, 1]


def test_the_environment_has_no_token_no_network_and_no_gpu(tmp_path: Path) -> None:
    given = {
        "PATH": "/bin",
        "HF_TOKEN": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "https_proxy": "http://real",
        "HOME": "/me",
    }
    environment = isolated_environment(given, tmp_path)
    assert not {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY"} & environment.keys()
    assert environment["https_proxy"] == environment["HTTPS_PROXY"] == "http://127.0.0.1:9"
    assert (environment["PATH"], environment["HOME"]) == ("/bin", str(tmp_path))
    assert (environment["CUDA_VISIBLE_DEVICES"], environment["HF_HUB_OFFLINE"]) == ("", "1")


@pytest.mark.parametrize(
    ("program", "result"),
    [
        # as on a busy machine: a fifth of the time on the processor, and longer than the limit
        (
            (
                "import json, sys, time\n"
                "end = time.monotonic() + 6\n"
                "while time.monotonic() < end:\n"
                "    part = time.process_time() + 0.3\n"
                "    while time.process_time() < part: pass\n"
                "    time.sleep(1.2)\n"
                "open(sys.argv[1], 'w').write(json.dumps({'ended': True}))\n"
            ),
            {"ended": True},
        ),
        ("while True: pass\n", {"error": "it did not end within 2 s", "timed_out": True}),
    ],
)
def test_the_limit_counts_the_processor(
    program: str, result: dict[str, object], tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(program)
    assert run_isolated(sys.executable, str(script), [], 2.0, "a request") == result
