"""The rates that cards reach in training: fitted to measured steps on one kind of card, scaled for others."""

from __future__ import annotations

from dataclasses import dataclass, replace

from launch.planning.estimate.cards import card_named


@dataclass(frozen=True)
class Rates:
    """The rates of a card and its links, as far as the time of a step depends on them."""

    matrix: float  # FLOP/s of a layer's matrices
    masked: float  # FLOP/s of attention over a whole row x row mask
    causal: float  # FLOP/s of attention without a mask
    memory: float  # bytes/s of everything between
    link: float  # bytes/s that each rank sends in a ring
    offload: float  # bytes/s between a card and its host
    exposed: float  # the share of communication that nothing hides
    layer: float  # seconds of the host to issue a layer's forward and backward pass, without ZeRO-3
    sharded_layer: float  # the same with ZeRO-3
    expandable: float  # how many times `sharded_layer` it takes with expandable segments
    reduced_layer: float  # seconds that nothing hides for a layer's gradients in each micro batch under ZeRO 1 and 2
    step: float  # seconds of a step outside of the micro batches, without ZeRO
    sharded_step: float  # the same with ZeRO
    varying: float  # seconds of each micro batch whose length differs from the one before it
    single_sample: float  # seconds more of each micro batch of one sample, where samples vary; the cause is not known
    bias: float  # standard deviation of log(measured / predicted seconds) that all settings on the card share
    spread: float  # the same of each setting


# Fitted by benchmarks/fit_speed.py to the steps measured in benchmarks/; the script has the files.
H200 = Rates(
    matrix=695e12,
    masked=215e12,
    causal=358e12,
    memory=2.83e12,
    link=158e9,
    offload=20e9,
    exposed=0.44,
    layer=1.5e-3,
    sharded_layer=12.7e-3,
    expandable=1.79,
    reduced_layer=1.19e-3,
    step=0.0575,
    sharded_step=0.0638,
    varying=0.0391,
    single_sample=0.494,
    bias=0.1,
    spread=0.1,
)
_H200 = "H200 SXM"
# Two cores of a server: a guess that the first probe replaces.
CPU = Rates(
    matrix=100e9,
    masked=30e9,
    causal=30e9,
    memory=10e9,
    link=1e9,
    offload=1e9,
    exposed=1.0,
    layer=5e-3,
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
_UNMEASURED_BIAS = 0.5  # of a card in the table: it may reach another share of its peak
_UNKNOWN_BIAS = 1.0  # of a card that is not in the table, treated as an H200


@dataclass(frozen=True)
class CardRates:
    """The rates to predict with on a kind of card."""

    rates: Rates
    measured: bool  # on this kind of card
    why: str  # the reason why they are not measured


def rates_for_card(card: str | None) -> CardRates:
    """Return the rates of the card that nvidia-smi calls `card`; None stands for a CPU."""
    if card is None:
        return CardRates(CPU, False, "CPUs differ: the first probe measures this one")
    listed, reference = card_named(card), card_named("NVIDIA H200")
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
        bias=_UNMEASURED_BIAS,
    )
    why = f"a {listed.name} was not measured: the rates of an {_H200}, scaled by the data sheet"
    return CardRates(scaled, False, why)
