"""Counts rows whose turns hold the marks of a chat template or of a transcript in their texts.

The template writes its own marks around each turn, so that such a text has them twice, or a whole
conversation becomes one turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from launch.data.transcripts import is_question_and_answer

# what templates write around a turn, and what other tools and data sets write before one
_MARKS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|eot_id|>",
    "<|endoftext|>",
    "<start_of_turn>",
    "<|user|>",
    "<|assistant|>",
    "[INST]",
    "[|Human|]",
    "[|AI|]",
    "### Human:",
    "### Assistant:",
    "### Instruction:",
    "### Response:",
    "\nASSISTANT:",
    " ASSISTANT:",
    "\nAssistant:",
    "\nHuman:",
    "\nUser:",
    "<functioncall>",
    "<tool_response>",
    "\n\n###\n\n",
)
_FEW = 20  # if fewer than one row in so many has a mark, its text may be about templates


def find_mark(text: str) -> str | None:
    """Return the first of MARKS that a text holds; None if it holds none."""
    lines = f"\n{text}"
    mark = next((mark for mark in _MARKS if mark in lines), None)
    return "A:" if mark is None and is_question_and_answer(text) else mark


@dataclass
class RenderedRows:
    """The rows whose turns hold such marks, over all rows."""

    rows: int = 0
    marked: int = 0
    first: str = ""  # the mark and the place of the first one

    def add(self, texts: Iterable[str], place: str) -> None:
        """Count a row with these texts of its turns."""
        self.rows += 1
        mark = next(filter(None, map(find_mark, texts)), None)
        if mark is None:
            return
        self.marked += 1
        self.first = self.first or f"{mark.strip()!r} in {place}"

    def note(self) -> str | None:
        """Describe the rows; None if they are few."""
        if not self.marked or self.marked * _FEW < self.rows:
            return None
        return (
            f"the turns of {self.marked:,} rows hold marks of a chat template or of a transcript, "
            f"to which the template adds its own (first: {self.first}): remove them, or split the "
            "text into turns"
        )
