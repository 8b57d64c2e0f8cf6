"""The sizes of a decoder that determine memory and time, from a model's YAML or config.json; the
FLOPs of a token.
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
# modeling_mistral.py). True: one more norm over the queries and one over the keys
# (modeling_olmo2.py, modeling_qwen3.py).
BLOCKS = {
    "llama": False,
    "mistral": False,
    "qwen2": False,
    "olmo2": True,
    "olmo3": True,
    "qwen3": True,
}

# of each block
LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


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
    def has_head_norms(self) -> bool:
        """Whether queries and keys are normalised."""
        return BLOCKS[self.model_type]


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
        config.parameters, *sizes, config.tied_embeddings, config.model_type, config.head_dim
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
        shape = ModelShape(
            0,
            int(config["num_hidden_layers"]),
            int(config["hidden_size"]),
            int(config["intermediate_size"]),
            heads,
            int(config.get("num_key_value_heads") or heads),
            int(config["vocab_size"]),
            bool(config.get("tie_word_embeddings", False)),
            model_type,
            int(config["head_dim"]) if config.get("head_dim") else None,
        )
    except (KeyError, TypeError, ValueError):
        return None
    return with_parameters(shape)


def with_parameters(shape: ModelShape) -> ModelShape:
    """Return the shape with `parameters` counted: matrices, embeddings and norms; not biases
    (Qwen2's), a millionth.
    """
    norms = shape.layers * 2 * shape.hidden + shape.hidden
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

    6 operations per element of the matrices that it is multiplied with, 2 forward and 4 backward:
    the layers' and the output matrix; the embedding is a lookup. Attention within a document of S
    tokens adds 12 x layers x query width x S (PaLM, arXiv:2204.02311, appendix B; the full square,
    as is usual, though half of it is masked). Recomputed activations and padding do not count:
    neither trains anything.

    `document`: tokens of the document that it attends to; None leaves attention out. With the mean
    length of several documents the sum is a lower bound, as long ones have more of the tokens.
    `frozen`: the matrices have no gradients of their own (LoRA, whose adapters are not counted): 4
    operations per element. `reference`: a second, fixed model is evaluated in the same step (DPO
    without cached reference): 2 more, and a third of attention's. `headless`: there is no output
    matrix over the vocabulary (a reward model).
    """
    matrices = shape.layers * shape.layer
    if not headless:
        matrices += shape.embedding
    attention = 12.0 * shape.layers * shape.query_width * (document or 0.0)
    per_element = 4.0 if frozen else 6.0
    operations = per_element * matrices + attention
    if reference:
        operations += 2.0 * matrices + attention / 3
    return operations
