"""The rewards of RLVR with TRL: each verifier is a function that scores completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .channel import EventWriter
from .opened import send_used
from .trl_options import BY_ROW, VerifierOption
from .verifiers import VerifierCall, VerifierOutcome, VerifierProcess


class Scorer:
    """Scores completions with the verifiers of a run."""

    def __init__(self, option: VerifierOption, data: Any, events: EventWriter) -> None:
        names = data["dataset"] if BY_ROW in option.verifiers else ()
        self.weights: Mapping[str, float] = option.names_in(names)
        self.process = VerifierProcess(  # it ends with this one
            list(self.weights),
            option.seconds,
            on_files=lambda files: send_used(files, events),
        )
        self._option = option
        self._events = events
        # The tokens that end a completion, which are known once the trainer has its model.
        self.end_ids: frozenset[int] = frozenset()
        # The scores of each verifier for the completions that were scored last.
        self.returned: list[list[float | None]] = []

    def reward_functions(self) -> list[Callable[..., list[float | None]]]:
        """Return one function for each verifier, so that TRL logs the mean of each.

        A function returns None for a row that another verifier judges.
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
            row_columns = {
                key: values for key, values in columns.items() if isinstance(values, list)
            }
            rows = [_row_at(row_columns, number) for number in range(len(prompts))]
            answers = zip(prompts, completions, completion_ids, rows, strict=True)
            outcomes = [self._score(name, *answer) for answer in answers]
            self._report(name, outcomes, log_metric)
            scores = [outcome.score for outcome in outcomes]
            self.returned.append(scores)
            return scores

        reward.__name__ = name.rpartition(":")[2]
        return reward

    def _score(
        self, name: str, prompt: Any, completion: Any, ids: Sequence[int], row: Mapping[str, Any]
    ) -> VerifierOutcome:
        option = self._option
        if not option.judges(name, row):
            return VerifierOutcome(None)
        # Upstream's `non_stop_penalty_value` does the same.
        if option.truncated_reward is not None and self.end_ids.isdisjoint(ids[-1:]):
            return VerifierOutcome(option.truncated_reward)
        return self.process.score(VerifierCall(name, prompt, text_of(completion), row, list(ids)))

    def _report(
        self,
        name: str,
        outcomes: Sequence[VerifierOutcome],
        log_metric: Callable[[str, float], None],
    ) -> None:
        """Log how long a verifier took and how often it failed, and warn of failures."""
        seconds = sum(outcome.seconds for outcome in outcomes)
        # TRL averages the metric over the functions and over the ranks.
        log_metric("verifier_seconds", seconds * len(self.weights))
        calls = [outcome for outcome in outcomes if outcome.seconds]
        for outcome in calls:
            log_metric("verifier_failures", float(outcome.failure is not None))
        failures = [outcome.failure for outcome in calls if outcome.failure]
        if failures:
            failed = f"verifier {name} failed on {len(failures)} of {len(calls)} answers"
            self._events.warn(f"{failed}: it {failures[0]}")


def _row_at(columns: Mapping[str, Sequence[Any]], number: int) -> dict[str, Any]:
    return {name: values[number] for name, values in columns.items()}


def text_of(completion: Any) -> str:
    """Return the text of a completion, which TRL gives as messages where the prompt is one."""
    return completion if isinstance(completion, str) else str(completion[0]["content"])
