"""Inputs for measurements on a machine without a network: a Llama of a real shape with random
weights, and its data.

    python benchmarks/make_inputs.py FOLDER [--shapes 1b 8b olmo2_1b olmo3_7b] [--rows 2400]

FOLDER/1b, FOLDER/8b, FOLDER/olmo2_1b and FOLDER/olmo3_7b are checkpoints (bf16; Llama 3.2 1B, Llama
3.1 8B, OLMo 2 1B, Olmo 3 7B) with a tokenizer; FOLDER/sft.jsonl has chats of log-normal lengths
(median about 400 tokens, mean about 620, the longest near 3,000), FOLDER/pref.jsonl half as many
preference pairs. Seeded: the same versions give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import random
import string
from pathlib import Path
from typing import Any

# the checkpoints' config.json
SHAPES: dict[str, dict[str, Any]] = {
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "tie_word_embeddings": True,
    },
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "tie_word_embeddings": False,
    },
    "olmo2_1b": {  # preset olmo2_1B_v2 of OLMo-core
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "tie_word_embeddings": False,
        "vocab_size": 100352,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
    },
    "olmo3_7b": {  # preset olmo3_7B of OLMo-core
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "tie_word_embeddings": False,
        "vocab_size": 100278,
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "max_position_embeddings": 65536,
    },
}
EPSILONS = {"olmo2": 1e-6, "olmo3": 1e-6}  # of the norms, where it is not the model type's default
KINDS = {"olmo2": "olmo2", "olmo3": "olmo3"}  # model types, by the beginning of a shape's name
SHARED = {
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
WORDS = 3000
MEDIAN_LOG, SPREAD_LOG, MOST = 5.7, 1.0, 2200  # of an answer's length in words


def make_words(draw: random.Random) -> list[str]:
    return [
        "".join(draw.choices(string.ascii_lowercase, k=draw.randint(2, 9))) for _ in range(WORDS)
    ]


def make_chats(draw: random.Random, words: list[str], rows: int) -> list[tuple[str, str]]:
    """Question and answer of each row."""
    lengths = (
        int(min(MOST, max(8, draw.lognormvariate(MEDIAN_LOG, SPREAD_LOG)))) for _ in range(rows)
    )
    return [
        (" ".join(draw.choices(words, k=n // 3 + 1)), " ".join(draw.choices(words, k=n)))
        for n in lengths
    ]


def write_data(folder: Path, draw: random.Random, chats: list[tuple[str, str]]) -> None:
    with (folder / "sft.jsonl").open("w") as sft, (folder / "pref.jsonl").open("w") as pref:
        for number, (question, answer) in enumerate(chats):
            asked, chosen = (
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            )
            sft.write(json.dumps({"messages": [asked, chosen]}) + "\n")
            if number % 2 == 0:
                shuffled = " ".join(draw.sample(answer.split(), k=len(answer.split())))
                rejected = {"role": "assistant", "content": shuffled}
                pref.write(
                    json.dumps({"chosen": [asked, chosen], "rejected": [asked, rejected]}) + "\n"
                )


def make_tokenizer(words: list[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "<|pad|>", "bos_token": "<|begin|>", "eos_token": "<|end|>"}
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=8000,
        special_tokens=list(special.values()),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    bpe.train_from_iterator([" ".join(words)] * 2, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, **special)


def write_model(folder: Path, shape: str, tokenizer: Any) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    ids = {
        name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")
    }
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        kind = KINDS.get(shape[:5], "llama")
        sizes = {**SHARED, **SHAPES[shape], **ids, "rope_theta": 500000.0}
        if kind in EPSILONS:
            sizes["rms_norm_eps"] = EPSILONS[kind]
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes))
    model.save_pretrained(folder / shape)
    tokenizer.save_pretrained(folder / shape)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rows", type=int, default=2400)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    words = make_words(draw)
    write_data(arguments.folder, draw, make_chats(draw, words, arguments.rows))
    tokenizer = make_tokenizer(words)
    for shape in arguments.shapes:
        write_model(arguments.folder, shape, tokenizer)


if __name__ == "__main__":
    main()
