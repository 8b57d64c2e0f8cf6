"""`eval` with the real harness: the trained demo is better than its base, and a broken evaluation
is called broken.
"""

from __future__ import annotations

import json
import re
import resource
import shutil
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.__main__ import main
from launch.demo.tasks import KINDS
from launch.execution.record.run import Run
from launch.worker.evaluating import (
    EvaluationRequest,
    HarnessJob,
    RefusalError,
    TaskSpec,
    check_prompts,
    check_tasks,
    task_manager,
)
from launch.worker.model_loading import ModelRequest
from tests.integration.conftest import launch_in
from tests.integration.demo_kit import FEW, write_few_questions
from tests.paths import ROOT

LIMIT = 30
NEVER_RIGHT = """\
task: never_right
dataset_path: json
dataset_kwargs: { data_files: { test: DATA } }
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "42"
generation_kwargs: { max_gen_toks: 4, until: ["nothing that it writes"], do_sample: false }
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def own_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a task whose answers are never right and always cut off."""
    folder = tmp_path_factory.mktemp("own")
    data = folder / "questions.jsonl"
    data.write_text(
        "".join(json.dumps({"question": f"What is {number}?"}) + "\n" for number in range(3))
    )
    (folder / "never_right.yaml").write_text(NEVER_RIGHT.replace("DATA", json.dumps(str(data))))
    return folder


@pytest.fixture(scope="module")
def few_questions(trained_demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_few_questions(trained_demo / "runs" / ".cache", tmp_path_factory.mktemp("few"))


@pytest.fixture(scope="module")
def evaluated(trained_demo: Path, own_tasks: Path) -> tuple[int, dict[str, Any]]:
    """The exit code and the summary of an evaluation of the trained demo: its own suite and the
    task above.
    """
    pytest.importorskip("lm_eval", reason="the `eval` dependencies are not installed")
    runs = trained_demo / "runs"
    code = main(["eval", "demo/sft", f"tasks=demo,{own_tasks}", f"limit={LIMIT}", f"runs={runs}"])
    return code, json.loads((runs / "demo" / "sft" / "evaluation.json").read_text())


def test_the_trained_demo_is_better_than_its_base(evaluated: tuple[int, dict[str, Any]]) -> None:
    """At telling right from rambling; a few steps teach too little to be exact, which is not called
    broken.
    """
    tasks = {task["task"]: task for task in evaluated[1]["tasks"]}
    kinds = {f"demo_{kind}": 25 for kind in KINDS}
    assert {"never_right": 3, "demo_all": LIMIT, "demo_pairs": LIMIT, **kinds} == {
        name: task["questions"] for name, task in tasks.items()
    }
    base, trained = tasks["demo_pairs"]["models"]
    assert (base["model"], trained["model"]) == ("base", "demo/sft")
    assert trained["score"] >= base["score"]
    assert tasks["demo_all"]["models"][0]["score"] == 0.0, "the untrained model"
    assert [name for name, task in tasks.items() if task["broken"]] == ["never_right"]


def test_a_broken_evaluation_is_called_broken(evaluated: tuple[int, dict[str, Any]]) -> None:
    code, summary = evaluated
    broken = next(task for task in summary["tasks"] if task["task"] == "never_right")["broken"]
    assert code == 3
    assert any("exactly 0" in reason for reason in broken) and any(
        "cut off" in reason for reason in broken
    )


def test_the_runs_page_has_the_evaluation(
    evaluated: tuple[int, dict[str, Any]], trained_demo: Path
) -> None:
    page = (trained_demo / "runs" / "demo" / "sft" / "report.html").read_text(encoding="utf-8")
    for task in evaluated[1]["tasks"]:
        assert task["task"] in page
    assert "cut off" in page


def test_every_answer_is_kept_with_its_prompt(evaluated: tuple[int, dict[str, Any]]) -> None:
    task = next(task for task in evaluated[1]["tasks"] if task["task"] == "demo_pairs")
    files = {model["samples"] for model in task["models"]}
    assert len(files) == 2
    for file in files:
        rows = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]
        pairs = [row for row in rows if row["task"] == "demo_pairs"]
        assert len(pairs) == LIMIT
        contexts, choices = zip(
            *((row["arguments"][0][0], row["arguments"][0][1]) for row in pairs), strict=True
        )
        assert all(
            context.startswith("<|user|>\n") and "<|assistant|>" in context for context in contexts
        )
        assert len(set(choices)) > LIMIT / 2 and not any("{" + "{" in choice for choice in choices)


def test_asked_twice_it_is_computed_once(
    evaluated: tuple[int, dict[str, Any]],
    trained_demo: Path,
    own_tasks: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = trained_demo / "runs"
    argv = [
        "eval",
        "demo/sft",
        f"tasks={own_tasks},demo",
        f"limit={LIMIT}",
        f"runs={runs}",
        "--json",
    ]
    page = runs / "demo" / "sft" / "report.html"
    page.unlink()
    assert main([*argv, "report=false"]) == 3
    assert not page.exists()
    again = json.loads(capsys.readouterr().out)
    assert again["computed"] == 0
    assert sorted(again["tasks"], key=str) == sorted(evaluated[1]["tasks"], key=str)
    assert main(["status", "demo/sft", f"runs={runs}"]) == 0
    assert "1 broken" in capsys.readouterr().out
    assert Run(runs / "demo" / "sft").status.state == "done"


@pytest.mark.thorough
def test_the_numbers_are_those_of_the_harness_by_hand(
    evaluated: tuple[int, dict[str, Any]], trained_demo: Path
) -> None:
    import lm_eval

    folder = str(trained_demo / "runs" / "demo" / "sft" / "evaluation" / "tasks")
    results = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(trained_demo / "runs" / "demo" / "sft" / "model")},
        device="cpu",
        tasks=["demo_pairs", "demo_all"],
        task_manager=task_manager(folder),
        apply_chat_template=False,
        limit=LIMIT,
        batch_size=8,
    )["results"]
    tasks = {task["task"]: task["models"][-1] for task in evaluated[1]["tasks"]}
    for name, metric in (("demo_pairs", "acc"), ("demo_all", "exact_answers")):
        assert tasks[name]["score"] == pytest.approx(results[name][f"{metric},none"], rel=1e-6)
        assert tasks[name]["stderr"] == pytest.approx(
            results[name][f"{metric}_stderr,none"], rel=1e-6
        )


@pytest.mark.thorough
def test_an_unknown_task_ends_the_command(
    trained_demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "demo/sft", "tasks=no_such_task", f"runs={trained_demo / 'runs'}"]) == 2
    error = capsys.readouterr().err
    assert "no_such_task" in error and "[unknown_task]" in error
    assert "evaluated" not in error


def test_a_task_that_does_not_exist_or_needs_the_network_is_refused(
    own_tasks: Path, tmp_path: Path
) -> None:
    pytest.importorskip("lm_eval", reason="the `eval` dependencies are not installed")
    spec = TaskSpec(("never_rigth",), own_tasks)
    with pytest.raises(RefusalError) as refused:
        check_tasks(spec)
    assert refused.value.args[0] == {
        "refused": "unknown_task",
        "task": "never_rigth",
        "near": ["never_right"],
    }
    (tmp_path / "hub.yaml").write_text(
        NEVER_RIGHT.replace("dataset_kwargs: { data_files: { test: DATA } }\n", "")
        .replace("dataset_path: json", "dataset_path: nobody/a-data-set-of-the-hub")
        .replace("task: never_right", "task: of_the_hub")
    )
    with pytest.raises(RefusalError) as refused:
        check_tasks(TaskSpec((), tmp_path))
    assert refused.value.args[0]["refused"] == "task_needs_network"
    other = tmp_path / "other"
    other.mkdir()
    (other / "task.yaml").write_text(NEVER_RIGHT.replace("DATA", str(other / "none.jsonl")))
    with pytest.raises(RefusalError) as refused:
        check_tasks(TaskSpec((), other))
    reason = refused.value.args[0]
    assert (reason["refused"], reason["task"]) == ("task_not_loadable", "never_right")
    assert "none.jsonl" in reason["reason"]


@pytest.mark.thorough
def test_a_run_with_evaluate_is_scored_against_each_model_of_its_chain(
    trained_demo: Path,
    few_questions: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """DPO on the trained demo: a stage file names a folder of tasks, which `eval` takes without
    `tasks=` too.
    """
    stage = trained_demo / "stages" / "stage" / "scored.yaml"
    stage.parent.mkdir(parents=True)
    names = f"stage:\n  tasks: [{json.dumps(str(few_questions))}]\n"
    stage.write_text(
        f"# @package _global_\ndefaults:\n  - demo_dpo\n  - _self_\n{names}", encoding="utf-8"
    )
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(stage.parents[1]))
    argv = (
        "stage=scored",
        "trainer=trl_dpo",
        "model.path=runs/demo/sft",
        "name=a",
        "recipe.max_steps=2",
    )
    done = launch_in(trained_demo, *argv, "evaluate=true")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.index("done: 2 steps") < done.stdout.index(" better than base")
    runs = trained_demo / "runs"
    summary = json.loads((runs / "scored/a/evaluation.json").read_text())
    [task] = summary["tasks"]
    assert [model["model"] for model in task["models"]] == ["base", "demo/sft", "scored/a"]
    assert task["verdict"] == "better" and task["questions"] == FEW
    assert task["gain"] > task["gain_half_interval"] > 0
    assert main(["eval", "scored/a", f"runs={runs}", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["computed"], again["tasks"]) == (0, summary["tasks"])


@pytest.mark.thorough
def test_the_task_of_the_documentation(trained_demo: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "evaluate.md").read_text(encoding="utf-8")
    [task] = re.findall(r"^    task: my_questions\n(?:    .+\n)+", page, re.MULTILINE)
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "What is a deque?", "answer": "A queue."}\n' * 3)
    (tmp_path / "task.yaml").write_text(
        textwrap.dedent(task).replace("/data/questions.jsonl", str(questions))
    )
    runs = trained_demo / "runs"
    assert main(["eval", "demo/sft/step_20", f"tasks={tmp_path}", f"runs={runs}"]) == 3, (
        "nothing is right"
    )
    summary = json.loads((runs / "demo/sft/evaluation/step_20.evaluation.json").read_text())
    [scores] = summary["tasks"]
    assert (scores["task"], scores["questions"], scores["metric"]) == (
        "my_questions",
        3,
        "exact_match",
    )
    assert any("exactly 0" in reason for reason in scores["broken"])


@pytest.mark.thorough
def test_an_evaluation_that_fails_leaves_the_run_as_it_was(
    trained_demo: Path, tmp_path: Path
) -> None:
    argv = (
        "stage=demo",
        "trainer=trl_sft",
        "name=sft",
        "recipe.max_steps=25",
        "recipe.checkpoint_steps=20",
    )
    done = launch_in(trained_demo, *argv, "evaluate=true", f"stage.tasks=[{tmp_path}/none]")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "warning: the model was not evaluated" in done.stdout and "[no_task_files]" in done.stdout
    )
    assert Run(trained_demo / "runs" / "demo" / "sft").status.state == "done"


@pytest.mark.thorough
def test_an_adapter_is_scored_without_a_merge(trained_adapter: Path, few_questions: Path) -> None:
    runs = trained_adapter / "runs"
    assert main(["eval", "demo_lora/sft", f"tasks={few_questions}", f"runs={runs}"]) == 0
    run = runs / "demo_lora" / "sft"
    [task] = json.loads((run / "evaluation.json").read_text())["tasks"]
    assert [model["model"] for model in task["models"]] == ["base", "demo_lora/sft"]
    assert task["verdict"] == "better" and task["gain"] > task["gain_half_interval"] > 0
    assert (run / "model" / "adapter_config.json").is_file()


def test_a_prompt_that_does_not_fit_is_refused_without_any_weights(
    trained_demo: Path, tmp_path: Path
) -> None:
    model, tasks = tmp_path / "model", tmp_path / "tasks"
    weights = shutil.ignore_patterns("*.safetensors", "checkpoint-*")
    shutil.copytree(trained_demo / "runs" / "demo" / "sft" / "model", model, ignore=weights)
    tasks.mkdir()
    (tasks / "questions.jsonl").write_text(json.dumps({"question": "word " * 3000}) + "\n")
    (tasks / "long.yaml").write_text(
        NEVER_RIGHT.replace("DATA", json.dumps(str(tasks / "questions.jsonl")))
    )
    spec = TaskSpec((), tasks, num_fewshot=0)
    job = HarnessJob(
        "base",
        ModelRequest(str(model), quantized=False),
        replace(spec, names=check_tasks(spec)),
        tmp_path / "out.json",
        tmp_path / "samples.jsonl",
    )
    with pytest.raises(RefusalError) as refused:
        check_prompts(EvaluationRequest((job,), str(model), None, 8))
    reason = refused.value.args[0]
    assert reason["refused"] == "context_too_short"
    assert reason["tokens"] > 3000 and reason["context"] == 2048 - 4, (
        "the four tokens of the answer need room too"
    )


def test_without_room_for_the_answers_nothing_is_loaded(
    trained_demo: Path, few_questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # bytes of a file, as on a disk that is full
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, before[1]))
    try:
        code = main(["eval", "demo/sft", f"tasks={few_questions}", f"runs={trained_demo / 'runs'}"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 2
    assert "cannot be written" in (error := capsys.readouterr().err) and "[not_writable]" in error
    assert not list((trained_demo / "runs" / "demo" / "sft" / "evaluation").glob(".room"))
