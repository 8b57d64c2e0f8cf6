"""What an optimizer keeps: on real optimizers of a tiny model, and in the plan of one of 8b."""

from __future__ import annotations

from typing import Any

import pytest

from launch.__main__ import main
from launch.api.cures import apply_action, exact_actions, explain_problems
from launch.check.machine.disk import written_bytes
from launch.check.machine.memory import state_bytes
from launch.config.line import CommandLine
from launch.errors import UserError
from launch.planning.estimate.cards import CardMemory
from launch.planning.estimate.forecast import MemoryForecast, describe_forecast, forecast_memory
from launch.planning.estimate.memory import estimate_memory
from launch.planning.estimate.optimizers import factored_bytes, find_optimizer
from launch.planning.estimate.planned_setting import planned_optimizer, planned_setting
from launch.planning.estimate.shape import ModelShape
from launch.worker.finding import Finding
from tests.conftest import planned
from tests.planning.estimate.grid import read_settings

TRL = ("stage=sft", "trainer=trl_sft", "gpus=1")
QLORA = ("stage=lora_sft", "trainer=finetune", "recipe.lora.quantize=nf4")
BF16 = "flags.dtype=bfloat16"


def forecast(*overrides: str, gib: float = 74.5) -> MemoryForecast:
    card = CardMemory(gib, "a card")
    return forecast_memory(planned(*overrides), {}, card=card, lengths=None, flash=False)


@pytest.mark.parametrize(
    ("overrides", "gib"),
    [
        ((), 59.83),  # two fp32 numbers for each of 8.03e9 weights
        (("recipe.optimizer=adamw",), 59.83),
        (("flags.optim=adamw_torch",), 59.83),
        ((BF16,), 29.92),
        # 7.505e9 weights of 2.03 bytes, and an embedding of 0.525e9 with 8
        (("recipe.optimizer=adamw_8bit",), 18.11),
        (("flags.optim=adamw_bnb_8bit",), 18.11),
        (("recipe.optimizer=adamw_8bit", BF16), 18.11),
        (("recipe.optimizer=paged_adamw_8bit",), 0.22),  # the scales alone
        (("flags.optim=paged_adamw_32bit",), 0.0),
        (("recipe.optimizer=adafactor",), 0.01),
        (("flags.optim=lion_8bit",), 9.06),  # 7.505e9 weights of 1.016 bytes, an embedding with 4
        (("flags.optim=ademamix_8bit",), 27.16),
        (("flags.optim=sgd",), 0.0),
    ],
)
def test_the_optimizer_of_8b_by_its_name(overrides: tuple[str, ...], gib: float) -> None:
    worst = forecast(*TRL, *overrides).worst
    assert worst is not None and worst.optimizer == pytest.approx(gib, abs=0.01)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ((*TRL, "flags.optim=lomo"), "lomo"),
        ((*TRL, "flags.optim=adamw_torch_8bit"), "adamw_torch_8bit"),
        ((*TRL, "recipe.optimizer=adafactor", "flags.optim_args='beta1=0.9'"), "adafactor"),
        (("stage=sft", "trainer=trl_sft", "recipe.optimizer=adamw_8bit", "gpus=2"), "zero3"),
    ],
)
def test_an_optimizer_whose_states_are_unknown_has_no_estimate(
    overrides: tuple[str, ...], why: str
) -> None:
    found = forecast(*overrides)
    assert found.worst is None and why in found.why


@pytest.mark.parametrize(
    "row", read_settings("h200_optimizers_8b.json"), ids=lambda row: row["words"][-1]
)
def test_the_peak_of_8b_is_within_a_twentieth(row: dict[str, Any]) -> None:
    """Predicted before it was measured, one row of 4,096 tokens at a time."""
    setting = planned_setting(
        planned(
            *row["words"],
            "gpus=1",
            "recipe.max_seq_length=4096",
            "recipe.packing=none",
            "recipe.per_device_batch_size=1",
            "recipe.global_batch_size=4",
            "recipe.gradient_checkpointing=true",
        ),
        {},
        flash=True,
    )
    assert estimate_memory(setting).allocated == pytest.approx(row["memory_gib"], rel=0.05)


def test_an_adapter_has_the_states_of_its_optimizer() -> None:
    lora = ("stage=lora_sft", "trainer=trl_sft", "gpus=1", "recipe.lora.rank=64")
    sizes = []
    for name in ("adamw", "adamw_8bit", "adafactor"):
        worst = forecast(*lora, f"recipe.optimizer={name}").worst
        assert worst is not None
        sizes.append(worst.optimizer)
    adamw, eight_bit, adafactor = sizes
    assert eight_bit == pytest.approx(adamw * 2.03125 / 8)
    assert adafactor == pytest.approx(adamw / 128)


# The names whose memory is unknown: of other packages, or with temporaries that nobody has counted.
UNKNOWN = """adagrad adalomo adamw_anyprecision adamw_torch_4bit adamw_torch_8bit adamw_torch_npu_fused
adamw_torch_xla apollo_adamw apollo_adamw_layerwise galore_adafactor galore_adafactor_layerwise
galore_adamw galore_adamw_8bit galore_adamw_8bit_layerwise galore_adamw_layerwise grokadamw lomo rmsprop
schedule_free_adamw schedule_free_radam schedule_free_sgd stable_adamw"""


def test_every_name_of_transformers_is_known_or_unknown() -> None:
    names = pytest.importorskip("transformers.training_args").OptimizerNames
    trainer = planned(*TRL).config.trainer
    unknown = {
        name.value for name in names if find_optimizer(trainer, {"optim": name.value}) is None
    }
    assert unknown == set(UNKNOWN.split())


@pytest.mark.parametrize(
    ("chosen", "gib", "changed"),
    [
        ((), 74.5, {"recipe.optimizer=adamw_8bit", BF16}),
        (("recipe.optimizer=adamw_8bit",), 74.5, {BF16}),
        (("recipe.optimizer=paged_adamw_8bit",), 74.5, {BF16}),
        (("recipe.optimizer=adafactor",), 74.5, {BF16}),
        (("flags.optim=lion_8bit",), 74.5, {BF16}),
        ((BF16,), 62.0, {"recipe.optimizer=adamw_8bit"}),
        ((BF16,), 44.0, {"recipe.optimizer=paged_adamw_8bit"}),
        (("recipe.optimizer=adamw_8bit", BF16), 44.0, {"recipe.optimizer=paged_adamw_8bit"}),
        ((), 95.0, {"recipe.optimizer=paged_adamw_8bit"}),
    ],
)
def test_8b_gets_a_plan_on_one_card(chosen: tuple[str, ...], gib: float, changed: set[str]) -> None:
    before = forecast(*TRL, *chosen, gib=gib)
    assert before.fit in ("won't fit", "tight") and before.remedy is not None
    overrides = [f"{key}={value}" for key, value in before.remedy.overrides.items()]
    assert set(overrides) - {"recipe.liger=true"} == changed
    kept = [override for override in chosen if override.partition("=")[0] not in str(overrides)]
    assert forecast(*TRL, *kept, *overrides, gib=gib).fit == "fits"


def test_a_flag_in_the_way_of_the_key_is_left_alone() -> None:
    found = forecast(*TRL, "flags.optim=adamw_torch_fused", gib=74.5)
    assert found.fit == "won't fit" and "recipe.optimizer" not in str(found.remedy)


@pytest.mark.parametrize(
    ("dtype", "weights"), [("float32", 29.92), ("bfloat16", 14.96), ("auto", 14.96)]
)
def test_the_type_of_the_weights(dtype: str, weights: float) -> None:
    worst = forecast(*TRL, f"flags.dtype={dtype}").worst
    assert worst is not None and worst.parameters == pytest.approx(weights, abs=0.01)
    model, _ = written_bytes(planned(*TRL, f"flags.dtype={dtype}"), {}) or (0.0, 0.0)
    assert model / (1 << 30) == pytest.approx(weights, abs=0.01)


def test_what_is_offloaded_is_told_with_what_holds_it() -> None:
    two = ("stage=sft", "gpus=2", "recipe.liger=true", "parallel=zero3_offload")
    lines = describe_forecast(forecast(*two, gib=24.0))
    assert "the machine's own memory holds 120 GiB of it" in lines
    smaller = describe_forecast(forecast("stage=sft", "gpus=2", gib=24.0))
    assert any("parallel=zero3_offload" in line and "120 GiB" in line for line in smaller)
    paged = describe_forecast(forecast(*TRL, BF16, "recipe.optimizer=paged_adamw_8bit", gib=74.5))
    assert any("17.9 GiB" in line for line in paged)


@pytest.mark.parametrize(
    ("overrides", "weights", "states"),
    [
        ((), 29.92, 59.83),
        (("recipe.optimizer=adamw_8bit",), 29.92, 18.11),
        (("recipe.optimizer=paged_adamw_8bit",), 29.92, 18.11),  # saved wherever they lie
        (("recipe.optimizer=paged_adamw_8bit", BF16), 14.96, 18.11),
        (("recipe.optimizer=adafactor",), 29.92, 0.01),
        (("flags.optim=lomo",), 29.92, 59.83),  # unknown: AdamW's
    ],
)
def test_a_checkpoint_has_the_states_of_its_optimizer(
    overrides: tuple[str, ...], weights: float, states: float
) -> None:
    model, checkpoint = written_bytes(planned(*TRL, *overrides), {}) or (0.0, 0.0)
    assert model / (1 << 30) == pytest.approx(weights, abs=0.01)
    assert (checkpoint - model) / (1 << 30) == pytest.approx(states, abs=0.01)


def test_a_checkpoint_of_olmo_core_is_fp32() -> None:
    words = ("stage=dpo", "trainer=dpo", "model=olmo2_1b", "gpus=2")
    plan = planned(*words, "recipe.per_device_batch_size=1")
    model, checkpoint = written_bytes(plan, {}) or (0.0, 0.0)
    assert plan.shape is not None
    weights = plan.shape.parameters
    assert (model / weights, checkpoint / weights) == (pytest.approx(4), pytest.approx(12))


@pytest.mark.parametrize(
    ("overrides", "adapter", "checkpoint"),
    [
        ((), 4, 12),
        (("recipe.optimizer=adamw_8bit",), 4, 6.03),
        (("recipe.optimizer=adafactor",), 4, 4 + 4 / 16),
        (("recipe.lora.modules_to_save=[lm_head]",), 4 + 25.05, 12 + 3 * 25.05),
    ],
)
def test_an_adapters_checkpoint_has_its_optimizer_and_whole_modules(
    overrides: tuple[str, ...], adapter: float, checkpoint: float
) -> None:
    """In bytes for each of the adapter's weights; the head has 525e6 of 2 bytes."""
    lora = ("stage=lora_sft", "trainer=trl_sft", "gpus=1", "recipe.lora.rank=16")
    sizes = written_bytes(planned(*lora, *overrides), {}) or (0.0, 0.0)
    assert sizes[0] / 41_943_040 == pytest.approx(adapter, rel=0.01)
    assert sizes[1] / 41_943_040 == pytest.approx(checkpoint, rel=0.01)


def test_paged_states_need_room_on_the_host() -> None:
    plan = planned(*TRL, BF16, "recipe.optimizer=paged_adamw_8bit")
    device, host = state_bytes(plan, 8.03e9)
    assert device / 8.03e9 == pytest.approx(4.03, abs=0.01) and host / 8.03e9 > 2


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        (("stage=sft", "recipe.optimizer=adamw_8bit"), "unsupported_recipe"),
        (("stage=sft", "recipe.optimizer=paged_adamw_8bit"), "optimizer_needs_qlora"),
        (
            (*QLORA, "recipe.optimizer=adamw"),
            "optimizer_of_qlora",
        ),
        (("stage=sft", "trainer=trl_sft", "recipe.optimizer=lomo"), "unsupported_recipe"),
        (
            ("stage=sft", "trainer=trl_sft", "recipe.optimizer=adamw", "flags.optim=adafactor"),
            "flag_over_recipe",
        ),
    ],
)
def test_an_optimizer_that_a_trainer_lacks_is_refused(
    overrides: tuple[str, ...], found: str
) -> None:
    with pytest.raises(UserError) as refused:
        planned(*overrides, "gpus=1")
    assert found in {problem.id for problem in refused.value.problems}


@pytest.mark.parametrize(
    "name",
    [
        "adamw_torch",
        "adamw_8bit",
        "adafactor",
        "sgd",
        "lion_8bit",
        "lion_32bit",
        "rmsprop_bnb",
        "rmsprop_bnb_8bit",
        "ademamix",
        "ademamix_8bit",
    ],
)
@pytest.mark.parametrize("tied", [False, True])
def test_the_states_of_a_real_optimizer(name: str, tied: bool, tmp_path: Any) -> None:
    transformers = pytest.importorskip("transformers")
    kept = planned_optimizer(planned(*TRL, f"flags.optim={name}"))
    if kept.package:
        pytest.importorskip(kept.package)
    size = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 256}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    config = transformers.LlamaConfig(**size, **heads, tie_word_embeddings=tied)
    model = transformers.AutoModelForCausalLM.from_config(config)
    arguments = transformers.TrainingArguments(str(tmp_path), optim=name, use_cpu=True)
    optimizer = transformers.Trainer(model, arguments).create_optimizer()
    for parameter in model.parameters():
        parameter.grad = parameter.detach() * 0.01 + 1e-3
    torch = pytest.importorskip("torch")
    with torch.compiler.set_stance("force_eager"):  # bitsandbytes compiles its step for a CPU
        optimizer.step()
    found = 0
    for state in optimizer.state.values():
        tensors = [v for k, v in state.items() if hasattr(v, "numel") and "qmap" not in k]
        found += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    shape = ModelShape(model.num_parameters(), 2, 128, 256, 4, 4, 64, tied=tied)
    predicted = kept.device_bytes(shape.parameters, shape.embedding, 4)
    if kept.factored:
        predicted = factored_bytes(shape)
        found -= 5 * 128 * 4  # of the norms, which are not counted
    assert found == pytest.approx(predicted, rel=0.02)


OLMO = "model=olmo2_1b"
LINES = {  # the words before the optimizer, by what the line is
    "sft": ("stage=sft",),
    "dpo": ("stage=dpo",),
    "finetune": ("stage=sft", "trainer=finetune"),
    "trl_sft": ("stage=sft", "trainer=trl_sft"),
    "olmo_core_finetune": (
        *("stage=sft", "trainer=olmo_core_finetune"),
        *(OLMO, "recipe.packing=bins"),
    ),
    "dpo_tune_cache": ("stage=dpo", "trainer=dpo_tune_cache"),
    "trl_dpo": ("stage=dpo", "trainer=trl_dpo"),
    "dpo.py": ("stage=dpo", "trainer=dpo", OLMO),
    "trl_kto": ("stage=kto",),
}
VALUES = ("adamw", "adamw_8bit", "paged_adamw_8bit", "adafactor", "muon")


@pytest.mark.parametrize("words", LINES.values(), ids=LINES)
@pytest.mark.parametrize("key", ["recipe.optimizer", "flags.optim"])
def test_each_cure_of_a_refused_optimizer_plans(words: tuple[str, ...], key: str) -> None:
    """As it is printed: each of its actions, in the place of what was refused."""
    for value in VALUES:
        line = CommandLine("plan", False, (*words, "gpus=1", f"{key}={value}"))
        stopped = [finding for finding in plan_findings(line) if finding.stops]
        for problem in explain_problems(("plan", *line.argv), line, stopped):
            names_choices = "must be one of adamw_torch, " in problem.message
            assert problem.cure is not None or names_choices, problem
            for action in exact_actions(problem.cure):
                after = plan_findings(apply_action(action, line))
                assert [str(finding) for finding in after if finding.stops] == [], action


def plan_findings(line: CommandLine) -> tuple[Finding, ...]:
    try:
        return tuple(planned(*line.argv).warnings)
    except UserError as refused:
        return refused.problems


@pytest.mark.parametrize(
    ("line", "advised"),
    [
        ("stage=demo optim=adafactor", ("trainer=trl_sft recipe.optimizer=adafactor",)),
        ("stage=sft gpus=1 recipe.optimizer=adafactor", ("recipe.optimizer=adamw", "trainer=trl_sft")),
        ("stage=sft gpus=1 recipe.optimizer=paged_adamw_8bit", ("recipe.optimizer=adamw", "trainer=trl_sft")),
        ("stage=sft gpus=1 trainer=finetune recipe.optimizer=adafactor", ("recipe.optimizer=adamw",)),
        ("stage=dpo gpus=1 recipe.optimizer=adafactor", ("recipe.optimizer=adamw", "trainer=trl_dpo")),
    ],
)  # fmt: skip
def test_the_cure_names_the_trainer_that_has_the_optimizer(
    line: str, advised: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *line.split()]) == 2
    printed = capsys.readouterr().err
    _, _, cure = printed.rpartition("; set ")
    for override in advised:
        assert override in cure
    assert cure.count("trainer=") == sum("trainer=" in override for override in advised)
    offers_paged = "recipe.optimizer=paged_adamw_8bit" in cure
    assert offers_paged == line.startswith("stage=dpo")  # finetune has it with QLoRA alone
