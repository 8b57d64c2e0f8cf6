"""Checks command lines and values against a trainer's schema, including what its `__post_init__`
refuses.
"""
