"""What the tests that really train share."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration import tiny_stage, warm
from tests.integration.demo_kit import give_demo, make_once
from tests.paths import ROOT


def launch_in(
    home: Path, *argv: str, python: str | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a command line of `launch` in a folder; `python`: the interpreter, that with warm ranks
    for None.
    """
    command = [python or warm.python(), "-m", "launch", *argv]
    environ = {**os.environ, **environ}
    return subprocess.run(
        command, cwd=home, env=environ, capture_output=True, text=True, timeout=600, check=False
    )


def start(home: Path, *words: str, python: str | None = None) -> subprocess.Popen[str]:
    """Start a run in a folder, which prints to its launch.log."""
    command = [python or warm.python(), "-P", "-m", "launch", "run", *words]
    with (home / "launch.log").open("w") as log:
        return subprocess.Popen(command, cwd=home, stdout=log, stderr=subprocess.STDOUT, text=True)


def finish(home: Path, *words: str, python: str | None = None) -> tuple[int, str]:
    """Return the exit code of a run and what it printed."""
    code = start(home, *words, python=python).wait(timeout=500)
    return code, (home / "launch.log").read_text()


def stop_once(
    home: Path, condition: Callable[[], bool], number: int, *words: str, python: str | None = None
) -> int:
    """Start a run, send its launcher a signal once the condition holds, and return its exit
    code.
    """
    running = start(home, *words, python=python)
    deadline = time.monotonic() + 300
    while not condition():
        assert running.poll() is None and time.monotonic() < deadline, (
            home / "launch.log"
        ).read_text()
        time.sleep(0.01)
    os.kill(running.pid, number)
    return running.wait(timeout=300)


def records(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a JSON Lines file; none if it is not there."""
    return (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if path.is_file()
        else []
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the runs of a module, with the demo's data and model."""
    pytest.importorskip("trl", reason="the `train` dependencies are not installed")
    return give_demo(tmp_path_factory, tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tiny_stage.TinyStage:
    """A tiny model and its data, made once."""
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    return tiny_stage.make(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def open_instruct() -> Path:
    """The open-instruct checkout."""
    folder = Path(os.environ.get("OPEN_INSTRUCT_DIR") or ROOT / "external" / "open-instruct")
    if not (folder / "open_instruct" / "finetune.py").is_file():
        pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR or fetch the submodule")
    return folder


@pytest.fixture(scope="session")
def trained_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `runs/demo/sft`: the demo's SFT of a few steps, made once for all tests."""
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")

    def train(home: Path) -> None:
        give_demo(tmp_path_factory, home)
        argv = (
            "stage=demo",
            "trainer=trl_sft",
            "name=sft",
            "recipe.max_steps=25",
            "recipe.checkpoint_steps=20",
        )
        done = launch_in(home, *argv)
        assert done.returncode == 0, done.stdout + done.stderr

    return make_once(tmp_path_factory, "trained-demo", train)


@pytest.fixture(scope="session")
def trained_adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `runs/demo_lora/sft`: a finished adapter of three steps."""
    pytest.importorskip("peft", reason="the `train` dependencies are not installed")

    def train(home: Path) -> None:
        give_demo(tmp_path_factory, home)
        done = launch_in(home, "stage=demo_lora", "name=sft", "recipe.max_steps=3")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "launch merge" in done.stdout

    return make_once(tmp_path_factory, "trained-adapter", train)


@pytest.fixture(scope="session")
def olmo3_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder of Olmo 3's kind: three layers of four see 4,096 tokens back. Its template
    writes the definitions and calls of functions, as Dolci's rows have them.
    """
    torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    pytest.importorskip("olmo_core", reason="the `open-instruct` dependencies are not installed")
    from transformers import AutoTokenizer, Olmo3Config, Olmo3ForCausalLM

    folder = tmp_path_factory.mktemp("third")
    tokenizer = AutoTokenizer.from_pretrained(tiny_stage.make(folder).model)
    tokenizer.bos_token = tokenizer.eos_token
    tokenizer.chat_template = tiny_stage.FUNCTIONS_TEMPLATE
    torch.manual_seed(0)
    model = Olmo3ForCausalLM(
        Olmo3Config(  # the shape of OLMo-core's preset olmo3_14M
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=8,
            rms_norm_eps=1e-6,
            rope_theta=500_000.0,
            max_position_embeddings=8192,
            sliding_window=4096,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    model.save_pretrained(folder / "third")
    tokenizer.save_pretrained(folder / "third")
    return folder / "third"


@pytest.fixture(scope="session")
def olmo_stage(tmp_path_factory: pytest.TempPathFactory) -> tiny_stage.TinyStage:
    """The tiny stage with an OLMo-2 of 2 million parameters: OLMo-core takes no Llama."""
    torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    pytest.importorskip("olmo_core", reason="the `open-instruct` dependencies are not installed")
    from transformers import AutoTokenizer, Olmo2Config, Olmo2ForCausalLM

    folder = tmp_path_factory.mktemp("flat")
    made = tiny_stage.make(folder)
    tokenizer = AutoTokenizer.from_pretrained(made.model)
    tokenizer.bos_token = tokenizer.eos_token  # as OLMo-2 has it: OLMo-core finds documents by it
    torch.manual_seed(0)
    model = Olmo2ForCausalLM(
        Olmo2Config(  # the shape of OLMo-core's preset olmo2_14M
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=8,
            rms_norm_eps=1e-6,
            rope_theta=500_000.0,
            max_position_embeddings=256,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    model.save_pretrained(folder / "flat")
    tokenizer.save_pretrained(folder / "flat")
    return tiny_stage.TinyStage(folder / "flat", made.chats, made.preferences)
