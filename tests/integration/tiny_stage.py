"""A model and data small enough to train in seconds: random weights, a byte-level tokenizer, sums
as chats.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

ROWS = 64
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
ANSWER = (
    "{{ '<|assistant|>' }}{% generation %}{{ (message['content'] or '') + eos_token }}{% "
    "endgeneration %}"
)
OTHER = "{{ '<|' + message['role'] + '|>' + (message['content'] or '') }}"


# The definitions of functions are in a system turn, the calls in an answer, as Dolci's rows have them.
FUNCTIONS_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] or '' }}"
    "{% if message.get('functions') %} can call {{ message['functions'] }}{% endif %}"
    "{% if message.get('function_calls') %}<call>{{ message['function_calls'] }}</call>{% endif %}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def marked_template(answer: str = ANSWER, other: str = OTHER) -> str:
    """A chat template with marks, of which a variant replaces the part of an answer or that of
    another turn.
    """
    turn = f"{{% if message['role'] == 'assistant' %}}{answer}{{% else %}}{other}{{% endif %}}"
    return f"{{% for message in messages %}}{turn}{{% endfor %}}"


@dataclass(frozen=True)
class TinyStage:
    """Where things are: a model folder with its tokenizer, and jsonl files of ROWS rows, alone in
    their folders.
    """

    model: Path
    chats: Path
    preferences: Path


def _chat(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def make_data(folder: Path) -> tuple[Path, Path]:
    """Writes chats and preference pairs; needs the standard library only."""
    draw = random.Random(0)
    sums = [(draw.randrange(100), draw.randrange(100)) for _ in range(ROWS)]
    chats = [
        {"messages": _chat(f"What is {a} plus {b}?", f"{a} + {b} = {a + b}.")} for a, b in sums
    ]
    pairs = [
        {
            "chosen": _chat(f"What is {a} plus {b}?", f"{a} + {b} = {a + b}."),
            "rejected": _chat(f"What is {a} plus {b}?", "I would rather not say."),
        }
        for a, b in sums
    ]
    return _write(folder / "chats" / "train.jsonl", chats), _write(
        folder / "preferences" / "train.jsonl", pairs
    )


_ADD = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}


def make_function_rows(folder: Path) -> tuple[Path, Path]:
    """Write chats, and half as many preference pairs, in the shape of Dolci's rows: every second one
    calls a function, the others think before they answer.
    """
    draw = random.Random(1)
    chats: list[dict[str, object]] = []
    pairs: list[dict[str, object]] = []
    for number in range(ROWS):
        a, b = draw.randrange(100), draw.randrange(100)
        question = {"role": "user", "content": f"What is {a} plus {b}?"}
        thought = f"<think>{a} and {b} give {a + b}.</think> {a + b}."
        good = [question, {"role": "assistant", "content": thought}]
        if number % 2:
            good = [
                {"role": "system", "content": "You add.", "functions": json.dumps([_ADD])},
                question,
                {"role": "assistant", "content": "", "function_calls": f"add(a={a}, b={b})"},
                {"role": "environment", "content": str(a + b)},
                {"role": "assistant", "content": f"It is {a + b}."},
            ]
        bad = [*good[:-1], {"role": "assistant", "content": "I would rather not say."}]
        chats.append({"id": f"row-{number}", "messages": good, "source_dataset": "sums"})
        pairs.append({"id": f"row-{number}", "chosen": good, "rejected": bad})
    return (
        _write(folder / "chats" / "train.jsonl", chats),
        _write(folder / "pairs" / "train.jsonl", pairs[: ROWS // 2]),
    )


def make(folder: Path) -> TinyStage:
    """Makes the model (2-layer Llama, hidden 64, seeded), its tokenizer, and the data below
    `folder`.
    """
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    chats, preferences = make_data(folder)
    bpe = ByteLevelBPETokenizer()
    bpe.train(
        [str(chats), str(preferences)],
        vocab_size=400,
        special_tokens=["<|pad|>", "<|bos|>", "<|eos|>"],
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer,
        pad_token="<|pad|>",
        bos_token="<|bos|>",
        eos_token="<|eos|>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=256,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    target = folder / "model"
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return TinyStage(target, chats, preferences)
