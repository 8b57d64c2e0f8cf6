"""What a rule of the planning is, and what such rules judge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from launch.config.origins import Origins
from launch.config.schema import RootConfig, TrainerConfig
from launch.planning.adapter import Adapter
from launch.planning.batch_split import Batch
from launch.planning.estimate.shape import ModelShape
from launch.planning.flags import Flag, values_of
from launch.planning.inputs import Inputs
from launch.planning.lora import Lora
from launch.planning.machine import Machine
from launch.planning.mixture import MixtureEntry
from launch.planning.parallel import Parallel
from launch.rules.code import CodeRule, summary_of
from launch.upstream.trl_templates import TemplateFinder
from launch.worker.finding import Finding

if TYPE_CHECKING:
    from launch.data.structure import DataStructure


@dataclass(frozen=True)
class SettingsCase:
    """The settings of a plan, before its flags are built."""

    config: RootConfig
    origins: Origins
    parallel: Parallel
    environ: Mapping[str, str]
    lora: Lora | None  # None: all weights are trained
    continued: Adapter | None  # the adapter that is trained further
    shape: ModelShape | None  # of the model, if it is known
    tensors: Sequence[str] | None  # the names of the model's, for an adapter that names some
    mixture: Sequence[MixtureEntry]  # the data sets, which have not been read

    def locate(self, key: str) -> str:
        """Return where a key is set, as a message shows it."""
        return self.origins.of(key).where or key


@dataclass(frozen=True)
class FlagsCase:
    """The flags of a plan, once the trainer's parser is known to accept each of them."""

    config: RootConfig
    origins: Origins
    parallel: Parallel
    machine: Machine
    inputs: Inputs
    batch: Batch
    data: Sequence[DataStructure | None]  # of each entry of the mixture; None: it was not read
    flags: Mapping[str, Flag]
    options: Sequence[str]  # of the entry over TRL, and the patches
    names: Mapping[str, Sequence[str]]  # the names that flags may take, by flag
    finder: TemplateFinder

    @property
    def trainer(self) -> TrainerConfig:
        return self.config.trainer

    @property
    def values(self) -> dict[str, object]:
        """The values of the flags, by name."""
        return values_of(self.flags)


Case = TypeVar("Case")
Judge = Callable[[Case], Iterable[Finding]]


@dataclass(frozen=True, kw_only=True)
class PlanRule(CodeRule, Generic[Case]):
    """One rule. Its function yields what it finds, without an id."""

    judge: Judge[Case]


def plan_rule(
    id: str, *, severity: str = "error", allow: bool = False
) -> Callable[[Judge[Case]], PlanRule[Case]]:
    """Turn a function into a rule. The first paragraph of its docstring is the rule's summary: why
    it exists.

    The function's name then stands for the rule and not for a function: `NAME.judge(case)` calls
    it.
    """

    def make(function: Judge[Case]) -> PlanRule[Case]:
        return PlanRule(
            id=id,
            summary=summary_of(function),
            judge=function,
            severity=severity,
            allow=allow,
        )

    return make
