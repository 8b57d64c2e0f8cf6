"""scripts/own-words on a small tree: a copy is found however it is written, and what only looks
alike is not.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

from tests.paths import ROOT

# What a library wrote: a docstring, a function, a help text in two literals, a comment, a table, a
# list of imports.
THEIRS = '''\
import alpha
import beta
from delta import Epsilon, Zeta
from eta import (
    Theta,
    Iota as Kappa,
)
from lambda_ import Mu
from nu import Xi, Omicron, Pi, Rho


def settle(pond, heron):
    """Wait until the heron has left the pond, and count the frogs that came up again within the hour.

    A frog that dives before it was counted doesn't count.
    """
    frogs = [frog for frog in pond.frogs if frog.depth < heron.reach and not frog.counted]
    for frog in frogs:
        frog.counted = pond.clock.now() - heron.departure
    return sorted(frogs, key=lambda frog: (frog.counted, frog.name))


HELP = (
    "How many herons may stand at the pond at the same time; more of them "
    f"only frighten each other and the {settle} of frogs."
)
# The keeper reads this table in the morning, before the first visitor has bought
# his ticket, and writes it anew at night.
TABLE = [[0.5, 1.5, 2.5, 3.5], [4.5, 5.5, 6.5, 7.5], [8.5, 9.5, 10.5, 11.5], [12.5, 13.5, 14.5, 15.5]]
FLAGS = [None, None, None, None, None, None, None, None, None, None, None, None, None, None, None, None]
DIGESTS = "0a1b2c3d4e 1a1b2c3d4e 2a1b2c3d4e 3a1b2c3d4e 4a1b2c3d4e 5a1b2c3d4e 6a1b2c3d4e 7a1b2c3d4e 8a1b2c3d4e"
MORE = "9a1b2c3d4e aa1b2c3d4e ba1b2c3d4e ca1b2c3d4e"
'''
UPSTREAM = """\
# The trainer keeps every seventh checkpoint of a run until the evaluation of the next one has ended
"""


class Tree:
    """A git repository with the script, and beside it a library and a checkout of open-instruct."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkout = folder.parent / "checkout"
        self.write(
            "scripts/own-words", (ROOT / "scripts" / "own-words").read_text(encoding="utf-8")
        )
        self.write(".gitignore", ".venv/\n")
        self.write(".venv/lib/python3.11/site-packages/trl/pond/keeper.py", THEIRS)
        (self.checkout / "open_instruct").mkdir(parents=True)
        (self.checkout / "open_instruct" / "keep.py").write_text(UPSTREAM, encoding="utf-8")

    def write(self, path: str, content: str | bytes) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    def compare(self, checkout: Path | None = None) -> tuple[int, list[str]]:
        """Return the exit code and the lines of a comparison of what is in the tree now."""
        for command in (["init", "--quiet"], ["add", "--all"]):
            subprocess.run(
                ["git", "-C", str(self.folder), *command], check=True, capture_output=True
            )
        done = subprocess.run(
            [sys.executable, str(self.folder / "scripts" / "own-words")],
            env={**os.environ, "OPEN_INSTRUCT_DIR": str(checkout or self.checkout)},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.stderr == ""
        return done.returncode, done.stdout.splitlines()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "tree")


def overlaps(lines: list[str]) -> dict[str, tuple[int, str]]:
    """The number of words and the place of theirs, by our file and line."""
    found = [re.match(r"(\S+:\d+): (\d+) words of (\S+ \S+:\d+): ", line) for line in lines]
    return {match[1]: (int(match[2]), match[3]) for match in found if match}


DOCSTRING = re.findall(r'"""(.+?)\n', THEIRS)[0]
FUNCTION = THEIRS[THEIRS.index("    frogs = ") : THEIRS.index("\n\nHELP")]
WRAPPED = '''\
"""Own words here.

    # Wait until
    # the heron has left the pond,
    # and count the FROGS that came up
    # again within the hour.
"""
'''
COMMENT = """\
key: 1
# the first visitor has bought his ticket, and
# writes it anew at
# night
"""
HELP = (
    "How many herons may stand at the pond at the same time; more of them only frighten each "
    "other and the"
)


def test_a_copy_is_found_however_it_is_written(tree: Tree) -> None:
    tree.write("launch/wrapped.py", WRAPPED)
    tree.write(
        "launch/indented.py",
        re.sub(r"\n +", "\n\n\t", FUNCTION).replace(" - ", "-").replace("(", "( "),
    )
    tree.write(
        "launch/data.json", json.dumps({"own": 1, "source": f"x = '''\n{DOCSTRING}\n'''"}, indent=1)
    )
    tree.write("launch/twice.json", json.dumps({"of": json.dumps({"text": FUNCTION})}, indent=1))
    tree.write(
        "launch/literals.py",
        'A = "How many herons may stand at the pond"\n"at the same time; " + f"more" " of"',
    )
    tree.write("launch/escaped.md", f"| meaning |\n|---|\n| {HELP.replace(' ', '&nbsp;')} |\n")
    tree.write("launch/cut.yaml", COMMENT)
    tree.write(
        "docs/upstream.md", "A page.\n\n> " + UPSTREAM[2:].replace("until the", "\n> until the")
    )
    code, lines = tree.compare()
    keeper = "trl pond/keeper.py"
    words = {"docstring": len(DOCSTRING.split()), "function": len(re.findall("[a-z]+", FUNCTION))}
    assert code == 1
    assert overlaps(lines) == {
        "launch/wrapped.py:3": (words["docstring"], f"{keeper}:13"),
        "launch/indented.py:1": (words["function"], f"{keeper}:17"),
        "launch/data.json:3": (words["docstring"], f"{keeper}:13"),
        "launch/twice.json:2": (words["function"], f"{keeper}:17"),
        "launch/literals.py:1": (14, f"{keeper}:24"),
        "launch/escaped.md:3": (len(HELP.split()), f"{keeper}:24"),
        "launch/cut.yaml:2": (13, f"{keeper}:27"),
        "docs/upstream.md:3": (18, "open-instruct open_instruct/keep.py:1"),
    }
    assert (
        "launch/cut.yaml:2: 13 words of trl pond/keeper.py:27: the first visitor has bought his "
        "ticket" in str(lines)
    )
    assert lines[-1].startswith("own words: 10 files compared, 8 overlaps in 8, 0 other problems")


@pytest.mark.parametrize("before", range(15))
def test_a_run_of_twelve_is_found_wherever_it_begins(before: int, tmp_path: Path) -> None:
    loader = SourceFileLoader("own_words", str(ROOT / "scripts" / "own-words"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    own_words = sys.modules[loader.name] = module_from_spec(spec)
    loader.exec_module(own_words)
    words = DOCSTRING.split()
    theirs = tmp_path / "theirs.txt"
    theirs.write_text(" ".join([*["pebble"] * before, *words[:12], *["gravel"] * 9]))
    found = own_words.Scanner({"ours": " ".join(words[:12]).encode()}).scan(theirs)
    assert [*found.values()] == [before]
    assert own_words.Scanner({"ours": " ".join([*words[:11], "lake"]).encode()}).scan(theirs) == {}


@pytest.mark.slow
def test_what_only_looks_alike_is_not_found(tree: Tree) -> None:
    lines = THEIRS.splitlines()
    imports = "\n".join(lines[: lines.index("def settle(pond, heron):")])
    tree.write("launch/imports.py", imports)
    tree.write(
        "launch/figures.py",
        "\n".join(line for line in lines if line.startswith(("TABLE", "FLAGS", "DIGESTS", "MORE"))),
    )
    eleven = " ".join(DOCSTRING.split()[:11])
    tree.write("docs/short.md", f"{eleven} lake\n{' '.join(reversed(DOCSTRING.split()))}\n")
    tree.write("launch/not_tracked.md", DOCSTRING)
    tree.write(".gitignore", ".venv/\nlaunch/not_tracked.md\n")
    assert overlaps(tree.compare()[1]) == {}


@pytest.mark.slow
def test_what_nobody_can_compare_is_refused(tree: Tree) -> None:
    tree.write("launch/corpus.jsonl.gz", gzip.compress(DOCSTRING.encode()))
    tree.write("launch/renamed.dat", gzip.compress(DOCSTRING.encode()))
    tree.write("launch/zeros.dat", b"a\0b")
    tree.write("launch/plot.min.js", "x = 1\n")
    tree.write("launch/plot.iife.js", "x = 1\n")
    tree.write("launch/table.py", f"TABLE = [{'1, ' * 400}]\n")
    tree.write("docs/long.json", json.dumps([DOCSTRING, "x" * 1000]))
    tree.write("tests/golden/plan.txt", "y" * 2000)
    tree.write("tests/fixtures/runs/model.safetensors.gz", b"\x1f\x8b")
    code, lines = tree.compare()
    assert code == 1
    assert lines[-1].startswith("own words: 10 files compared, 1 overlaps in 1, 7 other problems")
    refused = dict(
        line.split(": ", 1) for line in lines if line.startswith(("launch/", "docs/long.json: "))
    )
    assert refused == {
        "launch/corpus.jsonl.gz": "compressed, so nobody can read whose words it holds",
        "launch/renamed.dat": "binary",
        "launch/zeros.dat": "binary",
        "launch/plot.min.js": "minified: no source that this project wrote",
        "launch/plot.iife.js": "minified: no source that this project wrote",
        "launch/table.py": "a line of 1,210 characters: minified, or a text stored as data",
        "docs/long.json": "a line of 1,103 characters: minified, or a text stored as data",
    }
    assert [*overlaps(lines)] == ["docs/long.json:1"]  # a refused text is compared too


@pytest.mark.thorough
@pytest.mark.slow
def test_an_exception_is_one_file(tree: Tree) -> None:
    tree.write("LICENSE", DOCSTRING)
    tree.write("docs/LICENSE", DOCSTRING)
    code, lines = tree.compare()
    assert (code, [*overlaps(lines)]) == (1, ["docs/LICENSE:1"])


@pytest.mark.thorough
@pytest.mark.slow
def test_without_a_checkout_the_rest_is_compared(tree: Tree) -> None:
    tree.write("docs/upstream.md", UPSTREAM)
    code, lines = tree.compare(checkout=tree.folder)
    assert (code, overlaps(lines)) == (0, {})
    assert lines[0] == "open-instruct: not compared"
    assert "transformers: not compared" in lines
    assert "trl: not compared" not in lines
    tree.write("docs/library.md", DOCSTRING)
    assert [*overlaps(tree.compare(checkout=tree.folder)[1])] == ["docs/library.md:1"]


@pytest.mark.slow
def test_an_exception_that_nothing_needs_is_reported(tree: Tree) -> None:
    packages = tree.folder / ".venv" / "lib" / "python3.11" / "site-packages"
    for name in ("transformers", "accelerate", "peft", "deepspeed", "datasets", "olmo_core"):
        (packages / name).mkdir()
    tree.write("LICENSE", "our own words\n")
    code, lines = tree.compare()
    assert (code, lines[:-1]) == (1, ["LICENSE: needs no exception"])


def test_the_exceptions_of_the_tree_are_few_and_outside_the_package() -> None:
    text = (ROOT / "scripts" / "own-words").read_text(encoding="utf-8")
    table = text[text.index("EXCEPTIONS = {") :]
    excepted = re.findall(r'^    "(.+?)": "(.+)",$', table[: table.index("\n}")], re.MULTILINE)
    assert 1 <= len(excepted) <= 20
    for path, reason in excepted:
        assert (ROOT / path).is_file(), path
        assert not path.startswith("launch/")
        assert len(reason.split()) >= 4


@pytest.mark.thorough
@pytest.mark.slow
def test_a_librarys_own_page_and_files_of_any_name_are_compared(tree: Tree) -> None:
    packages = ".venv/lib/python3.11/site-packages"
    page = "Herons for everyone: a library that counts the frogs of any pond while nobody looks"
    note = (
        "whoever feeds the heron on a Sunday writes the weight of the fish on the slate beside "
        "the gate"
    )
    tree.write(f"{packages}/trl-1.16.0.dist-info/METADATA", f"Name: trl\n\n{page}\n")
    tree.write(f"{packages}/trl/pond/notes.feeding", note)
    tree.write(
        f"{packages}/trl/pond/heron.so", b"\x7fELF\0" + " ".join(reversed(page.split())).encode()
    )
    tree.write("docs/page.md", page)
    tree.write("docs/note.md", note)
    tree.write("docs/binary.md", " ".join(reversed(page.split())))
    places = {path: theirs for path, (_, theirs) in overlaps(tree.compare()[1]).items()}
    assert places == {
        "docs/page.md:1": "trl METADATA:3",
        "docs/note.md:1": "trl pond/notes.feeding:1",
    }


@pytest.mark.thorough
@pytest.mark.slow
def test_pythons_own_library_is_compared(tree: Tree) -> None:
    source = Path(shutil.__file__).read_text(encoding="utf-8")
    docstring = re.findall(r'"""(Copy data from src to dst.+?)"""', source, re.DOTALL)[0]
    tree.write("launch/copied.md", docstring)
    (theirs,) = overlaps(tree.compare()[1]).values()
    assert theirs[1].startswith("python shutil.py:")
