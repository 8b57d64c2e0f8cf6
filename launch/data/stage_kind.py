"""Chooses the kind of stage that a row of data is for, or asks which."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from launch.config.kinds import Kind
from launch.data.choices import refuse_choices, refuse_hidden_choices
from launch.data.columns import COMPLETIONS
from launch.data.formats import ends_with_answer
from launch.data.label_balance import LABEL
from launch.data.labels import NAMES as LABELS
from launch.data.labels import (
    cure_of_judgement,
    cure_of_text,
    find_judgement,
    find_verdict_word,
    is_label,
)
from launch.data.nested_rows import refuse_columns
from launch.data.pairs import is_pair
from launch.data.prompts import CHATS, PROMPTS, column_of_question, find_column
from launch.data.rendered import find_mark
from launch.data.row_errors import RowError, path_of_text
from launch.data.transcripts import is_transcript
from launch.data.truths import find_truth
from launch.data.turns import read_turns
from launch.data.unknown import (
    explain_turn,
    find_numbered,
    find_sentences,
    is_one_turn,
    may_be_answer,
    name_sides,
)
from launch.errors import UserError, refusal
from launch.worker.finding import Finding, Fix

# words in the name of a column that may say which of several answers is better
_VERDICT = re.compile("better|choice|label|prefer|rank|rating|score|winner", re.IGNORECASE)
_WORSE = re.compile("reject|worse|worst|incorrect|wrong|^bad|negative|losing", re.IGNORECASE)
_SOLUTION = "solution"  # the steps to an answer, in data sets of mathematics


def choose_kind(
    row: Mapping[str, object],
    verifier: str | None,
    place: str,
    columns: Collection[str] = (),
    labels: Collection[float] = (),
    *,
    own: Mapping[str, str] | None = None,
) -> Kind:
    """Return the kind of stage that the columns of a row are for; a verifier is for RLVR alone, and a
    label that `columns` names for KTO. `labels` are the numbers that the rows have in the column of
    a label, and `own` are the file's names of columns.

    Raises UserError (data_columns) for a row with an answer and a ground truth, which two kinds of
    stage fit, for an answer that may be another column or labelled by a word, and for a prompt whose
    answers may stand in a column that launch does not know: they would not be learned. Raises
    UserError (data_row) for choices that the prompt does not show.
    """
    try:
        return _choose(row, verifier, place, columns, labels)
    except RowError as error:
        raise UserError(write_options(error.problem(place, own))) from error


def _choose(
    row: Mapping[str, object],
    verifier: str | None,
    place: str,
    columns: Collection[str],
    labels: Collection[float],
) -> Kind:
    """Return the kind of stage. Raises UserError, and RowError."""
    refuse_columns(row)
    if verifier is not None:
        return Kind.rlvr
    names = {name for name, value in row.items() if value is not None}
    if is_pair(names):
        return Kind.dpo
    if LABEL in columns:
        return Kind.kto
    is_named = "completion" in columns  # also where the first rows have none
    has_answer = is_named or not names.isdisjoint(COMPLETIONS) or ends_with_answer(row)
    has_truth = find_truth(row) is not None
    if has_answer and has_truth:
        message = (
            "the row has an answer to learn, and a ground truth that answers are verified with"
        )
        cure = (
            "choose what to train: --kind sft learns the answer, --kind rlvr uses the ground truth"
        )
        raise refusal("data_columns", message, place, cure)
    asks = not names.isdisjoint((*CHATS, *PROMPTS, "instruction"))
    if has_truth and asks:
        return Kind.rlvr
    # a conversation without an answer is refused by a stage that learns answers
    if has_answer or not asks or not names.isdisjoint(CHATS):
        if has_answer and not is_label(row):
            _refuse_judgement(row, labels, place)
            _refuse_two_meanings(row, columns, place)
        return Kind.kto if is_label(row) else Kind.sft
    answers = [name for name in row if may_be_answer(name, row[name])]
    if not answers:
        for name in find_numbered(row):
            refuse_choices(row, name)
        refuse_hidden_choices(row)
        answers = find_sentences(row)
        _refuse_transcript(row, answers)
    if answers:
        _refuse_answers(row, answers, place)
    return Kind.sft if names.isdisjoint(PROMPTS) else Kind.rlvr


def _refuse_judgement(row: Mapping[str, object], labels: Collection[float], place: str) -> None:
    """Refuse an answer that a column such as `chosen` or `is_correct` may judge, or a label of two
    numbers, or of numbers of which one is -1.

    Raises UserError: data_columns.
    """
    label = find_column(row, LABELS)
    judgement = find_judgement(row)
    if judgement is not None:
        statement = f"{judgement} is {row[judgement]}"
        named = cure_of_judgement(row, judgement).partition("=")[2]
    elif label and (len(labels) == 2 or -1.0 in labels):
        numbers = [f"{number:g}" for number in sorted(labels)]
        statement = f"{label} has the values {', '.join(numbers)}"
        named = f"{label}:{'/'.join(reversed(numbers)) if len(numbers) == 2 else 'GOOD/BAD'}"
    else:
        return
    message = f"{statement}, which may say whether the answer is a good one"
    learnt = "the good ones" if judgement is not None else "all"
    cure = (
        f"for KTO name its two values, the good one first (--columns label={named}); --kind sft "
        f"learns {learnt}"
    )
    raise refusal("data_columns", message, place, cure)


def _refuse_two_meanings(row: Mapping[str, object], columns: Collection[str], place: str) -> None:
    """Refuse an answer whose label is a word, and a short answer beside a solution that leads to it.

    Raises UserError: data_columns.
    """
    label = find_verdict_word(row)
    if label is not None:
        word = str(row[label])
        message = f"{label} is {word!r}, which may say whether the answer is a good one"
        named = cure_of_text(label, word).replace("data.columns.", "--columns ")
        cure = f"for KTO name its two texts, the good one first ({named}); --kind sft learns all"
        raise refusal("data_columns", message, place, cure)
    answer = find_column(row, COMPLETIONS)
    is_named = "completion" in columns or find_column(row, CHATS)
    is_asked = column_of_question(row) and answer and isinstance(row.get(_SOLUTION), str)
    if is_named or not is_asked or not row[_SOLUTION]:
        return
    message = f"{answer!r} and {_SOLUTION!r} may both be what the row's answer is"
    cure = (
        f"name the one to learn: --columns completion={_SOLUTION} or --columns completion={answer}"
    )
    raise refusal("data_columns", message, place, cure)


def _refuse_answers(row: Mapping[str, object], answers: list[str], place: str) -> None:
    """Refuse a prompt that these columns may answer.

    Raises UserError: data_columns. Raises RowError: data_row, data_columns.
    """
    if is_one_turn(row):
        raise explain_turn()
    prompt = find_column(row, ("instruction", *PROMPTS))
    read_turns("user", row[prompt], prompt)
    for name in answers:
        refuse_choices(row, name)
    listed = ", ".join(map(repr, answers))
    message = f"the row has a prompt, and {listed} may hold what answers it"
    column = "MY_COLUMN"
    if len(answers) == 1 and not _WORSE.search(answers[0]):
        column = f"{answers[0]}{path_of_text(row[answers[0]])}"
    learnt = f"name the column to learn (--columns completion={column})"
    is_list = re.search(r"\.\d+\b", column) is not None
    if is_list:
        learnt = f"name what to learn, such as the first of several (--columns completion={column})"
    verdicts = [name for name in row if _VERDICT.search(name) and name not in answers]
    pair = "those of a better and a worse answer (--columns chosen=MY_COLUMN,rejected=OTHER_COLUMN)"
    sides = name_sides(row)
    if sides:
        pair = f"those of a better and a worse answer ({_as_options(sides)})"
    elif verdicts and (is_list or len(answers) > 1):
        pair = f"write a better one as chosen and a worse one as rejected, by {verdicts[0]!r}"
    cure = f"{learnt}, or {pair}, or take the prompts alone (--kind rlvr)"
    raise refusal("data_columns", message, place, cure)


def _refuse_transcript(row: Mapping[str, object], others: list[str]) -> None:
    """Refuse a prompt that is a conversation in one text; `others` are columns that may not answer it.

    Raises RowError: data_row.
    """
    prompt = column_of_question(row)
    text = row.get(prompt)
    if others and isinstance(text, str) and find_mark(text) and not is_transcript(text):
        message = f"{prompt} is a conversation in one text (it has {find_mark(text)!r})"
        raise RowError(message, "split it into a list of messages, with its answers")


def write_options(problem: Finding) -> Finding:
    """Return the problem with a cure that has the options of `launch new` instead of overrides, such
    as `--columns prompt=q,completion=a`.
    """
    if problem.cure is None:
        return problem
    cure = _as_options(str(problem.cure))
    cure = cure.replace("data.format=text", "--text").replace("data.format=", "--format ")
    cure = cure.replace("recipe.verifier=", "--verifier ")
    return replace(problem, cure=Fix(cure))


def _as_options(text: str) -> str:
    overrides = r"data\.columns\.\S+(?: data\.columns\.\S+)*"
    return re.sub(overrides, _as_option, text)


def _as_option(overrides: re.Match[str]) -> str:
    columns = [text.removeprefix("data.columns.") for text in overrides[0].split()]
    return f"--columns {','.join(columns)}"
