"""Pipelines: several stages in a row, each from the model of the previous one."""
