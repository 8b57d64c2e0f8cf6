"""Chat templates: this project's render what open-instruct's do, TRL's are its files, and marks
enclose the answers.
"""

from __future__ import annotations

import ast
import os
import random
import re
import sys
from functools import cache
from pathlib import Path

import jinja2
import pytest

from launch import resources
from launch.digests import digest_text
from launch.host.interpreter import package_folders
from launch.upstream.pin.lock import load_lock
from launch.upstream.trl_templates import load_templates
from launch.worker.json_codec import to_json
from maintain.relock import describe_templates
from tests.chat_tokenizer import make_tokenizer
from tests.trl_texts import INSTALLED, OWN, read_texts

FILES = {path.stem: path for path in sorted(OWN.glob("*.jinja"))}
TEXTS = {name: path.read_text(encoding="utf-8") for name, path in FILES.items()} | read_texts()
CHATS = {
    "one turn": [("user", "a"), ("assistant", "b")],
    "two turns": [
        ("system", "s"),
        ("user", "a\n"),
        ("assistant", " b"),
        ("user", "c"),
        ("assistant", "d"),
    ],
    "asked": [("user", "a")],
    "nothing": [],
    "two answers": [("assistant", "a"), ("assistant", "b")],
    "other roles": [("user", "a"), ("tool", "1"), ("assistant", "b"), ("environment", "2")],
    "ends with another role": [("assistant", "a"), ("tool", "1")],
}
ANSWERS = ("It is one.", "It is two.")


@cache
def compiled(source: str, environment: jinja2.Environment) -> jinja2.Template:
    return environment.from_string(source)


def render(
    source: str, chat: list[tuple[str, str]], prompt: bool, environment: jinja2.Environment
) -> str:
    messages = [{"role": role, "content": content} for role, content in chat]
    template = compiled(source, environment)
    return template.render(messages=messages, eos_token="</s>", add_generation_prompt=prompt)


def without_marks(name: str) -> str:
    """A template of this project as a renderer without marks has it."""
    text, marks = re.subn(
        r"\{%- (end)?generation -%\}", "{#- -#}", FILES[name].read_text(encoding="utf-8")
    )
    assert marks == 2
    return text


@pytest.fixture(scope="module")
def upstream() -> dict[str, str]:
    root = Path(
        os.environ.get("OPEN_INSTRUCT_DIR") or resources.ROOT / "external" / "open-instruct"
    )
    file = root / "open_instruct" / "dataset_transformation.py"
    if not file.is_file():
        pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR or fetch the submodule")
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "CHAT_TEMPLATES":
            return dict(ast.literal_eval(node.value))
    raise AssertionError("open-instruct has no CHAT_TEMPLATES any more")


# as jinja2 has it, and as transformers sets it
ENVIRONMENTS = {
    "plain": jinja2.Environment(),
    "trimmed": jinja2.Environment(trim_blocks=True, lstrip_blocks=True),
}


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", ["tulu", "zephyr"])
def test_a_name_of_open_instruct_has_its_text(
    name: str, chat: str, prompt: bool, environment: str, upstream: dict[str, str]
) -> None:
    ours, theirs = without_marks(name), upstream[name]
    jinja = ENVIRONMENTS[environment]
    assert render(ours, CHATS[chat], prompt, jinja) == render(theirs, CHATS[chat], prompt, jinja)


@pytest.mark.parametrize("name", ["tulu", "zephyr"])
def test_random_conversations_have_the_text_of_open_instruct(
    name: str, upstream: dict[str, str]
) -> None:
    draw, ours = random.Random(name), without_marks(name)
    roles = ("system", "user", "assistant", "assistant", "user", "tool", "function")
    pieces = (
        "",
        " ",
        "\n",
        "x",
        "{{ y }}",
        "{% if %}",
        "<|user|>",
        "</s>",
        "é漢",
        "a\n\n",
        "  b  ",
        "\t",
        "'\"\\n",
    )
    seen = set()
    for _ in range(2000):
        turns = [draw.choice(roles) for _ in range(draw.randrange(7))]
        chat = [(role, "".join(draw.choices(pieces, k=draw.randrange(5)))) for role in turns]
        prompt = draw.random() < 0.5
        rendered = render(ours, chat, prompt, ENVIRONMENTS["trimmed"])
        assert rendered == render(upstream[name], chat, prompt, ENVIRONMENTS["trimmed"]), (
            chat,
            prompt,
        )
        seen.add(rendered)
    assert len(seen) > 1000


def test_chatml_is_its_format() -> None:
    rendered = render(without_marks("chatml"), CHATS["two turns"][:3], True, ENVIRONMENTS["plain"])
    turns = ("system\ns", "user\na\n", "assistant\n b")
    assert (
        rendered
        == "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns) + "<|im_start|>assistant\n"
    )


@pytest.mark.skipif(INSTALLED is None, reason="TRL is not installed")
def test_the_lock_has_the_digests_of_the_locked_version() -> None:
    locked = load_templates()
    assert locked.trl == load_lock().packages["trl"]
    described = describe_templates(package_folders(sys.executable), locked.trl)
    names = ("trl", "marked", "left_out", "digests")
    assert to_json(described) == to_json({name: getattr(locked, name) for name in names})
    assert {name: digest_text(text) for name, text in read_texts().items()} == locked.digests
    assert len(locked.digests) == 66


@pytest.mark.skipif(INSTALLED is None, reason="TRL is not installed")
def test_a_template_that_is_left_out_renders_no_text() -> None:
    assert INSTALLED is not None
    left_out = [
        file
        for file in sorted(INSTALLED.glob("*.jinja"))
        if file.stem not in load_templates().digests
    ]
    assert {file.stem.removesuffix("_training") for file in left_out} == set(
        load_templates().left_out
    )
    chat = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": ANSWERS[0]}]
    for file in left_out:
        try:
            tokenizer = make_tokenizer(file.read_text(encoding="utf-8"))
            assert ANSWERS[0] not in tokenizer.apply_chat_template(chat, tokenize=False)
        except jinja2.UndefinedError:
            continue  # it wants parts of images and texts


@pytest.mark.parametrize("name", TEXTS)
def test_a_template_renders_the_turns_and_marks_the_answers_to_their_end(name: str) -> None:
    pytest.importorskip("transformers")
    text = TEXTS[name]
    tokenizer, marks = (
        make_tokenizer(text),
        re.search(r"\{%-?\s*generation\s*-?%\}", text) is not None,
    )
    turns = [
        ("user", "One?"),
        ("assistant", ANSWERS[0]),
        ("user", "Two?"),
        ("assistant", ANSWERS[1]),
    ]
    chat = [{"role": role, "content": content} for role, content in turns]
    rendered = tokenizer.apply_chat_template(chat, tokenize=False)
    places = [rendered.index(content) for _, content in turns]
    assert places == sorted(places)
    assert tokenizer.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)
    # TRL has a form with marks of all but these (trl/chat_template_utils.py,
    # get_training_chat_template)
    has_none = name.startswith(("gemma4", "llama3_1", "llama3_2"))
    assert (marks or f"{name}_training" in TEXTS) is not has_none
    if not marks:
        return
    encoded = tokenizer.apply_chat_template(
        chat, return_dict=True, return_assistant_tokens_mask=True
    )
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
