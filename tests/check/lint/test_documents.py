"""Markdown, Makefiles, templates and job YAML: the commands in them, with the file's own line
numbers.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.check.lint.code_blocks import find_code_blocks
from launch.check.lint.job_yaml import find_commands_in_yaml
from launch.check.lint.makefile import template_as_shell
from launch.check.lint.readers import scan_file
from launch.check.lint.trainer_commands import ScanResult, TrainerCommand
from launch.config.yaml_nodes import NotYamlError, YamlLimitError, read_yaml
from tests.check.lint.helpers import commands_in, texts


def commands_in_markdown(text: str) -> list[tuple[int, list[str]]]:
    shells = ["\n" * (block.line - 1) + block.text for block in find_code_blocks(text)]
    return [(command.line, texts(command)) for shell in shells for command in commands_in(shell)]


def in_yaml(text: str) -> list[TrainerCommand]:
    return list(find_commands_in_yaml(read_yaml(text)).commands)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# T\n\n```bash\npython open_instruct/dpo.py --a 1\n```\n", [(4, ["--a", "1"])]),
        ("```\npython open_instruct/dpo.py \\\n --a 1\n", [(2, ["--a", "1"])]),
        ("~~~sh\npython open_instruct/dpo.py --a 1\n~~~\n", [(2, ["--a", "1"])]),
        (
            "1. do\n\n   ```console\n   $ python open_instruct/dpo.py --a 1\n   ```\n",
            [(4, ["--a", "1"])],
        ),
        ("> ```bash\n> python open_instruct/dpo.py \\\n>   --a 1\n> ```\n", [(2, ["--a", "1"])]),
        ("Run:\n\n    python open_instruct/dpo.py \\\n      --a 1\n\nDone.\n", [(3, ["--a", "1"])]),
        (
            "````md\n```\nx\n```\n````\n\n```\npython open_instruct/dpo.py --a 1\n```\n",
            [(8, ["--a", "1"])],
        ),
        ("Use `python open_instruct/dpo.py --a 1` here.\n", []),
        ("???+ info\n\n    The `grpo_fast.py` isn't slow.\n", []),
        ("```bash title='x'\npython open_instruct/dpo.py --a 1\n```", [(2, ["--a", "1"])]),
    ],
)
def test_markdown(text: str, expected: list[tuple[int, list[str]]]) -> None:
    assert commands_in_markdown(text) == expected


def test_python_in_markdown_is_not_shell(tmp_path: Path) -> None:
    text = "```python\npython open_instruct/dpo.py --a 1\n```\n```yaml\nrun: trl sft --a 1\n```\n"
    (command,) = scan(tmp_path, "a.md", text).commands
    assert (command.trainer.name, command.line) == ("trl_sft", 5)


MAKEFILE = """\
MODEL := some/model
LR ?= 1e-5
RUN = accelerate launch \\
  open_instruct/finetune.py

.PHONY: train
train: data
\t@echo hi
\t-@$(RUN) --model $(MODEL) \\
\t  --lr ${LR} --home $$HOME \\
\t  --dir $(shell pwd)
"""


def scan(folder: Path, name: str, text: str) -> ScanResult:
    path = folder / name
    path.write_text(text)
    return scan_file(path, explicit=True)


def test_makefile(tmp_path: Path) -> None:
    (command,) = scan(tmp_path, "Makefile", MAKEFILE).commands
    assert command.line == 9
    assert [
        (argument.text, argument.line, argument.is_resolved) for argument in command.arguments
    ] == [
        ("--model", 9, True),
        ("some/model", 9, True),
        ("--lr", 10, True),
        ("${_LR}", 10, False),
        ("--home", 10, True),
        ("$HOME", 10, False),
        ("--dir", 11, True),
        ("${_shell_pwd}", 11, False),
    ]


def test_template() -> None:
    (command,) = commands_in(
        template_as_shell("train:\n    python open_instruct/dpo.py --a {{ lr }} --b 1\n")
    )
    assert [argument.is_resolved for argument in command.arguments] == [True, False, True, True]


RUN = "python open_instruct/dpo.py"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("Makefile", f"LR = 1\nx:\n\t{RUN} --a $(LR)\n", [True, True]),
        ("Makefile", f"LR = 1\nx: LR = 2\nx:\n\t{RUN} --a $(LR)\n", [True, False]),
        ("Makefile", f"ifdef Y\nLR = 2\nendif\nx:\n\t{RUN} --a $(LR)\n", [True, False]),
        ("Makefile", f"LR = 1\ninclude y.mk\nx:\n\t{RUN} --a $(LR)\n", [True, False]),
        ("Makefile", f"LR = 1\n$(eval LR=2)\nx:\n\t{RUN} --a $(LR)\n", [True, False]),
        # each line has a shell of its own
        ("Makefile", f"x:\n\tLR=2\n\t{RUN} --a $$LR\n", [True, False]),
        ("Makefile", f"x:\n\tLR=2; {RUN} --a $$LR\n", [True, True]),
        ("Makefile", f".ONESHELL:\nx:\n\tLR=2\n\t{RUN} --a $$LR\n", [True, True]),
        ("Makefile", f"x: y ; {RUN} --a 1\n", [True, True]),
        ("Makefile", f"x: y\n\t{RUN} $< --a $@\n", [False, True, False]),
        ("Makefile", f"x:\n\t{RUN} --a $(addprefix x,$(LR))\n", [True, False]),
        ("justfile", f"x:\n  @{RUN} --a {{{{lr}}}}\n", [True, False]),
        (
            "Dockerfile",
            'CMD ["python", "open_instruct/dpo.py", \\\n  "--a", "x y"]\n',
            [True, True],
        ),
        (
            "Dockerfile.gpu",
            'ENTRYPOINT ["python", "open_instruct/dpo.py"]\nCMD ["--a", "1"]\n',
            [True, True],
        ),
        (
            "a.sh.j2",
            f"{RUN} \\\n{{% if x %}}\n  --b 1 \\\n{{% endif %}}\n",
            [False, True, True, False],
        ),
        ("a.md", f"```sh\n{RUN} --a <path> --b ...\n```\n", [True, False, True, False]),
        ("a.json", '{"program": "open_instruct/dpo.py", "args": ["--a", "1"]}', [True, True]),
    ],
)
def test_what_is_known_of_the_arguments_in_other_files(
    tmp_path: Path, name: str, text: str, expected: list[bool]
) -> None:
    (command,) = scan(tmp_path, name, text).commands
    assert [argument.is_resolved for argument in command.arguments] == expected


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("Makefile", f"RUN = {RUN} --a $(1)\nx:\n\t$(call RUN,5)\n", 1),
        ("Makefile", f"define RUN\n{RUN}\nendef\nx:\n\t$(RUN)\n", 2),
        ("Makefile", f".RECIPEPREFIX = >\nx:\n>{RUN}\n", 3),
        ("Makefile", f"X = $(shell {RUN})\n", 1),
        ("Makefile", f"export X = {RUN}\nx:\n\t$$X --a 1\n", 1),
        ("justfile", f"cmd := '{RUN}'\nx:\n  {{{{cmd}}}} --a 1\n", 1),
        ("a.md", f"```python\nos.system('{RUN}')\n```\n", 2),
        ("run.sh", f"#!/usr/bin/env -S python3 -u\nos.system('{RUN}')\n", 1),
        ("a.yaml", "run: |\n  cd x\n  python open_instruct/${{ inputs.m }}.py\n", 3),
    ],
)
def test_what_is_not_followed_in_other_files(
    tmp_path: Path, name: str, text: str, line: int
) -> None:
    found = scan(tmp_path, name, text)
    assert [(entry.id, entry.line) for entry in found.unfollowed] == [("not_followed", line)]
    assert found.commands == ()


def test_zsh_splits_no_variables(tmp_path: Path) -> None:
    (command,) = scan(tmp_path, "a.zsh", f"X='a b'\n{RUN} --a $X\n").commands
    assert command.is_truncated


BEAKER = """\
tasks:
  - command: [
      '/bin/sh', '-c'
    ]
    arguments: ['
        unset X && PYTHONPATH="/stage:$PYTHONPATH" accelerate launch
        --num_processes 32
        open_instruct/finetune.py
        --name ''a b''
        --lr 5e-6 &&
        python open_instruct/merge_lora.py --x
    ']
"""


def test_a_folded_string_keeps_its_lines() -> None:
    (command,) = in_yaml(BEAKER)
    assert command.line == 6
    assert [(argument.text, argument.line) for argument in command.arguments] == [
        ("--name", 9),
        ("a b", 9),
        ("--lr", 10),
        ("5e-6", 10),
    ]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("run: |\n  cd x\n  python open_instruct/dpo.py \\\n    --a 1\n", [3, 4, 4]),
        ("run: >-\n  python\n  open_instruct/dpo.py\n  --a\n  1\n", [2, 4, 5]),
        ("run: python open_instruct/dpo.py\n  --a\n  1\n", [1, 2, 3]),
        ('run: "python \\\n  open_instruct/dpo.py\n  --a \\\n  1"\n', [1, 3, 4]),
        ("script:\n  - cd x\n  - python open_instruct/dpo.py --a 1\n", [3, 3, 3]),
        ("command: [python, open_instruct/dpo.py, --a, 1]\n", [1, 1, 1]),
        ("command:\n  - python\n  - open_instruct/dpo.py\nargs:\n  - --a\n  - 1\n", [2, 5, 6]),
        ("command: [bash, -c]\nargs:\n  - |\n    python open_instruct/dpo.py --a 1\n", [4, 4, 4]),
        ("x: &c python open_instruct/dpo.py --a 1\ny: *c\n", [1, 1, 1]),
        ("- steps:\n  - run: echo\n  - run: python open_instruct/dpo.py --a 1\n", [3, 3, 3]),
        ("command:\n  - accelerate launch open_instruct/dpo.py\n  - --a\n  - 1\n", [2, 3, 4]),
    ],
)
def test_find_commands_in_yaml(text: str, lines: list[int]) -> None:
    (command,) = in_yaml(text)
    assert texts(command) == ["--a", "1"]
    assert [command.line, *(argument.line for argument in command.arguments)] == lines


def test_references_in_a_list_of_words_are_unknown() -> None:
    (command,) = in_yaml("command: [python, open_instruct/dpo.py, --a, $(LR), --b, 'x-${Y}']\n")
    assert [(argument.is_resolved, argument.prefix) for argument in command.arguments][1::2] == [
        (False, ""),
        (False, "x-"),
    ]


@pytest.mark.parametrize("text", ["a: [", "a: *b", "\ta: 1", "a: b: c", "[" * 5000, "%", "a: \x01"])
def test_what_is_not_yaml_says_where(text: str) -> None:
    with pytest.raises(NotYamlError) as error:
        read_yaml(text)
    assert error.value.line >= 1
    assert error.value.reason


def test_anchors_are_not_walked_twice() -> None:
    def nested(levels: int) -> str:
        lists = (f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}]\n" for i in range(1, levels))
        return "a0: &a0 [x, y]\n" + "".join(lists) + "run: python open_instruct/dpo.py\n"

    assert in_yaml(nested(8))[0].line == 9
    with pytest.raises(YamlLimitError, match="too many values"):
        in_yaml(nested(60))


@pytest.mark.parametrize(
    ("code", "listed"),
    [
        (
            "from accelerate import Accelerator\nfrom trl import SFTTrainer\nSFTTrainer('m').train()",
            False,
        ),
        ("import subprocess\nsubprocess.call('trl sft --model_name_or_path m', shell=True)", True),
        ("!accelerate launch -m trl.scripts.sft --model_name_or_path m", True),
    ],
)
def test_python_in_markdown_is_listed_where_it_starts_a_trainer(
    tmp_path: Path, code: str, listed: bool
) -> None:
    path = tmp_path / "a.md"
    path.write_text(f"```python\n{code}\n```\n")
    assert bool(scan_file(path, explicit=True).unfollowed) is listed
