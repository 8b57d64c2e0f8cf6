""""""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launch.demo import ensure
from launch.demo.ensure import (
    ABANDONED_AFTER,
    DEMO_MARKER,
    BuiltFolder,
    build_once,
    ensure_model,
    ensure_rows,
)
from launch.demo.rewards import is_right
from launch.demo.tasks import make_tasks
from launch.errors import UserError
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
    marker = json.loads((folder / DEMO_MARKER).read_text())
    assert (marker["schema_version"], marker["kind"], marker["key"]) == (1, "chats", "k1")


def test_another_key_replaces_the_whole_folder(tmp_path: Path) -> None:
    folder = tmp_path / "chats"
    build_once(folder, "chats", "k1", build)
    (folder / "left-over").touch()

    def newer(folder: Path) -> dict[str, Any]:
        (folder / "content").write_text("newer\n")
        return {"rows": 2}

    assert build_once(folder, "chats", "k2", newer) == BuiltFolder({"rows": 2}, built=True)
    assert sorted(path.name for path in folder.iterdir()) == ["content", DEMO_MARKER]
    assert (folder / "content").read_text() == "newer\n"
    assert [path.name for path in tmp_path.iterdir()] == ["chats"]


@pytest.mark.parametrize(
    "damage", ["remove", "truncate", "spoil the marker", "same size", "one more", "below"]
)
def test_a_damaged_folder_is_rebuilt(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "chats"
    build_once(folder, "chats", "k1", build)
    if damage == "remove":
        (folder / "content").unlink()
    elif damage == "truncate":
        (folder / "content").write_text("")
    elif damage == "same size":
        (folder / "content").write_text("MADE\n")
    elif damage == "one more":
        (folder / "model.safetensors.index.json").write_text("{}")
    elif damage == "below":
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "rag.jinja").write_text("other")
    else:
        (folder / DEMO_MARKER).write_text('{"kind": "chats"')
    assert build_once(folder, "chats", "k1", build).built
    assert (folder / "content").read_text() == "made\n"
    assert sorted(path.name for path in folder.iterdir()) == ["content", DEMO_MARKER]


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
    assert set(
        json.loads((tmp_path / "preferences" / "train.jsonl").read_bytes().splitlines()[0])
    ) == {
        "chosen",
        "rejected",
    }
    assert ensure_rows(
        tmp_path / "chats", "preferences"
    ).built  # another kind in the same place is replaced


@pytest.mark.slow
def test_model_is_made_once_by_the_interpreter_that_was_named(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the train group is not installed")
    model = ensure_model(tmp_path / "model", sys.executable)
    assert model.built and 300_000 < model.facts["parameters"] < 5_000_000
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


def test_an_interpreter_that_hangs_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ensure, "MODEL_TIMEOUT", 0.2)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    with pytest.raises(UserError) as refused:
        ensure_model(tmp_path / "model", python, trained=True)
    identity, text = problem_of(refused)
    assert (
        identity == "demo_model_failed"
        and f"run it by hand to see where it hangs: {python} " in text
    )


def test_prompts_and_the_verifier_that_scores_their_answers(tmp_path: Path) -> None:
    prompts = ensure_rows(tmp_path / "prompts", "prompts")
    lines = (tmp_path / "prompts" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert prompts.facts["rows"] == len(rows) == len(make_tasks()[0])
    truths = [row["ground_truth"] for row in rows]
    assert is_right(truths, ground_truth=truths) == [1.0] * len(rows)
    rambling = [[{"role": "assistant", "content": f"It is {truth}."}] for truth in truths]
    assert is_right(rambling, ground_truth=truths) == [0.0] * len(rows)
    assert is_right(["[2, 1]\n", "", "[2,1]"], ground_truth=["[2, 1]"] * 3) == [1.0, 0.0, 0.0]
