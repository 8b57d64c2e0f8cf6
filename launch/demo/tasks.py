"""The demo's data: small questions about Python whose answers Python computes, the same bytes
everywhere.

`make_tasks` draws them from the floats of a seeded `random.Random`, which Python promises to keep,
and splits them by their answers: neither a question that is held out nor its answer is ever trained
on.
"""

from __future__ import annotations

import json
import random
import string
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain

SEED = 0
_RAMBLING = "{}, if I am not mistaken."
TRAINED = 600  # tasks of each kind to train on
HELD_OUT = 25  # of each kind, with as many answers: a constant answer is right at most once, 4%
_PAIRS = 200  # of each kind
_SHARE = 5  # one answer in so many is held out
# How the chats answer, in twenty: the answer alone, in a sentence, with a full stop. People do not
# all write alike, and of two kinds they mostly write sentences. DPO teaches that the answer alone
# is better, and RLVR that only it is right.
_FORMS = ("{}", _RAMBLING, "{}.")
_SHARES = (9, 6, 5)
_TALKED_OF = {"split": (6, 9, 5), "list": (6, 9, 5)}


@dataclass(frozen=True)
class Task:
    """A question and its only right answer."""

    kind: str
    expression: str
    answer: str

    @property
    def question(self) -> str:
        return f"What is {self.expression}?"


class Draw:
    """Draws by `Random.random` alone: `choice`, `sample` and `shuffle` may differ between versions
    of Python.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, count: int) -> int:
        """Return an integer from 0 to count - 1."""
        return int(self._random.random() * count)

    def pick(self, characters: str, count: int) -> str:
        """Return `count` different characters in random order."""
        left = list(characters)
        return "".join(left.pop(self.below(len(left))) for _ in range(count))

    def letters(self, count: int) -> str:
        return self.pick(string.ascii_lowercase, count)


def _slice(draw: Draw) -> str:
    start = draw.below(3)
    return f'"{draw.letters(5)}"[{start}:{start + 3}]'


def _reverse(draw: Draw) -> str:
    return f'"{draw.letters(4)}"[::-1]'


def _case(draw: Draw) -> str:
    word = draw.letters(5)
    method = ("upper", "title", "swapcase")[draw.below(3)]
    if method == "swapcase":
        word = word.capitalize()
    return f'"{word}".{method}()'


def _split(draw: Draw) -> str:
    return f'"{draw.letters(2)} {draw.letters(2)}".split()'


def _convert(draw: Draw) -> str:
    return f'"{draw.letters(3)}".encode().hex()'


def _list(draw: Draw) -> str:
    first, second, third, fourth = (draw.below(10) for _ in range(4))
    return f"[{first}, {second}] + [{third}, {fourth}]"


def _sort(draw: Draw) -> str:
    return f"sorted([{', '.join(draw.pick(string.digits, 4))}])"


def _count(draw: Draw) -> str:
    letters = "".join(letter * (1 + draw.below(6)) for letter in "abc")
    return f'["{draw.pick(letters, len(letters))}".count(c) for c in "abc"]'


_KINDS: dict[str, Callable[[Draw], str]] = {
    "slice": _slice,
    "reverse": _reverse,
    "case": _case,
    "split": _split,
    "convert": _convert,
    "list": _list,
    "sort": _sort,
    "count": _count,
}
KINDS = tuple(_KINDS)


@cache
def make_tasks() -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """Return the tasks to train on and those that are held out, the kinds in turn."""
    kinds = [_make_kind(kind, Draw(SEED + number)) for number, kind in enumerate(KINDS)]
    trained, held_out = (zip(*tasks, strict=True) for tasks in zip(*kinds, strict=True))
    return tuple(chain.from_iterable(trained)), tuple(chain.from_iterable(held_out))


def _make_kind(kind: str, draw: Draw) -> tuple[list[Task], list[Task]]:
    """Return tasks of one kind, no question twice and no answer that is held out twice."""
    trained: dict[str, Task] = {}  # by question
    held_out: dict[str, Task] = {}  # by answer
    while len(trained) < TRAINED or len(held_out) < HELD_OUT:
        expression = _KINDS[kind](draw)
        task = Task(kind, expression, compute_answer(expression))
        if zlib.crc32(task.answer.encode()) % _SHARE == 0:
            held_out.setdefault(task.answer, task)
        else:
            trained.setdefault(task.question, task)
    return list(trained.values())[:TRAINED], list(held_out.values())[:HELD_OUT]


def compute_answer(expression: str) -> str:
    """Return what Python prints for an expression."""
    return str(eval(expression, {"__builtins__": {}, "sorted": sorted}))


def spoil(answer: str, draw: Draw) -> str:
    """Return an answer that is nearly right: a letter is its neighbour's, or a digit is off by
    one.
    """
    places = [place for place, character in enumerate(answer) if character.isalnum()]
    number = draw.below(len(places))
    place = places[number]
    right = answer[place]
    wrong = answer[places[number - 1]].lower()
    if right.isdigit():
        wrong = (
            str(int(right) + 1)
            if right == "0" or (right < "9" and draw.below(2))
            else str(int(right) - 1)
        )
    elif wrong == right.lower() or wrong.isdigit():
        wrong = "a" if right.lower() == "z" else chr(ord(right.lower()) + 1)
    return answer[:place] + (wrong.upper() if right.isupper() else wrong) + answer[place + 1 :]


def make_rows(kind: str) -> bytes:
    """Return rows to train on, a JSON object a line in ASCII: `chats`, `preferences`, `labels`, or
    `prompts` without answers.
    """
    makers = {
        "chats": mixed_rows,
        "preferences": preference_rows,
        "labels": labelled_rows,
        "prompts": prompt_rows,
    }
    return "".join(f"{json.dumps(row)}\n" for row in makers[kind](make_tasks()[0])).encode("ascii")


def chat_rows(tasks: tuple[Task, ...]) -> Iterator[dict[str, object]]:
    """Yield the question and the answer of each task."""
    for task in tasks:
        yield {"messages": _conversation(task, task.answer)}


def mixed_rows(tasks: tuple[Task, ...]) -> Iterator[dict[str, object]]:
    """Yield the question and the answer of each task, the answer in one of the forms."""
    draw = Draw(SEED)
    for task in tasks:
        shares = _TALKED_OF.get(task.kind, _SHARES)
        forms = [form for form, share in zip(_FORMS, shares, strict=True) for _ in range(share)]
        yield {"messages": _conversation(task, forms[draw.below(len(forms))].format(task.answer))}


def preference_rows(tasks: tuple[Task, ...]) -> Iterator[dict[str, object]]:
    """Yield pairs of the last tasks: the right answer alone, and in turn a wrong one and one that
    rambles.
    """
    draw = Draw(SEED)
    for number, task in enumerate(tasks[-_PAIRS * len(KINDS) :]):
        is_wrong = (number // len(KINDS)) % 2 == 0
        rejected = spoil(task.answer, draw) if is_wrong else _RAMBLING.format(task.answer)
        yield {
            "chosen": _conversation(task, task.answer),
            "rejected": _conversation(task, rejected),
        }


def labelled_rows(tasks: tuple[Task, ...]) -> Iterator[dict[str, object]]:
    """Yield both answers of each pair as rows of their own: the right answer alone is good."""
    for pair in preference_rows(tasks):
        yield {"messages": pair["chosen"], "label": True}
        yield {"messages": pair["rejected"], "label": False}


def prompt_rows(tasks: tuple[Task, ...]) -> Iterator[dict[str, object]]:
    """Yield the question of each task, with the answer as its `ground_truth`."""
    for task in tasks:
        yield {"prompt": _conversation(task, task.answer)[:1], "ground_truth": task.answer}


def _conversation(task: Task, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": task.question}, {"role": "assistant", "content": answer}]
