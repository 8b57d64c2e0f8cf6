"""Checks that the rows are dealt in the order that the recipe's seed gives.

The order is computed here from the seed alone, and compared with the tokens that the model gets
first. The trainer's own sampler is read only where the tokens do not show its order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from ..global_batches import find_sampler
from ..length_balancing import fill_epoch
from ..wording import count_of
from . import Evidence
from .trainer_objects import TrainerObjects, class_name

ORDER_SEED = "seed"

# Scripts that shuffle the data set before it is sampled (finetune.py:514, dpo_tune_cache.py:263,
# reward_modeling.py:264).
_SHUFFLING = ("finetune.py", "dpo_tune_cache.py", "reward_modeling.py")
# Rows of OLMo-core's order that are compared.
_FIRST_ROWS = 64

# The columns with answers of TRL's DPO and KTO, whose prompts are in a column of their own.
_ANSWERS = ("chosen_ids", "rejected_ids", "completion_ids")

Tokens = Sequence[int]


def check_order(
    objects: TrainerObjects,
    passed: Sequence[Tokens],
    script: str | None,
    requested: str | None,
    sources: Sequence[Any] = (),
) -> list[Evidence]:
    """Return the evidence "seed": whether the first micro batch has the rows that the seed gives.

    `passed`: the documents of the first pass with gradients; `sources`: the data sets before they
    were tokenised. KTO's are shuffled by launch's entry and taken as they stand. For
    reward_modeling.py only the shuffle of the data set is compared: its sampler draws from torch's
    global generator, which models and adapters draw from too. For GRPO, whose passes have generated
    tokens, the sampler is read.
    """
    if requested is None:
        return []
    seed = int(requested)
    dataset = getattr(objects.dataloader, "dataset", None)
    is_in_turn = deals_in_turn(objects.trainer)
    unknown = None
    if not hasattr(dataset, "__len__"):
        unknown = "the rows are streamed, in the order of their files"
    elif is_in_turn and not sources:
        unknown = "the rows before they were tokenised were not seen"
    if unknown is not None:
        return [_unproven(unknown, requested)]
    if hasattr(objects.trainer, "num_generations"):
        return [_check_sampler(objects.dataloader, requested)]
    shuffled = dataset if script in _SHUFFLING else None
    if is_in_turn:
        shuffled = sources[0]
    if shuffled is not None and not is_shuffled(shuffled, seed):
        how = "the order of the shuffled data set"
        return [Evidence(ORDER_SEED, "another order", how).judge(requested, False)]
    if script == "reward_modeling.py":
        how = "the order of the shuffled data set; torch's global generator deals its rows"
        return [Evidence(ORDER_SEED, requested, how).judge(requested, True)]
    return [_check_first_rows(objects, passed, requested)]


def deals_in_turn(trainer: Any) -> bool:
    """Return whether the trainer is TRL's KTOTrainer, and takes the rows in the order of its data set.

    Its KL term needs that order, because it pairs each row with a neighbour
    (trl/trainer/kto_trainer.py:1150-1156). Without the term, another sampler may be set.
    """
    if not hasattr(trainer, "calculate_KL"):
        return False
    return bool(trainer.args.train_sampling_strategy == "sequential")


def _unproven(reason: str, requested: str) -> Evidence:
    return Evidence(ORDER_SEED, None, reason).judge(requested, None)


def is_shuffled(dataset: Any, seed: int) -> bool:
    """Return whether `dataset` is what `shuffle(seed)` makes of a whole data set
    (datasets/arrow_dataset.py, shuffle).
    """
    import numpy

    due = numpy.random.default_rng(seed).permutation(len(dataset))
    order = getattr(dataset, "_indices", None)
    if order is None:  # the rows are in the table's order, which a shuffle of a few rows may give
        return bool(numpy.array_equal(numpy.arange(len(dataset)), due))
    return bool(numpy.array_equal(order.column(0).to_numpy(), due))


def deal_epoch(rows: int, seed: int) -> list[int]:
    """Return the rows of an epoch in the order of accelerate's SeedableRandomSampler
    (accelerate/data_loader.py). `seed`: that of the run plus the number of the epoch, from 0.
    """
    import torch

    order: list[int] = torch.randperm(rows, generator=torch.Generator().manual_seed(seed)).tolist()
    return order


def _rows_of_step(objects: TrainerObjects, *, seed: int, size: int, accumulation: int) -> list[int]:
    """Return the row numbers of the next optimizer step over all ranks, by the seed.

    `size`: the samples of a micro batch.
    """
    ranks = int(objects.accelerator.num_processes)
    rows = len(objects.dataloader.dataset)
    steps = max(1, -(-len(objects.dataloader) // accumulation))  # optimizer steps of an epoch
    epoch, step = divmod(objects.step or 0, steps)
    order = deal_epoch(rows, seed + epoch)
    if deals_in_turn(objects.trainer):
        order = list(range(rows))
    filled = fill_epoch(order, ranks, size)
    samples = accumulation * ranks * size
    first = step * samples
    return filled[first : first + samples]


def _check_first_rows(
    objects: TrainerObjects, passed: Sequence[Tokens], requested: str
) -> Evidence:
    """Compare the tokens of the first micro batch with those of the rows that the seed gives."""
    arguments = objects.arguments if objects.trainer is None else objects.trainer.args
    if arguments is None or not passed:
        return _unproven("no pass with tokens was seen", requested)
    size = int(arguments.per_device_train_batch_size)
    dataset = objects.dataloader.dataset
    batch = _rows_of_step(
        objects,
        seed=int(requested),
        size=size,
        accumulation=int(arguments.gradient_accumulation_steps),
    )
    sampler = find_sampler(objects.dataloader)
    is_balanced = sampler is not None and sampler.balanced
    start = size * int(getattr(objects.accelerator, "process_index", 0))
    rows = batch if is_balanced else batch[start : start + size]
    halves = read_documents(dataset, rows, objects.dataloader)
    if halves is None:
        return _unproven("the rows of the data set have no tokens", requested)
    if is_balanced:
        documents_of_step = {tuple(document) for document in chain(*halves)}
        holds = all(tuple(document) in documents_of_step for document in passed)
    else:
        seen = list(chain(*passed))
        all_documents = list(chain(*halves))
        # The two halves of a pair may go through the model in separate passes (dpo_utils.py:323).
        holds = seen in (list(chain(*all_documents)), list(chain(*halves[0])))
    how = "the tokens of the first micro batch, against the rows in an order computed from the seed"
    shown = ", ".join(map(str, rows[:4])) + (", ..." if len(rows) > 4 else "")
    note = f"{count_of(len(dataset), 'row')}; the first are {shown}"
    value = requested if holds else "other rows"
    return Evidence(ORDER_SEED, value, how, note=note).judge(requested, holds)


def read_documents(dataset: Any, rows: Sequence[int], loader: Any) -> list[list[Tokens]] | None:
    """Return the tokens of rows as the collator gets them: one list, for pairs one for the chosen
    and one for the rejected ones. None is returned for a data set without tokens.
    """
    names = set(dataset.column_names)
    plain = dataset.with_format(None)
    if "input_ids" in names:
        return [[plain[row]["input_ids"] for row in rows]]
    if "chosen_input_ids" in names:
        pairs = [(plain[row]["chosen_input_ids"], plain[row]["rejected_input_ids"]) for row in rows]
        return [list(half) for half in zip(*pairs, strict=True)]
    answers = [name for name in _ANSWERS if name in names]
    if "prompt_ids" not in names or not answers:
        return None
    # TRL's DPO and KTO cut in their collators (trl/trainer/dpo_trainer.py:153-163).
    collator = getattr(loader.collate_fn, "data_collator", loader.collate_fn)
    limit = getattr(collator, "max_length", None)
    cut = slice(None, limit)
    if limit is not None and getattr(collator, "truncation_mode", None) == "keep_end":
        cut = slice(-limit, None)

    def read(name: str) -> list[Tokens]:
        return [(plain[row]["prompt_ids"] + plain[row][name])[cut] for row in rows]

    return [read(name) for name in answers]


def _check_sampler(loader: Any, requested: str) -> Evidence:
    """Compare the requested seed with that of GRPO's prompt sampler (trl/trainer/utils.py,
    RepeatSampler).
    """
    batches = getattr(loader, "batch_sampler", None)
    sampler = None
    while batches is not None:
        sampler = getattr(batches, "sampler", sampler)
        batches = getattr(batches, "batch_sampler", None)
    generator = getattr(sampler, "generator", None)
    value = None if generator is None else int(generator.initial_seed())
    how = f"the generator of {class_name(sampler)}, which deals the prompts"
    return Evidence(ORDER_SEED, value, how).compare(requested)


def check_olmo_core_order(loader: Any, requested: str | None) -> list[Evidence]:
    """Return the evidence "seed" on the rows that OLMo-core's data loader deals first in its epoch.

    open-instruct's loader shuffles rows that were shuffled before (data_loader.py:268, dpo.py:177);
    OLMo-core's own loader shuffles sequences (olmo_core/data/data_loader.py,
    `_build_global_indices`).
    """
    if requested is None:
        return []
    import numpy

    seed = int(requested)
    full = getattr(loader, "_full_dataset", None)
    if full is None:
        if not loader.shuffle or loader.chunk_size != 1:
            return [_unproven("the sequences are dealt in chunks, or not shuffled", requested)]
        sequences = numpy.arange(len(loader.dataset), dtype=numpy.uint32)
        numpy.random.Generator(numpy.random.PCG64(seed=seed + loader.epoch)).shuffle(sequences)
        dealt = loader.get_global_indices()[:_FIRST_ROWS].tolist()
        holds = dealt == sequences[: len(dealt)].tolist()
        return [_judge_order(dealt, "sequences", requested, holds)]
    shuffled = numpy.random.default_rng(seed).permutation(len(full))
    due = [int(shuffled[row]) for row in deal_epoch(len(full), seed + loader._epoch)]
    sizes = loader._precomputed_batch_sizes
    if sizes is None:
        batch = due[: loader._batch_size]
        expected = batch[loader.dp_rank :: loader.dp_world_size]
        dealt = _first_indices(loader, len(expected))
        holds = dealt == expected
    else:  # consecutive batches go to the ranks in turn
        dealt = _first_indices(loader, sizes[0])
        first = due.index(dealt[0]) if loader.dp_rank else 0
        holds = dealt == due[first : first + len(dealt)]
    return [_judge_order(dealt, "rows", requested, holds)]


def _first_indices(loader: Any, rows: int) -> list[int]:
    return [int(row) for row in loader.dataset.with_format(None)[:rows]["index"]]


def _judge_order(dealt: Sequence[int], noun: str, requested: str, holds: bool) -> Evidence:
    how = f"the {noun} that the data loader deals first, against an order computed from the seed"
    note = f"the first are {', '.join(map(str, dealt[:4]))}"
    value = requested if holds else "another order"
    return Evidence(ORDER_SEED, value, how, note=note).judge(requested, holds)
