"""Every block of YAML in the README and the documentation is composed and planned."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from launch.api.planning import plan_composed
from tests.conftest import composed
from tests.paths import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
_BLOCK = re.compile(r"^( *)```yaml\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(
        page,
        match[2],
        id=f"{page.relative_to(ROOT)}:{page.read_text(encoding='utf-8')[: match.start()].count(chr(10)) + 2}",
    )
    for page in PAGES
    for match in _BLOCK.finditer(page.read_text(encoding="utf-8"))
]
_FOREIGN = "base_model:"  # axolotl's, of which the page translates each key


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 4


@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_the_block_is_planned(
    page: Path, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = yaml.safe_load(block)
    if block.startswith(_FOREIGN):
        table = page.read_text(encoding="utf-8").replace(block, "")
        assert [key for key in content if f"`{key}" not in table] == []
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path))
    group = "stage" if "# @package _global_" in block else "cluster"
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    for name in re.findall(r"name: (\S+\.jsonl)", block):  # the reader's data
        local = tmp_path / Path(name).name
        local.write_text(f"{json.dumps(chat)}\n" * 200, encoding="utf-8")
        block = block.replace(name, str(local))
    (tmp_path / group).mkdir()
    (tmp_path / group / "here.yaml").write_text(block, encoding="utf-8")
    overrides = (
        ("stage=here", "gpus=8") if group == "stage" else ("stage=sft", "cluster=here", "gpus=8")
    )
    configuration = composed(*overrides)
    planned = plan_composed(configuration)
    assert planned.flags
    if group == "stage":
        assert planned.plan.config.recipe.packing == content["recipe"]["packing"]
    else:
        assert configuration.config.cluster.partition == content["partition"]
