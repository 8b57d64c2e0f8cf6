"""The inputs of a stage: the model that it starts from, its data, and the verifiers of RLVR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launch.config.kinds import KINDS, Kind
from launch.config.origins import Origins
from launch.config.schema import RootConfig
from launch.digests import Digest
from launch.errors import UserError, set_any
from launch.planning.input_source import InputSource
from launch.planning.mixture import MixtureEntry, resolve_mixture, share_of_unstaged_data
from launch.planning.rlvr import resolve_verifiers
from launch.planning.stage_model import resolve_model
from launch.upstream.trainers import trainer_files
from launch.worker.finding import Finding
from launch.worker.trl_options import is_own


@dataclass(frozen=True)
class Inputs:
    """The model and the data of a stage."""

    model: InputSource
    mixture: tuple[MixtureEntry, ...]
    # the share that the trainer's process splits off data that is not staged
    held_out: float | None = None
    # RLVR's verifiers: the weight by name, or by path:function
    verifiers: Mapping[str, float] = field(default_factory=dict)

    @property
    def verifier_files(self) -> tuple[Path, ...]:
        return tuple(Path(name.rpartition(":")[0]) for name in self.verifiers if is_own(name))


def resolve_inputs(
    config: RootConfig, origins: Origins, cache: Path, cwd: Path, digest: Digest
) -> Inputs:
    """Resolve what a stage starts from.

    Raises UserError: no_model, no_data, unknown_build, kind_mismatch, data_no_files,
    data_file_type; those of `resolve_verifiers`.
    """
    problems = _kind_mismatches(config, origins)
    if problems:
        raise UserError(problems)
    mixture = resolve_mixture(config, origins, cache, cwd, digest)
    model = resolve_model(config, origins, cache, cwd)
    held_out = share_of_unstaged_data(config, mixture)
    verifiers = resolve_verifiers(config, origins, cwd)
    return Inputs(model, mixture, held_out, verifiers)


def _kind_mismatches(config: RootConfig, origins: Origins) -> list[Finding]:
    kind = config.stage.kind
    problems = []
    if config.trainer.kind != kind:
        message = (
            f"{config.trainer.name} trains {config.trainer.kind} stages, but this stage is {kind}"
        )
        cure = set_any(*_trainers_of(kind))
        problems.append(Finding.error("kind_mismatch", message, "trainer", cure))
    if config.data.kind not in (kind, KINDS[kind].data):
        message = (
            f"data={origins.choices.get('data')} is {config.data.kind} data, but this stage "
            f"is {kind}"
        )
        problems.append(Finding.error("kind_mismatch", message, "data"))
    return problems


def _trainers_of(kind: Kind) -> list[str]:
    """Return the overrides that choose the shipped trainers of a kind of stage."""
    overrides = []
    for name, file in trainer_files().items():
        if file.get("kind") == kind and not file.get("untested"):
            overrides.append(f"trainer={name}")
    return overrides
