"""Samples in a terminal and as a page: what carries loss is visible, and nothing of the data is
executed.
"""

from __future__ import annotations

from dataclasses import replace

from launch.data.sample_problems import find_sample_problems
from launch.execution.samples import describe_samples, legend, render_page
from tests.data.test_samples import GOOD, samples


def test_tokens_with_loss_are_marked_with_and_without_colour() -> None:
    title, text, empty = describe_samples(samples(GOOD), colour=False)
    assert title == "== sample 1 of 1: /data.jsonl:1, 4 tokens, 2 carry loss"
    assert text == "<s>hi[[hello</s>]]"
    assert empty == ""
    coloured = list(describe_samples(samples(GOOD), colour=True))[1]
    assert coloured == "\x1b[2m<s>hi\x1b[0m\x1b[32mhello</s>\x1b[0m"
    assert "[[" in legend(samples(GOOD), colour=False)
    assert "a reward model scores" in legend(samples(replace(GOOD, loss=None)), colour=False)


def test_truncation_and_dropped_samples_are_in_the_title() -> None:
    [title, *_] = describe_samples(samples(replace(GOOD, untruncated=10), kept=False), colour=False)
    assert title.endswith("4 tokens, 2 carry loss, 6 more are cut off, dropped by the trainer")


def test_the_data_controls_neither_the_terminal_nor_the_page() -> None:
    hostile = replace(GOOD, pieces=("<s>", "\x1b]0;title\x07", "<script>alert(1)</script>", "</s>"))
    assert "\x1b" not in "".join(describe_samples(samples(hostile), colour=False))
    page = render_page("mine", samples(hostile), ["a note"], find_sample_problems(samples(hostile)))
    assert "<script>" not in page and "\x1b" not in page
    assert '<b title="11">&lt;script&gt;alert(1)&lt;/script&gt;</b>' in page
    assert '<span title="10">' in page
