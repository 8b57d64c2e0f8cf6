"""Python imports this at its start when its folder is in PYTHONPATH: it applies the stand-ins in a trainer's rank."""

import os
import sys

_SCRIPTS = ("entry.py", "finetune.py", "dpo_tune_cache.py", "reward_modeling.py")


def _script() -> str:
    """Return the name of the script that this interpreter was started with; empty for `-m` and `-c`."""
    arguments = sys.orig_argv[1:]
    while arguments and arguments[0] in ("-u", "-P"):
        arguments = arguments[1:]
    return os.path.basename(arguments[0]) if arguments else ""


if "EQUIVALENCE_STAND_INS" in os.environ and _script() in _SCRIPTS:
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    import stand_ins

    sys.path.pop(0)
    stand_ins.apply(os.environ["EQUIVALENCE_STAND_INS"].split(","))
