"""Finds what a pickle imports, without unpickling it.

Unpickling calls what a pickle names. A checkpoint of a trainer names classes of its libraries; one
that names anything else is not loaded.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Iterator
from typing import IO

# The modules whose classes and functions trainers write into checkpoints.
_MODULES = re.compile(
    r"torch|torch\.(_tensor|_utils|nn\.parameter|nn\.modules\..*|optim\..*|storage|distributed\..*)"
    r"|torch\.(torch_version|_C|serialization|random)"
    r"|numpy|numpy\.(_?core\..*|dtypes|random\..*)"
    r"|(deepspeed|accelerate|transformers|trl|peft|bitsandbytes|torchao|olmo_core|open_instruct)"
    r"\..*"
    r"|collections|_codecs|copyreg|copy_reg|argparse|pathlib|datetime|enum|_pickle|_random|random"
)
# of `builtins`: types of data, which do nothing when they are called
_BUILTINS = frozenset(
    ("bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list")
) | frozenset(("object", "range", "set", "slice", "str", "tuple"))
_STRINGS = frozenset(
    ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE", "STRING", "BINSTRING")
) | {"SHORT_BINSTRING"}
_GETS = frozenset(("BINGET", "LONG_BINGET", "GET"))
_PUTS = frozenset(("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"))
_EXTENSIONS = frozenset(("EXT1", "EXT2", "EXT4"))
_UNKNOWN = "something that it does not spell out"


def find_foreign_import(stream: IO[bytes]) -> str | None:
    """Return the first name, as MODULE.NAME, that the next pickle of a stream imports and that no
    trainer writes; None if there is none, and the stream is then at the end of the pickle.

    Raises ValueError for bytes that are not a pickle.
    """
    for module, name in _imports(stream):
        is_known = _MODULES.fullmatch(module) is not None
        if module in ("builtins", "__builtin__"):
            is_known = name in _BUILTINS
        # a name with a dot is looked up in what the module itself imports
        if not is_known or not name.isidentifier():
            return f"{module}.{name}" if module else _UNKNOWN
    return None


def _imports(stream: IO[bytes]) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import; two empty texts for one whose texts are computed."""
    memo: dict[int, str | None] = {}
    pushed: list[str | None] = []  # the texts that the last operations have pushed, None for others
    for operation, argument, _ in pickletools.genops(stream):
        code = operation.name
        if code in _PUTS:
            key = len(memo) if code == "MEMOIZE" else int(str(argument))
            memo[key] = pushed[-1] if pushed else None
            continue
        if code == "FRAME":
            continue
        if code in ("GLOBAL", "INST"):
            module, _, name = str(argument).partition(" ")
            yield module, name
        elif code == "STACK_GLOBAL":
            texts = pushed[-2:]
            yield (texts[0] or "", texts[1] or "") if len(texts) == 2 and all(texts) else ("", "")
        elif code in _EXTENSIONS:
            yield "", ""
        text = None
        if code in _STRINGS:
            text = argument if isinstance(argument, str) else None
        elif code in _GETS:
            text = memo.get(int(str(argument)))
        pushed = [*pushed[-1:], text]
