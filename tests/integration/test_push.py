"""`hub.push=OWNER/NAME`: the trained model arrives at a hub (a stand-in here), whole and under that
very name.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.integration import warm
from tests.integration.demo_kit import give_demo
from tests.integration.hub import TOKEN, running

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("trainer", "owner"),
    [pytest.param("finetune", "lab", marks=pytest.mark.thorough), ("trl_sft", "ann")],
)
def test_the_model_arrives(
    trainer: str,
    owner: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> None:
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    if trainer == "finetune":
        request.getfixturevalue("open_instruct")
    give_demo(tmp_path_factory, tmp_path)
    words = [
        "stage=demo",
        f"trainer={trainer}",
        "name=pushed",
        "recipe.max_steps=2",
        f"hub.push={owner}/mine",
    ]
    with running() as hub:
        ran = subprocess.run(
            [warm.python_with_cold_ranks(), "-m", "launch", "run", *words],
            cwd=tmp_path,
            env={
                **os.environ,
                "HF_ENDPOINT": hub.address,
                "HF_TOKEN": TOKEN,
                "HF_HUB_OFFLINE": "0",
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert hub.private == {f"{owner}/mine": True}
    model = tmp_path / "runs" / "demo" / "pushed" / "model"
    [(_, files)] = [
        (branch, files) for (name, branch), files in hub.files.items() if name == f"{owner}/mine"
    ]
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert files[name] == (model / name).read_bytes(), name
    for path in (model.parent / "logs").iterdir():
        assert TOKEN.encode() not in path.read_bytes(), path
