"""The maintainers' tools for the pinned open-instruct: `python -m maintain diff | bump | relock`.

They compare another commit of open-instruct with the lock, move the pin, and rewrite the lock. They
import launch, and launch never imports them: the wheel is built without this package.
docs/how-to/move-the-pin.md is their manual.
"""
