"""The names that open-instruct looks up in its own dictionaries while it runs: templates, tokenizers, transforms."""

from __future__ import annotations

import ast
import functools

from launch.upstream.reader.tree import UnreadableSourceError, parse_source

REGISTRIES_FILE = "open_instruct/dataset_transformation.py"
# flag -> the dictionary that its value is a key of
_REGISTRIES = {
    "chat_template_name": "CHAT_TEMPLATES",
    "get_tokenizer_fn": "GET_TOKENIZER_FN",
    "dataset_transform_fn": "TRANSFORM_FNS",
}


@functools.lru_cache(maxsize=4)  # lint asks once a command
def read_registries(source: str) -> dict[str, tuple[str, ...]]:
    """Return the names by flag, of the dictionaries whose keys are all plain strings.

    An older commit may lack some. Source that does not parse has none.
    """
    try:
        body = parse_source(source, REGISTRIES_FILE).body
    except UnreadableSourceError:
        return {}
    dictionaries = {
        target.id: node.value
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    names = {}
    for flag, dictionary in _REGISTRIES.items():
        keys = dictionaries[dictionary].keys if dictionary in dictionaries else []
        texts = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
        if texts and len(texts) == len(keys):
            names[flag] = tuple(texts)
    return names
