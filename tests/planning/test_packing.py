"""How full dpo.py's rows will be: upstream's own packing, its three measured points, and what is
said about them.
"""

from __future__ import annotations

import ast
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.config.kinds import Kind
from launch.config.recipe_keys import Packing
from launch.errors import UserError
from launch.planning.batch_split import Batch
from launch.planning.lengths import Histogram, Lengths
from launch.planning.packing import (
    REFERENCE_ROWS,
    describe_packing,
    forecast_packing,
    pack_samples,
    padding_problem,
)
from tests.conftest import planned
from tests.messages import values_of
from tests.paths import ROOT

LIMIT = 16_384


def lengths_of(pairs: list[tuple[int, int]]) -> Lengths:
    return Lengths(
        kind=Kind.dpo,
        tokens=Histogram.of(map(sum, pairs)),
        label_tokens=None,
        chosen=Histogram.of(chosen for chosen, _ in pairs),
        rejected=Histogram.of(rejected for _, rejected in pairs),
        longer=Histogram.of(map(max, pairs)),
        pairs=tuple(pairs),
    )


def batch(share: int, width: int = 16) -> Batch:
    """`share` pairs a rank."""
    return Batch(share * width, share, 1, width)


@pytest.fixture(scope="module")
def long_tailed() -> Lengths:
    """Log-normal lengths with a mean of 1,000 tokens, as chats have them, cut at the limit."""
    draw = random.Random(0)
    chosen = [min(LIMIT, int(draw.lognormvariate(6.5, 0.9)) + 1) for _ in range(4096)]
    return lengths_of(
        [(length, min(LIMIT, max(1, int(length * draw.uniform(0.8, 1.2))))) for length in chosen]
    )


def test_rows_of_known_pairs() -> None:
    rows = pack_samples([(5, 3), (4, 6), (2, 2), (9, 1)], limit=10, max_samples=8)
    assert (rows.rows, rows.samples, rows.tokens) == (3, 4, 32)  # 5+4+2 and 2+9 overflow
    assert pack_samples([(1, 1)] * 7, limit=10, max_samples=3).rows == 3
    assert pack_samples([(3, 3)] * 6, limit=10, max_samples=99).samples_per_row == 3.0
    assert pack_samples([], limit=10, max_samples=2).filled == 1.0


@pytest.mark.parametrize(("share", "filled"), [(2, 0.11), (16, 0.86), (32, 1.0)])
def test_upstreams_three_points(long_tailed: Lengths, share: int, filled: float) -> None:
    """Pull request 1466: of rows of 16,384 tokens 57,664 of 524,288 used with 2 pairs, 453,184 with
    16, all with 32. Its figures are of one step each; these are of an epoch on data of about that
    length.
    """
    filled_share = forecast_packing(long_tailed, LIMIT, batch(share)).training.filled
    assert filled_share == pytest.approx(filled, abs=0.09)


def test_the_warning_names_the_batch_that_would_not_waste(long_tailed: Lengths) -> None:
    problem = padding_problem(long_tailed, Packing.bins, LIMIT, batch(2))
    assert problem is not None and problem.id == "tokens_wasted"
    assert {"12", "2", "88"} <= set(values_of(problem.message)), (
        "2 pairs fill 12%, and 88% is padding"
    )
    assert "recipe.per_device_batch_size=16 recipe.global_batch_size=256" in str(problem.cure)
    assert forecast_packing(long_tailed, LIMIT, batch(8)).training.filled < 0.5
    assert padding_problem(long_tailed, Packing.bins, LIMIT, batch(16)) is None
    assert padding_problem(None, Packing.bins, LIMIT, batch(2)) is None


def test_accumulation_raises_what_a_row_may_hold(long_tailed: Lengths) -> None:
    undivided, accumulated = batch(16), Batch(256, 2, 8, 16)
    forecasts = [forecast_packing(long_tailed, LIMIT, each) for each in (undivided, accumulated)]
    assert forecasts[0].training == forecasts[1].training
    # the pass before it goes by the per-device batch
    assert forecasts[0].reference.filled > forecasts[1].reference.filled


def test_padding_of_a_whole_share() -> None:
    """Without packing the pairs of all accumulation steps are padded to the longest of them."""
    uneven = lengths_of([(1000, 1000)] * 10 + [(50, 50)] * 90)
    assert padding_problem(uneven, Packing.none, 2048, Batch(2, 1, 1, 2)) is None
    problem = padding_problem(uneven, Packing.none, 2048, Batch(64, 2, 16, 2))
    assert problem is not None and "32" in values_of(problem.message)
    assert "recipe.packing=bins" in str(problem.cure)


def test_the_line_of_a_plan(long_tailed: Lengths) -> None:
    text = describe_packing(forecast_packing(long_tailed, LIMIT, batch(16)), batch(16))
    assert {"16,384", "16"} <= set(values_of(text))


class Picked(list[dict[str, list[int]]]):
    """What upstream asks of a data set."""

    column_names = ("chosen_input_ids", "rejected_input_ids")

    def select(self, positions: list[int]) -> Picked:
        return Picked(self[position] for position in positions)

    def __getitem__(self, key: Any) -> Any:
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


def upstream_method(name: str) -> Any:
    """A method of `HFDataLoader`, taken out of upstream's module, which imports too much to be
    imported.
    """
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    root = Path(os.environ.get("OPEN_INSTRUCT_DIR") or ROOT / "external" / "open-instruct")
    path = root / "open_instruct" / "data_loader.py"
    if not path.is_file():
        pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR or fetch the submodule")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            names: dict[str, Any] = {"np": numpy, "torch": torch}
            exec(compile(ast.Module([node], []), str(path), "exec"), names)
            return names[name]
    raise AssertionError(f"upstream has no {name}")


@pytest.fixture(scope="module")
def upstreams() -> Any:
    """`HFDataLoader._reshard_with_packing` for a number of samples in their order."""
    reshard, numpy = upstream_method("_reshard_with_packing"), pytest.importorskip("numpy")
    return lambda self, count: reshard(self, numpy.arange(count))


@pytest.mark.parametrize(("pairs", "works"), [(15, False), (16, True), (33, True)])
def test_upstreams_reference_pass_needs_half_of_its_batch(pairs: int, works: bool) -> None:
    """What data_small_reference refuses: 8 pairs a rank x REFERENCE_ROWS, filled up with the first
    rows once.
    """
    loader = SimpleNamespace(
        seed=0,
        _full_dataset=Picked(
            {"chosen_input_ids": [0], "rejected_input_ids": [0]} for _ in range(pairs)
        ),
        _excluded_indices=set(),
        _collator=SimpleNamespace(),
        _batch_size=8 * REFERENCE_ROWS,
        _drop_last=False,
        dp_world_size=1,
        dp_rank=0,
    )
    if works:
        upstream_method("_reshard")(loader, 0)
        assert loader.effective_size >= pairs
    else:
        with pytest.raises(ValueError, match="reshape"):
            upstream_method("_reshard")(loader, 0)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=60),
    st.integers(60, 200),
    st.integers(1, 20),
)
def test_the_rows_are_upstreams(
    upstreams: Any, pairs: list[tuple[int, int]], limit: int, most: int
) -> None:
    data = Picked(
        {"chosen_input_ids": [0] * chosen, "rejected_input_ids": [0] * rejected}
        for chosen, rejected in pairs
    )
    loader = SimpleNamespace(
        _collator=SimpleNamespace(max_seq_length=limit),
        _full_dataset=data,
        _per_rank_batch_size=most,
        _drop_last=False,
        dp_world_size=1,
        dp_rank=0,
    )
    upstreams(loader, len(pairs))
    mine = pack_samples(pairs, limit, most)
    assert (len(loader._precomputed_batch_sizes), sum(loader._precomputed_batch_sizes)) == (
        mine.rows,
        mine.samples,
    )


OLMO = ("model.path=some/model", "flags.config_name=olmo2_1B_v2")
PACKED_DPO = (
    "stage=dpo",
    "trainer=dpo",
    "recipe.packing=bins",
    "recipe.gradient_checkpointing=false",
    "gpus=2",
    *OLMO,
)
PACKED_SFT = ("stage=sft", "trainer=olmo_core_finetune", "recipe.packing=bins", "gpus=2", *OLMO)


@pytest.mark.parametrize(
    ("overrides", "id"),
    [
        ((*PACKED_DPO, "recipe.attention=sdpa"), "packing_needs_flash"),
        ((*PACKED_SFT, "recipe.attention=sdpa"), "packing_needs_flash"),
        ((*PACKED_DPO, "flags.concatenated_forward=false"), "packing_needs_concatenation"),
        ((*PACKED_SFT, "flags.compile_model=false"), "checkpointing_needs_compile"),
        ((*PACKED_SFT, "recipe.max_seq_length=3000"), "packing_length"),
    ],
)
def test_what_olmo_core_would_die_of_is_refused(overrides: tuple[str, ...], id: str) -> None:
    with pytest.raises(UserError) as refused:
        planned(*overrides)
    assert [problem.id for problem in refused.value.problems] == [id]
    assert refused.value.problems[0].where


def test_packing_that_works_is_not_refused() -> None:
    for overrides in (PACKED_DPO, PACKED_SFT, (*PACKED_DPO, "recipe.attention=flash_2")):
        plan = planned(*overrides)
        assert "olmo_core_documents" in plan.patches
    assert ("dpo_packed_padding" in plan.patches, "packing" in plan.flags) == (True, True)
    overrides = tuple(word for word in PACKED_DPO if word != "recipe.packing=bins")
    unpacked = planned(*overrides, "recipe.attention=sdpa")
    assert {"olmo_core_documents", "dpo_packed_padding"}.isdisjoint(unpacked.patches)
