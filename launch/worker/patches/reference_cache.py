"""Improves open-instruct's disk cache of reference log-probabilities: its key, its permissions and its timing.

Upstream's key contains the model's name but not its content (dpo_utils.py:369-383). `launch` uses one folder for each
content of a local model; the commit of a hub model is known only once it is loaded, so it is added here.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from ..replacing import replaces
from .patch import PatchContext, PatchInfo


def add_commit(path: Path, commit: str | None) -> Path:
    """Return the cache file of the model at `commit` (None: not from the hub).

    >>> add_commit(Path("a/b.pt"), "0123456789abcdef").name
    'b-0123456789ab.pt'
    """
    return path if commit is None else path.with_name(f"{path.stem}-{commit[:12]}{path.suffix}")


def find_commit(model: Any) -> str | None:
    """Return the hub commit that a model was loaded from; None for a local folder."""
    while hasattr(model, "module"):  # DistributedDataParallel, DeepSpeed's engine
        model = model.module
    commit = getattr(getattr(model, "config", None), "_commit_hash", None)
    return str(commit) if commit else None


def describe_pass(pairs: int, seconds: float, *, is_cached: bool) -> dict[str, Any]:
    """Build the evidence fields for the pass over `pairs`; `is_cached`: they were read from disk.

    >>> describe_pass(600, 12.0, is_cached=False)["value"]
    '600 pairs in 12.0 s, 50.0 a second'
    """
    numbers: dict[str, Any] = {"pairs": pairs, "seconds": round(seconds, 3)}
    if is_cached:
        return {"value": f"{pairs:,} pairs read from the cache", **numbers}
    rate = pairs / seconds if seconds > 0 else 0.0
    value = f"{pairs:,} pairs in {seconds:.1f} s, {rate:.1f} a second"
    return {"value": value, **numbers, "pairs_per_second": round(rate, 3)}


def _patch_cache(context: PatchContext) -> None:
    from open_instruct import dpo_utils, model_utils

    umask = os.umask(0)
    os.umask(umask)

    @replaces(dpo_utils, "build_reference_logprobs_cache")
    def build_and_time(build: Any, **options: Any) -> Any:
        options["cache_path"] = add_commit(options["cache_path"], find_commit(options["model"]))
        is_cached, began = options["cache_path"].exists(), time.perf_counter()
        built = build(**options)
        if context.events.rank == 0:
            numbers = describe_pass(int(options["full_dataset_size"]), time.perf_counter() - began, is_cached=is_cached)
            context.events.emit("evidence", what="reference_logprobs", how="the call that builds the cache", **numbers)
        return built

    @replaces(model_utils.TensorCache, "to_disk")
    def write_for_all(write: Any, self: Any, path: Any) -> None:
        write(self, path)
        Path(path).chmod(0o666 & ~umask)


CACHE = PatchInfo(
    id="dpo_reference_cache",
    reason="the cache's name lacks the commit of a hub model, only its owner can read its file, and it is not timed",
    lines={
        "open_instruct/dpo_utils.py": {436: "if cache_path.exists():", 516: "cache.to_disk(cache_path)"},
        "open_instruct/model_utils.py": {107: "tempfile.NamedTemporaryFile(dir=path.parent, delete=False"},
        "open_instruct/dpo_tune_cache.py": {522: "reference_cache = dpo_utils.build_reference_logprobs_cache("},
    },
    apply=_patch_cache,
)
