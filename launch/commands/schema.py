"""`launch schema`: print the JSON Schema of a stage file."""

from __future__ import annotations

from launch.commands.tool_parsers import build_schema_parser
from launch.config.json_schema import stage_schema
from launch.errors import EXIT_DONE
from launch.terminal import print_json


def schema(arguments: list[str]) -> int:
    """Print the schema as JSON; with or without `--json`, since it has no other form."""
    build_schema_parser().parse(arguments)
    print_json(stage_schema())
    return EXIT_DONE
