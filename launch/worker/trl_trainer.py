"""The subclass of TRL's trainers that launch trains with."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

from .channel import EventWriter
from .patches.shared import INPUTS_LEFT, skips_input_casts
from .trl_options import LEARNS_LAST, LEARNS_MARKED
from .turns import choose_answers, keep_answers

_SHOWN = 60  # characters of a row in an error
_Trainer: Any = object  # `entry_class` puts one of TRL's trainers in its place


class EntryError(RuntimeError):
    """The command line does not fit TRL, the data or the model; the rank must not continue."""


class EntryTrainer(_Trainer):  # type: ignore[misc]
    """The methods of TRL's trainers that launch overrides; `entry_class` makes the subclass.

    Flattening: SFTTrainer refuses `padding_free` with a length, because its collator would ignore
    it (trl/trainer/sft_trainer.py:999). The length is applied where TRL applies it in other cases,
    when the data is prepared. `truncates` is then true, and the trainer is built without a length.

    Training on some answers: the rows are prepared twice. The first time they are tokenised, and
    the labels of the other answers are masked; the second time TRL gets tokens and labels, which it
    truncates and packs.

    Resuming: transformers looks for the last step only after a step (trainer.py:1963), so that a
    run which resumes from the checkpoint of its last step would train one more.

    The last evaluation: the model is saved before it, since an evaluation can fail. It is saved
    again if the best checkpoint takes its place.

    Several validation sets: each has a loss, and `eval_loss` is their mean over the rows.

    Adapters: `skips_input_casts` decides when PEFT's casts are left out. Evaluation and saving keep
    them, because they may run outside autocast.
    """

    truncates: bool
    _truncation_length: int | None  # tokens
    _learns: str | None  # the option `learns`
    _events: EventWriter
    control: Any  # transformers' TrainerControl
    _skips_casts: bool | None = None  # not known before the first step
    _micro_batch: contextlib.ExitStack  # it is closed after each micro batch
    _saved: tuple[int, bool] | None = None  # the step, and whether its weights are the last ones

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, *more: Any) -> Any:
        if "train" in more:  # other calls prepare validation data
            self._events.begin("tokenize")
        if self.truncates:
            args = copy.copy(args)
            args.max_length = self._truncation_length
        if self._learns in (LEARNS_LAST, LEARNS_MARKED):
            dataset = self.prepare_whole(dataset, processing_class, args, *more)
        return super()._prepare_dataset(dataset, processing_class, args, *more)

    def prepare_whole(self, dataset: Any, processing_class: Any, args: Any, *more: Any) -> Any:
        """Return SFT's rows tokenised at their whole length, with the labels of what is learnt.

        TRL itself trains on all answers, but keeps labels that the rows already have
        (sft_trainer.py:1412).
        """
        whole = copy.copy(args)
        whole.max_length = None
        whole.shuffle_dataset = False
        rows = super()._prepare_dataset(dataset, processing_class, whole, False, *more[1:])
        if self._learns in (LEARNS_LAST, LEARNS_MARKED):
            rows = label_answers(rows, processing_class, whole, self._learns)
        return rows

    def _precompute_ref_logps(self, *arguments: Any, **options: Any) -> Any:
        self._events.begin("reference_logprobs")
        return super()._precompute_ref_logps(*arguments, **options)

    def _save_checkpoint(self, *arguments: Any, **options: Any) -> None:
        self._events.begin_checkpoint()
        super()._save_checkpoint(*arguments, **options)

    def training_step(self, *arguments: Any, **options: Any) -> Any:
        """Run a micro batch forward and backward, without PEFT's casts from the loss on.

        With checkpointing the backward pass would repeat the casts, so they stay left out until its
        end. Before the loss they are kept, because completions are generated outside autocast.
        """
        if self._skips_casts is None:
            self._skips_casts = skips_input_casts(self.model, self.accelerator)
            if self._skips_casts:
                self._events.emit(
                    "evidence", what="adapter_inputs", value="not cast", how=INPUTS_LEFT
                )
        with contextlib.ExitStack() as self._micro_batch:
            return super().training_step(*arguments, **options)

    def compute_loss(self, *arguments: Any, **options: Any) -> Any:
        if self._skips_casts and self.model.training:
            from peft.helpers import disable_input_dtype_casting

            self._micro_batch.enter_context(disable_input_dtype_casting(self.model))
        return super().compute_loss(*arguments, **options)

    def evaluate(self, *arguments: Any, **options: Any) -> Any:
        if self.is_in_train and self.state.global_step >= self.state.max_steps:
            self.save_after_training()
        measured = super().evaluate(*arguments, **options)
        # With several sets, the Trainer calls this method for each of them by its name.
        is_of_all = not arguments and "eval_dataset" not in options
        if is_of_all and isinstance(self.eval_dataset, dict):
            measured = self._add_mean(measured)
        return measured

    def _add_mean(self, measured: dict[str, Any]) -> dict[str, Any]:
        """Return the metrics of all sets with `eval_loss`, the mean over their rows, by which the
        best checkpoint is chosen. Callbacks get it as they do after the evaluation of one set.
        """
        rows = {name: len(data) for name, data in self.eval_dataset.items()}
        total = sum(measured[f"eval_{name}_loss"] * count for name, count in rows.items())
        mean = {"eval_loss": total / sum(rows.values())}
        self.log(dict(mean))
        measured = {**measured, **mean}
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, measured
        )
        return measured

    def save_after_training(self) -> None:
        """Save the model, unless these weights are saved already."""
        is_last = self.is_in_train or not self.args.load_best_model_at_end
        weights = (self.state.global_step, is_last)
        if weights != self._saved:
            self._saved = weights
            self.save_model(self.args.output_dir)

    def _run_epoch(self, *arguments: Any, **options: Any) -> Any:
        step = self.state.global_step
        if step < self.state.max_steps and not self.control.should_training_stop:
            return super()._run_epoch(*arguments, **options)
        print(f"launch: all steps are done ({step}); the model is saved", flush=True)
        self.control.should_training_stop = True
        return None


def label_answers(rows: Any, tokenizer: Any, args: Any, learns: str) -> Any:
    """Return tokenised rows of conversations whose labels are those of the answers to be learnt.

    Raises EntryError where the labels can't be distinguished.
    """
    from trl.trainer.sft_trainer import global_then_local_main_first

    options: dict[str, Any] = {}
    if hasattr(rows, "__len__"):  # not streamed
        options = {"num_proc": args.dataset_num_proc, "desc": "Masking answers"}
    with global_then_local_main_first():
        return rows.map(
            _mask_others, fn_kwargs={"tokenizer": tokenizer, "learns": learns}, **options
        )


def _mask_others(row: Any, tokenizer: Any, learns: str) -> dict[str, Any]:
    """Return the labels of a row, masked for the answers that are not to be learnt."""
    messages = row["messages"]
    kept = choose_answers(row, learns)
    try:
        labels = keep_answers(tokenizer, messages, row["input_ids"], row["labels"], kept)
    except ValueError as error:
        start = str(messages[0].get("content"))[:_SHOWN]
        raise EntryError(
            f"data.train_on={learns}: {error}, in the row that begins {start!r}"
        ) from None
    return {"labels": labels}


def entry_class(base: Any, args: Any, events: EventWriter, learns: str | None = None) -> Any:
    """Return a subclass of TRL's trainer `base` with `EntryTrainer`'s methods. `learns` is the
    option of that name.

    Raises EntryError if samples are flattened and nothing would truncate them.
    """
    limit = getattr(args, "max_length", None)
    flattens = bool(getattr(args, "padding_free", False) and not getattr(args, "packing", True))
    if flattens and (limit is None or (args.dataset_kwargs or {}).get("skip_prepare_dataset")):
        raise EntryError(
            "padding_free needs a max_length, and data that the trainer prepares: nothing else "
            "truncates"
        )

    class Entry(EntryTrainer, base):  # type: ignore[misc]
        truncates = flattens
        _learns = learns
        _truncation_length = limit
        _events = events

    return Entry
