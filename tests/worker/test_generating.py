"""How long an answer may be, with a real model of two layers."""

from __future__ import annotations

from typing import Any

import pytest

from launch.worker.generating import encode_conversation, write_answer
from launch.worker.model_loading import load_model
from tests.integration import tiny_stage

pytest.importorskip("torch", reason="the `train` dependencies are not installed")

ASKED = [{"role": "user", "content": "What is 1 plus 2?"}]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return load_model(tiny_stage.make(tmp_path_factory.mktemp("generating")).model)


@pytest.mark.parametrize(("room", "tokens"), [(2, 2), (6, 3)])
def test_an_answer_ends_where_its_limit_or_the_context_does(
    loaded: tuple[Any, Any], room: int, tokens: int
) -> None:
    model, tokenizer = loaded
    context = encode_conversation(tokenizer, ASKED)["input_ids"].shape[1] + room
    answer = write_answer(model, tokenizer, ASKED, max_tokens=3, context=context)
    assert (answer["tokens"], answer["finished"]) == (tokens, False)
