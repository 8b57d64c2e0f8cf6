"""Several short runs that answer one question: `bench`, `rollout` and `tune`, and what they
share.
"""
