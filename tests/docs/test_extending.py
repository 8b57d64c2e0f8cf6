"""docs/how-to/extending.md: its examples are carried out in a copy of the tree, and each has effect
there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.upstream.checkouts import checkout

PAGE = (ROOT / "docs" / "how-to" / "extending.md").read_text(encoding="utf-8")


def paths_of(title: str) -> list[str]:
    """Return the files of a block: `{a,b}.yaml` stands for two."""
    before, _, rest = title.partition("{")
    names, _, after = rest.partition("}")
    return [f"{before}{name}{after}" for name in names.split(",")]


_BLOCK = re.compile(r'^```(\w+) title="([^"]+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)
BLOCKS = [
    (match[1], path, match[3]) for match in _BLOCK.finditer(PAGE) for path in paths_of(match[2])
]
TESTS = [path for language, path, _ in BLOCKS if path.startswith("tests/")]
_TREE = ("launch", "maintain", "configs", "accelerate_configs", "benchmarks", "tests", "docs")
_TREE += ("pyproject.toml", "README.md", "CHANGELOG.md")
PAIR = ("chosen", "rejected")
_HOME = "~/.config/launch/"


def apply_diff(path: Path, diff: str) -> None:
    """Replace the lines of a hunk, which the file must have once, in this order."""
    lines = diff.splitlines()
    before = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "+")
    after = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "-")
    text = path.read_text(encoding="utf-8")
    found = (
        f"docs/how-to/extending.md shows these lines of {path.name}, which has them "
        f"{text.count(before)} times"
    )
    assert text.count(before) == 1, f"{found}; show the lines of today:\n{before}"
    path.write_text(text.replace(before, after), encoding="utf-8")


class Tree:
    """A copy of the tree with everything that the page adds."""

    def __init__(self, folder: Path) -> None:
        self.root, self.home = folder / "tree", folder / "home"
        self.root.mkdir()
        for name in _TREE:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(
                    source, self.root / name, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                shutil.copy(source, self.root / name)
        for language, name, text in BLOCKS:
            path = (
                self.home / name.removeprefix(_HOME) if name.startswith(_HOME) else self.root / name
            )
            if language == "diff":
                apply_diff(path, text)
                continue
            assert not path.exists(), path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def python(self, *argv: str) -> str:
        """Run Python with the copy's packages and return what it prints."""
        environ = {**os.environ, "PYTHONPATH": str(self.root), "LAUNCH_CONFIG_DIR": str(self.home)}
        argv = (sys.executable, *argv)
        ended = subprocess.run(
            argv, cwd=self.root, env=environ, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, (
            f"{' '.join(argv)}\n{ended.stdout[-6000:]}\n{ended.stderr[-3000:]}"
        )
        return ended.stdout

    def plan(self, *overrides: str) -> dict[str, object]:
        content: dict[str, object] = json.loads(
            self.python("-m", "launch", "plan", *overrides, "--json")
        )
        return content

    def pytest(self, *argv: str) -> None:
        self.python("-m", "pytest", "-q", "-p", "no:cacheprovider", *argv)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    root = checkout()
    if root is None:
        pytest.skip("needs an open-instruct checkout (OPEN_INSTRUCT_DIR or the submodule)")
    tree = Tree(tmp_path_factory.mktemp("extended"))
    locked = {
        path: path.read_bytes()
        for path in (tree.root / "launch" / "upstream" / "data").rglob("*.json")
    }
    tree.python("-m", "maintain", "relock", "--upstream", str(root), "--only", "trl_reward")
    assert {path: path.read_bytes() for path in locked} == locked, "the others are as they were"
    renewed = ("tests/docs/test_reference.py", "tests/config/test_keys.py")
    tree.pytest("--update-golden", "-k", "page_is_current or keys", *renewed)
    return tree


def test_the_page_adds_one_of_each() -> None:
    kinds = (
        "model",
        "cluster",
        "stage",
        "trainer",
        "recipe key",
        "patch",
        "value of a step",
        "guard",
        "gate",
        "preflight rule",
        "rule",
        "fact of a run",
    )
    assert re.findall(r"^## An? (.*)$", PAGE, re.MULTILINE) == list(kinds)
    assert len(TESTS) == 8, "what is Python has its test on the page"


def test_every_change_fits_the_tree(tmp_path: Path) -> None:
    for language, name, text in BLOCKS:
        path = tmp_path / name.replace("/", "-")
        if language != "diff":
            path.write_text(text, encoding="utf-8")
            continue
        if not path.exists():
            shutil.copy(ROOT / name, path)
        apply_diff(path, text)
    assert sum(language == "diff" for language, _, _ in BLOCKS) > 10


@pytest.mark.slow
def test_nothing_is_missing_and_the_tests_of_the_page_pass(tree: Tree) -> None:
    tree.pytest(
        "tests/test_registers.py",
        "tests/rules",
        "tests/config/test_trainers.py",
        "tests/config/test_recipe_keys.py",
        "tests/worker/evidence/test_sentences.py",
        "tests/execution/guards/test_guards.py",
        *TESTS,
    )


@pytest.mark.slow
def test_the_stage_the_model_and_the_cluster_decide_a_plan(tree: Tree) -> None:
    job = ("stage=sft_1b", "gpus=8", "cluster=uni")
    printed = json.dumps(tree.plan(*job))
    assert "meta-llama/Llama-3.2-1B" in printed and "1e-05" in printed
    tree.python("-m", "launch", "submit", *job, "dry_run=true")
    (written,) = tree.root.glob("runs/.jobs/sft_1b/gpu8-????????/job.sbatch")
    script = written.read_text(encoding="utf-8")
    assert "#SBATCH --partition=gpu" in script and "NCCL_IB_HCA" in script


@pytest.mark.slow
def test_the_trainer_the_patch_and_the_ids_are_in_a_plan(tree: Tree) -> None:
    rows = tree.root / "pairs.jsonl"
    chats = {
        key: [{"role": "user", "content": "a"}, {"role": "assistant", "content": key}]
        for key in PAIR
    }
    rows.write_text(f"{json.dumps(chats)}\n" * 200, encoding="utf-8")
    reward = json.dumps(
        tree.plan(
            "stage=rm",
            "trainer=trl_reward",
            "gpus=8",
            f"data.mix=[{{name: {rows}}}]",
            "recipe.global_batch_size=64",
            "flags.do_eval=true",
        )
    )
    assert "trl.scripts.reward" in reward and "--max_length" in reward
    assert "accepts --do_eval and never reads it" in reward, "the rules of the family hold for it"
    known = ("guards.flat_loss.steps=9", "allow=[flat_loss,first_loss,small_tmp]")
    assert "loaded_rows" in json.dumps(tree.plan("stage=demo", "trainer=trl_sft", *known))
