"""The run folder: its content, how it is written and how it is read again."""
