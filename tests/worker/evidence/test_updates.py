"""What training does to the weights, on real models and optimizers: what is proven, and what is
refuted.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")
pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

from launch.worker.evidence import TOO_SHORT, Evidence  # noqa: E402
from launch.worker.evidence.saved_model import check_saved  # noqa: E402
from launch.worker.evidence.updates import PATIENCE, Updates  # noqa: E402
from tests.worker.evidence import models  # noqa: E402

Change = Callable[[Any, int], None]  # of the model before an optimizer step


def zero_gradients(model: Any, _: int) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)


def clip(norm: float) -> Change:
    return lambda model, _: torch.nn.utils.clip_grad_norm_(model.parameters(), norm) and None


def loosen_frozen(model: Any, _: int) -> None:
    model.get_input_embeddings().weight.data.add_(1e-3)


def break_last(model: Any, step: int) -> None:
    if step == 2:
        model.lm_head.weight.grad.fill_(float("nan"))


def observe(
    model: Any,
    folder: Path,
    *,
    steps: int = 3,
    change: Change | None = None,
    groups: Any = None,
    trainer: Any = None,
    **options: Any,
) -> dict[str, Evidence]:
    """Train and save as a trainer does; return the findings by their names.

    `rates`: the learning rate of each step, after the last one that of the last.
    """
    rates = options.pop("rates", None)
    optimizer = torch.optim.AdamW(
        groups(model) if groups else model.parameters(), **{"lr": 1e-3, **options}
    )
    updates = Updates(models.objects(model, optimizer=optimizer, step=0, trainer=trainer))
    found: dict[str, Evidence] = {}
    for step in range(steps):
        for group in optimizer.param_groups if rates else ():
            group.update(lr=rates[min(step, len(rates) - 1)], initial_lr=max(rates))
        ids = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(step))
        model(input_ids=ids, labels=ids).loss.backward()
        if change:
            change(model, step)
        updates.note_gradients()
        optimizer.step()
        optimizer.zero_grad()
        found |= {item.what: item for item in updates.after_step()}
    model.save_pretrained(folder)

    at_end = updates.at_end(lambda: check_saved(folder, model, None))
    return found | {item.what: item for item in at_end}


def train(model: Any, folder: Path, **options: Any) -> dict[str, str]:
    """Return the verdicts by finding, of which none refutes a value by the same value."""
    found = observe(model, folder, **options)
    assert not [
        item
        for item in found.values()
        if item.verdict == "refuted" and item.value == item.requested
    ]
    return {name: str(item.verdict) for name, item in found.items()}


PROVEN = dict.fromkeys(("first_update", "gradients", "last_update", "saved_weights"), "proven")


def with_adapter(model: Any) -> Any:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], r=4))


def half(model: Any) -> Any:
    return model.to(torch.bfloat16)


def with_half_adapter(model: Any) -> Any:
    """An adapter in bf16, as under ZeRO-3: PEFT makes fp32 ones elsewhere."""
    adapted = half(with_adapter(model))
    assert {p.dtype for p in adapted.parameters() if p.requires_grad} == {torch.bfloat16}
    return adapted


# DPO's rate after a warm-up; the first updates vanish in rounding
RISING = [5e-7 * step / 30 for step in range(31)]


@pytest.mark.parametrize(
    ("prepare", "options"),
    [
        (None, {}),
        (with_adapter, {}),
        (half, {"lr": 5e-7}),  # DPO's rate: the smallest of the recipes
        (half, {"lr": 5e-7, "rates": [5e-9, *[5e-7] * 2]}),  # a warm-up
        # norms of 1.0 cannot move by 5e-7
        (half, {"lr": 5e-7, "groups": "norms apart", "weight_decay": 0.0}),
        (None, {"rates": [0.0, 1e-4, 0.0]}),
        (None, {"rates": [0.0, 1e-4]}),
        (None, {"rates": RISING, "steps": 30, "groups": "norms apart", "weight_decay": 0.0}),
        (None, {"rates": RISING, "steps": 30, "groups": "norms apart", "weight_decay": 0.1}),
        (None, {"rates": [rate / 100 for rate in RISING], "steps": 60, "weight_decay": 0.1}),
        (half, {"rates": RISING, "steps": 30, "groups": "norms apart", "weight_decay": 0.1}),
        (with_adapter, {"rates": RISING, "steps": 30}),
        (None, {"lr": 1e-3, "change": clip(1e-3)}),
        (None, {"lr": 1e-3, "weight_decay": 0.1}),
        (None, {"lr": 5e-7, "weight_decay": 0.1, "groups": "norms apart"}),
        (None, {"lr": 1e-2, "weight_decay": 1.0}),
        (half, {"lr": 5e-7, "weight_decay": 0.1}),
        (half, {"lr": 1e-2, "weight_decay": 0.5, "steps": PATIENCE + 1}),
        (with_adapter, {"lr": 1e-4, "weight_decay": 0.1}),
        (with_half_adapter, {"lr": 5e-6}),  # lora_dpo's rate: the smallest of an adapter's recipes
        (with_half_adapter, {"lr": 5e-6, "rates": [5e-8, *[5e-6] * 2], "weight_decay": 0.1}),
    ],
)
def test_a_correct_run_is_proven(tmp_path: Path, prepare: Any, options: dict[str, Any]) -> None:
    model = models.model()
    model = prepare(model) if prepare else model
    if options.get("groups"):
        options = {**options, "groups": split_norms}
    assert train(model, tmp_path, **options) == PROVEN


def split_norms(model: Any) -> list[dict[str, Any]]:
    named = dict(model.named_parameters())
    norms = [p for name, p in named.items() if "norm" in name]
    return [{"params": [p for name, p in named.items() if "norm" not in name]}, {"params": norms}]


def without_norms(model: Any) -> list[dict[str, Any]]:
    """Norms whose gradients are always 0 in a group of their own."""
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.register_hook(torch.zeros_like)
    return split_norms(model)


@pytest.mark.parametrize(
    ("prepare", "options", "refuted"),
    [
        (None, {"lr": 1e-30}, {"first_update", "saved_weights"}),
        (with_adapter, {"lr": 1e-30}, {"first_update", "saved_weights"}),
        (
            with_half_adapter,
            {"lr": 1e-30, "steps": PATIENCE + 1},
            {"first_update", "saved_weights"},
        ),
        (half, {"lr": 1e-30}, {"first_update", "saved_weights"}),
        (half, {"lr": 1e-30, "steps": PATIENCE + 1}, {"first_update", "saved_weights"}),
        (None, {"rates": [0.0, 0.0, 0.0]}, {"first_update", "saved_weights"}),
        (None, {"rates": [1e-30, 0.0]}, {"first_update", "saved_weights"}),
        (None, {"steps": 1, "lr": 1e-30}, {"first_update"}),
        (
            None,
            {"rates": RISING, "steps": 30, "change": zero_gradients},
            {"first_update", "gradients", "saved_weights"},
        ),
        (None, {"rates": RISING, "steps": 30, "eps": 1e30, "weight_decay": 0.1}, {"first_update"}),
        (
            None,
            {"rates": [5e-9, 5e-5], "groups": without_norms, "weight_decay": 0.1},
            {"first_update"},
        ),
        (None, {"eps": 1e30, "weight_decay": 0.0}, {"first_update", "saved_weights"}),
        # weight decay changes the weights
        (None, {"change": clip(1e-30)}, {"first_update", "gradients"}),
        (None, {"eps": 1e30, "weight_decay": 0.1}, {"first_update"}),
        (with_adapter, {"eps": 1e30, "weight_decay": 0.1}, {"first_update"}),
        (half, {"eps": 1e30, "weight_decay": 0.5, "lr": 1e-2, "steps": PATIENCE}, {"first_update"}),
        (None, {"groups": without_norms, "weight_decay": 0.1}, {"first_update"}),
        (
            None,
            {"change": zero_gradients, "weight_decay": 0.0},
            {"first_update", "gradients", "saved_weights"},
        ),
        (None, {"change": zero_gradients, "weight_decay": 0.1}, {"first_update", "gradients"}),
        (None, {"change": clip(1e-7)}, {"gradients"}),  # Adam makes whole updates of it
        (with_adapter, {"change": loosen_frozen}, {"first_update"}),
        (None, {"groups": without_norms, "weight_decay": 0.0}, {"first_update"}),
        (None, {"steps": 1, "lr": 1e30}, {"last_update"}),
        (None, {"rates": [1e-6, 1e-6, 1.0]}, {"last_update"}),
        (None, {"change": break_last}, {"last_update", "saved_weights"}),
    ],
)
def test_what_trained_nothing_or_ended_badly_is_refuted(
    tmp_path: Path, prepare: Any, options: dict[str, Any], refuted: set[str]
) -> None:
    model = models.model()
    verdicts = train(prepare(model) if prepare else model, tmp_path, **options)
    found = {name for name, verdict in verdicts.items() if verdict == "refuted"}
    assert found == refuted


@pytest.mark.parametrize(
    ("prepare", "options"),
    [
        (None, {"steps": 1, "rates": [0.0]}),
        (None, {"steps": 2, "rates": [0.0]}),
        (half, {"steps": 1, "rates": [0.0], "weight_decay": 0.1}),
        (with_adapter, {"steps": 1, "rates": [0.0]}),
        (half, {"steps": 2, "rates": [0.0, 1e-12, 1e-6]}),  # of a longer warm-up
    ],
)
def test_a_step_or_two_of_a_warm_up_prove_all_but_the_update(
    tmp_path: Path, prepare: Any, options: dict[str, Any]
) -> None:
    model = models.model()
    found = observe(prepare(model) if prepare else model, tmp_path, **options)
    assert {name: item.verdict for name, item in found.items()} == PROVEN | {
        "first_update": "unproven",
        "saved_weights": "unproven",
    }
    for name in ("first_update", "saved_weights"):
        assert found[name].how == TOO_SHORT and found[name].finding(()) is None
        steps = "1 step" if options["steps"] == 1 else "2 steps"
        assert str(found[name].note).startswith(f"{steps} at a learning rate of ")
    assert found["saved_weights"].value == "the weights it began with"


def test_damaged_files_of_one_step_at_a_rate_of_0_are_refuted(tmp_path: Path) -> None:
    def damage(model: Any, _: int) -> None:
        model.lm_head.weight.data[5, 7] = float("inf")

    found = observe(models.model(), tmp_path, steps=1, rates=[0.0], change=damage)
    assert (found["saved_weights"].value, found["saved_weights"].verdict) == (
        "not finite",
        "refuted",
    )


def test_two_steps_of_grpo_may_have_no_gradient(tmp_path: Path) -> None:
    """All completions of a prompt earned the same reward, in each of the steps."""
    grpo = SimpleNamespace(num_generations=8)
    found = observe(
        models.model(), tmp_path, steps=2, change=zero_gradients, trainer=grpo, weight_decay=0.0
    )
    short = ("first_update", "gradients", "saved_weights")
    assert {name: found[name].verdict for name in short} == dict.fromkeys(short, "unproven")
    assert not any(item.finding(()) for item in found.values())
    longer = observe(
        models.model(), tmp_path, steps=12, change=zero_gradients, trainer=grpo, weight_decay=0.0
    )
    assert {name: longer[name].verdict for name in short} == dict.fromkeys(short, "refuted")


def test_a_group_is_refuted_at_the_step_from_which_its_updates_would_show(tmp_path: Path) -> None:
    """The norms never get a gradient, and decay moves them: hidden by rounding at first, then too
    little.
    """
    model = models.model()
    optimizer = torch.optim.AdamW(without_norms(model), weight_decay=0.1)
    updates = Updates(models.objects(model, optimizer=optimizer, step=0))
    verdicts: list[tuple[int, str]] = []
    for step in range(1, 40):
        for group in optimizer.param_groups:
            group.update(lr=5e-8 * step, initial_lr=2e-6)
        ids = torch.randint(0, 64, (2, 16))
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        verdicts += [
            (step, str(item.verdict))
            for item in updates.after_step()
            if item.what == "first_update"
        ]
    assert [verdict for _, verdict in verdicts[:2]] == ["proven", "refuted"]
    mean = 5e-8 * (verdicts[1][0] + 1) / 2
    assert verdicts[0][0] == 1 and mean > 4 * torch.finfo(torch.float32).eps * 0.9


def change_row(tensors: dict[str, Any]) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"][32] += 1e-3


def swap_layers(tensors: dict[str, Any]) -> None:
    first, second = "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"
    tensors[first], tensors[second] = tensors[second].clone(), tensors[first].clone()


def round_all(tensors: dict[str, Any]) -> None:
    tensors.update({name: tensor.to(torch.float16) for name, tensor in tensors.items()})


@pytest.mark.parametrize(("change", "verdict"), [(None, "proven"), (round_all, "proven"), (change_row, "refuted"),
                                                 (swap_layers, "refuted")])  # fmt: skip
def test_saved_weights_are_those_in_memory(tmp_path: Path, change: Any, verdict: str) -> None:
    model = models.model()
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = dict(safetensors.load_file(file))
    if change:
        change(tensors)
    safetensors.save_file(tensors, file, {"format": "pt"})
    assert check_saved(tmp_path, model, None).verdict == verdict


def test_weights_that_are_not_finite_are_refuted(tmp_path: Path) -> None:
    model = models.model()
    model.model.layers[1].mlp.up_proj.weight.data[5, 7] = float("inf")
    model.save_pretrained(tmp_path)
    finding = check_saved(tmp_path, model, None)
    assert (finding.value, finding.verdict) == ("not finite", "refuted") and "up_proj" in str(
        finding.note
    )


def test_an_earlier_state_in_the_folder_is_refuted(tmp_path: Path) -> None:
    model = models.model()
    copy.deepcopy(model).save_pretrained(tmp_path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-3)
    assert check_saved(tmp_path, model, None).value == "not those in memory"


def test_a_check_that_fails_ends_no_training(tmp_path: Path) -> None:
    def check() -> Evidence:
        raise OSError("the disk is gone\nfor good")

    model = models.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    updates = Updates(models.objects(model, optimizer=optimizer, step=0))
    with torch.no_grad():
        model.lm_head.weight.add_(1.0)
    [*_, found] = updates.at_end(check)
    assert (found.what, found.verdict, found.how) == (
        "saved_weights",
        "unproven",
        "OSError: the disk is gone",
    )


@pytest.fixture(autouse=True)
def fixed_seed() -> Iterator[None]:
    torch.manual_seed(0)
    yield
