"""What real runs leave in their folders: every file, and its contents without what differs from run
to run.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from launch import resources
from tests.golden.recorder import flatten
from tests.integration.conftest import launch_in
from tests.integration.demo_kit import give_demo

pytestmark = pytest.mark.slow

Golden = Callable[[str, Sequence[str]], None]

# a short training of each kind, by the name of its run
RUNS = {
    "full": ("stage=demo", "trainer=trl_sft", "device=cpu", "recipe.max_steps=3", "name=full"),
    "adapter": (
        "stage=demo_lora",
        "trainer=trl_sft",
        "device=cpu",
        "recipe.max_steps=3",
        "name=adapter",
    ),
}
STREAMS = ("events.jsonl", "metrics.jsonl", "attempts.jsonl")
# contents that are the libraries' own, or the machine's
NOT_RECORDED = re.compile(
    r"^(logs/|model/README\.md|model/checkpoint-\d+/|(model/)?tokenizer\.json|checkpoints\.jsonl|versions\.json|report\.html|.*\.lock)"
)
_MEASURED = re.compile(
    r"(^|\.)(time|started|finished|seconds|pid|host|user|machine|commit|dirty|ended_processes|transformers_version|"
    r"peft_version|adapter|base_digest|state|tokens_per_second\w*)$"
)
_EXACT = re.compile(r"(^|[._])(loss|lr)$")


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_folder(
    kind: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, golden: Golden
) -> None:
    """Each starts in a folder of its own: what an earlier run left in the caches would change the
    record.
    """
    pytest.importorskip("trl", reason="the `train` dependencies are not installed")
    home = give_demo(tmp_path_factory, tmp_path)
    done = launch_in(home, *RUNS[kind])
    assert done.returncode == 0, done.stdout + done.stderr
    [folder] = (home / "runs").glob(f"*/{kind}")
    golden(f"runs/{kind}", list(describe_folder(folder, home)))
    if kind == "adapter":
        done = launch_in(home, "merge", f"{folder.parent.name}/{kind}")
        assert done.returncode == 0, done.stdout + done.stderr
        golden("runs/merge", list(describe_folder(folder / "merged", home)))


def describe_folder(folder: Path, home: Path) -> Iterator[str]:
    """Yield the tree, then each file's contents."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in files]
    yield from names
    for path, name in zip(files, names, strict=True):
        if NOT_RECORDED.search(name):
            continue
        yield from ("", f"== {name}")
        yield from (_mask(line, home) for line in _describe_file(path))


def _describe_file(path: Path) -> Iterator[str]:
    if path.suffix == ".safetensors":
        yield from _describe_tensors(path)
        return
    if b"\0" in path.read_bytes()[:1000]:
        return  # pickled
    text = path.read_text(encoding="utf-8")
    if path.name in STREAMS:
        rows = [json.loads(line) for line in text.splitlines()]
        yield from _describe_stream(rows)
    elif path.suffix == ".json" or path.name == "DONE":
        for key, value in flatten(json.loads(text)):
            yield f"{key} = {_stable(key, value)}"
    else:
        yield from text.splitlines()


def _describe_stream(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each kind of row: how many there are is a matter of the clock, unless it is
    a step.
    """
    shown: set[str] = set()
    for row in rows:
        leaves = ", ".join(f"{key} = {_stable(key, value)}" for key, value in flatten(row))
        if leaves not in shown:
            shown.add(leaves)
            yield leaves


def _describe_tensors(path: Path) -> Iterator[str]:
    """Yield name, type and shape of each tensor (the file's header: its length as 8 bytes, then
    JSON).
    """
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    for name, tensor in sorted(header.items()):
        yield (
            f"{name} {tensor}"
            if name == "__metadata__"
            else f"{name} {tensor['dtype']} {tensor['shape']}"
        )


def _stable(key: str, value: str) -> str:
    """Return a leaf's JSON text as it is on every machine."""
    if _EXACT.search(key) and re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", value):
        return f"{float(value):.2g}"
    if value.startswith('["'):
        # a set, written as a list
        return json.dumps(sorted(json.loads(value))) if key.endswith("_modules") else value
    if _MEASURED.search(key) and value != "null":
        return "{measured}"
    if re.fullmatch(r"-?\d+\.\d+(e-?\d+)?", value) and len(value) > 8:
        return "{number}"
    return value


def _mask(line: str, home: Path) -> str:
    places = {
        str(home): "{cwd}",
        str(resources.ROOT): "{project}",
        sys.executable: "{python}",
        sys.prefix: "{venv}",
    }
    for place, name in sorted(places.items(), key=lambda item: -len(item[0])):
        line = line.replace(place, name)
    # the tests' own, with the imports done
    line = re.sub(r"/tmp/warm-\w+/\w+/bin/python", "{python}", line)
    line = re.sub(r"lengths/[0-9a-f]{8}\b", "lengths/{key}", line)
    line = re.sub(
        r"^(model\.(?:base_)?files\.\S+|files\.model\.safetensors) = .*", r"\1 = {digest}", line
    )
    line = re.sub(r'\b(found|value) = "\d+\.\d+"', r'\1 = "{number}"', line)
    line = re.sub(r"\b[\d.]+ times the largest before it", "# times the largest before it", line)
    line = re.sub(r"\b20\d\d-\d\d-\d\d[T ][\d:.]+Z?", "{time}", line)
    line = re.sub(r"\b\d+(\.\d+)? (seconds|s|MiB|GiB|MB|GB|tokens/s)\b", r"# \2", line)
    # where a library has a line
    return re.sub(r"(\w+/[\w/]+\.py):\d+ \((\w+) [\d.]+\)", r"\1 (\2)", line)
