"""Check the commands of scripts, job files and docs against the trainers that they start:
`linter.check_files`.

No file content raises: what cannot be read becomes a note of that file, and the other files are
still checked.
"""
