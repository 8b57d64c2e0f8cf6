"""`Plan`: everything that is needed to run a stage, before anything runs.

`launch.planning.build` makes one of a command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.config.origins import Origins
from launch.config.schema import RootConfig
from launch.planning.attention import AttentionChoice
from launch.planning.batch_split import Batch
from launch.planning.chat_template import ChatTemplate
from launch.planning.command import build_command
from launch.planning.environment import variables_to_unset
from launch.planning.estimate.shape import ModelShape
from launch.planning.flags import Flag, replace_computed_values, values_of
from launch.planning.folders import machine_places, run_folder, texts_with_name
from launch.planning.identity import InputContent
from launch.planning.inputs import Inputs
from launch.planning.lora import Lora
from launch.planning.loss import LossWeighting, weigh_loss
from launch.planning.machine import Machine, UpstreamState
from launch.planning.model_folder import find_output_faults
from launch.planning.other_width import ADAPTER_FLAGS, find_obstacle
from launch.planning.parallel import Parallel
from launch.planning.trackers import servers_to_unset
from launch.upstream.trl_templates import TemplateFinder, TrlTemplate
from launch.worker.finding import Finding

if TYPE_CHECKING:
    from launch.data.structure import DataStructure

# finetune.py:298, dpo_tune_cache.py:268, dpo.py:166, olmo_core_utils.py:202
TOKENIZE_ONLY_FLAG = "cache_dataset_only"
# The keys of plan.json that are left out where there is nothing.
_OMITTED_IF_EMPTY = ("replaced", "options", "started_from", "chat_template", "training_identity")


@dataclass(frozen=True)
class Plan:
    """One training job, ready to run."""

    stage: str
    name: str  # of the run's folder
    identity: str
    # the identity without the width; None if the run cannot be resumed at another width
    training_identity: str | None
    config: RootConfig
    # the configuration as plain data, which the run folder records as config.yaml
    resolved: Mapping[str, Any]
    origins: Origins  # where each value of the configuration is set
    # values of a shipped stage's recipe that the trainer lacks, and that its nearest ones replace
    replaced: Mapping[str, Any]
    machine: Machine = field(repr=False, compare=False)
    runs: Path
    cache: Path

    inputs: Inputs
    content: InputContent  # of the inputs that are local
    # digests of the local inputs that the identity covers, by path; the path of a data set that is
    # staged is that of its first file
    input_digests: Mapping[str, str]
    # the structure of each data set of the mixture; None for one that is not local
    data: tuple[DataStructure | None, ...]
    shape: ModelShape | None  # of the model; None where it is unknown
    lora: Lora | None  # the adapter that is trained; None if all weights are trained
    template: ChatTemplate | None  # the one that the recipe sets
    finder: TemplateFinder = field(repr=False, compare=False)  # of TRL's templates

    parallel: Parallel
    batch: Batch
    flags: Mapping[str, Flag]
    patches: tuple[str, ...]
    options: tuple[str, ...]  # of launch's own entry
    attention: AttentionChoice | None  # of a TRL run on GPUs
    command: tuple[str, ...]  # the whole argument list
    env: Mapping[str, str]
    lengths_file: Path | None  # exists once the data is tokenised; see launch.planning.lengths
    files_checked: tuple[str, ...]
    warnings: tuple[Finding, ...]
    # whether the model that it starts from is still to be made, by an earlier stage of a pipeline
    is_pending: bool = False

    @property
    def upstream(self) -> UpstreamState:
        return self.machine.upstream

    @property
    def places(self) -> dict[Path, str]:
        """The folders that differ between machines, each with what stands for it in a digest."""
        return machine_places(self.runs, self.cache)

    @property
    def trainer(self) -> str:
        return self.config.trainer.name

    @property
    def trains_adapter(self) -> bool:
        """Whether an adapter is trained, by recipe.lora or by flags of the trainer's own alone."""
        return any(self.flags[name].value for name in ADAPTER_FLAGS if name in self.flags)

    @property
    def trl_template(self) -> TrlTemplate | None:
        """The template of TRL's that the trainer reads from its file; None where it reads none, or
        the one that a flag names.
        """
        template = self.template
        if template is None:
            return None
        file = str(template.file)
        is_read = any(file in argument for argument in self.command)
        return template.trl if is_read else None

    @property
    def loss_weighting(self) -> LossWeighting:
        return weigh_loss(self.config, self.batch, values_of(self.flags))

    @property
    def width_obstacle(self) -> str | None:
        """Why the run cannot be resumed at another width; None if it can."""
        return find_obstacle(self.config, self.parallel, self.batch, values_of(self.flags))

    @property
    def unset(self) -> tuple[str, ...]:
        """Environment variables to remove."""
        return variables_to_unset(self.env, servers_to_unset(self.config.tracking))

    @property
    def folder(self) -> Path:
        return run_folder(self.runs, self.stage, self.name)

    @property
    def model_dir(self) -> Path:
        return self.folder / "model"

    @property
    def saved_model(self) -> Path:
        """The folder that another stage starts from: below `model_dir` where the trainer keeps
        checkpoints of another library beside it.
        """
        below = Path(self.config.trainer.output_glob).parent
        return self.model_dir if "*" in str(below) else self.model_dir / below

    @property
    def most_unlogged(self) -> int:
        """The largest number of steps that the run can have done since the last one that it
        logged.
        """
        interval = values_of(self.flags).get("logging_steps")
        return interval - 1 if isinstance(interval, int) else 0

    def next_checkpoint(self, step: int) -> int | None:
        """Return the step of the first checkpoint after a step; None if checkpoints are not written
        by steps.
        """
        interval = self.config.recipe.checkpoint_steps
        if not interval:
            return None
        checkpoints_before = step // interval
        return (checkpoints_before + 1) * interval

    def find_output_faults(self) -> list[str]:
        """Return why the trainer's output is not a finished model, a sentence for each reason."""
        return find_output_faults(self.model_dir, self.config.trainer.output_glob)

    @property
    def started_from(self) -> str | None:
        """The digest of the model that another run made (model.trained_by); None where there is
        none yet.
        """
        local = self.inputs.model.local
        if local is None or not self.config.model.trained_by:
            return None
        return self.content.digests.get(local)

    @property
    def only_tokenizes(self) -> bool:
        """Whether the plan only builds its tokenised data: it loads no model and writes none."""
        return f"--{TOKENIZE_ONLY_FLAG}" in self.command

    def renamed(self, name: str) -> Plan:
        """Return the same plan under another run name; `name` may hold slashes.

        The folder and whatever carries its name change: the output flag, the tracker's run name and
        folder, the command and the recorded configuration. The identity stays, and nothing is
        planned or checked again.
        """
        texts_before = texts_with_name(self.runs, self.stage, self.name)
        texts_after = texts_with_name(self.runs, self.stage, name)
        texts = dict(zip(texts_before, texts_after, strict=True))
        flags = replace_computed_values(self.flags, texts)
        command = build_command(
            self.config,
            self.machine,
            self.parallel,
            self.batch,
            flags=flags,
            patches=self.patches,
            options=self.options,
            mixture=self.inputs.mixture,
        )
        return replace(
            self,
            name=name,
            config=replace(self.config, name=name),
            resolved={**self.resolved, "name": name},
            flags=flags,
            command=command,
            env={variable: texts.get(value, value) for variable, value in self.env.items()},
        )

    def json_fields(self) -> dict[str, Any]:
        """Return the content of plan.json."""
        flags = {}
        for name, flag in self.flags.items():
            flags[name] = {"value": flag.value, **vars(flag.provenance)}
        content: dict[str, Any] = {
            "stage": self.stage,
            "name": self.name,
            "identity": self.identity,
            "training_identity": self.training_identity,
            "trainer": self.trainer,
            "parallel": {
                "mode": self.parallel.mode,
                "zero_stage": self.parallel.zero_stage,
                "precision": self.parallel.precision,
                "device": self.parallel.width.device,
            },
            "batch": self.batch,
            "loss": self.loss_weighting.text,
            "replaced": self.replaced,
            "flags": flags,
            "command": self.command,
            "env": self.env,
            "unset": self.unset,
            "files": self.parallel.files,
            "files_checked": self.files_checked,
            "patches": self.patches,
            "options": self.options,
            "data": self.data,
            "inputs": self.input_digests,
            "started_from": self.started_from,
            "chat_template": self.trl_template,
            "lengths_file": self.lengths_file,
            "upstream": self.upstream,
            "folder": self.folder,
            "warnings": self.warnings,
        }
        for key in _OMITTED_IF_EMPTY:
            if not content[key]:
                del content[key]
        return content
