"""The text of the last answer against the tokens that carry loss: with every chat template of TRL,
of the pin and of this project, and with templates that drop, cut or replace it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("transformers", reason="the `train` dependencies are not installed")

from launch.worker.answers import find_changed_answer, find_dropped_fields
from tests.chat_tokenizer import make_tokenizer
from tests.trl_texts import INSTALLED, OWN
from tests.upstream.checkouts import checkout, import_transformations

Chat = list[dict[str, Any]]


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def answer(content: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


SYSTEM = {"role": "system", "content": "Answer briefly, please."}
SKY = user("Is the sky blue?")
THOUGHT = "The sky is seen by day."
CALL = {"type": "function", "function": {"name": "search", "arguments": {"query": "the sky"}}}
PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
FUNCTION = {"name": "search", "description": "Searches.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
RESULT = {"role": "tool", "name": "search", "content": '{"colour": "blue"}'}
CHATS: dict[str, Chat] = {
    "a question": [SKY, answer("Yes, it is.")],
    "turns with equal answers": [
        *(SKY, answer("Yes, it is.")),
        *(user("Is grass blue?"), answer("No.\n\nIt is:\n  green")),
        *(user("And the sea?"), answer("Yes, it is.")),
    ],
    "a system turn": [SYSTEM, SKY, answer("  Yes, it is. \n")],
    "thinking in a field": [SYSTEM, SKY, answer("Yes, it is.", reasoning_content=THOUGHT)],
    "thinking in another field": [SKY, answer("Yes, it is.", thinking=THOUGHT)],
    "thinking in the answer": [SKY, answer(f"<think>\n{THOUGHT}\n</think>\n\nYes, it is.")],
    "thinking in each answer": [
        *(SKY, answer("<think>By day.</think>Yes.")),
        *(user("And grass?"), answer("<think>\nGrass grows.\n</think>\n\nIt is green.")),
    ],
    "a tool": [SKY, answer("", tool_calls=[CALL]), RESULT, answer("Yes, it is.")],
    "a tool, and a text beside its call": [
        SYSTEM,
        *(SKY, answer("Let me look.", tool_calls=[CALL]), RESULT, answer("Yes, it is.")),
    ],
    "a call at the end": [SKY, answer("Let me look.", tool_calls=[CALL])],
    "one letter": [user("a"), answer("s")],
    "code": [user("Write it."), answer("```python\nfor x in y:\n\tprint(x)\n```\n\n- one  \n")],
    "letters of several bytes": [user("Wie?"), answer("Größe: \uff46\ufb01 \U0001f600 e\u0301")],
}
# The answers that are not trained. The pin counts the tokens of a conversation's beginnings, which
# gptoss writes otherwise if the conversation goes on (dataset_transformation.py:1218).
NOT_TRAINED = {("gptoss", "a tool, and a text beside its call", "pin")}


def texts_of_pin() -> dict[str, str]:
    root = checkout()
    if root is None:
        return {}
    source = root / "open_instruct" / "dataset_transformation.py"
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "CHAT_TEMPLATES":
            return dict(ast.literal_eval(node.value))
    raise AssertionError("open-instruct has no CHAT_TEMPLATES any more")


def texts_of_files(folder: Path | None) -> dict[str, str]:
    files = sorted(folder.glob("*.jinja")) if folder else []
    return {file.stem: file.read_text(encoding="utf-8") for file in files}


TEMPLATES = {
    **{f"trl-{name}": text for name, text in texts_of_files(INSTALLED).items()},
    **{f"pin-{name}": text for name, text in texts_of_pin().items()},
    **{f"own-{name}": text for name, text in texts_of_files(OWN).items()},
}


@pytest.fixture(scope="module")
def pin() -> Any:
    """The pin's module that tokenises; None without a checkout."""
    root = checkout()
    return import_transformations(root) if root is not None else None


Labelled = tuple[Sequence[int], Sequence[bool] | None]


def label(tokenizer: Any, chat: Chat, tools: Any, pin: Any) -> Iterator[tuple[str, Labelled]]:
    """Yield the tokens of a chat and which carry loss, as each trainer has them."""
    whole = tokenizer(tokenizer.apply_chat_template(chat, tools=tools, tokenize=False))["input_ids"]
    yield "reward model", (whole, None)
    yield "loss on everything", (whole, [True] * len(whole))
    marked = tokenizer.apply_chat_template(
        chat, tools=tools, return_dict=True, return_assistant_tokens_mask=True
    )
    yield "TRL", (marked["input_ids"], list(map(bool, marked["assistant_masks"])))
    try:  # of a pair, as trl/trainer/dpo_trainer.py has it
        prompt = tokenizer.apply_chat_template(
            chat[:-1], tools=tools, add_generation_prompt=True, return_dict=False
        )
    except Exception:  # whatever a template raises
        return
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(prompt, whole, strict=False))))
    yield "TRL's pairs", (whole, [at >= same for at in range(len(whole))])
    if pin is None:
        return
    for name, last_turn_only in (("pin", False), ("pin's pairs", True)):
        try:
            ids, _, labels = pin._tokenize_tulu_sft_with_assistant_labels(
                chat, tokenizer, tools, None, last_turn_only=last_turn_only
            )
        except pin.AssistantSpanDerivationError:
            continue  # the row is dropped
        carries = [token != pin.MASKED_TOKEN_VALUE for token in labels.flatten().tolist()]
        yield name, (ids.flatten().tolist(), carries)


def with_parts(chat: Chat) -> Chat:
    """Return a chat as templates of vision models read it."""
    return [
        {**turn, "content": [{"type": "text", "text": turn["content"]}] if turn["content"] else []}
        for turn in chat
    ]


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_answer_is_changed_by_a_known_template(name: str, pin: Any) -> None:
    family = name.partition("-")[2].removesuffix("_training")
    compared = 0
    tokenizer = make_tokenizer(TEMPLATES[name])
    reads_parts = family in ("idefics3", "smolvlm", "llava_next")
    for situation, plain in CHATS.items():
        tools = TOOLS if any(turn.get("tool_calls") for turn in plain) else None
        chat = with_parts(plain) if reads_parts else plain
        try:
            rendered = tokenizer.apply_chat_template(chat, tools=tools, tokenize=False)
        except Exception:  # a template that has no tools, or no system turn
            continue
        for trainer, (ids, loss) in label(tokenizer, chat, tools, pin):
            changed = find_changed_answer(tokenizer, chat, rendered, ids, loss)
            is_known = (family, situation, trainer) in NOT_TRAINED
            assert (changed is not None) is is_known, (situation, trainer, changed)
            compared += 1
    assert compared >= 8 * 4


def test_the_templates_of_the_pin_and_its_labels_are_among_them(pin: Any) -> None:
    if pin is None:
        pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR or fetch the submodule")
    assert {f"pin-{name}" for name in pin.CHAT_TEMPLATES} <= TEMPLATES.keys()
    tokenizer = make_tokenizer(TEMPLATES["pin-tulu"])
    labelled = dict(label(tokenizer, CHATS["a question"], None, pin))
    assert {"pin", "pin's pairs"} <= labelled.keys()


def template(said: str = "{{ m.content }}", *, also: str = "") -> str:
    """A template that marks what it makes of an answer, `said`, and its end."""
    return (
        "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}"
        f"{said}<|end|>{{% endgeneration %}}{{% else %}}{{{{ m.content }}}}<|end|>{{% endif %}}{also}"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )


class Fault(NamedTuple):
    name: str
    text: str
    trained: str  # what is trained in place of the answer
    chat: Chat = CHATS["a question"]


TURNS = CHATS["turns with equal answers"]
FAULTS = (
    Fault("dropped", template(""), "<|end|>"),
    Fault("cut", template("{{ m.content[:5] }}"), "Yes, <|end|>"),
    Fault("replaced", template("{{ 'Sure.' }}"), "Sure.<|end|>"),
    Fault("other letters", template("{{ m.content | upper }}"), "YES, IT IS.<|end|>"),
    Fault("without spaces", template("{{ m.content.split() | join }}"), "Yes,itis.<|end|>"),
    Fault(
        "cut in lines",
        template("{{ m.content.split('\\n')[0] }}"),
        "```python<|end|>",
        CHATS["code"],
    ),
    Fault(
        "not marked",
        template().replace("{% generation %}{{ m.content }}", "{{ m.content }}{% generation %}"),
        "<|end|>",
    ),
    Fault(
        "the last, where an earlier one is equal",
        template("{% if not loop.last %}{{ m.content }}{% endif %}"),
        "<|end|>",
        TURNS,
    ),
    Fault(
        "the first of two lines, an answer after a tool",
        template("{{ m.content[-6:] }}"),
        "it is.<|end|>",
        CHATS["a tool"],
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_an_answer_that_a_template_changes_is_shown(fault: Fault) -> None:
    tokenizer = make_tokenizer(f"{fault.text}<|user|><|assistant|><|tool|>")
    tokenizer.chat_template = fault.text
    rendered = tokenizer.apply_chat_template(fault.chat, tokenize=False)
    labelled = dict(label(tokenizer, fault.chat, None, None))
    # the loss of a pair asks for no marks
    for trainer in ("TRL",) if fault.name == "not marked" else ("TRL", "TRL's pairs"):
        changed = find_changed_answer(tokenizer, fault.chat, rendered, *labelled[trainer])
        assert changed == [fault.chat[-1]["content"].strip(), fault.trained], trainer


def test_an_answer_without_loss_has_a_finding_of_its_own() -> None:
    tokenizer = make_tokenizer(template())
    rendered = tokenizer.apply_chat_template(CHATS["a question"], tokenize=False)
    ids = tokenizer(rendered)["input_ids"]
    nothing = [False] * len(ids)
    assert find_changed_answer(tokenizer, CHATS["a question"], rendered, ids, nothing) is None


@pytest.mark.parametrize("kind", ["words", "lower case", "sentencepiece"])
def test_what_the_tokenizer_itself_changes_is_no_difference(kind: str) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    chat = [
        user("Wie gro\u00df?"),
        answer("F\uff35LL  size, it\u2026 is: na\u00efve \u4e2d!\n- Two."),
    ]
    text = template()
    rendered = "".join(f"<|{turn['role']}|>{turn['content']}<|end|>" for turn in chat)
    letters = sorted({*rendered, *rendered.lower(), *"FULL...size", "\u2581", "[UNK]", "n", "a"})
    if kind == "words":  # one word is known, and the others are not
        made = Tokenizer(models.WordLevel({"[UNK]": 0, "size": 1, "is": 2}, unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()
    else:
        vocabulary = {letter: number for number, letter in enumerate(letters)}
        made = Tokenizer(models.BPE(vocabulary, [], unk_token="[UNK]"))
        if kind == "lower case":
            made.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase()])
        else:
            made.normalizer = normalizers.NFKC()
            made.pre_tokenizer = pre_tokenizers.Metaspace()
            made.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]")
    marks = ["<|user|>", "<|assistant|>", "<|end|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    for said, is_changed in (("{{ m.content }}", False), ("", True)):
        tokenizer.chat_template = text.replace(
            "{{ m.content }}<|end|>{% endg", f"{said}<|end|>{{% endg"
        )
        rendered = tokenizer.apply_chat_template(chat, tokenize=False)
        for trainer, (ids, loss) in label(tokenizer, chat, None, None):
            changed = find_changed_answer(tokenizer, chat, rendered, ids, loss)
            assert (changed is not None) is is_changed, (trainer, changed)


@pytest.mark.parametrize(
    ("messages", "rendered", "names"),
    [
        (CHATS["thinking in a field"], f"{THOUGHT} Yes. Is the sky blue?", []),
        (CHATS["thinking in a field"], "Is the sky blue? Yes.", ["reasoning_content"]),
        (CHATS["thinking in another field"], "Is the sky blue? Yes.", ["thinking"]),
        (CHATS["thinking in the answer"], "Is the sky blue? Yes, it is.", ["thinking"]),
        (CHATS["a tool"], 'Is the sky blue? search {"colour": "blue"}', []),
        (CHATS["a tool"], 'Is the sky blue? search "{\\"colour\\": \\"blue\\"}"', []),
        (CHATS["a question"], "Yes, it is.", ["the user's turn"]),
        (
            [SKY, answer("Yes.", citations=[{"text": "a book"}])],
            SKY["content"],
            ["citations"],
        ),
        ([SKY, answer("Yes.", name="b", weight=1, note=None)], SKY["content"], []),
    ],
)
def test_what_a_template_leaves_out_is_named(
    messages: Chat, rendered: str, names: list[str]
) -> None:
    assert find_dropped_fields(messages, rendered) == names
