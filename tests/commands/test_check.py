"""What `launch check` prints: what each rule looked at, faults with their ids and cures, and the
next command.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from launch.__main__ import main
from launch.commands import check
from launch.commands.check import _without_itself, format_table
from launch.worker.finding import Finding, Fix
from tests.conftest import planned

FINDINGS = [
    Finding("disk_full", "68 GiB free for 30 GiB", severity="pass"),
    Finding.error("port_taken", "port 5 is in use", None, "set another one"),
    Finding("too_few_gpus", "one GPU", allowed=True),
    Finding.warning("clock_skew", "9 s", "runs"),
    Finding("gpus_busy", "device=cpu", severity="skipped"),
    Finding("memlock_limit", "device=cpu", severity="skipped"),
    Finding("long_samples", "none", severity="pass"),
]


def test_what_passed_has_no_id_and_what_did_not_has_one() -> None:
    assert format_table(FINDINGS) == [
        "disk          68 GiB free for 30 GiB",
        "port          error: port 5 is in use [port_taken]",
        "              -> set another one",
        "GPUs          allowed: one GPU [too_few_gpus]",
        "clock         warning: runs: 9 s [clock_skew]",
        "long samples  none",
        "not checked   GPU use, locked memory (device=cpu)",
    ]


def test_a_machine_that_is_not_ready_gets_no_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check", "stage=sft", "trainer=trl_sft", "gpus=64"]) == 2
    printed = capsys.readouterr().out
    assert "[too_few_gpus]" in printed and "ready" not in printed


STOPS, WARNS = Finding.error("port_taken", "in use", None, None), FINDINGS[3]


def test_data_is_looked_at_where_the_machine_is_ready(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cases: list[tuple[list[Finding], bool, list[str]]] = [
        ([], False, ["data_tokens"]),
        ([WARNS], False, ["clock_skew", "data_tokens"]),
        ([STOPS], False, ["port_taken"]),  # what is missing would stop the reader of data, too
        ([], True, []),  # its model and data are made by an earlier stage
    ]
    for found, is_pending, shown in cases:
        monkeypatch.setattr(check, "inspect", lambda plan, found=found: found)
        plan = replace(planned("stage=sft"), is_pending=is_pending)
        code = check._check_plan(plan, argparse.Namespace(rows=None, json=True))
        printed = json.loads(capsys.readouterr().out)
        assert [finding["id"] for finding in printed["findings"]] == shown
        assert (code == 2, printed["ok"]) == (found == [STOPS], found != [STOPS])


@pytest.mark.parametrize("verb", ["$ launch check", "$ launch check stage=sft"])
def test_no_cure_sends_to_itself(verb: str) -> None:
    fix = Fix.of("{0} where its packages are", verb)
    assert _without_itself(Finding.warning("unverified", "a flag", None, fix)).cure is None
    other = Finding.warning("unverified", "a flag", None, Fix.of("{0}", "$ launch flags finetune"))
    assert _without_itself(other) == other
