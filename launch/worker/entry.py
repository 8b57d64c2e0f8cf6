"""The program that accelerate or torchrun starts for each rank, and that the launcher starts for
other work.

    python entry.py [--patch ID[=VALUE]]... [--option ID[=VALUE]]... [--expect KEY=VALUE]... [--allow ID]...
                    (--script PATH | --entry MODULE) -- FLAGS
    python entry.py --call MODULE [ARGUMENT]...

This file only loads its package, whatever the interpreter and working directory, and calls `main`
of a module in it: of `program.py`, which runs a rank, or of MODULE (converting, evaluating,
generating, merging, reward_proof, verifiers).
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

PRIVATE_NAME = "_launch_worker"


def load_package() -> None:
    """Import the folder of this file as the package `_launch_worker`.

    Python put the folder first on `sys.path`, where its module names could shadow the trainer's;
    remove it.
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
    is_call = sys.argv[1:2] == ["--call"]
    module, arguments = (sys.argv[2], sys.argv[3:]) if is_call else ("program", sys.argv[1:])
    importlib.import_module(f"{PRIVATE_NAME}.{module}").main(arguments)
