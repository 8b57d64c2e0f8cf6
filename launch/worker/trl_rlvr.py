"""RLVR with TRL's GRPOTrainer: evidence of what samples and what trains.

Nothing of TRL is replaced: `rlvr_class` subclasses its trainer, and `Scorer.reward_functions`
(trl_rewards.py) returns what TRL takes as rewards.

The start model is sampled before the first update: rewards that are all the same, or answers that
never end, stop the run. The training itself shows once in each attempt that its rewards are those
that the verifiers returned, how many samples each prompt gets, what the reference model is, and
that the trained weights are the ones that sample. The last is shown after an update, the others
with the first step.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import cycle, islice
from statistics import fmean
from typing import Any

from .channel import EventWriter
from .evidence import FEW_STEPS, Evidence
from .expectations import PendingEvidence
from .hooks import replaces
from .sampler_weights import (
    MOST_LOGP_DIFFERENCE,
    count_called,
    record_engine,
    record_parameters,
    record_server,
)
from .server_client import share_weights_by_handle
from .trl_rewards import Scorer, text_of
from .trl_samples import send_completion

PROMPTS_SAMPLED = 32  # prompts that the start model answers before the first update
MOST_CUT_OFF = 0.9  # share of the answers that reach the limit without an end
REFERENCE = {True: "starting model", False: "none"}  # the key is whether recipe.kl_beta is above 0
_RECORDED = 10  # prompts whose completions are recorded at the start, in the middle and at the end

_Trainer: Any = object  # TRL's trainer takes its place when `rlvr_class` joins the two


def required_sampling(samples: object, *, has_reference: bool) -> dict[str, str]:
    """Return what a run has to show of its sampling: the requested value by the evidence's key.

    `samples`: of each prompt. `has_reference`: whether recipe.kl_beta is above 0.
    """
    return {
        "rewards": "the verifiers'",
        "samples_per_prompt": str(samples),
        "reference": REFERENCE[has_reference],
        "sampler_weights": "trained",
    }


class RlvrTrainer(_Trainer):  # type: ignore[misc]
    """What RLVR adds to TRL's GRPOTrainer; `rlvr_class` joins the two."""

    _scorer: Scorer
    _events: EventWriter
    _pending: PendingEvidence
    _logs: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        args = options["args"]
        if args.use_vllm and args.vllm_mode == "server":
            share_weights_by_handle()
        super().__init__(*arguments, **options)
        self._scorer.end_ids = frozenset(self.eos_token_ids)
        requested = required_sampling(self.num_generations, has_reference=self.beta > 0)
        self._pending.expect(requested)
        if self.use_vllm:

            @replaces(self.vllm_generation, "sync_weights")
            def sync_and_time(sync: Any) -> None:
                with self._timed("weights_seconds"):
                    sync()

    def sample(self) -> dict[str, float]:
        """Record completions; judge them where they are the start model's.

        Nothing can be learned from rewards that are all equal, or from answers without an end.
        Returns no metrics of the step (see `launch.worker.trl_samples.sampling_class`).
        """
        if self.state.global_step:
            self._sample(_RECORDED)
        else:
            self._judge_start_model(self._sample(PROMPTS_SAMPLED))
        return {}

    def _judge_start_model(self, metrics: Mapping[str, float]) -> None:
        groups = f"{PROMPTS_SAMPLED} prompts x {self.num_generations} samples of the start model"
        uniform = metrics["frac_reward_zero_std"]
        varied = Evidence(
            "reward_variance",
            f"{1 - uniform:.0%} of the prompts",
            groups,
            note=f"the mean reward is {metrics['reward']:.3g}",
        )
        cut_off = metrics["completions/clipped_ratio"]
        ends = Evidence(
            "complete_answers",
            f"{1 - cut_off:.0%}",
            groups,
            note="the others reach the length limit",
        )
        judged = [
            varied.judge("above 0%", uniform < 1.0),
            ends.judge("above 10%", cut_off < MOST_CUT_OFF),
        ]
        self._pending.report(judged)

    def _sample(self, count: int) -> dict[str, float]:
        """Sample the first `count` prompts, record the completions of ten, and return the means of
        the metrics.

        The rows are generated as in a step: one generation batch at a time, over all ranks. The
        random numbers of the training, its metrics and its logged completions stay as they are.
        """
        import torch

        training_logs = self._logs
        self._logs = _empty_logs(training_logs)
        metrics = self._metrics["eval"]
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        self.model.eval()
        with torch.random.fork_rng(devices=devices):
            for batch in self._sample_batches(count):
                with self.accelerator.split_between_processes(batch) as rows_of_rank:
                    self._generate_and_score_completions(rows_of_rank)
        self.model.train()
        self._record_completions()
        means = {name: fmean(values) for name, values in metrics.items()}
        metrics.clear()
        self._logs = training_logs
        return means

    def _sample_batches(self, count: int) -> Iterator[list[Any]]:
        """Yield generation batches that have the first `count` rows, each `num_generations`
        times.

        The last batch is filled up with the first rows.
        """
        size = self.args.generation_batch_size
        samples: list[Any] = []
        for row in islice(cycle(self.train_dataset), count):
            samples += [row] * self.num_generations
        missing = -len(samples) % size
        samples += samples[:missing]
        for start in range(0, len(samples), size):
            yield samples[start : start + size]

    def _record_completions(self) -> None:
        """Send one completion of each of the first prompts, with its rewards, as events."""
        if not self.accelerator.is_main_process:
            return
        prompts = self._logs["prompt"]
        end = min(len(prompts), _RECORDED * self.num_generations)
        for number in range(0, end, self.num_generations):
            scores = {name: values[number] for name, values in self._logs["rewards"].items()}
            send_completion(
                self._events,
                self.state.global_step,
                prompts[number],
                text_of(self._logs["completion"][number]),
                rewards={name: score for name, score in scores.items() if not math.isnan(score)},
            )

    def _is_due(self, what: str) -> bool:
        return bool(self.model.training) and what in self._pending

    def train(self, *arguments: Any, **options: Any) -> Any:
        result = super().train(*arguments, **options)
        # The number of steps that train on one generation, which the weights of its first step made.
        generated = self.args.steps_per_generation * self.num_iterations
        steps = math.ceil(generated / self.args.gradient_accumulation_steps)
        self._pending.leave_unproven(is_too_short=self.state.max_steps <= max(FEW_STEPS, steps))
        return result

    def _generate_single_turn(self, *arguments: Any, **options: Any) -> Any:
        if self.state.global_step == 0 or "sampler_weights" not in self._pending:
            return self._generate_timed(*arguments, **options)
        if self.use_vllm:
            return self._generate_with_engine(*arguments, **options)
        if not self.model.training:
            return self._generate_timed(*arguments, **options)
        with record_parameters() as addresses:
            result = self._generate_timed(*arguments, **options)
        self._show_called_weights(addresses)
        return result

    def _generate_with_engine(self, *arguments: Any, **options: Any) -> Any:
        """Generate with vLLM after an update, and compare its weights with the trained ones.

        Those of a server that can't be read are shown by its log-probs (`_show_server_weights`).
        """
        is_server = self.vllm_mode == "server"
        record = record_server if is_server else record_engine
        with record(self.vllm_generation) as engine:
            result = self._generate_timed(*arguments, **options)
        found = (engine.value, engine.how) if engine is not None else None
        if is_server:  # only the main process has compared the server's weights
            found = self._from_main_process(found)
        if found is not None:
            self._pending.show("sampler_weights", *found)
        return result

    def _from_main_process(self, value: Any) -> Any:
        """Return the main process's value, on every rank."""
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([value])[0]

    def _generate_timed(self, *arguments: Any, **options: Any) -> Any:
        """Generate, log the seconds, and restore the mode of the model.

        Continuous batching leaves the model training, so that an evaluation's metrics would be
        counted as those of the training (trl/trainer/grpo_trainer.py:1812).
        """
        was_training = self.model.training
        with self._timed("generation_seconds"):
            result = super()._generate_single_turn(*arguments, **options)
            self.model.train(was_training)
        return result

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **options: Any) -> Any:
        """Return the log-probs of completions; log the seconds where they are not trained with."""
        import torch

        if torch.is_grad_enabled():
            return super()._get_per_token_logps_and_entropies(*arguments, **options)
        with self._timed("logprobs_seconds"):
            return super()._get_per_token_logps_and_entropies(*arguments, **options)

    @contextlib.contextmanager
    def _timed(self, metric: str) -> Iterator[None]:
        """Add the seconds of a part of a step to its metrics, until the GPU is done with it.

        TRL logs the mean of a metric's values: parts of the same name are added to one value.
        """
        import torch

        metrics = self._metrics["train" if self.model.training else "eval"]
        began = time.perf_counter()
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        values = metrics[metric]
        values[:] = [sum(values) + time.perf_counter() - began]

    def _show_called_weights(self, addresses: Mapping[int, int]) -> None:
        model = self.accelerator.unwrap_model(self.model)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        shared = count_called(trained, addresses)
        value = "trained"
        if shared != len(trained):
            value = f"{shared} of {len(trained)} trained tensors"
        how = "the storage of what sampled after an update"
        self._pending.show("sampler_weights", value, how)

    def _show_server_weights(self, output: Mapping[str, Any]) -> None:
        """Compare the log-probs of a server's completions with the trained model's.

        Both are tensors (samples, tokens) of `output`; a token that the server could not score is
        NaN there.
        """
        difference = output["old_per_token_logps"] - output["sampling_per_token_logps"]
        of_answers = difference[output["completion_mask"].bool()]
        mean = of_answers.abs().nanmean().item()
        value = "trained" if mean <= MOST_LOGP_DIFFERENCE else "another model's"
        how = f"{mean:.2g} nats a token between the server's log-probs and the trained model's"
        self._pending.show("sampler_weights", value, how)

    def _calculate_rewards(self, inputs: Any, prompts: list[Any], *more: Any) -> Any:
        self._scorer.returned.clear()
        rewards = super()._calculate_rewards(inputs, prompts, *more)
        if self._is_due("rewards"):
            self._show_groups(prompts)
            # TRL has gathered the rewards from all ranks
            first = self.accelerator.process_index * len(prompts)
            self._show_rewards(rewards[first : first + len(prompts)])
        return rewards

    def _show_groups(self, prompts: list[Any]) -> None:
        from accelerate.utils import gather_object

        texts = gather_object([repr(prompt) for prompt in prompts])
        size = self.num_generations
        groups = [texts[first : first + size] for first in range(0, len(texts), size)]
        has_one_prompt_each = all(group.count(group[0]) == size for group in groups)
        value = str(size) if has_one_prompt_each else "groups of several prompts"
        how = f"{len(groups)} groups of the first step, over all ranks"
        self._pending.show("samples_per_prompt", value, how)

    def _show_rewards(self, rewards: Any) -> None:
        """Compare the rewards of this rank, a tensor (samples, verifiers), with the verifiers'."""
        returned = [_none_to_nan(scores) for scores in self._scorer.returned]
        is_same = len(returned) == rewards.shape[1] and rewards.allclose(
            rewards.new_tensor(returned).T, equal_nan=True
        )
        value = "the verifiers'" if is_same else "others"
        self._pending.show("rewards", value, "the first step's, compared one by one")

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        is_updated = self.state.global_step > 0
        has_both = output.keys() >= {"sampling_per_token_logps", "old_per_token_logps"}
        if has_both and is_updated and self._is_due("sampler_weights"):
            self._show_server_weights(output)
        if self._is_due("reference"):
            is_scored = "ref_per_token_logps" in output
            value = REFERENCE[is_scored]
            if self.ref_model is not None and not is_scored:
                value = "a model that scores nothing"
            self._pending.show("reference", value, "the first step's log-probs")
        return output


def rlvr_class(entry: Any, scorer: Scorer, events: EventWriter, allowed: Collection[str]) -> Any:
    """Return a subclass of `entry` (see `launch.worker.trl_trainer.entry_class`) with
    `RlvrTrainer`'s methods.
    """

    class Rlvr(RlvrTrainer, entry):  # type: ignore[misc]
        _scorer = scorer
        _events = events
        _pending = PendingEvidence(events, allowed)

    return Rlvr


def _empty_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return logs of TRL's form without entries (trl/trainer/grpo_trainer.py, `_logs`)."""
    empty: dict[str, Any] = {}
    for name in logs:
        empty[name] = defaultdict(list) if name in ("rewards", "extra") else []
    return empty


def _none_to_nan(scores: Sequence[float | None]) -> list[float]:
    return [math.nan if score is None else score for score in scores]
