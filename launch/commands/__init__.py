"""The verbs, by what they are about; `launch.__main__` imports the file of the one that is used."""
