"""What runs inside the trainer's process: the entry point, the patches, the checks of the trainer's own state.

Needs the standard library and what the trainer itself imports, nothing of the rest of `launch`: the trainer's
interpreter may be another one (Python 3.10 or later). `entry.py` is started by its path and loads this package
under a private name, so that no module name in here can shadow one of the trainer's.
"""
