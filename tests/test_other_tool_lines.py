"""Lines in the words of other tools: each is answered at once with the whole line that it is here.

other_tool_lines/lines.yaml has lines as they are typed, in a folder with small data
(other_tool_lines/folder.py), each with the command of its answer, which is planned where a stage's line
is one. A list has what the answer has to name besides.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from launch.__main__ import main
from launch.commands.verbs import VERBS
from launch.config.compose import expand_sweep
from launch.config.line import parse_line
from launch.errors import EXIT_REFUSED, UserError
from launch.planning.build import plan_line
from launch.planning.typed_line import PLAN_VERBS as PLANNED
from launch.planning.typed_line import read_line
from tests.other_tool_lines.folder import MODEL, write_folder

TABLE: dict[str, list[str]] = yaml.safe_load(
    (Path(__file__).parent / "other_tool_lines" / "lines.yaml").read_text("utf-8")
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lines")
    write_folder(path)
    return path


def answer_to(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the first message that a line is answered."""
    assert main(shlex.split(line)) == EXIT_REFUSED, "such a line starts nothing"
    return capsys.readouterr().err.splitlines()[0]


def lost_in(answer: str, line: str) -> list[str]:
    """Return the numbers, the files and the hub ids of a line that its answer has neither by their value
    nor by their name.
    """
    if "is not a command" in answer or "is a script" in answer or "program of your own" in answer:
        return []
    lost = []
    for name, value in read_line(shlex.split(line)).settings.items():
        parts = value if isinstance(value, list) else [value]
        is_shown = name in answer or not re.search(r"^[\d.e-]+$|/", str(parts[0]))
        if not is_shown and not any(str(part).partition(" ")[0] in answer for part in parts):
            lost.append(name)
    return lost


@pytest.mark.parametrize("line", TABLE)
def test_the_first_answer_has_the_command_that_was_meant(
    line: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    command, *named = (text.replace("MODEL", MODEL) for text in TABLE[line])
    answer = answer_to(line.replace("MODEL", MODEL), capsys)
    first = re.search(r"`([^`]+)`", answer)
    assert first and first[1] == command, answer
    assert [text for text in named if text not in answer] == []
    assert lost_in(answer, line.replace("MODEL", MODEL)) == []
    words = shlex.split(command)
    if (
        words[0] != "launch"
        or words[1] not in PLANNED
        or {"stage=NAME", "pipeline=sft,dpo"} & set(words)
    ):
        return
    planned = expand_sweep(parse_line(words[1:], list(VERBS)))[0].without("dry_run", "n")
    if "cannot be planned yet" in answer:
        with pytest.raises(UserError):
            plan_line(planned)
    else:
        plan_line(planned)


def test_a_reward_model_has_no_counterpart(capsys: pytest.CaptureFixture[str]) -> None:
    answer = answer_to("train stage=ppo reward_model=saves/rm", capsys)
    for named in ("saves/rm", "recipe.verifier", "without a value model", "stage=rlvr"):
        assert named in answer


def test_the_table_has_lines_of_every_tool() -> None:
    assert len(TABLE) >= 60
    planned = [line for line, (command, *_) in TABLE.items() if command.split()[1] in PLANNED]
    assert len(planned) >= 45


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("run --lr 2,5e-5", {"learning_rate": 2.5e-5}),
        ("run lr=1e-5,2e-5", {"learning_rate": "1e-5,2e-5"}),
        ("run epochs=three", {"epochs": 3}),
        ("run bf16=True", {"bf16": True}),
        ("run --fp16 --learning-rate=1e-5", {"fp16": True, "learning_rate": "1e-5"}),
        ("run --lora_target_modules q_proj v_proj", {"lora_target_modules": ["q_proj", "v_proj"]}),
        ("run data=rows.jsonl:alpaca", {"dataset_name": "rows.jsonl"}),
        ("run data=rows.jsonl#500", {"max_samples": 500, "dataset_name": "rows.jsonl"}),
        ("run cutoff_len=2k", {"max_seq_length": 2048}),
        ("run save_steps=2k", {"save_steps": 2000}),
        ("run warmup_ratio=3%", {"warmup_ratio": 0.03}),
        ("run --no_gradient_checkpointing", {"gradient_checkpointing": False}),
        ("run -t 12:00:00 -p h100", {"time": "12:00:00", "partition": "h100"}),
        ("run critic.model.path=me/critic", {"critic_model_path": "me/critic"}),
        ("run actor_rollout_ref.rollout.n=8", {"actor_rollout_ref_rollout_n": 8}),
        ("run learing_rate=2e-5", {"learning_rate": "2e-5"}),
    ],
)
def test_a_value_is_read_as_it_was_meant(line: str, settings: dict[str, object]) -> None:
    read = read_line(line.split()).settings
    assert list(read.values()) == list(settings.values())


@pytest.mark.parametrize(
    ("line", "overrides"),
    [
        ("run -N2 --gres=gpu:8", {"nodes": "2", "gpus": "8"}),
        ("run --gres gpu:h100:4", {"gpus": "4", "cluster.gpu_type": "h100"}),
        ("run --num_processes 16 --num_machines 2", {"nodes": "2", "gpus": "8"}),
        ("run --world_size 4", {"gpus": "4"}),
        ("run --config_file accelerate.yaml", {"nodes": "2", "gpus": "8"}),
        ("run trainer.nnodes=2 trainer.n_gpus_per_node=8", {"nodes": "2", "gpus": "8"}),
    ],
)
def test_the_ranks_of_every_tool_are_gpus_of_one_machine(
    line: str, overrides: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert read_line(line.split()).overrides == overrides


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("verl.yaml", ["file of verl", "recipe.verifier=reward.py:exact_reward", "gpus=8 nodes=2"]),
        ("torchtune.yaml", ["file of torchtune", "2 x 8 x 1 GPU = 16"]),
        ("llama_factory_merge.yaml", ["launch merge saves/lora"]),
    ],
)
def test_lint_gives_the_line_of_a_file(
    file: str,
    named: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    main(["lint", file])
    shown = capsys.readouterr().out
    assert [text for text in named if text not in shown] == []
