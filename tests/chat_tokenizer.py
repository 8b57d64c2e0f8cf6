"""A byte-level tokenizer with the special tokens of a chat template, as a model of its family has
them.
"""

from __future__ import annotations

import re
from typing import Any

# <|im_end|>, <start_of_turn>, <think>, </s>, and DeepSeek's full-width bars
_SPECIAL = re.compile(r"<[|｜/]?[\w▁]+(?:[|｜]>|>)|<\|[^|<>]+\|>")


def make_tokenizer(template: str) -> Any:
    """Return a tokenizer with the template; needs transformers."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_ = Tokenizer(
        models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[])
    )
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_.decoder = decoders.ByteLevel()
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_, model_max_length=4096, **names)
    tokenizer.add_special_tokens(
        {"additional_special_tokens": sorted(set(_SPECIAL.findall(template)))}
    )
    tokenizer.chat_template = template
    return tokenizer
