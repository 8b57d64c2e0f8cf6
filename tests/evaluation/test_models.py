"""Which model a name means, and why a run has none."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.evaluation.models import (
    find_chain,
    find_model,
    find_run_or_model,
    require_chat_template,
)
from launch.execution.record.folder import RunFolder
from launch.execution.record.outcome import Outcome
from launch.execution.record.written import CheckpointRecorder
from tests.execution import files
from tests.execution.record.records import write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write_run(tmp_path / "runs" / "sft" / "good", steps=2)
    plan = {
        "schema_version": 1,
        "command": [sys.executable],
        "parallel": {"precision": "bf16"},
        "flags": {},
    }
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    files.model(folder / "model")
    RunFolder(folder).finish(Outcome(0, 1.0, 2, 3.0))
    return folder


def refusal(name: str, runs: Path) -> str:
    with pytest.raises(UserError) as refused:
        find_model(name, runs)
    return refused.value.problems[0].id


def test_a_run_and_its_folder_and_its_model_mean_the_same(run: Path) -> None:
    runs = run.parents[1]
    by_name, by_folder, by_model = (
        find_model(name, runs) for name in ("good", str(run), str(run / "model"))
    )
    assert by_name.folder == by_folder.folder == by_model.folder == run / "model"
    assert by_name.label == "sft/good"
    assert by_name.run == by_model.run == run


def test_an_export_below_the_model_folder_is_found(run: Path) -> None:
    shutil.rmtree(run / "model")
    files.model(run / "model" / "step10" / "hf_model")
    assert find_model("good", run.parents[1]).folder == run / "model" / "step10" / "hf_model"


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda run: (run / "DONE").unlink(), "run_without_model"),
        (lambda run: shutil.rmtree(run / "model"), "model_gone"),
        (lambda run: (run / "model/config.json").unlink(), "no_transformers_model"),
        (lambda run: files.cut(run / "model/model.safetensors"), "incomplete_model"),
        (
            lambda run: (run / "model/config.json").write_text(
                json.dumps({"architectures": ["LlamaForSequenceClassification"]})
            ),
            "not_generative",
        ),
    ],
)
def test_a_run_without_a_usable_model_is_refused(run: Path, damage, problem: str) -> None:  # type: ignore[no-untyped-def]
    damage(run)
    assert refusal("good", run.parents[1]) == problem


def test_an_adapter_without_its_base_is_refused(run: Path) -> None:
    (run / "model" / "config.json").unlink()
    (run / "model" / "model.safetensors").unlink()
    config = {"base_model_name_or_path": str(run / "gone"), "r": 8}
    (run / "model" / "adapter_config.json").write_text(json.dumps(config))
    files.safetensors(run / "model" / "adapter_model.safetensors", {"a": (2, 2)})
    assert refusal("good", run.parents[1]) == "adapter_base"


def test_a_chat_template_is_a_file_or_in_the_tokenizer(run: Path) -> None:
    model = find_model("good", run.parents[1])
    with pytest.raises(UserError, match="no_chat_template"):
        require_chat_template(model)
    (run / "model" / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": "{{ messages }}"})
    )
    require_chat_template(model)
    (run / "model" / "tokenizer_config.json").unlink()
    (run / "model" / "chat_template.jinja").write_text("{{ messages }}")
    require_chat_template(model)


@pytest.mark.parametrize("form", ["good/step_20", "sft/good/checkpoint-20", "path"])
def test_a_checkpoint_whose_weights_were_replaced_is_refused(run: Path, form: str) -> None:
    (run / "model").mkdir(exist_ok=True)
    recorder = CheckpointRecorder(run, run / "model")
    folder = files.model(run / "model" / "checkpoint-20")
    recorder.close(is_writing=True)
    name = str(folder) if form == "path" else form
    assert find_model(name, run.parents[1]).folder == folder
    files.safetensors(folder / "model.safetensors", {"embed": (8, 4), "head": (8, 4)})
    assert refusal(name, run.parents[1]) == "model_changed"


def test_a_checkpoint_that_would_import_other_code_is_refused(run: Path) -> None:
    """Although no attempt has recorded it: its launcher was killed."""
    folder = files.model(run / "model" / "checkpoint-20")
    assert find_model("good/step_20", run.parents[1]).folder == folder
    (folder / "optimizer.pt").write_bytes(b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R.")
    assert refusal("good/step_20", run.parents[1]) == "model_changed"


def test_a_checkpoint_is_named_by_its_step(run: Path) -> None:
    files.model(run / "model" / "checkpoint-20")
    (run / "model" / "step_30").mkdir()
    for name in ("good/step_20", "sft/good/checkpoint-20"):
        model = find_model(name, run.parents[1])
        assert (model.folder, model.run) == (run / "model" / "checkpoint-20", run)
    assert refusal("good/step_10", run.parents[1]) == "no_checkpoint"
    assert refusal("good/step_30", run.parents[1]) == "checkpoint_state"


def start_from(run: Path, model: str) -> None:
    plan = json.loads((run / "plan.json").read_text())
    plan["flags"] = {"model_name_or_path": {"value": model}}
    (run / "plan.json").write_text(json.dumps(plan))


def test_the_chain_goes_back_through_runs_to_the_base(run: Path, tmp_path: Path) -> None:
    base = files.model(tmp_path / "base")
    second = run.parents[1] / "dpo" / "second"
    shutil.copytree(run, second)
    start_from(run, str(base))
    start_from(second, str(run / "model"))
    chain = find_chain(find_model("second", run.parents[1]))
    assert [link.label for link in chain] == ["base", "sft/good", "dpo/second"]
    assert [link.folder for link in chain] == [base, run / "model", second / "model"]
    start_from(run, "nobody/of-the-hub")
    assert [link.label for link in find_chain(find_model("good", run.parents[1]))] == [
        "nobody/of-the-hub",
        "sft/good",
    ]
    start_from(run, str(tmp_path / "gone"))
    with pytest.raises(UserError) as refused:
        find_chain(find_model("second", run.parents[1]))
    assert refused.value.problems[0].id == "base_gone"


def test_a_hub_id_means_its_snapshot_in_the_cache(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "hub" / "models--someone--a-model" / "snapshots" / "abc"
    files.model(snapshot)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    model = find_model("someone/a-model", run.parents[1])
    assert (model.label, model.folder, model.run) == ("someone/a-model", snapshot, None)
    assert find_run_or_model("someone/a-model", run.parents[1]) == model
    assert find_run_or_model(str(run / "model"), run.parents[1]) == run
    assert refusal("someone/not-here", run.parents[1]) == "unknown_run"
