"""Fits the rates of launch/planning/estimate/cards.py to the steps measured on H200s, and prints
the error of each.

    python benchmarks/fit_speed.py [--as-they-are]

The files are those of FILES: settings with `step_seconds`, probes of `tune`, sides of a bench, runs
of a rollout. Each rate starts at START, a guess within a factor of about 1.5 (PRIOR), which holds
for a rate that no step depends on. Gauss-Newton on the logarithm of measured over predicted; the
second error of each setting is with the rates that the other settings give.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from launch.config.kinds import Kind
from launch.config.schema import Mode
from launch.planning.estimate.cards import H200, Rates
from launch.planning.estimate.setting import AdapterSetting, Attention, MemorySetting
from launch.planning.estimate.shape import LINEAR_LAYERS, ModelShape, with_parameters
from launch.planning.estimate.speed import predict_step

FOLDER = Path(__file__).parent
# hidden size, intermediate size, layers, heads, key-value heads, vocabulary, tied embeddings
SHAPES = {
    "1b": (2048, 8192, 16, 32, 8, 128256, True),
    "8b": (4096, 14336, 32, 32, 8, 128256, False),
}
FITTED = ("matrix", "masked", "causal", "memory", "unfused", "streamed", "summed", "link", "exposed", "layer",
          "adapted", "sharded_layer", "expandable", "reduced_layer", "step", "sharded_step", "varying",
          "single_sample")  # fmt: skip
START = replace(H200, matrix=600e12, masked=230e12, causal=350e12, memory=3.3e12, unfused=1.5, streamed=4e12,
                summed=2e12, link=150e9, exposed=0.33, layer=1.5e-3, adapted=0.5e-3, sharded_layer=10e-3,
                expandable=1.5, reduced_layer=2e-3, step=0.05, sharded_step=0.07, varying=0.05,
                single_sample=0.28)  # fmt: skip
PRIOR = 0.4  # standard deviation of a rate's logarithm around START
NOISE = 0.08  # standard deviation of a measurement's logarithm
# mean lengths of the data of the runs with flash attention
CHAT_TOKENS, PAIR_TOKENS = (639.4, 1246.3)
# {(trainer, limit): mean tokens of the samples from the third step on, in the order that the runs of
# adapters trained them}; of a pair, both halves
ADAPTER_TOKENS = {
    ("trl_sft", 4096): 717.8,
    ("trl_sft", 2048): 686.5,
    ("finetune", 4096): 665.3,
    ("trl_dpo", 2048): 1179.2,
}
ROW = 4096  # tokens of every row of the runs with other optimizers


@dataclass(frozen=True)
class Point:
    """One measured setting."""

    name: str
    setting: MemorySetting
    lengths: tuple[int, ...]
    seconds: float  # of a step of `tokens`
    tokens: float
    balanced: bool = False

    def error(self, rates: Rates) -> float:
        """The logarithm of measured over predicted seconds, for as many tokens."""
        step = predict_step(self.setting, self.lengths, rates, balanced=self.balanced)
        return math.log(self.seconds * step.load.tokens / self.tokens / step.seconds)


def chats(mean: float) -> tuple[int, ...]:
    """Log-normal lengths as the data of the points has them, scaled to a mean."""
    chance = random.Random(0)
    lengths = [min(2200.0, max(8.0, chance.lognormvariate(5.7, 1.0))) for _ in range(2000)]
    scale = mean * len(lengths) / sum(lengths)
    return tuple(round(length * scale) for length in lengths)


def pairs(mean: float) -> tuple[int, ...]:
    """Tokens of preference pairs whose halves are as long as each other."""
    return tuple(2 * length for length in chats(mean / 2))


def shape_named(model: str) -> ModelShape:
    hidden, intermediate, layers, heads, kv_heads, vocabulary, tied = SHAPES[model]
    return with_parameters(
        ModelShape(0, layers, hidden, intermediate, heads, kv_heads, vocabulary, tied)
    )


MATRICES = shape_named("8b").matrices
RANK = 16
ADAPTER = AdapterSetting(
    shape_named("8b").layers * RANK * sum(map(sum, MATRICES.values())),
    RANK,
    LINEAR_LAYERS,
    fp32=True,
)
FAST = MemorySetting(shape_named("8b"), Kind.sft, Mode.zero2, 4, 16, 1, 2, packing=True, liger=True, fused_loss=True,
                     attention=Attention.flash)  # fmt: skip
BY_HAND = replace(FAST, micro_batch=1, accumulation=32, packing=False, liger=False, fused_loss=False,
                  checkpointing=True)  # fmt: skip
RUNS = {  # of h200_steps_8b.json
    "sft single 16x2 gpu1 global 32": replace(FAST, mode=Mode.single, ranks=1),
    "sft zero1 16x2 gpu4 global 128": replace(FAST, mode=Mode.zero1),
    "sft zero2 16x2 gpu4 global 128": FAST,
    "sft zero2 16x2 gpu4 global 128, expandable_segments:True": replace(
        FAST, expandable_segments=True
    ),
    "dpo_tune_cache single 4x8 gpu1 global 32, padded, checkpointed": replace(
        BY_HAND, kind=Kind.dpo, mode=Mode.single, ranks=1, micro_batch=4, accumulation=8
    ),
}


def read_settings(path: Path) -> Iterator[Point]:
    """Settings with the seconds of a step, over samples of one `length` or over chats."""
    for row in json.loads(path.read_text())["settings"]:
        if row.get("step_seconds") and row.get("tokens_a_step"):
            yield point_of(row)


def point_of(row: Mapping[str, Any]) -> Point:
    accumulation, length = row.get("accumulation", 2), row.get("length")
    setting = MemorySetting(
        shape=shape_named(row["model"]),
        kind=Kind.dpo if row.get("trainer") == "dpo_tune_cache" else Kind.sft,
        mode=Mode(row["parallel"]),
        ranks=row["gpus"],
        micro_batch=row["per_device"],
        tokens=1,
        accumulation=accumulation,
        packing=row["packing"] == "flatten",
        padding=length is None,
        liger=row["liger"],
        fused_loss=row["liger"],
        checkpointing=row["checkpointing"],
        expandable_segments=row.get("expandable_segments", False),
    )
    samples = row["gpus"] * row["per_device"] * accumulation
    lengths = (
        (length * setting.sequences // setting.micro_batch,)
        if length
        else chats(row["tokens_a_step"] / samples)
    )
    name = " ".join(f"{row[key]}" for key in ("model", "gpus", "parallel", "per_device", "packing"))
    marks = f"{' liger' if row['liger'] else ''}{' ckpt' if row['checkpointing'] else ''}"
    return Point(f"{name}{marks}", setting, lengths, row["step_seconds"], row["tokens_a_step"])


def read_region(path: Path) -> Iterator[Point]:
    """Settings of one search space with their tokens/s."""
    for row in json.loads(path.read_text())["settings"]:
        setting = replace(
            FAST,
            mode=Mode(row["parallel"]),
            micro_batch=row["per_device"],
            expandable_segments=True,
        )
        setting = replace(setting, accumulation=row["accumulation"])
        name = f"region {row['parallel']} {row['per_device']}x{row['accumulation']}"
        yield Point(name, setting, chats(CHAT_TOKENS), 1.0, row["tokens_per_second"], balanced=True)


def read_probes(path: Path) -> Iterator[Point]:
    """The probes of a `tune` in which everything that the time model knows differs."""
    search = json.loads(path.read_text())
    kind = Kind.dpo if search["stage"] == "dpo" else Kind.sft
    lengths = chats(CHAT_TOKENS) if kind == Kind.sft else pairs(PAIR_TOKENS)
    for probe in search["probes"]:
        keys = probe["keys"]
        if "parallel.buckets" in keys or not probe["per_second"]:
            continue
        size, liger = keys["recipe.per_device_batch_size"], keys["recipe.liger"]
        setting = replace(
            FAST, kind=kind, mode=Mode(keys["parallel"]), micro_batch=size, accumulation=32 // size
        )
        setting = replace(setting, liger=liger, fused_loss=liger and kind == Kind.sft)
        yield Point(
            f"{kind} {probe['setting']}", setting, lengths, 1.0, probe["per_second"], balanced=True
        )


def read_bench(path: Path) -> Iterator[Point]:
    """The recipe written by hand; the other side is a probe of the search."""
    median = json.loads(path.read_text())["a"]["median"]
    setting = replace(BY_HAND, mode=Mode.zero3)
    yield Point("by hand, zero3 1x32", setting, chats(CHAT_TOKENS), 1.0, median["per_second"])


def read_runs(path: Path) -> Iterator[Point]:
    """Runs of a rollout; those of adapters are left out: a later file repeats them with longer runs."""
    runs = json.loads(path.read_text())["runs"]
    for name, setting in RUNS.items():
        sft = setting.kind == Kind.sft
        lengths = chats(CHAT_TOKENS) if sft else pairs(PAIR_TOKENS)
        yield Point(
            name, setting, lengths, 1.0, runs[name]["tokens_per_second_from_step_3"], balanced=sft
        )


def adapter_setting(row: Mapping[str, Any]) -> MemorySetting:
    """The setting of a run of h200_lora_memory.json, without its tokens."""
    is_trl, nf4 = row["trainer"] != "finetune", row.get("quantize") == "nf4"
    is_dpo = row["trainer"] == "trl_dpo"
    reference = int(is_dpo and not row.get("reference_pairs"))
    return MemorySetting(
        shape_named("8b"),
        Kind.dpo if is_dpo else Kind.sft,
        Mode.single,
        1,
        row["per_device"],
        1,
        accumulation=row["accumulation"],
        packing=row["packing"] == "flatten",
        liger=row["liger"],
        fused_loss=row["liger"] and not is_trl,
        attention=Attention.flash if row["attention"] == "flash_2" else Attention.sdpa,
        chunked_head=is_trl,
        extra_passes=reference,
        reference_passes=reference,
        reference_factor=row.get("reference_pairs", 0) / row["per_device"],
        adapter=replace(ADAPTER, fp32=not nf4, casts=row["casts"], quantized=nf4),
    )


def read_adapters(path: Path) -> Iterator[Point]:
    """Runs of adapters of rank 16 on all linear layers, with their tokens/s."""
    for row in json.loads(path.read_text())["settings"]:
        mean = ADAPTER_TOKENS[row["trainer"], row["max_seq_length"]]
        lengths = pairs(mean) if row["trainer"] == "trl_dpo" else chats(mean)
        marks = [row["trainer"], row["name"], row.get("quantize", ""), row["attention"]]
        marks += ["liger" * row["liger"], "casts" * row["casts"]]
        name = " ".join(filter(None, marks))
        yield Point(name, adapter_setting(row), lengths, 1.0, row["tokens_per_second"])


def read_optimizers(path: Path) -> Iterator[Point]:
    """Runs of TRL's on single rows that all reach the limit: of fp32 weights, and of adapters."""
    for row in json.loads(path.read_text())["settings"]:
        words = row["words"]
        adapter = None
        if "stage=lora_sft" in words:
            adapter = ADAPTER
            if "recipe.lora.dora=true" in words:
                outputs = sum(size for _, size in MATRICES.values())
                adapter = replace(adapter, dora_outputs=outputs)
        setting = MemorySetting(
            shape_named("8b"),
            Kind.sft,
            Mode.single,
            1,
            1,
            1,
            accumulation=4,
            padding=False,
            checkpointing=True,
            attention=Attention.flash,
            chunked_head=True,
            autocast=adapter is None,
            adapter=adapter,
        )
        tokens = setting.accumulation * ROW
        yield Point(f"trl_sft {words[-1]}, 1x4", setting, (ROW,), row["step_seconds"], tokens)


def read_kto(path: Path) -> Iterator[Point]:
    """Runs of KTO on rows that all reach the limit: the policy makes one pass more for the KL term,
    the reference two.
    """
    for row in json.loads(path.read_text())["settings"]:
        words, length = row["words"], row["length"]
        adapter = ADAPTER if "stage=lora_kto" in words else None
        setting = MemorySetting(
            shape_named(row["model"]),
            Kind.kto,
            Mode.single,
            1,
            4,
            1,
            accumulation=8,
            padding=False,
            checkpointing=adapter is None and "recipe.gradient_checkpointing=false" not in words,
            attention=Attention.flash,
            chunked_head=True,
            autocast=adapter is None,
            extra_passes=3,
            reference_passes=2,
            expandable_segments=True,
            adapter=adapter,
        )
        samples = setting.micro_batch * setting.accumulation
        name = f"{words[0]} {row['model']} {length}"
        yield Point(name, setting, (length,), row["step_seconds"], samples * length)


def read_widths(path: Path) -> Iterator[Point]:
    """A rollout of an adapter over one GPU, and over two with ZeRO-3."""
    for run in json.loads(path.read_text())["rollout"]["runs"]:
        batch, figures = run["batch"], run["measured"]
        adapter = replace(ADAPTER, fp32=run["parallel"] != "zero3")
        setting = replace(
            FAST,
            mode=Mode(run["parallel"]),
            ranks=batch["width"],
            micro_batch=batch["per_device"],
            accumulation=batch["accumulation"],
            fused_loss=False,
            chunked_head=True,
            expandable_segments=True,
            adapter=adapter,
        )
        samples = batch["global"] * len(figures["tokens"])
        lengths = chats(sum(figures["tokens"]) / samples)
        yield Point(f"trl_sft {run['label']}", setting, lengths, 1.0, figures["per_second"])


FILES: Mapping[str, Callable[[Path], Iterator[Point]]] = {
    "h200_speed_points.json": read_settings,
    "h200_memory_grid.json": read_settings,
    "h200x4_sft_8b_region.json": read_region,
    "h200x4_tune_sft_8b.json": read_probes,
    "h200x4_tune_dpo_8b.json": read_probes,
    "h200x4_bench_sft_8b.json": read_bench,
    "h200_steps_8b.json": read_runs,
    "h200_lora_memory.json": read_adapters,
    "h200_optimizers_8b.json": read_optimizers,
    "h200x2_rollout_lora_8b.json": read_widths,
    "h200_kto.json": read_kto,
}


def read_points() -> list[Point]:
    return [point for name, read in FILES.items() for point in read(FOLDER / name)]


class Fit:
    """The least squares around given rates: residuals, their derivatives, and the step that lessens
    them.
    """

    def __init__(self, points: Sequence[Point], rates: Rates) -> None:
        self.points, self.rates = points, rates
        self.errors = self._errors(rates)
        by = 0.01
        moved = [replace(rates, **{name: getattr(rates, name) * math.exp(by)}) for name in FITTED]
        self.slopes = np.array([(self._errors(one) - self.errors) / by for one in moved]).T
        self.pull = np.array(
            [math.log(getattr(rates, name) / getattr(START, name)) for name in FITTED]
        )

    def _errors(self, rates: Rates) -> np.ndarray:
        return np.array([point.error(rates) for point in self.points])

    def step(self, without: int | None = None) -> np.ndarray:
        """The change of the rates' logarithms, from all points or from all but one."""
        kept = np.arange(len(self.points)) != (-1 if without is None else without)
        slopes, errors, weight = self.slopes[kept] / NOISE, self.errors[kept] / NOISE, 1 / PRIOR**2
        matrix = slopes.T @ slopes + weight * np.eye(len(FITTED))
        return -np.linalg.solve(matrix, slopes.T @ errors + weight * self.pull)

    def moved(self, step: np.ndarray) -> Rates:
        factors = dict(zip(FITTED, np.exp(step), strict=True))
        return replace(
            self.rates,
            **{name: float(getattr(self.rates, name) * by) for name, by in factors.items()},
        )

    def cost(self) -> float:
        return float((self.errors**2).sum() / NOISE**2 + (self.pull**2).sum() / PRIOR**2)

    def left_out_errors(self) -> list[float]:
        """The error of each point with the rates of the others."""
        return [
            point.error(self.moved(self.step(index))) for index, point in enumerate(self.points)
        ]


def fit_rates(points: Sequence[Point]) -> Fit:
    """Fit all rates, halving a step that does not help."""
    fit, share = Fit(points, START), 1.0
    while share > 0.1:
        following = Fit(points, fit.moved(share * fit.step()))
        if following.cost() < fit.cost() - 1e-3:
            fit = following
        else:
            share /= 2
    return fit


def relative_error(error: float) -> float:
    """Predicted over measured seconds, less 1."""
    return math.exp(-error) - 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--as-they-are", action="store_true", help="only show the errors of the rates in cards.py"
    )
    points = read_points()
    fit = Fit(points, H200) if parser.parse_args().as_they_are else fit_rates(points)
    left_out = [relative_error(error) for error in fit.left_out_errors()]
    for point, error, without in zip(points, fit.errors, left_out, strict=True):
        print(f"{point.name:<64} {relative_error(error):+.1%} fitted, {without:+.1%} left out")
    sizes = [abs(error) for error in left_out]
    print(
        f"{len(points)} settings, left out: median {np.median(sizes):.1%}, largest {max(sizes):.1%}"
    )
    print(f"standard deviation of the logarithm: {np.std(fit.errors):.3f}")
    print(
        json.dumps(
            {name: float(f"{value:.3g}") for name, value in asdict(fit.rates).items()}, indent=1
        )
    )


if __name__ == "__main__":
    main()
