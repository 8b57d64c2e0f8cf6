"""A variable is substituted only where the text determines its value."""

from __future__ import annotations

import pytest

from tests.check.lint.helpers import commands_in, texts

USE = "python open_instruct/finetune.py --a $X\n"


def resolved_words(text: str) -> list[str] | None:
    """Return the words behind `--a`, None if they are unknown."""
    (command,) = commands_in(text)
    return (
        texts(command)[1:] if all(argument.is_resolved for argument in command.arguments) else None
    )


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("X=1", ["1"]),
        ("X='a b'", ["a", "b"]),
        ("X=", []),
        ("X=1; Y=2", ["1"]),
        ("X=1\nX+=2", ["12"]),
        ("X=${Y:-5}", ["5"]),
        ("Y=2\nX=${Y:-5}", ["2"]),
        ("X=${X:-5}", ["5"]),
        ('X=${X:-"5 6"}', ["5", "6"]),
        (": ${X:=5}", ["5"]),
        (': "${X:=5}"\n: ${X:=6}', ["5"]),
        ("Y=${X:=5}", ["5"]),
        (": ${Y:=5} ${X:=$Y}", ["5"]),
        ("X=1\n: ${X:=2}", ["1"]),
        ("export X=1", ["1"]),
        ("readonly X=1", ["1"]),
        ("Y=1\nX=$Y$Y", ["11"]),
        ("Y='a b'\nX=\"$Y c\"", ["a", "b", "c"]),
        ("X=1 && echo", ["1"]),
        ("N=4\nX=$((32 / $N / 2))", ["4"]),
        ("N=4\nX=$((N*(2+1)-20%7))", ["6"]),
        ("source .venv/bin/activate\nX=1", ["1"]),
        ("X=1\nsource .venv/bin/activate", ["1"]),
        ("source setup.sh\nX=1", ["1"]),
        ("if true; then Y=1; fi\nX=1", ["1"]),
    ],
)
def test_known(before: str, expected: list[str]) -> None:
    assert resolved_words(f"{before}\n{USE}") == expected


@pytest.mark.parametrize(
    "before",
    [
        "",
        "X=1\nX=2",
        "X=$1",
        "X=${1:-5}",
        "X=$(date)",
        "X=`date`",
        "if true; then X=1; fi",
        "for i in 1; do X=1; done",
        "while true; do X=1; done",
        "case $Y in a) X=1;; esac",
        "f() { X=1; }",
        "function f { X=1; }",
        "(X=1)",
        "true && X=1",
        "X=1 | cat",
        "X=1 &",
        "X=1 true",
        "X=1\nfor X in 2 3; do true; done",
        "X=1\nread X",
        "X=1\nunset X",
        "X=1\nprintf -v X 2",
        "X=1\nsource setup.sh",
        "X=1\n. ./setup.sh",
        'X=1\neval "$Y"',
        "X=5\nX+=${X:-1}",
        "X=${X:-'5'}",
        "X=$1\n: ${X:=2}",
        "if false; then :; elif [ ${X:=1} ]; then :; fi",
        "f() { : ${X:=1}; }\nf",
        "true && : ${X:=1}",
        ": ${X:=$1}",
        "if true; then : ${X:=1}; fi",
        "source setup.sh\n: ${X:=1}",
        ": ${X:=1}\nsource setup.sh",
        ": ${X:=1}\nX=2",
        "local X=1",
        "X[0]=1",
        "X=(1 2)",
        "X=$((1 / 0))",
        "X=$((Y + 1))",
        "X=$((010))",
        "X=$((2 ** 3))",
    ],
)
def test_unknown(before: str) -> None:
    assert resolved_words(f"{before}\n{USE}") is None


def test_an_assignment_behind_the_use_does_not_count() -> None:
    assert resolved_words(USE + "X=1\n") is None


def test_a_prefix_is_not_an_assignment() -> None:
    assert resolved_words("X=1 " + USE) is None


def test_arrays() -> None:
    array = 'A=(--b 2 # note\n  "c d" $Y)\n'
    (command,) = commands_in(array + 'python open_instruct/finetune.py "x${A[@]}z"')
    assert [
        (argument.text, argument.line, argument.is_resolved) for argument in command.arguments
    ] == [
        ("x--b", 3, True),
        ("2", 1, True),
        ("c d", 2, True),
        ("$Yz", 2, False),
    ]
    (command,) = commands_in('A=(--b 2)\nA+=(--c)\npython open_instruct/finetune.py "${A[@]}"')
    assert texts(command) == ["--b", "2", "--c"]
    branch = "A=(--b 2)\nif x; then\n A+=(--c $Y)\nfi\n"
    (command,) = commands_in(branch + 'python open_instruct/finetune.py "${A[@]}"')
    ((argument, possible),) = [(item, item.may_hold) for item in command.arguments]
    assert argument.is_single is argument.is_resolved is False
    assert [(word.text, word.line) for word in possible] == [("--b", 1), ("2", 1), ("--c", 3)]
    (command,) = commands_in("A=(--b 2)\npython open_instruct/finetune.py ${A[@]}")
    assert texts(command) == ["--b", "2"]


def test_part_of_a_value_may_be_unknown() -> None:
    (command,) = commands_in(
        'X="run-$(date +%s)"\npython open_instruct/finetune.py --a "$X" --b out/$X'
    )
    values = [
        (argument.text, argument.is_resolved, argument.prefix)
        for argument in command.arguments[1::2]
    ]
    assert values == [
        ("run-$(date +%s)", False, "run-"),
        ("out/run-$(date +%s)", False, "out/run-"),
    ]


def test_values_that_grow_without_end_are_unknown() -> None:
    text = "X0=aaaaaaaaaa\n" + "".join(f"X{i}=$X{i - 1}$X{i - 1}$X{i - 1}\n" for i in range(1, 40))
    (command,) = commands_in(text + "python open_instruct/finetune.py --a $X39")
    assert not command.arguments[1].is_resolved
