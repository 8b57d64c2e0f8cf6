"""What an RL run has to show of its sampling: whose weights sample, how often each prompt, against which reference, and
that the rewards which it trains on are those that the verifiers returned.

Each is shown once in an attempt: the weights after an update, the others with the first step.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any

from .channel import EventWriter
from .expectations import report_evidence
from .finding import Evidence

REFERENCE = {True: "starting model", False: "none"}  # by whether recipe.kl_beta is above 0


@contextlib.contextmanager
def called_tensors() -> Iterator[dict[int, int]]:
    """Yield the parameters of all modules that are called within: the place of each one's data, by its id."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    places: dict[int, int] = {}
    hook = register_module_forward_pre_hook(
        lambda module, _: places.update((id(own), own.data_ptr()) for own in module.parameters(recurse=False))
    )
    try:
        yield places
    finally:
        hook.remove()


def watch_sampling(base: Any, events: EventWriter, allowed: Collection[str]) -> Any:
    """Return a subclass of a GRPOTrainer that reports this evidence, and ends the rank where it is refuted."""

    class Watched(base):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._returned: list[list[float | None]] = []
            self.reward_funcs: list[Any] = [self._recorded(function) for function in self.reward_funcs]
            self._unshown = {
                "rewards": "the verifiers'",
                "samples_per_prompt": str(self.num_generations),
                "reference": REFERENCE[self.beta > 0],
                "sampler_weights": "trained",
            }

        def _recorded(self, function: Callable[..., list[float | None]]) -> Callable[..., list[float | None]]:
            @functools.wraps(function)
            def call(*arguments: Any, **options: Any) -> list[float | None]:
                self._returned.append(function(*arguments, **options))
                return self._returned[-1]

            return call

        def _show(self, what: str, value: str, how: str) -> None:
            report_evidence([Evidence(what, value, how).compare(self._unshown.pop(what))], allowed, events)

        def _is_due(self, what: str) -> bool:
            return bool(self.model.training) and what in self._unshown

        def train(self, *arguments: Any, **options: Any) -> Any:
            result = super().train(*arguments, **options)
            for what, requested in self._unshown.items():  # no step was left, or none after an update
                rest = Evidence(what, "not sampled", "no such step in this attempt").judge(requested, True)
                report_evidence([rest], allowed, events)
            return result

        def _generate(self, prompts: list[Any]) -> Any:
            if not self._is_due("sampler_weights") or self.state.global_step == 0:
                return super()._generate(prompts)
            with called_tensors() as places:
                result = super()._generate(prompts)
            trained = [own for own in self.accelerator.unwrap_model(self.model).parameters() if own.requires_grad]
            held = set(places.values())  # ZeRO-3 leaves a parameter without data between two calls
            shared = sum(own.data_ptr() in held if own.numel() else id(own) in places for own in trained)
            value = "trained" if shared == len(trained) else f"{shared} of {len(trained)} trained tensors"
            self._show("sampler_weights", value, "the storage of what sampled after an update")
            return result

        def _generate_single_turn(self, *arguments: Any, **options: Any) -> Any:
            """Keep the mode: continuous batching leaves the model training, so that an evaluation's metrics would be
            those of the training (trl/trainer/grpo_trainer.py:1812)."""
            training = self.model.training
            result = super()._generate_single_turn(*arguments, **options)
            self.model.train(training)
            return result

        def _calculate_rewards(self, inputs: Any, prompts: list[Any], *more: Any) -> Any:
            self._returned.clear()
            rewards = super()._calculate_rewards(inputs, prompts, *more)
            if self._is_due("rewards"):
                self._show_groups(prompts)
                first = self.accelerator.process_index * len(prompts)
                same = self._returned and self._equal(rewards[first : first + len(prompts)])
                self._show("rewards", "the verifiers'" if same else "others", "the first step's, compared one by one")
            return rewards

        def _equal(self, rewards: Any) -> bool:
            import torch

            columns = [[float("nan") if score is None else score for score in column] for column in self._returned]
            returned = torch.tensor(columns, dtype=rewards.dtype, device=rewards.device).T
            return bool(rewards.shape == returned.shape and torch.allclose(rewards, returned, equal_nan=True))

        def _show_groups(self, prompts: list[Any]) -> None:
            from accelerate.utils import gather_object

            texts, size = gather_object([repr(prompt) for prompt in prompts]), self.num_generations
            groups = [texts[first : first + size] for first in range(0, len(texts), size)]
            whole = all(len(group) == size and len(set(group)) == 1 for group in groups)
            how = f"{len(groups)} groups of the first step, over all ranks"
            self._show("samples_per_prompt", str(size) if whole else "groups of several prompts", how)

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            if self._is_due("reference"):
                scored = "ref_per_token_logps" in output
                held = self.ref_model is not None and not scored
                value = "a model that scores nothing" if held else REFERENCE[scored]
                self._show("reference", value, "the first step's log-probs")
            return output

    return Watched
