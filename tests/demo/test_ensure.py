""""""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launch.demo import DEMO_KEY, ensure
from launch.demo.ensure import ABANDONED_AFTER, MARKER, BuiltFolder, build_once, ensure_model, ensure_rows, prompt_rows
from launch.demo.rewards import names_a_module
from launch.errors import UserError
from launch.redact import Redactor
from tests.paths import ROOT


def build(folder: Path) -> dict[str, Any]:
    (folder / "content").write_text("made\n")
    return {"rows": 1}


def refuse(folder: Path) -> dict[str, Any]:
    raise AssertionError(f"{folder} was built again")


def test_built_once_and_then_reused(tmp_path: Path) -> None:
    folder = tmp_path / "below" / "chats"
    assert build_once(folder, "chats", "k1", build) == BuiltFolder({"rows": 1}, built=True)
    assert build_once(folder, "chats", "k1", refuse) == BuiltFolder({"rows": 1}, built=False)
    assert [path.name for path in folder.parent.iterdir()] == ["chats"]
    marker = json.loads((folder / MARKER).read_text())
    assert (marker["schema_version"], marker["kind"], marker["key"]) == (1, "chats", "k1")


def test_another_key_replaces_the_whole_folder(tmp_path: Path) -> None:
    folder = tmp_path / "chats"
    build_once(folder, "chats", "k1", build)
    (folder / "left-over").touch()

    def newer(folder: Path) -> dict[str, Any]:
        (folder / "content").write_text("newer\n")
        return {"rows": 2}

    assert build_once(folder, "chats", "k2", newer) == BuiltFolder({"rows": 2}, built=True)
    assert sorted(path.name for path in folder.iterdir()) == ["content", MARKER]
    assert (folder / "content").read_text() == "newer\n"
    assert [path.name for path in tmp_path.iterdir()] == ["chats"]


@pytest.mark.parametrize("damage", ["remove", "truncate", "spoil the marker"])
def test_a_damaged_folder_is_rebuilt(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "chats"
    build_once(folder, "chats", "k1", build)
    if damage == "remove":
        (folder / "content").unlink()
    elif damage == "truncate":
        (folder / "content").write_text("")
    else:
        (folder / MARKER).write_text('{"kind": "chats"')
    assert build_once(folder, "chats", "k1", build).built
    assert (folder / "content").read_text() == "made\n"


def test_a_foreign_folder_is_never_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter-1").write_text("years of work")
    with pytest.raises(UserError) as refused:
        build_once(folder, "chats", "k1", refuse)
    assert [problem.id for problem in refused.value.problems] == ["demo_folder_taken"]
    with pytest.raises(UserError):
        build_once(folder / "chapter-1", "chats", "k1", refuse)
    assert (folder / "chapter-1").read_text() == "years of work"


def test_a_place_that_no_folder_can_take_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "demo").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OSError):
        build_once(tmp_path / "demo", "chats", "1", lambda folder: {})
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> dict[str, Any]:
        (folder / "half").touch()
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError):
        build_once(tmp_path / "chats", "chats", "k1", fail)
    assert list(tmp_path.iterdir()) == []


# A builder that reports on stdout that it is half way, then waits for a line on stdin.
SLOW = """
import sys
from pathlib import Path
from launch.demo.ensure import build_once

def build(folder):
    (folder / "content").write_text("made\\n")
    print("half way", flush=True)
    sys.stdin.readline()
    return {"rows": 1}

print(build_once(Path(sys.argv[1]), "chats", "k1", build).built, flush=True)
"""


def start_slow(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "half way\n"
    return process


def test_killed_half_way_nothing_looks_finished(tmp_path: Path) -> None:
    folder = tmp_path / "chats"
    process = start_slow(folder)
    process.kill()
    process.communicate()
    assert not folder.exists()
    [leftover] = tmp_path.iterdir()
    assert build_once(folder, "chats", "k1", build).built
    assert leftover.exists()  # another builder may still be using it
    long_ago = time.time() - ABANDONED_AFTER - 60
    os.utime(leftover, (long_ago, long_ago))
    build_once(folder, "chats", "k2", build)
    assert [path.name for path in tmp_path.iterdir()] == ["chats"]


def test_two_builders_at_once_the_second_keeps_the_firsts(tmp_path: Path) -> None:
    folder = tmp_path / "chats"
    builders = [start_slow(folder), start_slow(folder)]
    outputs = []
    for builder in builders:
        out, _ = builder.communicate("go on\n", timeout=60)
        outputs.append(out.strip())
        assert builder.returncode == 0
    assert outputs == ["True", "False"]
    assert [path.name for path in tmp_path.iterdir()] == ["chats"]
    assert build_once(folder, "chats", "k1", refuse).facts == {"rows": 1}


def test_two_builders_at_once_replace_a_stale_folder(tmp_path: Path) -> None:
    folder = tmp_path / "chats"
    build_once(folder, "chats", "k0", build)
    builders = [start_slow(folder), start_slow(folder)]
    for builder in builders:
        assert builder.stdin is not None
        builder.stdin.write("go on\n")
        builder.stdin.flush()
    outputs = sorted(builder.communicate(timeout=60)[0].strip() for builder in builders)
    assert outputs in (["False", "True"], ["True", "True"])  # both, where each met the stale one
    assert build_once(folder, "chats", "k1", refuse).facts == {"rows": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["chats"]


FOLDER = Path(ensure.__file__).parent


def bare_python(folder: Path) -> Path:
    """An interpreter with nothing but the standard library."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def problem_of(error: pytest.ExceptionInfo[UserError]) -> tuple[str, str]:
    [problem] = error.value.problems
    return problem.id, str(problem)


def test_chats_then_preferences(tmp_path: Path) -> None:
    chats = ensure_rows(tmp_path / "chats", "chats")
    content = (tmp_path / "chats" / "train.jsonl").read_bytes()
    lines = content.splitlines()
    assert chats.built and chats.facts["rows"] == len(lines) > 2000
    assert set(json.loads(lines[0])) == {"messages"}
    assert ensure_rows(tmp_path / "chats", "chats") == BuiltFolder(chats.facts, built=False)

    pairs = ensure_rows(tmp_path / "preferences", "preferences")
    assert pairs.built and pairs.facts["rows"] < chats.facts["rows"]
    assert set(json.loads((tmp_path / "preferences" / "train.jsonl").read_bytes().splitlines()[0])) == {
        "chosen",
        "rejected",
    }
    assert ensure_rows(tmp_path / "chats", "preferences").built  # another kind in the same place is replaced


def test_model_is_made_once_by_the_interpreter_that_was_named(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the train group is not installed")
    model = ensure_model(tmp_path / "model", sys.executable)
    assert model.built and 500_000 < model.facts["parameters"] < 5_000_000
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in (tmp_path / "model").iterdir()
    }
    bare = tmp_path / "never-started"
    again = ensure_model(tmp_path / "model", bare)
    assert (again.built, again.facts) == (False, model.facts)


def test_an_interpreter_without_torch_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    python = bare_python(tmp_path / "venv")
    with pytest.raises(UserError) as refused:
        ensure_model(tmp_path / "demo" / "model", python)
    identity, text = problem_of(refused)
    assert identity == "demo_packages_missing"
    assert "no package 'torch'" in text and str(python) in text
    assert list((tmp_path / "demo").iterdir()) == []


def test_an_interpreter_that_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        ensure_model(tmp_path / "model", tmp_path / "no-python")
    assert problem_of(refused)[0] == "demo_python_not_started"


def test_an_interpreter_that_fails_is_quoted(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho libgomp.so.1: cannot open shared object file >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(UserError) as refused:
        ensure_model(tmp_path / "model", python)
    identity, text = problem_of(refused)
    assert identity == "demo_model_failed"
    assert "libgomp.so.1: cannot open shared object file" in text


def test_an_interpreter_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensure, "MODEL_TIMEOUT", 0.2)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    with pytest.raises(UserError) as refused:
        ensure_model(tmp_path / "model", python, trained=True)
    identity, text = problem_of(refused)
    assert identity == "demo_model_failed" and f"run it by hand to see where it hangs: {python} " in text


def test_prompts_are_held_out_and_rewarded_for_a_module(tmp_path: Path) -> None:
    prompts = ensure_rows(tmp_path / "prompts", "prompts")
    trained, held_out = (
        {row["prompt"][0]["content"]: row["ground_truth"] for row in map(json.loads, rows)} for rows in prompt_rows()
    )
    written = (tmp_path / "prompts" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    assert written == prompt_rows()[0] and prompts.facts["rows"] == len(trained)
    assert trained.keys().isdisjoint(held_out) and len(held_out) == -(-(len(trained) + len(held_out)) // 10)
    assert all(f"`{module}" in question for question, module in trained.items())
    answers = ["It is in json.", [{"role": "assistant", "content": "Copy the code."}], "It is in copy."]
    assert names_a_module(answers, ground_truth=["os", "copy", "copy"]) == [1.0, 0.0, 1.0]


def rows(name: str) -> list[dict[str, list[dict[str, str]]]]:
    content = gzip.decompress((FOLDER / f"{name}.jsonl.gz").read_bytes())
    assert content.isascii()  # docstrings have characters like U+2028, at which some readers would split a row
    return [json.loads(line) for line in content.splitlines()]


def test_the_shipped_chats() -> None:
    chats = rows("chats")
    assert len(chats) == 3949
    for row in chats:
        user, assistant = row["messages"]
        assert (user["role"], assistant["role"]) == ("user", "assistant") and user["content"].count("`") == 2
        assert 0 < len(assistant["content"]) <= 600 and assistant["content"] == assistant["content"].strip()
    assert len({row["messages"][0]["content"] for row in chats}) == len(chats)
    redactor = Redactor({})
    assert [text for row in chats if redactor.redact_text(text := row["messages"][1]["content"]) != text] == []


def test_the_shipped_preferences_differ_in_the_answer_only() -> None:
    pairs = rows("preferences")
    assert len(pairs) == 1600
    shuffled = 0
    for row in pairs:
        assert row["chosen"][0] == row["rejected"][0]
        right, wrong = row["chosen"][1], row["rejected"][1]
        assert right["role"] == wrong["role"] == "assistant" and right["content"] != wrong["content"]
        assert max(len(right["content"]), len(wrong["content"])) <= 300
        shuffled += sorted(right["content"].split()) == sorted(wrong["content"].split())
    assert 0.7 < shuffled / len(pairs) < 0.8


def test_the_key_stands_for_what_the_demo_is_made_of() -> None:
    made_of = ("chats.jsonl.gz", "preferences.jsonl.gz", "make_model.py", "../templates/tulu.jinja")
    digest = hashlib.sha256(b"\0".join((FOLDER / name).read_bytes() for name in made_of)).hexdigest()[:16]
    assert (DEMO_KEY, digest) == ("66e0fbafc38932e4", "66e0fbafc38932e4"), "a change needs another key and digest"
