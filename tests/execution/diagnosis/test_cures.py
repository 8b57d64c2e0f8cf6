"""The table of known causes, with what the libraries really print; the cures are computed from the
plan.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.config.kinds import Kind
from launch.config.schema import Mode
from launch.execution.diagnosis.advice import Cure, Situation, cure_for_errors
from launch.execution.diagnosis.causes import CauseFinder
from launch.execution.diagnosis.tracebacks import (
    RaisedError,
    event_chain,
    parse_error,
    printed_chain,
)
from launch.execution.record.events import Event
from launch.planning.batch_split import Batch
from launch.planning.estimate.setting import Attention, MemorySetting
from launch.planning.estimate.shape import ModelShape, with_parameters
from launch.worker.trainer import error_chain
from tests.execution.diagnosis.test_corpus import CORPUS, SITUATION
from tests.messages import values_of


def with_settings(**changes: Any) -> Situation:
    """The situation of the corpus with other settings of the run."""
    return replace(SITUATION, settings=replace(SITUATION.settings, **changes))


def cure_for(text: str, situation: Situation) -> Cure | None:
    found = cure_for_errors([parse_error(text)], situation)
    return found[1] if found else None


def test_cures_need_no_plan() -> None:
    for entry in CORPUS:
        found = cure_for_errors(printed_chain(entry["log"].splitlines()), Situation())
        assert found is None or "None" not in found[1].text


def test_an_unknown_cause_has_none() -> None:
    assert cure_for("ValueError: the data has no column 'messages'", SITUATION) is None
    assert cure_for("ValueError: No module named 'kernels'", SITUATION) is None


def test_a_certain_cure_goes_before_an_uncertain_one_and_the_root_before_the_rest() -> None:
    outer = RaisedError("OSError", "[Errno 28] No space left")
    root, decoding = (
        RaisedError(type, message, packages=("pandas", "datasets"))
        for type, message in (
            ("JSONDecodeError", "Expecting value"),
            ("UnicodeDecodeError", "'utf-8' codec can't decode"),
        )
    )
    found = cure_for_errors([root, RaisedError("OSError", "No space left on device")], SITUATION)
    assert found is not None and found[1].id == "disk_full"
    found = cure_for_errors([root, outer], SITUATION)
    assert found is not None and found[0] is outer
    found = cure_for_errors([root, decoding], SITUATION)
    assert found is not None and found[0] is root and found[1].text.startswith("possibly: ")


def fail(*, because: bool) -> list[RaisedError]:
    """Fail after a failed import, because of it or in its handler, as a worker reports it."""
    try:
        try:
            raise ModuleNotFoundError("No module named 'peft'")
        except ImportError as error:
            if because:
                raise RuntimeError("Failed to import trl.trainer") from error
            raise ValueError("the fallback took the wrong turn")  # noqa: B904 - in its handler
    except Exception as error:
        return event_chain({"chain": error_chain(error)})
    raise AssertionError


def test_the_cure_of_a_failed_import_is_uncertain_where_it_was_handled() -> None:
    for because in (True, False):
        chain = fail(because=because)
        assert [error.was_handled for error in chain] == [not because, False]
        found = cure_for_errors(chain, SITUATION)
        assert found is not None and found[1].id == "missing_package"
        assert found[1].text.startswith("possibly: ") != because
    certain = cure_for_errors(
        [*fail(because=False)[:1], RaisedError("OSError", "No space left on device")], SITUATION
    )
    assert certain is not None and certain[1].id == "disk_full"


OUT = "torch.OutOfMemoryError: CUDA out of memory"


@pytest.mark.parametrize(
    ("batch", "size", "accumulation"),
    [
        (Batch(96, 6, 2, 8), 4, 3),
        (Batch(30, 15, 1, 2), 5, 3),
        (Batch(7, 7, 1, 1), 1, 7),
    ],
)
def test_the_next_smaller_batch_divides_the_global_one(
    batch: Batch, size: int, accumulation: int
) -> None:
    cure = cure_for(OUT, with_settings(batch=batch))
    assert cure is not None
    values = {f"recipe.per_device_batch_size={size}", str(batch.global_), str(accumulation)}
    assert values <= set(values_of(cure.text))


def test_the_first_setting_that_is_predicted_to_fit_the_card_is_named() -> None:
    shape = with_parameters(ModelShape(0, 32, 4096, 14336, 32, 8, 128256))
    setting = MemorySetting(shape, Kind.sft, Mode.zero3, 8, 16, 16 * 4096, accumulation=1)
    message = (
        f"{OUT}. Tried to allocate 31.31 GiB. GPU 0 has a total capacity of 139.80 GiB of "
        "which 7.16 GiB is free."
    )
    cure = cure_for(
        message, with_settings(batch=Batch(128, 16, 1, 8), mode=Mode.zero3, memory=setting)
    )
    assert cure is not None and "recipe.per_device_batch_size=2" in values_of(cure.text)
    unsized = cure_for(
        OUT, with_settings(batch=Batch(128, 16, 1, 8), mode=Mode.zero3, memory=setting)
    )
    assert unsized is not None and "recipe.per_device_batch_size=8" in unsized.text


@pytest.mark.parametrize(
    ("mode", "following"),
    [(Mode.ddp, Mode.zero2), (Mode.zero2, Mode.zero3), (Mode.zero3, Mode.zero3_offload)],
)
def test_at_one_sample_the_next_zero_stage_and_more_gpus(mode: Mode, following: Mode) -> None:
    cure = cure_for(OUT, with_settings(batch=Batch(128, 1, 16, 8), mode=mode))
    assert cure is not None
    assert "recipe.gradient_checkpointing=true" in cure.text
    assert f"parallel={following}," in cure.text and "gpus=16" in cure.text
    last = cure_for(
        OUT,
        with_settings(
            batch=Batch(8, 1, 1, 8), mode=Mode.zero3_offload, gradient_checkpointing=True
        ),
    )
    assert last is not None and "parallel=" not in last.text and "more GPUs" in last.text


def test_what_does_not_plan_is_not_advised() -> None:
    refused = with_settings(
        batch=Batch(128, 2, 8, 8), plans=lambda override: "parallel" in override
    )
    cure = cure_for(OUT, refused)
    assert cure is not None and "set parallel=zero3, or recipe.max_seq_length=2048" in cure.text
    assert "recipe.per_device_batch_size=" not in cure.text and "gpus=" not in cure.text


WATCHDOG = (
    "[rank{rank}]:[E820 09:00:00.1 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught "
    "collective operation "
    "timeout: WorkNCCL(SeqNum={number}, OpType={kind}, NumelIn=1, NumelOut=1, Timeout(ms)=600000) "
    "ran for 600001 ms"
)


def test_an_nccl_timeout_names_the_collective_and_who_was_absent() -> None:
    finder = CauseFinder(range(4))
    for rank, number, kind in ((0, 12, "ALLREDUCE"), (2, 12, "ALLREDUCE"), (3, 11, "ALLGATHER")):
        finder.add_lines(rank, [WATCHDOG.format(rank=rank, number=number, kind=kind)], 5.0)
    cause = finder.find_cause(-6, SITUATION)
    assert cause.line == (
        "NCCL timeout: ranks 0, 2 waited in ALLREDUCE number 12, rank 3 waited in ALLGATHER number "
        "11; "
        "rank 1 had not arrived"
    )
    assert cause.cure is not None and cause.cure.id == "nccl_timeout"


def test_a_gloo_timeout_too() -> None:
    finder = CauseFinder([0, 1])
    trace = [
        "Traceback (most recent call last):",
        '  File "train.py", line 9, in <module>',
        "    dist.all_reduce(loss)",
    ]
    message = "[unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation to complete"
    finder.add_lines(0, [*trace, f"RuntimeError: {message}"], 5.0)
    finder.add_error(Event("error", 5.0, 0, {"message": message, "type": "RuntimeError"}))
    cause = finder.find_cause(1)
    assert (
        cause.line
        == "a collective timed out after 5 s: rank 0 waited in all_reduce; rank 1 had not arrived"
    )
    assert cause.cure is not None and cause.cure.id == "nccl_timeout"


def test_an_error_that_came_before_the_time_out_is_the_cause() -> None:
    finder = CauseFinder([0, 1])
    finder.add_lines(0, [WATCHDOG.format(rank=0, number=1, kind="ALLREDUCE")], 600.0)
    finder.add_error(
        Event("error", 5.0, 1, {"message": "CUDA out of memory", "type": "OutOfMemoryError"})
    )
    cause = finder.find_cause(1, SITUATION)
    assert (cause.rank, cause.line) == (1, "OutOfMemoryError: CUDA out of memory")
    assert cause.cure is not None and cause.cure.id == "out_of_memory"


def test_the_error_itself_is_more_telling_than_the_lines_before_it() -> None:
    finder = CauseFinder([0])
    lines = [("warning: Address already in use, trying the next "
             "port"), "Traceback (most recent call last):",
             ('  File "x.py", line 1, in '
             '<module>'), "ModuleNotFoundError: No module named 'trl'"]  # fmt: skip
    finder.add_lines(0, lines, 1.0)
    cure = finder.find_cause(1).cure
    assert cure is not None and cure.id == "missing_package"


def test_a_library_that_aborts_is_understood_by_its_last_lines() -> None:
    finder = CauseFinder([0])
    finder.add_lines(
        0,
        [
            "terminate called after throwing an instance of 'std::bad_alloc'",
            "  what():  std::bad_alloc",
        ],
        1.0,
    )
    cure = finder.find_cause(-6).cure
    assert cure is not None and cure.id == "host_memory"


def test_a_smaller_batch_is_the_largest_that_the_data_allows(tmp_path: Path) -> None:
    """With the lengths that the trainer wrote: eight long samples are rare, and a batch of them is
    never all long.
    """
    shape = with_parameters(ModelShape(0, 32, 4096, 14336, 32, 8, 128256))
    memory = MemorySetting(
        shape, Kind.sft, Mode.single, 1, 32, 32 * 4096, packing=True, liger=True, fused_loss=True
    )
    memory = replace(memory, attention=Attention.flash)
    file = tmp_path / "lengths.json"
    counts = {"tokens": {"200": 900, "1000": 100}, "label_tokens": None}
    file.write_text(json.dumps({"schema_version": 1, "kind": "sft", **counts}), encoding="utf-8")
    message = "torch.OutOfMemoryError: CUDA out of memory. GPU 0 has a total capacity of 139.80 GiB"
    by_limit, by_lengths = (
        cure_for(
            message,
            with_settings(batch=Batch(32, 32, 1, 1), mode=Mode.single, memory=memory, lengths=path),
        )
        for path in (None, file)
    )
    assert (
        by_limit
        and "per_device_batch_size=2:" in by_limit.text
        and "at the maximum length" in by_limit.text
    )
    assert (
        by_lengths
        and "per_device_batch_size=8:" in by_lengths.text
        and "longest micro batch" in by_lengths.text
    )
