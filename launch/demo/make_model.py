"""Build the demo's model: a tokenizer of bytes and of pieces of the demo's questions, and a seeded
two-layer Llama.

Run by path with the trainer's interpreter, which need not have `launch` installed:

    PYTHON make_model.py --out FOLDER [--seed N]

Prints one JSON object: parameters, vocabulary size, versions. If torch, transformers or tokenizers
is missing, prints its name on stderr and exits with code 3. The same versions produce the same
bytes.
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

HIDDEN = 128
LAYERS = 2
HEADS = 4
CONTEXT = 2048  # tokens; far above the longest chat, so that packed rows fit

# pad is not eos: trainers mask pad, and eos must be learned
BOS = "<|begin|>"
EOS = "<|end|>"
PAD = "<|pad|>"

# A token each, so that a question is short. Every other byte is a token of its own, so that any
# text can be written, and a letter has the same token wherever it stands.
PIECES = (
    *(
        # without the line break behind it: the harness of `eval` tokenizes a prompt without the
        # white space at its end
        "<|user|>",
        "<|assistant|>",
        "<|system|>",
        "What is ",
        ", if I am not mistaken.",
        "[::-1]",
        "sorted([",
        ", ",
        "] + [",
    ),
    *(
        ".upper()",
        ".title()",
        ".swapcase()",
        '".split()',
        '".encode().hex()',
        '".count(c) for c in "abc"]',
        "['",
        "', '",
        "']",
    ),
)
VOCABULARY = 3 + 256 + len(PIECES)
CHAT_TEMPLATE = Path(__file__).parents[1] / "templates" / "tulu.jinja"


def make_tokenizer() -> Any:
    """Return a transformers fast tokenizer with a token for each special token, byte and piece."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = [PAD, BOS, EOS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([PAD, BOS, EOS])
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in PIECES])
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
    """Create a float32 Llama with random weights drawn from `seed` and the tokenizer's
    vocabulary.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=HIDDEN,
            intermediate_size=2 * HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            max_position_embeddings=CONTEXT,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=False,
        )
    )


def build(out: Path, seed: int) -> dict[str, Any]:
    """Write model and tokenizer into `out`; return what `main` prints."""
    modules = [importlib.import_module(name) for name in ("torch", "transformers", "tokenizers")]
    tokenizer = make_tokenizer()
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
    parser = argparse.ArgumentParser(
        description="Build the demo's tokenizer and its two-layer Llama."
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the model and its tokenizer"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing comes from the Hub, so nothing may wait for it
    try:
        facts = build(options.out, options.seed)
    except ModuleNotFoundError as error:
        print(error.name, file=sys.stderr)
        return EXIT_MISSING_PACKAGE
    print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    # Run by path, Python puts this folder first on sys.path; modules beside this one must not
    # shadow packages.
    sys.path[:] = [
        entry
        for entry in sys.path
        if Path(entry or ".").resolve() != Path(__file__).resolve().parent
    ]
    sys.exit(main())
