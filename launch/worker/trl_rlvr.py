"""RLVR with TRL's GRPOTrainer: rewards from verifiers, the sampling proof of the start model, and
what is recorded.

Nothing of TRL is replaced: `rlvr_class` subclasses its trainer, and `reward_functions` are what TRL
takes as rewards.

A run shows whose weights sample, how often each prompt, against which reference, and that the
rewards that it trains on are those that the verifiers returned; once in an attempt each: the
weights after an update, the others with the first step.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import cycle, islice
from statistics import fmean
from typing import Any

from .channel import EventWriter
from .expectations import report_evidence
from .finding import Evidence
from .trl_options import BY_ROW, VerifierOption
from .trl_samples import send_completion
from .verifiers import VerifierCall, VerifierOutcome, VerifierProcess

PROMPTS_SAMPLED = 32  # of the start model, before the first update
MOST_CUT_OFF = 0.9  # share of the answers that reach the limit without an end
REFERENCE = {True: "starting model", False: "none"}  # by whether recipe.kl_beta is above 0
_RECORDED = 10  # prompts whose completions are recorded at the start, in the middle and at the end


class Scorer:
    """Scores completions with the verifiers of a run."""

    def __init__(self, option: VerifierOption, data: Any, events: EventWriter) -> None:
        self.weights: Mapping[str, float] = option.names_in(
            data["dataset"] if BY_ROW in option.verifiers else ()
        )
        self.process = VerifierProcess(list(self.weights), option.seconds)  # it ends with this one
        self._option, self._events = option, events
        # the tokens that end a completion, once the model is there
        self.end_ids: frozenset[int] = frozenset()
        self.returned: list[
            list[float | None]
        ] = []  # of each verifier, for the completions scored last

    def reward_functions(self) -> list[Callable[..., list[float | None]]]:
        """Return one function a verifier, so that TRL logs each one's mean: None for rows of
        another verifier.
        """
        return [self._reward_function(name) for name in self.weights]

    def _reward_function(self, name: str) -> Callable[..., list[float | None]]:
        def reward(
            prompts: Sequence[Any],
            completions: Sequence[Any],
            completion_ids: Sequence[Any],
            log_metric: Callable[[str, float], None],
            **columns: Any,
        ) -> list[float | None]:
            lists = {key: values for key, values in columns.items() if isinstance(values, list)}
            rows = [
                {key: values[number] for key, values in lists.items()}
                for number in range(len(prompts))
            ]
            answers = zip(prompts, completions, completion_ids, rows, strict=True)
            outcomes = [self._score(name, *answer) for answer in answers]
            # TRL averages over the functions, and over the ranks
            log_metric(
                "verifier_seconds", sum(outcome.seconds for outcome in outcomes) * len(self.weights)
            )
            calls = [outcome for outcome in outcomes if outcome.seconds]
            for outcome in calls:
                log_metric("verifier_failures", float(outcome.failure is not None))
            if failures := [outcome.failure for outcome in calls if outcome.failure]:
                failed = f"verifier {name} failed on {len(failures)} of {len(calls)} answers"
                self._events.warn(f"{failed}: it {failures[0]}")
            self.returned.append([outcome.score for outcome in outcomes])
            return self.returned[-1]

        reward.__name__ = name.rpartition(":")[2]
        return reward

    def _score(
        self, name: str, prompt: Any, completion: Any, ids: Sequence[int], row: Mapping[str, Any]
    ) -> VerifierOutcome:
        option = self._option
        if not option.judges(name, row):
            return VerifierOutcome(None)
        if option.truncated_reward is not None and self.end_ids.isdisjoint(ids[-1:]):
            return VerifierOutcome(
                option.truncated_reward
            )  # as upstream's `non_stop_penalty_value`
        return self.process.score(VerifierCall(name, prompt, text_of(completion), row, list(ids)))


def text_of(completion: Any) -> str:
    """Return the text of a completion, which TRL gives as messages where the prompt is one."""
    return completion if isinstance(completion, str) else str(completion[0]["content"])


def rlvr_class(entry: Any, scorer: Scorer, events: EventWriter, allowed: Collection[str]) -> Any:
    """Return a subclass of `entry` (see `launch.worker.trl_entry.entry_class`) that proves and
    records RLVR.

    `sample` is for `launch.worker.trl_samples.sampling_class`.
    """

    class Rlvr(entry):  # type: ignore[misc]
        _logs: Any

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            scorer.end_ids = frozenset(self.eos_token_ids)
            self._unshown = {
                "rewards": "the verifiers'",
                "samples_per_prompt": str(self.num_generations),
                "reference": REFERENCE[self.beta > 0],
                "sampler_weights": "trained",
            }

        def sample(self) -> dict[str, float]:
            """Record completions, and judge those of the start model: a reward that never differs
            teaches nothing, nor do answers without an end.
            """
            if self.state.global_step:
                self._sample(_RECORDED)
                return {}
            metrics = self._sample(PROMPTS_SAMPLED)
            without = metrics["frac_reward_zero_std"]
            cut_off, reward = metrics["completions/clipped_ratio"], metrics["reward"]
            groups = (
                f"{PROMPTS_SAMPLED} prompts x {self.num_generations} samples of the start model"
            )
            note = (
                "groups in which completions earn different rewards; the mean reward is "
                f"{reward:.3g}"
            )
            varied = Evidence("reward_variance", f"{1 - without:.0%} of groups", groups, note=note)
            ends = Evidence(
                "complete_answers",
                f"{1 - cut_off:.0%}",
                groups,
                note="the others reach the length limit",
            )
            judged = [
                varied.judge("above 0%", without < 1.0),
                ends.judge("above 10%", cut_off < MOST_CUT_OFF),
            ]
            report_evidence(judged, allowed, events)
            return {}

        def _sample(self, count: int) -> dict[str, float]:
            """Sample the first `count` prompts, record the completions of ten, and return the mean
            metrics.

            As a step does it, a generation batch at a time, over all ranks; the random numbers of
            the training, its metrics and its logged completions stay as they are.
            """
            import torch

            size = self.args.generation_batch_size
            rows = islice(cycle(self.train_dataset), count)
            samples = [row for row in rows for _ in range(self.num_generations)]
            samples += samples[: -len(samples) % size]  # whole batches
            logs, metrics = self._logs, self._metrics["eval"]
            devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
            self._logs = {
                name: defaultdict(list) if name in ("rewards", "extra") else [] for name in logs
            }
            self.model.eval()
            with torch.random.fork_rng(devices=devices):
                for start in range(0, len(samples), size):
                    with self.accelerator.split_between_processes(
                        samples[start : start + size]
                    ) as own:
                        self._generate_and_score_completions(own)
            self.model.train()
            self._record_completions()
            means = {name: fmean(values) for name, values in metrics.items()}
            metrics.clear()
            self._logs = logs
            return means

        def _record_completions(self) -> None:
            """Send one completion of each of the first prompts, with its rewards, as events."""
            if not self.accelerator.is_main_process:
                return
            logged = self._logs
            for number in range(
                0,
                min(len(logged["prompt"]), _RECORDED * self.num_generations),
                self.num_generations,
            ):
                scores = {name: values[number] for name, values in logged["rewards"].items()}
                rewards = {name: score for name, score in scores.items() if not math.isnan(score)}
                answer = text_of(logged["completion"][number])
                send_completion(
                    events,
                    self.state.global_step,
                    logged["prompt"][number],
                    answer,
                    rewards=rewards,
                )

        def _show(self, what: str, value: str, how: str) -> None:
            report_evidence(
                [Evidence(what, value, how).compare(self._unshown.pop(what))], allowed, events
            )

        def _is_due(self, what: str) -> bool:
            return bool(self.model.training) and what in self._unshown

        def train(self, *arguments: Any, **options: Any) -> Any:
            result = super().train(*arguments, **options)
            none = "no such step in this attempt"  # no step was left, or none after an update
            rest = [
                Evidence(what, "not sampled", none).judge(value, True)
                for what, value in self._unshown.items()
            ]
            report_evidence(rest, allowed, events)
            return result

        def _generate_single_turn(self, *arguments: Any, **options: Any) -> Any:
            """Time it, and keep the mode: continuous batching leaves the model training, so that an
            evaluation's metrics would be those of the training (trl/trainer/grpo_trainer.py:1812).
            """
            from torch.nn.modules.module import register_module_forward_pre_hook

            training, began = self.model.training, time.perf_counter()
            places: dict[
                int, int
            ] = {}  # of the data of all parameters that are called, by their ids
            is_due = self._is_due("sampler_weights") and self.state.global_step > 0
            if is_due:
                hook = register_module_forward_pre_hook(
                    lambda module, _: places.update(
                        {id(own): own.data_ptr() for own in module.parameters(False)}
                    )
                )
            result = super()._generate_single_turn(*arguments, **options)
            self.model.train(training)
            self._metrics["train" if training else "eval"]["generation_seconds"].append(
                time.perf_counter() - began
            )
            if is_due:
                hook.remove()
                trained = [
                    own
                    for own in self.accelerator.unwrap_model(self.model).parameters()
                    if own.requires_grad
                ]
                # ZeRO-3 leaves a parameter without data between two calls
                held = set(places.values())
                shared = sum(
                    own.data_ptr() in held if own.numel() else id(own) in places for own in trained
                )
                value = (
                    "trained"
                    if shared == len(trained)
                    else f"{shared} of {len(trained)} trained tensors"
                )
                self._show("sampler_weights", value, "the storage of what sampled after an update")
            return result

        def _calculate_rewards(self, inputs: Any, prompts: list[Any], *more: Any) -> Any:
            scorer.returned.clear()
            rewards = super()._calculate_rewards(inputs, prompts, *more)
            if self._is_due("rewards"):
                self._show_groups(prompts)
                first = self.accelerator.process_index * len(prompts)
                scores = [
                    [math.nan if score is None else score for score in column]
                    for column in scorer.returned
                ]
                own = rewards[first : first + len(prompts)]
                same = len(scores) == own.shape[1] and own.allclose(
                    own.new_tensor(scores).T, equal_nan=True
                )
                self._show(
                    "rewards",
                    "the verifiers'" if same else "others",
                    "the first step's, compared one by one",
                )
            return rewards

        def _show_groups(self, prompts: list[Any]) -> None:
            from accelerate.utils import gather_object

            texts, size = gather_object([repr(prompt) for prompt in prompts]), self.num_generations
            groups = [texts[first : first + size] for first in range(0, len(texts), size)]
            whole = all(group.count(group[0]) == size for group in groups)
            how = f"{len(groups)} groups of the first step, over all ranks"
            self._show(
                "samples_per_prompt", str(size) if whole else "groups of several prompts", how
            )

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            if self._is_due("reference"):
                scored = "ref_per_token_logps" in output
                held = self.ref_model is not None and not scored
                value = "a model that scores nothing" if held else REFERENCE[scored]
                self._show("reference", value, "the first step's log-probs")
            return output

    return Rlvr
