"""Finds what a pickle imports, without unpickling it.

Unpickling calls what a pickle names. A checkpoint of a trainer names classes of its libraries; one
that names anything else is not loaded.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Iterator, Mapping
from typing import IO

# The modules whose classes trainers write into checkpoints.
_MODULES = re.compile(
    r"torch|torch\.(_tensor|_utils|nn\.parameter|nn\.modules\..*|optim\..*|storage|distributed\..*)"
    r"|torch\.(torch_version|_C|serialization|random)"
    r"|numpy|numpy\.(_?core\..*|dtypes|random\..*)"
    r"|(deepspeed|accelerate|transformers|trl|peft|bitsandbytes|torchao|olmo_core|open_instruct)"
    r"\..*"
    r"|collections|_codecs|copyreg|copy_reg|argparse|pathlib|datetime|enum|_random|random"
)
_CLASS = re.compile(r"_*[A-Z]\w*")
# Classes that start or open something, though a module of a trainer may have imported them.
_STARTERS = re.compile(
    r".*(Popen|Process|Thread|Pool|Executor|Launch\w*|Runner|Loader|Builder|Interpreter"
    r"|File|FileType|Writer|Reader|Exporter|Handler|Logger|Tracker|Callback"
    r"|Store|Server|Client|Session|Connection|Socket|Repository|Api)"
)
# What else trainers write, by module: types with small names, and functions that rebuild a value.
# No other function is allowed: `torch.load` or `accelerate`'s `run_command` would run what is in the
# checkpoint.
_SMALL_NAMES: Mapping[re.Pattern[str], re.Pattern[str]] = {
    re.compile(module): re.compile(names)
    for module, names in (
        (
            "torch",
            (
                r"(b?float|q?u?int|complex)\d+\w*|bool|device|strided|jagged"
                r"|(sparse|per|contiguous|preserve|channels)_\w+"
            ),
        ),
        (r"torch\._utils|torch\._tensor|torch\.nn\.parameter", r"_rebuild_\w+"),
        (r"torch\.serialization", "_get_layout"),
        (r"deepspeed\.utils\..*", "fragment_address|tensor_fragment"),
        (
            r"numpy|numpy\._?core\..*",
            (
                r"ndarray|dtype|scalar|_reconstruct|_frombuffer"
                r"|(u?int|float|complex|bool|str|bytes|void|datetime|timedelta)_?\d*"
            ),
        ),
        (r"numpy\.random\.(_pickle|bit_generator)", r"__\w+_ctor|__pyx_unpickle_\w+"),
        ("collections", "defaultdict|deque"),
        ("_codecs", "encode"),
        (r"copyreg|copy_reg", "_reconstructor|__newobj__|__newobj_ex__"),
        ("datetime", "datetime|date|time|timedelta|timezone"),
    )
}
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
        if not _is_data(module, name):
            return f"{module}.{name}" if module else _UNKNOWN
    return None


def _is_data(module: str, name: str) -> bool:
    """Whether an import is that of a class that trainers write, or of what rebuilds a value."""
    if module in ("builtins", "__builtin__"):
        return name in _BUILTINS
    if not _MODULES.fullmatch(module):
        return False
    # a name with a dot is none: it is looked up in what the module itself imports
    if _CLASS.fullmatch(name):
        return not _STARTERS.fullmatch(name)
    return any(
        places.fullmatch(module) and names.fullmatch(name) for places, names in _SMALL_NAMES.items()
    )


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
