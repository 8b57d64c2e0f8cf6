"""Recognises the file of axolotl or LLaMA-Factory, which no trainer of launch reads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from launch.check.lint.trainer_commands import LintFinding, warning
from launch.config.yaml_nodes import Mapping, Node, NotYamlError, load_yaml
from launch.worker.finding import Fix

# Keys that only files of the tool have. Three of one tool make a file its own.
_TOOLS = {
    "axolotl": re.compile(
        r"base_model|base_model_config|sequence_len|micro_batch_size|sample_packing|val_set_size"
        r"|datasets|dataset_prepared_path|train_on_inputs|strict|pad_to_sequence_len|adapter"
    ),
    "LLaMA-Factory": re.compile(
        r"finetuning_type|cutoff_len|template|stage|lora_target|dataset_dir|max_samples|val_size"
        r"|plot_loss"
    ),
}
_NEEDED = 3


def find_other_tool(path: Path, documents: Iterable[Node]) -> LintFinding | None:
    """Return what the file of another tool is in launch; None for every other file.

    Lint knows these tools' files only to say so: nothing is checked.
    """
    for document in documents:
        if not isinstance(document, Mapping):
            return None
        names = [key.text for key, _ in document.entries()]
        for tool, keys in _TOOLS.items():
            if sum(keys.fullmatch(name) is not None for name in names) >= _NEEDED:
                return _explain(path, tool, document.line)
        return None
    return None


def _explain(path: Path, tool: str, line: int) -> LintFinding | None:
    from launch.config.file_checks import translate_file  # slow to import; few files need it

    try:
        content = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, NotYamlError):
        return None
    command, rest = translate_file({str(key): value for key, value in content.items()})
    cure = Fix.of(f"what it is here: {{0}}{rest}", command)
    message = f"this is a file of {tool}, which none of the trainers reads"
    return warning("other_tool", message, line, cure=cure)
