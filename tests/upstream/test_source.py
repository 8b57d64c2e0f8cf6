"""Finding open-instruct, reading its commit without git, and verifying it by content."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.upstream.pin import checkout as source
from launch.upstream.pin.checkout import blob_id
from launch.upstream.pin.lock import load_lock
from tests.paths import ROOT

PROJECT = ROOT


@pytest.fixture
def pinned() -> Path:
    named = os.environ.get("OPEN_INSTRUCT_DIR")
    root = Path(named) if named else PROJECT / source.SUBMODULE
    if not source.is_checkout(root):
        pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR or fetch the submodule")
    return root


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The smallest folder that counts as a checkout, without git data."""
    root = tmp_path / "oi"
    (root / "open_instruct").mkdir(parents=True)
    for name in ("utils.py", "finetune.py"):
        (root / "open_instruct" / name).write_text("x = 1\n")
    return root


def git(*args: str, cwd: Path) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    command = ["git", *identity, "-c", "protocol.file.allow=always", *args]
    return subprocess.run(
        command, cwd=cwd, env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit_all(root: Path) -> str:
    git("init", "-q", "-b", "main", cwd=root)
    git("add", "-A", cwd=root)
    git("commit", "-q", "-m", "first", cwd=root)
    return git("rev-parse", "HEAD", cwd=root)


def test_the_gitlink_equals_the_locked_pin() -> None:
    if not (PROJECT / ".git").exists():
        pytest.skip("this copy of the project has no .git")
    mode, kind, commit, path = git("ls-tree", "HEAD", source.SUBMODULE, cwd=PROJECT).split()
    assert (mode, kind, path) == ("160000", "commit", source.SUBMODULE)
    assert commit == load_lock().pin


def test_order_explicit_then_variable_then_submodule(tree: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(tree, project / source.SUBMODULE)
    other = shutil.copytree(tree, tmp_path / "other")
    environ = {source.DIR_VARIABLE: str(other)}
    for explicit, env, expected in (
        (str(tree), environ, (tree, "upstream.dir")),
        (None, environ, (other, "OPEN_INSTRUCT_DIR")),
        (None, {}, (project / source.SUBMODULE, "external/open-instruct")),
        ("", {source.DIR_VARIABLE: ""}, (project / source.SUBMODULE, "external/open-instruct")),
    ):
        checkout = source.find_checkout(explicit, env, project)
        assert checkout is not None
        assert (checkout.root, checkout.found_by) == expected


def test_an_empty_submodule_folder_is_not_a_checkout(tmp_path: Path) -> None:
    (tmp_path / source.SUBMODULE).mkdir(parents=True)
    assert source.find_checkout(None, {}, tmp_path) is None
    assert "git submodule update --init external/open-instruct" in str(
        source.missing_checkout_problem()
    )


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_folder_that_is_not_a_checkout_is_refused(tmp_path: Path, by_variable: bool) -> None:
    file = tmp_path / "file"
    file.write_text("")
    empty = tmp_path / "empty"
    empty.mkdir()
    for folder, fragment in (
        (tmp_path / "none", "does not exist"),
        (file, "not a folder"),
        (empty, "not an open-inst"),
    ):
        with pytest.raises(UserError) as refusal:
            if by_variable:
                source.find_checkout(None, {source.DIR_VARIABLE: str(folder)}, tmp_path)
            else:
                source.find_checkout(str(folder), {}, tmp_path)
        (problem,) = refusal.value.problems
        assert problem.id == "not_open_instruct"
        assert fragment in problem.message
        assert str(folder) in problem.message
        assert (problem.where or "").startswith(
            "$OPEN_INSTRUCT_DIR" if by_variable else "upstream.dir="
        )


def test_commit_of_an_ordinary_clone_branch_detached_and_packed(tree: Path) -> None:
    commit = commit_all(tree)
    assert source.read_commit(tree) == commit
    git("pack-refs", "--all", cwd=tree)
    assert not (tree / ".git/refs/heads/main").exists()
    assert source.read_commit(tree) == commit
    git("checkout", "-q", "--detach", cwd=tree)
    assert source.read_commit(tree) == commit


def test_commit_of_a_submodule_and_of_a_worktree(tree: Path, tmp_path: Path) -> None:
    commit = commit_all(tree)
    outer = tmp_path / "outer"
    outer.mkdir()
    git("init", "-q", cwd=outer)
    git("submodule", "add", "-q", str(tree), source.SUBMODULE, cwd=outer)
    assert (outer / source.SUBMODULE / ".git").is_file()
    assert source.read_commit(outer / source.SUBMODULE) == commit
    git("worktree", "add", "-q", "-b", "side", str(tmp_path / "side"), cwd=tree)
    assert source.read_commit(tmp_path / "side") == commit


@pytest.mark.parametrize("head", ["", "ref: refs/heads/none", "ref: HEAD", "not a commit", "ref:"])
def test_unreadable_git_data_is_unknown(tree: Path, head: str) -> None:
    assert source.read_commit(tree) is None
    (tree / ".git").mkdir()
    (tree / ".git/HEAD").write_text(head)
    assert source.read_commit(tree) is None


def test_the_outer_project_is_not_mistaken_for_the_checkout(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "readme").write_text("")
    commit_all(tmp_path)
    assert source.read_commit(tree) is None


def test_blob_ids_are_gits(tree: Path) -> None:
    (tree / "odd").write_bytes(b"\0\xff\n")
    assert blob_id(b"\0\xff\n") == git("hash-object", "odd", cwd=tree)


def test_windows_line_ends_are_the_same_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\r\ntwo\r\n")
    assert source.differing_files(tmp_path, {"a": blob_id(b"one\ntwo\n")}) == ()
    assert source.differing_files(tmp_path, {"a": blob_id(b"one\n"), "b": "0" * 40}) == ("a", "b")


def copy_of_locked_files(pinned: Path, target: Path) -> Path:
    for name in ("open_instruct/utils.py", *load_lock().files):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(pinned / name, target / name)
    return target


def test_the_pin_without_git_is_verified_by_content(pinned: Path, tmp_path: Path) -> None:
    root = copy_of_locked_files(pinned, tmp_path / "copy")
    checkout = source.find_checkout(str(root), {}, tmp_path)
    assert checkout is not None
    assert checkout.commit is None
    assert checkout.matches_pin
    assert "verified by its content" in checkout.describe()
    (root / "open_instruct/finetune.py").write_text("# edited\n")
    (root / "open_instruct/dpo_utils.py").unlink()
    edited = source.find_checkout(str(root), {}, tmp_path)
    assert edited is not None
    assert not edited.matches_pin
    assert set(edited.differing) == {"open_instruct/finetune.py", "open_instruct/dpo_utils.py"}
    assert "finetune.py" in edited.describe()


def test_another_commit_is_reported(pinned: Path, tmp_path: Path) -> None:
    root = copy_of_locked_files(pinned, tmp_path / "copy")
    commit = commit_all(root)
    checkout = source.find_checkout(str(root), {}, tmp_path)
    assert checkout is not None
    assert checkout.differing == ()
    assert not checkout.matches_pin
    assert commit[:9] in checkout.describe()
    assert load_lock().pin[:9] in checkout.describe()


def test_inspecting_is_fast(pinned: Path) -> None:
    def seconds() -> float:
        start = time.process_time()
        source.find_checkout(str(pinned), {}, pinned)
        return time.process_time() - start

    assert min(seconds() for _ in range(5)) < 0.02
