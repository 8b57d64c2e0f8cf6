"""What a plan prints of its cost, steps, hours and disk, and what it names as missing."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from launch.__main__ import main
from launch.api.planning import PlannedRun
from launch.commands.plan import describe_plan
from launch.data.staging import stage
from launch.planning.digest_cache import DigestCache
from launch.planning.estimate.speed import forecast_time, planned_steps
from tests.conftest import FixedMachine, machine_in, planned
from tests.data.files import CHAT, PAIR, write_lines
from tests.paths import ROOT

SFT = ("stage=sft", "gpus=8")
H100 = "cluster.gpu_type=h100"
STEPS = "recipe.max_steps=100"
OLMO = ("trainer=olmo_core_finetune", "model=olmo3_7b", "recipe.packing=bins")


def lines_of(fact: str, *overrides: str, machine: FixedMachine | None = None) -> list[str]:
    """Return the lines of one fact of a plan."""
    lines = []
    name = ""
    for title, text in PlannedRun(planned(*overrides, machine=machine)).facts():
        name = title or name
        if name == fact:
            lines.append(text)
    return lines


@pytest.mark.parametrize(
    ("overrides", "present", "absent"),
    [
        # each names what is missing, and no more than that
        (
            (*SFT, STEPS),
            ("cluster.gpu_type=h100", "`launch help gpus`"),
            ("cache_only", "unknown to"),
        ),
        ((*SFT, STEPS, "cluster.gpu_memory=80"), ("cluster.gpu_type=h100",), ("cache_only",)),
        (
            (*SFT, STEPS, "cluster.gpu_type=frobnicator", "cluster.gpu_memory=80"),
            ("the speed of frobnicator is unknown", "`launch help gpus`"),
            ("cluster.gpu_type=h100",),
        ),
        (
            (*SFT, STEPS, H100),
            ("for 100 steps", "4096 tokens long", "cache_only=true` first", "scaled"),
            ("unknown", "gpu_type,"),
        ),
        ((*SFT, STEPS, "cluster.gpu_type=h200"), ("for 100 steps",), ("unknown", "scaled")),
        # hub data, whose rows are not counted: the time of a step
        ((*SFT, H100), ("s for a step", "the number of steps is unknown"), ("set cluster",)),
        ((*SFT, H100, "cache_only=true"), ("tokenises the data",), ("first", "unknown")),
        # no pass of its own counts the lengths
        ((*SFT, STEPS, H100, "trainer=trl_sft"), ("for 100 steps", "4096"), ("cache_only",)),
        (("stage=rlvr", "gpus=1", STEPS, H100), ("for 100 steps",), ("cache_only", "unknown")),
    ],
)
def test_hours_or_what_is_missing_to_know_them(
    overrides: tuple[str, ...], present: tuple[str, ...], absent: tuple[str, ...]
) -> None:
    text = "\n".join(lines_of("time", *overrides))
    for part in present:
        assert part in text
    for part in absent:
        assert part not in text


def test_shorter_samples_take_less_time_than_the_limit(tmp_path: Path) -> None:
    """The lengths replace the limit once they are there, and the line that counts them goes."""
    machine = machine_in(tmp_path)
    line = (*SFT, STEPS, H100)
    plan = planned(*line, machine=machine)
    memory = PlannedRun(plan).memory
    assert memory is not None and plan.lengths_file is not None
    limit = forecast_time(plan, memory)
    plan.lengths_file.parent.mkdir(parents=True)
    content = {"schema_version": 1, "kind": "sft", "label_tokens": 60, "tokens": {"10": 5, "30": 5}}
    plan.lengths_file.write_text(json.dumps(content), encoding="utf-8")
    counted_memory = PlannedRun(plan).memory
    assert counted_memory is not None
    counted = forecast_time(plan, counted_memory)
    assert limit.at_limit and not counted.at_limit
    assert limit.step and counted.step and counted.step < limit.step
    assert "cache_only" not in "\n".join(lines_of("time", *line, machine=machine))


def test_the_line_that_counts_the_lengths_can_be_pasted() -> None:
    """It plans as it is, and only tokenises."""
    [line] = lines_of("lengths", *SFT, H100, "name=a b".replace(" ", "_"))
    command = shlex.split(line.split("`")[1])
    assert command[:2] == ["launch", "run"]
    assert planned(*command[2:]).config.cache_only


@pytest.mark.parametrize(
    ("overrides", "schedule", "disk"),
    [
        (
            ("recipe.global_batch_size=8", "recipe.epochs=2", "data.validation=0.1"),
            "2 epochs, 46 steps: 180 of 200 rows are trained on, 20 are held out, 23 steps an epoch",
            "no checkpoint is written, because the run ends after 46 steps, before step 200",
        ),
        (
            ("recipe.global_batch_size=8", "recipe.epochs=1"),
            "1 epoch, 25 steps: 200 of 200 rows are trained on",
            "before step 200 (recipe.checkpoint_steps)",
        ),
        (
            ("recipe.global_batch_size=8", "recipe.epochs=1", "recipe.checkpoint_steps=20"),
            "1 epoch, 25 steps",
            "1 checkpoint of",
        ),
    ],
)
def test_steps_and_checkpoints_follow_from_the_rows(
    tmp_path: Path, overrides: tuple[str, ...], schedule: str, disk: str
) -> None:
    write_lines(tmp_path / "a.jsonl", [CHAT] * 200)
    line = (*SFT, "data.mix=[{name: ./a.jsonl}]", *overrides)
    machine = machine_in(tmp_path)
    [text] = lines_of("schedule", *line, machine=machine)
    assert text.startswith(schedule)
    written, *download = lines_of("disk", *line, machine=machine)
    assert disk in written
    assert "15 GiB" in download[0] and "meta-llama/Llama-3.1-8B" in download[0]


@pytest.mark.parametrize(
    ("overrides", "steps", "schedule"),
    [
        # an epoch has 25 steps
        ((), 25, "1 epoch, 25 steps"),
        (("recipe.max_steps=5",), 5, "5 steps in place of epochs, which go 0.2 times through"),
        (("recipe.max_steps=1000",), 1000, "1,000 steps in place of epochs, which go 40 times"),
        (("recipe.max_steps=1",), 1, "1 step in place of epochs, which go 0.04 times"),
        (("trainer=dpo_tune_cache", "recipe.max_steps=1000"), 1000, "1,000 steps in place of"),
        ((*OLMO, "recipe.max_steps=90"), 90, "90 steps in place of epochs"),
        (("trainer=trl_sft", "recipe.max_steps=1000"), 1000, "1,000 steps in place of epochs"),
        (("trainer=trl_sft", "flags.max_steps=40"), 40, "40 steps in place of epochs"),
        (("trainer=trl_sft", "flags.max_steps=-1"), 25, "1 epoch, 25 steps"),
        (("trainer=finetune", "flags.max_train_steps=40"), 40, "40 steps in place of epochs"),
    ],
)
def test_a_number_of_steps_takes_the_place_of_the_epochs(
    tmp_path: Path, overrides: tuple[str, ...], steps: int, schedule: str
) -> None:
    """As in every trainer, also where it is larger than the epochs."""
    row = CHAT
    stage = "stage=sft"
    if "trainer=dpo_tune_cache" in overrides:
        row = PAIR
        stage = "stage=dpo"
    write_lines(tmp_path / "a.jsonl", [row] * 200)
    batch = ("recipe.global_batch_size=8", "recipe.epochs=1")
    line = (stage, "gpus=8", "data.mix=[{name: ./a.jsonl}]", *batch, *overrides)
    machine = machine_in(tmp_path)
    assert planned_steps(planned(*line, machine=machine)) == steps
    [text] = lines_of("schedule", *line, machine=machine)
    assert text.startswith(schedule)


@pytest.mark.parametrize("is_staged", [False, True])
def test_rows_of_a_validation_file_are_not_held_out_of_the_others(
    tmp_path: Path, is_staged: bool
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [CHAT] * 200)
    held_out = write_lines(tmp_path / "held.jsonl", [CHAT] * 40)
    machine = machine_in(tmp_path)
    line = (*SFT, f"data.mix=[{{name: {path}}}]", f"data.validation={held_out}")
    line += ("recipe.global_batch_size=8", "recipe.epochs=1")
    plan = planned(*line, machine=machine)
    if is_staged:
        [entry] = plan.inputs.mixture
        assert entry.data is not None
        stage(entry.data, DigestCache(tmp_path / "digests").of)
        plan = planned(*line, machine=machine)
    assert planned_steps(plan) == 25
    [text] = lines_of("schedule", *line, machine=machine)
    assert text.startswith("1 epoch, 25 steps: 200 of 200 rows are trained on; ") or text.endswith(
        "200 of 200 rows are trained on"
    )


def test_beta_stands_behind_the_rows_of_pairs(tmp_path: Path) -> None:
    write_lines(tmp_path / "pairs.jsonl", [PAIR] * 200)
    line = ("stage=dpo", "trainer=trl_dpo", "gpus=8", "data.mix=[{name: ./pairs.jsonl}]")
    line += ("recipe.global_batch_size=8", "recipe.max_steps=null", "recipe.epochs=1")
    [text] = lines_of("schedule", *line, machine=machine_in(tmp_path))
    assert text.startswith("1 epoch, 25 steps: 200 of 200 rows are trained on; beta "), text


@pytest.mark.parametrize("model", ["here", "cached"])
def test_a_model_that_is_here_is_not_downloaded(tmp_path: Path, model: str) -> None:
    machine = machine_in(tmp_path)
    line = [*SFT]
    folder = tmp_path / "hub" / "models--meta-llama--Llama-3.1-8B" / "snapshots" / "a"
    if model == "here":
        folder = tmp_path / "base"
        line += ["model.path=./base", "allow=[incomplete_model]"]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    header = b"{}"
    weights = len(header).to_bytes(8, "little") + header
    (folder / "model.safetensors").write_bytes(weights)
    machine.environ["HF_HUB_CACHE"] = str(tmp_path / "hub")  # type: ignore[index]
    assert not any("downloaded" in text for text in lines_of("disk", *line, machine=machine))


@pytest.mark.parametrize(
    ("token", "ids"), [({}, ["no_hub_token"]), ({"HF_TOKEN": "hf_" + "x" * 20}, [])]
)
def test_a_plan_warns_of_a_gated_model_without_a_token(
    tmp_path: Path, token: dict[str, str], ids: list[str]
) -> None:
    machine = machine_in(tmp_path)
    machine.environ.update({"HF_HOME": str(tmp_path), **token})  # type: ignore[attr-defined]
    warnings = PlannedRun(planned(*SFT, machine=machine)).warnings
    assert [warning.id for warning in warnings if warning.id == "no_hub_token"] == ids
    open_model = planned(*SFT, "model.path=owner/base", machine=machine)
    assert not any(warning.id == "no_hub_token" for warning in PlannedRun(open_model).warnings)


@pytest.mark.parametrize(
    ("overrides", "commands"),
    [
        # no GPU is here, and no checkout of open-instruct, without which it shows no samples
        (("gpus=8",), ("submit", "submit")),
        (("gpus=8", "trainer=trl_sft"), ("preview", "submit", "submit")),
        (
            ("gpus=8", "trainer=trl_sft", "cluster.partition=gpu"),
            ("preview", "submit", "submit"),
        ),
        (("gpus=8", "nodes=2", "trainer=trl_sft"), ("preview", "submit", "submit")),
        (("gpus=8", "cache_only=true"), ("check", "stage=sft")),
        (("device=cpu",), ("check", "stage=sft")),
        (("device=cpu", "cluster.partition=cpu"), ("check", "stage=sft", "submit", "submit")),
    ],
)
def test_a_plan_ends_in_the_commands_that_can_follow(
    overrides: tuple[str, ...],
    commands: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("launch.planning.machine.find_checkout", lambda *_: None)
    assert main(["plan", "stage=sft", *overrides]) == 0
    text = capsys.readouterr().out.rpartition("\nnext\n")[2]
    lines = [line.split() for line in text.splitlines() if line.startswith("  launch ")]
    assert tuple(words[1] for words in lines) == commands
    for words in lines:  # each can be pasted
        assert "#" in words and {"stage=sft", *overrides} <= set(words[: words.index("#")])
    assert ("there is no GPU here" in text) == (
        commands[0] in ("preview", "submit") and "nodes=2" not in overrides
    )


@pytest.mark.parametrize(
    "environ",
    [{"HF_HUB_OFFLINE": "1"}, {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}],
)
def test_a_preview_without_the_hub_is_refused_before_the_trainer_starts(
    environ: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    write_lines(tmp_path / "a.jsonl", [CHAT] * 4)
    mix = f"data.mix=[{{name: {tmp_path}/a.jsonl}}]"
    line = ["preview", "stage=sft", "trainer=trl_sft", "device=cpu", mix]
    assert main([*line, "recipe.global_batch_size=2"]) == 2
    printed = capsys.readouterr()
    assert "[hub_unreachable]" in printed.err and "meta-llama/Llama-3.1-8B" in printed.err
    assert "starting" not in printed.err


def test_a_long_path_leaves_the_columns_of_the_flags_where_they_are(tmp_path: Path) -> None:
    folder = tmp_path / ("a folder with a long name " * 4).strip()
    folder.mkdir()
    write_lines(folder / "rows.jsonl", [CHAT] * 200)
    mix = f"data.mix=[{{name: '{folder}/rows.jsonl'}}]"
    line = (*SFT, mix, "data.validation=0.1", "trainer=trl_sft", "recipe.eval_steps=50")
    described = describe_plan(PlannedRun(planned(*line, machine=machine_in(tmp_path))), {})
    start = described.index("flags") + 1
    rows = described[start : described.index("", start)]
    columns = set()
    for row in rows:
        match = re.search(r" (model|data|recipe|parallel|launcher|override)(?=  |$)", row)
        assert match is not None, row
        columns.add(match.start())
    assert len(rows) > 20 and len(columns) == 1
    [path] = [row for row in rows if row.split()[0] == "dataset_name"]
    assert " ..." in path and max(map(len, rows)) < 160


@pytest.mark.parametrize(
    "line",
    [
        (*SFT, "trainer=trl_sft"),
        ("stage=dpo", "trainer=trl_dpo", "gpus=8"),
        ("stage=lora_sft", "trainer=trl_sft", "gpus=1"),
    ],
)
def test_the_memory_of_a_stage_that_holds_rows_out_is_known(line: tuple[str, ...]) -> None:
    """A drafted stage holds out a tenth: its evaluation is predicted, too."""
    memory = lines_of("memory", *line, H100, "data.mix=[{name: a/b}]", "data.validation=0.1")
    assert len(memory) >= 2 and not any("unknown" in text for text in memory)


def test_the_line_that_a_flag_names_sets_it() -> None:
    """What data.validation makes the trainer evaluate has its own lines, not that of the rows."""
    line = (*SFT, "trainer=trl_sft", "data.validation=0.1", "data.mix=[{name: a/b}]")
    flags = planned(*line).flags
    for name in ("eval_strategy", "eval_steps", "per_device_eval_batch_size"):
        path, number = str(flags[name].provenance.where).rsplit(":", 1)
        [set_by] = (ROOT / path).read_text(encoding="utf-8").splitlines()[int(number) - 1 :][:1]
        assert name in set_by


def test_the_help_lists_the_gpus_and_the_keys_of_a_cluster(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["help", "gpus"]) == 0
    gpus = capsys.readouterr().out
    [h200] = [line for line in gpus.splitlines() if line.startswith("h200 ")]
    [a100] = [line for line in gpus.splitlines() if line.startswith("a100_80gb ")]
    assert "measured" in h200 and "scaled" in a100 and " 80 " in a100
    assert main(["help", "keys"]) == 0
    keys = capsys.readouterr().out
    assert "cluster.gpu_type=" in keys and "partition" in keys and "`launch help gpus`" in keys


def test_the_costs_of_one_stage_name_no_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["plan", "gpus=8", H100, STEPS]
    assert main([*line, "pipeline=sft"]) == 0
    assert "next stage" not in capsys.readouterr().out
    assert main([*line, "pipeline=sft,dpo"]) == 0
    two = capsys.readouterr().out
    assert "next stage" in two and "up to " in two
    _, _, commands = two.rpartition("\nnext\n")
    overrides = f"gpus=8 {H100} {STEPS} pipeline=sft,dpo"
    assert f"  launch submit {overrides} dry_run=true  #" in commands
    assert "launch preview" not in commands
