"""The pinned open-instruct commit: the lock, the rename ledger, the checkout and the gitlink.

All of it is only read here; `maintain/` writes it.
"""
