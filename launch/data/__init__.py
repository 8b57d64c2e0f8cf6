"""The user's own data: find its files, read their rows, recognise and convert them, and stage them
for a trainer.
"""
