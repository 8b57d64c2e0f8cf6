"""Schemas that the tests capture from small scripts, with the real HfArgumentParser."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from launch.upstream.capture.start import capture_schema
from launch.upstream.schema import Schema
from tests.upstream.real_parsers import SYNTHETIC

SCRIPT = """
    from dataclasses import dataclass
    from transformers import HfArgumentParser

    @dataclass
    class Args:
        x: int = 1

    if __name__ == "__main__":
        HfArgumentParser(Args).parse_args_into_dataclasses()
"""


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
    return folder


def capture_script(folder: Path, text: str = SCRIPT) -> Schema:
    """Capture a script of this text."""
    return capture_schema("train.py", write_files(folder, {"train.py": text}), sys.executable)


@cache
def synthetic_schema() -> Schema:
    """The trainer that has a field of every kind."""
    return capture_schema("script.py", SYNTHETIC, sys.executable)
