"""Checks what is really in effect in a running trainer, in its own objects rather than its logs.

Nothing here gathers a partitioned parameter or starts a collective: only modules, functions and
metadata are read.
"""
