"""The program that accelerate or torchrun starts once a rank.

    python entry.py [--patch ID[=VALUE]]... [--expect KEY=VALUE]... (--script PATH | --module NAME) -- FLAGS

This file only finds its package, whatever the interpreter and the current folder; `program.py` is what it does.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

PRIVATE_NAME = "_launch_worker"


def load_package() -> None:
    """Imports the folder of this file as the package `_launch_worker`.

    Python put that folder first on `sys.path`, where its module names could shadow the trainer's: it is taken off.
    """
    folder = Path(__file__).resolve().parent
    if sys.path and Path(sys.path[0]).resolve() == folder:
        del sys.path[0]
    spec = importlib.util.spec_from_file_location(
        PRIVATE_NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} holds no package")
    package = importlib.util.module_from_spec(spec)
    sys.modules[PRIVATE_NAME] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    load_package()
    importlib.import_module(f"{PRIVATE_NAME}.program").main(sys.argv[1:])
