"""What `tasks=` may name, and what identifies it."""

from __future__ import annotations

import collections
import json
from pathlib import Path

import pytest

from launch.demo.tasks import KINDS, make_tasks
from launch.errors import UserError
from launch.evaluation.suites import (
    TULU3_SPECS,
    default_tasks,
    digest_spec,
    ensure_demo_suite,
    ensure_reward_suite,
    find_specs,
)
from launch.worker.held_out import ROWS
from launch.worker.held_out_reward import RewardSpec


def test_names_groups_and_folders_can_be_mixed(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "mine.yaml").write_text("task: mine\n")
    specs = find_specs(f"gsm8k, {own},tulu3", tmp_path / "cache")
    assert specs[0].names == ("gsm8k",) and specs[0].folder is None
    assert specs[1].names == () and specs[1].folder == own
    assert specs[2:] == TULU3_SPECS


@pytest.mark.parametrize(
    ("tasks", "problem"), [("", "bad_value"), (" , ", "bad_value"), ("./nowhere", "no_task_files")]
)
def test_what_names_no_task_is_refused(tasks: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        find_specs(tasks, tmp_path)
    assert refused.value.problems[0].id == problem


def test_own_tasks_are_identified_by_their_files(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("task: mine\n")
    (before,) = find_specs(f"{tmp_path}/", tmp_path)
    digest = digest_spec(before)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "mine.pyc").write_bytes(b"1")
    assert digest_spec(before) == digest
    (tmp_path / "mine.yaml").write_text("task: mine\nnum_fewshot: 1\n")
    assert digest_spec(before) != digest


def test_the_demos_questions_are_those_that_it_holds_out(tmp_path: Path) -> None:
    folder = ensure_demo_suite(tmp_path)
    rows = [json.loads(line) for line in (folder / ROWS).read_text(encoding="utf-8").splitlines()]
    names = collections.Counter(row["task"] for row in rows)
    assert names == {"demo_all": 200, "demo_pairs": 200, **{f"demo_{kind}": 25 for kind in KINDS}}
    _, held_out = make_tasks()
    asked = {
        row["messages"][0]["content"]: row
        for row in rows
        if row["task"] not in ("demo_all", "demo_pairs")
    }
    assert {task.question: f"demo_{task.kind}" for task in held_out} == {
        key: asked[key]["task"] for key in asked
    }
    pairs = [row["chosen"][0]["content"] for row in rows if row["task"] == "demo_pairs"]
    assert pairs == [task.question for task in held_out]
    assert ensure_demo_suite(tmp_path) == folder
    [spec] = find_specs("demo", tmp_path)
    assert spec.folder == folder


def write_record(tmp_path: Path, config: str, rows: list[object] | None = None) -> Path:
    """Write the record of a run, and the validation rows of its staged data."""
    run, staged = (
        tmp_path / "runs" / "mine" / "x",
        tmp_path / "runs" / ".cache" / "data" / "0123456789abcdef",
    )
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(config)
    # as TRL's entry gets a mixture: JSON inside of an option
    plan = {
        "options": [f"mixture={json.dumps([{'name': str(staged)}])}"],
        "command": ["x", str(staged)],
    }
    (run / "plan.json").write_text(json.dumps(plan))
    if rows:
        staged.mkdir(parents=True)
        (staged / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


OWN = "stage: {kind: sft, tasks: [demo]}\ndata: {build: demo_chats, mix: [{name: mine.jsonl}]}\n"


def test_own_rows_that_were_held_out_take_the_place_of_shipped_tasks(tmp_path: Path) -> None:
    run = write_record(tmp_path, OWN, [{"messages": [number]} for number in range(1000)])
    assert default_tasks(run) == "held_out"
    [spec] = find_specs("held_out", tmp_path, run)
    assert spec.folder == run / "evaluation" / "held_out" and spec.chat
    lines = (spec.folder / "held_out.jsonl").read_text().splitlines()
    assert [json.loads(line)["messages"] for line in lines] == [
        [number] for number in range(0, 1000, 5)
    ]
    assert find_specs(str(spec.folder), tmp_path) == (spec,), "another model can be asked the same"


@pytest.mark.parametrize(
    ("config", "tasks"),
    [
        (OWN.replace("demo]", "gsm8k]"), "gsm8k"),  # the stage's own choice
        ("stage: {kind: sft, tasks: [demo]}\ndata: {build: demo_chats, mix: []}\n", "demo"),
        ("stage: {kind: rm, tasks: [tulu3]}\ndata: {mix: [{name: mine.jsonl}]}\n", "tulu3"),
    ],
)
def test_other_stages_keep_their_tasks(tmp_path: Path, config: str, tasks: str) -> None:
    assert default_tasks(write_record(tmp_path, config, [{"messages": []}])) == tasks


RLVR = """\
stage: {kind: rlvr, tasks: [demo, demo_reward]}
data: {build: demo_prompts, mix: [{name: prompts.jsonl}]}
recipe: {response_length: 16, temperature: 0.7}
"""


def test_prompts_that_were_held_out_are_scored_by_the_verifier_of_the_run(tmp_path: Path) -> None:
    """An edited verifier is another task, so that no earlier result is taken for its own."""
    own = tmp_path / "rules.py"
    own.write_text("def f(): ...\n")
    rows: list[object] = [{"prompt": [{"role": "user", "content": "?"}], "ground_truth": "2"}]
    run = write_record(tmp_path, RLVR, rows * 20)
    plan = json.loads((run / "plan.json").read_text())
    verifier = json.dumps({"verifiers": {f"{own}:f": 1.0}, "seconds": 9.0, "window": 64})
    plan["options"].append(f"verifier={verifier}")
    (run / "plan.json").write_text(json.dumps(plan))
    assert default_tasks(run) == "held_out"
    [spec] = find_specs("held_out", tmp_path, run)
    assert spec.reward == RewardSpec(verifier, 16, 0.7)
    before = digest_spec(spec)
    assert digest_spec(spec) == before
    own.write_text("def f(): return [1.0]\n")
    assert digest_spec(spec) != before
    without = write_record(tmp_path / "without", RLVR)
    with pytest.raises(UserError, match=r"\[no_held_out\]"):
        default_tasks(without)


def test_the_demos_questions_do_not_judge_own_data(tmp_path: Path) -> None:
    run = write_record(tmp_path, OWN)
    for find in (lambda: default_tasks(run), lambda: find_specs("held_out", tmp_path, run)):
        with pytest.raises(UserError, match=r"mine/x.*\[no_held_out\]"):
            find()
    with pytest.raises(UserError, match=r"\[no_held_out\]"):
        find_specs("held_out", tmp_path)


@pytest.mark.parametrize(
    ("kind", "data", "advice"),
    [
        ("sft", [{"read": 60}], "data.validation=0.1"),
        ("dpo", [{"read": 60}, {"read": 9}], "data.validation=0.1"),
        ("sft", [None], "local data"),  # made here, or of the hub
        ("sft", [{"read": 60}, None], "local data"),
        ("sft", [{"read": 4}], " 10 "),
        ("rlvr", [{"read": 60}], "data.validation=0.1"),
        ("rm", [{"read": 60}], "SFT, DPO, KTO and RLVR"),
    ],
)
def test_what_is_advised_to_hold_rows_out_can_be_done(
    tmp_path: Path, kind: str, data: list[object], advice: str
) -> None:
    run = write_record(tmp_path, f"stage: {{kind: {kind}}}\n")
    plan = json.loads((run / "plan.json").read_text())
    (run / "plan.json").write_text(json.dumps({**plan, "data": data}))
    with pytest.raises(UserError) as refused:
        find_specs("held_out", tmp_path, run)
    [problem] = refused.value.problems
    assert problem.id == "no_held_out" and advice in str(problem.cure)
    assert ("data.validation" in str(problem.cure)) is advice.startswith("data.")


def test_the_questions_of_demo_rlvr_are_not_taken_for_rows_that_a_run_held_out(
    tmp_path: Path,
) -> None:
    folder = ensure_reward_suite(tmp_path)
    assert (folder / "reward.yaml").is_file()
    assert not (folder / ROWS).exists()
