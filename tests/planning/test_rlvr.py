"""Stages of RLVR as they are planned: arithmetic at every width, verifiers, identity, and what is
refused.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from launch.config.kinds import DataFormat, Kind
from launch.data.formats import convert, recognise
from launch.data.row_errors import RowError
from launch.errors import UserError, actions_of
from launch.planning.digest_cache import DigestCache
from tests.conftest import fixed_machine, planned, problem


@pytest.mark.parametrize("width", [1, 2, 8])
def test_a_step_has_the_same_completions_at_every_width(width: int) -> None:
    plan = planned("stage=rlvr", f"gpus={width}")
    assert str(plan.batch).startswith("768 = ")
    assert plan.flags["num_generations"].value == 16
    assert "--expect" in plan.command and "global_batch=768 completions" in plan.command


def test_the_numbers_of_tulu_3_1() -> None:
    """Upstream scripts/train/tulu3/grpo_fast_8b.sh."""
    flags = planned("stage=rlvr", "gpus=8").flags
    expected = {
        "learning_rate": 5e-7,
        "beta": 0.01,
        "temperature": 1.0,
        "max_completion_length": 2048,
    }
    assert {name: flags[name].value for name in expected} == expected
    assert flags["model_name_or_path"].value == "allenai/Llama-3.1-Tulu-3-8B-DPO"


def test_one_override_changes_the_batch() -> None:
    assert planned("stage=demo_rlvr", "recipe.prompts_per_step=8").batch.global_ == 64


@pytest.mark.parametrize(
    ("overrides", "id", "words"),
    [
        (("recipe.global_batch_size=60",), "partial_groups", "32 prompts x 8 samples are 256"),
        (
            ("recipe.samples_per_prompt=1",),
            "out_of_range",
            "samples_per_prompt",
        ),
        (
            ("recipe.response_length=256",),
            "no_room_for_prompts",
            "response_length=256",
        ),
        (("recipe.verifier=maths",), "unknown_verifier", "maths"),
        (("recipe.verifier=[{name:exact,weight:0}]",), "unknown_verifier", "exact"),
        (("recipe.verifier=nowhere.py:f",), "no_verifier_file", "nowhere.py"),
        (("recipe.verifier=null",), "missing_rlvr_key", "recipe.verifier"),
        (("flags.reward_funcs=[f]",), "refused_flag", "recipe.verifier"),
        (("flags.use_vllm=true",), "refused_flag", "recipe.generation=vllm_colocate"),
        (("processes=3",), "batch_not_divisible", "256"),
    ],
)
def test_what_cannot_work_is_one_sentence(overrides: tuple[str, ...], id: str, words: str) -> None:
    found = problem("stage=demo_rlvr", *overrides)
    assert found[0] == id
    assert words in found[1]


@pytest.mark.parametrize(
    ("overrides", "refused"),
    [
        ((), True),
        (("recipe.lora.rank=4",), True),  # PEFT keeps the adapter in fp32
        (("recipe.lora.rank=4", "flags.dtype=bfloat16"), True),
        (("flags.dtype=bfloat16",), False),
        (("recipe.precision=fp32",), False),
        (("recipe.generation=transformers",), False),
        (("processes=2", "parallel=zero2"), False),  # DeepSpeed trains fp32 copies
    ],
)
def test_continuous_batching_does_not_round_the_trained_weights(
    overrides: tuple[str, ...], refused: bool
) -> None:
    line = ("stage=demo_rlvr", "recipe.generation=continuous", "recipe.precision=bf16", *overrides)
    line = tuple({word.partition("=")[0]: word for word in line}.values())
    if not refused:
        assert not [warning for warning in planned(*line).warnings if warning.id == "bf16_sampling"]
        return
    id, message = problem(*line)
    assert id == "bf16_sampling"
    (warning,) = [
        warning for warning in planned(*line, "allow=[bf16_sampling]").warnings if warning.id == id
    ]
    assert warning.message == message


def test_other_stages_have_none_of_its_keys() -> None:
    assert problem("stage=demo", "recipe.kl_beta=0.1")[0] == "unsupported_recipe"


def test_several_verifiers_have_weights(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("def f(**_): ...\n", encoding="utf-8")
    plan = planned("stage=demo_rlvr", f"recipe.verifier=[exact,{{name:'{own}:f',weight:0.5}}]")
    option = next(option for option in plan.options if option.startswith("verifier="))
    assert json.loads(option.partition("=")[2])["verifiers"] == {"exact": 1.0, f"{own}:f": 0.5}


def test_an_own_verifier_decides_the_identity_by_its_content(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    identities = []
    for content in ("def f(**_): ...\n", "def f(**_): return [1.0]\n", "def f(**_): ...\n"):
        own.write_text(content, encoding="utf-8")
        machine = replace(fixed_machine(), digests=DigestCache(tmp_path / "digests.json"))
        identities.append(
            planned("stage=demo_rlvr", f"recipe.verifier={own}:f", machine=machine).identity
        )
    assert identities[0] == identities[2] != identities[1]


@pytest.mark.parametrize(
    ("content", "advised"),
    [
        ("def score(**_): ...\ndef _help(): ...\n", ["score"]),
        ("import math\n\n\ndef short(**_): ...\n\n\ndef polite(**_): ...\n", ["short", "polite"]),
    ],
)
def test_a_function_that_the_file_lacks_is_refused_with_those_that_it_has(
    tmp_path: Path, content: str, advised: list[str]
) -> None:
    own = tmp_path / "own.py"
    own.write_text(content, encoding="utf-8")
    with pytest.raises(UserError) as refused:
        planned("stage=demo_rlvr", f"recipe.verifier={own}:other")
    [found] = refused.value.problems
    assert found.id == "no_verifier_file" and "no function other" in found.message
    actions = [str(action) for action in actions_of(found.cure)]
    assert actions == [f"recipe.verifier={own}:{name}" for name in advised]
    planned("stage=demo_rlvr", *actions[:1])


@pytest.mark.parametrize(
    "content",
    [
        "from rules import other\n",
        "other = lambda **_: [1.0]\n",
        "from rules import *\n",
        "try:\n    from rules import other\nexcept ImportError:\n    other = None\n",
    ],
)
def test_a_function_that_a_file_takes_from_elsewhere_is_planned(
    tmp_path: Path, content: str
) -> None:
    own = tmp_path / "own.py"
    own.write_text(content, encoding="utf-8")
    planned("stage=demo_rlvr", f"recipe.verifier={own}:other")


def test_rows_keep_their_columns_and_lose_their_answer() -> None:
    row = {
        "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}],
        "dataset": "MATH",
    }
    full = {**row, "ground_truth": 8, "level": 3}
    assert recognise(full, Kind.rlvr) == DataFormat.prompts
    prompt = [{"role": "user", "content": "?"}]
    expected = {"prompt": prompt, "ground_truth": "8", "dataset": "MATH", "level": 3}
    assert convert(full, DataFormat.prompts, Kind.rlvr) == expected
    with pytest.raises(RowError, match="ground_truth") as caught:
        convert(row, DataFormat.prompts, Kind.rlvr)
    assert caught.value.id == "no_ground_truth"
