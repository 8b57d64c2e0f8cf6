"""A run that has a checkpoint of its last step and no model: what a resume without a step left may
end as.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import launch_in, records
from tests.thorough import mark_others

pytestmark = pytest.mark.slow
SFT = ("stage=demo", "trainer=trl_sft", "report=false", "recipe.max_steps=12")
WORDS = (*SFT, "recipe.checkpoint_steps=6", "name=last")


def write_lines(file: Path, values: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")


def cut_end(run: Path) -> None:
    """Remove what a run leaves after its last checkpoint."""
    (run / "DONE").unlink()
    for file in run.joinpath("model").glob("*.safetensors"):
        file.unlink()
    events = records(run / "events.jsonl")
    saving = next(at for at, event in enumerate(events) if event.get("phase") == "save")
    write_lines(run / "events.jsonl", events[:saving])


@pytest.fixture(scope="module")
def stopped(home: Path) -> Path:
    """A run as a launcher leaves it that is killed after the last checkpoint: no end and no model,
    and nothing of what the trainer reports when it saves one.
    """
    done = launch_in(home, *WORDS)
    assert done.returncode == 0, done.stdout + done.stderr
    run = home / "runs" / "demo" / "last"
    cut_end(run)
    written = [line["checkpoint"] for line in records(run / "checkpoints.jsonl")]
    assert set(written) == {"checkpoint-6", "checkpoint-12"}
    return run


@pytest.fixture
def resume(home: Path, stopped: Path, tmp_path: Path) -> Callable[..., tuple[int, str, Path]]:
    """Resume a copy in the run's place, changed by a function of its folder; the copy has other
    inodes.
    """

    def start(change: Callable[[Path], None]) -> tuple[int, str, Path]:
        saved = tmp_path / "saved"
        subprocess.run(["cp", "-a", stopped, saved], check=True)
        try:
            change(stopped)
            done = launch_in(home, *WORDS)
            result = tmp_path / "result"
            shutil.copytree(stopped, result)
            return done.returncode, done.stdout + done.stderr, result
        finally:
            shutil.rmtree(stopped)
            shutil.move(saved, stopped)

    return start


def scale(file: Path, factor: float) -> None:
    from safetensors.torch import load_file, save_file

    weights = {name: weight * factor for name, weight in load_file(file).items()}
    save_file(weights, file, {"format": "pt"})


def verdicts(run: Path) -> dict[str, tuple[str, str]]:
    items = json.loads((run / "evidence.json").read_text(encoding="utf-8"))["items"]
    return {
        item["what"]: (item["verdict"], item["note"] or "") for item in items if item["verdict"]
    }


def test_a_resume_without_a_step_left_takes_the_proofs_of_the_attempt_that_trained(
    resume: Callable[..., tuple[int, str, Path]],
) -> None:
    code, shown, run = resume(lambda run: None)
    assert code == 0, shown
    judged = verdicts(run)
    assert {verdict for verdict, _ in judged.values()} == {"proven"}
    assert "shown by attempt 1" in judged["first_update"][1]
    assert "shown by attempt" not in judged["saved_weights"][1]


def halve(run: Path) -> None:
    scale(run / "model" / "checkpoint-12" / "model.safetensors", 0.5)


def put_start(run: Path) -> None:
    [start] = (run.parents[1] / ".cache" / "demo").glob("model-*")
    shutil.copy(start / "model.safetensors", run / "model" / "checkpoint-12")


def spoil(run: Path) -> None:
    scale(run / "model" / "checkpoint-12" / "model.safetensors", float("nan"))


def put_earlier(run: Path) -> None:
    for name in ("model.safetensors", "optimizer.pt"):
        shutil.copy(run / "model" / "checkpoint-6" / name, run / "model" / "checkpoint-12" / name)


@pytest.mark.parametrize(
    "change", mark_others([halve, put_start, spoil, put_earlier], [put_earlier])
)
def test_a_checkpoint_whose_files_were_replaced_is_not_resumed(
    resume: Callable[..., tuple[int, str, Path]], change: Callable[[Path], None]
) -> None:
    code, shown, run = resume(change)
    assert code == 2 and "[foreign_checkpoint]" in shown, shown
    assert "model.safetensors changed" in shown
    assert not (run / "DONE").exists()


def forget_writer(run: Path) -> None:
    """As for a checkpoint that was written after its launcher had been killed."""
    (run / "checkpoints.jsonl").unlink()


def write_nan(run: Path) -> None:
    spoil(run)
    forget_writer(run)


def forget_training(run: Path) -> None:
    events = records(run / "events.jsonl")
    kept = [event for event in events if event.get("what") != "first_update"]
    write_lines(run / "events.jsonl", kept)


@pytest.mark.parametrize(
    ("change", "id"),
    [
        pytest.param(forget_writer, "unproven_", marks=pytest.mark.thorough),
        (write_nan, "refuted_saved_weights"),
        pytest.param(forget_training, "unproven_first_update", marks=pytest.mark.thorough),
    ],
)
def test_a_resume_without_a_step_left_that_lacks_a_proof_is_not_done(
    resume: Callable[..., tuple[int, str, Path]], change: Callable[[Path], None], id: str
) -> None:
    code, shown, run = resume(change)
    assert code == 3 and id in shown, shown
    assert not (run / "DONE").exists()


@pytest.mark.parametrize(
    ("trainer", "words"),
    [
        pytest.param(
            "finetune", ("stage=demo", "recipe.loss_averaging=tokens"), marks=pytest.mark.thorough
        ),
        pytest.param("dpo_tune_cache", ("stage=demo_dpo",), marks=pytest.mark.thorough),
        pytest.param("trl_dpo", ("stage=demo_dpo",), marks=pytest.mark.thorough),
        pytest.param(
            "trl_sft", ("stage=demo_lora", "recipe.lora.rank=4"), marks=pytest.mark.thorough
        ),
    ],
)
def test_each_trainer_that_resumes_proves_its_last_checkpoint(
    home: Path, request: pytest.FixtureRequest, trainer: str, words: tuple[str, ...]
) -> None:
    line = (*words, f"trainer={trainer}", "report=false", "recipe.max_steps=4", "name=ended")
    line += ("recipe.checkpoint_steps=2",)
    if not trainer.startswith("trl"):
        request.getfixturevalue("open_instruct")
    if trainer == "finetune":
        line += ("flags.clean_checkpoints_at_end=false",)
    done = launch_in(home, *line)
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = home.glob(f"runs/{words[0].removeprefix('stage=')}/ended")
    cut_end(run)
    done = launch_in(home, *line)
    assert done.returncode == 0 and "(attempt 2)" in done.stdout, done.stdout + done.stderr
    judged = verdicts(run)
    assert {verdict for verdict, _ in judged.values()} == {"proven"}
    assert "shown by attempt 1" in judged["first_update"][1]
    shutil.rmtree(run)
