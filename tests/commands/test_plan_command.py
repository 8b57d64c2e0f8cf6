"""`launch plan`: what it imports, as a process of its own, what it prints, how it ends."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launch import resources
from launch.upstream.pin.lock import load_lock
from tests.conftest import Launch
from tests.messages import outline
from tests.paths import ROOT

HEAVY = {"torch", "transformers", "accelerate", "deepspeed", "trl", "datasets", "numpy"}
# Lines of launch's modules that a plan imports, those of the patches that it describes among them:
# what it does not need is imported where it is used.
MOST_LINES = 31_000
UNCOUNTED = ", the number of steps is unknown until all rows are counted"
POSIX_ONLY = ("fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "posix_ipc", "syslog")


def start(
    *arguments: str, cwd: Path, flags: tuple[str, ...] = (), **environ: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *flags, "-m", "launch", *arguments]
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def count_lines(module: str) -> int:
    """Return the lines of the file of a module of launch."""
    origin = importlib.util.find_spec(module).origin  # type: ignore[union-attr]
    return len(Path(str(origin)).read_text(encoding="utf-8").splitlines())


def test_planning_imports_nothing_heavy(tmp_path: Path) -> None:
    done = start("plan", "stage=sft_25pct", "gpus=8", cwd=tmp_path, flags=("-X", "importtime"))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    modules = {line.rsplit("|", 1)[-1].strip() for line in lines}
    imported = {module.split(".")[0] for module in modules}
    assert "hydra" in imported
    assert not imported & HEAVY
    own = sorted(module for module in modules if module.split(".")[0] == "launch")
    assert sum(map(count_lines, own)) <= MOST_LINES, own


def test_planning_imports_nothing_that_only_posix_has(tmp_path: Path) -> None:
    """macOS lacks some of these and Windows all of them."""
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({POSIX_ONLY!r}))\n"
        "from launch.__main__ import main\n"
        "sys.exit(main(['plan', 'stage=sft', 'gpus=8', '--json']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("line", "schedule"),
    [
        ("stage=lora_sft", f"2 epochs{UNCOUNTED}; packing leaves the number of steps as it is"),
        (
            "stage=lora_sft recipe.packing=bins",
            "2 epochs; packing makes fewer, larger steps: a row counts as one sample",
        ),
        ("stage=lora_sft recipe.packing=none recipe.liger=true", f"2 epochs{UNCOUNTED}"),
        ("stage=lora_dpo", f"1 epoch{UNCOUNTED}, beta 5"),
        (
            "stage=lora_dpo recipe.liger=true flags.precompute_ref_log_probs=true",
            f"1 epoch{UNCOUNTED}, beta 5",
        ),
        (
            "stage=lora_dpo trainer=dpo_tune_cache recipe.max_steps=9",
            "9 steps in place of epochs, beta 5",
        ),
    ],
)
def test_no_key_for_speed_changes_the_schedule(line: str, schedule: str, launch: Launch) -> None:
    assert f"schedule    {schedule}" in launch("plan", *line.split(), "gpus=1").stdout.splitlines()


def test_json_has_what_others_read(tmp_path: Path, launch: Launch) -> None:
    done = launch("plan", "stage=sft_25pct", "gpus=8", "--json")
    plan = json.loads(done.stdout)
    assert plan["schema_version"] == 1
    assert plan["batch"] == {
        "global": 128,
        "per_device": 1,
        "accumulation": 16,
        "width": 8,
        "ranks_per_row": 1,
    }
    assert plan["trainer"] == "finetune"
    assert plan["command"][1:3] == ["-m", "accelerate.commands.launch"]
    assert plan["upstream"]["commit"] == load_lock().pin
    for name, value in {
        "push_to_hub": False,
        "try_launch_beaker_eval_jobs": False,
        "logging_steps": 1,
    }.items():
        assert (plan["flags"][name]["value"], plan["flags"][name]["origin"]) == (value, "launcher")
    reference = "REFERENCE_LOGPROBS_CACHE_PATH"
    assert reference not in plan["env"]
    dpo = json.loads(launch("plan", "stage=dpo", "gpus=8", "--json").stdout)
    assert dpo["env"][reference].startswith(str(tmp_path))


def test_without_a_checkout_the_lock_is_used_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: Launch
) -> None:
    if (ROOT / "external" / "open-instruct" / "open_instruct").is_dir():
        pytest.skip("the submodule is there")
    monkeypatch.setenv("OPEN_INSTRUCT_DIR", "")
    plan = json.loads(launch("plan", "stage=sft", "--json").stdout)
    assert plan["upstream"]["source"] == "lock"
    refused = launch("run", "stage=demo")
    assert refused.returncode == 2
    assert "[no_checkout]" in refused.stderr and "git submodule update --init" in refused.stderr
    assert not list(tmp_path.glob("runs/demo/*"))


def test_the_same_command_gives_the_same_plan_byte_for_byte(tmp_path: Path) -> None:
    arguments = ("plan", "stage=dpo", "gpus=4", "--json")
    assert start(*arguments, cwd=tmp_path).stdout == start(*arguments, cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "stage=sft_25"], "[unknown_stage]"),
        (["pln"], "[unknown_verb]"),
        (["plan", "stage=sft", "gpus=3"], "[batch_not_divisible]"),
        (["run", "stage=sft", "gpus=64"], "[too_few_gpus]"),
        (
            [
                "plan",
                "stage=sft",
                "flags.push_to_hub=false",
                "flags.try_launch_beaker_eval_jobs=true",
            ],
            "[contradiction]",
        ),
        (["plan", "stage=sft", "upstream.dir=/nowhere"], "[not_open_instruct]"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_2(
    arguments: list[str], message: str, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = launch(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""
    assert all(line.startswith("launch: ") for line in done.stderr.splitlines())


def test_a_misspelt_key_in_a_file_that_nobody_else_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: Launch
) -> None:
    """DeepSpeed takes an unknown top-level key in silence."""
    doctored = tmp_path / "accelerate_configs"
    shutil.copytree(resources.ACCELERATE_CONFIGS, doctored)
    file = doctored / "deepspeed" / "zero3.json"
    file.write_text(
        file.read_text().replace('"gradient_clipping"', '"gradient_clipp1ng"'), encoding="utf-8"
    )
    monkeypatch.setattr(resources, "ACCELERATE_CONFIGS", doctored)
    done = launch("plan", "stage=sft", "gpus=8")
    message = done.stderr
    assert (
        done.returncode == 2
        and "gradient_clipp1ng" in message
        and "gradient_clipping" in message
        and "zero3.json" in message
    )


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m launch plan stage=demo trainer=trl_sft | head -1"
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.split()[0], done.stderr) == ("stage", "")


def test_a_secret_in_a_flag_is_refused_and_not_shown(launch: Launch) -> None:
    token = "hf_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7"
    done = launch("plan", "stage=sft", f"flags.hf_entity={token}")
    assert done.returncode == 2 and "[secret_on_line]" in done.stderr
    assert token not in done.stdout + done.stderr


def test_help_explains_verbs_and_keys(launch: Launch) -> None:
    overview = launch("--help").stdout
    assert launch().stdout == launch("help").stdout == overview
    assert "rollout gpus=1,2,8" in overview and "node" not in overview
    for words in (["plan", "--help"], ["plan", "stage=sft", "-h"], ["help", "plan"]):
        assert launch(*words).stdout.startswith("usage: launch plan stage=NAME")
    assert launch("stage=sft", "--help").stdout.startswith("usage: launch [run] stage=NAME")
    page = launch("help", "keys").stdout
    for word in ("gpus=N", "flags.NAME=VALUE", "sft_25pct", "dpo_tune_cache", "zero3_offload"):
        assert word in page
    refused = launch("help", "pln")
    assert refused.returncode == 2 and outline(refused.stderr.strip()).startswith(
        "unknown_verb at command line, plan"
    )


def test_version(launch: Launch) -> None:
    text = launch("--version").stdout
    assert text.startswith("launch ") and "open-instruct" in text and "torch 2" in text
    content = json.loads(launch("version", "--json").stdout)
    assert len(content["pin"]) == 40 and content["packages"]["hydra-core"].startswith("1.3")


def test_hydras_own_powers_stay(tmp_path: Path, launch: Launch) -> None:
    shown = launch("plan", "--cfg", "job", "stage=sft_25pct", "recipe.seed=77").stdout
    assert "\n  seed: 77\n" in shown
    assert "fraction: 0.25" in shown
    swept = launch("plan", "--multirun", "stage=sft", "gpus=1,2", "--json").stdout
    assert swept.count('"schema_version"') == 2
    point = {"COMP_LINE": "launch plan stage=", "COMP_POINT": "18"}
    assert "stage=sft_25pct" in start("-sc", "query=bash", cwd=tmp_path, **point).stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "stage=sft", "gpus=64", "trainer=trl_sft"],
        ["run", "stage=demo", "device=cpu", "trainer=trl_sft", "model.path=./no_such_model"],
        [
            "plan",
            "stage=demo",
            "device=cpu",
            "model.path=model",
            "recipe.global_batch_size=7",
            "processes=2",
        ],
        ["plan", "--multirun", "stage=sft", "gpus=1,2"],
    ],
)
def test_nothing_is_left_behind(arguments: list[str], tmp_path: Path, launch: Launch) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}", encoding="utf-8")
    assert launch(*arguments).returncode == (0 if "--multirun" in arguments else 2)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.json", "model"]


@pytest.mark.parametrize(
    ("override", "id"),
    [("cluster.time=4h", "bad_time_limit"), ("cluster.memory=lots", "bad_cluster_value")],
)
def test_slurm_settings_are_planned_too(override: str, id: str, launch: Launch) -> None:
    done = launch("plan", "stage=sft", "gpus=8", override)
    assert done.returncode == 2 and f"[{id}]" in done.stderr
