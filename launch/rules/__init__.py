"""The rules of what goes with what: a table (`table.yaml`), and the engine that applies its rows to
a plan or to a command that `lint` reads.
"""
