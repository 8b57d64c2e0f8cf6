"""The lexer against bash itself, and the parts of the language that decide which words a program
gets.
"""

from __future__ import annotations

import gc
import shutil
import subprocess
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launch.check.lint.expansion import expand_words
from launch.check.lint.lexer import lex
from launch.check.lint.shell import line_lookup
from launch.check.lint.shell_syntax import Argument, UnbalancedError
from launch.check.lint.variables import collect_variables

BASH = shutil.which("bash")


def commands(text: str) -> list[list[Argument]]:
    document = lex(text)
    variables = collect_variables(document, line_lookup(text))
    return [expand_words(command.words, variables) for command in document.commands]


def words(text: str) -> list[list[str]]:
    return [[argument.text for argument in arguments] for arguments in commands(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b  c", [["a", "b", "c"]]),
        ("a 'b c' \"d e\" f\\ g", [["a", "b c", "d e", "f g"]]),
        ("a \\\n  b", [["a", "b"]]),
        ("a b\\\nc", [["a", "bc"]]),
        ("a \\ \nb", [["a", " "], ["b"]]),
        ("a # b\nc", [["a"], ["c"]]),
        ("a b#c '#d'", [["a", "b#c", "#d"]]),
        ("a \\\n # note\n b", [["a"], ["b"]]),
        ("a; b && c || d | e & f", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ("a 2>&1 >x <y b >>z 2>/dev/null c &> log d", [["a", "b", "c", "d"]]),
        ("a '' \"\" b", [["a", "", "", "b"]]),
        ('a "x\\"y" "x\\\\y" "x\\y" "p\\\nq"', [["a", 'x"y', "x\\y", "x\\y", "pq"]]),
        ("a $'b c' $\"d e\"", [["a", "b c", "d e"]]),
        ('a "it\'s" \'say "hi"\'', [["a", "it's", 'say "hi"']]),
        ("cat <<EOF\nx 'y\nEOF\nb", [["cat"], ["b"]]),
        ("cat <<-'EOF'\n\tx \"y\n\tEOF\nb", [["cat"], ["b"]]),
        ("(a b); { c d; }", [["a", "b"], ["c", "d"], ["}"]]),
        ("if a; then b; elif c; then d; else e; fi", [["a"], ["b"], ["c"], ["d"], ["e"], ["fi"]]),
        (
            "case $x in a|b) c d;; *) e;; esac",
            [["case", "$x", "in", "a"], ["b"], ["c", "d"], ["*"], ["e"], ["esac"]],
        ),
        ("f() { a b; }", [["f"], ["a", "b"], ["}"]]),
        ("for ((i=0; i<3; i++)); do a; done", [["for"], ["a"], ["done"]]),
        ("(( i << 2 ))\na", [["a"]]),
        ("a {b} '{c,d}'", [["a", "{b}", "{c,d}"]]),
        ("[[ $a == (b|c) ]] && d", [["[[", "$a", "=="], ["b"], ["c"], ["]]"], ["d"]]),
    ],
)
def test_words(text: str, expected: list[list[str]]) -> None:
    assert words(text) == expected


def test_commands_of_substitutions_stand_where_they_are_written() -> None:
    assert words('x=$(a b)\ny=`trl sft d`\ne "$(f "g h")" <(i j)') == [
        ["x=$(a b)"],
        ["a", "b"],
        ["y=`trl sft d`"],
        ["trl", "sft", "d"],
        ["e", '$(f "g h")', "<(i j)"],
        ["f", "g h"],
        ["i", "j"],
    ]


@pytest.mark.parametrize(
    ("word", "is_resolved", "is_single"),
    [
        ("plain", True, True),
        ("$X", False, False),
        ('"$X"', False, True),
        ('"${X:+1}"', False, True),
        ("${X:+1}", False, False),
        ("$(date)", False, False),
        ('"a-$(date)"', False, True),
        ('"${A[@]}"', False, False),
        ('"$@"', False, False),
        ("$1", False, False),
        ("{a,b}", False, False),
        ("'$X'", True, True),
        ("\\$X", True, True),
    ],
)
def test_what_is_unknown_and_what_may_become_several_words(
    word: str, is_resolved: bool, is_single: bool
) -> None:
    (command, *_) = commands(f"a {word}")
    assert (command[1].is_resolved, command[1].is_single) == (is_resolved, is_single)


def test_lines_are_those_of_the_words() -> None:
    (command,) = commands("a \\\n  b 'c\nd' \\\n  e")
    assert [(argument.text, argument.line) for argument in command] == [
        ("a", 1),
        ("b", 2),
        ("c\nd", 2),
        ("e", 4),
    ]


@pytest.mark.parametrize(
    "text", ["a 'b", 'a "b', "a $(b", "a ${b", "a `b", "a $((1", "X=(a b", "cat <<EOF\nx"]
)
def test_what_is_never_closed_raises_and_tolerance_cuts_it_off(text: str) -> None:
    with pytest.raises(UnbalancedError):
        lex(text)
    document = lex(text, tolerant=True)
    assert document.commands
    assert document.unbalanced is not None or text.startswith("cat")


@pytest.mark.parametrize(
    "piece",
    [
        "python x --a b\n",
        "a 'b c' \"d $e\" f\\ g; ",
        "$((1)) ",
        "$(a) ",
        "`a` ",
        "${a:-b} ",
        "(( 1 ))\n",
        "x=(a b)\n",
        "a \\\n",
        "# note\n",
        '"',
        "'",
        "$(",
        "`",
        "${",
        "((",
        "a() { ",
        "<<E\n",
    ],
)
def test_the_time_is_linear(piece: str, request: pytest.FixtureRequest) -> None:
    gc.disable()  # a collection walks everything that the other tests have left
    request.addfinalizer(gc.enable)

    def seconds(size: int) -> float:
        text = piece * (size // len(piece))
        start = time.process_time()
        try:
            lex(text)
        except UnbalancedError:
            lex(text[: size // 10], tolerant=True)
        return time.process_time() - start

    small, large = min(seconds(20_000) for _ in range(3)), min(seconds(160_000) for _ in range(3))
    assert large < 0.1 or large < 40 * small  # 8 times the text; quadratic would be 64 times


plain = st.text("abz09-_=./:,%+@", min_size=1, max_size=6)
inside = st.text("abz09 -_=./:,{}()#;&|<>*", max_size=8)
part = st.one_of(
    plain,
    inside.map(lambda text: f"'{text}'"),
    inside.map(lambda text: f'"{text}"'),
    st.sampled_from(list(" \"'\\$`#;&|<>(){}*")).map(lambda char: "\\" + char),
    st.sampled_from(
        ["${ONE}", '"$ONE"', "${TWO}", '"${TWO}"', '"${LIST[@]}"', '"a $ONE $TWO b"', '"\\$ONE"']
    ),
    st.just("\\\n"),
)
word = st.lists(part, min_size=1, max_size=4).map("".join)
separator = st.sampled_from([" ", "  ", "\t", " \\\n  "])
lines = st.lists(st.tuples(separator, word), max_size=6).map(
    lambda pairs: "".join(a + b for a, b in pairs)
)

PREAMBLE = "ONE=1e-5\nTWO='two words'\nLIST=(--x 'y z' \"$ONE\")\n"


@pytest.mark.skipif(BASH is None, reason="needs bash to compare with")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(lines, min_size=1, max_size=8))
def test_bash_agrees(rest: list[str]) -> None:
    """Random words with every kind of quotes and known variables: the program gets what bash gives
    it.
    """
    assert BASH is not None
    text = PREAMBLE + "".join(f"show{line}\n" for line in rest)
    script = "set -f\nshow() { printf '%s\\0' \"$@\" $'\\1'; }\n" + text
    output = subprocess.run([BASH, "-c", script], capture_output=True, check=True).stdout.decode()
    expected = [call.split("\0")[:-1] for call in output.split("\1\0")[:-1]]
    ours = commands(text)[-len(rest) :]
    assert all(argument.is_resolved for call in ours for argument in call)
    assert [[argument.text for argument in call[1:]] for call in ours] == expected


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from(list("ab \n\t\"'\\$`#;&|<>(){}[]=1EOF"))))
def test_any_text_is_read_without_a_crash(text: str) -> None:
    document = lex(text, tolerant=True)
    line_of = line_lookup(text)
    for command in document.commands:
        for argument in expand_words(command.words, collect_variables(document, line_of)):
            assert 1 <= argument.line <= text.count("\n") + 1
