"""Searches of `tune` over simulated cards: correcting each prediction by the nearest probe, or all
alike.

    PYTHONPATH=. python benchmarks/replay_tune.py [--draws 20] [--out benchmarks/replay_tune.json]

The space is that of SFT 8b on four H200s. Each draw is a card whose true times differ from the
predicted ones by a factor of its own, one for each mode, packing, Liger, checkpointing and
balancing, one that grows with the per-device batch and one for each setting; a probe is 3% off. The
plain rule corrects all predictions by the median ratio of measured to predicted, which keeps their
order: it probes those that are predicted to be the fastest. The loss is how much slower the chosen
setting truly is than the best.

Then whole searches, each until its own rule stops it, at most eight probes: the plain rule stops
where the best measured beats the next corrected prediction. And searches in which every setting
with some feature fails, with and without dropping the settings that share what failed probes have
in common; `nothing`: searches without a measurement.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from launch.config.trials import TuneConfig
from launch.trials.tune import search
from launch.trials.tune.predict import Prediction, Probe
from launch.trials.tune.record import TuneRecord
from tests.trials.tune.searches import failed, measured, record_in

# standard deviations of the logarithm: of the card, of each mode (half of it for the rest), of each
# setting
CARDS = {
    "as fitted": (0.1, 0.07, 0.05),
    "another card": (0.5, 0.15, 0.08),
    "wrong in parts": (0.3, 0.35, 0.05),
}
PROBES = (4, 6)
NOISE = 0.03
MOST_PROBES = 8
BROKEN = ("flatten", "liger", "zero1", "balanced")
TRAITS = ("mode", "packing", "liger", "checkpointing", "balanced")


@dataclass(frozen=True)
class Card:
    """One draw: the true seconds of every setting."""

    seed: int
    whole: float
    mode: float
    setting: float

    def _draw(self, name: str, deviation: float) -> float:
        return random.Random(f"{self.seed} {name}").gauss(0.0, deviation)

    def seconds(self, prediction: Prediction) -> float:
        candidate = prediction.candidate
        error = self._draw("card", self.whole) + self._draw(prediction.label, self.setting)
        error += sum(
            self._draw(
                f"{trait} {getattr(candidate, trait)}",
                self.mode * (1.0 if trait == "mode" else 0.5),
            )
            for trait in TRAITS
        )
        return prediction.seconds * math.exp(
            error + self._draw("size", self.mode / 3) * math.log2(candidate.per_device)
        )

    def measure(self, prediction: Prediction) -> float:
        return self.seconds(prediction) * math.exp(self._draw(f"probe {prediction.label}", NOISE))


def choose(record: TuneRecord, card: Card, probes: int, *, plain: bool) -> Prediction:
    """The fastest of so many probes, which the rule selects one after another."""
    record = replace(record, runs=[])
    for _ in range(probes):
        probed = {probe.prediction.candidate for probe in record.runs}
        waiting = [
            one
            for one in record.estimates
            if one.is_open and one.prediction.candidate not in probed
        ]
        following = min(
            waiting, key=lambda one: one.prediction.seconds if plain else one.low
        ).prediction
        record.runs.append(measured(following, card.measure(following)))
    return min(record.runs, key=lambda probe: probe.step_seconds or math.inf).prediction


def search_plain(
    order: Sequence[Prediction], run: Callable[[Prediction], Probe]
) -> tuple[Prediction, int]:
    """The fastest by the plain rule, and how many probes it took."""
    probes: list[Probe] = []
    for prediction in order[:MOST_PROBES]:
        if probes:
            times = [probe.step_seconds or math.inf for probe in probes]
            ratio = statistics.median(
                probe.step_seconds / probe.prediction.seconds for probe in probes
            )
            if prediction.seconds * ratio > min(times) * (1 - search.MARGIN):
                break
        probes.append(run(prediction))
    return min(probes, key=lambda probe: probe.step_seconds or math.inf).prediction, len(probes)


def search_modelled(
    record: TuneRecord, run: Callable[[Prediction], Probe]
) -> tuple[Prediction | None, int]:
    """The fastest by `tune`'s own search, None if no probe measured anything, and how many probes
    it took.
    """
    record = replace(record, runs=[], limits=TuneConfig(probes=MOST_PROBES, minutes=math.inf))
    while not isinstance(
        choice := search.next_probe(record.estimates, record.runs, record.limits), search.Stop
    ):
        record.runs.append(run(choice.prediction))
    return record.best.prediction if record.best else None, len(record.runs)


def replay_whole_searches(
    record: TuneRecord, order: Sequence[Prediction], draws: int
) -> Iterator[dict[str, Any]]:
    for name, deviations in CARDS.items():
        cards = [Card(seed, *deviations) for seed in range(draws)]
        for rule in ("nearest probe", "median ratio"):
            ended = []
            for card in cards:
                run = partial(_measure, card)
                searched = (
                    search_modelled(record, run)
                    if rule == "nearest probe"
                    else search_plain(order, run)
                )
                prediction, count = searched
                ended.append((card.seconds(prediction) / min(map(card.seconds, order)) - 1, count))
            losses, counts = zip(*ended, strict=True)
            yield {"card": name, "rule": rule, "probes": round(statistics.fmean(counts), 1),
                   "mean_loss": round(statistics.fmean(losses), 4), "largest_loss": round(max(losses), 4)}  # fmt: skip


def replay_broken_features(
    record: TuneRecord, order: Sequence[Prediction], draws: int
) -> Iterator[dict[str, Any]]:
    kept = search.find_failure_traits, search.count_shared_traits
    for broken in BROKEN:
        for drops in (True, False):
            if not drops:
                search.find_failure_traits, search.count_shared_traits = lambda *_: [], lambda *_: 0
            losses, nothing, counts = [], 0, []
            for card in (Card(seed, *CARDS["as fitted"]) for seed in range(draws)):
                able = [prediction for prediction in order if not _is_broken(prediction, broken)]
                prediction, count = search_modelled(record, partial(_measure, card, broken=broken))
                counts.append(count)
                if prediction is None:
                    nothing += 1
                else:
                    losses.append(card.seconds(prediction) / min(map(card.seconds, able)) - 1)
            search.find_failure_traits, search.count_shared_traits = kept
            yield {"broken": broken, "drops_what_failures_share": drops, "probes": round(statistics.fmean(counts), 1),
                   "nothing": nothing, "mean_loss": round(statistics.fmean(losses), 4) if losses else None}  # fmt: skip


def _is_broken(prediction: Prediction, feature: str) -> bool:
    return feature in prediction.label.split("-")


def _measure(card: Card, prediction: Prediction, broken: str = "") -> Probe:
    if broken and _is_broken(prediction, broken):
        return failed(prediction, f"{broken} does not work here")
    return measured(prediction, card.measure(prediction))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as home:
        record = record_in(Path(home), "stage=sft", "gpus=4")
    fitting = [estimate.prediction for estimate in record.estimates if estimate.is_open]
    for name, deviations in CARDS.items():
        cards = [Card(seed, *deviations) for seed in range(arguments.draws)]
        best = [min(map(card.seconds, fitting)) for card in cards]
        for probes in PROBES:
            for plain in (False, True):
                chosen = [card.seconds(choose(record, card, probes, plain=plain)) for card in cards]
                losses = [seconds / least - 1 for seconds, least in zip(chosen, best, strict=True)]
                rows.append({"card": name, "rule": "median ratio" if plain else "nearest probe", "probes": probes,
                             "mean_loss": round(statistics.fmean(losses), 4), "largest_loss": round(max(losses), 4),
                             "within_3_percent": sum(loss <= 0.03 for loss in losses)})  # fmt: skip
                print(rows[-1], flush=True)
    fitting.sort(key=lambda prediction: (prediction.seconds, -prediction.candidate.per_device))
    searches = list(replay_whole_searches(record, fitting, arguments.draws))
    features = list(replay_broken_features(record, fitting, min(arguments.draws, 8)))
    print(*searches, *features, sep="\n")
    if arguments.out:
        command = f"python benchmarks/replay_tune.py --draws {arguments.draws}"
        content = {"schema_version": 1, "command": command, "settings": len(record.predictions),
                   "draws": arguments.draws, "results": rows, "searches": searches,
                   "broken_features": features}  # fmt: skip
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
