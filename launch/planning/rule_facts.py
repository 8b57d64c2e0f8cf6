"""The facts of a plan, to which the rules of the table are applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launch.config.origins import Origin, Origins
from launch.config.schema import Device, RootConfig
from launch.planning.flags import Flag
from launch.planning.parallel import Parallel
from launch.rules.engine import apply_rules, rules_for
from launch.rules.facts import ABSENT, UNKNOWN, Place, Source
from launch.rules.table import is_flag
from launch.worker.finding import Finding


@dataclass(frozen=True)
class PlanFacts:
    """The settings of a plan, and its flags once they are built."""

    config: RootConfig
    plain: Mapping[str, Any]  # the configuration as plain data
    origins: Origins
    parallel: Parallel
    flags: Mapping[str, Flag] = field(default_factory=dict)
    place: Place = Place.plan

    @property
    def trainer(self) -> str:
        return self.config.trainer.name

    @property
    def family(self) -> str:
        return self.config.trainer.family.value

    def value(self, name: str) -> Any:
        if is_flag(name):
            return self.flags[name].value if name in self.flags else ABSENT
        properties = self._properties()
        return properties[name] if name in properties else value_at(self.plain, name)

    def _properties(self) -> dict[str, object]:
        """Return the names of the table that are not keys of the configuration."""
        trainer = self.config.trainer
        width = self.parallel.width
        return {
            "trainer": trainer.name,
            "family": trainer.family.value,
            "kind": self.config.stage.kind.value,
            "device": width.device.value,
            "gpus": width.world_size if width.device == Device.cuda else 0,
            "parallel_mode": self.parallel.mode.value,
            "parallel_zero": self.parallel.zero_stage,
            "mode_without_zero": "ddp" if width.world_size > 1 else "single",
        }

    def default(self, flag: str) -> Any:
        return None  # launch gives the flags on which others depend

    def source(self, flag: str) -> Source | None:
        given = self.flags.get(flag)
        if given is None or flag in self.config.flags:
            return Source.user if given else None
        return Source.launch if given.provenance.origin == Origin.launcher else Source.recipe

    def known_names(self, flag: str) -> Sequence[str]:
        return ()  # `check_names` reports them

    def locate(self, name: str) -> str | None:
        if not is_flag(name):
            return self.origins.of(name).where or name
        given = self.flags.get(name)
        return given.provenance.where if given else None


def value_at(plain: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key, `recipe.lora.rank`: ABSENT for one that a map lacks, and
    UNKNOWN below a value that is not a map.
    """
    value: Any = plain
    for part in key.split("."):
        if not isinstance(value, Mapping):
            return UNKNOWN
        if part not in value:
            return ABSENT
        value = value[part]
    return value


def find_by_rules(facts: PlanFacts, *, with_flags: bool) -> list[Finding]:
    """Return what the table's rules find of the settings, or, once they are built, of the flags
    too. What `allow` names is allowed.
    """
    rules = [rule for rule in rules_for(facts) if rule.needs_flags is with_flags]
    return apply_rules(facts, rules, facts.config.allow)
