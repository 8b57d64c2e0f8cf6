"""Pipelines: several stages in a row, each from the model of the one before."""
