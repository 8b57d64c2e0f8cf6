"""The real parser of a script: the capture's program stops the script there, and it answers the
lines that it receives.

    python parser_server.py ENTRY [ROOT]

One JSON object per line. In: {"argv": [...]}, {"describe": true}, {"help": true}, {"whole": [...]} or
{"trl_command": ["sft", ...]}. Out: argparse's result ("parse": null or the error), the remaining
arguments, what the dataclasses raised, and the values; every action; the help of each; or what the
script's own call, or TRL's command, raised.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import io
import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from launch.upstream.capture import program


class _ParserExitError(Exception):
    pass


class _Server(program._Capture):
    def stop(self, parser: Any, built_at: Any, method: Any, *arguments: Any, **options: Any) -> Any:
        if self.parses:
            return method(*arguments, **options)
        self.parses = True
        for line in sys.stdin:
            request = json.loads(line)
            with contextlib.redirect_stdout(io.StringIO()):
                if request.get("describe"):
                    answer = _describe(parser)
                elif "whole" in request:
                    answer = _parse_whole(parser, request["whole"])
                elif "trl_command" in request:
                    answer = _run_trl_command(request["trl_command"])
                elif request.get("help"):
                    answer = {
                        action.dest: action.help
                        for action in parser._actions
                        if not _negates(action)
                    }
                else:
                    answer = _parse(parser, request["argv"])
            responses.write(json.dumps(answer) + "\n")
            responses.flush()
        os._exit(0)


def _negates(action: argparse.Action) -> bool:
    """Whether it is the `--no_x` of another one, with the same destination."""
    return isinstance(action, argparse._StoreFalseAction)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return f"<{type(value).__name__}>"


def _describe(parser: Any) -> list[dict[str, Any]]:
    names = ("dest", "nargs", "const", "default", "required")
    return [
        {
            "strings": list(action.option_strings),
            "choices": None
            if action.choices is None
            else [_plain(choice) for choice in action.choices],
            **{name: _plain(getattr(action, name)) for name in names},
        }
        for action in parser._actions
        if action.dest != "help"
    ]


def _parse(parser: Any, argv: list[str]) -> dict[str, Any]:
    def error(message: str) -> NoReturn:
        raise _ParserExitError(message)

    parser.error = error
    try:
        namespace, left = parser.parse_known_args(argv)
    except _ParserExitError as refused:
        return {"parse": str(refused), "left": [], "raised": None, "values": {}}
    values = {name: _plain(value) for name, value in vars(namespace).items()}
    raised = None
    try:
        for dtype in parser.dataclass_types:
            names = {f.name for f in dataclasses.fields(dtype) if f.init}
            dtype(**{name: value for name, value in vars(namespace).items() if name in names})
    except Exception as problem:
        raised = f"{type(problem).__name__}: {problem}"
    return {"parse": None, "left": left, "raised": raised, "values": values}


def _parse_whole(parser: Any, argv: list[str]) -> dict[str, Any]:
    """Parse as the script does, with the YAML file of the command."""
    before = [(action, action.default, action.required) for action in parser._actions]
    sys.argv = [sys.argv[0], *argv]
    try:
        if hasattr(parser, "parse_args_and_config"):
            parser.parse_args_and_config(argv, fail_with_unknown_args=False)
        else:
            parser.parse()
    except (Exception, SystemExit) as refused:
        return {"raised": f"{type(refused).__name__}: {refused}"}
    finally:  # a file of TRL replaces the parser's defaults
        for action, default, required in before:
            action.default, action.required = default, required
    return {"raised": None}


def _run_trl_command(argv: list[str]) -> dict[str, Any]:
    """Run `trl ...` up to the place where accelerate would start the script."""
    from trl.cli import accelerate_launcher
    from trl.cli.main import main

    accelerate_launcher.launch_training_script.__kwdefaults__["launch_command_fn"] = lambda _: None
    try:
        main(argv)
    except (Exception, SystemExit) as refused:
        return {"raised": f"{type(refused).__name__}: {refused}"}
    return {"raised": None}


if __name__ == "__main__":
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the script prints must not mix with the responses
    entry, *root = sys.argv[1:]
    del sys.path[0]  # the tests' folder
    _Server(Path(os.devnull), entry, Path(root[0]) if root else None, None).run()
