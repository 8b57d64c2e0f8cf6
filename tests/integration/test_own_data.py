"""The README's start on a laptop, with data of one's own, carried out as it is written."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.integration import warm
from tests.paths import ROOT

pytestmark = pytest.mark.slow

# with the README's row as many as it calls enough
OTHERS = [
    (f"What is number {number}?", f"It is {'odd' if number % 2 else 'even'}.")
    for number in range(15)
]


def test_the_five_minutes_of_the_readme(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    _, _, section = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Start\n")
    section = section.partition("With eight GPUs")[0]
    [example] = re.findall(r"^    (\{.*\})$", section, re.MULTILINE)
    commands = [
        shlex.split(line, comments=True)
        for line in re.findall(r"^    (launch .*)$", section, re.MULTILINE)
    ]
    assert [command[1] for command in commands] == ["new", "preview", "stage=mine", "generate"]
    question, answer = (turn["content"] for turn in json.loads(example)["messages"])
    assert commands[-1][-1] == question
    with (tmp_path / "my_chats.jsonl").open("w", encoding="utf-8") as stream:
        for asked, answered in [(question, answer), *OTHERS]:
            turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
            stream.write(json.dumps({"messages": turns}) + "\n")
    environ = {**os.environ, "LAUNCH_CONFIG_DIR": "", "XDG_CONFIG_HOME": str(tmp_path / "config")}
    environ |= {"OPEN_INSTRUCT_DIR": "", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    printed = []
    for command in commands:
        argv = [warm.python(), "-m", "launch", *command[1:]]
        done = subprocess.run(
            argv,
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        printed.append(done.stdout)
    assert (tmp_path / "config" / "launch" / "stage" / "mine.yaml").is_file()
    assert printed[0].splitlines()[-1] == f"next: {shlex.join(commands[1])}"
    assert question in printed[1] and f"[[{answer}" in printed[1]
    [run] = (tmp_path / "runs" / "mine").iterdir()
    assert (run / "DONE").is_file()
    assert answer in printed[3], "something was learnt"


@pytest.mark.thorough
def test_a_local_file_and_a_hub_data_set_are_shown_and_trained_on(tmp_path: Path) -> None:
    """Offline: the hub's data set is one that `datasets` has prepared on this machine, in a folder
    of its own.
    """
    datasets = pytest.importorskip("datasets", reason="the `train` dependencies are not installed")
    hub, home, prepared = tmp_path / "hub", tmp_path / "hf", tmp_path / "prepared"
    hub.mkdir()
    turns = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "1, 2, 3."}]
    theirs = [{"messages": turns, "id": f"row {number}"} for number in range(10)]
    mine = [
        {"prompt": f"What is {number}?", "completion": f"A number: {number}."}
        for number in range(10)
    ]
    for path, rows in ((hub / "train.jsonl", theirs), (tmp_path / "mine.jsonl", mine)):
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    # in the layout of a data set of the hub
    datasets.load_dataset(str(hub), cache_dir=str(prepared))
    (prepared / "hub").rename(prepared / "me___hub")
    (home / "hub" / "datasets--me--hub" / "snapshots" / "main").mkdir(parents=True)
    environ = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "OPEN_INSTRUCT_DIR": ""}
    environ |= {
        "HF_DATASETS_CACHE": str(prepared),
        "PYTHONPATH": str(ROOT),
        "LAUNCH_CONFIG_DIR": "",
    }
    mix = "data.mix=[{name: mine.jsonl}, {name: me/hub, share: 0.5}]"
    words = [
        "stage=demo",
        "trainer=trl_sft",
        "data.build=null",
        mix,
        "data.validation=0.2",
        "recipe.max_steps=2",
    ]
    words += ["recipe.global_batch_size=2", "recipe.per_device_batch_size=2", "name=mixed"]
    for verb in ("preview", "run"):
        argv = [warm.python_with_cold_ranks(), "-m", "launch", verb, *words]
        done = subprocess.run(
            argv,
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert verb == "run" or (
            "mine.jsonl:1" in done.stdout
            and "mine.jsonl: 10 rows read: prompt_completion (prompt, completion)" in done.stdout
            and "me/hub, row 1" in done.stdout
        ), done.stdout
    log = (tmp_path / "runs" / "demo" / "mixed" / "logs" / "rank-0.log").read_text(encoding="utf-8")
    assert "8 -> 8 rows (subset 1.0)" in log
    assert (
        "me/hub: 8 rows to train on, 2 for validation" in log
        and "me/hub: 8 -> 4 rows (subset 0.5)" in log
    )
