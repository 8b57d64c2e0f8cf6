"""Tokenised rows against staged ones: with TRL's own trainers and the pin's own cache, whole and
with rows or labels that are gone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

datasets = pytest.importorskip("datasets", reason="the `train` dependencies are not installed")

from launch.worker.evidence import rows, tokenised  # noqa: E402
from launch.worker.evidence.rows import RowRecord  # noqa: E402
from tests.chat_tokenizer import make_tokenizer  # noqa: E402
from tests.upstream.checkouts import checkout, import_transformations  # noqa: E402

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
COUNT = 96


def stage(folder: Path, *, pairs: bool = False) -> Path:
    """Stage 96 rows, of which the last three are too long for the limit of the trainers below."""
    folder.mkdir()
    lines = []
    for number in range(COUNT):
        asked = {"role": "user", "content": f"What is {number}?" + " long" * 99 * (number > 92)}
        said = {"role": "assistant", "content": f"It is {number}."}
        row = {"messages": [asked, said]}
        if pairs:
            other = {"role": "assistant", "content": f"It is not {number}."}
            row = {"chosen": [asked, said], "rejected": [asked, other]}
        lines.append(json.dumps(row))
    file = folder / "train.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "about.json").write_text(json.dumps({"train": COUNT}), encoding="utf-8")
    return file


def check(record: RowRecord, dataset: Any) -> tuple[str | None, str, str]:
    [finding] = rows.check_mixture(record, len(dataset), "1.0")
    return finding.verdict, str(finding.value), str(finding.note)


Change = Callable[[Any], Any]


def mask(column: str) -> Change:
    """Return a change that leaves the loss to the last token of each row."""

    def mask_row(row: dict[str, Any]) -> dict[str, Any]:
        return {column: [-100] * (len(row[column]) - 1) + row[column][-1:]}

    return lambda dataset: dataset.map(mask_row)


def first_16(dataset: Any) -> Any:
    return dataset.select(range(16))


def every_second(dataset: Any) -> Any:
    return dataset.select(range(0, len(dataset), 2))


def without_middle(dataset: Any) -> Any:
    return dataset.select([at for at in range(len(dataset)) if not 30 <= at < 60])


# TRL: the rows that its trainer prepares, as its cache would return them
TRL_CHANGES: dict[str, Change] = {
    "16 rows": first_16,
    "every second row": every_second,
    "rows in the middle are gone": without_middle,
    "labels are gone": mask("labels"),
}


@pytest.mark.parametrize("packing", ["none", "bins"])
@pytest.mark.parametrize("name", ["whole", *TRL_CHANGES])
def test_what_trl_prepares(
    name: str, packing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    from launch.worker import trl_data

    file = stage(tmp_path / "set")
    for kind in (trl.SFTTrainer, trl.DPOTrainer):  # they get their own methods back
        monkeypatch.setattr(kind, "_prepare_dataset", kind._prepare_dataset)
    monkeypatch.setattr(trl_data, "keep_rows", trl_data.keep_rows)
    if name != "whole":
        prepare = trl.SFTTrainer._prepare_dataset
        calls = []

        def prepare_less(self: Any, *arguments: Any) -> Any:
            calls.append(arguments)
            prepared = prepare(self, *arguments)
            return TRL_CHANGES[name](prepared) if len(calls) == 1 else prepared

        trl.SFTTrainer._prepare_dataset = prepare_less
    record = RowRecord()
    record.watch_trl()
    loaded = datasets.load_dataset(str(file.parent), cache_dir=str(tmp_path / "cache"))
    data = trl_data.keep_rows(loaded, str(file.parent), "train", {})["train"]
    tokenizer = make_tokenizer(TEMPLATE + "<|user|><|assistant|>")
    tokenizer.chat_template = TEMPLATE
    args = trl.SFTConfig(
        output_dir=str(tmp_path),
        max_length=64,
        assistant_only_loss=True,
        packing=packing == "bins",
        truncation_mode="keep_end" if packing == "bins" else "keep_start",  # bins ignore it
        report_to=[],
        use_cpu=True,
    )
    trainer = SimpleNamespace(
        _tokenizer=tokenizer, chat_template=None, completion_only_loss=False, _is_vlm=False
    )
    prepared = trl.SFTTrainer._prepare_dataset(
        trainer, data, tokenizer, args, args.packing, None, "train"
    )
    loaded_rows = rows.count_loaded(prepared, packing, args)
    [finding] = rows.check_mixture(record, loaded_rows, "1.0")
    verdict, value, note = finding.verdict, str(finding.value), str(finding.note)
    if name == "whole":
        assert verdict == "proven", value
        # packing leaves out no row, however much of it is cut off
        assert ("the trainer's own filters leave 93" in note) is (packing == "none")
        assert loaded_rows == (93 if packing == "none" else COUNT)
        assert "62 of them were tokenised anew and found" in note
        assert datasets.is_caching_enabled()
    else:
        assert verdict == "refuted"
        assert f"of 62 staged rows of {file.parent} that were tokenised anew" in value


@pytest.fixture(scope="module")
def pin() -> Any:
    root = checkout()
    if root is None:
        pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR or fetch the submodule")
    return import_transformations(root)


# of the pin: the rows of its cache, and the statistics beside them
CACHES: dict[str, tuple[bool, Change, bool, str]] = {
    "16 rows": (False, first_16, False, "16 of 93 rows in the data loader"),
    "16 rows by its statistics": (False, first_16, True, "staged rows of "),
    "every second pair": (True, every_second, True, "staged rows of "),
    "labels": (False, mask("labels"), False, "trained tokens of "),
    "labels by its statistics": (False, mask("labels"), True, "staged rows of "),
    "labels of pairs": (True, mask("chosen_labels"), False, "staged rows of "),
}


@pytest.mark.parametrize("name", ["whole", "whole pairs", *CACHES])
def test_what_the_pin_has_in_its_cache(
    name: str, pin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEAKER_ASSIGNED_CPU_COUNT", "1")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    build = pin.get_cached_dataset_tulu_with_statistics
    monkeypatch.setattr(pin, "get_cached_dataset_tulu_with_statistics", build)
    cache = pin.LocalDatasetTransformationCache
    monkeypatch.setattr(cache, "load_or_transform_dataset", cache.load_or_transform_dataset)
    pairs, change, changes_statistics, expected = CACHES.get(
        name, ("pairs" in name, None, False, "")
    )
    file = stage(tmp_path / "set", pairs=pairs)
    tokenizer = make_tokenizer(TEMPLATE + "<|user|><|assistant|>")
    tokenizer.chat_template = TEMPLATE
    kind = "preference" if pairs else "sft"
    config = pin.TokenizerConfig(tokenizer_name_or_path="none", tokenizer_revision="main")
    config.__dict__["tokenizer"] = tokenizer
    folder = tmp_path / "tokenized"

    def load() -> tuple[Any, Any]:
        return pin.get_cached_dataset_tulu_with_statistics(
            dataset_mixer_list=[str(file), "1.0"],
            dataset_mixer_list_splits=["train"],
            tc=config,
            dataset_transform_fn=[
                f"{kind}_tulu_tokenize_and_truncate_v1",
                f"{kind}_tulu_filter_v1",
            ],
            transform_fn_args=[{"max_seq_length": 64}, {}],
            target_columns=getattr(pin, f"TOKENIZED_{kind.upper()}_DATASET_KEYS"),
            dataset_local_cache_dir=str(folder),
            dataset_config_hash=None,
        )

    load()
    if change is not None:
        [found] = folder.iterdir()
        changed = change(datasets.Dataset.load_from_disk(str(found), keep_in_memory=True))
        changed.save_to_disk(str(tmp_path / "changed"))
        statistics = json.loads((found / "dataset_statistics.json").read_text(encoding="utf-8"))
        if changes_statistics:
            [entry] = statistics["per_dataset_stats"]
            entry["final_instances"] = len(changed)
            if not pairs:
                lengths, trained = tokenised.columns.count_learnt_labels(changed)
                entry.update(total_tokens=sum(lengths), trainable_tokens=sum(trained))
        for old in found.glob("*.arrow"):
            old.unlink()
        for new in (tmp_path / "changed").iterdir():
            new.replace(found / new.name)
        (found / "dataset_statistics.json").write_text(json.dumps(statistics), encoding="utf-8")
    record = RowRecord()
    record.watch_open_instruct()
    dataset, _ = load()
    verdict, value, note = check(record, dataset)
    if change is None:
        assert verdict == "proven", value
        assert "were tokenised anew and found" in note
    else:
        assert verdict == "refuted"
        assert expected in value


@pytest.mark.parametrize("is_padded", [True, False])
def test_the_pin_reads_padded_tools_and_they_are_named(
    pin: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_padded: bool,
) -> None:
    monkeypatch.setenv("BEAKER_ASSIGNED_CPU_COUNT", "1")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    for owner, name in (
        (pin, "get_cached_dataset_tulu_with_statistics"),
        (pin.LocalDatasetTransformationCache, "load_or_transform_dataset"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.chdir(tmp_path)  # a path that is not absolute is a name of the hub
    turns = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "2"}]
    tools = [[{"name": "a", "city": "Ulm"}], [{"name": "b", "day" if is_padded else "city": "Mo"}]]
    rows = [{"messages": turns, "tools": tool} for tool in tools]
    datasets.Dataset.from_list(rows).to_parquet("chats.parquet")
    tokenizer = make_tokenizer(TEMPLATE + "<|user|><|assistant|>")
    tokenizer.chat_template = TEMPLATE
    config = pin.TokenizerConfig(tokenizer_name_or_path="none", tokenizer_revision="main")
    config.__dict__["tokenizer"] = tokenizer
    RowRecord().watch_open_instruct()
    pin.get_cached_dataset_tulu_with_statistics(
        dataset_mixer_list=["chats.parquet", "1.0"],
        dataset_mixer_list_splits=["train"],
        tc=config,
        dataset_transform_fn=["sft_tulu_tokenize_and_truncate_v1", "sft_tulu_filter_v1"],
        transform_fn_args=[{"max_seq_length": 64}, {}],
        target_columns=pin.TOKENIZED_SFT_DATASET_KEYS,
        dataset_local_cache_dir=str(tmp_path / "tokenized"),
        dataset_config_hash=None,
    )
    assert ("chats.parquet: 2 of 2 rows have tools" in capsys.readouterr().out) == is_padded


def test_the_rows_that_are_tokenised_anew_are_spread() -> None:
    assert tokenised.spread_rows(3) == [0, 1, 2]
    assert tokenised.spread_rows(1) == [0]
    assert tokenised.spread_rows(0) == []
    many = tokenised.spread_rows(6400)
    assert (len(many), many[0], many[-1]) == (64, 0, 6399)
    assert len(set(many)) == 64


def test_many_rows_of_one_length_are_not_searched() -> None:
    cut = datasets.Dataset.from_dict({"input_ids": [[1, 2]] * 2001 + [[3]]})
    assert tokenised.count_missing(cut, [{"input_ids": [4, 4]}]) == 0
    assert tokenised.count_missing(cut, [{"input_ids": [4]}, {"input_ids": [3]}]) == 1
