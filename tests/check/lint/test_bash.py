"""Whole scripts against bash itself: what bash starts is found as it starts it, or undecided; never a wrong ok."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from launch.check.lint.scan_result import ScanResult
from launch.check.lint.shell import find_commands, line_lookup
from launch.check.lint.shell_syntax import Argument

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash to compare with")

RUN = "python open_instruct/finetune.py"
TRAINER = re.compile(r"open_instruct/\w+\.py")
STUB = """#!/bin/bash
{ printf '%s\\0' "$@"; printf '\\1\\0'; } >> "$STARTED"
"""
FOLLOWED = [  # bash starts exactly what lint finds, and nothing is unknown
    f"{RUN} --a 1 --b 'x y'",
    f"LR=1\ntrain() {{ {RUN} --lr $LR; }}\ntrain",
    f"M=big\ncase $M in\n  big) {RUN} --a 1 ;;\nesac",
    f"bash <<EOF\n{RUN} --a 1\nEOF",
    f"cat <<A > notes; bash <<B\nx 'y\nA\n{RUN} --a 1\nB",
    f"LIST=(--a 'x y')\n{RUN} \"${{LIST[@]}}\"",
    f'LIST=(--a 1)\n{RUN} "${{LIST[*]}}"',
    f"{RUN} --b\N{NO-BREAK SPACE}2",
    f"{RUN} \N{EN DASH}a 1 \N{LEFT DOUBLE QUOTATION MARK}b c\N{RIGHT DOUBLE QUOTATION MARK}",
    f"eval {RUN} --a \"'x y'\"",
    f"C='{RUN}'\neval \"$C --a 1\"",
    f"N=4\n{RUN} --a $((32 / N))",
    f"{RUN} --a 1 2>&1 >log --b 2 </dev/null",
    f"{RUN} --a $'p q' --b $\"x y\" --c x#y --d $",
    "D=open_instruct\nN=finetune\npython $D/$N.py --a x/$N-$D.json",
    f"{RUN} \\ \n",  # a blank behind the backslash
    f"bash -c \"bash -c '{RUN} --a 1'\"",
    f"function train {{ {RUN} --a 1; }}\ntrain",
    f"find . -maxdepth 0 -exec {RUN} --a 1 \\;",
    f'CMD=({RUN} --a 1)\n"${{CMD[@]}}" --b 2',
    f"{RUN} --a {{}} --b {{x}} --c '{{\"k\": 1}}'",
    f"N=4\nIFS=, read -r A B <<< 1,2\n{RUN} --n $N",
]
UNKNOWN = [  # the command is found, and a value of it is unknown
    f'train() {{ {RUN} --a 1 "$@"; }}\ntrain --b 2',
    f"{RUN} --f <(echo x)",
    f"read -r LR <<< 5\n{RUN} --lr $LR",
    f'LIST=(x)\nmapfile -t LIST < <(echo --a)\n{RUN} "${{LIST[@]}}"',
    f'LIST=(--a 1)\nLIST+=(--b 2)\n{RUN} "${{LIST[@]}}"',
    f'LIST=(--a 1)\nLIST[1]=7\n{RUN} "${{LIST[@]}}"',
    f'declare -A H=([lr]=1 [b]=2)\n{RUN} --lr ${{H[lr]}} --all "${{H[@]}}"',
    f"echo 1e-5 2e-5 | xargs -n 1 {RUN} --lr",
    f"printf '1\\n2\\n' | xargs -I% {RUN} --lr=%",
    f"echo 1 | xargs -I{{}} sh -c '{RUN} --lr {{}}'",
    f"echo 1 | xargs sh -c '{RUN} --lr \"$@\"' _",
    f"LR=1\nN=LR\n{RUN} --lr ${{!N}}",
    f"N=4\n(( N++ ))\n{RUN} --n $N",
    f"N=4\n: $(( N += 4 ))\n{RUN} --n $N",
    f'N=4\nlet "N += 1"\n{RUN} --n $N',
    f"i=0\nfor ((i = 0; i < 2; i++)); do :; done\n{RUN} --seed $i",
    f"touch q1 q2\n{RUN} --a q*",
    f"touch q1 q2\nX='q?'\n{RUN} --a $X",
    f"shopt -s extglob nullglob\n{RUN} --a !(*) --b 1",
    f"{RUN} --a ~/x",
    f"X=~/x\n{RUN} --a $X",
    f"declare -i X=2+3\n{RUN} --a $X",
    f"typeset -l X=ABC\n{RUN} --a $X",
    f"X=1\nbuiltin eval X=2\n{RUN} --a $X",
    f'X=1\nf() {{ printf -v "$1" %s 2; }}\nf X\n{RUN} --a $X',
    f'X=1\nf() {{ read -r "$1" <<< 2; }}\nf X\n{RUN} --a $X',
    f'X=1\nN=X\nexport "$N=2"\n{RUN} --a $X',
    f'X=1\nf() {{ eval "$1=2"; }}\nX=1\nf X\n{RUN} --a $X',
    f"X=1\nbash -c \"{RUN} --a '$X'\"\nX=2",
    f"SECONDS=-7\nPWD=x\n{RUN} --a $PWD",
]
LISTED = [  # what starts a trainer, or changes its arguments, is listed as not followed
    (f"printf '{RUN} --a %s\\n' 1 2 | sh", 1),
    (f"echo\nbash <<< '{RUN} --a 1'", 2),
    (f"source <(echo '{RUN} --a 1')", 1),
    ('E="python open_instruct/fine"\nT="tune.py --a 1"\nX=1\nX="$E$T"\neval "$X"', 5),
    (f"P=finetune\nif true; then P=dpo; fi\n{RUN} --a 1\npython open_instruct/$P.py --b 1", 4),
    (f'{RUN} --a 1\nfor s in finetune dpo; do python "open_instruct/$s.py"; done', 2),
    (f'CMD="{RUN}"\nCMD+=" --b 2"\n$CMD', 3),
    (f"LR=1\ndeclare -n REF=LR\nREF=2\n{RUN} --lr $LR", 2),
    (f"set_it() {{ local -n ref=$1; ref=3; }}\nLR=1\nset_it LR\n{RUN} --lr $LR", 1),
    (f"IFS=,\nX=a,b\n{RUN} --x $X", 1),
    (f"X='--a 1'\nf() {{ :; }}\nexport IFS=\n{RUN} $X", 3),
    (f"X=1\ntrap 'X=2' DEBUG\n{RUN} --a $X", 2),
    (f'python() {{ command python "$@" --more 1; }}\n{RUN} --a 1', 1),
    (f'shopt -s expand_aliases\nalias py="{RUN} --q 1"\npy --a 1', 2),
    ('echo open_instruct/\nrun() { python "$@"; }\nrun open_instruct/finetune.py --a 1', 2),
    (f"X=1\nX='{RUN} --a 1'\nbash -c \"$X\"", 3),
    (f"X='{RUN} --a 1'\nX+=' --b 2'\nenv A=1 $X", 3),
    (f"X=''\nX='{RUN} --a 1'\nY=\"$X --b 2\"\nnohup $Y", 4),
    (f"echo 'set -- {RUN}; \"$@\"' > x.sh\nX=1\nsource /dev/stdin < x.sh", 3),
    (f'set -- {RUN} --a 1\n"$@"', 2),
    (f"echo '{RUN} --a 1' | while read -r line; do $line; done", 1),
]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return a folder with a `python` that writes its arguments down, and the files that the scripts name."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "work" / "open_instruct").mkdir(parents=True)
    stub = tmp_path / "bin" / "python"
    stub.write_text(STUB)
    stub.chmod(0o755)
    return tmp_path


def started_by_bash(folder: Path, script: str) -> list[list[str]]:
    """Run the script; return the arguments of each trainer that it starts."""
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "STARTED": str(folder / "started"), "LC_ALL": "C.UTF-8"}
    subprocess.run(["bash", "-c", script], cwd=folder / "work", env=environment, capture_output=True, check=False)
    calls = [call.split("\0")[:-1] for call in (folder / "started").read_text().split("\1\0")[:-1]]
    return [call[1:] for call in calls if TRAINER.fullmatch(call[0])]


def may_become(arguments: tuple[Argument, ...], started: list[str]) -> bool:
    """Return True if the arguments that lint found may be those that bash passed."""
    if not arguments:
        return not started
    first, rest = arguments[0], arguments[1:]
    if not first.is_single:
        return any(may_become(rest, started[count:]) for count in range(len(started) + 1))
    if not started or not (started[0] == first.text if first.is_resolved else started[0].startswith(first.prefix)):
        return False
    return may_become(rest, started[1:])


def scan(script: str) -> ScanResult:
    return find_commands(script, line_lookup(script))


def is_known(arguments: tuple[Argument, ...]) -> bool:
    return all(argument.is_resolved for argument in arguments)


@pytest.mark.parametrize("script", FOLLOWED)
def test_what_is_followed_is_what_bash_starts(script: str, programs: Path) -> None:
    found = scan(script)
    assert found.unfollowed == ()
    assert all(is_known(command.arguments) for command in found.commands)
    words = [[argument.text for argument in command.arguments] for command in found.commands]
    assert words == started_by_bash(programs, script)


@pytest.mark.parametrize("script", UNKNOWN)
def test_what_is_unknown_may_be_what_bash_starts(script: str, programs: Path) -> None:
    (command,) = scan(script).commands
    started = started_by_bash(programs, script)
    assert started
    assert all(may_become(command.arguments, arguments) for arguments in started)
    assert not is_known(command.arguments)


@pytest.mark.parametrize(("script", "line"), LISTED)
def test_what_is_not_followed_is_listed_by_its_line(script: str, line: int, programs: Path) -> None:
    assert started_by_bash(programs, script)
    assert [(entry.id, entry.line) for entry in scan(script).unfollowed] == [("not_followed", line)]
