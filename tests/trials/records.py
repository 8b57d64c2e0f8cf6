"""Records of trials that are made up, against the published schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launch import resources
from launch.execution.report.document import Document
from launch.trials.record import TrialRecord
from launch.trials.view import read_trial


def check(document: dict[str, Any]) -> None:
    """Validate a record against docs/reference/trial.schema.json."""
    jsonschema = pytest.importorskip(
        "jsonschema", reason="the `open-instruct` dependencies bring it"
    )
    schema = json.loads(
        (resources.ROOT / "docs" / "reference" / "trial.schema.json").read_text(encoding="utf-8")
    )
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(document)


def written(record: TrialRecord) -> Document:
    """Write a record; its report as it is read back."""
    record.write()
    return read_trial(record.folder)


def read(record: TrialRecord) -> dict[str, Any]:
    """Write a record; its JSON as it is read back."""
    record.write()
    document: dict[str, Any] = json.loads(record.path.read_text(encoding="utf-8"))
    return document
