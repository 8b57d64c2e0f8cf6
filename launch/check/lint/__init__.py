"""Check the commands of scripts, job files and docs against the trainers that they start.

    checker = CommandChecker(TrainerSchemas(checkout, packages), load_advice(folder))
    for report in check_files(["train.sh", "docs/"], checker):    # FileReport: file, verdicts, notes, missing
        for verdict in report.verdicts:                           # LintVerdict: file, line, script, ok, problems
            verdict.as_json()

    find_commands(text, line_lookup(text))    # the trainer commands of a shell text, unchecked
    locate_checkout(folder)                   # the checkout that `--upstream DIR` refers to

No file content raises: what cannot be read becomes a note of that file, and the other files are still checked.
"""
