"""The digests of a run's model in DONE: every later use finds what has changed since."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from launch.config.origins import Provenance
from launch.digests import hash_file
from launch.errors import UserError
from launch.execution.completion import refuse_changes
from launch.planning.digest_cache import DigestCache
from launch.planning.input_source import InputSource
from launch.planning.saved_model import digest_model, find_changes, find_start_changes, run_of
from tests.conftest import machine_in, planned
from tests.execution import files

Change = Callable[[Path], object]


def finished_run(folder: Path) -> Path:
    run, base = folder / "runs" / "demo" / "one", folder / "base"
    for path in (run / "model", base):
        path.mkdir(parents=True)
        for name in ("model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"):
            (path / name).write_text(f"{path.name} {name}")
    digest = DigestCache(folder / "digests.json").of
    of_base = {"base": str(base), "base_files": digest_model(base, digest)}
    content = {"exit_code": 0, "model": {"files": digest_model(run / "model", digest), **of_base}}
    (run / "DONE").write_text(json.dumps(content))
    return run


def write(name: str, text: str = "other") -> Change:
    return lambda run: (run / "model" / name).write_text(text)


def below(name: str) -> Change:
    def add(run: Path) -> None:
        file = run / "model" / name
        file.parent.mkdir()
        file.write_text("other")

    return add


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda run: None, None),
        (write("model.safetensors"), "model.safetensors"),
        (write("config.json"), "config.json"),
        (write("chat_template.jinja", ""), "chat_template.jinja"),
        (write("adapter_config.json"), "adapter_config.json"),
        (write("generation_config.json"), "generation_config.json"),
        (write("modeling_evil.py"), "modeling_evil.py"),
        (lambda run: (run / "model" / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda run: shutil.rmtree(run / "model"), "model"),
        (
            lambda run: shutil.copytree(run.parents[2] / "base", run / "model", dirs_exist_ok=True),
            "2",
        ),
        (lambda run: (run.parents[2] / "base" / "model.safetensors").write_text("other"), "base"),
        (lambda run: shutil.rmtree(run.parents[2] / "base"), "base"),
        (below("additional_chat_templates/rag.jinja"), "additional_chat_templates/rag.jinja"),
        (below("sentencepiece/spm.model"), "sentencepiece/spm.model"),
        (write("preprocessor_config.json"), "preprocessor_config.json"),
        (write("model.safetensors.index.json", "{}"), "model.safetensors.index.json"),
        (write("tekken.json", "{}"), "tekken.json"),
        (write("quantize_config.json", "{}"), "quantize_config.json"),
        (below("checkpoint-10/model.safetensors"), None),
        (below("runs/events.out.tfevents.1"), None),
        (below("original/consolidated.00.pth"), None),
        (write(".gitattributes"), None),
        (write("README.md"), None),
        (write("training_args.bin"), None),
        (lambda run: (run / "model" / "checkpoint-10").mkdir(), None),
        # of a version without digests
        (lambda run: (run / "DONE").write_text('{"exit_code": 0}'), None),
    ],
)
def test_a_changed_model_or_base_is_named(
    tmp_path: Path, change: Change, found: str | None
) -> None:
    run = finished_run(tmp_path)
    change(run)
    problems = find_changes(run, DigestCache(tmp_path / "new.json").of)
    assert [found in problem.message for problem in problems] == [True] if found else problems == []


@pytest.mark.parametrize("place", ["hf_model", "dpo__1/hf_model"])
def test_an_exported_model_below_the_output_is_compared(tmp_path: Path, place: str) -> None:
    run = finished_run(tmp_path)
    export = run / "model" / place
    shutil.copytree(tmp_path / "base", export)
    digest = DigestCache(tmp_path / "digests.json").of
    (run / "DONE").write_text(json.dumps({"model": {"files": digest_model(run / "model", digest)}}))
    assert run_of(export) == run_of(run / "model") == run and run_of(tmp_path / "base") is None
    assert find_changes(run, digest) == []
    (export / "model.safetensors").write_text("other")
    [problem] = find_changes(run, digest)
    assert f"{place}/model.safetensors" in problem.message


def test_the_last_step_of_olmo_core_is_its_model(tmp_path: Path) -> None:
    for step in (9, 10):
        file = tmp_path / f"step{step}" / "model_and_optim" / "__0_0.distcp"
        file.parent.mkdir(parents=True)
        file.write_text("weights")
    (tmp_path / "step9" / "hf_model").mkdir()
    (tmp_path / "step9" / "hf_model" / "config.json").write_text("{}")
    assert digest_model(tmp_path, hash_file).keys() == {
        "step10/model_and_optim/__0_0.distcp",
        "step9/hf_model/config.json",
        "step9/model_and_optim/__0_0.distcp",  # beside an exported model
    }
    shutil.rmtree(tmp_path / "step9" / "hf_model")
    assert digest_model(tmp_path, hash_file).keys() == {"step10/model_and_optim/__0_0.distcp"}


def test_a_copy_that_keeps_the_times_is_found(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    refuse_changes(run)
    file = run / "model" / "model.safetensors"
    times = file.stat()
    other = tmp_path / "other"
    other.write_text("model model.safetensorz")
    shutil.copystat(file, other)
    shutil.copy2(other, file)
    assert file.stat().st_size == times.st_size and file.stat().st_mtime_ns == times.st_mtime_ns
    with pytest.raises(UserError, match=r"model\.safetensors.*\[model_changed\]"):
        refuse_changes(run)
    refuse_changes(run, ["model_changed"])


@pytest.mark.parametrize(
    "words",
    [
        ("stage=sft", "trainer=trl_sft", "device=cpu"),
        ("stage=sft", "trainer=trl_sft", "device=cpu", "allow=[incomplete_model]"),
        ("stage=sft", "trainer=olmo_core_finetune", "gpus=8"),
        ("stage=rlvr", "trainer=grpo_fast", "gpus=8"),
    ],
)
def test_every_trainer_refuses_a_model_that_is_not_the_one_of_its_run(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    run = files.model(tmp_path / "runs" / "demo" / "one" / "model").parent
    digest = DigestCache(tmp_path / "digests.json").of
    recorded = {"model": {"files": digest_model(run / "model", digest)}}
    (run / "DONE").write_text(json.dumps(recorded))
    line = (*words, f"model.path={run / 'model'}")
    assert "model_changed" not in ids_of(tmp_path, line)
    (run / "model" / "generation_config.json").write_text("{}")
    assert "model_changed" in ids_of(tmp_path, line)
    accepted = [word for word in line if not word.startswith("allow")]
    assert "model_changed" not in ids_of(tmp_path, (*accepted, "allow=[model_changed]"))


def ids_of(folder: Path, words: Sequence[str]) -> list[str]:
    """Return the ids of what a plan is refused for."""
    try:
        planned(*words, machine=machine_in(folder))
    except UserError as refused:
        return [problem.id for problem in refused.problems]
    return []


def test_a_model_that_another_run_was_to_make_is_compared_before_the_start(tmp_path: Path) -> None:
    """As between two stages of a pipeline, of which the second was planned before the first ran."""
    run = finished_run(tmp_path)
    source = InputSource(str(run / "model"), run / "model", None, Provenance("override", None))
    digest = DigestCache(tmp_path / "digests.json").of
    assert find_start_changes(source, digest) == []
    (run / "model" / "model.safetensors").write_text("of another run")
    assert [each.id for each in find_start_changes(source, digest)] == ["model_changed"]
