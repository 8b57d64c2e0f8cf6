"""What a chat template raises on a row is found in any row, with its reason in one line."""

from __future__ import annotations

from typing import Any

import pytest

from launch.worker.rendering import RowRenderer, find_template_error
from tests.chat_tokenizer import make_tokenizer

TURN = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
NO_SUMS = (
    "{% for m in messages %}{% if '+' in m['content'] %}"
    "{{ raise_exception('no sums\nat all') }}{% endif %}{% endfor %}"
)
NO_NULL = "{{ tools[0]['name'].upper() if tools }}"
ASKS_NOTHING = "{% if add_generation_prompt %}{{ raise_exception('nothing to ask') }}{% endif %}"
SYSTEM = {"role": "system", "content": "Be brief."}


def chat(text: str, *start: dict[str, str]) -> list[dict[str, str]]:
    answer = {"role": "assistant", "content": "Yes."}
    return [*start, {"role": "user", "content": text}, answer]


PAIR = {"chosen": chat("1 + 1?"), "rejected": chat("1 + 1?")}


@pytest.mark.parametrize(
    ("template", "row", "reason", "fits_merged"),
    [
        (NO_SYSTEM, {"messages": chat("Hi?", SYSTEM)}, "no system", True),
        (
            NO_SYSTEM,
            {"chosen": chat("Hi?", SYSTEM), "rejected": chat("Hi?", SYSTEM)},
            "no system",
            True,
        ),
        (NO_SUMS, {"messages": chat("1 + 1?")}, "no sums", False),
        # a system turn that is not the reason is not blamed
        (NO_SUMS, {"messages": chat("1 + 1?", SYSTEM)}, "no sums", False),
        (NO_SUMS, PAIR, "no sums", False),
        # an error that the template's author did not write
        (
            NO_NULL,
            {"messages": chat("Hi?"), "tools": '[{"name": null}]'},
            "UndefinedError: ",
            False,
        ),
        (ASKS_NOTHING, PAIR, "nothing to ask", False),
    ],
)
def test_the_reason_and_the_row(
    template: str, row: dict[str, Any], reason: str, *, fits_merged: bool
) -> None:
    pytest.importorskip("transformers")
    renderer = RowRenderer(make_tokenizer(template + TURN), renders_prompts=True)
    good: dict[str, Any] = {"messages": chat("Hi?"), "tools": None}
    error = find_template_error([[good] * 3, [good, row, row]], renderer)
    assert error is not None
    assert error.reason.startswith(reason) and "\n" not in error.reason
    assert (error.dataset, error.row, error.rows, error.all_rows) == (1, 1, 2, 6)
    assert error.fits_merged == fits_merged
    assert find_template_error([[good] * 3], renderer) is None


def test_only_what_the_trainer_renders_is_rendered() -> None:
    """open-instruct leaves tools out of pairs, and asks for no answer to their prompts; a row of
    texts has no turns to render.
    """
    pytest.importorskip("transformers")
    row = {**PAIR, "tools": '[{"name": null}]'}
    renderer = RowRenderer(
        make_tokenizer(NO_NULL + ASKS_NOTHING + TURN), renders_tools_of_pairs=False
    )
    assert find_template_error([[row, {"text": "Only words."}]], renderer) is None
