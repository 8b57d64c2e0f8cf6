"""The tutorial's commands for a CPU, carried out page by page; what a page shows of their output is
what they print.

Commands that need GPUs are planned in test_tutorial.py; those of the Slurm page run in
tests/slurm/test_tutorial.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.errors import EXIT_DONE, EXIT_REFUSED
from tests.docs.test_tables import unexplained
from tests.docs.test_tutorial import MISTAKE, commands
from tests.integration import warm
from tests.paths import ROOT

TUTORIAL = ROOT / "docs" / "tutorial"
_OF_RUNS = ("status", "logs", "merge", "new", "eval", "generate", "--version")
_OWN = ("stage=mine", "stage=mine_lora", "stage=guesses", "stage=colours")  # that the page drafts
_DURATION = re.compile(r"\d+ (?:h|min|s)\b(?: \d+ (?:min|s)\b)?")
_NUMBER = re.compile(r"\b[0-9a-f]{8}\b|\d[\d.:,]*(?:e-?\d+)?")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all pages: the demo's model and data are made once."""
    pytest.importorskip("trl", reason="the `train` dependencies are not installed")
    home = tmp_path_factory.mktemp("reader")
    write_files("own-data", home)
    train_with_transformers(home / "my_model")
    return home


def write_files(page: str, home: Path) -> None:
    """Run the page's Python; what begins with the name of a file is written to it."""
    text = (TUTORIAL / f"{page}.md").read_text(encoding="utf-8")
    for code in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if name := re.match(r"# (\S+\.py)\n", code):
            (home / name[1]).write_text(code, encoding="utf-8")
        else:
            subprocess.run([warm.python(), "-c", code], cwd=home, check=True)


def train_with_transformers(model: Path) -> None:
    """Write what another tool leaves: a model that transformers' own Trainer trained, without a
    chat template.
    """
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

    from launch.demo.make_model import build

    build(model, seed=1)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = None
    tokens = tokenizer("Colours are red, blue, green and grey.")["input_ids"]
    data = Dataset.from_list([{"input_ids": tokens, "labels": tokens}] * 8)
    arguments = TrainingArguments(
        str(model.with_name("another_tool")),
        max_steps=2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
    )
    trainer = Trainer(AutoModelForCausalLM.from_pretrained(model), arguments, train_dataset=data)
    trainer.train()
    shutil.rmtree(model)
    trainer.save_model(str(model))
    tokenizer.save_pretrained(model)


def carry_out(argv: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    environ = {
        **os.environ,
        "XDG_CONFIG_HOME": str(home / "config"),
        "OPEN_INSTRUCT_DIR": "",
        "HF_HUB_OFFLINE": "1",
    }
    command = [warm.python(), "-m", "launch", *argv]
    environ |= {"PYTHONPATH": str(ROOT), "LAUNCH_CONFIG_DIR": ""}
    return subprocess.run(
        command, cwd=home, env=environ, capture_output=True, text=True, timeout=900, check=False
    )


def for_a_cpu(page: Path) -> Iterator[list[str]]:
    """Yield the arguments of the page's commands that a machine without GPUs carries out, made
    short.
    """
    for _, argv in commands(page, with_mistakes=True):
        stage = next((word for word in argv if word.startswith("stage=")), None)
        if argv[0] in _OF_RUNS or (stage in _OWN and "gpus=8" not in argv and "--cfg" not in argv):
            yield argv
        elif stage and stage.startswith("stage=demo"):
            # what is evaluated has to be trained
            short = (
                argv
                if page.stem == "rlvr"
                else [re.sub(r"(steps)=\d+", r"\1=2", word) for word in argv]
            )
            if not any("steps=" in word for word in short):
                # it is evaluated
                short.append("recipe.max_steps=40" if page.stem == "demo" else "recipe.max_steps=2")
            if stage == "stage=demo" and "trainer=trl_sft" not in short:
                short.append("trainer=trl_sft")
            yield short


def shown_output(page: Path) -> list[str]:
    """Return the lines of output that the page shows, with # for what differs from run to run."""
    text = re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    lines = re.findall(r"^    ((?!launch |\{|\.\.\.)\S.*|  \S.*)$", text, re.MULTILINE)
    return [normalise(line) for line in lines if line.strip() != "..."]


def normalise(line: str) -> str:
    return " ".join(_NUMBER.sub("#", _DURATION.sub("# s", line)).split())


# the page that trains longest
_RLVR = pytest.param("rlvr", marks=pytest.mark.timeout(2400))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["demo", "own-data", "lora", "scale-up", _RLVR])
def test_the_page_is_carried_out(name: str, home: Path) -> None:
    page = TUTORIAL / f"{name}.md"
    if name == "rlvr":
        write_files(name, home)
    printed: list[str] = []
    done = 0
    for argv in for_a_cpu(page):
        process = carry_out(argv, home)
        code = EXIT_REFUSED if any(MISTAKE in word for word in argv) else EXIT_DONE
        assert process.returncode == code, f"{argv}\n{process.stdout}\n{process.stderr}"
        output = (process.stdout + process.stderr).replace(f"{home}/", "")
        printed += map(normalise, output.splitlines())
        done += 1
    for drafted in (home / "config").rglob("*.yaml"):
        printed += map(normalise, drafted.read_text(encoding="utf-8").splitlines())
    assert done
    assert [run for run in (home / "runs").glob("demo*/*1-*") if unexplained(run)] == []
    assert [line for line in shown_output(page) if not any(line in text for text in printed)] == []
