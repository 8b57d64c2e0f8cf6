"""The rows of each data set against those that were staged, and the longest against the limit."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

datasets = pytest.importorskip("datasets", reason="the `train` dependencies are not installed")

from launch.worker.evidence import rows  # noqa: E402
from launch.worker.evidence.rows import LoadedPart, RowRecord  # noqa: E402
from launch.worker.evidence.trainer_objects import TrainerObjects  # noqa: E402

END = 2


def staged(folder: Path, count: int) -> str:
    """Return the file of a staged folder with the record of `count` rows."""
    folder.mkdir()
    (folder / "about.json").write_text(json.dumps({"train": count}), encoding="utf-8")
    return str(folder / "train.jsonl")


def record_of(*parts: LoadedPart, prepared: tuple[int, int] | None = None) -> RowRecord:
    record = RowRecord()
    record.parts = list(parts)
    record.prepared = prepared
    return record


def test_the_shares_of_a_mixture(tmp_path: Path) -> None:
    first = LoadedPart(staged(tmp_path / "first", 96), 96)
    half = LoadedPart(str(Path(staged(tmp_path / "second", 40)).parent), 20)
    [finding] = rows.check_mixture(record_of(first, half), 116, "1.0,0.5")
    assert (finding.verdict, finding.note) == ("proven", "116 rows of 2 data sets")
    cut = LoadedPart(first.name, 16)
    [finding] = rows.check_mixture(record_of(cut, half), 36, "1.0,0.5")
    assert (finding.verdict, finding.value) == ("refuted", f"16 of 96 rows of {first.name}")
    [finding] = rows.check_mixture(record_of(first, half), 68, "1.0,0.5")
    assert (finding.verdict, finding.value) == ("refuted", "68 of 116 rows in the data loader")


def test_rows_that_the_trainer_itself_leaves_out_are_noted(tmp_path: Path) -> None:
    name = staged(tmp_path / "first", 96)
    filtered = record_of(LoadedPart(name, 96, kept=90))
    [finding] = rows.check_mixture(filtered, 90, "1.0")
    assert finding.verdict == "proven"
    assert str(finding.note).endswith("of which the trainer's own filters leave 90")
    assert rows.check_mixture(filtered, 80, "1.0")[0].verdict == "refuted"
    of_trl = record_of(LoadedPart(name, 96), prepared=(96, 93))
    assert rows.check_mixture(of_trl, 93, "1.0")[0].verdict == "proven"
    lost_before = record_of(LoadedPart(name, 96), prepared=(48, 48))
    assert rows.check_mixture(lost_before, 48, "1.0")[0].verdict == "refuted"


def test_rows_without_a_record_are_not_proven(tmp_path: Path) -> None:
    name = staged(tmp_path / "first", 96)
    for record, shares in (
        (record_of(LoadedPart(str(tmp_path / "other" / "train.jsonl"), 96)), "1.0"),
        (record_of(LoadedPart(name, 96)), "1.0,1.0"),
    ):
        assert rows.check_mixture(record, 96, shares)[0].verdict == "unproven"


def test_the_demo_has_a_record_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text(json.dumps({"facts": {"rows": 5}}), encoding="utf-8")
    assert rows.count_staged(str(tmp_path / "train.jsonl")) == 5
    (tmp_path / "demo.json").write_text("{}", encoding="utf-8")
    assert rows.count_staged(str(tmp_path / "train.jsonl")) is None


def of_lengths(lengths: list[int], *, cut: int = 10_000, column: str = "input_ids") -> Any:
    """Return a data set of rows that end with END, cut at `cut`."""
    made = [([5] * (length - 1) + [END])[:cut] for length in lengths]
    return datasets.Dataset.from_dict({column: made})


@pytest.mark.parametrize(
    ("dataset", "limits", "verdict", "value"),
    [
        (of_lengths([3, 8, 5]), [8], "proven", "8"),
        (of_lengths([3, 8, 5]), [], "proven", "8"),
        (of_lengths([3, 9, 5]), [8], "refuted", "a row of 9"),
        (of_lengths([3, 9, 5], column="rejected_input_ids"), [], "refuted", "a row of 9"),
        (of_lengths([3, 9, 5]).select([0, 2]), [], "proven", "8"),
        (of_lengths([3, 7, 5]), [4], "refuted", "4"),
        # cut at the limit, at another one, and rows that end at one length by themselves
        (of_lengths([3, 12, 5, 12], cut=8), [8], "proven", "8"),
        (of_lengths([3, 12, 5, 12], cut=6), [8], "refuted", "rows truncated at 6"),
        (
            of_lengths([3, 12, 5, 12], cut=6).select([0, 3, 1]),
            [8],
            "refuted",
            "rows truncated at 6",
        ),
        (of_lengths([3, 6, 5, 6]), [8], "proven", "8"),
        (of_lengths([6, 6, 6], cut=5), [8], "proven", "8"),
        (datasets.Dataset.from_dict({"prompt": ["a"]}), [8], "proven", "8"),
        (datasets.Dataset.from_dict({"prompt": ["a"]}), [], "unproven", None),
    ],
)
def test_the_longest_row(dataset: Any, limits: list[int], verdict: str, value: str | None) -> None:
    of_arguments = [rows.Limit(limit, "SFTConfig.max_length") for limit in limits]
    finding = rows.judge_limit(dataset, of_arguments, "8")
    assert finding.verdict == verdict
    assert value is None or str(finding.value) == value


def test_the_limit_of_the_arguments_and_of_the_collator_is_read() -> None:
    collator = SimpleNamespace(max_length=4)
    loader = SimpleNamespace(dataset=of_lengths([3]), collate_fn=collator)
    trainer = SimpleNamespace(args=SimpleNamespace(max_length=8))
    objects = TrainerObjects(None, dataloader=loader, trainer=trainer)
    [finding] = rows.check_longest(objects, "8")
    assert (finding.verdict, finding.value) == ("refuted", 4)
    assert str(finding.how).startswith("SimpleNamespace.max_length, at which")
    collator.max_length = 8
    assert rows.check_longest(objects, "8")[0].verdict == "proven"


class Letters:
    """A tokenizer whose tokens are the numbers of letters; END is none."""

    def decode(self, ids: list[int]) -> str:
        return "".join("\0" if token == END else chr(token) for token in ids)


def staged_chats(folder: Path, *chats: list[str]) -> str:
    """Return the file of a staged folder with chats of these turns."""
    name = staged(folder, len(chats))
    lines = [
        json.dumps({"messages": [{"role": "user", "content": turn} for turn in chat]})
        for chat in chats
    ]
    Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return name


def of_chats(
    *chats: list[str], cut: int = 10_000, ends: int = 99, column: str = "input_ids"
) -> Any:
    """Return a data set of chats, of which those of up to `ends` turns have END behind them."""
    made = []
    for chat in chats:
        ids = [ord(letter) for letter in "|".join(chat)]
        made.append([*ids, *([END] if len(chat) <= ends else [])][:cut])
    return datasets.Dataset.from_dict({column: made})


SHORT = [["why", "yes"], ["how", "no"]]
LONG = [["why so", "nine nine nine nine"], ["how so", "nine nine nine nine nine"]]
LAST_ASKS = [["what", "this", "and that"], ["what", "that", "and this"]]


@pytest.mark.parametrize(
    ("chats", "made", "cut", "verdict"),
    [
        # cut within an answer, also one that says the same again and again
        (LONG, of_chats(*SHORT, *LONG, cut=15), 15, "refuted"),
        (LONG, of_chats(*SHORT, *LONG, cut=15, column="chosen_input_ids"), 15, "refuted"),
        # conversations that end with a question, which the template does not end
        (LAST_ASKS, of_chats(*SHORT, *LAST_ASKS, ends=2), 18, "proven"),
        # data whose texts were cut before
        (
            [["why so", "nine nin"], ["how so", "nine nin"]],
            of_chats(*SHORT, *LONG, cut=15),
            15,
            "proven",
        ),
        # tokenised rows of which no text is staged
        ([["other", "texts"]], of_chats(*SHORT, *LONG, cut=15), 15, "proven"),
    ],
)
def test_rows_that_end_otherwise_are_looked_up_among_the_staged_ones(
    chats: list[list[str]], made: Any, cut: int, verdict: str, tmp_path: Path
) -> None:
    name = staged_chats(tmp_path / "set", *SHORT, *chats)
    for given in (name, str(Path(name).parent)):
        finding = rows.judge_limit(
            made, [rows.Limit(64, "SFTConfig.max_length")], "64", Letters(), [given]
        )
        assert finding.verdict == verdict
        if verdict == "refuted":
            assert finding.value == f"rows truncated at {cut}"
        else:
            assert "none of them ends within a turn" in str(finding.note)


def test_rows_that_end_otherwise_and_are_staged_nowhere_refute_nothing() -> None:
    finding = rows.judge_limit(
        of_chats(*SHORT, *LONG, cut=15),
        [rows.Limit(64, "SFTConfig.max_length")],
        "64",
        Letters(),
        ["lab/hub"],
    )
    assert finding.verdict == "proven"
    assert "no staged rows are here" in str(finding.note)


def test_a_stream_of_which_no_columns_are_known_has_the_trainers_limit() -> None:
    """What TRL makes of a stream is mapped as it is read."""
    rows_of_stream = datasets.Dataset.from_list([{"text": "Hi"}]).to_iterable_dataset()
    stream = rows_of_stream.map(lambda row: {"input_ids": [1, 2]})
    assert stream.column_names is None
    limit = rows.Limit(8, "args.max_length")
    finding = rows.judge_limit(stream, [limit], "8")
    assert (finding.value, finding.verdict) == ("8", "proven")
    other = rows.judge_limit(stream, [limit], "16")
    assert other.verdict == "refuted"
