"""What the patches for OLMo-core's trainers do, part by part."""

from __future__ import annotations

import doctest
import gzip
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.worker.channel import EventWriter
from launch.worker.patches import (
    PatchContext,
    dpo,
    olmo_core,
    olmo_core_documents,
    olmo_core_optimizer,
)
from launch.worker.patches.olmo_core import PlaceholderFinder, count_tokens
from launch.worker.patches.olmo_core_documents import TorchFlashAttention, split_at_border
from launch.worker.trainer import TrainerProgram


@pytest.fixture
def placeholders() -> Iterator[None]:
    finder = PlaceholderFinder(["nowhere_to_be_found"])
    sys.meta_path.append(finder)
    yield
    sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "nowhere_to_be_found"]:
        del sys.modules[name]


IMPORT = (
    "import nowhere_to_be_found\nfrom nowhere_to_be_found.some.where import Thing, Other as Also"
)


@pytest.mark.usefixtures("placeholders")
def test_a_placeholder_can_be_imported_and_inherited_from_and_says_what_it_is() -> None:
    names: dict[str, Any] = {"__name__": "open_instruct.environments.base"}
    exec(IMPORT, names)
    thing = names["Thing"]
    annotated = thing | None  # as an annotation of upstream's is evaluated

    class Mine(thing):  # type: ignore[misc]
        text: str = ""

    assert annotated is not None and Mine.text == ""
    for use in (thing, Mine, partial(getattr, Mine, "create"), names["nowhere_to_be_found"].Engine):
        with pytest.raises(
            ImportError, match=r"is a placeholder, because nowhere_to_be_found is .*\[unused_"
        ):
            use()


@pytest.mark.usefixtures("placeholders")
def test_to_everybody_else_the_package_is_not_there() -> None:
    with pytest.raises(ModuleNotFoundError):
        exec(IMPORT, {"__name__": "transformers.utils"})
    assert importlib.util.find_spec("nowhere_to_be_found") is None


def test_what_is_installed_is_not_stood_in_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(olmo_core, "_PACKAGES", ("json", "nowhere_to_be_found"))
    assert olmo_core.find_missing() == ["nowhere_to_be_found"]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(0, 400))
def test_a_border_is_a_cut_and_nothing_else(lengths: list[int], border: int) -> None:
    cut = split_at_border(lengths, border)
    assert sum(cut) == sum(lengths) and min(cut) > 0
    ends = set(accumulate(cut))
    assert ends == set(accumulate(lengths)) | ({border} if 0 < border < sum(lengths) else set())


@pytest.mark.parametrize("module", [olmo_core_documents, dpo])
def test_the_examples_hold(module: Any) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0


@pytest.mark.parametrize("is_patched", [False, True])
def test_chats_are_whole_by_the_files_of_their_boundaries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_patched: bool
) -> None:
    """A chat with an end token in its middle, one that was cut off, and one behind it."""
    data = pytest.importorskip(
        "olmo_core.data", reason="the `open-instruct` dependencies are not installed"
    )
    np = pytest.importorskip("numpy")
    end, chats = 2, [(5, 2, 6, 2), (7, 7, 7, 7), (8, 2)]
    np.array([token for chat in chats for token in chat], dtype=np.uint8).tofile(
        tmp_path / "token_ids_part_0.npy"
    )
    borders = list(accumulate((len(chat) for chat in chats), initial=0))
    with gzip.open(tmp_path / "token_ids_part_0.csv.gz", "wt") as stream:
        stream.writelines(f"{start},{stop}\n" for start, stop in pairwise(borders))
    monkeypatch.setattr(
        data.NumpyPackedFSLDatasetConfig, "build", data.NumpyPackedFSLDatasetConfig.build
    )
    if is_patched:
        context = PatchContext(TrainerProgram(None, "trainer", ()), EventWriter(None, 0))
        olmo_core_documents.WHOLE_CHATS.apply(context)
    config = data.NumpyPackedFSLDatasetConfig(
        tokenizer=data.TokenizerConfig(vocab_size=16, eos_token_id=end, pad_token_id=0),
        paths=[str(tmp_path / "token_ids_part_0.npy")],
        work_dir=str(tmp_path / "work"),
        sequence_length=4,
    )
    dataset = config.build()
    dataset.prepare()
    rows = [dataset[index]["input_ids"].tolist() for index in range(len(dataset))]
    whole = [[5, 2, 6, 2], [7, 7, 7, 7], [8, 2, 0, 0]]
    if is_patched:
        assert sorted(rows) == whole
    else:  # upstream's own: the chat behind the one that was cut off is gone
        assert not any(8 in row for row in rows)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("window", [(-1, -1), (2, 0)])
def test_documents_end_to_end_are_attended_one_by_one(
    kv_heads: int, window: tuple[int, int]
) -> None:
    torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(12, heads, 8, generator=generator) for heads in (4, kv_heads, kv_heads))
    borders = torch.tensor([0, 5, 6, 12], dtype=torch.int32)
    lent = TorchFlashAttention(None)
    together = lent.flash_attn_varlen_func(
        q, k, v, borders, borders, 6, 6, causal=True, window_size=window
    )
    apart = [
        lent.flash_attn_func(
            *(each[None, begin:end] for each in (q, k, v)), causal=True, window_size=window
        )[0]
        for begin, end in ((0, 5), (5, 6), (6, 12))
    ]
    assert torch.allclose(together, torch.cat(apart), atol=1e-6)
    with pytest.raises(ValueError, match="no dropout"):
        lent.flash_attn_func(q[None], k[None], v[None], dropout_p=0.1)


def test_tokens_of_a_batch() -> None:
    torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    row = torch.tensor([[5, 6, 7, 0, 0, 0]])
    ends, mask = torch.tensor([0, 2, 3]), torch.tensor([[1, 1, 1, 0, 0, 0]])
    packed = {
        "chosen_input_ids": row,
        "rejected_input_ids": row,
        "chosen_cu_seq_lens_k": ends,
        "index": [1],
    }
    assert count_tokens({**packed, "rejected_cu_seq_lens_k": ends}, None) == (6, 12)
    assert count_tokens({"chosen_input_ids": row, "chosen_attention_mask": mask}, None) == (3, 6)
    assert count_tokens({"input_ids": row}, 0) == (3, 6)
    assert count_tokens({"input_ids": row}, None) == (6, 6)


def test_the_reference_pass_in_numbers() -> None:
    assert dpo.describe_pass(600, 12.0, is_cached=False)["pairs_per_second"] == 50.0
    fields = dpo.describe_pass(600, 0.1, is_cached=True)
    assert fields == {"value": "600 pairs read from the cache", "pairs": 600, "seconds": 0.1}


@pytest.mark.parametrize(
    ("rank", "is_cached", "reported"),
    [
        (0, False, {"reference_logprobs_cache": "built", "reference_logprobs": None}),
        (0, True, {"reference_logprobs_cache": "hit", "reference_logprobs": None}),
        (1, True, {"reference_logprobs_cache": "hit"}),
        (1, False, {}),
    ],
)
def test_the_first_rank_writes_the_references_cache_and_times_it(
    rank: int, is_cached: bool, reported: dict[str, str | None]
) -> None:
    read, write = os.pipe()
    dpo.report_pass(EventWriter(write, rank), 600, 12.0, is_cached=is_cached)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as stream:
        events = {event["what"]: event for event in map(json.loads, stream)}
    assert events.keys() == reported.keys()
    for what, value in reported.items():
        assert value is None or events[what]["value"] == value
    if rank == 0:
        assert events["reference_logprobs"]["pairs"] == 600


def test_flash_attention_is_lent_only_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:

    context: Any = SimpleNamespace()
    monkeypatch.setattr(olmo_core_documents, "_PACKAGES", ("json",))
    assert olmo_core_documents.SEPARATION.not_needed(context) == "json is installed"
    monkeypatch.setattr(olmo_core_documents, "_PACKAGES", ("nowhere_to_be_found",))
    assert olmo_core_documents.SEPARATION.not_needed(context) is None


def test_one_weight_after_the_other_takes_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patch changes what is held at once, not the formula: weights differ by rounding alone."""
    torch = pytest.importorskip("torch")
    optim = pytest.importorskip("olmo_core.optim")

    def train() -> tuple[bool, Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(32, 16)
        options = {"lr": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.95), "compile": False}
        optimizer = optim.SkipStepAdamWConfig(**options).build(model)
        for _ in range(5):
            optimizer.zero_grad(set_to_none=True)
            loss = model(torch.randn(8, 32)).square().mean()
            loss.backward()
            optimizer.latest_loss = loss.detach()
            optimizer.step()
        return optimizer.foreach, model.weight.detach()

    together, expected = train()
    unpatched = optim.SkipStepAdamWConfig.__init__
    monkeypatch.setattr(optim.SkipStepAdamWConfig, "__init__", unpatched)  # is restored
    context = SimpleNamespace(events=None)
    olmo_core_optimizer.ONE_BY_ONE.apply(context)  # type: ignore[arg-type]
    one_by_one, weights = train()
    assert (together, one_by_one) == (True, False)
    assert torch.allclose(weights, expected, rtol=1e-5, atol=1e-6)
