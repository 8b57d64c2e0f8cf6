"""The user's settings: the command line, the composed configuration, and where each value is
set.
"""
