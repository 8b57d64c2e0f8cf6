"""A chat template that raises an error on a row far below the first: each trainer's own tokenizer
finds it, three verbs name it, and data.system_turns=merge is what cures it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launch.data.samples import parse_samples
from launch.execution.preview import (
    preview_command,
    preview_environment,
    write_request,
    write_samples,
)
from launch.execution.template_errors import describe_template_error, write_whole
from launch.planning.build import plan_on_this_machine
from launch.planning.plan import Plan
from launch.worker.json_codec import from_json
from launch.worker.rendering import TemplateError
from tests.conftest import composed
from tests.data.files import write_lines
from tests.integration.conftest import launch_in
from tests.integration.jobs import run_jobs
from tests.integration.test_preview import OLMO_CORE, change_tokenizer
from tests.integration.tiny_stage import TinyStage, marked_template
from tests.thorough import mark_others, selected

pytestmark = pytest.mark.slow

ROWS = 40
LAST = f"mine.jsonl:{ROWS}"  # the only row with a system turn
BRIEF = "Answer in one line."
# as Gemma's: an error for a system turn, with a text over two lines
STRICT = (
    "{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('No system turns here\nsee the manual') }}{% endif %}"
) + marked_template()
OLMO = ("flags.config_name=olmo2_14M",)
TRAINERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "finetune": ("sft", ()),
    "olmo_core_finetune": ("sft", ("recipe.packing=bins", *OLMO)),
    "trl_sft": ("sft", ()),
    "dpo_tune_cache": ("dpo", ()),
    "dpo": ("dpo", OLMO),
    "trl_dpo": ("dpo", ("recipe.loss=dpo",)),
    "reward_modeling": ("rm", ()),
}
MERGE = "data.system_turns=merge"
RAISING = ("finetune", "dpo_tune_cache", "trl_sft", "trl_dpo")  # each way of rendering
KEPT = ("finetune", "trl_sft")  # in every run of the suite; the others are thorough
CASES = [*((trainer, (MERGE,)) for trainer in TRAINERS), *((trainer, ()) for trainer in RAISING)]


def conversation(number: int) -> list[dict[str, str]]:
    start = [{"role": "system", "content": BRIEF}] if number == ROWS else []
    return [*start, {"role": "user", "content": f"What is {number}?"}]


def write_data(root: Path) -> None:
    good = {"role": "assistant", "content": "A number."}
    bad = {"role": "assistant", "content": "A colour."}
    numbers = range(1, ROWS + 1)
    chats = [{"messages": [*conversation(number), good]} for number in numbers]
    pairs = []
    for number in numbers:
        turns = conversation(number)
        pairs.append({"chosen": [*turns, good], "rejected": [*turns, bad]})
    for kind, rows in (("sft", chats), ("dpo", pairs), ("rm", pairs)):
        write_lines(root / kind / "mine.jsonl", rows)


def overrides(root: Path, trainer: str, model: Path) -> list[str]:
    kind, more = TRAINERS[trainer]
    words = [
        f"stage={kind}",
        f"trainer={trainer}",
        f"model.path={model}",
        f"data.mix=[{{name: {root / kind / 'mine.jsonl'}}}]",
        "device=cpu",
        "recipe.global_batch_size=1",
        "recipe.per_device_batch_size=1",
        "recipe.gradient_checkpointing=false",
        "recipe.max_seq_length=256",
        "recipe.chat_template=null",
        *more,
    ]
    return words if kind == "rm" else [*words, "recipe.warmup_ratio=null", "recipe.max_steps=1"]


@pytest.fixture(scope="module")
def strict(tiny: TinyStage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose template refuses system turns."""
    return change_tokenizer(tiny.model, tmp_path_factory.mktemp("strict") / "model", STRICT, {})


@pytest.fixture(scope="module")
def previews(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    strict: Path,
    olmo_stage: TinyStage,
    open_instruct: Path,
) -> dict[tuple[str, tuple[str, ...]], tuple[Plan, Path, tuple[str, ...]]]:
    """The files that the trainers' processes wrote, of the first two rows and of the whole data."""
    root = tmp_path_factory.mktemp("templates")
    write_data(root)
    olmo = change_tokenizer(olmo_stage.model, root / "olmo", STRICT, {})
    jobs: list[dict[str, Any]] = []
    previewed = {}
    trainers = selected(request, list(TRAINERS))
    for trainer, more in CASES:
        if trainer not in trainers:
            continue
        folder = root / f"{trainer}{len(more)}"
        folder.mkdir()
        model = olmo if trainer in OLMO_CORE else strict
        line = [*overrides(root, trainer, model), f"runs={folder}", *more]
        plan = plan_on_this_machine(composed(*line))
        [entry] = plan.inputs.mixture
        rows = ROWS if more else 2
        data = write_samples(entry, folder / "0", rows)
        whole = write_whole(entry, folder / "whole.jsonl")
        request, out = write_request(plan, folder, (whole,), rows=rows, detail=rows)
        argv = preview_command(plan, [data], folder, request)[1:]
        env = preview_environment(plan, folder, rows, {})
        log = folder / "preview.log"
        jobs.append({"argv": argv, "env": env, "cwd": str(folder), "log": str(log)})
        previewed[trainer, more] = (plan, out, data.places)
    run_jobs(root, jobs, open_instruct)
    return previewed


@pytest.mark.parametrize("trainer", mark_others(RAISING, KEPT))
def test_the_row_is_found_though_two_are_shown(
    previews: dict[tuple[str, tuple[str, ...]], tuple[Plan, Path, tuple[str, ...]]], trainer: str
) -> None:
    plan, out, places = previews[trainer, ()]
    content = json.loads(out.read_text(encoding="utf-8"))
    error = from_json(TemplateError, content["template_error"])
    assert (error.row, error.rows, error.all_rows) == (ROWS - 1, 1, ROWS)
    [entry] = plan.inputs.mixture
    problem = describe_template_error(error, entry, [out.parent / "whole.jsonl"], places, "mine")
    assert problem.id == "template_raises" and str(problem.where).endswith(LAST)
    assert "No system turns here (" in problem.message and "manual" not in problem.message
    assert problem.cure is not None and [str(action) for action in problem.cure.actions] == [MERGE]


@pytest.mark.parametrize("trainer", mark_others(list(TRAINERS), KEPT))
def test_a_merged_system_turn_is_read_in_the_question_and_not_learned(
    previews: dict[tuple[str, tuple[str, ...]], tuple[Plan, Path, tuple[str, ...]]], trainer: str
) -> None:
    _, out, places = previews[trainer, (MERGE,)]
    samples = parse_samples(json.loads(out.read_text(encoding="utf-8")), [places])
    *others, last = samples.samples
    assert last.place.endswith(LAST)
    for side in last.sides:
        assert [role for role, _ in side.messages] == ["user", "assistant"]
        text = "".join(side.pieces)
        assert f"<|user|>{BRIEF}\n\nWhat is {ROWS}?<|assistant|>A " in text
        loss = side.loss or (False,) * len(side.ids)
        learned = "".join(
            piece for piece, carries in zip(side.pieces, loss, strict=True) if carries
        )
        assert BRIEF not in learned
    assert BRIEF not in "".join(piece for one in others for piece in one.sides[0].pieces)


@pytest.mark.parametrize("verb", mark_others(["preview", "check", "run"], ["check"]))
def test_three_verbs_name_the_row_before_anything_is_loaded(
    strict: Path, tmp_path: Path, verb: str
) -> None:
    write_data(tmp_path)
    words = overrides(tmp_path, "trl_sft", strict)
    more = {"preview": ("n=1",), "check": ("--rows", "1")}.get(verb, ())
    refused = launch_in(tmp_path, verb, *words, *more)
    assert refused.returncode == 2, refused.stderr
    said = refused.stdout + refused.stderr
    assert f"{LAST}: the chat template raises" in " ".join(said.split())
    assert "[template_raises]" in said
    assert not list(tmp_path.glob("runs/sft/*/attempts*"))
