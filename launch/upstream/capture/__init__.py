"""Captures what a trainer accepts, by asking its own parser in its own interpreter."""
