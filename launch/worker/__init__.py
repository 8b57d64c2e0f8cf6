"""The code that runs inside the trainer's process: the entry point, the patches, and the checks of
the trainer's own state.

It needs only the standard library and what the trainer itself imports, nothing from the rest of
`launch`: the trainer may run under another interpreter (Python 3.10 or later). `entry.py` is
started by path and loads this package under a private name, so that no module name here can shadow
one of the trainer's.
"""
