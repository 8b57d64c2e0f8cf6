"""Plans as users see them: what differs between trainers and widths in full, all the others as a
verdict.

Each plan and each trainer has a file of its own: a new trainer adds files, and a new default of a
stage changes the files of that stage and of those that inherit it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from launch import resources
from launch.api.planning import PlannedRun
from launch.commands.plan import describe_plan
from launch.config.kinds import Kind
from launch.config.schema import Device
from launch.errors import UserError
from launch.planning.build import build_plan
from launch.upstream.trainers import trainer_files
from tests.conftest import composed, composed_at, fixed_machine
from tests.golden.recorder import Terminal, flatten, mask_upstream, without_submodule

Golden = Callable[[str, Sequence[str]], None]

WORKER = "{project}/launch/worker/entry.py"
STAGES = resources.group_options("stage")
TRAINERS = resources.group_options("trainer")
WIDTHS: dict[str, dict[str, Any]] = {
    "device=cpu": {"device": Device.cpu},
    "gpus=1": {"gpus": 1},
    "gpus=8": {"gpus": 8},
}

# stage, trainer, width and what else is set
PLANS = (
    # finetune is the trainer that is recorded with every stage of its kind
    ("demo", "finetune", "device=cpu"),  # open-instruct on one CPU, with local data
    # DeepSpeed on CPUs, and the patch for it
    ("demo", "finetune", "processes=2", "parallel=zero3"),
    # an adapter, and the patch that open-instruct needs for one
    ("demo_lora", "finetune", "device=cpu"),
    ("sft", "finetune", "gpus=1"),  # one GPU: parallel=single, and a memory forecast
    ("sft", "finetune", "gpus=8"),  # several GPUs: ZeRO-3
    # packed rows, and Liger's kernels
    ("sft", "finetune", "gpus=2", "recipe.packing=flatten", "recipe.liger=true"),
    ("sft_10pct", "finetune", "gpus=8"),  # a share of the data
    ("sft_25pct", "finetune", "nodes=2", "gpus=8"),  # two nodes: the rendezvous
    ("lora_sft", "finetune", "gpus=2", "parallel=ddp"),  # DDP on GPUs
    # OLMo-core: torchrun
    ("sft", "olmo_core_finetune", "nodes=2", "gpus=8", "model=olmo2_1b", "recipe.packing=bins"),
    ("demo", "trl_sft", "device=cpu"),  # TRL: launch's entry, and fp32
    # two nodes without GPUs
    ("demo", "trl_sft", "nodes=2", "processes=2", "recipe.per_device_batch_size=4"),
    ("sft", "trl_sft", "gpus=8"),  # TRL with ZeRO-3
    ("lora_sft", "trl_sft", "gpus=1"),  # TRL with an adapter, packed rows and a warning about them
    # the reference's cache, and DPO's patches for a CPU
    ("demo_dpo", "dpo_tune_cache", "device=cpu"),
    ("dpo", "dpo_tune_cache", "gpus=8"),  # DPO with ZeRO-3
    # CPU
    (
        *("dpo", "dpo_tune_cache", "gpus=8", "parallel=zero3_offload"),
        "model=llama3_1_70b",
        "data=tulu3_dpo_70b",
    ),
    # quantised weights
    ("lora_dpo", "dpo_tune_cache", "gpus=2", "parallel=ddp", "recipe.lora.quantize=nf4"),
    ("demo_dpo", "dpo", "device=cpu"),  # OLMo-core on a CPU: nothing is compiled
    ("dpo", "dpo", "gpus=8"),  # OLMo-core's FSDP, for pairs
    ("demo_dpo", "trl_dpo", "processes=2"),  # DDP on CPUs
    ("dpo", "trl_dpo", "gpus=8"),  # a reference model in memory
    ("lora_dpo", "trl_dpo", "gpus=1"),  # the adapter's base is the reference
    ("kto", "trl_kto", "gpus=8"),  # labels, and a reference that runs in each step
    ("rm", "reward_modeling", "gpus=8"),  # a reward model
    ("rlvr", "grpo_fast", "gpus=8"),  # Ray and vLLM beside DeepSpeed
    ("rlvr", "grpo", "gpus=8"),  # Ray and vLLM beside OLMo-core
    ("demo_rlvr", "trl_grpo", "device=cpu"),  # rewards from a verifier, on a CPU
    ("rlvr", "trl_grpo", "gpus=8"),  # completions that the trainer generates, with ZeRO-3
    ("lora_rlvr", "trl_grpo", "gpus=1"),  # RLVR with an adapter
)
# as text, what the layout depends on: the plans above have the contents
TEXTS = (
    ("demo", "finetune", "device=cpu"),  # no memory forecast; a warning below
    # what is unchecked, memory, and shell variables in the command
    ("sft", "finetune", "nodes=2", "gpus=8"),
    ("lora_sft", "trl_sft", "gpus=1"),  # adapter, attention, options
    # a server beside the ranks
    ("rlvr", "trl_grpo", "gpus=6", "recipe.generation=vllm_server", "recipe.server_gpus=2"),
)


def _name(line: Sequence[str]) -> str:
    return "-".join(word.replace("=", "_") for word in line)


@without_submodule
@pytest.mark.parametrize("line", PLANS, ids=_name)
def test_plan(line: tuple[str, ...], terminal: Terminal, golden: Golden) -> None:
    stage, trainer, *overrides = line
    printed = terminal.run("plan", f"stage={stage}", f"trainer={trainer}", *overrides, "--json")
    assert printed.code == 0, printed.err
    shown = [f"$ launch {printed.line}", *describe_json(json.loads(printed.out))]
    golden(
        f"plans/{_name(line)}", [*shown, *(f"stderr: {line}" for line in printed.err.splitlines())]
    )


@without_submodule
@pytest.mark.parametrize("line", TEXTS, ids=_name)
def test_plan_as_text(
    line: tuple[str, ...], terminal: Terminal, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)  # a server's command shows it
    stage, trainer, *overrides = line
    printed = terminal.run("plan", f"stage={stage}", f"trainer={trainer}", *overrides)
    assert printed.code == 0, printed.err
    golden(f"plan_text/{_name(line)}", [_mask_path(each) for each in printed.lines()])


def _mask_path(line: str) -> str:
    """Leave out what remains of a path whose beginning is cut off: it depends on the test's folder."""
    return re.sub(r"\.\.\.\S+", "...", mask_upstream(line))


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_stage_is_planned_or_refused(trainer: str, golden: Golden) -> None:
    """A line for each stage of the trainer's kind, and for one of each other kind: accepted, or the
    ids of its problems, at each width.
    """
    rows = [f"stage: {', '.join(WIDTHS)}"]
    for stage in _stages_for(trainer):
        verdicts = [
            _verdict(width, f"stage={stage}", f"trainer={trainer}") for width in WIDTHS.values()
        ]
        rows.append(f"{stage}: {', '.join(verdicts)}")
    golden(f"verdicts/{trainer}", rows)


def _stages_for(trainer: str) -> Iterator[str]:
    seen: set[Kind] = set()
    for stage in STAGES:
        kind = _kind_of(stage)
        if kind == trainer_files()[trainer]["kind"] or kind not in seen:
            yield stage
        seen.add(kind)


@cache
def _kind_of(stage: str) -> Kind:
    return composed(f"stage={stage}").config.stage.kind


def _verdict(width: dict[str, Any], *overrides: str) -> str:
    try:
        planned = PlannedRun(build_plan(composed_at(width, *overrides), fixed_machine()))
    except UserError as error:
        assert all(len(problem.message.split()) > 3 for problem in error.problems), (
            "each has a sentence"
        )
        return " and ".join(sorted({problem.id for problem in error.problems}))
    assert planned.as_json()["stage"] == planned.plan.stage
    assert describe_plan(planned, {})[-1].strip()
    return "accepted"


def describe_json(plan: dict[str, Any]) -> Iterator[str]:
    """Yield a plan's JSON: a line for each flag and each part of the command, and for each other
    leaf.

    The trainer's own flags are the end of the command: they are compared with `flags`, and not
    shown twice.
    """
    identity, flags, command = plan["identity"], plan.pop("flags"), plan.pop("command")
    options = [position for position, word in enumerate(command) if re.match(r"--\w", word)]
    end = options[-len(flags)]
    assert [command[position][2:] for position in options[-len(flags) :]] == list(flags)
    lines = [f"{path} = {value}" for path, value in flatten(plan) if path != "identity"]
    for name, flag in flags.items():
        source = ", ".join(filter(None, (flag["origin"], flag["where"])))
        lines.append(f"flags.{name} = {json.dumps(flag['value'], ensure_ascii=False)} ({source})")
    starts = [
        0,
        *(
            position
            for position, word in enumerate(command[:end])
            if position in options or word == WORKER
        ),
        end,
    ]
    lines += [f"command: {' '.join(command[start:stop])}" for start, stop in pairwise(starts)]
    yield f"identity = {identity}"
    yield from (mask_upstream(_mask_keys(line, identity)) for line in lines)


def _mask_keys(line: str, identity: str) -> str:
    """Replace what follows from the other lines, and the lines of configuration files: the text of
    a plan has them.
    """
    line = re.sub(r"(?<=-)[0-9a-f]{16}\b", "{demo_key}", line.replace(identity, "{identity}"))
    line = re.sub(r"(?<=lengths/)[0-9a-f]{8}(?=\.json)", "{lengths_key}", line)
    return re.sub(r"(?<=\.yaml):\d+", "", line)
