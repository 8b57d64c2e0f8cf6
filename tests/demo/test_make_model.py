"""The model builder, run as in production: by path, in its own interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launch.demo import make_model
from launch.demo.tasks import chat_rows, make_tasks, mixed_rows

pytest.importorskip("torch", reason="the train group is not installed")

SCRIPT = Path(make_model.__file__)
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What does `os.path.join` do?"},
    {"role": "assistant", "content": "`os.path.join(a, *p)`\n\nJoin paths."},
    {"role": "user", "content": "Thanks."},
    {"role": "assistant", "content": "Gladly."},
]
EXPECTED = (
    "<|system|>\nBe brief.\n<|user|>\nWhat does `os.path.join` do?\n"
    "<|assistant|>\n`os.path.join(a, *p)`\n\nJoin paths.<|end|>\n"
    "<|user|>\nThanks.\n<|assistant|>\nGladly.<|end|>"
)


def run_builder(out: Path, hash_seed: str = "0") -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), "--out", str(out), "--seed", "0"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": hash_seed},
        cwd=out.parent,
    )
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("model") / "model"
    return out, run_builder(out)


@pytest.fixture(scope="module")
def tokenizer(built: tuple[Path, dict[str, Any]]) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(built[0])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_same_seed_same_bytes_another_seed_other_weights(
    built: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    first = contents(built[0])
    run_builder(tmp_path / "again", hash_seed="5")
    assert contents(tmp_path / "again") == first
    # in this process: its import of torch takes most of the time
    make_model.build(tmp_path / "other", seed=1)
    other = contents(tmp_path / "other")
    assert [name for name in first if other[name] != first[name]] == ["model.safetensors"]


def test_the_printed_facts_match_the_model(
    built: tuple[Path, dict[str, Any]], tokenizer: Any
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    folder, facts = built
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.config.num_hidden_layers == 2
    assert facts["schema_version"] == 1
    assert facts["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert facts["vocabulary"] == len(tokenizer) == model.config.vocab_size == make_model.VOCABULARY
    ids = torch.tensor([tokenizer("Join the path").input_ids])
    assert model(ids, labels=ids).loss.isfinite()


def test_special_tokens_are_three_and_differ(tokenizer: Any) -> None:
    # open-instruct asserts pad != eos (dataset_transformation.py:831 at the pin); TRL masks pad.
    assert len({tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}) == 3
    assert tokenizer.is_fast


def test_chat_template_renders_the_tulu_format(tokenizer: Any) -> None:
    assert tokenizer.apply_chat_template(CONVERSATION, tokenize=False) == EXPECTED
    prompt = tokenizer.apply_chat_template(
        CONVERSATION[:2], tokenize=False, add_generation_prompt=True
    )
    assert (
        prompt == "<|system|>\nBe brief.\n<|user|>\nWhat does `os.path.join` do?\n<|assistant|>\n"
    )
    assert EXPECTED.startswith(prompt)


def test_generation_mask_is_the_assistants_words_and_their_end(tokenizer: Any) -> None:
    encoded = tokenizer.apply_chat_template(
        CONVERSATION, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    masked = [
        token
        for token, mask in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True)
        if mask
    ]
    assert tokenizer.decode(masked) == "`os.path.join(a, *p)`\n\nJoin paths.<|end|>Gladly.<|end|>"


@pytest.mark.parametrize(
    "text", ["plain words", "  spaces\n\tand\u2028lines ", "caf\u00e9 \u4e2d\u6587 \U0001f600"]
)
def test_tokenizer_is_lossless(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_a_question_is_short_and_a_letter_has_one_token_wherever_it_stands(tokenizer: Any) -> None:
    trained, held_out = make_tasks()
    rows = [*mixed_rows(trained), *chat_rows(held_out)]
    chats = [[message["content"] for message in row["messages"]] for row in rows]  # type: ignore[attr-defined]
    texts = [f"<|user|>\n{question}\n<|assistant|>\n{answer}<|end|>" for question, answer in chats]
    encoded = tokenizer(texts).input_ids
    assert tokenizer.batch_decode(encoded) == texts
    used = {token for tokens in encoded for token in tokens}
    assert max(map(len, encoded)) <= 40 and used.isdisjoint(
        [tokenizer.pad_token_id, tokenizer.bos_token_id]
    )
    [letter] = tokenizer("q").input_ids
    assert all(
        tokenizer(text).input_ids.count(letter) == 1
        for text in ('"vqx"[::-1]', "['vl', 'qd']", "q", " q")
    )
    unused = [
        piece for piece in make_model.PIECES if tokenizer.convert_tokens_to_ids(piece) not in used
    ]
    assert unused == ["<|system|>"]
