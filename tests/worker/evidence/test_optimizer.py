"""The rate of every step, the number of steps and the weight decay, on torch's own optimizer and the
libraries' own schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")
transformers = pytest.importorskip("transformers")

from launch.worker.evidence import Evidence, optimizer  # noqa: E402
from launch.worker.evidence.optimizer import RateCheck, StepCount  # noqa: E402
from launch.worker.trainer import TrainerProgram  # noqa: E402
from tests.worker.evidence import models  # noqa: E402

PEAK = 5e-6
Change = Callable[[Any, int], None]  # of the optimizer before a step


def request(name: str = "linear", warmup: float = 0.1, peak: float = PEAK) -> dict[str, str]:
    return {"learning_rate": repr(peak), "lr_scheduler": name, "warmup_ratio": repr(warmup)}


def train(
    requested: dict[str, str],
    count: StepCount,
    *,
    change: Change | None = None,
    first: int = 0,
    peak: float = PEAK,
    warmup: int | None = None,
) -> list[Evidence]:
    """Step a schedule of transformers as a trainer does, and return what the check finds.

    `warmup`: the steps that the trainer warms up; None: those that the recipe requests.
    """
    model = torch.nn.Linear(2, 2)
    groups = [{"params": [model.weight]}, {"params": [model.bias], "weight_decay": 0.0}]
    torch_optimizer = torch.optim.AdamW(groups, lr=peak)
    schedule = transformers.get_scheduler(
        requested["lr_scheduler"],
        torch_optimizer,
        num_warmup_steps=(
            count.warmup(float(requested["warmup_ratio"])) if warmup is None else warmup
        ),
        num_training_steps=count.schedule_total,
    )
    check = RateCheck(requested, optimizer.transformers_rates, count)
    found: list[Evidence] = []
    for done in range(count.total):
        if change:
            change(torch_optimizer, done)
        rates = [group["lr"] for group in torch_optimizer.param_groups]
        torch_optimizer.step()
        if done >= first:
            found += check.step(done, rates)
        for _ in range(count.per_step):
            schedule.step()
    return [*found, *check.summary()]


def verdicts(found: list[Evidence]) -> set[tuple[str, str | None]]:
    return {(item.what, item.verdict) for item in found}


PROVEN = {(name, "proven") for name in ("learning_rate", "lr_scheduler", "warmup_ratio")}


@pytest.mark.parametrize(
    "name", ["linear", "cosine", "constant", "constant_with_warmup", "polynomial"]
)
@pytest.mark.parametrize("first", [0, 7])
def test_every_step_of_a_schedule_is_proven_on_one_rank_and_on_four(name: str, first: int) -> None:
    for count in (StepCount(40), StepCount(40, per_step=4), StepCount(40, 4, scheduled=157)):
        found = train(request(name), count, first=first)
        assert verdicts(found) == PROVEN
        steps = 40 - first
        assert found[-1].note == (
            f"{steps} steps had the recipe's rate, the last of them step 40 of 40"
        )


def halve(torch_optimizer: Any, done: int) -> None:
    for group in torch_optimizer.param_groups:
        group["lr"] = group["lr"] / 2


def end_the_warm_up_early(torch_optimizer: Any, done: int) -> None:
    if done == 3:
        for group in torch_optimizer.param_groups:
            group["lr"] = PEAK


def hold(torch_optimizer: Any, done: int) -> None:
    """Keep the rate that the step 20 has from there on."""
    if done > 20:
        for group in torch_optimizer.param_groups:
            group["lr"] = PEAK * (40 - 20) / (40 - 4)


def freeze_one_group(torch_optimizer: Any, done: int) -> None:
    if done >= 10:
        torch_optimizer.param_groups[1]["lr"] = 0.0


def lose_the_rate(torch_optimizer: Any, done: int) -> None:
    if done == 30:
        torch_optimizer.param_groups[0]["lr"] = float("nan")


@pytest.mark.parametrize(
    ("change", "trained", "name", "value"),
    [
        (None, {"peak": PEAK / 2}, "learning_rate", "6.25e-07 at step 2"),
        (halve, {}, "learning_rate", "6.25e-07 at step 2"),
        (None, {"warmup": 5}, "learning_rate", "1e-06 at step 2"),
        (hold, {}, "lr_scheduler", "2.778e-06 at step 22"),
        (end_the_warm_up_early, {}, "warmup_ratio", "5e-06 at step 4"),
        (freeze_one_group, {}, "lr_scheduler", "0 at step 11"),
        (lose_the_rate, {}, "lr_scheduler", "nan at step 31"),
    ],
)
def test_another_rate_is_refuted_at_the_step_where_it_shows(
    change: Change | None, trained: dict[str, Any], name: str, value: str
) -> None:
    found = train(request(), StepCount(40), change=change, **trained)
    refuted = [item for item in found if item.verdict == "refuted"]
    assert [(item.what, item.value) for item in refuted] == [(name, value)]


def test_a_schedule_that_depends_on_the_loss_is_no_schedule_of_steps() -> None:
    with pytest.raises(ValueError, match="reduce_lr_on_plateau depends on more than the step"):
        optimizer.transformers_rates("reduce_lr_on_plateau", PEAK, 0.0, StepCount(10))


@pytest.mark.parametrize(
    ("count", "warmup"),
    [
        (StepCount(100), 3),
        (StepCount(50), 1),
        (StepCount(50, rounds_up=True), 2),
        (StepCount(50, per_step=8), 12),
        (StepCount(50, per_step=8, scheduled=394), 11),
    ],
)
def test_a_trainer_rounds_its_warm_up_in_its_own_way(count: StepCount, warmup: int) -> None:
    assert count.warmup(0.03) == warmup


@pytest.mark.parametrize(
    ("total", "rows", "epochs", "verdict"),
    [
        (6, (100, 32), 2, "proven"),  # the rest of an epoch is left out
        (8, (100, 32), 2, "proven"),  # or is a step of its own
        (7, (100, 32), 2, "proven"),
        (5, (100, 32), 2, "refuted"),
        (9, (100, 32), 2, "refuted"),
        (4, (100, 32), 2, "refuted"),  # an epoch is missing
        (6, (96, 32), 2, "proven"),
        (7, (96, 32), 2, "refuted"),
        (None, (96, 32), 2, "unproven"),
        (6, None, 2, "unproven"),
    ],
)
def test_the_steps_of_all_epochs(
    total: int | None, rows: tuple[int, int] | None, epochs: int, verdict: str
) -> None:
    count = None if total is None else StepCount(total, source="TrainerState.max_steps")
    (found,) = optimizer.check_steps(count, rows, {"epochs": str(epochs)})
    assert (found.what, found.verdict) == ("epochs", verdict)


def test_a_number_of_steps_is_the_number_that_was_requested() -> None:
    requested = {"max_steps": "50"}
    (same,) = optimizer.check_steps(StepCount(50), (10_000, 8), requested)
    other_count = StepCount(400, source="TrainerState.max_steps")
    (other,) = optimizer.check_steps(other_count, (10_000, 8), requested)
    assert (same.verdict, other.verdict) == ("proven", "refuted")
    assert other.how == "TrainerState.max_steps, before the first step"
    assert optimizer.check_steps(StepCount(50), None, {}) == []


def decay_of(matrices: float, rest: float, *, embeddings: float | None = None) -> Evidence:
    """Return the finding on a model whose matrices and other tensors decay as given, 0.1 requested."""
    model = models.model()
    embedding = model.get_input_embeddings().weight
    groups = [
        {"params": [], "weight_decay": matrices},
        {"params": [], "weight_decay": rest},
        {"params": [embedding], "weight_decay": matrices if embeddings is None else embeddings},
    ]
    for parameter in model.parameters():
        if parameter is not embedding:
            groups[parameter.ndim < 2]["params"].append(parameter)
    this = models.objects(model, optimizer=torch.optim.AdamW(groups))
    (found,) = optimizer.check_decay(this, "0.1")
    return found


def test_the_weight_decay_is_that_of_the_matrices() -> None:
    assert decay_of(0.1, 0.1).verdict == "proven"
    assert decay_of(0.1, 0.0, embeddings=0.0).verdict == "proven"
    missing = decay_of(0.0, 0.1)
    assert (missing.value, missing.verdict) == ("0", "refuted")


def test_a_matrix_that_decays_otherwise_refutes_the_decay_of_all() -> None:
    model = models.model()
    first, *rest = [p for p in model.parameters() if p.ndim > 1 and p.shape[0] != 64]
    groups = [{"params": [first], "weight_decay": 0.2}, {"params": rest, "weight_decay": 0.1}]
    this = models.objects(model, optimizer=torch.optim.AdamW(groups))
    (found,) = optimizer.check_decay(this, "0.1")
    assert (found.value, found.verdict) == ("0.1,0.2", "refuted")


def test_the_largest_group_counts_where_deepspeed_holds_flat_copies() -> None:
    flat = [torch.nn.Parameter(torch.zeros(1000)), torch.nn.Parameter(torch.zeros(10))]
    groups = [
        {"params": [flat[1]], "weight_decay": 0.0},
        {"params": [flat[0]], "weight_decay": 0.1},
    ]
    this = models.objects(models.model(), optimizer=torch.optim.AdamW(groups))
    (found,) = optimizer.check_decay(this, "0.1")
    assert (found.verdict, found.how) == (
        "proven",
        "weight_decay in the largest of the optimizer's param_groups",
    )
    assert optimizer.check_decay(this, None) == []


@pytest.mark.parametrize(
    ("script", "flags", "betas", "epsilon"),
    [
        (None, (), (0.9, 0.999), 1e-8),
        (None, ("--adam_beta2", "0.95", "--adam_epsilon=1e-6"), (0.9, 0.95), 1e-6),
        ("finetune.py", (), (0.9, 0.999), 1e-8),
        ("reward_modeling.py", (), (0.9, 0.999), 1e-5),
        ("reward_modeling.py", ("--eps", "1e-7"), (0.9, 0.999), 1e-7),
        ("olmo_core_finetune.py", (), (0.9, 0.95), 1e-8),
    ],
)
def test_betas_and_epsilon_are_those_of_the_flags(
    script: str | None, flags: tuple[str, ...], betas: tuple[float, float], epsilon: float
) -> None:
    program = TrainerProgram(script, None if script else "trl.scripts.sft", flags)

    def verdicts(betas: tuple[float, float], epsilon: float) -> dict[str, str | None]:
        groups = torch.optim.AdamW(models.model().parameters(), betas=betas, eps=epsilon)
        found = optimizer.check_adam(groups.param_groups, program)
        return {finding.what: finding.verdict for finding in found}

    assert verdicts(betas, epsilon) == {"adam_betas": "proven", "adam_epsilon": "proven"}
    assert verdicts((0.5, 0.5), epsilon)["adam_betas"] == "refuted"
    assert verdicts(betas, 1e-3)["adam_epsilon"] == "refuted"


def test_one_group_with_other_betas_is_refuted() -> None:
    program = TrainerProgram("finetune.py", None, ())
    adam = torch.optim.AdamW([torch.zeros(1), torch.zeros(1)])
    adam.add_param_group({"params": [torch.zeros(1)], "betas": (0.8, 0.999)})
    betas, _ = optimizer.check_adam(adam.param_groups, program)
    assert (betas.verdict, betas.value) == ("refuted", "0.8,0.999; 0.9,0.999")


def test_an_optimizer_without_betas_has_no_finding_on_them() -> None:
    program = TrainerProgram(None, "trl.scripts.sft", ())
    sgd = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    assert optimizer.check_adam(sgd.param_groups, program) == []
    own = TrainerProgram(None, "trl.scripts.sft", ("--optim_args", "betas=0.8"))
    adam = torch.optim.AdamW([torch.zeros(1)])
    assert optimizer.check_adam(adam.param_groups, own) == []
    lion = TrainerProgram(None, "trl.scripts.sft", ("--optim", "lion_32bit"))  # its epsilon is 0
    assert optimizer.check_adam(adam.param_groups, lion) == []
    fused = TrainerProgram(None, "trl.scripts.sft", ("--optim", "adamw_torch_fused"))
    assert len(optimizer.check_adam(adam.param_groups, fused)) == 2


def test_the_steps_are_found_where_the_trainer_keeps_them() -> None:
    arguments = SimpleNamespace(
        max_train_steps=20,
        num_training_steps=30,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
    )
    this = models.objects(
        models.model(),
        accelerator=SimpleNamespace(num_processes=2),
        dataloader=SimpleNamespace(dataset=range(150)),
        arguments=arguments,
    )
    # one rank would make ceil(ceil(150 / 2) / 4) = 19 steps of an epoch
    source = "args.max_train_steps"
    assert optimizer.read_step_count(this, "finetune.py", 2) == StepCount(20, 2, 38, source=source)
    assert optimizer.read_step_count(this, "finetune.py", None) == StepCount(20, 2, source=source)
    assert optimizer.count_rows(this) == (150, 16)
    nothing = models.objects(models.model(), accelerator=this.accelerator)
    assert optimizer.read_step_count(nothing, "finetune.py", 1) is None
    assert optimizer.count_rows(nothing) is None


def test_a_reward_models_last_step_has_the_rest_of_its_epoch() -> None:
    """46 rows in steps of 8 are 5 steps of the schedule, and 6 of the optimizer."""
    arguments = SimpleNamespace(
        num_training_steps=5,
        num_train_epochs=1,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
    )
    this = models.objects(
        models.model(),
        accelerator=SimpleNamespace(num_processes=1),
        dataloader=torch.utils.data.DataLoader(range(46), batch_size=4),
        arguments=arguments,
    )
    count = optimizer.read_step_count(this, "reward_modeling.py", 1)
    assert count is not None
    assert (count.total, count.schedule_total) == (6, 5)
    check = RateCheck(request(warmup=0.0), optimizer.transformers_rates, count)
    rates = [PEAK * (5 - done) / 5 for done in range(6)]
    found = [finding for done, rate in enumerate(rates) for finding in check.step(done, [rate])]
    assert {finding.verdict for finding in found} == {"proven"}
    assert check.summary()[0].note == (
        "6 steps had the recipe's rate, the last of them step 6 of 6"
    )


def test_a_row_of_grpo_is_a_prompt_and_its_batch_counts_completions() -> None:
    trainer = SimpleNamespace(
        args=SimpleNamespace(per_device_train_batch_size=8, gradient_accumulation_steps=2),
        state=SimpleNamespace(max_steps=12),
        train_dataset=range(48),
        num_generations=4,
        num_iterations=1,
    )
    this = models.objects(
        models.model(), accelerator=SimpleNamespace(num_processes=1), trainer=trainer
    )
    assert optimizer.count_rows(this) == (192, 16)
    count = StepCount(12, rounds_up=True, source="TrainerState.max_steps")
    assert optimizer.read_step_count(this, None, 1) == count
