"""Caches are keyed by what is in the local inputs: whatever is edited in place, its caches get
another key.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.planning import digest_cache
from launch.planning.build import build_plan
from launch.planning.digest_cache import DigestCache
from launch.planning.machine import Machine
from launch.planning.plan import Plan
from tests.conftest import composed, fixed_machine

MODES = ((1, "single"), (2, "ddp"), (2, "zero2"))


def machine(folder: Path) -> Machine:
    return fixed_machine(folder, digest=DigestCache(folder / "digests.json").of)


def inputs(folder: Path) -> None:
    (folder / "model").mkdir()
    for name in (
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "merges.txt",
        "chat_template.jinja",
    ):
        (folder / "model" / name).write_text(f"the first {name}")
    (folder / "data.jsonl").write_text('{"row": 1}\n' * 1000)


def plan_of(folder: Path, *more: str) -> Plan:
    overrides = ("stage=demo_dpo", "model.path=./model", "data.mix=[{name: ./data.jsonl}]", *more)
    return build_plan(
        composed("allow=[incomplete_model]", *overrides), machine(folder), reads_rows=False
    )


def keys(plan: Plan) -> tuple[str, str]:
    """The keys of the tokenised data and of the reference log-probabilities."""
    return (
        Path(str(plan.flags["local_cache_dir"].value)).name,
        Path(plan.env["REFERENCE_LOGPROBS_CACHE_PATH"]).name,
    )


def edit_row(folder: Path) -> None:
    """One character in the middle; size and times stay as they were."""
    path = folder / "data.jsonl"
    before = path.stat()
    text = path.read_text()
    path.write_text(text[:5000].replace("1", "2") + text[5000:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


def overwrite(name: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model" / name).write_text(f"the other {name}")

    return write


@pytest.mark.parametrize(
    ("change", "tokenized", "reference"),
    [
        (edit_row, True, True),
        (overwrite("tokenizer.json"), True, True),
        (overwrite("merges.txt"), True, True),
        (overwrite("chat_template.jinja"), True, True),
        (overwrite("model.safetensors"), False, True),
        (overwrite("config.json"), False, True),
    ],
)
def test_a_change_in_place_changes_the_key(
    tmp_path: Path, change: Callable[[Path], None], tokenized: bool, reference: bool
) -> None:
    inputs(tmp_path)
    before = plan_of(tmp_path)
    change(tmp_path)
    after = plan_of(tmp_path)
    differ = [old != new for old, new in zip(keys(before), keys(after), strict=True)]
    assert differ == [tokenized, reference]
    assert before.identity != after.identity


def test_the_keys_are_the_same_elsewhere(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        inputs(tmp_path / name)
    first, second = (plan_of(tmp_path / name) for name in ("here", "there"))
    assert keys(first) == keys(second)
    assert first.identity == second.identity


def test_caches_lie_where_the_plan_says(tmp_path: Path) -> None:
    inputs(tmp_path)
    plan = plan_of(tmp_path, "cache=./shared")
    for folder in (plan.flags["local_cache_dir"].value, plan.env["REFERENCE_LOGPROBS_CACHE_PATH"]):
        assert Path(str(folder)).is_relative_to(tmp_path / "shared")
    assert "/weka" not in " ".join(plan.command)


def test_a_reference_under_deepspeed_has_a_key_of_its_own(tmp_path: Path) -> None:
    inputs(tmp_path)
    plain, ddp, zero = (
        keys(plan_of(tmp_path, f"processes={ranks}", f"parallel={mode}")) for ranks, mode in MODES
    )
    assert plain == ddp and plain[0] == zero[0] and plain[1] != zero[1]


def test_a_tokenizer_of_its_own_counts(tmp_path: Path) -> None:
    inputs(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tokenizer.json").write_text("one")
    override = "flags.tokenizer_name_or_path=./other"
    before = keys(plan_of(tmp_path, override))
    (tmp_path / "other" / "tokenizer.json").write_text("two")
    assert keys(plan_of(tmp_path, override))[0] != before[0]


def test_digests_of_folders(tmp_path: Path) -> None:
    (tmp_path / "data" / "part").mkdir(parents=True)
    (tmp_path / "data" / "part" / "a.parquet").write_text("rows")
    (tmp_path / "data" / ".hidden").write_text("x")
    digests = DigestCache(tmp_path / "digests.json")
    before = digests.of(tmp_path / "data")
    (tmp_path / "data" / "part" / "a.parquet").write_text("ROWS")
    after = digests.of(tmp_path / "data")
    assert before != after  # a data set's folder is read to the bottom
    (tmp_path / "data" / ".hidden").write_text("y")
    assert digests.of(tmp_path / "data") == after
    (tmp_path / "data" / "part" / "a.parquet").rename(tmp_path / "data" / "part" / "b.parquet")
    assert digests.of(tmp_path / "data") != after  # the names count too
    (tmp_path / "data" / "part" / "b.parquet").rename(tmp_path / "data" / "part" / "a.parquet")
    (tmp_path / "data" / "config.json").write_text("{}")
    model = digests.of(tmp_path / "data")
    (tmp_path / "data" / "part").rename(tmp_path / "data" / "checkpoint-10")
    without = digests.of(tmp_path / "data")
    (tmp_path / "data" / "checkpoint-10" / "a.parquet").write_text("checkpoint")
    (tmp_path / "data" / "README.md").write_text("no part of it")
    assert digests.of(tmp_path / "data") == without != model
    (tmp_path / "data" / "additional_chat_templates").mkdir()
    (tmp_path / "data" / "additional_chat_templates" / "rag.jinja").write_text("{{ messages }}")
    assert digests.of(tmp_path / "data") != without
    assert digests.of(tmp_path / "nothing") is None


def test_a_digest_is_kept_once_the_file_has_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, kept = tmp_path / "data.jsonl", tmp_path / "digests.json"
    path.write_text("one")
    fresh = DigestCache(kept)
    fresh.of(path)
    fresh.save()
    assert not kept.exists()  # it may still change within the resolution of its times
    later = time.time() + 10
    monkeypatch.setattr(time, "time", lambda: later)
    settled = DigestCache(kept)
    value = settled.of(path)
    settled.save()
    reads: list[Path] = []
    real = Path.open
    monkeypatch.setattr(
        Path, "open", lambda self, *a, **k: reads.append(self) or real(self, *a, **k)
    )
    again = DigestCache(kept)
    assert again.of(path) == value
    assert path not in reads
    before = path.stat()
    path.write_text("two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as `cp --preserve` leaves it
    assert again.of(path) != value


def test_a_large_file_of_the_hubs_cache_is_known_by_its_name(tmp_path: Path) -> None:
    content = b"weights"
    blob = tmp_path / "models--a--b" / "blobs" / hashlib.sha256(content).hexdigest()
    blob.parent.mkdir(parents=True)
    blob.write_bytes(content)
    copied = tmp_path / "model.safetensors"
    copied.write_bytes(content)
    link = tmp_path / "models--a--b" / "snapshots" / "1" / "model.safetensors"
    link.parent.mkdir(parents=True)
    link.symlink_to(blob)
    digests = DigestCache(tmp_path / "digests.json")
    assert digests.of(link) == digests.of(copied)
    blob.chmod(0)
    assert digests.of(link) == digests.of(copied)  # it is not read


def test_another_file_in_the_place_of_a_known_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its inode, size and times are compared; a file that is replaced has another inode."""
    path = tmp_path / "data.jsonl"
    path.write_text("one")
    later = time.time() + 10
    monkeypatch.setattr(time, "time", lambda: later)
    digests = DigestCache(tmp_path / "digests.json")
    before = digests.of(path)
    other = tmp_path / "other"
    other.write_text("two")
    state = digest_cache.file_state(path)
    other.replace(path)
    # times that agree to the nanosecond, as on a file system that keeps only seconds
    monkeypatch.setattr(
        digest_cache, "file_state", lambda file: (state[0], file.stat().st_ino, *state[2:])
    )
    assert digests.of(path) != before


def test_a_file_that_another_node_has_read_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node numbers the device of a shared file system by itself."""
    path = tmp_path / "data.jsonl"
    path.write_text("one")
    later = time.time() + 10
    monkeypatch.setattr(time, "time", lambda: later)
    here = DigestCache(tmp_path / "digests.json")
    digest = here.of(path)
    here.save()
    device, *rest = digest_cache.file_state(path)
    monkeypatch.setattr(digest_cache, "file_state", lambda file: (device + 1, *rest))
    path.write_text("two")  # which would give another digest
    assert DigestCache(tmp_path / "digests.json").of(path) == digest


def test_a_model_that_a_run_makes_is_known_by_that_run(tmp_path: Path) -> None:
    inputs(tmp_path)
    (tmp_path / "model").rename(tmp_path / "later")
    overrides = ("model.trained_by='00000012'", "flags.tokenizer_name_or_path=./model")
    before = plan_of(tmp_path, *overrides)
    (tmp_path / "later").rename(tmp_path / "model")
    after = plan_of(tmp_path, *overrides)
    assert (after.identity, after.name) == (before.identity, before.name)
    # the caches hang on what is in it all the same
    assert all(old != new for old, new in zip(keys(before), keys(after), strict=True))
    assert keys(after) == keys(plan_of(tmp_path, overrides[1]))
    others = [("model.trained_by='00000013'", overrides[1]), (overrides[1],)]
    assert after.identity not in [plan_of(tmp_path, *other).identity for other in others]
    edit_row(tmp_path)
    assert plan_of(tmp_path, *overrides).identity != after.identity
