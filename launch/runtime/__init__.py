"""A run as it happens: the process tree, its output, events, display, and the folder that records it."""
