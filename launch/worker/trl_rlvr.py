"""RLVR with TRL's GRPOTrainer: rewards from verifiers, the sampling proof of the start model, and what is recorded.

Nothing of TRL is replaced: `rlvr_class` subclasses its trainer, and `reward_functions` are what TRL takes as rewards.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from .channel import EventWriter
from .expectations import report_evidence
from .finding import Evidence
from .sampling import watch_sampling
from .trl_samples import send_completion
from .verifiers import BY_ROW, Call, Outcome, VerifierOption, VerifierProcess, verifier_of

PROMPTS_SAMPLED = 32  # of the start model, before the first update
MOST_CUT_OFF = 0.9  # share of the answers that reach the limit without an end
_RECORDED = 10  # prompts whose completions are recorded at the start, in the middle and at the end


class Scorer:
    """Scores completions with the verifiers of a run."""

    def __init__(self, option: VerifierOption, data: Any, events: EventWriter) -> None:
        named = set(data["dataset"]) if BY_ROW in option.verifiers else ()
        self.weights: Mapping[str, float] = option.names_in(iter(named))
        self.process = VerifierProcess(list(self.weights), option.seconds)  # it ends with this one
        self._option, self._events = option, events
        self.end_ids: frozenset[int] = frozenset()  # the tokens that end a completion, once the model is there

    def reward_functions(self) -> list[Callable[..., list[float | None]]]:
        """Return one function a verifier, so that TRL logs each one's mean: None for rows of another verifier."""
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
            rows = [{key: values[number] for key, values in lists.items()} for number in range(len(prompts))]
            began, answers = time.perf_counter(), zip(prompts, completions, completion_ids, rows, strict=True)
            outcomes = [self._score(name, *answer) for answer in answers]
            # TRL averages over the functions, and over the ranks
            log_metric("verifier_seconds", (time.perf_counter() - began) * len(self.weights))
            calls = [outcome for outcome in outcomes if outcome.seconds]
            for outcome in calls:
                log_metric("verifier_failures", float(outcome.failure is not None))
            if failures := [outcome.failure for outcome in calls if outcome.failure]:
                failed = f"failed on {len(failures)} of {len(calls)} answers: it {failures[0]}"
                self._events.warn(f"verifier {name} {failed}")
            return [outcome.score for outcome in outcomes]

        reward.__name__ = name.rpartition(":")[2]
        return reward

    def _score(self, name: str, prompt: Any, completion: Any, ids: Sequence[int], row: Mapping[str, Any]) -> Outcome:
        option = self._option
        if name not in option.verifiers and verifier_of(row["dataset"]) != name:
            return Outcome(None)
        if option.truncated_reward is not None and self.end_ids.isdisjoint(ids[-1:]):
            return Outcome(option.truncated_reward)  # as upstream's `non_stop_penalty_value`
        return self.process.score(Call(name, prompt, text_of(completion), row, list(ids)))


def text_of(completion: Any) -> str:
    """Return the text of a completion, which TRL gives as messages where the prompt is one."""
    return completion if isinstance(completion, str) else str(completion[0]["content"])


def _mean(values: Collection[float]) -> float:
    return sum(values) / max(1, len(values))


def rlvr_class(entry: Any, scorer: Scorer, events: EventWriter, allowed: Collection[str]) -> Any:
    """Return a subclass of `entry` (see `launch.worker.trl_entry.entry_class`) that proves, times and records RLVR.

    `sample` is for `launch.worker.trl_samples.sampling_class`.
    """

    class Rlvr(watch_sampling(entry, events, allowed)):  # type: ignore[misc]
        _logs: Any

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            scorer.end_ids = frozenset(self.eos_token_ids)

        def sample(self) -> dict[str, float]:
            """Record completions, and judge those of the start model."""
            if self.state.global_step:
                self._sample(_RECORDED)
            else:
                report_evidence(self._prove_sampling(), allowed, events)
            return {}

        def _generate(self, prompts: list[Any]) -> Any:
            began = time.perf_counter()
            result = super()._generate(prompts)
            mode = "train" if self.model.training else "eval"
            self._metrics[mode]["generation_seconds"].append(time.perf_counter() - began)
            return result

        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            if self.model.training and "loss" in logs:
                names = ("step_time", "generation_seconds", "verifier_seconds")
                step, *sampling = (_mean(self._metrics["train"].get(name, ())) for name in names)
                logs["training_seconds"] = max(0.0, step - sum(sampling))
            super().log(logs, start_time)

        def _prove_sampling(self) -> list[Evidence]:
            """Sample the start model: a reward that never differs teaches nothing, nor do answers without an end."""
            metrics = self._sample(PROMPTS_SAMPLED)
            without = metrics["frac_reward_zero_std"]
            cut_off, reward = metrics["completions/clipped_ratio"], metrics["reward"]
            groups = f"{PROMPTS_SAMPLED} prompts x {self.num_generations} samples of the start model"
            note = f"groups in which completions earn different rewards; the mean reward is {reward:.3g}"
            varied = Evidence("reward_variance", f"{1 - without:.0%} of groups", groups, note=note)
            ends = Evidence("complete_answers", f"{1 - cut_off:.0%}", groups, note="the others reach the length limit")
            return [varied.judge("above 0%", without < 1.0), ends.judge("above 10%", cut_off < MOST_CUT_OFF)]

        def _sample(self, count: int) -> dict[str, float]:
            """Sample the first `count` prompts, record the completions of ten, and return the mean metrics.

            As a step does it, a generation batch at a time, over all ranks; the random numbers of the training and its
            metrics stay as they are.
            """
            size, ranks = self.args.generation_batch_size, self.accelerator.num_processes
            rows = [self.train_dataset[number % len(self.train_dataset)] for number in range(count)]
            samples = [row for row in rows for _ in range(self.num_generations)]
            samples += samples[: -len(samples) % size]  # whole batches
            local = size // ranks
            first = local * self.accelerator.process_index
            with self._apart():
                for start in range(0, len(samples), size):
                    self._generate_and_score_completions(samples[start + first : start + first + local])
                self._record_completions()
                return {name: _mean(values) for name, values in self._metrics["eval"].items()}

        @contextlib.contextmanager
        def _apart(self) -> Iterator[None]:
            """Keep the random numbers, the metrics and logged completions of the training as they are."""
            import torch

            logs, tokens = self._logs, self.state.num_input_tokens_seen
            devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
            self._logs = {name: defaultdict(list) if name in ("rewards", "extra") else [] for name in logs}
            self.model.eval()
            try:
                with torch.random.fork_rng(devices=devices):
                    yield
            finally:
                self.model.train()
                self._metrics["eval"].clear()
                self._logs, self.state.num_input_tokens_seen = logs, tokens

        def _record_completions(self) -> None:
            """Send one completion of each of the first prompts, with its rewards, as events."""
            if not self.accelerator.is_main_process:
                return
            logged = self._logs
            for number in range(0, min(len(logged["prompt"]), _RECORDED * self.num_generations), self.num_generations):
                rewards = {name: values[number] for name, values in logged["rewards"].items()}
                rewards = {name: value for name, value in rewards.items() if not math.isnan(value)}
                answer = text_of(logged["completion"][number])
                send_completion(events, self.state.global_step, logged["prompt"][number], answer, rewards=rewards)

    return Rlvr
