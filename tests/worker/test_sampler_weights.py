"""What vLLM holds is compared with what TRL loads into it, tensor by tensor.

vLLM needs a GPU. TRL's own code loads the weights here, into modules of vLLM's form: projections
that are joined, and a vocabulary that is filled up. A server is a thread that answers TRL's client
with what `ServerWeights` reads; tensors reach it without NCCL, which needs GPUs.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import requests
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration

from launch.worker.in_vllm.launch_weights import ServerWeights
from launch.worker.sampler_weights import EngineCopy, record_engine, record_server
from tests.worker.json_server import serve_json

# of the projections that are joined, in their order
ROWS = {"q_proj": 8, "k_proj": 4, "v_proj": 4}
VOCABULARY = 10


class JoinedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj = nn.Linear(8, sum(ROWS.values()), bias=False, dtype=torch.bfloat16)
        self.o_proj = nn.Linear(8, 8, bias=False, dtype=torch.bfloat16)


class Engine(nn.Module):
    """A Llama of one layer as vLLM holds it, without its MLP."""

    packed_modules_mapping: ClassVar = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Module()
        layer.self_attn = JoinedAttention()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(64, 8, dtype=torch.bfloat16)
        self.model.layers = nn.ModuleList([layer])
        self.model.norm = nn.RMSNorm(8, dtype=torch.bfloat16)

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        tensors = dict(self.named_parameters())
        for name, tensor in weights:
            held, first = name, 0
            for number, part in enumerate(ROWS):
                if part in name:
                    held = name.replace(part, "qkv_proj")
                    first = sum(list(ROWS.values())[:number])
            if held in tensors:
                tensors[held].data[first : first + len(tensor)] = tensor


def trained_model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def generation_of(model: Any, engine: Engine) -> Any:
    """Return TRL's generation with an engine in its process."""
    generation = object.__new__(VLLMGeneration)
    generation.model = model
    generation.mode = "colocate"
    generation.enable_sleep_mode = False
    generation.tensor_parallel_size = 1
    generation.accelerator = SimpleNamespace(is_main_process=True)
    generation._dist = SimpleNamespace(is_fsdp=False, gather_params=lambda _: torch.no_grad())
    worker = SimpleNamespace(model_runner=SimpleNamespace(model=engine))
    executor = SimpleNamespace(driver_worker=worker)
    generation.llm = SimpleNamespace(
        llm_engine=SimpleNamespace(model_executor=executor), reset_prefix_cache=lambda: None
    )
    return generation


def loaded(engine: Engine, model: Any, sync: Callable[[Any], None]) -> EngineCopy:
    generation = generation_of(model, engine)
    with record_engine(generation) as copy:
        sync(generation)
    assert "_iter_named_params" not in vars(generation)
    return copy


@pytest.mark.parametrize("adapter", [False, True])
def test_an_engine_that_was_loaded_has_the_trained_weights(adapter: bool) -> None:
    model = trained_model()
    if adapter:
        targets = ["q_proj", "o_proj"]
        model = get_peft_model(model, LoraConfig(target_modules=targets, init_lora_weights=False))
    copy = loaded(Engine(), model, lambda generation: generation.sync_weights())
    assert copy.value == "trained"
    # the embedding, the last norm and the four projections; the other five have no counterpart
    assert copy.how.startswith("6 of 11 tensors")


def test_an_engine_that_gets_no_weights_keeps_an_older_copy() -> None:
    copy = loaded(Engine(), trained_model(), lambda _: None)
    assert copy.value.startswith("an older copy")


@pytest.mark.parametrize("name", ["self_attn.k_proj", "embed_tokens", "norm"])
def test_a_tensor_that_does_not_arrive_is_named(name: str) -> None:
    class Deaf(Engine):
        def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
            super().load_weights([item for item in weights if name not in item[0]])

    engine = Deaf()
    for tensor in engine.parameters():
        tensor.data.fill_(7)
    copy = loaded(engine, trained_model(), lambda generation: generation.sync_weights())
    assert copy.different and all(name in different for different in copy.different)
    assert copy.value != "trained" and name in copy.value


def test_an_engine_of_another_form_shows_nothing() -> None:
    class Other(Engine):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(2, 2)

    copy = loaded(Other(), trained_model(), lambda generation: generation.sync_weights())
    assert copy.value.startswith("unknown: none of 11 tensors")


class Client(VLLMClient):
    """TRL's client, whose tensors go to the engine directly."""

    def __init__(self, port: int, engine: Engine) -> None:
        self.session = requests.Session()
        self.base_url = f"http://127.0.0.1:{port}"
        self.engine = engine

    def update_named_params(self, metadata: Any, named_params: Iterator[tuple[str, Any]]) -> None:
        self.engine.load_weights(named_params)

    def reset_prefix_cache(self) -> None:
        """Keep nothing."""


@contextlib.contextmanager
def serving(engine: Engine, extension: str | None) -> Iterator[Client]:
    """A server that holds the engine; `extension` is its --worker-extension-cls."""
    worker = ServerWeights()
    worker.model_runner = SimpleNamespace(model=engine)
    parallel = SimpleNamespace(tensor_parallel_size=1)
    worker.vllm_config = SimpleNamespace(parallel_config=parallel)
    config = {
        "parallel_config": {"worker_extension_cls": extension},
        "model_config": {"dtype": "torch.bfloat16"},
    }

    def call(path: str, sent: bytes) -> dict[str, Any]:
        order = json.loads(sent)
        return {"results": [getattr(worker, order["method"])(**order["kwargs"])]}

    with serve_json(lambda path: {"vllm_config": config}, call) as port:
        yield Client(port, engine)


def sent(
    engine: Engine, sync: Callable[[Any], None], extension: str | None = "x.ServerWeights"
) -> EngineCopy | None:
    generation = generation_of(trained_model(), engine)
    generation.mode = "server"
    generation._weight_metadata = None
    with serving(engine, extension) as client:
        generation.vllm_client = client
        with record_server(generation) as copy:
            sync(generation)
    assert "_iter_named_params" not in vars(generation)
    return copy


def test_a_server_that_was_loaded_has_the_trained_weights() -> None:
    """The trained ones are fp32, and the server's bf16."""
    copy = sent(Engine(), lambda generation: generation.sync_weights())
    assert copy is not None and copy.value == "trained"
    assert copy.how.startswith("6 of 11 tensors")


def test_a_server_that_gets_no_weights_keeps_an_older_copy() -> None:
    copy = sent(Engine(), lambda _: None)
    assert copy is not None and copy.value.startswith("an older copy")


@pytest.mark.parametrize("name", ["self_attn.k_proj", "embed_tokens", "norm"])
def test_one_element_of_a_server_that_differs_is_named(name: str) -> None:
    class Wrong(Engine):
        def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
            wrong = [(key, tensor.clone()) for key, tensor in weights]
            (hit,) = [tensor for key, tensor in wrong if f".{name}.weight" in key]
            hit.view(-1)[-1] += 0.5
            super().load_weights(wrong)

    copy = sent(Wrong(), lambda generation: generation.sync_weights())
    assert copy is not None and len(copy.different) == 1 and name in copy.different[0]
    assert copy.value != "trained" and name in copy.value


def test_a_server_that_shows_no_weights_is_not_compared() -> None:
    assert sent(Engine(), lambda generation: generation.sync_weights(), None) is None
    assert sent(Engine(), lambda generation: generation.sync_weights(), "another.One") is None


def test_a_rank_without_a_connection_compares_nothing() -> None:
    with record_server(generation_of(trained_model(), Engine())) as copy:
        assert copy is None
