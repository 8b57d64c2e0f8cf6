"""The verbs, in files by subject; `launch.__main__` imports only the file of the verb in use."""
