"""What `check` reports of data that it does not or can not tokenise;
tests/integration/test_preview.py tokenises.
"""

from __future__ import annotations

from pathlib import Path

from launch.execution.preview import inspect_data
from launch.planning.build import build_plan
from launch.planning.plan import Plan
from tests.conftest import composed, fixed_machine, planned
from tests.data.files import CHAT, write_lines


def local_plan(folder: Path, *overrides: str) -> Plan:
    """Plan open-instruct's SFT on a local file, without a checkout of it."""
    path = write_lines(folder / "a.jsonl", [CHAT])
    machine = fixed_machine(folder, checkout=None, digest=lambda path: "digest")
    return build_plan(
        composed("stage=sft", f"data.mix=[{{name: {path}}}]", *overrides), machine, reads_rows=False
    )


def test_hub_data_is_not_read() -> None:
    [finding] = inspect_data(planned("stage=sft"), None)
    assert (finding.id, finding.severity) == ("data_tokens", "skipped")
    assert finding.message == "allenai/tulu-3-sft-mixture: hub data, not read"


def test_what_can_not_be_tokenised_fails_unless_it_is_allowed(tmp_path: Path) -> None:
    [finding] = inspect_data(local_plan(tmp_path), None)
    assert (finding.id, finding.severity, finding.stops) == ("no_checkout", "fail", True)
    [allowed] = inspect_data(local_plan(tmp_path, "allow=[no_checkout]"), None)
    assert not allowed.stops


def test_prompts_of_rlvr_are_not_tokenised(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"prompt": "?", "ground_truth": "8"}])
    words = ("stage=rlvr", "recipe.verifier=math", f"data.mix=[{{name: {path}}}]")
    machine = fixed_machine(tmp_path, digest=lambda path: "digest")
    [finding] = inspect_data(build_plan(composed(*words), machine, reads_rows=False), None)
    assert (finding.id, finding.severity) == ("data_tokens", "skipped")


def test_what_this_machine_makes_is_no_data_of_the_user(tmp_path: Path) -> None:
    assert inspect_data(planned("stage=demo", machine=fixed_machine(tmp_path)), None) == []
