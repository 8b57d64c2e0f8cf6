"""Tokens: where they are looked for."""

from __future__ import annotations

from pathlib import Path

from launch.check.machine.accounts import find_wandb_key
from launch.planning.hub_config import find_hub_token


def test_a_token_is_found_where_huggingface_hub_finds_it(tmp_path: Path) -> None:
    assert find_hub_token({"HOME": str(tmp_path)}) is None
    file = tmp_path / ".cache" / "huggingface" / "token"
    file.parent.mkdir(parents=True)
    file.write_text("hf_cached\n", encoding="utf-8")
    assert find_hub_token({"HOME": str(tmp_path)}) == "hf_cached"
    assert find_hub_token({"HOME": str(tmp_path), "HF_HOME": str(tmp_path)}) is None
    assert find_hub_token({"HOME": str(tmp_path), "HF_TOKEN": "hf_said"}) == "hf_said"
    assert find_hub_token({"HOME": "/nowhere", "HF_TOKEN_PATH": str(file)}) == "hf_cached"


def test_a_login_of_wandb_belongs_to_its_server(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text(
        "machine api.wandb.ai login user password x\n", encoding="utf-8"
    )
    (tmp_path / ".netrc").chmod(0o600)
    assert find_wandb_key({"HOME": str(tmp_path)}) is not None
    assert (
        find_wandb_key({"HOME": str(tmp_path), "WANDB_BASE_URL": "https://wandb.example.org"})
        is None
    )
