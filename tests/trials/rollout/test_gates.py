"""The gates at their borders, a line each; and what all of them have in common."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from launch.config.kinds import Kind
from launch.config.recipe_keys import Precision
from launch.config.schema import Device, Family
from launch.config.trials import GatesConfig
from launch.execution.record.outcome import Outcome
from launch.trials.rollout.gate import GateCase
from launch.trials.rollout.gates import mann_kendall
from launch.trials.rollout.gates_across import GATES, apply_gates, gate_json
from launch.worker.evidence import TOO_SHORT, Evidence
from tests.trials.rollout.cases import PROVEN, falling, gate_result, measured

Facts = dict[str, Any]  # arguments of `measured`
CPU: Facts = {"device": Device.cpu}
FP32: Facts = {"family": Family.trl, "precision": Precision.fp32}
OLMO = {"trainer": "olmo_core_finetune"}


class Case(NamedTuple):
    gate: str
    name: str
    verdict: str | None  # None: the gate does not judge
    now: Facts
    before: Facts | None = None  # the width before
    message: tuple[str, ...] = ()  # parts of it
    numbers: Facts | None = None  # instead of the configuration's


def column(name: str, *values: float, **more: Any) -> Facts:
    return {"losses": falling(len(values)), "columns": {name: values}, **more}


# ---- one width: the steps and the loss


def dead(steps: int = 2, **more: Any) -> Facts:
    return {"outcome": Outcome(1, 5.0, steps, None, cause="rank 1: boom", **more)}


def flat(count: int, rates: Sequence[float] = ()) -> Facts:
    losses = [2.0 + 0.01 * (-1) ** index for index in range(count)]
    return {"losses": losses, "columns": {"lr": rates or [1e-3] * count}}


SPIKE = [*falling(6), 50.0, *falling(5, 2.3)]
# ten steps of the start, ten of the end: 2.0 to 1.98 is just one per cent
ONE_PER_CENT = [2.0 - 1e-6 * index for index in range(50)] + [
    1.98 - 1e-6 * index for index in range(50)
]
SLOW_FALL = {"losses": ONE_PER_CENT, "columns": {"lr": [1e-3] * 100}}
WARM_UP = flat(60, [1e-3 * step / 110 for step in range(1, 61)])
PROGRESS = (
    Case("finished_steps", "all requested", "pass", {"requested": 10}),
    Case("finished_steps", "one is missing", "fail", {"losses": falling(9), "requested": 10}),
    Case(
        "finished_steps",
        "the data ended",
        "pass",
        {"losses": falling(7), "requested": 100, "total_steps": 7},
    ),
    Case(
        "finished_steps",
        "died",
        "fail",
        dead(cure="use less"),
        message=("rank 1: boom", "use less"),
    ),
    Case("finished_steps", "no step", "fail", {"losses": [], **dead(0)}),
    Case("loss_finite", "finite", "pass", {"losses": [1.0]}),
    Case("loss_finite", "nan", "fail", {"losses": [2.0, 1.9, math.nan, 1.8]}, message=("step 3",)),
    Case(
        "loss_finite",
        "infinite",
        "fail",
        {"losses": [2.0, 1.9, -math.inf, 1.8]},
        message=("step 3",),
    ),
    Case("loss_finite", "not logged", "fail", {"losses": [None, None]}),
    Case("loss_finite", "no step", None, {"losses": [], **dead(0)}),
    Case("loss_falls", "despite a spike", "pass", {"losses": SPIKE}),
    Case("loss_falls", "rises", "fail", {"losses": falling(12, start=1.0, by=-0.1)}),
    Case("loss_falls", "too few steps", "warn", {"losses": falling(7)}),
    Case("loss_falls", "just enough steps", "pass", {"losses": falling(8)}),
    Case("loss_falls", "flat in a short window", "warn", flat(49)),
    Case("loss_falls", "flat in a long window", "fail", flat(50)),
    Case("loss_falls", "flat in the warm-up", "warn", WARM_UP, message=("still rising",)),
    Case("loss_falls", "by more than the share", "pass", SLOW_FALL, numbers={"share": 0.0099}),
    Case("loss_falls", "by less than the share", "fail", SLOW_FALL, numbers={"share": 0.0101}),
    Case("grad_norm_sane", "at the limit", "pass", column("grad_norm", *[100.0] * 10)),
    Case("grad_norm_sane", "above the limit", "fail", column("grad_norm", *[100.1] * 10)),
    Case("grad_norm_sane", "nan", "fail", column("grad_norm", *[1.0] * 9, math.nan)),
    Case("grad_norm_sane", "ten times the usual", "pass", column("grad_norm", *[1.0] * 9, 10.0)),
    Case("grad_norm_sane", "one spike", "warn", column("grad_norm", *[1.0] * 9, 10.1)),
    Case("grad_norm_sane", "two spikes", "fail", column("grad_norm", *[1.0] * 8, 11.0, 11.0)),
    Case("grad_norm_sane", "not logged", "warn", {}),
    Case("grad_norm_sane", "no step", None, {"losses": [], **dead(0)}),
)

# ---- one width: what is in effect


def evidence(*items: tuple[str, str | None, str | None, str | None], **more: Any) -> Facts:
    """What was `(what, verdict, requested, found)`, beside one that is proven."""
    names = ("what", "verdict", "requested", "found")
    return {
        "evidence": [PROVEN, *({**dict(zip(names, item, strict=True))} for item in items)],
        **more,
    }


def backend(name: str, **more: Any) -> Facts:
    return evidence(("backend", None, None, name), ranks=2, **more)


LIGER = ("liger", "refuted", "rms_norm,rope", "none")
ANSWERS = ("complete_answers", "refuted", "above 10%", "0%")
UNPROVEN = ("packing", "unproven", "flatten", None)
SHORT = {
    "what": "first_update",
    "verdict": "unproven",
    "requested": "adapter",
    "found": None,
    "how": TOO_SHORT,
}
UNCHECKED = {**SHORT, "what": "liger", "how": "nothing checks it in this trainer"}
IN_FORCE = ("all 1 proven", "liger rms_norm,rope")
WITHOUT_LIGER = (Evidence("liger", "none", None, "rms_norm,rope", "refuted").sentence,)
PROOF = (
    Case(
        "evidence_complete",
        "proven",
        "pass",
        evidence(("liger", None, None, "rms_norm,rope")),
        message=IN_FORCE,
    ),
    Case("evidence_complete", "refuted", "fail", evidence(LIGER), message=WITHOUT_LIGER),
    Case(
        "evidence_complete",
        "refuted and allowed",
        "pass",
        evidence(ANSWERS, allow=["refuted_complete_answers"]),
    ),
    Case(
        "evidence_complete",
        "another one is allowed",
        "fail",
        evidence(ANSWERS, allow=["refuted_liger"]),
    ),
    Case("evidence_complete", "refuted at its end", "fail", evidence(LIGER, losses=[], **dead(0))),
    Case("evidence_complete", "unproven", "fail", evidence(UNPROVEN)),
    Case(
        "evidence_complete",
        "unproven and allowed",
        "pass",
        evidence(UNPROVEN, allow=["unproven_packing"]),
    ),
    Case(
        "evidence_complete",
        "died before",
        None,
        evidence(UNPROVEN, losses=falling(1), requested=9, **dead(1)),
    ),
    Case(
        "evidence_complete",
        "too short to prove",
        "pass",
        {"evidence": [PROVEN, SHORT]},
        message=("all 1 proven",),
    ),
    Case("evidence_complete", "no run stops for it", "fail", {"evidence": [PROVEN, UNCHECKED]}),
    Case("all_ranks_step", "one rank", None, {"ranks": 1}),
    Case("all_ranks_step", "all", "pass", {"ranks": 4}, message=("unknown backend",)),
    Case(
        "all_ranks_step",
        "rank 2 did not",
        "fail",
        {"ranks": 4, "inspected_ranks": [0, 1, 3]},
        message=("rank 2",),
    ),
    Case(
        "all_ranks_step", "none of OLMo-core", "fail", {"ranks": 2, "inspected_ranks": [], **OLMO}
    ),
    Case("all_ranks_step", "NCCL", "pass", backend("cuda:nccl")),
    Case("all_ranks_step", "NCCL for the GPUs", "pass", backend("cpu:gloo,cuda:nccl")),
    Case("all_ranks_step", "gloo for GPUs", "fail", backend("cpu:gloo,cuda:gloo")),
    Case("all_ranks_step", "gloo for CPUs", "pass", backend("cpu:gloo,cuda:gloo", **CPU)),
)

# ---- one width: memory and speed


def memory(peak: float, card: float | None = 100.0) -> Facts:
    return column("memory_gib", *[1.0] * 9, peak, card_gib=card)


def rates(seconds: list[float], tokens: float = 1000.0) -> Facts:
    return {
        "losses": falling(len(seconds)),
        "columns": {"seconds": seconds, "tokens": [tokens] * len(seconds)},
    }


def steady(second_half: float) -> Facts:
    """Two steps that do not count, five fast ones, five slower ones."""
    return rates([9.0, 9.0] + [1.0] * 5 + [1.0 / second_half] * 5)


def padding(tokens: float) -> Facts:
    return {"columns": {"tokens": [tokens] * 10, "tokens_padded": [100.0] * 10}}


RESERVED = {
    "columns": {"memory_gib": [1.0] * 10, "memory_reserved_gib": [96.0] * 10},
    "card_gib": 100.0,
}
OUT_OF_MEMORY = {
    "losses": falling(2),
    "requested": 10,
    **dead(cause_id="out_of_memory", cure="use less"),
}
HOST_MEMORY = {**OUT_OF_MEMORY, **dead(cause_id="host_memory", cure="use less")}
TOO_FEW = rates([1.0] * 6 + [100.0] * 5)
MACHINE = (
    Case("memory_room", "room", "pass", memory(94.9)),
    Case("memory_room", "little room", "warn", memory(95.1)),
    Case("memory_room", "an unknown card", "warn", memory(50.0, card=None)),
    Case("memory_room", "held by torch", "warn", RESERVED),
    Case("memory_room", "not logged", "warn", {}),
    Case("memory_room", "CPU", "pass", CPU),
    Case("memory_room", "out of memory", "fail", OUT_OF_MEMORY, message=("use less",)),
    Case(
        "memory_room", "out of host memory", "fail", {**HOST_MEMORY, **CPU}, message=("use less",)
    ),
    Case("throughput_steady", "71%", "pass", steady(0.71)),
    Case("throughput_steady", "69%", "warn", steady(0.69)),
    Case("throughput_steady", "26%", "warn", steady(0.26)),
    Case("throughput_steady", "24%", "fail", steady(0.24)),
    Case("throughput_steady", "too few steps", "pass", TOO_FEW, message=("too few",)),
    Case("throughput_steady", "no tokens", "fail", rates([1.0] * 5, 0.0)),
    Case("throughput_steady", "not logged", "warn", {}),
    Case("padding", "half", "pass", padding(50.0)),
    Case("padding", "more than half", "warn", padding(49.0)),
    Case("padding", "nearly all", "warn", padding(5.1)),
    Case("padding", "all but a few", "fail", padding(4.9)),
    Case("padding", "not logged", "warn", {}),
)

# ---- one width: preferences

DPO: Facts = {"kind": Kind.dpo, "trainer": "dpo_tune_cache"}
BUILT = [{"what": "reference_logprobs_cache", "requested": None, "found": "built", "verdict": None}]


def first_loss(value: float, **more: Any) -> Facts:
    return {**DPO, "losses": [value, *falling(9, 0.6, 0.01)], **more}


def margins(*values: float) -> Facts:
    return column("rewards/margin", *values, **DPO)


def accuracies(*values: float) -> Facts:
    return column("rewards/accuracy", *values, **DPO)


PREFERENCES = (
    Case("first_dpo_loss", "little above ln 2", "pass", first_loss(math.log(2) + 0.0199)),
    Case("first_dpo_loss", "little below ln 2", "pass", first_loss(math.log(2) - 0.0199)),
    Case("first_dpo_loss", "above ln 2", "fail", first_loss(math.log(2) + 0.0201)),
    Case("first_dpo_loss", "below ln 2", "fail", first_loss(math.log(2) - 0.0201)),
    Case("first_dpo_loss", "nan", "fail", first_loss(math.nan)),
    Case("first_dpo_loss", "sigmoid loss", "fail", first_loss(5.0, loss="dpo")),
    Case("first_dpo_loss", "sigmoid loss of means", "fail", first_loss(5.0, loss="dpo_norm")),
    Case("first_dpo_loss", "another loss", None, first_loss(5.0, loss="simpo")),
    Case("first_dpo_loss", "the first step is not logged", None, first_loss(5.0, first_step=2)),
    Case("first_dpo_loss", "SFT", None, {}),
    Case("reference_cached", "built", "pass", {**DPO, "evidence": BUILT}),
    Case("reference_cached", "not built", "fail", {**DPO, "evidence": []}),
    Case(
        "reference_cached",
        "not built by OLMo-core's",
        "fail",
        {**DPO, "evidence": [], "trainer": "dpo"},
    ),
    Case(
        "reference_cached",
        "a loss without a reference",
        None,
        {**DPO, "evidence": [], "loss": "simpo"},
    ),
    Case("reference_cached", "TRL has none", "pass", {**DPO, "evidence": [], "trainer": "trl_dpo"}),
    Case("reference_cached", "SFT", None, {}),
    Case("reward_accuracy", "moves", "pass", accuracies(0.0, 0.5, 0.6)),
    Case("reward_accuracy", "stands still for 7 steps", "warn", accuracies(*[0.5] * 7)),
    Case("reward_accuracy", "stands still for 8 steps", "fail", accuracies(*[0.5] * 8)),
    Case("reward_accuracy", "not logged", "fail", DPO),
    Case("reward_accuracy", "SFT", None, {}),
    Case("chosen_above_rejected", "at the end", "pass", margins(*[-1.0] * 6, *[0.1] * 3)),
    Case("chosen_above_rejected", "not in 49 steps", "warn", margins(*[-1.0] * 49)),
    Case("chosen_above_rejected", "not in 50 steps", "fail", margins(*[-1.0] * 50)),
    Case("chosen_above_rejected", "equal in 50 steps", "fail", margins(*[0.0] * 50)),
    Case("margins_finite", "finite", "pass", margins(*[0.1] * 10)),
    Case(
        "margins_finite",
        "infinite",
        "fail",
        margins(*[0.1] * 4, math.inf, *[0.1] * 5),
        message=("step 5",),
    ),
    Case("margins_finite", "not logged", "warn", DPO),
)

# ---- two widths


def parity(name: str, verdict: str, factor: float, first: float = 1.0, **more: Any) -> Case:
    """Losses that are `factor` times those of the width before; in the first step, `first`
    times.
    """
    losses = [3.0 * first, *(loss * factor for loss in falling()[1:])]
    before = {key: value for key, value in more.items() if key != "zero_stage"}
    return Case("loss_parity", name, verdict, {"losses": losses, "ranks": 2, **more}, before)


def data(last: float, **more: Any) -> Facts:
    return {"columns": {"tokens": [100.0] * 9 + [last], "tokens_padded": [128.0] * 10}, **more}


def schedule(last: float) -> Facts:
    """The highest rate is 1e-3."""
    return {"columns": {"lr": [1e-3] * 9 + [last]}, "ranks": 2}


def scaled(name: str, verdict: str, efficiency: float, device: Device = Device.cuda) -> Case:
    def width(ranks: int, tokens: float) -> Facts:
        return {
            "ranks": ranks,
            "columns": {"seconds": [1.0] * 10, "tokens": [tokens] * 10},
            "device": device,
        }

    return Case("scaling", name, verdict, width(4, 2000.0 * efficiency), width(2, 1000.0))


STEADY_RATE: Facts = {"columns": {"lr": [1e-3] * 10}}
LATER = {"losses": [*falling(30)[:10], *(loss * 1.5 for loss in falling(30)[10:])], "ranks": 2}
ACROSS = (
    *(
        Case(gate, "the first", None, {})
        for gate in ("same_data", "same_schedule", "loss_parity", "scaling")
    ),
    parity("fp32, little", "pass", 1 + 0.9e-4, **FP32),
    parity("fp32, much", "fail", 1 + 1.1e-4, **FP32),
    parity("fp32, little at first", "pass", 1.0, 1 + 0.9e-4, **FP32),
    parity("fp32, much at first", "fail", 1.0, 1 + 1.1e-4, **FP32),
    parity("bf16, little", "pass", 1 + 4.9e-3),
    parity("bf16, much", "fail", 1 + 5.1e-3),
    parity("bf16, little at first", "pass", 1.0, 1 + 1.9e-3),
    parity("bf16, much at first", "fail", 1.0, 1 + 2.1e-3),
    parity("without master weights before, little", "pass", 1 + 1.9e-2, zero_stage=3),
    parity("without master weights before, much", "fail", 1 + 2.1e-2, zero_stage=3),
    parity(
        "without master weights before, much before any update",
        "fail",
        1.0,
        1 + 2.1e-3,
        zero_stage=3,
    ),
    Case("loss_parity", "later steps do not count", "pass", LATER, {"losses": falling(30)}),
    Case("same_data", "the same", "pass", data(100.0, ranks=2), data(100.0)),
    Case(
        "same_data",
        "another step",
        "fail",
        data(101.0, ranks=2),
        data(100.0),
        ("1 of 10 steps", "step 10"),
    ),
    Case("same_data", "not logged", "warn", {"ranks": 2}, {}),
    Case("same_schedule", "the same", "pass", schedule(1e-3), STEADY_RATE),
    Case("same_schedule", "0.9%", "pass", schedule(1.009e-3), STEADY_RATE),
    Case("same_schedule", "1.1%", "warn", schedule(1.011e-3), STEADY_RATE),
    Case("same_schedule", "26%", "fail", schedule(1.26e-3), STEADY_RATE),
    Case("same_schedule", "not logged", "warn", {"ranks": 2}, {}),
    scaled("71%", "pass", 0.71),
    scaled("69%", "warn", 0.69),
    scaled("41%", "warn", 0.41),
    scaled("39%", "fail", 0.39),
    scaled("CPUs share their cores", "pass", 0.10, Device.cpu),
    Case("scaling", "not logged", "warn", {"ranks": 2}, {}),
)

# ---- two widths: rewards

STEPS = 10


def rlvr(
    rewards: Sequence[float],
    ranks: int = 1,
    generation: float = 8.0,
    training: float = 2.0,
    **more: Any,
) -> Facts:
    columns = {
        "reward": rewards,
        "reward_std": [0.5] * STEPS,
        "completions/mean_length": [100.0] * STEPS,
        "generation_seconds": [generation] * STEPS,
        "training_seconds": [training] * STEPS,
    }
    return {"losses": [0.0] * STEPS, "ranks": ranks, "columns": columns, "kind": Kind.rlvr, **more}


def sampled(mean: float, seed: int) -> list[float]:
    """Means of 16 rewards of 0 or 1 in each step."""
    draw = random.Random(seed)
    return [sum(draw.random() < mean for _ in range(16)) / 16 for _ in range(STEPS)]


HALF = [0.5] * STEPS
BOTH, HALVED = ("100% and 100% of gpu1's a rank",), ("50% and 100% of gpu1's a rank",)
ALONE = ("generation 200 tokens/s, training 800",)
BY_CHANCE = ("sampling alone makes 0.22 at most",)
REWARDS = (
    *(
        Case(
            "same_rewards",
            f"sampled {seed}",
            "pass",
            rlvr(sampled(0.5, seed), 2),
            rlvr(sampled(0.5, seed + 100)),
            BY_CHANCE,
        )
        for seed in range(20)
    ),
    Case("same_rewards", "others", "fail", rlvr(sampled(0.2, 1), 2), rlvr(sampled(0.6, 2))),
    Case(
        "same_rewards",
        "not logged",
        "fail",
        {"losses": [0.0] * STEPS, "kind": Kind.rlvr},
        rlvr(sampled(0.6, 2)),
    ),
    Case("same_rewards", "the first", None, rlvr(sampled(0.2, 1))),
    Case("same_rewards", "SFT", None, {}, {}),
    Case("generation_speed", "the first", "pass", rlvr(HALF), message=ALONE),
    Case("generation_speed", "both scale", "pass", rlvr(HALF, 2, 4.0, 1.0), rlvr(HALF), BOTH),
    Case(
        "generation_speed",
        "generation does not scale",
        "warn",
        rlvr(HALF, 2, 8.0, 1.0),
        rlvr(HALF),
        HALVED,
    ),
    Case(
        "generation_speed",
        "CPUs share their cores",
        "pass",
        rlvr(HALF, 2, 8.0, 1.0, **CPU),
        rlvr(HALF),
    ),
    Case("generation_speed", "SFT", None, {}),
)


@pytest.mark.parametrize(
    "case",
    (*PROGRESS, *PROOF, *MACHINE, *PREFERENCES, *ACROSS, *REWARDS),
    ids=lambda case: f"{case.gate}: {case.name}",
)
def test_gate(case: Case) -> None:
    before = None if case.before is None else measured(**case.before)
    result = gate_result(case.gate, measured(**case.now), before, **(case.numbers or {}))
    assert (result.severity if result else None) == case.verdict, result
    if result is not None:
        assert result.stops == (case.verdict == "fail")
        assert [part for part in case.message if part not in result.message] == [], result.message


def test_mann_kendall_by_hand() -> None:
    """Eight falling values: S = -28, spread = sqrt(8 x 7 x 21 / 18)."""
    assert mann_kendall(falling(8)) == pytest.approx(-27 / math.sqrt(8 * 7 * 21 / 18))
    assert mann_kendall([1.0] * 8) == 0.0


@pytest.mark.parametrize(("rate", "reported"), [(1e-3, False), (2e-3, True)])
def test_a_difference_of_losses_names_that_of_the_rates(rate: float, reported: bool) -> None:
    now = measured(
        [3.0, *(loss * 1.1 for loss in falling()[1:])], ranks=2, columns={"lr": [rate] * 10}
    )
    result = gate_result("loss_parity", now, measured(**STEADY_RATE))
    assert result is not None and ("learning rates" in result.message) == reported


def test_ids_are_stable() -> None:
    """Users have them in `allow=`, and records in `gate`."""
    assert {gate.id for gate in GATES} >= {
        *(
            "finished_steps",
            "loss_finite",
            "memory_room",
            "evidence_complete",
            "all_ranks_step",
            "grad_norm_sane",
        ),
        *(
            "loss_falls",
            "first_dpo_loss",
            "reference_cached",
            "reward_accuracy",
            "chosen_above_rejected",
        ),
        *(
            "margins_finite",
            "same_data",
            "same_schedule",
            "loss_parity",
            "throughput_steady",
            "padding",
            "scaling",
        ),
    }
    assert set(GatesConfig.__dataclass_fields__) <= {gate.id for gate in GATES}, (
        "every threshold is of a gate"
    )


def test_allow_is_visible_and_stops_nothing() -> None:
    allowed = gate_result("loss_finite", measured([1.0, float("nan")]), allow=["loss_finite"])
    assert allowed is not None and not allowed.stops
    assert allowed.severity == "fail" and allowed.allowed is True


def test_a_width_that_died_is_not_judged_by_what_it_did_not_do() -> None:
    now = measured([2.0, 2.1], requested=10, **dead())
    ids = [result.id for result in apply_gates(GateCase(now, measured(), GatesConfig()))]
    assert ids[0] == "finished_steps"
    assert not {"loss_falls", "loss_parity", "scaling", "throughput_steady"} & set(ids)


def test_a_judgement_is_json() -> None:
    for result in apply_gates(GateCase(measured(), None, GatesConfig())):
        as_json = json.loads(json.dumps(gate_json(result)))
        assert as_json["verdict"] in ("pass", "warn", "fail")
        assert as_json["message"] and as_json["reason"] and as_json["source"]
