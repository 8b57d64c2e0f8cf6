"""Plan a stage from Python."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from launch.api.cures import check_advice
from launch.config.compose import Composed, compose_once
from launch.config.line import CommandLine
from launch.config.quoting import quote_if_needed, quote_text
from launch.config.recipe_keys import Packing, recipe_mapping
from launch.planning.batch_split import Batch
from launch.planning.batches import TokenForecast, forecast_tokens
from launch.planning.estimate.forecast import MemoryForecast, forecast_on_machine
from launch.planning.flags import Flag
from launch.planning.hub_config import TOKEN_CURE, lacks_token, missing_token
from launch.planning.lengths import load_lengths
from launch.planning.plan import Plan
from launch.planning.vllm_server import planned_server, server_environment
from launch.slurm.cluster import plan_with_cluster
from launch.upstream.trainers import OLMO_CORE_DPO
from launch.worker.finding import Finding, Fix
from launch.worker.json_codec import to_json, versioned

# A text that would be read as a number, a boolean or null, if it had no quotes.
_OTHER_TYPE = re.compile(
    r"[-+.]?\d.*|true|false|null|none|yes|no|on|off|[-+]?(nan|inf)", re.IGNORECASE
)


@dataclass(frozen=True)
class PlannedRun:
    """A plan, and the predictions for it on this machine."""

    plan: Plan

    @property
    def command(self) -> tuple[str, ...]:
        """The argument list that would be started."""
        return self.plan.command

    @property
    def flags(self) -> Mapping[str, Flag]:
        """The trainer's flags by name, each with its `value` and its `provenance`."""
        return self.plan.flags

    @property
    def env(self) -> Mapping[str, str]:
        """The environment variables that the run sets."""
        return self.plan.env

    @property
    def batch(self) -> Batch:
        return self.plan.batch

    @property
    def folder(self) -> Path:
        """The run's folder; it may not exist yet."""
        return self.plan.folder

    @cached_property
    def warnings(self) -> tuple[Finding, ...]:
        advised = check_advice(self.plan, self.plan.warnings)
        model = self.plan.inputs.model
        if model.local or not lacks_token(model.reference, self.plan.machine.environ):
            return tuple(advised)
        message = missing_token(model.reference)
        where = model.provenance.where
        return (*advised, Finding.warning("no_hub_token", message, where, TOKEN_CURE))

    @cached_property
    def memory(self) -> MemoryForecast | None:
        """The predicted peak memory of a GPU; None for a run on a CPU."""
        forecast = forecast_on_machine(self.plan)
        if forecast is None or not forecast.remedy:
            return forecast
        problem = Finding.error("memory", "", cure=Fix.of("{0}", str(forecast.remedy)))
        [checked] = check_advice(self.plan, [problem])
        return replace(forecast, liger=checked.cure is not None)

    @cached_property
    def tokens(self) -> TokenForecast | None:
        """The predicted tokens and padding of a batch; None until the data's lengths were
        measured.
        """
        lengths = load_lengths(self.plan.lengths_file)
        if lengths is None:
            return None
        recipe = self.plan.config.recipe
        padded_together = None
        # dpo.py pads all samples of a rank to the same length.
        if self.plan.trainer == OLMO_CORE_DPO and recipe.packing == Packing.none:
            padded_together = self.plan.batch.samples_per_rank
        return forecast_tokens(
            lengths,
            recipe,
            self.plan.batch,
            padded_together=padded_together,
            balances="true" in (recipe_mapping(self.plan.config.trainer, "balanced") or ()),
        )

    @cached_property
    def continues(self) -> str | None:
        """From which step the run in the plan's folder resumes, or why it does not; None for a run
        that is finished, has not started, or starts over.
        """
        if not self.plan.folder.exists():
            return None
        from launch.execution.resume import describe_next_attempt  # slow; a new run needs none

        return describe_next_attempt(self.plan)

    def facts(self) -> list[tuple[str, str]]:
        """The facts that `launch plan` prints above the flags: names and texts."""
        from launch.api.plan_facts import plan_facts

        return plan_facts(self.plan, self.memory, self.tokens, self.continues)

    def __repr__(self) -> str:
        return f"<{self.plan.stage}/{self.plan.name}: {self.plan.trainer}, global {self.batch}>"

    def _repr_html_(self) -> str:
        from launch.table import Table

        name = ("plan", f"{self.plan.stage}/{self.plan.name}")
        return Table("", [name, *self.facts()])._repr_html_()

    def as_json(self) -> dict[str, Any]:
        """Return the object that `launch plan --json` prints."""
        return versioned(self)

    def json_fields(self) -> dict[str, Any]:
        forecasts = {"memory": self.memory, "tokens": self.tokens}
        fields = {**to_json(self.plan), **forecasts, "warnings": self.warnings}
        if self.continues is not None:
            fields["continues"] = self.continues
        server = planned_server(self.plan)
        if server is not None:
            env = server_environment(server, self.plan)
            fields["server"] = {"command": server.command, "env": env}
        return fields


def plan(stage: str, **keys: Any) -> PlannedRun:
    """Plan a stage without starting anything. Raises UserError if it cannot work."""
    return plan_composed(compose_once(CommandLine("plan", False, tuple(overrides(stage, keys)))))


def plan_composed(composed: Composed, *, is_swept: bool = False) -> PlannedRun:
    """Plan a composed stage on this machine, its Slurm settings included.

    A plan of a sweep (`is_swept`) continues no run of another width. Raises UserError.
    """
    return PlannedRun(plan_with_cluster(composed, is_swept=is_swept))


def overrides(stage: str, keys: Mapping[str, Any]) -> list[str]:
    """Return the overrides of the command line that set these keys."""
    return [f"stage={stage}", *_render_keys(keys)]


def pipeline_overrides(stages: Sequence[str], keys: Mapping[str, Any]) -> list[str]:
    """Return the overrides of a pipeline.

    A stage's name among the keys has a mapping of the keys for that stage.
    """
    shared = {key: value for key, value in keys.items() if key not in stages}
    line = [f"pipeline={','.join(stages)}", *_render_keys(shared)]
    for stage in stages:
        stage_keys = keys.get(stage) or {}
        line += [f"{stage}:{override}" for override in _render_keys(stage_keys)]
    return line


def _render_keys(keys: Mapping[str, Any]) -> list[str]:
    return [f"{key}={_render(value)}" for key, value in _flatten(keys, "")]


def _flatten(keys: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in keys.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _render(value: Any) -> str:
    """Write a value in Hydra's grammar of overrides."""
    if value is None:
        return "null"
    if isinstance(value, int | float):
        return str(value).lower() if isinstance(value, bool) else repr(value)
    if isinstance(value, Mapping):
        entries = [f"{key}: {_render(entry)}" for key, entry in value.items()]
        return f"{{{', '.join(entries)}}}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_render, value))}]"
    text = str(value)
    return quote_text(text) if _OTHER_TYPE.fullmatch(text) else quote_if_needed(text)
