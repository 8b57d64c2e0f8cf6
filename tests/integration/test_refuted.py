"""Real trainers with a fault in their own process: each run is stopped, and names the key.

The fault is planted by tests/integration/planted/sitecustomize.py, which the trainer's interpreter
imports at its start. The evidence knows nothing of it. Those marked `planted` take half an hour on
two cores, and are run by ./scripts/test --planted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from launch.config.recipe_keys import KEYS
from launch.errors import EXIT_DONE, EXIT_STOPPED
from tests.config.test_recipe_keys import STARTED, can_be_set
from tests.config.test_recipe_keys import TRAINERS as CONFIGS
from tests.integration import warm
from tests.integration.conftest import launch_in
from tests.integration.test_olmo_core import RECIPE
from tests.integration.test_rlvr import LENGTH, small
from tests.integration.tiny_stage import TinyStage, marked_template

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("open_instruct")]

_PLANTED = Path(__file__).parent / "planted"
_ROWS = 24  # of each of the two files
_SHARED = (
    "device=cpu",
    "report=false",
    "recipe.lr_scheduler=linear",
    "recipe.epochs=2",
    "recipe.max_steps=null",
    "recipe.seed=7",
    "recipe.max_seq_length=128",
    "recipe.global_batch_size=4",
    "recipe.per_device_batch_size=2",
)


_ADAPTER = ("recipe.lora.rank=4", "recipe.lora.alpha=16")
_CONSTANT = ("recipe.lr_scheduler=constant",)
_ONE_EPOCH = ("recipe.epochs=1",)


@dataclass(frozen=True)
class Trainer:
    """How a trainer is started, and the faults that it can have, each with more overrides."""

    words: tuple[str, ...]
    data: str  # chats, preferences or labels; empty for the demo's prompts
    faults: Mapping[str, tuple[str, ...]]


_PLAIN = dict.fromkeys(("rate", "schedule", "epoch", "rows", "seed", "limit"), ())
_SFT = {**_PLAIN, "alpha": _ADAPTER}
_DPO = {**_SFT, "beta": ()}
TRAINERS = {
    "trl_sft": Trainer(("stage=demo", "recipe.chat_template=marked.jinja"), "chats", _SFT),
    "finetune": Trainer(("stage=demo",), "chats", _SFT),
    "trl_dpo": Trainer(("stage=demo_dpo",), "preferences", _DPO),
    "dpo_tune_cache": Trainer(("stage=demo_dpo",), "preferences", _DPO),
    "trl_kto": Trainer(("stage=demo_kto",), "labels", _DPO),
    "reward_modeling": Trainer(
        ("stage=rm",),
        "preferences",
        # its schedule would count two epochs twice (epochs_in_schedule)
        {
            **dict.fromkeys(_PLAIN, (*_ONE_EPOCH, *_CONSTANT)),
            "schedule": _ONE_EPOCH,
            "epoch": _CONSTANT,
        },
    ),
}
OLMO_CORE_TRAINERS = {
    "dpo": Trainer(("stage=dpo",), "preferences", {**_PLAIN, "beta": ()}),
    "olmo_core_finetune": Trainer(("stage=sft",), "chats", _PLAIN),
}
RLVR_TRAINERS = {
    "trl_grpo": Trainer(
        (),
        "",
        {
            **dict.fromkeys(("rate", "schedule", "epoch", "seed"), ()),
            "beta": ("recipe.kl_beta=0.05",),
            "alpha": _ADAPTER,
        },
    )
}
# What each fault changes: a recipe key, or the data.
FAULTS = {
    "rate": "learning_rate",
    "schedule": "lr_scheduler",
    "epoch": "epochs",
    "beta": "beta",
    "rows": "data.mix",
    "alpha": "lora.alpha",
}
# The id that each fault is stopped by.
IDS = {
    "rate": "refuted_learning_rate",
    "schedule": "refuted_lr_scheduler",
    "epoch": "refuted_epochs",
    "beta": "refuted_beta",
    "rows": "refuted_mixture",
    "alpha": "refuted_lora_alpha",
    "seed": "refuted_seed",
    "limit": "refuted_max_seq_length",
    "kl_beta": "refuted_kl_beta",
}
# Faults that a trainer cannot have, beside those in a key that it lacks.
CANNOT = {
    ("trl_grpo", "rows"): "the demo of RLVR builds its one data set, whose rows nobody stages"
}


OLMO_CORE = (
    *(word for word in RECIPE if not word.startswith(("recipe.max_steps", "recipe.warmup"))),
    "recipe.per_device_batch_size=1",
    "processes=1",
)


def planted(fault: str) -> dict[str, str]:
    """Return the variables with which a trainer's interpreter plants a fault."""
    return {"PYTHONPATH": str(_PLANTED), "LAUNCH_TEST_FAULT": fault}


def label(line: str, is_good: bool) -> str:
    """Return the line of a chat with a label."""
    return json.dumps({**json.loads(line), "label": is_good}) + "\n"


def write_rows(home: Path, tiny: TinyStage, kind: str) -> str:
    """Write two files of rows, and return the mixture of the one and of half of the other."""
    source = tiny.preferences if kind == "preferences" else tiny.chats
    lines = source.read_text(encoding="utf-8").splitlines(keepends=True)
    if kind == "labels":
        lines = [label(line, number % 2 == 0) for number, line in enumerate(lines)]
    for name, start in (("first", 0), ("second", _ROWS)):
        file = home / f"{name}.jsonl"
        file.write_text("".join(lines[start : start + _ROWS]), encoding="utf-8")
    return "data.mix=[{name: first.jsonl}, {name: second.jsonl, share: 0.5}]"


def train(
    home: Path, tiny: TinyStage, trainer: str, fault: str, *more: str
) -> tuple[int, str, dict[str, dict[str, str]]]:
    """Return the exit code of a run with a fault, its output and its evidence."""
    spec = TRAINERS[trainer]
    shared = (f"name={trainer}", f"trainer={trainer}", f"model.path={tiny.model}", *_SHARED)
    (home / "marked.jinja").write_text(marked_template(), encoding="utf-8")
    words = {word.partition("=")[0]: word for word in (*shared, *spec.words, *more)}
    done = launch_in(
        home,
        "run",
        write_rows(home, tiny, spec.data),
        *words.values(),
        python=warm.python_with_cold_ranks(),
        **planted(fault),
    )
    files = list(home.glob("runs/*/*/evidence.json"))
    content = json.loads(files[0].read_text(encoding="utf-8")) if files else {"items": []}
    items = {item["what"]: item for item in content["items"]}
    return done.returncode, done.stdout + done.stderr, items


@pytest.mark.planted
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_sound_run_is_proven(trainer: str, tmp_path: Path, tiny: TinyStage) -> None:
    code, output, items = train(tmp_path, tiny, trainer, "")
    assert code == EXIT_DONE, output
    assert {items[name]["verdict"] for name in ("seed", "mixture", "max_seq_length")} == {"proven"}


def each_fault(trainers: Mapping[str, Trainer]) -> list[tuple[str, str]]:
    return [(trainer, fault) for trainer, spec in trainers.items() for fault in spec.faults]


def test_every_trainer_has_every_fault_or_no_such_key() -> None:
    """`grpo` and `grpo_fast` are planned, and not started."""
    planted_faults = {
        *each_fault(TRAINERS),
        *each_fault(OLMO_CORE_TRAINERS),
        *each_fault(RLVR_TRAINERS),
    }
    assert {trainer for trainer, _ in planted_faults} == set(STARTED)
    for name in STARTED:
        for fault, key in FAULTS.items():
            lacks_key = key in KEYS and not can_be_set(key, CONFIGS[name])
            is_planted = (name, fault) in planted_faults
            assert is_planted or lacks_key or (name, fault) in CANNOT, (name, fault)


@pytest.mark.planted
@pytest.mark.parametrize(("trainer", "fault"), each_fault(TRAINERS))
def test_a_planted_fault_stops_the_run(
    trainer: str, fault: str, tmp_path: Path, tiny: TinyStage
) -> None:
    code, output, _ = train(tmp_path, tiny, trainer, fault, *TRAINERS[trainer].faults[fault])
    assert code == EXIT_STOPPED, output
    assert f"[{IDS[fault]}]" in output


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "code", "says"),
    [
        ("", EXIT_DONE, "an epoch dealt 36 sequences"),
        ("repeats", EXIT_STOPPED, "trained tokens dealt in an epoch"),
    ],
)
def test_what_two_ranks_deal_in_an_epoch_is_added(
    fault: str, code: int, says: str, tmp_path: Path, tiny: TinyStage
) -> None:
    found, output, items = train(tmp_path, tiny, "trl_sft", fault, "processes=2")
    assert found == code, output
    assert says in f"{items['mixture']['found']} {items['mixture']['note']}"
    assert ("[refuted_mixture]" in output) is bool(fault)


@pytest.mark.thorough
def test_a_staged_file_that_was_cut_is_staged_again(tmp_path: Path, tiny: TinyStage) -> None:
    assert train(tmp_path, tiny, "trl_sft", "rate")[0] == EXIT_STOPPED  # it stages the rows
    first, second = tmp_path.glob("runs/.cache/data/*/train.jsonl")
    for file in (first, second):
        rows = file.read_text(encoding="utf-8").splitlines(keepends=True)
        file.write_text("".join(rows[:4]), encoding="utf-8")
    code, output, _ = train(tmp_path, tiny, "trl_sft", "", "name=cut")
    assert code == 0, output
    assert output.count(f"staged {_ROWS} rows") == 2


@pytest.mark.planted
@pytest.mark.parametrize(("trainer", "fault"), each_fault(RLVR_TRAINERS))
def test_a_fault_of_rlvr_stops_the_run(home: Path, trainer: str, fault: str) -> None:
    (home / "length.py").write_text(LENGTH, encoding="utf-8")
    words = (
        "recipe.max_steps=null",
        "recipe.epochs=2",
        "recipe.lr_scheduler=linear",
        f"trainer={trainer}",
        *RLVR_TRAINERS[trainer].faults[fault],
    )
    done = launch_in(
        home,
        "run",
        *small(*words, f"name={fault}"),
        python=warm.python_with_cold_ranks(),
        **planted(fault),
    )
    id = IDS["kl_beta" if fault == "beta" else fault]
    assert done.returncode == EXIT_STOPPED, done.stdout + done.stderr
    assert f"[{id}]" in done.stdout + done.stderr


@pytest.mark.planted
@pytest.mark.parametrize(("trainer", "fault"), each_fault(OLMO_CORE_TRAINERS))
def test_a_fault_of_olmo_core_stops_the_run(
    trainer: str, fault: str, tmp_path: Path, olmo_stage: TinyStage
) -> None:
    spec = OLMO_CORE_TRAINERS[trainer]
    words = {word.partition("=")[0]: word for word in (*_SHARED, *OLMO_CORE, *spec.words)}
    done = launch_in(
        tmp_path,
        "run",
        f"trainer={trainer}",
        f"name={fault}",
        f"model.path={olmo_stage.model}",
        write_rows(tmp_path, olmo_stage, spec.data),
        *words.values(),
        *spec.faults[fault],
        python=warm.python_with_cold_ranks(),
        **planted(fault),
    )
    assert done.returncode == EXIT_STOPPED, done.stdout + done.stderr
    assert f"[{IDS[fault]}]" in done.stdout + done.stderr
