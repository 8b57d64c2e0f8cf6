"""Recognises the names of secrets: `hub_token`, `WANDB_API_KEY`, but not `pad_token`, `max_tokens`
or `monkey`.
"""

from __future__ import annotations

import itertools
import re
from functools import lru_cache


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_ALWAYS = _word_set(
    "secret secrets password passwords passwd passphrase credential credentials apikey apikeys "
    "privatekey secretkey "
    "accesskey authtoken accesstoken hftoken apitoken authorization"
)
_PLACES = _word_set(
    "path file dir folder name length len count type limit size ttl timeout expiry expires"
)
_TRAILERS = _word_set("value string str raw plain base64 env")
# a token of text, not of access
_TEXT_TOKEN = _word_set(
    "pad eos bos unk mask cls sep special image audio video per next start end stop first last "
    "begin boi eoi eot "
    "eom think prompt response completion decoder new bad content additional chat fim delimiter "
    "separator newline "
    "sub prev previous current single extra unexpected invalid missing"
)
_ACCESS = _word_set(
    "api auth access hf hub huggingface github gitlab wandb bearer refresh session oauth"
)
_KEY_OF = _word_set(
    "api private access secret auth signing encryption ssh account master service deploy session "
    "storage shared "
    "subscription wandb openai anthropic gemini cohere comet neptune hf hub azure aws gcp client "
    "admin tsig"
)


@lru_cache(maxsize=8192)
def name_strength(name: str) -> int:
    """Return 2 for the name of a secret, 1 if it may be one (an upper-case `..._KEY`), else 0."""
    words = [word.lower() for word in _WORDS.findall(name)]
    while words and (words[-1].isdigit() or words[-1] in _TRAILERS):
        words.pop()
    if not words:
        return 0
    if any(
        second in ("key", "keys") and first in _KEY_OF
        for first, second in itertools.pairwise(words)
    ):
        return 0 if words[-1] in _PLACES else 2
    if any(word in _ALWAYS for word in words):
        return 0 if words[-1] in _PLACES else 2
    before = words[-2] if len(words) > 1 else ""
    if words[-1] == "token" and before not in _TEXT_TOKEN:
        return 2
    if words[-1] == "tokens" and before in _ACCESS:
        return 2
    return 1 if words[-1] == "key" and name.isupper() and len(words) > 1 else 0


def is_sensitive_name(name: str) -> bool:
    """Whether a variable, flag or config key of this name holds a secret.

    >>> is_sensitive_name("HF_TOKEN"), is_sensitive_name("pad_token"),
    is_sensitive_name("max_tokens") (True, False, False)
    """
    return name_strength(name) > 0
