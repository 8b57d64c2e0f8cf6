"""A sample of each way to start a trainer, or to configure one, that public scripts have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.check.lint.checker import CommandChecker, LintVerdict
from launch.check.lint.files import check_file
from launch.check.lint.schemas import TrainerSchemas
from tests.check.lint import helpers
from tests.upstream.checkouts import SITE_PACKAGES

TRL = "--model_name_or_path m --dataset_name d"
OI = "--model_name_or_path m --logging_steps 1"


def check_text(folder: Path, text: str, name: str = "run.sh") -> list[LintVerdict]:
    """Check with the lock and the installed accelerate, whose options `trl sft` passes on."""
    return helpers.check_text(
        folder, text, name, CommandChecker(TrainerSchemas(None, SITE_PACKAGES))
    )


# a command with an unknown flag, and the script that lint takes it to start
STARTS = [
    (f"trl sft {TRL} --bogus 1", "trl.scripts.sft"),
    (f"env A=1 trl dpo {TRL} --bogus 1", "trl.scripts.dpo"),
    (f"$(which trl) sft {TRL} --bogus 1", "trl.scripts.sft"),
    (f"accelerate launch $(command -v trl) sft {TRL} --bogus 1", "trl.scripts.sft"),
    (f"accelerate launch -m trl sft {TRL} --bogus 1", "trl.scripts.sft"),
    (f"accelerate launch --module trl.cli.main sft {TRL} --bogus 1", "trl.scripts.sft"),
    (f"python -m trl.scripts.sft {TRL} --bogus 1", "trl.scripts.sft"),
    (f"python examples/scripts/sft.py {TRL} --bogus 1", "trl.scripts.sft"),
    (f"uv run --with peft trl/examples/scripts/dpo.py {TRL} --bogus 1", "trl.scripts.dpo"),
    (f"uv run trl sft {TRL} --bogus 1", "trl.scripts.sft"),
    (
        f"hf jobs uv run --flavor l4 --secrets A trl/scripts/sft.py {TRL} --bogus 1",
        "trl.scripts.sft",
    ),
    (f"uv run https://a.b/trl/scripts/sft.py {TRL} --bogus 1", "trl.scripts.sft"),
    (f"docker run --gpus all image trl sft {TRL} --bogus 1", "trl.scripts.sft"),
    (f"nohup `which trl` sft {TRL} --bogus 1 &", "trl.scripts.sft"),
    (f"torchrun --nproc_per_node 2 -m trl.scripts.sft {TRL} --bogus 1", "trl.scripts.sft"),
    (f"torchrun -m open_instruct.finetune {OI} --bogus 1", "open_instruct/finetune.py"),
    (f"deepspeed open_instruct/finetune.py {OI} --bogus 1", "open_instruct/finetune.py"),
    (f"deepspeed --module open_instruct.finetune {OI} --bogus 1", "open_instruct/finetune.py"),
]


@pytest.mark.parametrize(("line", "script"), STARTS)
def test_every_way_to_start_a_trainer_is_known(tmp_path: Path, line: str, script: str) -> None:
    (verdict,) = check_text(tmp_path, f"{line}\n")
    assert (verdict.script, verdict.ok) == (script, False)
    assert "bogus" in {problem.where for problem in verdict.problems}


def test_a_package_is_no_module_that_python_can_run(tmp_path: Path) -> None:
    (verdict,) = check_text(tmp_path, f"python -m trl sft {TRL}\n")
    assert [problem.id for problem in verdict.problems] == ["not_a_module"]
    (verdict,) = check_text(tmp_path, f"python -m trl.cli.main sft {TRL}\n")
    assert verdict.ok is not False


def test_a_script_that_moved_is_never_accepted(tmp_path: Path) -> None:
    (verdict,) = check_text(tmp_path, f"python examples/scripts/sft.py {TRL}\n")
    assert verdict.ok is None
    assert "moved_script" in {item.id for item in verdict.warnings}


def test_the_path_of_a_program_starts_nothing(tmp_path: Path) -> None:
    assert check_text(tmp_path, "command -v python open_instruct/finetune.py\n") == []


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ('ARGS=(--seed 1)\nif x; then\n  ARGS+=(--bogus 1)\nfi\nRUN "${ARGS[@]}"\n', ["bogus"]),
        ('ARGS=(--seed 1)\n[ $N = 1 ] && ARGS+=(--warmup_ratio $W)\nRUN "${ARGS[@]}"\n', []),
        ("case $X in a) E='--lora_rank 1 --nope' ;; esac\nRUN $E\n", ["nope"]),
        ("RUN ${W:+--nope --seed 1}\n", ["nope"]),
        ('O=${W+"--nope"}\nRUN $O\n', ["nope"]),
        ("RUN ${W:+--use_lora --lora_rank 8}\n", []),
        ('A=(--seed 1)\nif x; then A+=(--nope); fi\nRUN ${A[@]+"${A[@]}"}\n', ["nope"]),
    ],
)
def test_an_unknown_flag_of_a_branch_is_named(tmp_path: Path, text: str, flags: list[str]) -> None:
    run = f"python open_instruct/finetune.py {OI}"
    (verdict,) = check_text(tmp_path, text.replace("RUN", run))
    assert verdict.ok is None and not verdict.problems
    named = [item for item in verdict.warnings if item.id == "undecided" and item.where]
    assert [item.where for item in named] == flags
    for item in named:
        assert f"--{item.where}" in text.splitlines()[item.line - 1]


@pytest.mark.parametrize(
    ("value", "ok"),
    [
        ("${LR:-1e-5}", True),
        ("${LR:-abc}", False),
        ("${LR:=abc}", False),
        ('"${LR:-"abc"}"', False),
        ("${LR:-'1e-5'}", True),
        ("${LR:-${RATE:-abc}}", False),
        ("${1:-abc}", None),
    ],
)
def test_a_default_is_judged(tmp_path: Path, value: str, ok: bool | None) -> None:
    line = f"python open_instruct/finetune.py {OI} --learning_rate {value}\n"
    (verdict,) = check_text(tmp_path, line)
    assert verdict.ok is ok


@pytest.mark.parametrize("before", ["LR=${LR:-abc}", ': "${LR:=abc}"', 'export LR="${LR:-abc}"'])
def test_a_default_is_judged_where_the_variable_is_used(tmp_path: Path, before: str) -> None:
    line = f"{before}\npython open_instruct/finetune.py {OI} --learning_rate $LR\n"
    (verdict,) = check_text(tmp_path, line)
    assert [problem.where for problem in verdict.problems] == ["learning_rate"]


def test_the_new_name_of_a_flag_has_its_value(tmp_path: Path) -> None:
    """The cure works as it stands."""
    run = "python open_instruct/dpo_tune_cache.py --model_name_or_path m --mixer_list a 1.0"
    for given, written in (
        ("--gradient_checkpointing", "--activation_memory_budget 0.5"),
        ("--gradient_checkpointing false", "--activation_memory_budget 1.0"),
    ):
        (verdict,) = check_text(tmp_path, f"{run} {given}\n")
        assert [str(problem.cure) for problem in verdict.problems] == [f"write {written}"]
        (verdict,) = check_text(tmp_path, f"{run} {written}\n")
        assert verdict.ok is not False


@pytest.mark.parametrize(
    "line", ['A=(--bogus 1)\nRUN ${A[@]+"${A[@]}"}\n', 'A=(--bogus 1)\nRUN "${A[@]:+${A[@]}}"\n']
)
def test_the_elements_of_a_list_that_may_be_empty_are_known(tmp_path: Path, line: str) -> None:
    run = f"python open_instruct/finetune.py {OI}"
    (verdict,) = check_text(tmp_path, line.replace("RUN", run))
    assert [problem.where for problem in verdict.problems] == ["bogus"]


@pytest.mark.parametrize(
    ("trainer", "flags", "cure"),
    [
        ("dpo_tune_cache", "--dpo_beta $BETA", "write --beta"),
        ("dpo", "--gradient_checkpointing $GC", "write --activation_memory_budget"),
        (
            "finetune",
            """--dataset_mixer '{"a": 0.5, "b": 1}'""",
            "write --dataset_mixer_list a 0.5 b 1",
        ),
        ("finetune", """'--dataset_mixer={"a": 0.5}'""", "write --dataset_mixer_list a 0.5"),
        ("dpo", """--dataset_mixer '{"a": 0.5}'""", "write --mixer_list a 0.5"),
        ("dpo", "--dataset_mixer a", "write --mixer_list NAME SHARE"),
        ("dpo", "--num_samples_per_prompt_rollout 4", "`launch flags dpo` lists what it has"),
    ],
)
def test_what_changes_the_training_is_never_left_out(
    tmp_path: Path, trainer: str, flags: str, cure: str
) -> None:
    line = f"python open_instruct/{trainer}.py {OI} {flags}\n"
    (verdict,) = check_text(tmp_path, line)
    cures = [str(problem.cure) for problem in verdict.problems if problem.id != "contradiction"]
    assert cures == [cure]


ZERO3 = '{"zero_optimization": {"stage": 3}}'
CONFLICT = (
    "distributed_type: DEEPSPEED\n"
    "deepspeed_config:\n  deepspeed_config_file: ds.json\n  zero_stage: 3\n"
)


@pytest.mark.parametrize(
    ("line", "settings", "ids"),
    [
        (f"torchrun -m trl.scripts.sft {TRL} --deepspeed ds.json", "", ["unsaved_zero3_model"]),
        ("trl sft --config f.yaml", "deepspeed: ds.json\n", ["unsaved_zero3_model"]),
        (f"trl sft {TRL} --deepspeed=wrong.json", "", ["unknown_deepspeed_key"]),
        (f"trl sft {TRL} --accelerate_config acc.yaml", "", ["conflicting_accelerate_keys"]),
        (f"trl dpo {TRL} --config_file acc.yaml", "", ["conflicting_accelerate_keys"]),
        (
            "trl sft --config f.yaml",
            "accelerate_config: acc.yaml\n",
            ["conflicting_accelerate_keys"],
        ),
        (f"trl sft {TRL} --accelerate_config zero3", "", []),
        # the script itself drops the key, so that nothing reads the file
        ("python -m trl.scripts.sft --config f.yaml", "accelerate_config: acc.yaml\n", []),
    ],
)
def test_the_files_that_trl_gives_to_accelerate_and_deepspeed(
    tmp_path: Path, line: str, settings: str, ids: list[str]
) -> None:
    (tmp_path / "ds.json").write_text(ZERO3, encoding="utf-8")
    (tmp_path / "wrong.json").write_text('{"zero_optimisation": {}}', encoding="utf-8")
    (tmp_path / "acc.yaml").write_text(CONFLICT, encoding="utf-8")
    text = f"model_name_or_path: m\ndataset_name: d\n{settings}"
    (tmp_path / "f.yaml").write_text(text, encoding="utf-8")
    (verdict,) = check_text(tmp_path, f"{line}\n")
    found = [item.id for item in verdict.findings if item.id.endswith(("_keys", "_key", "_model"))]
    assert [id for id in found if id != "dropped_key"] == [*ids, *_of_inner_file(ids)]


def _of_inner_file(ids: list[str]) -> list[str]:
    """The DeepSpeed file that an accelerate file names is checked too."""
    return ["unsaved_zero3_model"] if "conflicting_accelerate_keys" in ids else []


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        ("python open_instruct/finetune.py f.yaml", "finetune.py reads no file of flags"),
        ("python open_instruct/dpo.py f.yml", "whose name ends with .yaml only"),
        ("python open_instruct/dpo.py --seed 1 f.yaml", "as its first argument only"),
        ("python -m trl.scripts.sft f.yaml", "write --config f.yaml"),
        ("trl sft --config=f.yaml", "write --config FILE"),
    ],
)
def test_a_file_that_the_parser_does_not_read(tmp_path: Path, line: str, cure: str) -> None:
    (verdict,) = check_text(tmp_path, f"{line}\n")
    problems = [item for item in verdict.problems if item.id in ("positional", "unknown_flag")]
    assert [cure in str(problem.cure) for problem in problems] == [True]


@pytest.mark.parametrize(
    ("text", "ok"),
    [
        (f"!torchrun -m trl.scripts.sft {TRL} \\\n  --bogus 1\n", False),
        (f"lr = 1\nout = !trl sft {TRL} --learning_rate {{lr}} --bogus 1\n", False),
        (f"%%bash\nX=1\ntrl sft {TRL} --bogus $X\n", False),
        (f"%%writefile train.sh\ntrl sft {TRL} --bogus 1\n", False),
        (f"!trl sft {TRL} --seed {{cfg['seed']}}\n", None),
        (f"import subprocess\nsubprocess.run('trl sft {TRL} --bogus 1', shell=True)\n", None),
        (f"!trl sft {TRL} --seed 1\n", True),
    ],
)
def test_the_commands_of_a_notebook(tmp_path: Path, text: str, ok: bool | None) -> None:
    lines = ["# ä\n", *text.splitlines(keepends=True)]
    if text.startswith("%%"):
        del lines[0]
    cells = [
        {"cell_type": "markdown", "source": [f"`trl sft {TRL} --bogus 1`"]},
        {"cell_type": "code", "outputs": [], "source": lines},
    ]
    content = json.dumps({"cells": cells}, indent=1, ensure_ascii=False)
    (verdict,) = check_text(tmp_path, content, "a.ipynb")
    assert verdict.ok is ok
    for problem in verdict.problems:
        assert "--bogus" in content.splitlines()[problem.line - 1]


@pytest.mark.parametrize("content", ["trl. {", '["trl."]', '{"cells": "trl."}'])
def test_a_notebook_that_is_none_is_not_read(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.ipynb"
    path.write_text(content, encoding="utf-8")
    checker = CommandChecker(TrainerSchemas(None, []))
    assert [note.id for note in check_file(path, checker).notes] == ["not_read"]


@pytest.mark.parametrize(
    ("text", "ok"),
    [
        (
            'FROM a\nENTRYPOINT ["trl"]\nCMD ["sft", "--model_name_or_path", "m", "--bogus", "1"]\n',
            False,
        ),
        ('FROM a\nCMD ["--seed", "1"]\nENTRYPOINT ["trl", "sft", "--dataset_name", "d"]\n', True),
        ('FROM a\nENTRYPOINT ["trl", "sft"]\nFROM b\nCMD ["--bogus", "1"]\n', None),
        ('FROM a\nENTRYPOINT ["sh", "-c"]\nCMD ["trl sft --dataset_name d --bogus 1"]\n', False),
    ],
)
def test_cmd_is_the_arguments_of_the_entrypoint(tmp_path: Path, text: str, ok: bool | None) -> None:
    (verdict,) = check_text(tmp_path, text, "Dockerfile")
    assert verdict.ok is ok


HANDBOOK = """\
model_name_or_path: some/model
torch_dtype: bfloat16
use_flash_attention_2: true
learning_rate: 2.0e-05
gradient_accumulation_steps: 1
max_seq_length: 2048
"""


MIXTURE = """\
dataset_mixture:
  datasets: [{id: some/data, weight: 0.5}]
"""
OLD_DATA = """\
dataset_mixer:
  some/data: 1.0
dataset_splits: [train_sft, test_sft]
"""


@pytest.mark.parametrize("data", [OLD_DATA, MIXTURE, "dataset_mixture: some/data\n"])
def test_a_file_of_the_alignment_handbook_is_answered_by_a_stage(tmp_path: Path, data: str) -> None:
    """Its own scripts read the data, so that TRL's flags do not decide it."""
    (verdict,) = check_text(tmp_path, HANDBOOK + data, "run.yaml")
    (answer,) = verdict.warnings
    assert (verdict.ok, answer.id) == (None, "other_tool")
    assert "launch plan stage=sft" in str(answer.cure)


@pytest.mark.parametrize(
    ("key", "ok", "id"),
    [
        ("lerning_rate: 1", False, "no_trainer_accepts"),  # misspelt
        ("use_flash_attn: true", False, "no_trainer_accepts"),  # removed
        ("benchmarks: [a]", None, "undecided"),  # of another program
    ],
)
def test_a_key_of_no_trainer_leaves_a_file_undecided(
    tmp_path: Path, key: str, ok: bool | None, id: str
) -> None:
    text = f"model_name_or_path: m\nlogging_steps: 1\nseed: 1\n{key}\n"
    (verdict,) = check_text(tmp_path, text, "run.yaml")
    assert (verdict.ok, verdict.warnings[0].id) == (ok, id)


AXOLOTL = """\
base_model: some/model
datasets:
  - path: some/data
    type: chat_template
sequence_len: 2048
micro_batch_size: 2
"""
LLAMA_FACTORY = """\
model_name_or_path: some/model
stage: dpo
finetuning_type: lora
template: llama3
cutoff_len: 1024
"""


@pytest.mark.parametrize(
    ("text", "stage"), [(AXOLOTL, "stage=sft"), (LLAMA_FACTORY, "stage=lora_dpo")]
)
def test_a_file_of_another_tool_is_answered_by_a_stage(
    tmp_path: Path, text: str, stage: str
) -> None:
    (verdict,) = check_text(tmp_path, text, "run.yaml")
    (answer,) = verdict.warnings
    assert (verdict.ok, verdict.problems, answer.id) == (None, [], "other_tool")
    assert f"launch plan {stage} " in str(answer.cure)
    assert "model.path=some/model" in str(answer.cure)


def test_flags_of_a_trainer_are_no_file_of_another_tool(tmp_path: Path) -> None:
    text = "model_name_or_path: m\noverwrite_cache: true\npreprocessing_num_workers: 4\nseed: 1\n"
    (verdict,) = check_text(tmp_path, text, "run.yaml")
    assert verdict.script


FILE = "model_name_or_path: m\nlearning_rate: 1.0e-5\n"


@pytest.mark.parametrize(
    ("settings", "flags", "ids"),
    [
        ("", "", []),
        ("", "--seed=3", []),
        ("", "--seed 3", ["not_joined"]),
        ("", "--seed=x", ["bad_type"]),
        ("", "--nope=3", ["dropped_flag"]),
        ("nope: 1\n", "", ["unknown_key"]),
        ("seed: 1e-5\n", "", ["wrong_type"]),
        ("seed: 1e-5\n", "--seed=3", []),
    ],
)
def test_a_yaml_file_before_the_flags(
    tmp_path: Path, settings: str, flags: str, ids: list[str]
) -> None:
    (tmp_path / "f.yaml").write_text(FILE + settings, encoding="utf-8")
    line = f"python open_instruct/reward_modeling.py f.yaml {flags}\n"
    (verdict,) = check_text(tmp_path, line)
    assert [problem.id for problem in verdict.problems] == ids
    assert verdict.ok is (not ids)
    for problem in verdict.problems:
        if problem.id in ("unknown_key", "wrong_type"):
            assert f"{tmp_path / 'f.yaml'}:3: " in problem.message


def test_a_yaml_file_that_is_not_here_is_undecided(tmp_path: Path) -> None:
    (verdict,) = check_text(tmp_path, "python open_instruct/dpo.py nowhere.yaml --seed=1\n")
    assert (verdict.ok, verdict.problems) == (None, [])


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [\n", "text\n"])
def test_a_file_that_is_no_map_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "f.yaml").write_text(text, encoding="utf-8")
    (verdict,) = check_text(tmp_path, "python -m trl.scripts.sft --config f.yaml\n")
    assert [problem.id for problem in verdict.problems] == ["bad_config_file"]


def test_trl_refuses_a_key_and_its_script_drops_it(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("model_name_or_path: m\nlerning_rate: 1\n", encoding="utf-8")
    for start, expected in (
        ("trl sft", "unknown_key"),
        ("python -m trl.scripts.sft", "dropped_key"),
    ):
        (verdict,) = check_text(tmp_path, f"{start} --config f.yaml\n")
        assert [(problem.id, problem.where) for problem in verdict.problems] == [
            (expected, "lerning_rate")
        ]
