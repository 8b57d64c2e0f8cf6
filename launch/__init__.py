"""Plan, check, run and record post-training stages with a pinned, unmodified open-instruct (or TRL)."""

__version__ = "0.1.0"
