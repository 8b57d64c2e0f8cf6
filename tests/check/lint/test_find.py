"""Which commands start a trainer, through every launcher, and with which arguments."""

from __future__ import annotations

import pytest

from tests.check.lint.helpers import commands_in, texts

FINETUNE = "open_instruct/finetune.py"


@pytest.mark.parametrize(
    "text",
    [
        "python open_instruct/finetune.py --a 1",
        "python3.12 -u open_instruct/finetune.py --a 1",
        "/opt/venv/bin/python -X faulthandler -W ignore open_instruct/finetune.py --a 1",
        "python -m open_instruct.finetune --a 1",
        "python -u -m open_instruct.finetune --a 1",
        (
            "accelerate launch --mixed_precision bf16 --num_processes 8 open_instruct/finetune.py "
            "--a "
            "1"
        ),
        "accelerate launch --config_file c.yaml -m open_instruct.finetune --a 1",
        "accelerate launch --module --num_processes 2 open_instruct.finetune --a 1",
        "python -m accelerate.commands.launch --num_processes 1 open_instruct/finetune.py --a 1",
        "torchrun --nproc_per_node=8 open_instruct/finetune.py --a 1",
        "torchrun --nproc_per_node 8 -m open_instruct.finetune --a 1",
        "python -m torch.distributed.run --nnodes 2 open_instruct/finetune.py --a 1",
        "python -m torch.distributed.launch open_instruct/finetune.py --a 1",
        "deepspeed --num_gpus 8 open_instruct/finetune.py --a 1",
        "deepspeed --module open_instruct.finetune --a 1",
        "uv run open_instruct/finetune.py --a 1",
        "uv run --active --extra gpu open_instruct/finetune.py --a 1",
        "uv run --with 'x y' python open_instruct/finetune.py --a 1",
        "uv run -m open_instruct.finetune --a 1",
        "uv run accelerate launch open_instruct/finetune.py --a 1",
        "srun --nodes=2 --ntasks-per-node=1 torchrun --nnodes=2 open_instruct/finetune.py --a 1",
        "srun -- python open_instruct/finetune.py --a 1",
        "env A=b C='d e' python open_instruct/finetune.py --a 1",
        "A=b CUDA_VISIBLE_DEVICES=0,1 python open_instruct/finetune.py --a 1",
        "nohup python open_instruct/finetune.py --a 1 > log.txt 2>&1 &",
        "time python open_instruct/finetune.py --a 1 | tee log",
        "source .venv/bin/activate && python open_instruct/finetune.py --a 1",
        "cd /x; python open_instruct/finetune.py --a 1 || exit 1",
        "! python open_instruct/finetune.py --a 1",
        "if python open_instruct/finetune.py --a 1; then echo ok; fi",
        "for i in 1 2; do python open_instruct/finetune.py --a 1; done",
        "(cd x && python open_instruct/finetune.py --a 1)",
        "train() { python open_instruct/finetune.py --a 1; }",
        "out=$(python open_instruct/finetune.py --a 1)",
        "out=`python open_instruct/finetune.py --a 1`",
        "echo $(python open_instruct/finetune.py --a 1)",
        "bash -c 'python open_instruct/finetune.py --a 1'",
        'srun bash -lc "python open_instruct/finetune.py --a 1"',
        'sbatch --wrap="python open_instruct/finetune.py --a 1"',
        'sbatch --gpus 8 --wrap "python open_instruct/finetune.py --a 1"',
        'ssh node1 "cd x && python open_instruct/finetune.py --a 1"',
        'eval "python open_instruct/finetune.py --a 1"',
        'CMD="python open_instruct/finetune.py --a 1"\n$CMD',
        'CMD="python open_instruct/finetune.py --a 1"\nsrun bash -c "$CMD"',
        'ARGS=(--a 1)\npython open_instruct/finetune.py "${ARGS[@]}"',
        "SCRIPT=open_instruct/finetune.py\npython $SCRIPT --a 1",
        "python $HOME/open-instruct/open_instruct/finetune.py --a 1",
        "python external/open-instruct/open_instruct/finetune.py --a 1",
        "./open_instruct/finetune.py --a 1",
        "sbatch <<EOF\n#!/bin/bash\npython open_instruct/finetune.py --a 1\nEOF",
        "cat <<'EOF' > job.sh\npython open_instruct/finetune.py --a 1\nEOF",
        "python mason.py --cluster x -- python open_instruct/finetune.py --a 1",
        (
            "uv run python mason.py --gpus 8 -- source r.sh \\&\\& python "
            "open_instruct/finetune.py "
            "--a 1"
        ),
        (
            "uv run python mason.py --gpus 8 -- source r.sh \\&\\&python open_instruct/finetune.py "
            "--a "
            "1"
        ),
        "gantry run --gpus 8 -- accelerate launch open_instruct/finetune.py --a 1",
    ],
)
def test_a_trainer_is_found(text: str) -> None:
    (command,) = commands_in(text)
    assert command.trainer.script == FINETUNE
    assert texts(command) == ["--a", "1"]


@pytest.mark.parametrize(
    ("text", "name", "script"),
    [
        ("trl sft --a 1", "trl_sft", "trl.scripts.sft"),
        ("trl dpo --a 1", "trl_dpo", "trl.scripts.dpo"),
        ("python -m trl sft --a 1", "trl_sft", "trl.scripts.sft"),
        ("python -m trl.scripts.dpo --a 1", "trl_dpo", "trl.scripts.dpo"),
        ("accelerate launch -m trl.scripts.sft --a 1", "trl_sft", "trl.scripts.sft"),
        (
            "accelerate launch --num_processes 2 trl/scripts/sft.py --a 1",
            "trl_sft",
            "trl.scripts.sft",
        ),
        (
            "python open_instruct/dpo_tune_cache.py --a 1",
            "dpo_tune_cache",
            "open_instruct/dpo_tune_cache.py",
        ),
        ("python dpo_tune_cache.py --a 1", "dpo_tune_cache", "open_instruct/dpo_tune_cache.py"),
        ("torchrun open_instruct/dpo.py --a 1", "dpo", "open_instruct/dpo.py"),
        (
            "torchrun open_instruct/olmo_core_finetune.py --a 1",
            "olmo_core_finetune",
            "open_instruct/olmo_core_finetune.py",
        ),
        ("python open_instruct/grpo_fast.py --a 1", "grpo_fast", "open_instruct/grpo_fast.py"),
        (
            "python open_instruct/ppo_vllm_thread.py --a 1",
            "ppo_vllm_thread",
            "open_instruct/ppo_vllm_thread.py",
        ),
    ],
)
def test_each_trainer_has_its_name(text: str, name: str, script: str) -> None:
    (command,) = commands_in(text)
    assert (command.trainer.name, command.trainer.script, texts(command)) == (
        name,
        script,
        ["--a", "1"],
    )


@pytest.mark.parametrize(
    "text",
    [
        "echo python open_instruct/finetune.py --a 1",
        "cat open_instruct/finetune.py",
        "grep -n python open_instruct/finetune.py",
        "git log -- open_instruct/finetune.py",
        "ruff check open_instruct/finetune.py",
        "# python open_instruct/finetune.py --a 1",
        "python finetune.py --a 1",
        "python other/finetune.py --a 1",
        "python plot.py --script open_instruct/finetune.py",
        "accelerate launch train.py --path open_instruct/finetune.py",
        "python open_instruct/merge_lora.py --a 1",
        "python open_instruct/dpo_utils.py",
        'echo "python open_instruct/finetune.py --a 1"',
        'gantry run --description "python open_instruct/finetune.py --a" -- true',
        "trl env",
        "trl --help",
        "uv run pytest open_instruct/test_finetune.py",
        "echo open_instruct/finetune.py | xargs -I",
    ],
)
def test_what_starts_no_trainer(text: str) -> None:
    assert commands_in(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("trl sft --a", True),
        ("python -m trl sft --a", True),
        ("python -m trl.scripts.sft --a", False),
        ("accelerate launch trl/scripts/sft.py --a", False),
        ("python open_instruct/finetune.py --a", False),
    ],
)
def test_only_trls_own_command_takes_accelerates_options_too(text: str, expected: bool) -> None:
    assert commands_in(text)[0].takes_accelerate_options is expected


def test_mason_starts_several_commands_one_after_each_separator() -> None:
    text = (
        "uv run python mason.py \\\n  --cluster x \\\n"
        "  -- accelerate launch open_instruct/finetune.py --a 1 \\\n"
        "  -- source r.sh \\&\\& python open_instruct/dpo_tune_cache.py --b '{\"c\": 1}' \\\n"
        '  --d \\$HOME/x --e "two words"\n'
    )
    first, second = commands_in(text)
    assert (first.line, first.trainer.name, texts(first)) == (3, "finetune", ["--a", "1"])
    assert (second.line, second.trainer.name) == (4, "dpo_tune_cache")
    # Mason joins the words with blanks for another shell, which splits them again, and quotes what
    # has a brace.
    assert texts(second) == ["--b", '{"c": 1}', "--d", "$HOME/x", "--e", "two", "words"]
    assert [argument.is_resolved for argument in second.arguments] == [
        True,
        True,
        True,
        False,
        True,
        True,
        True,
    ]


@pytest.mark.parametrize("words", ["'x y'", "\\$HOME", "x \\&\\& ls", "'*'"])
def test_what_ssh_joins_for_another_shell_is_never_accepted(words: str) -> None:
    (command,) = commands_in(f"ssh host python open_instruct/finetune.py --a {words}")
    assert command.is_truncated
    (command,) = commands_in("ssh host python open_instruct/finetune.py --a 1e-5 --b x/y.json")
    assert not command.is_truncated


def test_arguments_have_their_own_lines() -> None:
    text = (
        "#!/bin/bash\n\nFOO=1 srun \\\n  torchrun \\\n  open_instruct/dpo.py \\\n  --a 1 \\\n  "
        "--b 2\n"
    )
    (command,) = commands_in(text)
    assert command.line == 3
    assert [(argument.text, argument.line) for argument in command.arguments] == [
        ("--a", 6),
        ("1", 6),
        ("--b", 7),
        ("2", 7),
    ]


def test_lines_inside_quoted_commands_and_variables() -> None:
    text = (
        'CMD="accelerate launch \\\n  open_instruct/finetune.py \\\n  --a 1 \\\n  --b 2"\n\nuv '
        "run $CMD --c 3\n"
    )
    (command,) = commands_in(text)
    assert command.line == 6
    lines = [(argument.text, argument.line) for argument in command.arguments]
    assert lines == [("--a", 3), ("1", 3), ("--b", 4), ("2", 4), ("--c", 6), ("3", 6)]
    (command,) = commands_in("srun bash -c '\n  python open_instruct/finetune.py \\\n    --a 1\n'")
    assert (command.line, [argument.line for argument in command.arguments]) == (2, [3, 3])


def test_arguments_that_the_shell_cuts_off_are_noted() -> None:
    text = "python open_instruct/finetune.py \\\n  --a 1 \\\n  # a note\n  --b 2 \\\n  --c 3\n"
    (command,) = commands_in(text)
    assert texts(command) == ["--a", "1"]
    (note,) = command.notes
    assert (note.id, note.line, note.where) == ("lost_arguments", 4, "b")
    (command,) = commands_in("python open_instruct/finetune.py --a 1\n--b 2\n")
    assert command.notes[0].line == 2
    # a flag there belongs to the command before it
    for between in ("\nls --b", "srun other --a 1\n--b 2"):
        (command,) = commands_in(f"python open_instruct/finetune.py --a 1\n{between}\n")
        assert command.notes == ()


def test_what_is_never_closed_leaves_the_other_commands() -> None:
    text = (
        "python open_instruct/finetune.py --a 1\n"
        'python open_instruct/dpo.py --b "x \\\n  --c 2\n'
        "python open_instruct/dpo_tune_cache.py --d 1\n"
    )
    first, second, third = commands_in(text)
    assert (texts(first), first.is_truncated) == (["--a", "1"], False)
    assert (second.is_truncated, second.notes[0].id, second.notes[0].line) == (
        True,
        "unbalanced_quote",
        2,
    )
    assert (texts(third), third.is_truncated) == (["--d", "1"], False)
