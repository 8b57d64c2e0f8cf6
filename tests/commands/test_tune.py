"""`tune` as far as it goes without a probe: predictions, and what can't be searched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.planning.build import plan_on_this_machine
from tests.conftest import Launch, composed
from tests.messages import values_of
from tests.trials.records import check

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An SFT of a model whose shape is here, on cards that are named: there is no GPU here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    (tmp_path / "chats.jsonl").write_text((json.dumps(chat) + "\n") * 200, encoding="utf-8")
    cards = ["allow=[incomplete_model]", "cluster.gpu_type=h200", "cluster.gpu_memory=139"]
    return ["stage=sft", "gpus=8", "model.path=model", "data.mix=[{name: chats.jsonl}]", *cards]


def tokenised(words: list[str], lengths: dict[str, int]) -> None:
    """What tokenising would have written."""
    configuration = composed(*words)
    path = plan_on_this_machine(configuration).lengths_file
    assert path is not None
    path.parent.mkdir(parents=True)
    document = {"schema_version": 1, "kind": "sft", "label_tokens": 100, "tokens": lengths}
    path.write_text(json.dumps(document), encoding="utf-8")


def test_predictions_without_a_probe(words: list[str], launch: Launch) -> None:
    tokenised(words, {"100": 4000, "900": 4000, "3000": 300})
    shown = launch("tune", *words, "dry_run=true", "--json")
    document = json.loads(shown.stdout)
    check(document)
    assert document["state"] == "planned" and document["runs"] == [] and document["overlay"] is None
    assert (
        document["data"]["measured"]
        and document["data"]["samples"] == 8300
        and document["data"]["longest_tokens"] == 3000
    )
    first = document["predictions"][0]
    assert (
        first["low_seconds"] < first["step_seconds"] < first["high_seconds"]
        and first["fit"] == "fits"
    )
    assert "predicted; nothing was run" in shown.stderr and "the recipe's own" in shown.stderr


def test_unknown_lengths_are_reported(words: list[str], launch: Launch) -> None:
    shown = launch("tune", *words, "dry_run=true").stdout
    assert "4,096" in shown


def test_an_unknown_card_is_reported(words: list[str], launch: Launch) -> None:
    card = ("cluster.gpu_type=frobnicator", "cluster.gpu_memory=100")
    assert (
        "frobnicator is an unknown GPU" in launch("tune", *words[:-2], *card, "dry_run=true").stdout
    )


def refusal(words: list[str], launch: Launch) -> str:
    done = launch("tune", *words)
    error = done.stderr.strip().splitlines()
    assert done.returncode == 2
    assert len([line for line in error if line.startswith("launch: ")]) == 1
    return error[-1]


def test_less_data_than_a_step_is_refused(words: list[str], launch: Launch) -> None:
    tokenised(words, {"700": 1})
    error = refusal(words, launch)
    assert {"1", "128"} <= set(values_of(error)) and error.endswith("[too_few_samples]")


def test_a_model_that_fits_nowhere_is_refused(words: list[str], launch: Launch) -> None:
    tokenised(words, {"700": 10_000})
    error = refusal([*words[:-1], "cluster.gpu_memory=4"], launch)
    assert "gpu8" in error and error.endswith("[nothing_fits]")


def test_a_model_of_an_unknown_shape_is_refused(words: list[str], launch: Launch) -> None:
    Path("model/config.json").write_text('{"model_type": "frobnicator"}', encoding="utf-8")
    assert refusal(words, launch).endswith("[unknown_shape]")


@pytest.mark.parametrize("size", ["0", "-1"])
def test_a_card_without_memory_is_refused(words: list[str], size: str, launch: Launch) -> None:
    error = refusal([*words[:-1], f"cluster.gpu_memory={size}"], launch)
    assert {"0", str(float(size))} - {"0.0"} <= set(values_of(error)) and error.endswith(
        "[out_of_range]"
    )


@pytest.mark.parametrize(("number", "least"), [("steps=2", "3"), ("tune.skip=8", "9")])
def test_steps_of_which_none_counts(
    words: list[str], number: str, least: str, launch: Launch
) -> None:
    error = refusal([*words, number], launch)
    assert least in values_of(error) and error.endswith("[bad_steps]")


def test_gpus_that_are_not_here_are_missed_before_anything_is_tokenised(
    words: list[str], launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = launch("tune", *words)
    assert (
        done.returncode == 2
        and "[too_few_gpus]" in done.stderr
        and "tokenising first" not in done.stdout
    )


def test_where_no_probe_can_be_started_the_first_reason_is_given(
    words: list[str], launch: Launch
) -> None:
    """There is no GPU here, whatever cards are named."""
    tokenised(words, {"100": 4000})
    refused = launch("tune", *words)
    assert refused.returncode == 2
    [line] = [line for line in refused.stderr.splitlines() if "[no_probe_started]" in line]
    assert "[too_few_gpus]" in line, line
    # the cure: what the reason is about is changed
    assert launch("tune", *words, "dry_run=true").returncode == 0
