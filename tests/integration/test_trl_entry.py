"""launch's entry over TRL, training: the losses are those of TRL's own scripts, and nothing of TRL
is replaced.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.jobs import run_jobs
from tests.integration.tiny_stage import TinyStage
from tests.paths import ROOT
from tests.thorough import mark_others, selected
from tests.worker.ranks import ENTRY

pytestmark = pytest.mark.slow

FLAGS = (
    "--max_steps",
    "3",
    "--per_device_train_batch_size",
    "4",
    "--max_length",
    "64",
    "--bf16",
    "false",
)
COMMON = (
    *FLAGS,
    "--report_to",
    "none",
    "--logging_steps",
    "1",
    "--use_cpu",
    "true",
    "--save_strategy",
    "steps",
)
SAVING = (*COMMON, "--save_steps", "3", "--learning_rate", "1e-2")
EVALUATED = ("--eval_strategy", "steps", "--eval_steps", "2", "--dataset_test_split", "train")
# what TRL itself trains with and what launch's entry trains with, from the same flags
SAME = {
    "sft": ("trl.scripts.sft", ()),
    "sft bins": ("trl.scripts.sft", ("--packing", "true", "--packing_strategy", "bfd")),
    "sft evaluated": ("trl.scripts.sft", EVALUATED),
    "lora": ("trl.scripts.sft", ("--use_peft", "true", "--lora_r", "4")),
    # without PEFT's casts in training, and with them in evaluation
    "lora bf16": (
        "trl.scripts.sft",
        ("--use_peft", "true", "--bf16", "true", "--dtype", "bfloat16", *EVALUATED),
    ),
    "lora bf16 dropout": (
        "trl.scripts.sft",
        ("--use_peft", "true", "--bf16", "true", "--lora_dropout", "0.3"),
    ),
    "dpo": ("trl.scripts.dpo", ()),
    "dpo lora": ("trl.scripts.dpo", ("--use_peft", "true", "--lora_r", "4")),
}
# in every run of the suite; the others are thorough
KEPT = ("sft bins", "lora bf16 dropout")
TEXT = """{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] }}
{% endfor %}"""


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny: TinyStage
) -> Path:
    """A folder with the output of launch's entry and of TRL's script for each of SAME that is run."""
    scripts = Path(
        pytest.importorskip("trl", reason="the `train` dependencies are not installed").__file__
    ).parent
    root, jobs = tmp_path_factory.mktemp("same"), []
    for name in selected(request, list(SAME)):
        module, flags = SAME[name]
        data = tiny.chats if module.endswith("sft") else tiny.preferences
        own, theirs = (
            [str(ENTRY), "--entry", module, "--"],
            [str(scripts / "scripts" / f"{module.split('.')[-1]}.py")],
        )
        for whose, argv in {"ours": own, "theirs": theirs}.items():
            folder = root / name / whose
            folder.mkdir(parents=True)
            argv += ["--model_name_or_path", str(tiny.model), "--dataset_name", str(data.parent)]
            argv += ["--output_dir", str(folder / "out"), *SAVING, *flags]
            jobs.append(
                {
                    "argv": argv,
                    "env": {"HF_HUB_OFFLINE": "1"},
                    "cwd": str(folder),
                    "log": f"{folder}/log",
                }
            )
    run_jobs(root, jobs)
    return root


def history(folder: Path) -> list[dict[str, Any]]:
    """Return the log that the last checkpoint has."""
    state = folder / "out" / "checkpoint-3" / "trainer_state.json"
    assert state.is_file(), (folder / "log").read_text(encoding="utf-8")[-3000:]
    rows = json.loads(state.read_text(encoding="utf-8"))["log_history"]
    return [
        {name: row[name] for name in row if not name.endswith(("runtime", "per_second"))}
        for row in rows
    ]


@pytest.mark.parametrize("name", mark_others(list(SAME), KEPT))
def test_the_losses_are_those_of_trls_own_script(name: str, trained: Path) -> None:
    """To the bit: same flags, same data, same trainer."""
    ours = history(trained / name / "ours")
    assert ours == history(trained / name / "theirs")
    assert len([row for row in ours if "loss" in row]) == 3


WATCHED = """
import sys, types
sys.path.insert(0, {root!r})
from launch.worker import channel, trl_entry, trainer
import trl
from trl import DPOTrainer, SFTTrainer  # loads them
from trl.trainer import base_trainer


def attributes():
    found = {{}}
    for name, module in sorted(sys.modules.items()):
        if name.split(".")[0] != "trl":
            continue
        for key, value in vars(module).items():
            found[name, key] = id(value)
            if isinstance(value, type) and value.__module__.startswith("trl"):
                found.update({{(name, key, own): id(thing) for own, thing in vars(value).items()}})
    return found


before = attributes()
program = trainer.TrainerProgram(None, {module!r}, {flags!r})
trainer.prepare(program)
trl_entry.main(program, {options!r}, channel.EventWriter(None, 0))
after = attributes()
changed = [key for key in before if before[key] != after.get(key) and not key[-1].startswith(("__", "_abc"))]
print("CHANGED", changed)
"""


@pytest.mark.parametrize(
    ("module", "flags", "options"),
    [
        (
            "trl.scripts.sft",
            ("--padding_free", "true"),
            {"subset": "0.5", "validation": "0.1", "early_stop": "2"},
        ),
        pytest.param(
            "trl.scripts.dpo",
            (),
            {"subset": "12", "chat_template": "FILE"},
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_nothing_of_trl_is_replaced(
    module: str, flags: tuple[str, ...], options: dict[str, str], tmp_path: Path, tiny: TinyStage
) -> None:
    pytest.importorskip("trl", reason="the `train` dependencies are not installed")
    if "chat_template" in options:
        (tmp_path / "own.jinja").write_text(TEXT, encoding="utf-8")
        options = {**options, "chat_template": str(tmp_path / "own.jinja")}
    data = tiny.chats if module.endswith("sft") else tiny.preferences
    words = ("--model_name_or_path", str(tiny.model), "--dataset_name", str(data.parent))
    words += ("--output_dir", str(tmp_path / "out"), *COMMON, *flags)
    program = WATCHED.format(root=str(ROOT), module=module, flags=words, options=options)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "CHANGED []" in done.stdout
    if "chat_template" in options:
        assert (tmp_path / "out" / "chat_template.jinja").read_text(encoding="utf-8") == TEXT
