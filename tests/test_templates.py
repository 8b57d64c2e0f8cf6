"""The templates of launch/templates: open-instruct's text, TRL's files, and marks that end where an answer does."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import jinja2
import pytest

from launch import resources
from tests.chat_tokenizer import make_tokenizer

FOLDER = resources.ROOT / "launch" / "templates"
FILES = {path.stem: path for path in sorted(FOLDER.rglob("*.jinja"))}
WITHOUT_TEXT = ("idefics3", "llava_next", "smolvlm")
CHATS = {
    "one turn": [("user", "a"), ("assistant", "b")],
    "two turns": [("system", "s"), ("user", "a\n"), ("assistant", " b"), ("user", "c"), ("assistant", "d")],
    "asked": [("user", "a")],
}
ANSWERS = ("It is one.", "It is two.")


def render(source: str, chat: list[tuple[str, str]], prompt: bool) -> str:
    messages = [{"role": role, "content": content} for role, content in chat]
    rendered = jinja2.Template(source).render(messages=messages, eos_token="</s>", add_generation_prompt=prompt)
    assert isinstance(rendered, str)
    return rendered


@pytest.fixture
def upstream() -> dict[str, str]:
    root = Path(os.environ.get("OPEN_INSTRUCT_DIR") or resources.ROOT / "external" / "open-instruct")
    file = root / "open_instruct" / "dataset_transformation.py"
    if not file.is_file():
        pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR or fetch the submodule")
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "CHAT_TEMPLATES":
            return dict(ast.literal_eval(node.value))
    raise AssertionError("open-instruct has no CHAT_TEMPLATES any more")


@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", ["tulu", "zephyr"])
def test_a_name_of_open_instruct_has_its_text(name: str, chat: str, prompt: bool, upstream: dict[str, str]) -> None:
    ours = re.sub(r"\{%- (end)?generation -%\}", "{#- -#}", FILES[name].read_text(encoding="utf-8"))
    assert render(ours, CHATS[chat], prompt) == render(upstream[name], CHATS[chat], prompt)


def test_trls_files_are_those_of_the_installed_package() -> None:
    chat_template_utils = pytest.importorskip("trl.chat_template_utils")
    theirs = {path.name: path.read_bytes() for path in chat_template_utils._CHAT_TEMPLATES_DIR.glob("*.jinja")}
    ours = {path.name: path.read_bytes() for path in (FOLDER / "trl").glob("*.jinja")}
    assert ours == {name: text for name, text in theirs.items() if not name.startswith(WITHOUT_TEXT)}
    assert "TRL 1.16.0" in (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", WITHOUT_TEXT)
def test_a_template_that_is_left_out_renders_no_text(name: str) -> None:
    chat_template_utils = pytest.importorskip("trl.chat_template_utils")
    text = (chat_template_utils._CHAT_TEMPLATES_DIR / f"{name}.jinja").read_text(encoding="utf-8")
    chat = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": ANSWERS[0]}]
    try:
        assert ANSWERS[0] not in make_tokenizer(text).apply_chat_template(chat, tokenize=False)
    except jinja2.UndefinedError:
        return  # it wants parts of images and texts


@pytest.mark.parametrize("name", FILES)
def test_a_template_renders_the_turns_and_marks_the_answers_to_their_end(name: str) -> None:
    pytest.importorskip("transformers")
    text = FILES[name].read_text(encoding="utf-8")
    tokenizer, marks = make_tokenizer(text), re.search(r"\{%-?\s*generation\s*-?%\}", text) is not None
    turns = [("user", "One?"), ("assistant", ANSWERS[0]), ("user", "Two?"), ("assistant", ANSWERS[1])]
    chat = [{"role": role, "content": content} for role, content in turns]
    rendered = tokenizer.apply_chat_template(chat, tokenize=False)
    places = [rendered.index(content) for _, content in turns]
    assert places == sorted(places)
    assert tokenizer.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)
    # TRL has a form with marks of all but these (trl/chat_template_utils.py, get_training_chat_template)
    has_none = name.startswith(("gemma4", "llama3_1", "llama3_2"))
    assert (marks or f"{name}_training" in FILES) is not has_none
    if not marks:
        return
    encoded = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
    runs: list[list[int]] = [[]]
    for token, is_answer in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True):
        if is_answer:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    added = set(tokenizer.get_added_vocab().values())
    marked = [run for run in runs if run]
    for run, answer in zip(marked, ANSWERS, strict=True):
        decoded = tokenizer.decode(run)
        assert answer in decoded and "?" not in decoded
        end = tokenizer.decode(run).index(answer) + len(answer)
        assert any(token in added for token in run[len(tokenizer(decoded[:end])["input_ids"]) :])
