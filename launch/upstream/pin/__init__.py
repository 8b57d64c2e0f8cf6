"""The pinned open-instruct commit: the lock, the rename ledger, comparing commits and moving the
pin.
"""
