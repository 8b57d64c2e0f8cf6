"""What is really in force in a trainer that runs: looked at in its own objects, never concluded from a log line.

Nothing in here gathers a partitioned parameter or starts a collective: modules, functions and metadata are read.
"""
