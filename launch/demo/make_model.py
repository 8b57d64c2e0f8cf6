"""Build the demo's model: a byte-level BPE tokenizer trained on chats, and a seeded two-layer Llama.

Run by path with the trainer's interpreter, which need not have `launch` installed:

    PYTHON make_model.py --chats FOLDER/train.jsonl --out FOLDER [--seed N]

Prints one JSON object: parameters, vocabulary size, versions. If torch, transformers or tokenizers is missing, prints
its name on stderr and exits with code 3. The same versions produce the same bytes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

EXIT_MISSING_PACKAGE = 3

VOCABULARY = 2048
HIDDEN = 128
LAYERS = 2
HEADS = 4
CONTEXT = 2048  # tokens; far above the longest chat, so that packed rows fit

BOS, EOS, PAD = "<|begin|>", "<|end|>", "<|pad|>"  # pad is not eos: trainers mask pad, and eos must be learned

CHAT_TEMPLATE = Path(__file__).parents[1] / "templates" / "tulu.jinja"


def read_text(chats: Path) -> list[str]:
    """Return one string per message, with the role line that the chat template puts above it."""
    rows = (json.loads(line) for line in chats.read_text(encoding="utf-8").splitlines())
    return [f"<|{message['role']}|>\n{message['content']}\n" for row in rows for message in row["messages"]]


def make_tokenizer(texts: list[str]) -> Any:
    """Train a transformers fast tokenizer of exactly VOCABULARY tokens (fewer if the text is too small)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE.read_text(encoding="utf-8"),
    )


def make_model(tokenizer: Any, seed: int) -> Any:
    """Create a float32 Llama with random weights drawn from `seed` and the tokenizer's vocabulary."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=HIDDEN,
            intermediate_size=4 * HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS // 2,
            max_position_embeddings=CONTEXT,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=False,
        )
    )


def build(chats: Path, out: Path, seed: int) -> dict[str, Any]:
    """Write model and tokenizer into `out`; return what `main` prints."""
    modules = [importlib.import_module(name) for name in ("torch", "transformers", "tokenizers")]
    tokenizer = make_tokenizer(read_text(chats))
    model = make_model(tokenizer, seed)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(out)
    model.save_pretrained(out, safe_serialization=True)
    return {
        "schema_version": 1,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "vocabulary": len(tokenizer),
        "versions": {module.__name__: module.__version__ for module in modules},
    }


def main(argv: list[str] | None = None) -> int:
    """Build the model from the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Build the demo's tokenizer and its two-layer Llama.")
    parser.add_argument("--chats", type=Path, required=True, help="train.jsonl with a `messages` column")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model and its tokenizer")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing comes from the Hub, so nothing may wait for it
    try:
        facts = build(options.chats, options.out, options.seed)
    except ModuleNotFoundError as error:
        print(error.name, file=sys.stderr)
        return EXIT_MISSING_PACKAGE
    print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    # Run by path, Python puts this folder first on sys.path; modules beside this one must not shadow packages.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
    sys.exit(main())
