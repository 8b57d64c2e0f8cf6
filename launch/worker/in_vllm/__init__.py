"""Modules for vLLM's processes, which have this folder on their path, and launch possibly not."""
