"""Olmo 3's stages: each number against the line of upstream that its comment names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from launch import resources
from launch.errors import UserError
from launch.planning.build import build_plan
from tests.conftest import Launch, composed, composed_at, fixed_machine, planned, problem_ids
from tests.upstream.checkouts import checkout

STAGES = sorted(path.stem for path in (resources.CONFIGS / "stage").glob("olmo3_*.yaml"))
SFT = [name for name in STAGES if not name.endswith("_dpo")]
DPO = [name for name in STAGES if name.endswith("_dpo")]
_LINE = re.compile(r"\s+(\w+): (\S+) # (?P<file>[\w./]+\.(?:sh|md|py)):(?P<line>\d+)")
# What has no line of upstream's, and why: its comment says more.
_WITHOUT_LINE = {
    "packing": "the trainer packs always",
    "gradient_checkpointing": "a flag of the stage says how",
    "max_grad_norm": "DeepSpeed's `auto` becomes it",
    "checkpoint_steps": "upstream's script leaves it to OLMo-core",
}


@dataclass(frozen=True)
class Cited:
    """A value of a stage and the line of upstream that it is from."""

    key: str
    value: str
    file: str
    line: int


def pinned_checkout() -> Path:
    root = checkout()
    if root is None:
        pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR, or fetch the submodule")
    return root


def cited_values(stage: str) -> list[Cited]:
    text = (resources.CONFIGS / "stage" / f"{stage}.yaml").read_text(encoding="utf-8")
    found = [_LINE.match(line) for line in text.splitlines()]
    return [Cited(m[1], m[2], m["file"], int(m["line"])) for m in found if m]


def numbers_in(line: str) -> Iterator[float]:
    """Yield the numbers of a line, those of names such as `seed_543210` too."""
    for text in re.findall(r"\d[\d,]*(?:\.\d+)?(?:e-\d+)?", line):
        yield float(text.replace(",", ""))


def is_in_line(cited: Cited, line: str) -> bool:
    try:
        return float(cited.value.lstrip("-")) in set(numbers_in(line))
    except ValueError:
        pass
    if cited.value == "true":
        return f"--{cited.key}" in line
    spelled = [text.lower().replace("-", "_") for text in (cited.value, line)]
    return spelled[0] in spelled[1]


@pytest.mark.parametrize("stage", STAGES)
def test_each_number_is_in_the_line_that_its_comment_names(stage: str) -> None:
    root = pinned_checkout()
    cited = cited_values(stage)
    for value in cited:
        line = (root / value.file).read_text(encoding="utf-8").splitlines()[value.line - 1]
        if value.key != "global_batch_size":  # a product: see below
            assert is_in_line(value, line), (value, line)
    uncited = set(plan_keys(stage)) - {value.key for value in cited}
    assert uncited <= set(_WITHOUT_LINE)


def plan_keys(stage: str) -> Iterator[str]:
    """Yield the keys of a stage's recipe and flags."""
    text = (resources.CONFIGS / "stage" / f"{stage}.yaml").read_text(encoding="utf-8")
    section = ""
    for line in text.splitlines():
        if line and not line.startswith((" ", "#")):
            section = line.partition(":")[0]
        elif section in ("recipe", "flags") and ":" in line.partition("#")[0]:
            yield line.strip().partition(":")[0]


# The factors of a global batch of pairs: the flags of the script whose product it is.
_FACTORS = {
    "olmo3_7b_instruct_dpo": ("num_nodes", "gpus"),
    "olmo3_7b_think_dpo": ("num_nodes", "gpus"),
    "olmo3_32b_instruct_dpo": ("num_processes",),
    "olmo3_32b_think_dpo": ("NUM_NODES", "gpus"),
}


@pytest.mark.parametrize("stage", DPO)
def test_a_global_batch_of_pairs_is_the_product_of_its_script(stage: str) -> None:
    name = stage.removeprefix("olmo3_")
    script = (pinned_checkout() / f"scripts/train/olmo3/{name}.sh").read_text(encoding="utf-8")
    product = 1
    batch = ("per_device_train_batch_size", "gradient_accumulation_steps")
    for flag in (*_FACTORS[stage], *batch):
        found = re.search(rf"(?:--|^){flag}[ =](\d+)", script, re.MULTILINE)
        assert found is not None, flag
        product *= int(found[1])
    assert planned(f"stage={stage}", "gpus=8").batch.global_ == product


@pytest.mark.parametrize("stage", SFT)
@pytest.mark.parametrize("gpus", [1, 2, 8, 16, 32])
def test_a_batch_in_tokens_is_the_same_at_every_width(stage: str, gpus: int) -> None:
    plan = build_plan(composed_at({"gpus": gpus}, f"stage={stage}"), fixed_machine())
    recipe = plan.config.recipe
    tokens = recipe.global_batch_tokens
    assert tokens is not None and plan.batch.global_ * recipe.max_seq_length == tokens
    assert plan.batch.accumulation * gpus == plan.batch.global_
    expected = f"global_tokens={tokens} tokens"
    assert expected in plan.command


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (
            ["recipe.global_batch_tokens=1048576", "recipe.global_batch_size=32"],
            ["two_batch_sizes"],
        ),
        (["recipe.global_batch_tokens=1000000"], ["batch_not_divisible"]),
        (["recipe.max_seq_length=24576"], ["batch_not_divisible"]),
        # three rows and a part of one, which is left over
        (["recipe.global_batch_tokens=100000", "gpus=3"], ["batch_not_divisible"]),
        (["gpus=3"], ["batch_not_divisible"]),
        (["trainer=finetune", "recipe.packing=flatten"], ["unsupported_recipe"]),
    ],
)
def test_a_batch_in_tokens_that_cannot_be_is_refused(words: list[str], ids: list[str]) -> None:
    width = [] if any(word.startswith("gpus=") for word in words) else ["gpus=8"]
    assert problem_ids("stage=olmo3_7b_one_node", *width, *words) == ids


def test_two_sizes_in_one_file_are_refused_and_one_on_the_line_ends_it(tmp_path: Path) -> None:
    stage = tmp_path / "mine.yaml"
    sizes = "recipe: {global_batch_size: 32, global_batch_tokens: 1048576}"
    head = "# @package _global_\ndefaults: [olmo3_7b_one_node, _self_]"
    stage.write_text(f"{head}\n{sizes}\n")
    with pytest.raises(UserError) as refused:
        planned(f"stage={stage}", "gpus=8")
    (problem,) = refused.value.problems
    assert (problem.id, problem.where) == ("two_batch_sizes", f"{stage}:3")
    assert planned(f"stage={stage}", "gpus=8", "recipe.global_batch_size=16").batch.global_ == 16


@pytest.mark.parametrize(
    ("words", "rows", "tokens"),
    [
        (["recipe.global_batch_size=16"], 16, None),
        (["recipe.global_batch_tokens=524288"], 16, 524288),
        (["recipe.global_batch_tokens=null", "recipe.global_batch_size=8"], 8, None),
        (["recipe.max_seq_length=8192"], 128, 1048576),
    ],
)
def test_an_override_of_one_key_replaces_the_other_of_a_file(
    words: list[str], rows: int, tokens: int | None
) -> None:
    plan = planned("stage=olmo3_7b_one_node", "gpus=8", *words)
    recipe = plan.config.recipe
    assert (plan.batch.global_, recipe.global_batch_size) == (rows, rows)
    assert recipe.global_batch_tokens == tokens


def test_a_run_is_the_same_in_rows_and_in_tokens() -> None:
    """Both keys mean one number, so that the run's identity does not tell them apart."""
    in_tokens = planned("stage=olmo3_7b_one_node", "gpus=8")
    in_rows = planned("stage=olmo3_7b_one_node", "gpus=8", "recipe.global_batch_size=32")
    assert in_tokens.identity == in_rows.identity


PAIRS = [(name.replace("_dpo", "_sft"), name) for name in DPO]


@pytest.mark.parametrize(("sft", "dpo"), PAIRS)
def test_dpo_follows_its_sft_in_a_pipeline(launch: Launch, sft: str, dpo: str) -> None:
    if not composed(f"stage={sft}").config.trainer.output_glob.endswith("config.json"):
        pytest.skip("olmo_core_finetune writes no model of transformers yet")
    planned_both = launch("plan", f"pipeline={sft},{dpo}", "gpus=8")
    assert planned_both.returncode == 0, planned_both.stderr
    for stage in (sft, dpo):
        assert re.search(rf"^stage +{stage}:", planned_both.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("trainer", "flag"), [("finetune", "olmo123"), ("dpo_tune_cache", "olmo123"), ("trl_sft", None)]
)
def test_olmo123_is_the_tokenizers_own_template(trainer: str, flag: str | None) -> None:
    stage = "dpo" if trainer == "dpo_tune_cache" else "sft"
    line = (f"stage={stage}", f"trainer={trainer}", "recipe.chat_template=olmo123", "gpus=1")
    plan = planned(*line, "model=olmo3_7b")
    given = plan.flags.get("chat_template_name")
    assert (given.value if given else None) == flag
    assert "chat_template_path" not in plan.flags
    assert not any(patch.startswith("chat_template") for patch in plan.patches)


def test_no_template_of_upstream_is_called_olmo123() -> None:
    source = (pinned_checkout() / "open_instruct/dataset_transformation.py").read_text("utf-8")
    assert '"olmo123"' not in source and '"olmo_thinker": (' in source
    assert not list(Path(resources.ROOT / "launch" / "templates").glob("olmo*"))
