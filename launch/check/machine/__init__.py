"""What must be true of this machine before a plan runs: one function per rule, each with its reason
and its cure.
"""
