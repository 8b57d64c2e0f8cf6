"""Renders every row with the chat template, to find those on which the template raises an error.

A trainer fails at such a row, wherever it is in the data; TRL's trainers do so after they have
loaded the model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from .json_codec import encode, to_json
from .samples import ANSWER, PAIR, SamplesRequest, parse_tools
from .system_turns import has_system_turn, merge_system_turn

_MAX_REASON = 300  # characters of a template's reason


@dataclass(frozen=True)
class TemplateError:
    """The rows that can't be rendered, and the first of them."""

    reason: str  # why the first row can't be rendered, in one line
    dataset: int  # the number of its data set; `row` is its number in there
    row: int
    rows: int  # number of rows that can't be rendered
    all_rows: int
    fits_merged: bool  # the first row can be rendered with its system turn in its user turn


@dataclass(frozen=True)
class RowRenderer:
    """Renders the conversations of a row as a trainer does."""

    tokenizer: Any
    template: str | None = None  # instead of the tokenizer's own
    renders_tools_of_pairs: bool = True
    renders_prompts: bool = False  # the prompt of a pair alone, before an answer

    def find_error(self, row: Mapping[str, Any]) -> str | None:
        """Return why the template can't render the row, in one line; None if it can."""
        try:
            for messages, tools, asks in self._conversations(row):
                self.tokenizer.apply_chat_template(
                    messages,
                    tools=tools,
                    chat_template=self.template,
                    add_generation_prompt=asks,
                    tokenize=False,
                )
        except MemoryError:
            raise
        except Exception as error:  # a template may raise any, such as a TypeError on a null
            return _describe(error)
        return None

    def _conversations(self, row: Mapping[str, Any]) -> Iterator[tuple[Any, Any, bool]]:
        """Yield what is rendered: messages, tools, and whether a generation prompt is added."""
        tools = parse_tools(row.get("tools"))
        if isinstance(row.get("messages"), list):
            yield row["messages"], tools, False
        if isinstance(row.get(ANSWER), list) and isinstance(row.get("prompt"), list):
            yield [*row["prompt"], *row[ANSWER]], tools, False
            yield row["prompt"], tools, True
        if not all(isinstance(row.get(name), list) for name in PAIR):
            return
        if not self.renders_tools_of_pairs:
            tools = None
        prompt = row.get("prompt")
        start = prompt if isinstance(prompt, list) else []
        for name in PAIR:
            yield [*start, *row[name]], tools, False
        if self.renders_prompts:
            yield start or row["chosen"][:-1], tools, True


def find_template_error(
    data_sets: Sequence[Iterable[Mapping[str, Any]]], renderer: RowRenderer
) -> TemplateError | None:
    """Render all rows of the data sets; return the template's first error, None without one."""
    first: tuple[str, int, int, Mapping[str, Any]] | None = None
    raised = 0
    rows = 0
    for dataset, data in enumerate(data_sets):
        for number, row in enumerate(data):
            rows += 1
            reason = renderer.find_error(row)
            if reason is not None:
                raised += 1
                first = first or (reason, dataset, number, row)
    if first is None:
        return None
    reason, dataset, number, row = first
    merged = {}
    for name, turns in row.items():
        merged[name] = merge_system_turn(turns) if has_system_turn(turns) else turns
    fits = merged != dict(row) and renderer.find_error(merged) is None
    return TemplateError(reason, dataset, number, raised, rows, fits)


def end_at_template_error(
    request: SamplesRequest,
    data_sets: Sequence[Iterable[Mapping[str, Any]]],
    renderer: RowRenderer,
) -> None:
    """Render all rows of the request; where the template raises an error, write it in place of the
    samples, and exit with code 0.

    `data_sets` are the rows that the trainer is given.
    """
    data = []
    for number, rows in enumerate(data_sets):
        files = request.whole[number] if request.whole else ()
        data.append(chain.from_iterable(map(read_staged_rows, files)) if files else rows)
    error = find_template_error(data, renderer)
    if error is not None:
        request.out.write_text(encode({"template_error": to_json(error)}), encoding="utf-8")
        sys.exit(0)


def read_staged_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a file that launch has written."""
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)


def _describe(error: Exception) -> str:
    """Return the first line of an error, with its type if the template did not raise it itself."""
    lines = str(error).strip().splitlines()
    reason = lines[0].strip() if lines else ""
    kind = type(error).__name__
    if kind != "TemplateError":
        reason = f"{kind}: {reason}" if reason else kind
    return (reason or kind)[:_MAX_REASON]
