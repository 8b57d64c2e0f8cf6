"""The program that accelerate or torchrun starts for each rank.

    python entry.py [--patch ID[=VALUE]]... [--option ID[=VALUE]]... [--expect KEY=VALUE]... [--allow ID]...
                    (--script PATH | --entry MODULE) -- FLAGS

This file only loads its package, whatever the interpreter and working directory; `program.py` does the work.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

PRIVATE_NAME = "_launch_worker"


def load_package() -> None:
    """Import the folder of this file as the package `_launch_worker`.

    Python put the folder first on `sys.path`, where its module names could shadow the trainer's; remove it.
    """
    folder = Path(__file__).resolve().parent
    if sys.path and Path(sys.path[0]).resolve() == folder:
        del sys.path[0]
    spec = importlib.util.spec_from_file_location(
        PRIVATE_NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} is not a package")
    package = importlib.util.module_from_spec(spec)
    sys.modules[PRIVATE_NAME] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    load_package()
    importlib.import_module(f"{PRIVATE_NAME}.program").main(sys.argv[1:])
