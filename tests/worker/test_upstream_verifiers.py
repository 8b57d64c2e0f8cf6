"""The reward proof on open-instruct's own verifiers, imported from its checkout."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launch.host.interpreter import worker_command
from launch.worker.json_codec import decode
from launch.worker.reward_proof import ProofReport, ProofRequest
from tests.integration import warm
from tests.upstream.checkouts import checkout

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(checkout() is None, reason="no open-instruct checkout"),
]
RIGHT = [("gsm8k", "4"), ("gsm8k", "5"), ("MATH", "x+1"), ("MATH", "x+2")]
OPTION = json.dumps({"verifiers": {"rows": 1.0}, "seconds": 60.0, "window": 64})


def prove(folder: Path, named: list[tuple[str, str]], **more: Any) -> ProofReport:
    rows = [
        {"prompt": [{"role": "user", "content": "?"}], "dataset": d, "ground_truth": t} | more
        for d, t in named
    ]
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    request = ProofRequest(OPTION, path, (), "", None, 16, upstream=True)
    command = worker_command(warm.python(), "reward_proof", request)
    env = {**os.environ, "PYTHONPATH": str(checkout())}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    return decode(ProofReport, done.stdout.splitlines()[-1])


def test_reference_answers_pass_and_what_calls_a_service_is_named(tmp_path: Path) -> None:
    followed = ("ifeval_old", json.dumps({"func_name": "verify_paragraph_count", "N": 3}))
    report = prove(tmp_path, [*RIGHT, ("code", "[]"), followed])
    assert report.problem is None
    assert [fact.partition(",")[0] for fact in report.facts if "2 of 2" in fact] == [
        "2 of 2 reference answers pass `gsm8k`",
        "2 of 2 reference answers pass `math`",
    ]
    assert report.warnings[0].startswith(
        "`code` calls a service (flags.code_api_url is by default port 1234"
    )


def test_an_unknown_name_is_found_which_upstream_would_reward_with_0(tmp_path: Path) -> None:
    problem = str(prove(tmp_path, [*RIGHT, ("gsm8", "4")]).problem)
    assert problem.startswith("row 5 names the verifier 'gsm8'; known are gsm8k, math, strict_math")


@pytest.mark.thorough
def test_references_that_its_verifier_refuses(tmp_path: Path) -> None:
    problem = str(prove(tmp_path, RIGHT[:2], reference="no number").problem)
    assert problem.startswith("0 of 2 reference answers pass `gsm8k`")
