"""The memory of adapters of parameters against a real Llama under bf16 autocast, as TRL runs it: the
bytes that autograd saves, beside those of the plain adapter of the same layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

from launch.config.kinds import Kind  # noqa: E402
from launch.config.recipe_keys import AdapterStart, Quantization  # noqa: E402
from launch.config.schema import Mode  # noqa: E402
from launch.planning.estimate.activations import layer_bytes, saved_bytes  # noqa: E402
from launch.planning.estimate.setting import AdapterSetting, MemorySetting  # noqa: E402
from launch.planning.estimate.shape import (  # noqa: E402
    LINEAR_LAYERS,
    ModelShape,
    layer_of_weight,
    with_parameters,
)
from launch.planning.lora import Lora  # noqa: E402
from tests.planning.estimate.test_saved import build  # noqa: E402

# The first layer, which saves less, is one of many.
SHAPE = with_parameters(ModelShape(0, 16, 128, 352, 4, 2, 200))
RANK = 4
TOKENS = 32
ATTENTION = ("q_proj.weight", "self_attn.o_proj.weight")
MLP = ("mlp.gate_proj.weight", "down_proj.weight")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def lora_of(parameters: tuple[str, ...]) -> Lora:
    """An adapter of all linear layers, those of `parameters` by their weights."""
    weights = {layer_of_weight(parameter) for parameter in parameters}
    targets = tuple(name for name in LINEAR_LAYERS if name not in weights)
    return Lora(
        RANK,
        2 * RANK,
        0.0,
        targets,
        Quantization.none,
        AdapterStart.merged,
        target_parameters=parameters or None,
    )


def setting(parameters: tuple[str, ...], checkpointing: bool) -> MemorySetting:
    lora = lora_of(parameters)
    sizes = [math.prod(SHAPE.matrices[name]) for name in lora.weight_names()]
    adapter = AdapterSetting(
        lora.count_parameters(SHAPE),
        RANK,
        tuple(lora.layer_names(SHAPE.matrices)),
        fp32=True,
        weights=tuple(sizes),
    )
    return MemorySetting(
        SHAPE,
        Kind.sft,
        Mode.single,
        1,
        1,
        TOKENS,
        checkpointing=checkpointing,
        adapter=adapter,
        padding=False,
    )


class Saved:
    """Counts the bytes of the storages that autograd saves, those of a model's parameters left out."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        self.storages: dict[int, Any] = {}  # kept alive, so that no other takes its place

    def see(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.own:
            self.storages[storage._cdata] = storage
        return tensor

    def bytes(self) -> int:
        return sum(storage.nbytes() for storage in self.storages.values())


def adapted_model(parameters: tuple[str, ...], checkpointing: bool) -> Any:
    torch.manual_seed(0)
    model = build(setting(parameters, checkpointing=False))
    lora = lora_of(parameters)
    config = peft.LoraConfig(
        r=RANK, target_modules=list(lora.targets), target_parameters=list(parameters) or None
    )
    model = peft.get_peft_model(model, config)
    for module in model.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module.cast_input_dtype_enabled = False  # as launch's patch adapter_inputs sets it
    if checkpointing:
        # The reentrant kind recomputes a layer with these hooks.
        model.gradient_checkpointing_enable({"use_reentrant": True})
        model.enable_input_require_grads()
    return model.train()


def loss_of(model: Any) -> Any:
    ids = torch.randint(0, SHAPE.vocabulary, (1, TOKENS))
    with torch.autocast("cpu", torch.bfloat16):
        return model(input_ids=ids, use_cache=False).logits.float().logsumexp(-1).sum()


def count_saved(parameters: tuple[str, ...], checkpointing: bool) -> float:
    """Return the bytes that the forward pass saves; with checkpointing, those that one layer's
    recomputed forward pass does.
    """
    model = adapted_model(parameters, checkpointing)
    saved = Saved(model)
    with torch.autograd.graph.saved_tensors_hooks(saved.see, lambda tensor: tensor):
        loss = loss_of(model)
        if not checkpointing:
            return saved.bytes()
        saved.storages.clear()
        loss.backward()
    return saved.bytes() / SHAPE.layers


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("parameters", [ATTENTION, MLP], ids=["attention", "mlp"])
def test_what_backward_keeps_of_an_adapter_of_weights(
    parameters: tuple[str, ...], checkpointing: bool
) -> None:
    plain, other = setting((), checkpointing), setting(parameters, checkpointing)
    of_estimate = layer_bytes if checkpointing else saved_bytes
    estimated = of_estimate(other) - of_estimate(plain)
    counted = count_saved(parameters, checkpointing) - count_saved((), checkpointing)
    assert counted > 0 and estimated == pytest.approx(counted, rel=0.05)


def test_peft_refuses_what_the_rule_refuses() -> None:
    model = build(setting((), checkpointing=False))
    both = peft.LoraConfig(
        r=RANK, target_modules=["q_proj"], target_parameters=["self_attn.q_proj.weight"]
    )
    with pytest.raises(ValueError, match="not a valid target"):
        peft.get_peft_model(model, both)


@pytest.mark.parametrize(
    ("parameter", "layer"),
    [
        ("q_proj.weight", "q_proj"),
        ("mlp.up_proj.weight", "up_proj"),
        ("self_attn.up_proj.weight", None),
        ("layers.3.mlp.up_proj.weight", None),
        ("lm_head.weight", None),
        ("q_proj.bias", None),
        ("q_proj", None),
    ],
)
def test_the_layer_that_a_name_means(parameter: str, layer: str | None) -> None:
    assert layer_of_weight(parameter) == layer
