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
from .verifiers import BY_ROW, Call, Outcome, VerifierOption, VerifierProcess, is_own, verifier_of

PROMPTS_SAMPLED = 32  # of the start model, before the first update
MOST_CUT_OFF = 0.9  # share of the answers that reach the limit without an end
_RECORDED = 10  # prompts whose completions are recorded at the start, in the middle and at the end


class Scorer:
    """Scores completions with the verifiers of a run, and counts what goes wrong."""

    def __init__(self, option: VerifierOption, data: Any, events: EventWriter) -> None:
        named = set(data["dataset"]) if BY_ROW in option.verifiers else ()
        self.weights: Mapping[str, float] = option.names_in(iter(named))
        self._always = frozenset(option.verifiers)
        self._process = VerifierProcess(list(self.weights), option.seconds)
        self._truncated_reward, self._events = option.truncated_reward, events
        self.end_ids: frozenset[int] = frozenset()  # the tokens that end a completion, once the model is there
        self.counts = dict.fromkeys(("seconds", "calls", "failures"), 0.0)  # since the last `take_counts`

    def close(self) -> None:
        self._process.close()

    def take_counts(self) -> dict[str, float]:
        """Return the seconds, calls and failures since the last call."""
        counts, self.counts = self.counts, dict.fromkeys(self.counts, 0.0)
        return counts

    def reward_functions(self) -> list[Callable[..., list[float | None]]]:
        """Return one function a verifier, so that TRL logs each one's mean: None for rows of another verifier."""
        return [self._reward_function(name) for name in self.weights]

    def _reward_function(self, name: str) -> Callable[..., list[float | None]]:
        def reward(
            prompts: Sequence[Any], completions: Sequence[Any], completion_ids: Sequence[Any], **columns: Any
        ) -> list[float | None]:
            lists = {key: values for key, values in columns.items() if isinstance(values, list)}
            rows = range(len(prompts))
            mine = [row for row in rows if name in self._always or verifier_of(lists["dataset"][row]) == name]
            truncated = {row for row in mine if self._is_truncated(completion_ids[row])}
            judged = [row for row in mine if row not in truncated]
            calls = [
                Call(
                    name,
                    prompts[row],
                    text_of(completions[row]),
                    {key: values[row] for key, values in lists.items()},
                    list(completion_ids[row]) if is_own(name) else (),
                )
                for row in judged
            ]
            began = time.perf_counter()
            outcomes = dict(zip(judged, self._process.score(calls), strict=True))
            self.counts["seconds"] += time.perf_counter() - began
            self._count(name, outcomes.values())
            scores = dict.fromkeys(truncated, self._truncated_reward) | {row: o.score for row, o in outcomes.items()}
            return [scores.get(row) for row in rows]

        reward.__name__ = name.rpartition(":")[2] if is_own(name) else name
        return reward

    def _is_truncated(self, completion_ids: Sequence[int]) -> bool:
        """Whether a completion without an end has a reward of its own, as upstream's `non_stop_penalty_value`."""
        return self._truncated_reward is not None and self.end_ids.isdisjoint(completion_ids[-1:])

    def _count(self, name: str, outcomes: Collection[Outcome]) -> None:
        failures = [outcome.failure for outcome in outcomes if outcome.failure]
        self.counts["calls"] += len(outcomes)
        self.counts["failures"] += len(failures)
        if failures:
            self._events.warn(f"verifier {name} failed on {len(failures)} of {len(outcomes)} answers: it {failures[0]}")


def text_of(completion: Any) -> str:
    """Return the text of a completion, which TRL gives as messages where the prompt is one."""
    return completion if isinstance(completion, str) else str(completion[0]["content"])


def rlvr_class(
    entry: Any, scorer: Scorer, events: EventWriter, allowed: Collection[str], every: int | None = None
) -> Any:
    """Return a subclass of `entry` (see `launch.worker.trl_entry.entry_class`) that proves, times and records RLVR.

    Completions are recorded before the first step, then after `every` steps, without it in the middle, and at the end.
    """

    class Rlvr(watch_sampling(entry, events, allowed)):  # type: ignore[misc]
        _is_proven = False
        _generation_seconds = 0.0
        _recorded_steps: tuple[int, ...] = ()
        _logs: Any

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            scorer.end_ids = frozenset(self.eos_token_ids)

        def train(self, *arguments: Any, **options: Any) -> Any:
            try:
                return super().train(*arguments, **options)
            finally:
                scorer.close()

        def training_step(self, *arguments: Any, **options: Any) -> Any:
            """Sample what is proven or recorded before the micro batch, whose time then has its own samples alone."""
            step = self.state.global_step
            if not self._is_proven:
                self._is_proven = True
                last = self.state.max_steps - 1
                steps = {*range(every, last, every), last} if every else {self.state.max_steps // 2, last}
                self._recorded_steps = tuple(sorted(steps - {0}))
                if step == 0:
                    report_evidence(self._prove_sampling(), allowed, events)
            elif self._recorded_steps and step >= self._recorded_steps[0]:
                if step == self._recorded_steps[0]:
                    self._sample(_RECORDED)
                self._recorded_steps = self._recorded_steps[1:]
            return super().training_step(*arguments, **options)

        def _generate(self, prompts: list[Any]) -> Any:
            began = time.perf_counter()
            result = super()._generate(prompts)
            self._generation_seconds += time.perf_counter() - began
            return result

        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            if self.model.training and "loss" in logs:
                counts, metrics = scorer.take_counts(), self._metrics["train"]
                failed = self._sum_over_ranks(counts["failures"]) / max(1.0, self._sum_over_ranks(counts["calls"]))
                logs["verifier_failures"] = failed
                logs["generation_seconds"], self._generation_seconds = self._generation_seconds, 0.0
                logs["verifier_seconds"] = counts["seconds"]
                step_time = sum(metrics.get("step_time", []))
                logs["training_seconds"] = max(0.0, step_time - logs["generation_seconds"] - logs["verifier_seconds"])
            super().log(logs, start_time)

        def _sum_over_ranks(self, value: float) -> float:
            import torch

            return float(self.accelerator.reduce(torch.tensor(value, device=self.accelerator.device), "sum"))

        def _prove_sampling(self) -> list[Evidence]:
            """Sample the start model: a reward that never differs teaches nothing, nor do answers without an end."""
            metrics = self._sample(PROMPTS_SAMPLED)
            without = metrics["frac_reward_zero_std"]
            cut_off, reward = metrics["completions/clipped_ratio"], metrics["reward"]
            groups = f"{PROMPTS_SAMPLED} prompts x {self.num_generations} samples of the start model"
            note = f"all completions of each prompt earned the same; their mean is {reward:.3g}"
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
                return {name: sum(values) / max(1, len(values)) for name, values in self._metrics["eval"].items()}

        @contextlib.contextmanager
        def _apart(self) -> Iterator[None]:
            """Keep the random numbers, the metrics, times and logged completions of the training as they are."""
            import torch

            logs, tokens = self._logs, self.state.num_input_tokens_seen
            seconds, counts = self._generation_seconds, dict(scorer.counts)
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
                self._generation_seconds, scorer.counts = seconds, counts

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
