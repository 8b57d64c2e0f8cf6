"""`plan` fed with mutated lines and files, in one process: exit 0 or 2, sentences, and nothing left
behind.

A block is fifty examples of one kind, the same each time: one block runs always, the others are
marked slow. For other examples, and more of them: `LAUNCH_HOSTILE_SEED=7 LAUNCH_HOSTILE_BLOCKS=10
./scripts/test tests/commands/test_hostile_plan.py`.
"""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from launch.__main__ import main
from launch.commands.verbs import VERBS
from launch.config.compose import Composed, compose_once
from launch.config.line import CommandLine, parse_line
from launch.errors import UserError
from tests.config.test_ranges import RANGES
from tests.test_cures import follow_cures
from tests.thorough import mark_others

EXAMPLES = 50  # of a block
COUNT = int(os.environ.get("LAUNCH_HOSTILE_BLOCKS", "6"))
BLOCKS = [0, *(pytest.param(block, marks=pytest.mark.thorough) for block in range(1, COUNT))]
SEED = int(os.environ.get("LAUNCH_HOSTILE_SEED", "14"))
LINES = (
    ("stage=sft", "gpus=8"),
    ("stage=demo", "device=cpu", "trainer=trl_sft", "recipe.epochs=2"),
    ("stage=dpo", "gpus=2", "parallel=zero2", "recipe.beta=5", "name=mine"),
    ("stage=sft", "data.mix=[{name: ./chats.jsonl, share: 0.5}]", "data.format=chat"),
    ("stage=lora_sft", "recipe.lora.targets=[q_proj,v_proj]", "flags.warmup_steps=3"),
    ("stage=mine", "recipe.seed=3"),
)
KEYS = (
    *RANGES,
    *(
        "stage",
        "model",
        "data",
        "trainer",
        "parallel",
        "cluster",
        "name",
        "runs",
        "cache",
        "python",
        "allow",
    ),
    *(
        "model.path",
        "model.base",
        "data.mix",
        "data.columns",
        "recipe.chat_template",
        "recipe.lr_scheduler",
    ),
    *(
        "recipe.packing",
        "recipe.attention",
        "recipe.lora",
        "guards",
        "guards.stall",
        "cluster.time",
        "cluster.env",
    ),
    *(
        "flags.learning_rate",
        "flags.seed",
        "flags.tokenizer_name_or_path",
        "trainer.launch.model",
        "trainer.flags.x",
    ),
    *(
        "hub.push",
        "tracking",
        "upstream.dir",
        "tuned",
        "device",
        "stage.description",
        "model.shape",
        "data.build",
    ),
)
VALUES = (
    *(
        "",
        "0",
        "-1",
        "1",
        "3.5",
        "nan",
        "inf",
        "1e400",
        "true",
        "null",
        "[]",
        "{}",
        "x",
        "a b",
        "a=b",
        "~",
        ".",
    ),
    *(
        "..",
        "/",
        "/dev/null",
        "~nobody/x",
        "прогон",
        "\udcff",
        "\x1b[31m",
        "'",
        '"',
        "\\",
        "${x}",
        "${recipe}",
        "$",
    ),
    *(
        "[{name: X}]",
        "[{name: 3}]",
        "[1,2]",
        "{a: 1}",
        "[[",
        "}",
        "a,b",
        "9" * 30,
        "9" * 5000,
        "a" * 5000,
        "*.jsonl",
    ),
    *(
        "choice(1,2)",
        "${oc.env:NO_SUCH}",
        "???",
        "\n",
        "0x10",
        "1_000",
        "sft",
        "demo",
        "@",
        "a@b",
        "hf_" + "a" * 34,
    ),
)
CHARACTERS = "=,.:[]{}()'\"+~-@/\\ \t\n0a9é☃$#%&\x1b"
FILE = b"""# @package _global_
defaults:
  - sft
  - override /model: demo
  - _self_
stage:
  description: mine
recipe:
  seed: 3
  learning_rate: 1.0e-5
  lora: {rank: 8}
data:
  mix:
    - {name: ./chats.jsonl, share: 0.5}
guards:
  stall: null
flags:
  warmup_ratio: 0.1
"""


NOISE = (
    b"\xff",
    b"\x00",
    b":",
    b"{",
    b"'",
    b"\r",
    b"!!x ",
    b"${x}",
    b"\xd0\xbf",
    b"\xef\xbb\xbf",
    b"- ",
    b"|",
    b"%",
)
STARTS = (b" ", b"  ", b"\t", b"- ", b"#", b"? ", b"& ", b"*x ")
ROW = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
ROWS = (ROW * 400).encode()


def mutate_line(random: Random) -> list[str]:
    """A line that works, with one to three changes: a key, a value, a character, an argument twice
    or left out.
    """
    arguments = list(random.choice(LINES))
    for _ in range(random.randint(1, 3)):
        place = random.randrange(len(arguments))
        argument = arguments[place]
        at = random.randint(0, len(argument))
        change = random.randrange(6)
        if change == 0:
            prefix = random.choice(["", "", "", "+", "++", "~"])
            arguments.append(f"{prefix}{random.choice(KEYS)}={random.choice(VALUES)}")
        elif change == 1:
            arguments[place] = f"{argument.partition('=')[0]}={random.choice(VALUES)}"
        elif change == 2:
            arguments[place] = argument[:at] + random.choice(CHARACTERS) + argument[at:]
        elif change == 3:
            arguments[place] = argument[:at] + argument[at + 1 :]
        elif change == 4:
            arguments.append(argument)
        elif len(arguments) > 1:
            arguments.pop(place)
    return arguments


def mutate_file(random: Random, content: bytes) -> bytes:
    """A file with one to three changed bytes, lines, values and indentations."""
    rows = content.split(b"\n")
    for _ in range(random.randint(1, 3)):
        place = random.randrange(min(len(rows), 40))
        row = rows[place]
        at = random.randint(0, len(row))
        change = random.randrange(6)
        if change == 0:
            rows[place] = row[random.randint(0, 4) :]
        elif change == 1:
            rows[place] = random.choice(STARTS) + row
        elif change == 2:
            rows[place] = row[:at] + random.choice(NOISE) + row[at:]
        elif change == 3 and len(rows) > 1:
            rows.pop(place)
        elif change == 4:
            rows.insert(place, random.choice(rows))
        else:
            rows[place] = (
                row.partition(b":")[0] + b": " + random.choice(VALUES).encode("utf-8", "replace")
            )
    return b"\n".join(rows)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with data, and a folder of the user's own stages beside it."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path / "own"))
    (tmp_path / "own" / "stage").mkdir(parents=True)
    (tmp_path / "own" / "stage" / "mine.yaml").write_bytes(FILE)
    (home / "chats.jsonl").write_bytes(ROWS)
    return home


def plan(home: Path, arguments: list[str]) -> int:
    """Plan a line and check what every line must fulfil."""
    output, errors, began = io.StringIO(), io.StringIO(), time.process_time()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            code = main(["plan", *arguments])
        except SystemExit as end:  # Hydra's argument parser
            code = end.code if isinstance(end.code, int) else 1
    assert code in (0, 2), (arguments, code)
    # the first one imports; a busy machine doubles it
    assert time.process_time() - began < 10, arguments
    problems = errors.getvalue().splitlines()
    assert len(problems) <= 12 and all(len(line) < 6000 for line in problems), problems
    assert (
        "Traceback" not in errors.getvalue() and "\x1b" not in output.getvalue() + errors.getvalue()
    )
    assert code == 0 or problems, arguments
    if code == 0 and "--json" in arguments:
        json.loads(output.getvalue())
    # `cache=.` asks for the digests of files here
    digests = home / "digests.json"
    if "cache=." in arguments:
        digests.unlink(missing_ok=True)
    assert [path.name for path in home.iterdir()] == ["chats.jsonl"], arguments
    return code


def examples(block: int) -> Iterator[Random]:
    """Yield a source of randomness per example, each of its own seed."""
    for number in range(block * EXAMPLES, (block + 1) * EXAMPLES):
        yield Random(SEED * 1_000_000 + number)


@pytest.mark.parametrize("block", BLOCKS)
def test_no_line_ends_in_a_traceback(home: Path, block: int) -> None:
    for random in examples(block):
        plan(home, mutate_line(random))


@pytest.mark.slow
@pytest.mark.parametrize("blocks", mark_others([range(2), range(2, 4)], [range(2)]))
def test_no_cure_of_a_mutated_line_leads_back(home: Path, blocks: range) -> None:
    followed, dead = 0, list[tuple[object, ...]]()
    for random in itertools.chain.from_iterable(map(examples, blocks)):
        with contextlib.suppress(UserError):  # what is no line of overrides
            line = parse_line(["plan", *mutate_line(random)], list(VERBS))
            if not line.sweeps and not line.asks_hydra:
                count, ends = follow_cures(line)
                followed, dead = followed + count, dead + ends
    print(f"{followed} cures followed")
    assert dead == [] and followed > 10


@pytest.mark.parametrize("block", BLOCKS)
def test_no_stage_file_ends_in_a_traceback(home: Path, block: int) -> None:
    for random in examples(block):
        (home.parent / "own" / "stage" / "mine.yaml").write_bytes(mutate_file(random, FILE))
        plan(home, ["stage=mine", "gpus=1"])


@pytest.fixture
def compose_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose each line once a test: composing takes most of a plan, and does not read the data."""
    known: dict[tuple[str, ...], Composed] = {}

    def compose(line: CommandLine, task: Callable[[Composed], int]) -> int:
        key = tuple(line.argv)
        if key not in known:
            known[key] = compose_once(line)
        return task(copy.deepcopy(known[key]))

    monkeypatch.setattr("launch.commands.plan.compose", compose)


@pytest.mark.parametrize("block", BLOCKS)
def test_no_data_file_ends_in_a_traceback(home: Path, block: int, compose_each_once: None) -> None:
    for random in examples(block):
        (home / "chats.jsonl").write_bytes(mutate_file(random, ROWS))
        trainer = random.choice(["finetune", "trl_sft", "olmo_core_finetune"])
        plan(
            home, ["stage=sft", f"trainer={trainer}", "gpus=1", "data.mix=[{name: ./chats.jsonl}]"]
        )


def test_the_unchanged_lines_and_files_are_planned(home: Path) -> None:
    assert [plan(home, list(line)) for line in LINES if "chats" not in str(line)] == [0, 0, 0, 0, 0]


@pytest.mark.parametrize("path", ["~nosuchuser/x", "a" * 300, f"/tmp/{'b' * 5000}/x"])
@pytest.mark.parametrize(
    "argv",
    [
        *(
            "status runs=PATH",
            "logs x runs=PATH",
            "stop x runs=PATH",
            "logs PATH",
            "stop PATH",
            "report PATH",
        ),
        *(
            "lint PATH",
            "flags PATH",
            "flags finetune --upstream PATH",
            "compare PATH PATH",
            "merge PATH",
            "eval PATH",
        ),
        *(
            "new name data=PATH",
            "generate PATH prompt=x",
            "cluster name=PATH",
            "preview stage=sft model.path=PATH",
        ),
        *(
            "plan stage=sft flags.tokenizer_name_or_path=PATH",
            "rollout stage=sft gpus=1,2 runs=PATH",
            "upstream --upstream PATH",
        ),
    ],
)
def test_a_path_that_no_file_can_have(
    argv: str, path: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv.replace("PATH", path).split()) in (0, 2)
    problems = capsys.readouterr().err
    assert "Traceback" not in problems and len(problems) < 1500
    assert [each.name for each in home.iterdir()] == ["chats.jsonl"]


@pytest.mark.parametrize("variable", ["LAUNCH_CONFIG_DIR", "OPEN_INSTRUCT_DIR"])
@pytest.mark.parametrize("path", ["~nosuchuser/x", "a" * 300, "\udcff", "/dev/null/x"])
def test_a_variable_that_no_file_can_have(
    variable: str,
    path: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, path)
    assert main(["plan", "stage=sft"]) == 2
    assert 0 < len(capsys.readouterr().err) < 700
