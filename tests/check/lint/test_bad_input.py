"""Malformed files: a clear note, everything else still checked, never a crash."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launch.check.lint.checker import CommandChecker
from launch.check.lint.files import check_file, check_files
from launch.check.lint.readers import MAX_BYTES
from tests.check.lint.helpers import check_text, locked_checker
from tests.check.lint.mistakes import MISTAKES
from tests.messages import values_of

GOOD = "python open_instruct/finetune.py --model_name_or_path m --sed 1\n"
FINE = "python open_instruct/finetune.py --model_name_or_path m --dataset_mixer_list d 1.0"
NAMES = ["a.sh", "a.md", "a.yaml", "Makefile", "a.j2", "a.json", "job"]


@pytest.fixture(scope="module")
def checker() -> CommandChecker:
    return locked_checker()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.sh", b"", "1: empty_file"),
        ("a.sh", b" \n\n", "1: empty_file"),
        ("a.sh", b"\x7fELF\x00\x00\x01", "1: binary_file"),
        ("a.yaml", b"a: b\n\x00", "1: binary_file"),
        ("a.sh", "python x".encode("utf-16"), "1: not_utf8"),
        ("a.yaml", b"a: 1\nb: [1\n", "3: not_yaml"),
        ("a.yaml", b"a: " + b"[" * 10_000, "1: not_yaml"),
        ("a.py", b"import torch\n", "1: not_read"),
        ("a.sh", b"\x00" * MAX_BYTES, "1: binary_file"),  # the largest that is read
        ("a.sh", b"\x00" * (MAX_BYTES + 1), "1: too_large"),
    ],
)
def test_unreadable_files_are_noted(
    tmp_path: Path, checker: CommandChecker, name: str, content: bytes, expected: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    checked = check_file(path, checker)
    assert checked.verdicts == ()
    assert [f"{note.line}: {note.id}" for note in checked.notes] == [expected]
    assert not any(note.stops for note in checked.notes)


@pytest.mark.parametrize(
    ("what", "id"),
    [
        ("nothing", "cannot_open"),
        ("pipe", "not_a_file"),
        ("folder", "not_a_file"),
        ("forbidden", "cannot_open"),
        ("name", "cannot_open"),
    ],
)
def test_what_cannot_be_opened_is_missing(
    tmp_path: Path, checker: CommandChecker, what: str, id: str
) -> None:
    path = tmp_path / "a.sh"
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "forbidden":
        path.write_text("x")
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("this user may read everything")
    elif what == "name":
        path = tmp_path / ("a" * 300)
    [note] = check_file(path, checker).notes
    assert (note.id, note.line, note.stops) == (id, 1, True)


def test_the_rest_is_still_checked(tmp_path: Path, checker: CommandChecker) -> None:
    (tmp_path / "1.sh").write_bytes(b"\x00")
    (tmp_path / "2.sh").write_bytes(b"echo \xff\n" + GOOD.encode())
    (tmp_path / "3.sh").write_text(f"{GOOD}echo 'x\n{GOOD}")
    (tmp_path / "4.md").write_text(f"```bash\n{GOOD}echo 'x\n```\n\n```\n{GOOD}```\n")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "5.sh").write_text(GOOD)
    (tmp_path / "6.bin").write_bytes(b"\x00" * 100)
    checked = list(check_files([str(tmp_path), str(tmp_path / "none.sh")], checker))
    assert [len(report.verdicts) for report in checked] == [0, 1, 2, 2, 0]
    assert [any(note.stops for note in report.notes) for report in checked] == [
        False,
        False,
        False,
        False,
        True,
    ]
    assert all(verdict.ok is False for report in checked for verdict in report.verdicts)
    assert [verdict.line for verdict in checked[2].verdicts] == [1, 3]
    assert [(note.id, note.line) for note in checked[1].notes] == [("not_utf8", 1)]
    assert [(note.id, note.line) for note in checked[2].notes] == [("unbalanced_quote", 2)]


def test_windows_line_ends_and_a_byte_order_mark(tmp_path: Path, checker: CommandChecker) -> None:
    path = tmp_path / "a.sh"
    path.write_bytes(
        b"\xef\xbb\xbfpython open_instruct/finetune.py \\\r\n  --model_name_or_path m \\\r\n  --sed 1\r\n"
    )
    (verdict,) = check_file(path, checker).verdicts
    assert [(problem.where, problem.line) for problem in verdict.problems] == [("sed", 3)]


@pytest.mark.parametrize(
    ("line", "megabytes"),
    [
        ("srun python train.py --exp \"$NAME\" --lr 1e-5 \\\n  --out 'log file' # it's\n", 0.1),
        ('echo "$(date)" > log; X=$((1 + 2))\n', 0.1),
        ("a ", 0.1),
        ("cat <<EOF\n", 0.1),
        ("$(", 0.1),
        ("((", 0.1),
        ('"', 0.1),
        ("`", 0.1),
        (GOOD, 0.03),
    ],
)
def test_large_files(tmp_path: Path, checker: CommandChecker, line: str, megabytes: float) -> None:
    path = tmp_path / "a.sh"
    path.write_text(GOOD + line * int(megabytes * 1e6 / len(line)))
    start = time.process_time()
    checked = check_file(path, checker)
    assert time.process_time() - start < 5  # quadratic would be a minute
    assert checked.verdicts[0].ok is False


def test_many_unknown_flags(tmp_path: Path, checker: CommandChecker) -> None:
    flags = " ".join(f"--flag_{number} 1" for number in range(5_000))
    start = time.process_time()
    (verdict,) = check_text(
        tmp_path, f"python open_instruct/finetune.py {flags} --sed 1\n", checker=checker
    )
    # argparse alone, given all of them at once, takes longer
    assert time.process_time() - start < 15
    assert (len(verdict.problems), values_of(str(verdict.problems[-1].cure))) == (
        5_001,
        ["--seed"],
    )


@pytest.mark.parametrize(
    "text",
    [
        "$(" * 10_000 + "true" + ")" * 10_000,
        'echo "' + "$(" * 31 + GOOD.strip() + ")" * 31 + '"',
        "bash -c '" + "bash -c " * 8 + GOOD.strip() + "'",
        'eval "$X"',
    ],
    ids=["nested", "a command in it", "quotes", "eval"],
)
def test_what_is_nested_too_deep_or_not_followed_is_never_accepted(
    tmp_path: Path, checker: CommandChecker, text: str
) -> None:
    path = tmp_path / "a.sh"
    path.write_text(f"{FINE}\n{text}\n")
    verdicts = check_file(path, checker).verdicts
    assert any(verdict.ok is not True and verdict.line == 2 for verdict in verdicts)


WORDS = "x " * 4000
CHAIN = "".join(f'A{level + 1}="$A{level} $A{level}"\n' for level in range(13))


@pytest.mark.parametrize(
    "text",
    [f'A="{WORDS}"\n' + "srun $A\n" * 250, 'A0="x x"\n' + CHAIN + "echo $A13\n" * 2000],
    ids=["words", "chain"],
)
def test_variables_of_many_words_used_often(
    tmp_path: Path, checker: CommandChecker, text: str
) -> None:
    path = tmp_path / "a.sh"
    path.write_text(text + GOOD)
    start = time.process_time()
    checked = check_file(path, checker)
    assert time.process_time() - start < 45
    assert checked.verdicts[0].line == text.count("\n") + 1


checkers: list[CommandChecker] = []


def check_fuzzed(folder: Path, name: str, content: bytes) -> None:
    """Check that every note and diagnostic has a line of the file, and that every verdict is
    consistent.
    """
    if not checkers:
        checkers.append(locked_checker())
    path = folder / name
    path.write_bytes(content)
    checked = check_file(path, checkers[0])
    last = content.replace(b"\r\n", b"\n").count(b"\n") + 1
    assert all(1 <= note.line <= last for note in checked.notes)
    for verdict in checked.verdicts:
        assert 1 <= verdict.line <= last
        assert (verdict.ok is False) == bool(verdict.problems)
        assert all(1 <= remark.line <= last for remark in (*verdict.problems, *verdict.warnings))


quick = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@quick
@given(st.sampled_from(NAMES), st.binary(max_size=300))
def test_random_bytes(tmp_path: Path, name: str, content: bytes) -> None:
    check_fuzzed(tmp_path, name, content)


PARTS = [
    "python open_instruct/finetune.py ",
    "accelerate launch ",
    "trl sft ",
    "--model_name_or_path m ",
    "--seed 1 ",
    "--x=$Y ",
    "script: finetune\n",
    "args:\n  seed: 1\n",
    "- ",
    "```bash\n",
    "```\n",
    "    ",
    "\t",
    "\\\n",
    "\n",
    "'",
    '"',
    "$(",
    "${",
    ")",
    "}",
    "`",
    "#",
    "<<E\n",
    "E\n",
    "|",
    "&&",
    ";",
    "X=",
    "(",
    "-- ",
    "mason.py ",
    "bash -c ",
    "&a ",
    "*a ",
    ": ",
    "[",
    "]",
    "{",
    "\x00",
    "\xff",
    "\r\n",
]


@quick
@given(st.sampled_from(NAMES), st.lists(st.sampled_from(PARTS), max_size=30))
def test_random_parts(tmp_path: Path, name: str, parts: list[str]) -> None:
    check_fuzzed(tmp_path, name, "".join(parts).encode("utf-8", errors="surrogateescape"))


@quick
@given(st.sampled_from(sorted(MISTAKES)), st.sampled_from(NAMES), st.data())
def test_mutated_scripts(tmp_path: Path, mistake: str, name: str, data: st.DataObject) -> None:
    raw = bytearray(MISTAKES[mistake][1].encode())
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(raw)))
        piece = data.draw(
            st.one_of(st.binary(max_size=3), st.sampled_from([part.encode() for part in PARTS]))
        )
        raw[at : at + data.draw(st.integers(0, 8))] = piece
    check_fuzzed(tmp_path, name, bytes(raw))
