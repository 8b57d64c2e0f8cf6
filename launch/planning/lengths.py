"""Reads the token lengths of a tokenised data set, which the patch `lengths` writes.

The histograms are exact; only the order of the samples is lost. Without the file the lengths are
unknown.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, overload

from launch.config.kinds import Kind
from launch.config.recipe_keys import Packing, recipe_mapping
from launch.config.schema import Family, TrainerConfig
from launch.files import load_json
from launch.planning.flags import Flag
from launch.planning.identity import compute_identity
from launch.planning.recipe import flags_of_key
from launch.worker.json_codec import SCHEMA_VERSION

_SEED = 20
_DRAWS = 4000  # micro batches drawn for the quantile of a sum

# The keys of trainer.launch and of the recipe whose flags determine the tokens.
_LAUNCH_KEYS = ("model", "revision", "mixer", "splits", "dataset", "split", "tokenized_cache")
_RECIPE_KEYS = ("max_seq_length", "chat_template")
# The other flags that determine the tokens have one of these parts in their names
# (dataset_transformation.py TokenizerConfig, DatasetConfig; TRL's SFTConfig).
_FLAG_PARTS = (
    "tokenizer",
    "transform",
    "target_columns",
    "add_bos",
    "use_fast",
    "trust_remote",
    "messages_key",
    "truths_key",
    "_only_loss",
    "truncation",
    "eos_token",
    "dataset_kwargs",
    "dataset_text_field",
    "dataset_config",
)


@dataclass(frozen=True)
class Histogram(Sequence[int]):
    """How many samples have which length; as a sequence, the length of each sample, by rising
    length.
    """

    # (length in tokens, samples), by rising length, never empty
    counts: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, lengths: Iterable[int]) -> Histogram:
        """Count single lengths. Raises ValueError without any."""
        return cls._of_counts(Counter(lengths))

    @classmethod
    def _of_counts(cls, counts: Mapping[int, int]) -> Histogram:
        if not counts or min(counts) < 0 or min(counts.values()) < 1:
            raise ValueError("no lengths")
        return cls(tuple(sorted(counts.items())))

    @cached_property
    def samples(self) -> int:
        return sum(count for _, count in self.counts)

    @cached_property
    def total(self) -> int:
        """Tokens of all samples."""
        return sum(length * count for length, count in self.counts)

    @property
    def mean(self) -> float:
        return self.total / self.samples

    @cached_property
    def deviation(self) -> float:
        """The standard deviation of the lengths."""
        squares = math.fsum((length - self.mean) ** 2 * count for length, count in self.counts)
        return math.sqrt(squares / self.samples)

    @property
    def longest(self) -> int:
        return self.counts[-1][0]

    def longest_of(self, samples: int) -> float:
        """Return the expected length of the longest of `samples` drawn without replacement."""
        samples = min(samples, self.samples)
        expected = previous = 0.0
        for (length, _), within in zip(self.counts, self._totals, strict=True):
            probability = _all_within_probability(within, self.samples, samples)
            expected += length * (probability - previous)
            previous = probability
        return expected

    def longest_of_quantile(self, samples: int, share: float) -> int:
        """Return the length that the longest of `samples` does not exceed in `share` of the
        draws.
        """
        samples = min(samples, self.samples)
        for (length, _), within in zip(self.counts, self._totals, strict=True):
            if _all_within_probability(within, self.samples, samples) >= share:
                return length
        return self.longest

    def __len__(self) -> int:
        return self.samples

    @overload
    def __getitem__(self, position: int) -> int: ...
    @overload
    def __getitem__(self, position: slice) -> list[int]: ...
    def __getitem__(self, position: int | slice) -> int | list[int]:
        if isinstance(position, slice):
            return [self[index] for index in range(self.samples)[position]]
        index = range(self.samples)[position]  # of a negative position, and checked
        length, _ = self.counts[bisect_right(self._totals, index)]
        return length

    @cached_property
    def _totals(self) -> tuple[int, ...]:
        """Samples of at most each length."""
        return tuple(accumulate(count for _, count in self.counts))


def draw_batches(lengths: Sequence[int], size: int, count: int) -> Iterator[list[int]]:
    """Draw `count` batches of `size` samples from these lengths, always the same batches. A batch
    has no sample twice if there are enough samples. Raises ValueError without lengths.
    """
    if not lengths:
        raise ValueError("no lengths to draw from")
    generator = random.Random(_SEED)
    draw = generator.choices if size > len(lengths) else generator.sample
    return (draw(lengths, k=size) for _ in range(count))


def _all_within_probability(within: int, population: int, samples: int) -> float:
    """Return the probability that `samples` drawn without replacement are all among the `within`
    shortest.
    """
    probability = 1.0
    for drawn in range(samples):
        probability *= max(0, within - drawn) / (population - drawn)
    return probability


@dataclass(frozen=True)
class Lengths:
    """The lengths of a data set after truncation to max_seq_length. A sample of DPO is a pair."""

    kind: Kind
    tokens: Histogram  # of a sample, both halves of a pair
    # tokens of all samples that carry loss; None where the data has no labels
    label_tokens: int | None
    chosen: Histogram | None = None  # for pairs only, as are the following
    rejected: Histogram | None = None
    longer: Histogram | None = None  # the longer half, to which upstream pads both
    # (chosen, rejected) of at most 4096 pairs, evenly spread over the data
    pairs: tuple[tuple[int, int], ...] = ()

    @property
    def samples(self) -> int:
        return self.tokens.samples

    def tokens_of_step(self, global_batch: int) -> float:
        """Return the expected tokens of one optimizer step, without padding."""
        return self.tokens.mean * global_batch

    def padded_tokens(self, per_device: int) -> float:
        """Return the expected tokens of a padded micro batch of `per_device` samples, with padding.

        Upstream pads to the longest of the micro batch (finetune.py:643, dpo_utils.py:1089), DPO
        both halves to the longer one.
        """
        samples = min(per_device, self.samples)
        if self.longer is None:
            return samples * self.tokens.longest_of(per_device)
        return 2 * samples * self.longer.longest_of(per_device)

    def expected_padding_share(self, per_device: int) -> float:
        """Return the share of padding among all tokens of padded micro batches, 0 to below 1."""
        padded = self.padded_tokens(per_device)
        if not padded:
            return 0.0
        tokens = self.tokens.mean * min(per_device, self.samples)
        return max(0.0, 1 - tokens / padded)

    def micro_batch_quantile(self, per_device: int, packing: Packing, share: float) -> int:
        """Return the tokens, with padding, that a micro batch does not exceed in `share` of the
        cases.

        Exact for `none` (padded). For `flatten` it is estimated from 4000 drawn micro batches.
        Raises ValueError for `bins`, which have a token budget.
        """
        if packing == Packing.none:
            if self.longer is None:
                return per_device * self.tokens.longest_of_quantile(per_device, share)
            return 2 * per_device * self.longer.longest_of_quantile(per_device, share)
        if packing != Packing.flatten:
            raise ValueError(f"a micro batch of {packing.value} has a token budget")
        sums = sorted(map(sum, draw_batches(self.tokens, per_device, _DRAWS)))
        rank = math.ceil(share * _DRAWS) - 1
        return sums[min(_DRAWS - 1, max(0, rank))]


def lengths_file(
    trainer: TrainerConfig,
    flags: Mapping[str, Flag],
    *,
    subset: str | None,
    commit: str | None,
    cache: Path,
    places: Mapping[Path, str],
    content: Mapping[Path, str],
) -> Path | None:
    """Return the file below `cache` that `load_lengths` reads; None for a trainer that writes none.

    Its name is a digest of the trainer, upstream's `commit`, the flags and TRL's `subset`. `places`
    and `content` are those of `compute_identity`.
    """
    # launch's entry over TRL writes the lengths of chats
    is_trl_sft = trainer.family == Family.trl and trainer.kind == Kind.sft
    if "lengths" not in trainer.patches and not is_trl_sft:
        return None
    names = {trainer.launch[key] for key in _LAUNCH_KEYS if key in trainer.launch}
    for key in _RECIPE_KEYS:
        names |= flags_of_key(recipe_mapping(trainer, key))
    names.update(filter(_determines_tokens, flags))
    values = {name: flags[name].value for name in sorted(names) if name in flags}
    parts = {"trainer": trainer.entry, "upstream": commit, "flags": values, "subset": subset}
    return cache / "lengths" / f"{compute_identity(parts, places, content)}.json"


def _determines_tokens(flag: str) -> bool:
    return any(part in flag for part in _FLAG_PARTS)


def load_lengths(path: Path | None) -> Lengths | None:
    """Load the lengths from a plan's `lengths_file`; None without a file that can be read.

    A file that has not changed is read once in a process, however often a command needs it.
    """
    try:
        state = path.stat() if path else None
    except OSError:
        return None
    return _read_version(path, state.st_mtime_ns, state.st_size) if path and state else None


@lru_cache(maxsize=4)
def _read_version(path: Path, _modified: int, _size: int) -> Lengths | None:
    try:
        return _parse_lengths(load_json(path))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _parse_lengths(payload: Mapping[str, Any]) -> Lengths:
    if payload["schema_version"] != SCHEMA_VERSION:
        raise ValueError("unknown schema version")
    label_tokens = payload["label_tokens"]
    of_pairs = {
        name: _parse_histogram(payload[name])
        for name in ("chosen", "rejected", "longer")
        if name in payload
    }
    return Lengths(
        kind=Kind(payload["kind"]),
        tokens=_parse_histogram(payload["tokens"]),
        label_tokens=None if label_tokens is None else int(label_tokens),
        pairs=tuple((int(chosen), int(rejected)) for chosen, rejected in payload.get("pairs", ())),
        **of_pairs,
    )


def _parse_histogram(counts: Mapping[str, int]) -> Histogram:
    return Histogram._of_counts({int(length): int(count) for length, count in counts.items()})
