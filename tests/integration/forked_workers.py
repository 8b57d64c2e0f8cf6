"""Runs worker commands in children of one process that has imported the trainers' libraries, which
takes most of a run.

    python forked_workers.py JOBS.json

Each job is `argv` (the worker's file and its arguments), `env`, `cwd`, `log`, and for a training
job `batches`: the file that the first batches, of at least `rows` samples, are written to; the job
ends there.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any


def import_libraries() -> None:
    for name in (
        "torch",
        "accelerate",
        "datasets",
        "trl.trainer.sft_trainer",
        "trl.trainer.dpo_trainer",
    ):
        importlib.import_module(name)
    with contextlib.suppress(ImportError):
        for name in ("deepspeed", "open_instruct.dpo_utils", "open_instruct.model_utils"):
            importlib.import_module(name)


def record_batches(path: str, rows: int) -> None:
    """Write what collators return for the first `rows` samples, and end."""
    import transformers
    from trl.trainer import dpo_trainer, sft_trainer

    places = [
        (transformers.DataCollatorForSeq2Seq, "__call__"),
        (sft_trainer.DataCollatorForLanguageModeling, "torch_call"),
        (dpo_trainer.DataCollatorForPreference, "torch_call"),
    ]
    with contextlib.suppress(ImportError):
        from open_instruct import dataset_transformation, dpo_utils, padding_free_collator

        places[:1] = [
            (transformers.DataCollatorForSeq2Seq, "__call__"),
            (dpo_utils.DataCollatorForSeq2SeqDPO, "__call__"),
            (dataset_transformation.SimplePreferenceCollator, "__call__"),
            (padding_free_collator.TensorDataCollatorWithFlattening, "__call__"),
        ]
    originals = [(cls, name, vars(cls)[name]) for cls, name in places]
    depth, batches, seen = [0], [], [0]

    def wrap(original: Any) -> Any:
        def collate(self: Any, features: Any, *arguments: Any, **options: Any) -> Any:
            depth[0] += 1
            batch = original(self, features, *arguments, **options)
            depth[0] -= 1
            if depth[0] == 0:
                batches.append(
                    {
                        name: value.tolist()
                        for name, value in batch.items()
                        if hasattr(value, "tolist")
                    }
                )
                seen[0] += len(features)
                if seen[0] >= rows:
                    Path(path).write_text(json.dumps(batches), encoding="utf-8")
                    os._exit(0)
            return batch

        return collate

    for cls, name, original in originals:
        setattr(cls, name, wrap(original))
    with contextlib.suppress(ImportError):
        record_packed_rows(path)


def record_packed_rows(path: str) -> None:
    """Write all rows of an epoch as OLMo-core's data loader reads them, when it reads the first,
    and end.
    """
    from olmo_core.data import NumpyPackedFSLDataset

    read = NumpyPackedFSLDataset.__getitem__

    def read_all(dataset: Any, index: int) -> Any:
        rows = [read(dataset, number) for number in range(len(dataset))]
        batch = {name: [row[name].tolist() for row in rows] for name in ("input_ids", "label_mask")}
        Path(path).write_text(json.dumps([batch]), encoding="utf-8")
        os._exit(0)

    NumpyPackedFSLDataset.__getitem__ = read_all


def run_job(job: dict[str, Any]) -> None:
    import torch

    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(job["env"])
    # In a fork torch makes its pool of threads anew, which two threads at once must not do.
    torch.set_num_threads(torch.get_num_threads())
    if job["cwd"]:
        os.chdir(job["cwd"])
    sys.path[:0] = job["env"].get("PYTHONPATH", "").split(os.pathsep)
    if "batches" in job:
        record_batches(job["batches"], job["rows"])
    # its names are bound as it is imported, which has to be after the patch olmo_core_on_cpu
    if sys.modules.pop("open_instruct.olmo_core_utils", None) is not None:
        del sys.modules["open_instruct"].olmo_core_utils  # type: ignore[attr-defined]
    sys.argv = job["argv"]
    sys.path.insert(0, str(Path(job["argv"][0]).parent))
    runpy.run_path(job["argv"][0], run_name="__main__")


def main() -> None:
    jobs = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    import_libraries()
    for job in jobs:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run_job(job)
                code = 0
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        os.waitpid(child, 0)


main()
