"""The order of the rows, as accelerate, TRL, open-instruct and OLMo-core deal them by a seed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")
accelerate = pytest.importorskip("accelerate")
datasets = pytest.importorskip("datasets")

from launch.worker.evidence import batches, order  # noqa: E402
from launch.worker.evidence.trainer_objects import TrainerObjects  # noqa: E402

ROWS = 11
SEED = 7


def tokens(row: int) -> list[int]:
    return [row + 1] * (row % 4 + 2)


def data_set() -> Any:
    return datasets.Dataset.from_dict({"input_ids": [tokens(row) for row in range(ROWS)]})


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    longest = max(len(row["input_ids"]) for row in rows)
    padded = [row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows]
    ids = torch.tensor(padded)
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def run(
    dataset: Any, *, seed: int = SEED, epoch: int = 0, skipped: int = 0, trainer: Any = None
) -> tuple[TrainerObjects, list[list[int]]]:
    """Return a run whose first micro batch is dealt as finetune.py does, and its documents.

    `skipped`: the optimizer steps of the epoch that were done before.
    """
    accelerator = accelerate.Accelerator(
        cpu=True,
        dataloader_config=accelerate.DataLoaderConfiguration(use_seedable_sampler=True),
    )
    torch.manual_seed(seed)
    loader = torch.utils.data.DataLoader(dataset, shuffle=True, batch_size=2, collate_fn=collate)
    prepared = accelerator.prepare(loader)
    prepared.set_epoch(epoch)
    active = accelerator.skip_first_batches(prepared, skipped * 2) if skipped else prepared
    first = next(iter(active))
    steps = -(-len(prepared) // 2)
    arguments = SimpleNamespace(per_device_train_batch_size=2, gradient_accumulation_steps=2)
    objects = TrainerObjects(
        accelerator,
        dataloader=prepared,
        arguments=arguments,
        trainer=trainer,
        step=epoch * steps + skipped,
    )
    return objects, batches.split_documents(first)


@pytest.mark.parametrize(("epoch", "skipped"), [(0, 0), (2, 0), (1, 1), (0, 2)])
def test_the_first_rows_are_those_of_the_seed(epoch: int, skipped: int) -> None:
    objects, documents = run(data_set(), epoch=epoch, skipped=skipped)
    [finding] = order.check_order(objects, documents, None, str(SEED))
    assert (finding.verdict, finding.value) == ("proven", "7")
    assert str(finding.note).startswith("11 rows; the first are ")


def test_another_seed_is_refuted() -> None:
    objects, documents = run(data_set(), seed=SEED + 1)
    [finding] = order.check_order(objects, documents, None, str(SEED))
    assert (finding.verdict, finding.value) == ("refuted", "other rows")


def test_rows_in_the_order_of_their_file_are_refuted() -> None:
    objects, _ = run(data_set())
    [finding] = order.check_order(objects, [tokens(0), tokens(1)], None, str(SEED))
    assert finding.verdict == "refuted"


@pytest.mark.parametrize("script", ["finetune.py", "reward_modeling.py"])
def test_the_shuffled_data_set_has_the_order_of_the_seed(script: str) -> None:
    objects, documents = run(data_set().shuffle(seed=SEED))
    [finding] = order.check_order(objects, documents, script, str(SEED))
    assert finding.verdict == "proven"
    for dataset in (data_set(), data_set().shuffle(seed=SEED + 1)):
        objects, documents = run(dataset)
        [finding] = order.check_order(objects, documents, script, str(SEED))
        assert (finding.verdict, finding.value) == ("refuted", "another order")


def test_streamed_rows_and_unknown_tokens_are_not_proven() -> None:
    objects, documents = run(data_set())
    for dataset in (iter(()), data_set().rename_column("input_ids", "text")):
        loader = SimpleNamespace(dataset=dataset, collate_fn=None, batch_sampler=None)
        loader = type("Loader", (), {**vars(loader), "__len__": lambda _: 6})()
        changed = TrainerObjects(
            objects.accelerator, dataloader=loader, arguments=objects.arguments
        )
        [finding] = order.check_order(changed, documents, None, str(SEED))
        assert finding.verdict == "unproven"


def test_the_sampler_of_prompts_has_the_seed() -> None:
    trl = pytest.importorskip("trl.trainer.utils")
    sampler = trl.RepeatSampler(list(range(ROWS)), 2, batch_size=2, seed=SEED)
    loader = torch.utils.data.DataLoader(data_set(), batch_size=2, sampler=sampler)
    trainer = SimpleNamespace(num_generations=2)
    objects = TrainerObjects(None, dataloader=loader, trainer=trainer)
    verdicts = [order.check_order(objects, [], None, seed)[0].verdict for seed in ("7", "8")]
    assert verdicts == ["proven", "refuted"]


@pytest.mark.parametrize(
    ("seed", "dealt", "verdict"),
    [(SEED, 0, "proven"), (SEED + 1, 0, "refuted"), (SEED, 2, "refuted"), (None, 0, "unproven")],
)
def test_rows_that_are_shuffled_first_and_dealt_in_turn(
    seed: int | None, dealt: int, verdict: str
) -> None:
    """As for KTO: `seed` is that of the shuffle, None where it was not seen; `dealt` is the row that
    comes first.
    """
    rows = datasets.Dataset.from_dict({"text": [str(row) for row in range(ROWS)]})
    source = rows if seed is None else rows.shuffle(seed=seed)
    prepared = source.map(
        lambda row: {"prompt_ids": [1], "completion_ids": tokens(int(row["text"]))}
    )
    accelerator = accelerate.Accelerator(cpu=True)
    loader = accelerator.prepare(torch.utils.data.DataLoader(prepared, batch_size=2))
    arguments = SimpleNamespace(
        per_device_train_batch_size=2,
        gradient_accumulation_steps=1,
        train_sampling_strategy="sequential",
    )
    trainer = SimpleNamespace(calculate_KL=True, args=arguments)
    objects = TrainerObjects(accelerator, dataloader=loader, trainer=trainer, step=0)
    first = [prepared[row] for row in (dealt, dealt + 1)]
    documents = [row["prompt_ids"] + row["completion_ids"] for row in first]
    sources = [] if seed is None else [source]
    [finding] = order.check_order(objects, documents, None, str(SEED), sources)
    assert finding.verdict == verdict


@pytest.mark.parametrize(
    ("strategy", "in_turn"), [("sequential", True), ("random", False), ("group_by_length", False)]
)
def test_kto_without_its_kl_term_may_sample_as_other_trainers_do(
    strategy: str, in_turn: bool
) -> None:
    arguments = SimpleNamespace(train_sampling_strategy=strategy)
    trainer = SimpleNamespace(calculate_KL=False, args=arguments)
    assert order.deals_in_turn(trainer) is in_turn
    assert not order.deals_in_turn(SimpleNamespace(args=arguments))


@pytest.mark.parametrize("limit", [None, 8])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_rows_of_open_instructs_loader(limit: int | None, rank: int, tmp_path: Any) -> None:
    pytest.importorskip("olmo_core", reason="the `open-instruct` dependencies are not installed")
    from launch.worker.patches.olmo_core import PlaceholderFinder, find_missing

    module = import_loader(PlaceholderFinder, find_missing)
    full = data_set().add_column("index", list(range(ROWS)))
    collator = SimpleNamespace(max_seq_length=limit)
    verdicts = []
    for seed in (SEED, SEED + 1):
        loader = module.HFDataLoader(
            full.shuffle(seed=seed), 4, seed, rank, 2, str(tmp_path), collator=collator
        )
        [finding] = order.check_olmo_core_order(loader, str(SEED))
        verdicts.append(finding.verdict)
    assert verdicts == ["proven", "refuted"]


def import_loader(finder: Any, find_missing: Any) -> Any:
    """Import the pin's data loader, whose packages for GRPO may be missing."""
    import os
    import sys

    sys.meta_path.append(finder(find_missing()))
    sys.path.insert(0, os.environ["OPEN_INSTRUCT_DIR"])
    try:
        from open_instruct import data_loader
    finally:
        sys.meta_path.pop()
        del sys.path[0]
    return data_loader


def test_the_sequences_of_olmo_core() -> None:
    import numpy

    def loader_of(seed: int, **changed: Any) -> Any:
        order_of_epoch = numpy.arange(ROWS, dtype=numpy.uint32)
        numpy.random.Generator(numpy.random.PCG64(seed=seed + 1)).shuffle(order_of_epoch)
        fields = {"shuffle": True, "chunk_size": 1, "epoch": 1, "dataset": range(ROWS), **changed}
        return SimpleNamespace(get_global_indices=lambda: order_of_epoch, **fields)

    for loader, verdict in (
        (loader_of(SEED), "proven"),
        (loader_of(SEED + 1), "refuted"),
        (loader_of(SEED, chunk_size=2), "unproven"),
    ):
        assert order.check_olmo_core_order(loader, str(SEED))[0].verdict == verdict


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_shuffle_of_a_few_rows_is_known(count: int, seed: int) -> None:
    """It may leave the rows where they are, and then has no numbers of rows."""
    import datasets

    rows = datasets.Dataset.from_dict({"a": list(range(count))}).shuffle(seed=seed)
    assert order.is_shuffled(rows, seed)
