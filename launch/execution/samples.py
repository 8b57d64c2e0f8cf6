"""Show tokenised samples, as text and as a page, with the tokens that carry loss marked."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from itertools import groupby

from launch.config.kinds import Kind
from launch.config.schema import Family
from launch.data.samples import PairSide, Sample, TokenizedSamples
from launch.errors import refusal
from launch.planning.plan import Plan
from launch.terminal import printable
from launch.worker.finding import Finding, Fix
from launch.worker.wording import noun_for

# The terminal's escape codes.
_GREEN = "\x1b[32m"
_DIM = "\x1b[2m"
_RESET = "\x1b[0m"
_STYLE = """body { font-family: sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; line-height: 1.5 }
pre { white-space: pre-wrap; background: #f6f6f6; padding: .8rem; border-radius: .3rem }
b { font-weight: normal; background: #c9f0cf } .place { color: #666 } .warning { color: #a40000 }
span:hover, b:hover { outline: 1px solid #888 }"""


def refuse_preview(plan: Plan) -> None:
    """Check that the trainer's samples can be shown. Raises UserError: no_preview."""
    trainer = plan.config.trainer
    is_trl = trainer.family == Family.trl
    if "preview" not in trainer.unsupported_because and (is_trl or "preview" in trainer.patches):
        return
    reason = trainer.unsupported_because.get("preview", "it has no patch for it")
    message = f"the samples of {trainer.name} cannot be shown: {reason}"
    cure = None
    if trainer.kind == Kind.rlvr:
        sentence = "{0} tries the verifiers on the prompts, and counts their tokens"
        cure = Fix.of(sentence, "$ launch check")
    raise refusal("no_preview", message, "trainer", cure)


def describe_samples(data: TokenizedSamples, *, colour: bool) -> Iterator[str]:
    """Yield the lines of all samples. Without colour, `[[` and `]]` enclose tokens that carry
    loss.
    """
    for number, sample in enumerate(data.samples, 1):
        yield _title(number, len(data.samples), sample)
        for side in sample.sides:
            if len(sample.sides) > 1:
                yield f"-- {side.name}: {describe_side(side)}"
            yield from _text(side, colour).splitlines()
        yield ""


def describe_side(side: PairSide) -> str:
    """Describe a sequence: its tokens, those that carry loss, and the tokens that are cut off."""
    text = f"{len(side.ids)} tokens"
    if side.loss is not None:
        text += f", {sum(side.loss)} carry loss"
    if side.is_truncated:
        text += f", {side.untruncated - len(side.ids)} more are cut off"
    if side.answers:
        text += f", {_describe_learnt(side)}"
    return text


def _describe_learnt(side: PairSide) -> str:
    """Describe which of several answers are learnt, by the numbers of their turns."""
    learnt = [str(number + 1) for number, is_learnt in side.answers if is_learnt]
    count = len(side.answers)
    if len(learnt) == count:
        return f"all {count} answers are learnt"
    if not learnt:
        return f"none of {count} answers is learnt"
    turns = noun_for(len(learnt), "turn")
    return f"{len(learnt)} of {count} answers learnt: {turns} {', '.join(learnt)}"


def legend(data: TokenizedSamples, *, colour: bool) -> str:
    """Explain how tokens that carry loss are marked."""
    if all(side.loss is None for sample in data.samples for side in sample.sides):
        return "a reward model scores the last token of each side; no token carries loss by itself"
    if colour:
        return f"{_GREEN}green{_RESET} tokens carry loss"
    return "tokens between [[ and ]] carry loss"


def render_page(
    title: str, data: TokenizedSamples, notes: Sequence[str], problems: Sequence[Finding]
) -> str:
    """Render an HTML page without scripts; the id of each token is its tooltip."""
    heading = html.escape(title)
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{heading}</title>',
        f"<style>{_STYLE}</style><h1>{heading}</h1>",
    ]
    parts += [f"<p>{html.escape(note)}</p>" for note in notes]
    parts += [f'<p class="warning">{problem.html()}</p>' for problem in problems]
    for number, sample in enumerate(data.samples, 1):
        parts.append(f"<h2>{html.escape(_title(number, len(data.samples), sample))}</h2>")
        for side in sample.sides:
            parts.append(f'<p class="place">{html.escape(side.name)}: {describe_side(side)}</p>')
            parts.append(f"<pre>{_render_tokens(side)}</pre>")
    return "\n".join(parts) + "\n</html>\n"


def _render_tokens(side: PairSide) -> str:
    """Return the tokens of a sequence as HTML; those that carry loss are in <b>."""
    loss = side.loss or (False,) * len(side.ids)
    elements = []
    for token_id, piece, carries_loss in zip(side.ids, side.pieces, loss, strict=True):
        tag = "b" if carries_loss else "span"
        elements.append(f'<{tag} title="{token_id}">{html.escape(printable(piece))}</{tag}>')
    return "".join(elements)


def _title(number: int, total: int, sample: Sample) -> str:
    dropped = "" if sample.kept else ", dropped by the trainer"
    size = f", {describe_side(sample.sides[0])}" if len(sample.sides) == 1 else ""
    return f"== sample {number} of {total}: {sample.place}{size}{dropped}"


def _text(side: PairSide, colour: bool) -> str:
    """Return the text of a sequence with marks at the tokens that carry loss."""
    loss = side.loss or (False,) * len(side.ids)
    tokens = zip(loss, side.pieces, strict=True)
    parts = []
    for carries_loss, group in groupby(tokens, key=lambda token: token[0]):
        text = printable("".join(piece for _, piece in group))
        if colour:
            parts.append(_colour_lines(text, _GREEN if carries_loss else _DIM))
        else:
            parts.append(f"[[{text}]]" if carries_loss else text)
    return "".join(parts)


def _colour_lines(text: str, style: str) -> str:
    """Colour each line separately, so that a pager keeps the colour."""
    lines = text.split("\n")
    return "\n".join(f"{style}{line}{_RESET}" if line else "" for line in lines)
