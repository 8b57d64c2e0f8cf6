"""Reads the sizes of a decoder that determine memory and time from a model's YAML or config.json,
and computes the FLOPs of a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch.config.schema import ShapeConfig
from launch.files import load_json

# Decoders whose block saves the same tensors as Llama's: two norms over the hidden size,
# grouped-query attention, a gated MLP (transformers modeling_llama.py:290-330, modeling_qwen2.py,
# modeling_mistral.py, modeling_ministral.py, modeling_smollm3.py, modeling_seed_oss.py). The value
# is True if there is one more norm over the queries and one over the keys (modeling_olmo2.py,
# modeling_olmo3.py, modeling_qwen3.py).
BLOCKS = {
    "llama": False,
    "ministral": False,
    "mistral": False,
    "olmo2": True,
    "olmo3": True,
    "qwen2": False,
    "qwen3": True,
    "seed_oss": False,
    "smollm3": False,
}
# The norms of these multiply in fp32, those of queries and keys over all heads at once, and they
# rotate in fp32 (modeling_olmo2.py:48-66, :140-160; modeling_olmo3.py).
_OLMO = ("olmo2", "olmo3")
_SLIDING = "sliding_attention"  # a sliding layer's entry in `layer_types` of config.json
# The `sliding_window` of these counts only with `use_sliding_window` (configuration_qwen2.py:84).
_WINDOW_IS_OFF = ("qwen2", "qwen3", "smollm3")
# Without `layer_types`, every fourth layer attends to all tokens (configuration_olmo3.py:94).
_FULL_EVERY = {"olmo3": 4}

# The linear layers of each block.
LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_OF_MLP = ("gate_proj", "up_proj", "down_proj")


def layer_of_weight(parameter: str) -> str | None:
    """Return the linear layer of each block whose weight has a name that ends with `parameter`, such
    as `q_proj.weight` or `self_attn.q_proj.weight`; None for the name of anything else.
    """
    path, _, last = parameter.rpartition(".")
    part, _, layer = path.rpartition(".")
    if last != "weight" or layer not in LINEAR_LAYERS:
        return None
    return layer if part in ("", "mlp" if layer in _OF_MLP else "self_attn") else None


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder-only model."""

    parameters: float  # tied embeddings count once
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool = False
    model_type: str = "llama"  # transformers' name of the architecture
    head_size: int | None = None  # None: hidden / heads
    window: int | None = None  # tokens that a sliding layer attends to; None: no layer slides
    sliding_layers: int = 0  # layers that slide; the others attend to all tokens

    @property
    def query_width(self) -> int:
        """Elements of a token's queries, all heads."""
        return self.heads * (self.head_size or self.hidden // self.heads)

    @property
    def key_width(self) -> int:
        """Elements of a token's keys, all key-value heads; the values have as many."""
        return self.kv_heads * (self.head_size or self.hidden // self.heads)

    @property
    def embedding(self) -> int:
        """Elements of the embedding, and of the output matrix."""
        return self.vocabulary * self.hidden

    @property
    def layer(self) -> int:
        """Elements of one layer's matrices."""
        attention = 2 * self.hidden * (self.query_width + self.key_width)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """The linear layers of a block, with their numbers of inputs and outputs."""
        hidden = self.hidden
        wide = self.intermediate
        sizes = (
            (hidden, self.query_width),
            (hidden, self.key_width),
            (hidden, self.key_width),
            (self.query_width, hidden),
            (hidden, wide),
            (hidden, wide),
            (wide, hidden),
        )
        return dict(zip(LINEAR_LAYERS, sizes, strict=True))

    @property
    def tensors(self) -> dict[str, int]:
        """The elements of each tensor, by the name of transformers' models, without biases; tied
        embeddings are two.
        """
        block = {}
        for name, (inputs, outputs) in self.matrices.items():
            part = "mlp" if name in _OF_MLP else "self_attn"
            block[f"{part}.{name}.weight"] = inputs * outputs
        before = "post_feedforward_layernorm" if self.is_olmo else "input_layernorm"
        for norm in (before, "post_attention_layernorm"):
            block[f"{norm}.weight"] = self.hidden
        if self.has_head_norms:
            widths = self.query_width if self.is_olmo else self.query_width // self.heads
            block["self_attn.q_norm.weight"] = widths
            block["self_attn.k_norm.weight"] = self.head_norms - widths
        tensors = {"model.embed_tokens.weight": self.embedding}
        for layer in range(self.layers):
            for name, size in block.items():
                tensors[f"model.layers.{layer}.{name}"] = size
        return tensors | {"model.norm.weight": self.hidden, "lm_head.weight": self.embedding}

    @property
    def has_head_norms(self) -> bool:
        """Whether queries and keys are normalised."""
        return BLOCKS[self.model_type]

    @property
    def head_norms(self) -> int:
        """Weights of a layer's norms over queries and keys."""
        if not self.has_head_norms:
            return 0
        widths = self.query_width + self.key_width
        return widths if self.is_olmo else widths // (self.heads + self.kv_heads) * 2

    @property
    def is_olmo(self) -> bool:
        """Whether norms and rotations are computed as OLMo 2 and 3 do."""
        return self.model_type in _OLMO

    def slides(self, tokens: float) -> bool:
        """Return whether some layers attend to less than a document of `tokens` tokens."""
        return self.window is not None and self.sliding_layers > 0 and tokens > self.window

    def attended_square(self, tokens: float) -> float:
        """Return twice the pairs of a query and a key in a document of `tokens` tokens, as the mean
        over the layers.

        Without a window that is the whole square, half of which a causal mask removes. A sliding
        layer does not attend to tokens further back than its window.
        """
        square = tokens * tokens
        if self.window is None or not self.slides(tokens):
            return square
        further_back = (tokens - self.window) ** 2
        return square - further_back * self.sliding_layers / self.layers


def shape_from_yaml(config: ShapeConfig) -> ModelShape | None:
    """Return the shape in a model's YAML; None when it leaves a number out, or names an unknown
    architecture.
    """
    numbers = (
        config.layers,
        config.hidden,
        config.intermediate,
        config.heads,
        config.kv_heads,
        config.vocabulary,
    )
    if config.parameters is None or None in numbers or config.model_type not in BLOCKS:
        return None
    layers, hidden, intermediate, heads, kv_heads, vocabulary = (
        int(number or 0) for number in numbers
    )
    sizes = (layers, hidden, intermediate, heads, kv_heads, vocabulary)
    if min(sizes) < 1:
        return None
    return ModelShape(
        config.parameters,
        *sizes,
        tied=config.tied_embeddings,
        model_type=config.model_type,
        head_size=config.head_dim,
        window=config.sliding_window,
        sliding_layers=config.sliding_layers or 0,
    )


def read_shape(folder: Path) -> ModelShape | None:
    """Read the shape from a model folder's config.json; None without a readable one, or for an
    unknown architecture.
    """
    try:
        config = load_json(folder / "config.json")
    except (OSError, ValueError):
        return None
    return shape_from_hf_config(config) if isinstance(config, dict) else None


def shape_from_hf_config(config: Mapping[str, Any]) -> ModelShape | None:
    """Return the shape in a transformers configuration, with `parameters` counted; None for an
    unknown architecture.
    """
    try:
        model_type = str(config["model_type"])
        if model_type not in BLOCKS:
            return None
        heads = int(config["num_attention_heads"])
        layers = int(config["num_hidden_layers"])
        window = _window(config)
        shape = ModelShape(
            0,
            layers,
            int(config["hidden_size"]),
            int(config["intermediate_size"]),
            heads,
            int(config.get("num_key_value_heads") or heads),
            int(config["vocab_size"]),
            bool(config.get("tie_word_embeddings", False)),
            model_type,
            int(config["head_dim"]) if config.get("head_dim") else None,
            window,
            _count_sliding_layers(config, layers) if window else 0,
        )
    except (KeyError, TypeError, ValueError):
        return None
    return with_parameters(shape)


def _window(config: Mapping[str, Any]) -> int | None:
    """Return the tokens of a transformers configuration's sliding window; None if it is not used.

    Raises TypeError, ValueError.
    """
    is_used = config.get("use_sliding_window", config["model_type"] not in _WINDOW_IS_OFF)
    window = config.get("sliding_window")
    return int(window) if is_used and window else None


def _count_sliding_layers(config: Mapping[str, Any], layers: int) -> int:
    """Return how many of the layers slide.

    Without `layer_types` the architecture's default decides: the last layers of Qwen
    (configuration_qwen2.py:91), and all layers of the others. Raises TypeError, ValueError.
    """
    types = config.get("layer_types")
    if types:
        return list(types).count(_SLIDING)
    every = _FULL_EVERY.get(str(config["model_type"]))
    if every is not None:
        return layers - layers // every
    if "max_window_layers" in config:
        return max(0, layers - int(config["max_window_layers"]))
    return layers


def with_parameters(shape: ModelShape) -> ModelShape:
    """Return the shape with `parameters` counted: matrices, embeddings and norms, without biases
    (Qwen2's), which are a millionth of them.
    """
    norms = shape.layers * (2 * shape.hidden + shape.head_norms) + shape.hidden
    matrices = shape.layers * shape.layer + shape.embedding * (1 if shape.tied else 2)
    return replace(shape, parameters=matrices + norms)


def token_flops(
    shape: ModelShape,
    document: float | None = None,
    *,
    frozen: bool = False,
    reference: bool = False,
    headless: bool = False,
) -> float:
    """Return the operations of training on one token, which a model's FLOP/s utilisation (MFU)
    counts.

    Each element of a matrix that the token is multiplied with takes 6 operations, 2 forward and 4
    backward: the layers' matrices and the output matrix; the embedding is a lookup. Attention
    within a document of S tokens adds 12 x layers x query width x S (PaLM, arXiv:2204.02311,
    appendix B; the full square, as is usual, though half of it is masked). In a layer with a window
    W below S, 2 W - W^2 / S replaces S, which is twice what olmo_core/nn/attention/__init__.py:614
    counts. Recomputed activations and padding do not count, since neither trains anything.

    `document`: tokens of the document that it attends to; None leaves attention out. With the mean
    length of several documents the sum is a lower bound, since long ones have more of the tokens.
    `frozen`: the matrices have no gradients of their own (LoRA, whose adapters are not counted), so
    each element takes 4 operations. `reference`: a second, fixed model is evaluated in the same step
    (DPO without cached reference), which adds 2 operations per element and a third of attention's.
    `headless`: there is no output matrix over the vocabulary (a reward model).
    """
    matrices = shape.layers * shape.layer
    if not headless:
        matrices += shape.embedding
    attended = shape.attended_square(document) / document if document else 0.0
    attention = 12.0 * shape.layers * shape.query_width * attended
    per_element = 4.0 if frozen else 6.0
    operations = per_element * matrices + attention
    if reference:
        operations += 2.0 * matrices + attention / 3
    return operations
