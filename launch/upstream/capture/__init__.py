"""Capture: what a trainer accepts, asked of its own parser in its own interpreter."""
