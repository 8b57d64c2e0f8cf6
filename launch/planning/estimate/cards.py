"""Lists kinds of GPU: their data sheets, their memory, and the rates that they reach in training.

The rates are fitted to measured steps.

TFLOP/s are dense bf16 on tensor cores, accumulated in fp32; where a data sheet gives the rate with
sparsity, it is half of that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from launch.config.cluster import ClusterConfig
from launch.host.nvidia import Gpu, find_gpus


@dataclass(frozen=True)
class Card:
    """A kind of GPU."""

    name: str
    tflops: float  # 10^12 dense bf16 operations per second
    memory_gb: float  # as it is sold; 10^9 bytes, or 2^30 where the memory is HBM
    source: str  # the data sheet
    # MiB that nvidia-smi reports, as public logs of it have it: error correction takes a sixteenth of
    # most GPUs with GDDR memory. 0 if unknown.
    reported_mib: int = 0

    @property
    def memory_gib(self) -> float:
        """The memory that programs see; without a report that of the data sheet."""
        return self.reported_mib / 1024 or self.memory_gb * 1e9 / (1 << 30)


_HOPPER = "NVIDIA H100 / H200 Tensor Core GPU data sheets"
_AMPERE = "NVIDIA A100 Tensor Core GPU data sheet"
_ADA = "NVIDIA L4 / L40 / L40S data sheets"
_GA102 = "NVIDIA A40 / RTX A6000 data sheets"
_GEFORCE = "NVIDIA Ampere GA102, Ada and RTX Blackwell GPU architecture papers"

# Each pattern is searched in a name as `_plain_name` writes it; the first match counts.
_CARDS: tuple[tuple[str, Card], ...] = (
    (r"\bgb200\b", Card("GB200", 2500, 186, "NVIDIA GB200 NVL72 data sheet")),
    (r"\bb200\b", Card("B200", 2250, 180, "NVIDIA DGX B200 data sheet", 183359)),
    (r"\bgh200\b", Card("GH200", 989, 96, "NVIDIA GH200 data sheet", 97871)),
    (r"\bh200 nvl\b", Card("H200 NVL", 835, 141, _HOPPER, 143771)),
    (r"\bh200\b", Card("H200 SXM", 989, 141, _HOPPER, 143771)),
    (r"\bh100 nvl\b", Card("H100 NVL", 835, 94, _HOPPER, 95830)),
    (r"\bh100 pcie\b", Card("H100 PCIe", 756, 80, _HOPPER, 81559)),
    (r"\bh100\b", Card("H100 SXM", 989, 80, _HOPPER, 81559)),
    (r"\ba100\b.*\b80(gb)?\b", Card("A100 80GB", 312, 80, _AMPERE, 81920)),
    (r"\ba100\b", Card("A100 40GB", 312, 40, _AMPERE, 40960)),
    (r"\ba30\b", Card("A30", 165, 24, "NVIDIA A30 data sheet", 24576)),
    (r"\ba10\b", Card("A10", 125, 24, "NVIDIA A10 data sheet", 23028)),
    (r"\ba40\b", Card("A40", 149.7, 48, _GA102, 46068)),
    (r"\b(rtx )?a6000\b", Card("RTX A6000", 154.8, 48, _GA102, 49140)),
    (r"\bl40s\b", Card("L40S", 362, 48, _ADA, 46068)),
    (r"\bl40\b", Card("L40", 181, 48, _ADA, 46068)),
    (r"\bl4\b", Card("L4", 121, 24, _ADA, 23034)),
    (r"^(rtx ?)?5090$", Card("RTX 5090", 209.5, 32, _GEFORCE, 32607)),
    (r"^(rtx ?)?4090$", Card("RTX 4090", 165.2, 24, _GEFORCE, 24564)),
    (r"^(rtx ?)?3090$", Card("RTX 3090", 71, 24, _GEFORCE, 24576)),
)


_MAKERS = re.compile(r"\b(nvidia|geforce|tesla)\b")
_SIZE = re.compile(r"\b(\d+) ?g(b|ib)?\b")  # the memory that a name has, such as 80GB
_MIG = re.compile(r"\bmig\b|\b\d+g\.\d+gb\b")  # a slice of a GPU, as nvidia-smi or Slurm names it


def _plain_name(name: str) -> str:
    """Return a name as people say it: in lower case, without its maker, words separated by blanks."""
    words = _MAKERS.sub(" ", re.sub("[-_]", " ", name.lower()))
    return " ".join(words.split())


def card_named(name: str, memory: float | None = None) -> Card | None:
    """Return the GPU that nvidia-smi, torch, a Slurm cluster or a person calls `name`; None for an
    unknown one, and for a MIG slice.

    `memory` in GiB distinguishes GPUs of one name, such as the two kinds of A100; else the memory
    in the name does.
    """
    plain = _plain_name(name)
    if _MIG.search(plain):
        return None
    size = _SIZE.search(plain)
    bare = " ".join(_SIZE.sub(" ", plain).split())
    card = _find_card(plain) or _find_card(bare)
    if card is None:
        return None
    if memory is None:
        if size is None:
            return card
        memory = float(size[1])
    named_alike = [card]  # the first of equals counts
    named_alike += [other for _, other in _CARDS if other.name.lower().split()[0] == bare]
    return min(named_alike, key=lambda other: abs(other.memory_gb - memory))


def _find_card(plain: str) -> Card | None:
    return next((card for pattern, card in _CARDS if re.search(pattern, plain)), None)


def slurm_type(gpu_type: str) -> str:
    """Return the word that a batch script has for cluster.gpu_type: itself, or for a name of several
    words the one that `launch help gpus` has.
    """
    card = card_named(gpu_type)
    return gpu_type if card is None or " " not in gpu_type.strip() else _type_name(card)


def list_cards() -> dict[str, Card]:
    """Return the known GPUs by what cluster.gpu_type can name them."""
    return {_type_name(card): card for _, card in _CARDS}


def card_aliases() -> dict[str, str]:
    """Return the names of `list_cards` by what people call them: themselves, and without RTX."""
    names = list(list_cards())
    return {name.removeprefix("rtx_"): name for name in names} | {name: name for name in names}


def _type_name(card: Card) -> str:
    """Return the shortest name that means this GPU: `h100`, and `h100_pcie`."""
    name = card.name.lower().replace(" ", "_")
    first, _, _ = name.partition("_")
    return first if card_named(first) == card else name


@dataclass(frozen=True)
class CardMemory:
    """The memory of one GPU."""

    gib: float
    source: str  # the source of the number


def card_memory(cluster: ClusterConfig, environ: Mapping[str, str]) -> CardMemory | None:
    """Return the memory of the GPUs that a plan is for, None when it is unknown.

    It is cluster.gpu_memory, else that of the smallest GPU in this machine, else that of the kind
    that cluster.gpu_type names.
    """
    if cluster.gpu_memory is not None:
        return CardMemory(cluster.gpu_memory, "cluster.gpu_memory")
    smallest = smallest_card(find_gpus(environ).seen)
    if smallest is not None:
        return smallest
    card = card_named(cluster.gpu_type or "")
    if card is None:
        return None
    where = "as nvidia-smi reports it" if card.reported_mib else "its data sheet"
    source = f"{card.name}, {where}{_note_larger(card, cluster.gpu_type)}"
    return CardMemory(card.memory_gib, source)


def _note_larger(card: Card, gpu_type: str | None) -> str:
    """Return a note of the GPU of the same name with more memory; empty without one.

    A cluster may call both kinds of A100 `a100`; the smaller one is taken then.
    """
    first, _, _ = card.name.partition(" ")
    if gpu_type is None or first.lower() != _plain_name(gpu_type):
        return ""
    larger = [other for _, other in _CARDS if other.name.startswith(f"{first} ")]
    most = max(other.memory_gb for other in larger) if larger else 0
    if most < 1.5 * card.memory_gb:
        return ""
    return f"; cluster.gpu_memory={most:.0f} if it has {most:.0f} GB"


def planned_card(cluster: ClusterConfig, here: str | None) -> Card | None:
    """Return the kind of GPU that a plan is for: `here`, as nvidia-smi calls the one of this machine,
    else cluster.gpu_type; None if neither is set or the kind is unknown.
    """
    return card_named(here or cluster.gpu_type or "", cluster.gpu_memory)


def describe_unknown_card(cluster: ClusterConfig) -> str:
    """Describe why no GPU is known, and what to set."""
    if cluster.gpu_type is None:
        return (
            "the GPU is unknown: set cluster.gpu_type=h100 or another name of `launch help gpus`, or "
            "cluster.gpu_memory=GIB for any other GPU"
        )
    known = ", ".join(list_cards())
    return (
        f"cluster.gpu_type={cluster.gpu_type} is not a known GPU: set cluster.gpu_memory=GIB for its "
        f"memory, or one of {known}"
    )


def smallest_card(gpus: Iterable[Gpu]) -> CardMemory | None:
    """Return the memory of the smallest of these GPUs; None where none reports it."""
    sizes = [(gpu.total, gpu.name) for gpu in gpus if gpu.total]
    if not sizes:
        return None
    mib, name = min(sizes)
    return CardMemory(mib * (1 << 20) / (1 << 30), name)


@dataclass(frozen=True)
class Rates:
    """The rates of a GPU and its links that determine the time of a step."""

    matrix: float  # FLOP/s of a layer's matrices
    masked: float  # FLOP/s of attention over a whole row x row mask
    causal: float  # FLOP/s of attention without a mask
    memory: float  # bytes/s of everything between, of which what is saved is counted
    unfused: float  # the factor on these bytes without Liger, whose kernels fuse what lies between
    streamed: float  # bytes/s of kernels whose reads and writes are all counted
    summed: (
        float  # bytes/s of the length of W + B @ A (DoRA), which reads one of them across its rows
    )
    link: float  # bytes/s that each rank sends in a ring
    offload: float  # bytes/s between a GPU and its host
    exposed: float  # the share of communication that does not overlap with computation
    layer: float  # seconds of the host to issue a layer's forward and backward pass, without ZeRO-3
    adapted: float  # the same for the adapter of one matrix
    sharded_layer: float  # seconds of the host for a layer with ZeRO-3
    expandable: float  # the factor on `sharded_layer` with expandable segments
    # Seconds without overlap for a layer's gradients in each micro batch under ZeRO 1 and 2.
    reduced_layer: float
    step: float  # seconds of a step outside the micro batches, without ZeRO
    sharded_step: float  # seconds of a step outside the micro batches, with ZeRO
    varying: float  # seconds of each micro batch whose length differs from the one before it
    # Additional seconds of each micro batch of one sample under ZeRO-3, if samples vary; the cause is
    # not known.
    single_sample: float
    # The standard deviation of log(measured / predicted seconds) that all settings on a GPU share.
    bias: float
    spread: float  # the standard deviation of each setting's own part


# Fitted by benchmarks/fit_speed.py to the steps measured in benchmarks/; the script has the files.
H200 = Rates(
    matrix=744e12,
    masked=206e12,
    causal=384e12,
    memory=2.33e12,
    unfused=2.17,
    streamed=3.94e12,
    summed=1.59e12,
    link=139e9,
    offload=20e9,
    exposed=0.43,
    layer=1.61e-3,
    adapted=0.597e-3,
    sharded_layer=12.2e-3,
    expandable=2.01,
    reduced_layer=1.24e-3,
    step=0.054,
    sharded_step=0.0693,
    varying=0.0381,
    single_sample=0.497,
    bias=0.1,
    spread=0.1,
)
_H200 = "H200 SXM"
# The rates of two cores of a server, a guess that the first probe replaces.
CPU = Rates(
    matrix=100e9,
    masked=30e9,
    causal=30e9,
    memory=10e9,
    unfused=1.5,
    streamed=10e9,
    summed=10e9,
    link=1e9,
    offload=1e9,
    exposed=1.0,
    layer=5e-3,
    adapted=0.5e-3,
    sharded_layer=50e-3,
    expandable=1.0,
    reduced_layer=5e-3,
    step=0.05,
    sharded_step=0.1,
    varying=0.0,
    single_sample=0.0,
    bias=1.0,
    spread=0.4,
)
_UNMEASURED_BIAS = 0.5  # bias of a GPU in the table, which may reach another share of its peak
_UNKNOWN_BIAS = 1.0  # bias of a GPU that is not in the table, which is treated as an H200


@dataclass(frozen=True)
class CardRates:
    """The rates to predict with on a kind of GPU."""

    rates: Rates
    measured: bool  # whether the rates were measured on this kind of GPU
    why: str  # the reason if they were not


def rates_for_card(card: str | None) -> CardRates:
    """Return the rates of the GPU that nvidia-smi calls `card`; None stands for a CPU."""
    if card is None:
        return CardRates(CPU, False, "CPUs differ: the first probe measures this one")
    listed = card_named(card)
    reference = card_named("NVIDIA H200")
    assert reference is not None
    if listed is None:
        unknown = replace(H200, bias=_UNKNOWN_BIAS)
        return CardRates(unknown, False, f"{card} is an unknown GPU: treated as an {_H200}")
    if listed.name == _H200:
        return CardRates(H200, True, "")
    share = listed.tflops / reference.tflops
    scaled = replace(
        H200,
        matrix=H200.matrix * share,
        masked=H200.masked * share,
        causal=H200.causal * share,
        memory=H200.memory * share,
        streamed=H200.streamed * share,
        summed=H200.summed * share,
        bias=_UNMEASURED_BIAS,
    )
    why = f"a {listed.name} was not measured: the rates of an {_H200}, scaled by the data sheet"
    return CardRates(scaled, False, why)
