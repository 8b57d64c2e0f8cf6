"""A stage file that lets a model bring code of its own is shown with its line, whichever flag it
does that by.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.__main__ import main
from tests.conftest import planned

STAGE = "# @package _global_\ndefaults:\n  - demo\n  - _self_\nflags:\n  "
VARIANTS = {
    "trust_remote_code: true": True,
    "trust_remote_code: yes": True,
    "trust_remote_code: 'True'": True,
    "model_init_kwargs: {trust_remote_code: true}": True,
    "model_init_kwargs: '{\"trust_remote_code\": true}'": True,
    'model_init_kwargs: \'{"config": {"trust_remote_code": true}}\'': True,
    "model_init_kwargs: {trust_remote_code: '${detach}'}": False,  # an interpolation, of false
    "trust_remote_code: ${oc.decode:'true'}": True,
    "trust_remote_code: false": False,
    "trust_remote_code: null": False,
    "model_init_kwargs: {trust_remote_code: false, use_cache: true}": False,
    "run_name: trust_remote_code": False,
}


@pytest.mark.parametrize("text", VARIANTS)
def test_a_stage_file_that_trusts_remote_code(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path))
    (tmp_path / "stage").mkdir()
    (tmp_path / "stage" / "mine.yaml").write_text(STAGE + text + "\n", encoding="utf-8")
    plan = planned("stage=mine", "trainer=trl_sft")
    shown = [warning for warning in plan.warnings if warning.id == "remote_code"]
    assert [warning.where for warning in shown] == (
        [f"{tmp_path}/stage/mine.yaml:6"] if VARIANTS[text] else []
    )


def test_every_trainer_and_every_verb_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stage").mkdir()
    (tmp_path / "stage" / "mine.yaml").write_text(
        f"{STAGE}trust_remote_code: true\n", encoding="utf-8"
    )
    for trainer in ("trl_sft", "finetune"):
        assert main(["plan", "stage=mine", f"trainer={trainer}"]) == 0
        [line] = [line for line in capsys.readouterr().err.splitlines() if "remote_code]" in line]
        assert "stage/mine.yaml:6: --trust_remote_code" in line
    main(["check", "stage=mine", "trainer=trl_sft", "--json"])
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert "remote_code" in [warning["id"] for warning in warnings]
    assert main(["plan", "stage=demo", "trainer=trl_sft", "flags.trust_remote_code=true"]) == 0
    assert "[remote_code]" not in capsys.readouterr().err
