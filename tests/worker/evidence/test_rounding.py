"""The schedule's largest step against the rounding of the weights, on real models, optimizers and
schedules.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")
transformers = pytest.importorskip("transformers")

from launch.worker.channel import EventWriter  # noqa: E402
from launch.worker.evidence import Evidence, rounding  # noqa: E402
from launch.worker.expectations import UnmetExpectation  # noqa: E402
from tests.worker.evidence import models  # noqa: E402


def check(
    rate: float,
    dtype: str = "bfloat16",
    *,
    total: int = 100,
    warmup: int = 3,
    schedule: str = "linear",
    per_step: int = 1,
    model: Any = None,
    optimizer: Any = torch.optim.AdamW,
    **found: Any,
) -> dict[str, Evidence]:
    """Return the evidence on a run of `total` steps at its first one, by name."""
    trained = (model or models.model()).to(getattr(torch, dtype))
    parameters = [p for p in trained.parameters() if p.requires_grad]
    steps = optimizer(parameters, lr=rate)
    live = transformers.get_scheduler(
        schedule, steps, num_warmup_steps=warmup * per_step, num_training_steps=total * per_step
    )
    this = models.objects(
        trained, optimizer=steps, trainer=SimpleNamespace(lr_scheduler=live), **found
    )
    factor = rounding.find_factor(this, per_step)
    return {item.what: item for item in rounding.check_rounding(this, factor, total)}


def share(evidence: Evidence) -> float:
    return float(str(evidence.value).rstrip("%")) / 100


@pytest.mark.parametrize(
    ("rate", "dtype", "least", "most", "verdict"),
    [
        (1e-9, "bfloat16", 0, 3e-4, "refuted"),  # DPO at 1e-9
        (1e-30, "float32", 0, 0, "refuted"),
        (1e-9, "float16", 0, 0, "refuted"),  # below its smallest number
        (5e-7, "bfloat16", 0.005, 0.02, "proven"),  # DPO's rate
        (5e-6, "bfloat16", 0.05, 0.1, "proven"),
        (2e-5, "bfloat16", 0.2, 0.4, "proven"),
        (1e-3, "bfloat16", 0.99, 1, "proven"),
        (5e-7, "float32", 1, 1, "proven"),
        (1e-9, "float32", 0.5, 1, "proven"),
    ],
)
def test_the_share_of_weights_that_can_move(
    rate: float, dtype: str, least: float, most: float, verdict: str
) -> None:
    found = check(rate, dtype)
    movable = found["movable_weights"]
    assert least <= share(movable) <= most
    assert movable.verdict == verdict
    warning = rounding.warn_of_rounding(movable)
    is_few = verdict == "proven" and most <= 0.1
    assert (warning is not None) is is_few
    if warning is not None:
        assert (warning.id, warning.stops) == ("bf16_rounds_away", False)
    assert "schedule_peak" not in found


def test_the_share_is_that_of_the_weights_that_an_update_changes() -> None:
    """Of real numbers: each weight plus the step, rounded as torch rounds it."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for rate in (1e-9, 3e-7, 5e-6, 1e-3):
            weights = (torch.randn(4096, generator=torch.Generator().manual_seed(1)) / 50).to(dtype)
            step = torch.tensor(rate, dtype=torch.float64)
            exact = weights.double()
            up = (exact + step).to(dtype) != weights
            down = (exact - step).to(dtype) != weights
            found = float(rounding._share_that_moves(weights, rate, dtype))
            # a sum in the middle is rounded to the even number, and below a power of two the
            # distance is half as large
            assert (up & down).double().mean() <= found <= (up | down).double().mean() + 1e-6


def test_a_tensor_in_which_nothing_can_move_is_named() -> None:
    movable = check(5e-7)["movable_weights"]
    assert "none can move in 5 of 21 tensors" in str(movable.note)  # norms of 1.0
    assert "norm" in str(movable.note)
    assert "is 5e-07, and the weights are bf16" in str(movable.note)


def test_a_warm_up_that_never_ends_is_refuted_in_any_type() -> None:
    for dtype in ("float32", "bfloat16"):
        for schedule in ("linear", "cosine", "constant_with_warmup"):
            found = check(1e-3, dtype, warmup=1_000_000, schedule=schedule)
            assert found["schedule_peak"].verdict == "refuted"
            assert "no step leaves the warm-up" in str(found["schedule_peak"].note)
    assert check(1e-5, warmup=1_000_000)["movable_weights"].verdict == "refuted"
    # a smoke test of a schedule, and the last step of a warm-up
    assert "schedule_peak" not in check(1e-3, warmup=1000, total=5)
    assert "schedule_peak" not in check(1e-3, warmup=100, total=100)


def test_a_step_or_two_have_nothing_to_show() -> None:
    for total in (1, 2):
        assert check(1e-9, total=total) == {}
    assert check(1e-9, total=3)["movable_weights"].verdict == "refuted"


def test_a_trial_is_judged_by_the_schedule_of_the_whole_training() -> None:
    """It ends within the warm-up, of whose steps the first have a rate of almost 0."""
    found = check(1e-3, total=200_000, warmup=6_000, per_step=2)
    assert {name: item.verdict for name, item in found.items()} == {"movable_weights": "proven"}
    assert "is 0.001, and" in str(found["movable_weights"].note)


def test_an_adapter_of_zeros_and_rows_of_zeros() -> None:
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(models.model(), peft.LoraConfig(target_modules=["q_proj"], r=4))
    assert share(check(5e-6, model=adapted)["movable_weights"]) > 0.3  # B is 0, and moves
    padded = models.model()
    padded.get_input_embeddings().weight.data[8:] = 0
    padded.lm_head.weight.data[8:] = 0
    assert check(1e-9, model=padded)["movable_weights"].verdict == "refuted"


def test_fp32_copies_of_deepspeed_keep_small_updates() -> None:
    model = models.model().to(torch.bfloat16)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(8))], lr=5e-7)
    optimizer.fp32_partitioned_groups_flat = [torch.zeros(8)]
    optimizer.param_groups[0]["initial_lr"] = 5e-7
    this = models.objects(model, optimizer=optimizer, engine=SimpleNamespace())
    [movable] = rounding.check_rounding(this, None, 100)
    assert share(movable) == 1 and "fp32" in str(movable.note)


def test_optimizers_whose_steps_have_another_size_are_left_alone() -> None:
    assert "movable_weights" not in check(1e-9, optimizer=torch.optim.SGD)
    model = models.model().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-9)
    optimizer.param_groups[0].update(use_kahan_summation=True, initial_lr=1e-9)
    assert rounding.check_rounding(models.objects(model, optimizer=optimizer), None, 100) == []


def test_a_schedule_of_which_nothing_is_known_is_left_alone() -> None:
    """DeepSpeed's own begins at a rate of 0, and has no factors."""
    model = models.model().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    deepspeeds = SimpleNamespace(lr_scheduler=SimpleNamespace(scheduler=SimpleNamespace()))
    this = models.objects(model, optimizer=optimizer, trainer=deepspeeds)
    assert rounding.check_rounding(this, rounding.find_factor(this), 100) == []


@pytest.mark.parametrize("rank", [0, 1])
def test_nothing_that_can_move_ends_every_rank(
    rank: int, capsys: pytest.CaptureFixture[str]
) -> None:
    events = EventWriter(None, rank)
    refuted = list(check(1e-9).values())
    with pytest.raises(UnmetExpectation):
        rounding.report_rounding(refuted, (), events)
    assert "refuted_movable_weights" in capsys.readouterr().err
    rounding.report_rounding(refuted, ("refuted_movable_weights",), events)
    capsys.readouterr()
    rounding.report_rounding(list(check(5e-7).values()), (), events)
    assert ("bf16_rounds_away" in capsys.readouterr().err) is (rank == 0)
