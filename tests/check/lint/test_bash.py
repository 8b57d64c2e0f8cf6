"""Whole scripts against bash itself: what bash starts is found as it starts it, or undecided; never
a wrong ok.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from launch.check.lint.readers import scan_file
from launch.check.lint.shell import find_commands, line_lookup
from launch.check.lint.shell_syntax import Argument
from launch.check.lint.trainer_commands import ScanResult

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash to compare with")

RUN = "python open_instruct/finetune.py"
TRAINER = re.compile(r"[\w./]*\w\.py")
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
    f'LIST=(--a 1)\nLIST+=(--b 2)\n{RUN} "${{LIST[@]}}"',
    f'X=--a\nX+=" 1 --b"\nX+=" 2"\n{RUN} $X',
    f'{RUN} --a ${{NOWHERE:-1}} --b ${{NOWHERE:-${{NEITHER:-x}}}} --c "${{NOWHERE-}}"',
    f'{RUN} --a ${{NOWHERE:=\'x y\'}} --b "${{NEITHER:-"z"}}"',
    f': ${{LR:=1}} "${{N:=$LR}}"\n{RUN} --a $LR --b $N',
    f'LR=${{LR:-"1 2"}}\n{RUN} --a $LR --b "$LR"',
    f'CMD="{RUN}"\nCMD+=" --b 2"\n$CMD',
    f"X='{RUN} --a 1'\nX+=' --b 2'\nenv A=1 $X",
    f"X=\nY=2\n{RUN} --a ${{X:-1}} --b ${{Y:-1}}",
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
    f'LIST=(--a 1)\nif true; then LIST+=(--b 2); fi\n{RUN} "${{LIST[@]}}"',
    f"if true; then Y=2; fi\n{RUN} --a ${{Y:-1}}",
    f"eval Y=2\n{RUN} --a ${{Y:-1}}",
    f'LIST=(--a 1)\neval "LIST=(--c 1)"\nLIST+=(--b 2)\n{RUN} "${{LIST[@]}}"',
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
    (f'CMD="{RUN}"\nif true; then CMD+=" --b 2"; fi\n$CMD', 3),
    (f"LR=1\ndeclare -n REF=LR\nREF=2\n{RUN} --lr $LR", 2),
    (f"set_it() {{ local -n ref=$1; ref=3; }}\nLR=1\nset_it LR\n{RUN} --lr $LR", 1),
    (f"IFS=,\nX=a,b\n{RUN} --x $X", 1),
    (f"X='--a 1'\nf() {{ :; }}\nexport IFS=\n{RUN} $X", 3),
    (f"X=1\ntrap 'X=2' DEBUG\n{RUN} --a $X", 2),
    (f'python() {{ command python "$@" --more 1; }}\n{RUN} --a 1', 1),
    (f'shopt -s expand_aliases\nalias py="{RUN} --q 1"\npy --a 1', 2),
    ('echo open_instruct/\nrun() { python "$@"; }; run open_instruct/finetune.py --a 1', 2),
    (f"X=1\nX='{RUN} --a 1'\nbash -c \"$X\"", 3),
    (f"X='{RUN} --a 1'\n[ -d . ] && X+=' --b 2'\nenv A=1 $X", 3),
    (f"X=''\nX='{RUN} --a 1'\nY=\"$X --b 2\"\nnohup $Y", 4),
    (f"echo 'set -- {RUN}; \"$@\"' > x.sh\nX=1\nsource /dev/stdin < x.sh", 3),
    (f'set -- {RUN} --a 1\n"$@"', 2),
    (f"echo '{RUN} --a 1' | while read -r line; do $line; done", 1),
]

NEVER_ACCEPTED = [  # as bash starts it, or undecided; RUN stands for the command above
    'run() { "$@" --more 1; }\nrun RUN --a 1',
    'run() { env A=1 "$@" --x 1; }\nrun RUN --a 1',
    'run() { set -- "$@" --m 1; "$@"; }\nrun RUN --a 1',
    'srun() { "$@" --m 1; }\nsrun RUN --a 1',
    'command_not_found_handle() { shift; "$@" --m 1; }\nfoo RUN --a 1',
    'run() { [ -n "$DRY" ] && echo "$@" || "$@" --m 1; }\nrun RUN --a 1',
    'echo "RUN --a 1" > s.sh\nbash s.sh',
    'echo "RUN --a 1" | (bash)',
    'echo "RUN --a 1" | { bash; }',
    'echo "RUN --a 1" | xargs env',
    'coproc bash\necho "RUN --a 1" >&${COPROC[1]}\nexec {COPROC[1]}>&-; wait',
    "X=a:~\nRUN --a $X",
    "set -k\nRUN --a 1 B=2",
    'env -S "RUN --a 1"',
    "perl -e 'system(\"RUN --a 1\")'",
    "echo \"RUN --a 1\" | awk '{ system($0) }'",
    "cd open_instruct; python finetune.py --a 1",
    "export CMD=\"RUN\"; bash -c '$CMD --a 1'",
    "export CMD=\"RUN\"; bash -c 'eval $CMD --a 1'",
    "echo ${X:-$(RUN --a 1)}",
    'echo "${X:-`RUN --a 1`}"',
    "echo $(( $(RUN --a 1; echo 1) + 1 ))",
    "(( $(RUN --a 1; echo 1) ))",
    "echo ${X:=$(RUN --a 1)}",
    "PS4='$(RUN --a 1)'; set -x; true",
    "PROMPT='$(RUN --a 1)'; echo \"${PROMPT@P}\"",
    "X='a[$(RUN --a 1; echo 0)]'; echo $((X))",
    "RUN --a 1&>x",
    "RUN --a {fd}>x --b 1",
    "RUN --a 1\r\n",
    "RUN \\\r\n --a 1\r\n",
    "X=5\r\nRUN --a $X --b 1\r\n",
    'RUN --a "1\r\n2"\n',
    'run() { local a="$@"; nohup $a --m 1; }\nrun RUN --a 1',
    'run() { for w in "$@"; do :; done; nohup "$1" "$2" --m 1; }\nrun RUN --a 1',
    'function run { "$@" --m 1; }\nrun RUN --a 1',
    'run() { inner "$@"; }\ninner() { "$@" --m 1; }\nrun RUN --a 1',
    'run() { nohup "${@/#x/y}"; }\nrun RUN --a x',
    'run() { nohup ${*}; }\nrun RUN --a "x y"',
    'run() { nohup $@; }\nrun RUN --a "x y"',
    'run() { nohup "$@" --m 1; }\nexport -f run\nbash -c "run RUN --a 1"',
    'run() { nohup "$@" --m 1; }\neval "run RUN --a 1"',
    'run() { nohup "$@" --m 1; }\nC="run RUN --a 1"\n$C',
    'run() { nohup "$@" --m 1; }\nF=run\n$F RUN --a 1',
    'run() { nohup "$@" --m 1; }\nA=(run RUN --a 1)\n"${A[@]}"',
    'run() { nohup "$@" --m 1; }\ntrap "run RUN --a 1" EXIT',
    'run() { nohup "$@" --m 1; }\ntime run RUN --a 1',
    'run() { nohup "$@" --m 1; }\n$(echo run) RUN --a 1',
    "LR=1\nrun() { RUN --a $LR; }\nLR=2 run",
    "function set_lr { :; LR=3; }\nRUN --a $LR --b 1",
    "LR=1; printf -vLR 5; RUN --a $LR",
    "LR=1; IFS= read -r LR <<< 6; RUN --a $LR",
    "LR=1; exec {LR}>/dev/null; RUN --a $LR",
    "LR=1; a[LR=5]=1; RUN --a $LR",
    "LR=1; : ${a[LR=5]}; RUN --a $LR",
    'LR=1; x="LR=5"; (( x )); RUN --a $LR',
    "LR=1; x=LR; (( $x = 5 )); RUN --a $LR",
    'LR=1; declare -i x="LR=5"; RUN --a $LR',
    'LR=1; [[ "LR=5" -eq 5 ]]; RUN --a $LR',
    'A=("")\nRUN --a ${A[@]} --b',
    "typeset -Z5 X=1; RUN --a $X",
    'F=x.sh; echo "RUN --a 1" > "$F"; chmod +x "$F"; ./"$F"',
    'cat > x.sh <<< "RUN --a 1"; bash x.sh',
    '{ echo "RUN --a 1"; } > x.sh; bash x.sh',
    'gen() { echo "RUN --a 1"; }; gen > x.sh; bash x.sh',
    'gen() { echo "RUN --a 1"; }; gen | xargs -L1 nohup',
    "gen() { echo \"RUN --a 1\"; }; gen | awk '{system($0)}'",
    "sed s/1/2/ <<EOF > y.sh\nRUN --a 1\nEOF\nbash y.sh",
    "cat <<EOF > y.sh\nRUN --a 1\nEOF\nsed -i s/1/2/ y.sh\nbash y.sh",
    "cd open_instruct && python ./finetune.py --a 1",
    "D=open_instruct; cd $D; python finetune.py --a 1",
    "(cd open_instruct; python finetune.py --a 1)",
    "env -C open_instruct python finetune.py --a 1",
    "python open_instruct//finetune.py --a 1",
    "python open_instruct/./finetune.py --a 1",
    "hash -p $(which python) foo; foo open_instruct/finetune.py --a 1",
    "cp $(which python) foo; ./foo open_instruct/finetune.py --a 1",
    'exec < <(echo "RUN --a 1"); bash',
    'exec 3< <(echo "RUN --a 1"); bash <&3',
    'bash -c -x "RUN --a 1"',
    'bash --rcfile <(echo "RUN --a 1") -i <<< ":"',
    "RUN --a 1 \\",
    "RUN --a x=~ --b ~root",
]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return a folder with a `python` that writes its arguments down, and the files that the
    scripts name.
    """
    (tmp_path / "bin").mkdir()
    (tmp_path / "work" / "open_instruct").mkdir(parents=True)
    stub = tmp_path / "bin" / "python"
    stub.write_text(STUB)
    stub.chmod(0o755)
    return tmp_path


def started_by_bash(folder: Path, script: str) -> list[list[str]]:
    """Run the script; return the arguments of each trainer that it starts."""
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": path,
        "STARTED": str(folder / "started"),
        "LC_ALL": "C.UTF-8",
    }
    subprocess.run(
        ["bash", "-c", script],
        cwd=folder / "work",
        env=environment,
        capture_output=True,
        check=False,
    )
    calls = [
        call.split("\0")[:-1]
        for call in (folder / "started").read_bytes().decode().split("\1\0")[:-1]
    ]
    return [call[1:] for call in calls if TRAINER.fullmatch(call[0])]


def may_become(arguments: tuple[Argument, ...], started: list[str]) -> bool:
    """Return True if the arguments that lint found may be those that bash passed."""
    if not arguments:
        return not started
    first, rest = arguments[0], arguments[1:]
    if not first.is_single:
        return any(may_become(rest, started[count:]) for count in range(len(started) + 1))
    if not started or not (
        started[0] == first.text if first.is_resolved else started[0].startswith(first.prefix)
    ):
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


@pytest.mark.parametrize("script", NEVER_ACCEPTED)
def test_nothing_is_accepted_that_bash_starts_otherwise(script: str, programs: Path) -> None:
    """Each was accepted once, or not seen: what bash starts may be what is found, or something is
    undecided.
    """
    script = script.replace("RUN", RUN)
    file = programs / "script.sh"
    file.write_bytes(script.encode())
    found = scan_file(file, explicit=True)
    started = started_by_bash(programs, script)
    assert started
    is_undecided = bool(found.unfollowed) or any(command.is_truncated for command in found.commands)
    assert is_undecided or all(
        any(may_become(command.arguments, it) for command in found.commands) for it in started
    )
