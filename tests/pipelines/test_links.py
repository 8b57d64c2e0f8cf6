"""A pipeline before anything starts: its stages fit each other, stale runs are named, and a mistake
leaves nothing.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

import launch
from launch.__main__ import main
from launch.api.planning import pipeline_overrides
from launch.config.line import CommandLine
from launch.errors import UserError
from launch.execution.resume import is_finished
from launch.pipelines.engine import _describe_end
from launch.pipelines.links import FINAL_KINDS, Pipeline, plan_pipeline
from launch.pipelines.page import render_pipeline
from launch.pipelines.record import describe_stages, find_pipeline, stale_runs, write_record
from launch.planning.plan import Plan
from launch.worker.json_codec import versioned
from tests.paths import ROOT

TRL = ("demo:trainer=trl_sft", "demo_dpo:trainer=trl_dpo")
DEMO = ("pipeline=demo,demo_dpo", *TRL)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with stages of the user's own in `conf`."""
    stages = tmp_path / "conf" / "stage"
    stages.mkdir(parents=True)
    (stages / "other.yaml").write_text(
        "# @package _global_\ndefaults:\n  - demo_dpo\n  - override /model: qwen2_5_7b\n  - "
        "_self_\n"
    )
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path / "conf"))
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def planned(*overrides: str) -> Pipeline:
    line = CommandLine("plan", False, overrides or DEMO)
    pipeline = plan_pipeline(line, print)
    assert pipeline is not None
    return pipeline


def problem(*overrides: str) -> tuple[str, str]:
    with pytest.raises(UserError) as refused:
        planned(*overrides)
    return refused.value.problems[0].id, str(refused.value.problems[0])


def leave_run(plan: Plan, *, done: bool = True, **recorded: str) -> None:
    """Write what a run of the plan would leave, as far as a pipeline reads it."""
    (plan.folder / "model").mkdir(parents=True, exist_ok=True)
    (plan.folder / "plan.json").write_text(json.dumps({**versioned(plan), **recorded}))
    if done:
        (plan.folder / "DONE").write_text('{"exit_code": 0}')


LORA = ("demo:recipe.lora.rank=8", "demo_dpo:recipe.lora.start=continue")
MISTAKES = {
    "nothing": (("pipeline=",), "bad_value"),
    "twice": (("pipeline=demo,demo_dpo,demo", *TRL), "duplicate_stage"),
    "another stage's key": ((*DEMO, "rm:recipe.seed=1"), "not_in_pipeline"),
    "a reward model": (("pipeline=rm,dpo", "gpus=8"), "pipeline_model"),
    "no model": (
        (
            "pipeline=sft,dpo",
            "gpus=8",
            "sft:trainer=olmo_core_finetune",
            "sft:trainer.output_glob='step*'",
            "model=olmo2_1b",
            "sft:recipe.packing=bins",
        ),
        "pipeline_model",
    ),
    "a model in between": ((*DEMO, "demo_dpo:model.path=/elsewhere"), "pipeline_conflict"),
    "a model for all": ((*DEMO, "model.path=/elsewhere"), "pipeline_conflict"),
    "a sweep": ((*DEMO, "sweep=true"), "pipeline_conflict"),
    "another folder of runs": ((*DEMO, "demo:runs=elsewhere"), "pipeline_conflict"),
    "nothing to judge": ((*DEMO, "stop_if_worse=true"), "pipeline_conflict"),
    "another template": (
        (
            "pipeline=demo,demo_dpo",
            "demo:recipe.chat_template=tulu",
            "demo_dpo:recipe.chat_template=olmo",
        ),
        "other_chat_template",
    ),
    "another tokenizer": (
        ("pipeline=demo,demo_dpo", "demo_dpo:flags.tokenizer_name_or_path=gpt2"),
        "other_tokenizer",
    ),
    "another vocabulary": (
        ("pipeline=demo,other", "demo:trainer=trl_sft", "other:trainer=trl_dpo"),
        "other_vocabulary",
    ),
    "no adapter": ((*DEMO, LORA[1], "demo_dpo:recipe.lora.rank=8"), "nothing_to_continue"),
    "another rank": ((*DEMO, *LORA, "demo_dpo:recipe.lora.rank=4"), "lora_rank"),
    "another adapter": (
        (*DEMO, *LORA, "demo_dpo:recipe.lora.rank=8", "demo_dpo:recipe.lora.alpha=4"),
        "adapter_settings",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("verb", ["run", "plan", "check", "submit"])
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    mistake: str, verb: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides, id = MISTAKES[mistake]
    if verb == "submit" and mistake == "nothing to judge":
        id = "submit_conflict"
    assert main([verb, *overrides]) == 2
    [sentence] = capsys.readouterr().err.splitlines()
    assert sentence.endswith(f"[{id}]")
    assert list(home.iterdir()) == []


def test_a_long_stage_must_fit_the_context_of_the_model_it_gets(home: Path) -> None:
    model = home / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 512}')
    line = (*DEMO, f"demo:model.path={model}", "allow=[incomplete_model]")
    assert planned(*line, "recipe.max_seq_length=512").plans[1].stage == "demo_dpo"
    id, sentence = problem(*line, "demo_dpo:recipe.max_seq_length=1024")
    assert id == "short_context" and "demo_dpo:recipe.max_seq_length=512" in sentence


def test_a_template_of_its_own_is_compared_with_the_tokenizers(home: Path) -> None:
    model = home / "model"
    model.mkdir()
    (model / "chat_template.jinja").write_text("{% generation %}")
    line = (
        *DEMO,
        f"demo:model.path={model}",
        "allow=[incomplete_model]",
        "demo_dpo:recipe.chat_template=tulu",
    )
    id, sentence = problem(*line)
    assert id == "other_chat_template" and "demo" in sentence
    (model / "chat_template.jinja").write_text(
        (ROOT / "launch" / "templates" / "tulu.jinja").read_text()
    )
    assert planned(*line).plans


def test_every_kind_but_those_that_end_a_pipeline_can_be_started_from() -> None:
    assert [kind.value for kind in FINAL_KINDS] == ["rm"]
    assert [plan.config.stage.kind for plan in planned("pipeline=sft,rm", "gpus=8").plans] == [
        "sft",
        "rm",
    ]


def test_each_stage_has_its_own_keys_and_the_pipelines_name() -> None:
    pipeline = planned(*DEMO, "name=x", "recipe.max_steps=9", "demo_dpo:recipe.max_steps=4")
    assert pipeline.name == "x" and [plan.name for plan in pipeline.plans] == ["x", "x"]
    assert [plan.config.recipe.max_steps for plan in pipeline.plans] == [9, 4]
    assert pipeline.plans[1].inputs.model.local == pipeline.plans[0].model_dir
    assert re.fullmatch(r"demo-demo_dpo-[0-9a-f]{8}", planned().name)


@pytest.mark.parametrize("rank", ["null", "8"])
def test_identities_are_the_same_before_and_after_the_first_model_is_there(rank: str) -> None:
    line = (*DEMO, f"demo:recipe.lora.rank={rank}")
    before = planned(*line)
    leave_run(before.plans[0], done=False)
    model = before.plans[0].model_dir
    (model / "adapter_config.json").write_text("{")  # half written
    assert [plan.identity for plan in planned(*line).plans] == [
        plan.identity for plan in before.plans
    ]


def test_the_cost_of_a_model_that_does_not_exist_yet(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["plan", "pipeline=sft,dpo", "gpus=8", "cluster.gpu_type=h100", "recipe.max_steps=500"]
    assert main([*line, "--json"]) == 0
    stages = json.loads(capsys.readouterr().out)["stages"]
    for stage in stages:
        assert stage["steps"] == 500 and stage["finished"] is False
        assert stage["disk"]["kept_bytes"] == pytest.approx(16.06e9, rel=0.01)
        assert stage["disk"]["removable_bytes"] > 4 * stage["disk"]["kept_bytes"]
        assert stage["memory"]["worst"] is not None
    totals = [stage["memory"]["worst"]["total_gib"] for stage in stages]
    assert totals[0] == pytest.approx(totals[1], abs=0.1)  # 1 x 4096 tokens of SFT, 2 x 2048 of DPO
    assert main(line) == 0
    _, _, shown = capsys.readouterr().out.rpartition("\npipeline ")
    table = shown.splitlines()[1:]
    assert table[0].split()[:3] == ["stage", "starts", "from"]
    assert "29.9 GiB of models stay" in table[3]


def test_a_changed_stage_makes_those_after_it_stale_by_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = planned()
    leave_run(first.plans[0])
    leave_run(planned().plans[1], started_from="the first model")
    write_record(first)
    # the last stage changes: the first is used as it is
    last = planned(*DEMO, "demo_dpo:recipe.beta=2")
    assert last.plans[0].folder == first.plans[0].folder and is_finished(last.plans[0])
    assert stale_runs(last) == [f"demo_dpo/{first.plans[1].name}"]
    assert stale_runs(planned(*DEMO, "name=again")) == []  # the same settings under another name
    # the first one changes: nothing is reused, and both are named
    changed = planned(*DEMO, "demo:recipe.seed=7")
    assert not is_finished(changed.plans[0]) and changed.name != first.name
    assert stale_runs(changed) == [f"demo/{first.plans[0].name}", f"demo_dpo/{first.plans[1].name}"]


def test_a_model_that_was_trained_again_makes_the_stage_after_it_stale() -> None:
    pipeline = planned()
    leave_run(pipeline.plans[0])
    (pipeline.plans[0].model_dir / "config.json").write_text("{}")
    leave_run(pipeline.plans[1], done=False, started_from="another digest")
    id, sentence = problem()
    assert (
        id == "stale_stage"
        and f"demo_dpo/{pipeline.plans[1].name}" in sentence
        and "there now" in sentence
    )
    assert planned(*DEMO, "demo_dpo:restart=true").plans[1].identity == pipeline.plans[1].identity
    # the same model as then
    leave_run(
        pipeline.plans[1],
        started_from=str(planned(*DEMO, "demo_dpo:restart=true").plans[1].started_from),
    )
    assert is_finished(planned().plans[1])
    # removed to save space, once the next stage is done
    (pipeline.plans[0].model_dir / "config.json").unlink()
    pipeline.plans[0].model_dir.rmdir()
    assert is_finished(planned().plans[1])


def test_all_stages_after_one_that_is_trained_again_are_stale() -> None:
    for plan in planned().plans:
        leave_run(plan)
    with pytest.raises(UserError) as refused:
        planned(*DEMO, "demo:restart=true")
    assert [found.id for found in refused.value.problems] == ["stale_stage"]
    assert planned(*DEMO, "restart=true").plans


@pytest.mark.parametrize("recorded", [False, True])
def test_a_pipeline_changed_under_its_name(recorded: bool) -> None:
    pipeline = planned(*DEMO, "name=x")
    if recorded:
        write_record(pipeline)
    for plan in pipeline.plans:
        leave_run(plan)
    id, sentence = problem(*DEMO, "name=x", "demo:recipe.seed=7")
    if recorded:
        assert id == "pipeline_changed" and "demo_dpo/x" in sentence
    else:  # a run of that name which no pipeline made
        assert id == "name_taken" and "demo/x" in sentence


def test_what_status_shows(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = planned(*DEMO, "name=x")
    write_record(pipeline)
    leave_run(pipeline.plans[0])
    assert (
        find_pipeline("x", home / "runs")
        == find_pipeline("pipelines/x", home / "runs")
        == pipeline.folder
    )
    assert describe_stages(pipeline.folder) == "demo done, demo_dpo not started"
    assert main(["status"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "pipeline x: demo done, demo_dpo not started"
    assert main(["stop", "x"]) == 2
    assert re.search(r"pipelines/x.*\[not_running\]", capsys.readouterr().err)


def test_a_pipeline_without_a_name_is_found_by_its_stages(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older, newer = planned(*DEMO, "recipe.seed=1"), planned(*DEMO, "recipe.seed=2")
    for pipeline in (older, newer):
        write_record(pipeline)
    os.utime(older.folder / "pipeline.json", (1, 1))
    assert (
        find_pipeline("demo,demo_dpo", home / "runs")
        == find_pipeline("demo-demo_dpo", home / "runs")
        == newer.folder
    )
    assert find_pipeline("demo", home / "runs") is None
    assert main(["report", "demo,demo_dpo"]) == 2
    assert re.search(rf"{newer.name}.*\[no_record\]", capsys.readouterr().err)


def test_a_cure_in_a_pipeline_replaces_what_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    cures = {"lora_r=8": " recipe.lora.rank=8 [", "demo:lora_r=8": " demo:recipe.lora.rank=8 ["}
    for typed, cure in cures.items():
        assert main(["plan", *DEMO, typed]) == 2
        assert cure in capsys.readouterr().err


def test_an_adapter_is_trained_further_by_the_stages_after_the_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", *DEMO, "recipe.lora.rank=8", "start=continue"]) == 2
    assert "demo_dpo:recipe.lora.start=continue [unknown_key]" in capsys.readouterr().err


def test_a_page_has_the_evaluations_side_by_side(home: Path) -> None:
    pipeline = planned(*DEMO, "name=x")
    write_record(pipeline)
    names = ["start", "demo", "demo_dpo"]
    for count, plan in enumerate(pipeline.plans, 2):
        leave_run(plan)
        scores = [{"model": name, "score": 0.1 * place} for place, name in enumerate(names[:count])]
        scores[-1]["verdict_against_previous"] = "worse"
        task = {
            "task": "sums",
            "metric": "acc",
            "verdict": "better",
            "models": scores,
            "broken": [],
        }
        (plan.folder / "evaluation.json").write_text(json.dumps({"tasks": [task]}))
    page = render_pipeline(pipeline.folder)
    [table] = re.findall(r"Evaluations side by side.*?</table>", page, re.DOTALL)
    assert (
        all(f">{name}<" in table for name in names)
        and "; worse against the previous model" in table
    )


def test_the_cure_of_a_missing_checkout_names_each_stage(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("launch.planning.machine.find_checkout", lambda *arguments: None)
    assert main(["run", "pipeline=demo,demo_dpo"]) == 2
    [sentence] = capsys.readouterr().err.splitlines()
    assert "demo:trainer=trl_sft demo_dpo:trainer=trl_dpo [no_checkout]" in sentence
    assert list(home.iterdir()) == []


def test_a_stage_that_needs_a_gpu_after_one_on_the_cpu(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(home / "nothing"))  # no nvidia-smi
    assert main(["run", *DEMO, "demo_dpo:gpus=1"]) == 2
    [sentence] = capsys.readouterr().err.splitlines()
    assert "demo_dpo:gpus=0" in sentence
    assert sentence.endswith("[too_few_gpus]") and list(home.iterdir()) == []


def test_the_same_lack_of_several_stages_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(home / "nothing"))  # no nvidia-smi
    assert main(["run", *DEMO, "gpus=1"]) == 2
    [sentence] = capsys.readouterr().err.splitlines()
    assert "demo:gpus=0 demo_dpo:gpus=0" in sentence


def test_a_stage_that_saved_no_checkpoint_is_refused_with_its_own_restart(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cure is for the stage alone: without its name all stages would start over."""
    words = (*DEMO, "demo:recipe.checkpoint_steps=null")
    unfinished = planned(*words).plans[0]
    leave_run(unfinished, done=False)
    (unfinished.folder / "metrics.jsonl").write_text('{"step": 3, "loss": 1.0}\n')
    assert main(["run", *words]) == 2
    written = capsys.readouterr()
    assert "stage 1 of 2" not in written.out and "[nothing_to_resume]" in written.err
    assert "demo:restart=true" in written.err and "demo:recipe.checkpoint_steps=N" in written.err


def test_how_to_go_on_after_an_end() -> None:
    """Not by the same command where it would start all of it over, or end it again."""

    def end(*overrides: str, stage: int = 1) -> str:
        pipeline = planned(*DEMO, *overrides)
        return _describe_end(pipeline, pipeline.plans[stage])

    assert end(stage=0).endswith(
        "ended in demo; demo_dpo not started; to continue: the same command"
    )
    assert end("restart=true").endswith(
        "ended in demo_dpo; to continue: the same command without restart=true"
    )
    for plan in planned(*DEMO, "name=x", "evaluate=true").plans:
        leave_run(plan)
    interrupted = end("name=x", "evaluate=true")  # as it wrote the page
    assert interrupted.endswith("ended in demo_dpo; to continue: the same command")
    judged = end("name=x", "evaluate=true", "stop_if_worse=true")
    assert judged.endswith("in demo_dpo; to continue: the same command without stop_if_worse=true")


def test_what_a_stage_may_leave_open_of_the_adapter_that_it_trains_further() -> None:
    """As once the adapter is there: alpha, dropout and layers are the adapter's own."""
    pipeline = planned(*DEMO, *LORA, "demo:recipe.lora.alpha=32", "demo_dpo:recipe.lora.rank=8")
    adapters = [plan.lora for plan in pipeline.plans]
    assert [adapter and (adapter.rank, adapter.alpha, adapter.targets) for adapter in adapters] == [
        (8, 32, "all-linear")
    ] * 2


def test_the_keys_of_python_are_those_of_the_command_line() -> None:
    keys = {"gpus": 0, "demo": {"recipe": {"seed": 3}}, "demo_dpo": {"trainer": "trl_dpo"}}
    overrides = [
        "pipeline=demo,demo_dpo",
        "gpus=0",
        "demo:recipe.seed=3",
        "demo_dpo:trainer=trl_dpo",
    ]
    assert pipeline_overrides(["demo", "demo_dpo"], keys) == overrides
    with pytest.raises(UserError, match="duplicate_stage"):
        launch.run(pipeline=["demo", "demo"])
    with pytest.raises(TypeError):
        launch.run("demo", pipeline=["demo"])  # type: ignore[call-overload]
