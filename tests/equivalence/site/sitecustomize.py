"""Python imports this at its start when its folder is in PYTHONPATH: it applies the stand-ins in a
trainer's rank.
"""

import os
import sys
from pathlib import Path

_SCRIPTS = ("entry.py", "finetune.py", "dpo_tune_cache.py", "reward_modeling.py")


def _script() -> str:
    """Return the name of the script that this interpreter was started with; empty for `-m` and
    `-c`.
    """
    arguments = [argument for argument in sys.orig_argv[1:3] if argument != "-u"]
    return Path(arguments[0]).name if arguments else ""


if "EQUIVALENCE_STAND_INS" in os.environ and _script() in _SCRIPTS:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import stand_ins  # type: ignore[import-not-found]

    sys.path.pop(0)
    stand_ins.apply(os.environ["EQUIVALENCE_STAND_INS"].split(","))
