"""The tokenised cache with the real trainer: built ahead, hit, never stale, never half-written,
never elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from launch.planning.lengths import load_lengths
from tests.integration import warm
from tests.integration.tiny_stage import TinyStage

pytestmark = pytest.mark.slow

BEAKER = {
    "BEAKER_JOB_ID": "01JOB",
    "BEAKER_EXPERIMENT_ID": "01EXPERIMENT",
    "BEAKER_WORKLOAD_ID": "01WORKLOAD",
    "BEAKER_NODE_HOSTNAME": "node.example",
    "REFERENCE_LOGPROBS_CACHE_PATH": "/weka/of/another/cluster",
    "GIT_COMMIT": "0123456",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("caches")


def launch(
    home: Path, tiny: TinyStage, data: Path, *words: str
) -> subprocess.CompletedProcess[str]:
    shape = (
        "processes=1",
        "recipe.max_seq_length=256",
        f"model.path={tiny.model}",
        f"data.mix=[{{name: {data}}}]",
    )
    said = ("run", "stage=demo", *shape, *words)
    return subprocess.run(
        [warm.python(), "-m", "launch", *said],
        cwd=home,
        env={**os.environ, **BEAKER},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def told(ran: subprocess.CompletedProcess[str]) -> tuple[Path, str]:
    """The data set that a cache pass told of, and how it came to be."""
    assert ran.returncode == 0, ran.stdout + ran.stderr
    [line] = [line for line in ran.stdout.splitlines() if line.startswith("tokenised data: ")]
    path, _, how = line.removeprefix("tokenised data: ").partition(" (")
    return Path(path), how.partition(",")[0]


def test_the_tokenised_cache(home: Path, tiny: TinyStage, open_instruct: Path) -> None:
    data = home / "train.jsonl"
    data.write_bytes(tiny.chats.read_bytes())

    first, how = told(launch(home, tiny, data, "cache_only=true"))
    assert how == "built"
    assert first.is_relative_to(home / "runs" / ".cache" / "tokenized")
    assert not (home / "runs" / "demo").exists()  # a pass is no run
    assert not list(home.rglob("DONE"))
    [lengths] = (home / "runs" / ".cache" / "lengths").iterdir()
    found = load_lengths(lengths)
    assert found is not None
    assert found.samples == len(data.read_text().splitlines())

    ran = launch(home, tiny, data, "name=one", "recipe.max_steps=1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    events = [
        json.loads(line)
        for line in (home / "runs" / "demo" / "one" / "events.jsonl").read_text().splitlines()
    ]
    [hit] = [
        event
        for event in events
        if event.get("what") == "dataset_cache" and event["kind"] == "evidence"
    ][:1]
    assert (hit["value"], hit["path"]) == ("hit", str(first))

    before = data.stat()
    data.write_text(data.read_text().replace("plus", "PLUS"))
    # upstream's key has the path and the number of rows
    assert data.stat().st_size == before.st_size
    second, how = told(launch(home, tiny, data, "cache_only=true"))
    assert how == "built"
    assert second != first
    assert len(list(lengths.parent.iterdir())) == 2  # other data, another file

    (second / "dataset_statistics.json").unlink()  # written last: what a killed pass leaves
    ran = launch(home, tiny, data, "cache_only=true")
    assert told(ran) == (second, "built")
    assert f"removed the half-written cache {second}" in ran.stdout
    assert told(launch(home, tiny, data, "cache_only=true")) == (second, "already there")


def test_trl_says_that_it_has_none(home: Path, tiny: TinyStage) -> None:
    ran = launch(
        home, tiny, tiny.chats, "trainer=trl_sft", "cache_only=true", "recipe.chat_template=tulu"
    )
    assert ran.returncode == 2
    assert "[no_cache_pass]" in ran.stderr
