"""What the trainers accept, captured from their own parsers.

Import each name from its module; the package itself imports nothing, for a plan needs few of them.

    locked_schema("finetune")                        # Schema at the pin, from the lock: nothing is started
    resolve_schema(trainer, checkout, packages, ...) # the lock's, or the live parser's where the content differs
    capture_schema("open_instruct/finetune.py", root, python)   # starts the script up to its parser; cached by content

    schema.fields["learning_rate"]   # Field: type, kind, nargs, choices, default, required, owner, file:line
    read_help(fields, folders)       # HelpTexts: the help of each, read from its source; the lock has only digests
    schema.unknown                   # what the parser accepts besides its fields: unknown, not absent

    split_argv(schema, tokens)       # SplitArgv: the real argparse, rebuilt, gives each option its values
    check_argv(schema, argv)         # ArgvReport: problems, values, refused, ok; ArgvToken for unknown arguments
    check_values(schema, values)     # problems of typed values (YAML, overrides)
    render_flag(field, value)        # the exact argv tokens
    find_contradictions(schema, values)   # what `__post_init__` raises for these values, with upstream's file:line

The folders: `capture/` asks a live parser, `rules/` checks command lines and values against a
schema, `pin/` holds the pinned commit (lock, rename ledger, checkout), `libraries/` the configuration
keys of DeepSpeed and accelerate.
"""
