"""One file a verb; `launch.__main__` imports the one that is used."""
