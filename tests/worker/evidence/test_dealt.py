"""What the passes of an epoch deal, with real models, data loaders and collators, against the rows."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")
datasets = pytest.importorskip("datasets")
transformers = pytest.importorskip("transformers")

from launch.worker.channel import EventWriter  # noqa: E402
from launch.worker.evidence import Evidence, dealt, rows  # noqa: E402
from launch.worker.evidence.collector import EvidenceCollector  # noqa: E402
from launch.worker.expectations import UnmetExpectation  # noqa: E402
from launch.worker.patches import PatchContext  # noqa: E402
from launch.worker.trainer import TrainerProgram  # noqa: E402
from tests.worker.evidence import models  # noqa: E402

NOTHING = dealt.EpochCounts(None, None, None)
LENGTHS = (5, 9, 3, 12, 7, 4, 8)
MASKED = -100


def data_set() -> Any:
    """Seven rows, of which the second half of the tokens carries loss."""
    made = []
    for number, length in enumerate(LENGTHS):
        ids = [number + 1] * length
        made.append(ids)
    labels = [[MASKED] * (len(ids) // 2) + ids[len(ids) // 2 :] for ids in made]
    return datasets.Dataset.from_dict({"input_ids": made, "labels": labels})


def pad(batch: list[dict[str, Any]]) -> dict[str, Any]:
    width = max(len(row["input_ids"]) for row in batch)

    def filled(key: str, value: int) -> Any:
        return torch.tensor([[*row[key], *[value] * (width - len(row[key]))] for row in batch])

    mask = [[1] * len(row["input_ids"]) + [0] * (width - len(row["input_ids"])) for row in batch]
    ids = filled("input_ids", 0)
    return {
        "input_ids": ids,
        "labels": filled("labels", MASKED),
        "attention_mask": torch.tensor(mask),
    }


def flatten(batch: list[dict[str, Any]]) -> Any:
    return transformers.DataCollatorWithFlattening()(batch)


def less(collate: Any, batch: list[dict[str, Any]]) -> Any:
    """Leave the longest row of a batch out."""
    return collate(sorted(batch, key=lambda row: len(row["input_ids"]))[:-1] or batch)


def unlabel(collate: Any, batch: list[dict[str, Any]]) -> Any:
    """Leave the loss to the last token of each row."""
    return collate(
        [
            {**row, "labels": [*[MASKED] * (len(row["labels"]) - 1), row["labels"][-1]]}
            for row in batch
        ]
    )


def shorten(collate: Any, batch: list[dict[str, Any]]) -> Any:
    return collate([{key: value[:6] for key, value in row.items()} for row in batch])


def bins() -> tuple[Any, Any]:
    """Return the seven rows as TRL packs them into rows of 12 tokens, and its collator."""
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    packed = trl.pack_dataset(data_set(), 12, "bfd")
    assert sorted(len(row) for row in packed["seq_lengths"]) == [1, 2, 2, 2]
    return packed, DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)


class Twice(torch.utils.data.Sampler):  # type: ignore[misc]
    """Deals some rows twice, and others not at all."""

    def __init__(self, dataset: Any) -> None:
        self._rows = len(dataset)

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[int]:
        return iter([0, *range(self._rows - 1)])


def deal(
    collate: Any,
    packing: str,
    *,
    epochs: int = 1,
    sampler: Any = None,
    ranks: int = 1,
    dataset: Any = None,
) -> tuple[dealt.EpochCounts, dealt.DueCounts]:
    """Return what an epoch dealt to this process, and what it had to deal to all ranks."""
    dataset = data_set() if dataset is None else dataset
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=2, collate_fn=collate, sampler=sampler and sampler(dataset)
    )
    model = models.model()
    recorder = dealt.EpochRecorder()
    recorder.follow(model)
    for _ in range(epochs):
        for batch in loader:
            inputs = {name: value for name, value in batch.items() if torch.is_tensor(value)}
            model(**inputs)
            with torch.no_grad():  # a reference, or an evaluation
                model(**inputs)
    recorder.stop()
    arguments = SimpleNamespace(per_device_train_batch_size=2, gradient_accumulation_steps=1)
    objects = models.objects(
        model,
        dataloader=loader,
        arguments=arguments,
        accelerator=SimpleNamespace(num_processes=ranks),
    )
    due = dealt.expect_epoch(objects, packing, "finetune.py")
    return recorder.read(packing), due or dealt.DueCounts(NOTHING, NOTHING)


@pytest.mark.parametrize(("collate", "packing"), [(pad, "none"), (flatten, "flatten")])
def test_an_epoch_deals_every_row_once(collate: Any, packing: str) -> None:
    found, due = deal(collate, packing)
    assert found == due.least == due.most == dealt.EpochCounts(7, 48, 26)
    assert due.differences(found) == []
    twice, _ = deal(collate, packing, epochs=2)
    assert due.differences(twice)[0] == "14 of 7 sequences dealt in an epoch"


@pytest.mark.parametrize(("collate", "packing"), [(pad, "none"), (flatten, "flatten")])
@pytest.mark.parametrize(
    ("fault", "first"),
    [
        (less, "4 of 7 sequences dealt in an epoch"),
        (unlabel, "7 of 26 trained tokens dealt in an epoch"),
        (shorten, "36 of 48 tokens dealt in an epoch"),
    ],
)
def test_a_collator_that_deals_less_is_found(
    collate: Any, packing: str, fault: Any, first: str
) -> None:
    found, due = deal(lambda batch: fault(collate, batch), packing)
    assert due.differences(found)[:1] == [first]


def test_an_epoch_of_rows_that_trl_packed() -> None:
    packed, collate = bins()
    found, due = deal(collate, "bins", dataset=packed)
    # Packing itself leaves no loss to the first token of a row, of which none carried any.
    assert found == due.least == due.most == dealt.EpochCounts(7, 48, 26)
    shuffled = packed.shuffle(seed=1)
    assert deal(collate, "bins", dataset=shuffled)[0] == found
    all_trained = packed.map(lambda row: {"labels": row["input_ids"]})
    found, due = deal(collate, "bins", dataset=all_trained)
    assert found == due.least == dealt.EpochCounts(7, 48, 41)


@pytest.mark.parametrize(
    ("fault", "parts"),
    [
        (lambda row: row.pop("labels"), "trained tokens"),
        (lambda row: row.update(seq_lengths=[len(row["input_ids"])]), "sequences"),
        (lambda row: row.update({key: row[key][:6] for key in ("input_ids", "labels")}), "tokens"),
    ],
)
def test_a_collator_that_deals_less_of_packed_rows_is_found(fault: Any, parts: str) -> None:
    packed, collate = bins()

    def change(batch: list[dict[str, Any]]) -> Any:
        for row in batch:
            fault(row)
            row["seq_lengths"] = row["seq_lengths"] if parts != "tokens" else [len(row["labels"])]
        return collate(batch)

    found, due = deal(change, "bins", dataset=packed)
    assert any(f" {parts} dealt in an epoch" in line for line in due.differences(found))


def test_a_sampler_of_packed_rows_that_deals_others_is_found() -> None:
    packed, collate = bins()
    found, due = deal(collate, "bins", sampler=Twice, dataset=packed)
    assert due.differences(found)


@pytest.mark.parametrize(
    ("requested", "flags", "counts"),
    [
        ({"mixture": "1.0", "global_batch": "2 samples"}, (), True),
        ({"mixture": "1.0"}, (), False),
        ({"global_batch": "2 samples"}, (), False),
        ({"mixture": "1.0", "packing": "bins"}, (), True),
        ({"mixture": "1.0", "packing": "bins"}, ("--pad_to_multiple_of", "8"), True),
        ({"mixture": "1.0", "packing": "bins"}, ("--context_parallel_degree", "2"), False),
        ({"packing": "bins"}, (), False),
    ],
)
def test_an_epoch_is_counted_where_rows_are_requested(
    requested: dict[str, str], flags: tuple[str, ...], counts: bool
) -> None:
    program = TrainerProgram(None, "m", flags)
    collector = EvidenceCollector(PatchContext(program, EventWriter(None, 0), requested=requested))
    collector.model_prepared(models.model())
    assert collector._epoch.is_counting is counts


@pytest.mark.parametrize("packing", ["flatten", "bins"])
def test_padded_flat_rows_show_what_is_trained_alone(packing: str) -> None:
    packed, collate = bins()
    collate.pad_to_multiple_of = 16
    dataset = packed if packing == "bins" else data_set()
    found, due = deal(collate, packing, dataset=dataset)
    assert found.tokens > 48
    assert due.least == due.most == dealt.EpochCounts(None, None, 26)
    assert due.differences(found) == []


def test_a_sampler_that_deals_other_rows_is_found() -> None:
    found, due = deal(pad, "none", sampler=Twice)
    assert due.differences(found)[:1] == ["45 of 48 tokens dealt in an epoch"]


def test_rows_that_are_dealt_twice_to_fill_a_batch_may_be_any() -> None:
    """Two ranks of two rows deal eight: one of the seven once more, of 3 to 12 tokens."""
    _, due = deal(pad, "none", ranks=2)
    assert due.least == dealt.EpochCounts(8, 51, 28)
    assert due.most == dealt.EpochCounts(8, 60, 32)
    for tokens, faults in ((51, 0), (60, 0), (50, 1), (61, 1)):
        assert len(due.differences(dealt.EpochCounts(8, tokens, 28))) == faults
    assert due.differences(dealt.EpochCounts(8, 61, 27)) == [
        "61 of 51 to 60 tokens dealt in an epoch",
        "27 of 28 to 32 trained tokens dealt in an epoch",
    ]
    _, due = deal(pad, "none", ranks=8)  # sixteen of seven: each twice, and two of them again
    assert (due.least.tokens, due.most.tokens) == (2 * 48 + 3 + 4, 2 * 48 + 9 + 12)


def add_ranks(total: Any) -> None:
    """Stand for the ranks' sum: three ranks that counted the same, of which one knew no labels."""
    counts = total.clone()
    total.copy_(counts * 3)
    total[2] = counts[2] * 2
    total[5] = 1


def test_the_counts_of_all_ranks_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = dealt.EpochRecorder()
    model = models.model()
    recorder.follow(model)
    model(**pad([{"input_ids": [1, 2, 3], "labels": [MASKED, 2, 3]}]))
    alone = SimpleNamespace(device="cpu")
    assert recorder.read_all("none", alone) == dealt.EpochCounts(1, 3, 2)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_reduce", add_ranks)
    assert recorder.read_all("none", alone) == dealt.EpochCounts(3, 9, None)


def test_what_is_not_known_is_not_compared() -> None:
    assert deal(pad, "wrapped")[1].least == NOTHING
    nothing = dealt.DueCounts(NOTHING, NOTHING)
    assert nothing.differences(dealt.EpochCounts(1, 2, 3)) == []

    def without_mask(batch: list[dict[str, Any]]) -> Any:
        made = pad(batch)
        return {"input_ids": made["input_ids"], "labels": made["labels"]}

    assert deal(without_mask, "none")[0].tokens is None


@pytest.mark.parametrize(
    ("first", "cut", "ends_at"),
    [(0, (), None), (0, (3,), 3), (2, (3,), None), (2, (3, 7), 7), (0, (7,), None)],
)
def test_the_run_ends_with_the_first_whole_epoch_if_it_dealt_less(
    first: int, cut: tuple[int, ...], ends_at: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two epochs of four steps, from step `first`; the batches of the steps `cut` are cut."""
    requested = {"mixture": "1.0", "global_batch": "2 samples"}
    context = PatchContext(TrainerProgram(None, "m", ()), EventWriter(None, 0), requested=requested)
    collector = EvidenceCollector(context)
    model = models.model()
    collector.model_prepared(model)
    loader = torch.utils.data.DataLoader(data_set(), batch_size=2, collate_fn=pad)
    arguments = SimpleNamespace(per_device_train_batch_size=2, gradient_accumulation_steps=1)
    alone = SimpleNamespace(num_processes=1)
    objects = models.objects(
        model, dataloader=loader, step=first, arguments=arguments, accelerator=alone
    )
    collector._objects = objects
    collector._packing = "none"
    mixture = Evidence(rows.MIXTURE, "1.0", "rows", note="7 rows of 1 data set")
    collector._expect_epoch(objects, [mixture.judge("1.0", True)])
    ended = None
    for number, batch in list(enumerate([*loader, *loader]))[first:]:
        width = 3 if number in cut else None
        model(**{name: value[:, :width] for name, value in batch.items()})
        collector._steps += 1
        try:
            collector._compare_epoch()
        except UnmetExpectation:
            ended = number
            break
    assert ended == ends_at
    assert not collector._epoch.is_counting
    assert ("of 48 tokens dealt in an epoch" in capsys.readouterr().err) is (ends_at is not None)
