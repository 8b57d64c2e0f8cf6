"""What a plan asks of the trainer's state: read, compared, and said in one sentence."""

from __future__ import annotations

import pytest

from launch.worker.expectations import EVIDENCE, Expectations, ExpectedState, describe_mismatch, parse_expectations


def test_every_key_is_read() -> None:
    pairs = ["distributed=DEEPSPEED", "world_size=2", "zero_stage=3", "device=cpu"]
    assert parse_expectations(pairs) == Expectations(ExpectedState("DEEPSPEED", 2, 3, "cpu"))
    assert parse_expectations([]) == Expectations()


def test_every_kind_of_evidence_is_read() -> None:
    pairs = {
        "liger": "rms_norm,rope,swiglu",
        "packing": "flatten",
        "balanced": "true",
        "loss_averaging": "tokens",
        "attention": "flash_2",
        "clip": "1e-05",
        "dtype": "bf16",
        "gradient_checkpointing": "true",
        "chat_template": "tulu",
        "resumed_step": "40",
        "lora": "16",
        "base_dtype": "nf4",
        "first_update": "adapter",
        "global_batch": "96 samples",
    }
    assert parse_expectations([f"{key}={value}" for key, value in pairs.items()]) == Expectations(evidence=pairs)
    assert set(pairs) == set(EVIDENCE)


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        (
            "size=2",
            (
                "unknown expectation 'size'; known are attention, balanced, base_dtype, chat_template, clip, device, "
                "distributed, dtype, first_update, global_batch, gradient_checkpointing, liger, lora, loss_averaging, "
                "packing, resumed_step, world_size, zero_stage"
            ),
        ),
        ("distributed=DDP", "expectation distributed=DDP: must be one of NO, MULTI_CPU, MULTI_GPU, DEEPSPEED"),
        ("device=gpu", "expectation device=gpu: must be one of cpu, cuda"),
        ("world_size=two", "expectation world_size=two: must be a whole number"),
        ("zero_stage", "expectation zero_stage=: must be a whole number"),
        ("packing=some", r"expectation packing=some: must match none\|flatten\|bins"),
        ("dtype=bf17", r"expectation dtype=bf17: must match bf16\|fp32"),
    ],
)
def test_what_can_not_be_asked_is_refused(pair: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}$"):
        parse_expectations([pair])


@pytest.mark.parametrize(
    ("requested", "actual", "sentence"),
    [
        (
            ExpectedState("DEEPSPEED", 2, 3),
            ExpectedState("MULTI_CPU", 2, 0, "cpu"),
            (
                "requested ZeRO-3 on 2 ranks, but the trainer has MULTI_CPU on 2 ranks on cpu: without a GPU "
                "accelerate needs the patch deepspeed_on_cpu to connect DeepSpeed's ranks"
            ),
        ),
        (
            ExpectedState("MULTI_CPU", 2),
            ExpectedState("NO", 1, 0, "cpu"),
            (
                "requested MULTI_CPU on 2 ranks, but the trainer has NO on 1 rank on cpu: the processes did not find "
                "each other, so each would train alone"
            ),
        ),
        (
            ExpectedState("MULTI_GPU", 8, device="cuda"),
            ExpectedState("MULTI_CPU", 8, 0, "cpu"),
            (
                "requested MULTI_GPU on 8 ranks on cuda, but the trainer has MULTI_CPU on 8 ranks on cpu: torch sees "
                "no GPU on this machine"
            ),
        ),
        (
            ExpectedState("DEEPSPEED", 8, 3),
            ExpectedState("DEEPSPEED", 8, 2, "cuda"),
            ("requested ZeRO-3 on 8 ranks, but the trainer has ZeRO-2 on 8 ranks on cuda: this is not the planned run"),
        ),
    ],
)
def test_a_mismatch_is_one_sentence(requested: ExpectedState, actual: ExpectedState, sentence: str) -> None:
    assert describe_mismatch(requested, actual) == sentence


def test_only_what_was_asked_is_compared() -> None:
    actual = ExpectedState("DEEPSPEED", 2, 3, "cpu")
    assert describe_mismatch(ExpectedState(), actual) is None
    assert describe_mismatch(ExpectedState(world_size=2), actual) is None
    assert describe_mismatch(actual, actual) is None
    assert describe_mismatch(ExpectedState(zero_stage=0), actual) is not None
