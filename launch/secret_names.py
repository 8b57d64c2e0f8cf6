"""Recognises the names of secrets: `hub_token`, `WANDB_API_KEY`, but not `pad_token`, `max_tokens`
or `monkey`; and values that look random, which a doubtful name needs (`SORT_KEY`, `auth`).
"""

from __future__ import annotations

import base64
import itertools
import re
from functools import lru_cache


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_ALWAYS = _word_set(
    "secret secrets password passwords passwd passphrase credential credentials apikey apikeys "
    "privatekey secretkey accesskey authtoken accesstoken hftoken apitoken authorization "
    "jwt dsn cred creds bearer webhook passcode authkey"
)
# words that follow another one without a break: PGPASSWORD, identitytoken
_ENDINGS = ("password", "passwd", "passphrase", "secretkey", "apikey", "storepass", "keypass")
_PLACES = _word_set(
    "path file dir folder name length len count type limit size ttl timeout expiry expires line job"
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
    "api auth access hf hub huggingface github gitlab wandb bearer refresh session oauth identity "
    "csrf xsrf bot user personal security"
)
_KEY_OF = _word_set(
    "api private access secret auth signing encryption ssh account master service deploy session "
    "storage shared "
    "subscription wandb openai anthropic gemini cohere comet neptune hf hub azure aws gcp client "
    "admin tsig"
)
# a pass over data, not a password
_COMPUTED_PASS = _word_set(
    "forward backward first second third one two single multi last next per each full extra test"
)
_NOT_A_PASSWORD = _word_set("bypass compass surpass overpass underpass trespass oldpwd")
_SERVERS = _word_set(
    "database db redis mongo mongodb postgres postgresql mysql mariadb amqp broker rabbitmq celery"
)
_LOGINS = _word_set("ssh db user admin root smtp mail ftp proxy ldap http sudo become login")
_DOUBTFUL = _word_set("auth pass pwd sig signature session sessionid sid salt cookie nonce")
_IN_A_QUERY = _word_set("sig signature key auth code pass pwd session sid hash jwt hmac")
# Names of texts, identifiers and digests, too
_VAGUE = _word_set("key keys token tokens")
_PLAIN = _word_set("none null true false str bool int <set> any optional[str]")


@lru_cache(maxsize=8192)
def name_strength(name: str) -> int:
    """Return 2 for the name of a secret, 1 if its value has to look random, else 0.

    Doubtful are an upper-case `..._KEY`, and words such as `auth`, `pass` and `sig`.
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    if _is_connection(words):
        return 2
    while words and (words[-1].isdigit() or words[-1] in _TRAILERS):
        words.pop()
    if not words:
        return 0
    if _says_key(words) or any(word in _ALWAYS or word.endswith(_ENDINGS) for word in words):
        return 0 if words[-1] in _PLACES else 2
    return _last_word_strength(name, words[-1], words[-2] if len(words) > 1 else "")


def _says_key(words: list[str]) -> bool:
    return any(
        second in ("key", "keys", "salt", "cookie") and first in _KEY_OF
        for first, second in itertools.pairwise(words)
    )


def _last_word_strength(name: str, last: str, before: str) -> int:
    """Return the strength of a name by its last word and the one before."""
    is_upper = name.strip("-").isupper()
    is_token = (
        (last == "token" and before not in _TEXT_TOKEN)
        or (last.endswith("token") and last.removesuffix("token") in _ACCESS)
        or (last == "tokens" and before in _ACCESS)
    )
    if is_token or (last in ("auth", "pat") and is_upper and before):
        return 2
    if last.endswith(("pass", "pwd")) and (is_upper or name == "Pwd" or name.startswith("--")):
        return _password_strength(name, last, before)
    if last == "pass" and before in _LOGINS:
        return 2
    if last in _DOUBTFUL or last.endswith("signature"):
        is_harmless = name.lower() == "pwd" or before in _COMPUTED_PASS
        return 0 if is_harmless else 1
    return 1 if last == "key" and name.isupper() and before else 0


def _is_connection(words: list[str]) -> bool:
    """Whether it is the name of an address with a password: DATABASE_URL, CONNECTION_STRING."""
    if len(words) < 2:
        return False
    before, last = words[-2:]
    is_text = before in ("connection", "conn") and last in ("string", "str")
    return is_text or (last in ("url", "uri") and before in _SERVERS)


def _password_strength(name: str, last: str, before: str) -> int:
    """Return the strength of a name that ends in PASS or PWD: DB_PASS, SSHPASS, --pass, Pwd."""
    if last in _NOT_A_PASSWORD or before in _COMPUTED_PASS or name in ("PWD", "OLD_PWD"):
        return 0
    return 1 if name in ("PASS", "--pwd") else 2  # apptainer --pwd is a folder


def is_sensitive_name(name: str) -> bool:
    """Whether a variable, flag or config key of this name may hold a secret.

    >>> is_sensitive_name("HF_TOKEN"), is_sensitive_name("pad_token"),
    is_sensitive_name("max_tokens") (True, False, False)
    """
    return name_strength(name) > 0


def is_secret(name: str, value: str, *, in_query: bool = False) -> bool:
    """Whether `value` is a secret in a place that is called `name`.

    `in_query`: it is a parameter of a URL, where a signature has the name `sig` or `key`.
    """
    if not value or value.lower() in _PLAIN:
        return False
    strength = name_strength(name)
    if in_query and strength == 0:
        words = _WORDS.findall(name)
        strength = 1 if words and words[-1].lower() in _IN_A_QUERY else 0
    if strength == 0 and is_vague(name):
        return looks_drawn(value)
    return strength == 2 or (strength == 1 and looks_random(value))


def is_vague(name: str) -> bool:
    """Whether the name is that of a text, an identifier or a digest as often as of a secret.

    `key`, `keys` and `tokens` by themselves: only what is certainly drawn is a secret there.
    """
    return name.lower().strip("-") in _VAGUE


def looks_drawn(value: str) -> bool:
    """Whether a program drew the value from small letters, capitals and digits.

    So it is none of a digest, a run's id, a piece of text and the name of a model.
    """
    kinds = {_kind_of(char) for char in value if char.isalnum()}
    return len(value) >= 16 and len(kinds) == 3 and looks_random(value)


def looks_random(value: str) -> bool:
    """Whether a value without spaces looks like one that a program drew, or base64 of user:password.

    Small letters, capitals and digits alternate more than in words, names and versions.
    """
    if len(value) < 8 or not re.fullmatch(r"[\x21-\x7e]+", value) or value[0] in "/.~$<{[(":
        return False
    if is_basic_credential(value):
        return True
    # what stands between breaks is looked at alone: a name is made of short words
    text = max(re.split(r"[^A-Za-z0-9+/=]", value), key=len).replace("/", "").replace("+", "")
    if len(text) < 8 or re.fullmatch(r"[A-Z]*\d*(?:[A-Z][a-z]+\d*)+[A-Z]*[a-z]*", text):
        return False
    if re.fullmatch(r"[0-9a-f]{32,}|[0-9A-F]{32,}", text):
        return True
    kinds = [_kind_of(char) for char in text]
    changes = sum(
        first != second and (first, second) != ("A", "a")  # a word may begin with a capital
        for first, second in itertools.pairwise(kinds)
    )
    if "0" in kinds:
        return changes >= max(3, len(text) // 8)
    return len(text) >= 20 and len(set(kinds)) == 2 and changes >= len(text) // 5


def _kind_of(char: str) -> str:
    """Return `0` for a digit, `A` for a capital, `a` for any other character."""
    if char.isdigit():
        return "0"
    return "A" if char.isupper() else "a"


def is_basic_credential(value: str | bytes) -> bool:
    """Whether the value is base64 of a user and a password, as after `Basic` and in Docker's file."""
    try:
        text = base64.b64decode(value, validate=True).decode()
    except ValueError:
        return False
    user, _, password = text.removeprefix("\0").replace("\0", ":").partition(":")  # \0 in SMTP
    return bool(user and password) and text.replace("\0", "").isprintable()
