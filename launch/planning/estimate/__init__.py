"""Estimates of a training step before it runs: memory per GPU, and time.

The package needs only the standard library.
"""
