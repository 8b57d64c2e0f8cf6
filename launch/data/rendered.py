"""Counts rows whose turns hold the marks of a chat template or of a transcript in their texts.

The template writes its own marks around each turn, so that such a text has them twice, or a whole
conversation becomes one turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from launch.data.transcripts import is_question_and_answer

_SPEAKERS = "system|user|human|prompter|assistant|chatbot|bot|ai|gpt|model"
# what templates write around a turn, and what other tools and data sets write before one
_MARKS = re.compile(
    "|".join(
        (
            r"<[|｜](?:im_start|im_end|im_sep|(?:start|end)_header_id|eot_id|eom_id|eot|endoftext)[|｜]>",
            r"<[|｜](?:begin_of_text|end_of_text|end_of_turn|end_of_sentence|begin▁of▁sentence)[|｜]>",
            r"<[|｜](?:end▁of▁sentence|end|start|message|channel|return|startoftext)[|｜]>",
            rf"<[|｜_](?:{_SPEAKERS})[|｜]?>",  # Zephyr, Phi, DeepSeek
            rf"\[\|(?:{_SPEAKERS})\|\]",  # Baize, EXAONE
            rf"(?:^|\n)[<\[](?:{_SPEAKERS})[>\]](?::|\n)",  # `<human>:` of RedPajama
            r"</?(?:start|end)_of_turn>",
            r"<reserved_10[2-9]>",  # Baichuan
            r"<extra_id_[01]>",  # Nemotron and HelpSteer
            r"\[/?INST\]",
            r"<</?SYS>>",
            r"### ?(?:human|user|assistant|system|instruction|input|response):",
            r"GPT4 (?:Correct )?(?:User|Assistant):",
            r"\n[ \t]*(?:Human|User|HUMAN|USER|Assistant|ASSISTANT|Chatbot|ChatGPT|<bot>):",
            r" ASSISTANT:",
            r"\n[ \t]*(?:user|person|speaker|participant|agent|player) ?[12ab]:",
            r"<functioncall>|<tool_response>|<start_function_call>",
            r"\n\n###\n\n",
        )
    ),
    re.IGNORECASE,
)
# Each mark has one of these: a text without them is not searched, which would take far longer.
_HINTS = (
    *("<|", "<｜", "<_", "[|", "inst]", "sys>", "_of_turn>", "<reserved_", "<extra_id_", "###"),
    *("functioncall>", "tool_response>", "function_call>", "user:", "human:", "assistant:"),
    *(
        "chatbot:",
        "chatgpt:",
        "1:",
        "2:",
        " a:",
        " b:",
        *(f"{name}{end}" for name in _SPEAKERS.split("|") for end in ">]"),
    ),
)
_FEW = 20  # if fewer than one row in so many has a mark, its text may be about templates


def find_mark(text: str) -> str | None:
    """Return the first mark of a template or of a transcript in a text; None if it holds none."""
    lowered = text.lower()
    if any(hint in lowered for hint in _HINTS):
        mark = _MARKS.search(f"\n{text}")
        if mark is not None:
            return mark[0].strip()
    return "A:" if is_question_and_answer(text) else None


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
        self.first = self.first or f"{mark!r} in {place}"

    def note(self) -> str | None:
        """Describe the rows; None if they are few."""
        if not self.marked or self.marked * _FEW < self.rows:
            return None
        return (
            f"the turns of {self.marked:,} rows hold marks of a chat template or of a transcript, "
            f"to which the template adds its own (first: {self.first}): remove them, or split the "
            "text into turns"
        )
