"""The plan: everything that is needed to run a stage, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launch import resources
from launch.config.compose import Composed
from launch.config.origins import Origins
from launch.config.schema import RootConfig
from launch.data.local import Digest
from launch.data.structure import DataStructure
from launch.errors import Problem, UserError
from launch.planning.attention import AttentionChoice, attention_flags, choose_attention, packing_warnings
from launch.planning.batch import Batch, split_batch
from launch.planning.chat_template import check_template
from launch.planning.command import build_command, with_flag_values
from launch.planning.contradictions import check_contradictions, contradiction_warnings
from launch.planning.environment import ALLOCATOR_VARIABLES, build_environment, variables_to_unset
from launch.planning.expectations import allowed_expectations, build_expectations
from launch.planning.flags import Flag, build_flags, sequence_limit, with_output
from launch.planning.identity import (
    InputContent,
    compute_identity,
    content_key,
    digest_flag_files,
    digest_inputs,
    digest_tokenized_inputs,
    identify_by_run,
)
from launch.planning.inputs import Inputs, check_model_folder, continues_adapter, model_shape, resolve_inputs
from launch.planning.lengths import lengths_file, lengths_patch
from launch.planning.local_data import ReadStructure, describe_data, read_local_data
from launch.planning.lora import Lora, resolve_lora
from launch.planning.names import Registries, check_model_preset, check_names, locked_registries
from launch.planning.packing import check_packing
from launch.planning.parallel import Parallel, resolve_parallel
from launch.planning.patches import choose_patches
from launch.planning.tracking import add_tracking_flags, tracking_environment, tracking_warnings, with_run_name
from launch.planning.tuned import MachineInfo, locate_in_overlay, tuned_warnings
from launch.planning.upstream import UpstreamState, trainer_entry
from launch.planning.validation import check_evaluation, check_validation, validation_warnings
from launch.planning.width import resolve_width

SCHEMA_VERSION = 1
# finetune.py:298, dpo_tune_cache.py:268, dpo.py:166, olmo_core_utils.py:202
TOKENIZE_ONLY_FLAG = "cache_dataset_only"


@dataclass(frozen=True)
class Machine:
    """What a plan takes from the machine."""

    cwd: Path
    environ: Mapping[str, str]
    python: str  # the trainer's interpreter
    upstream: UpstreamState
    digest: Digest
    render: Callable[[Mapping[str, Flag]], list[str]]  # flags as arguments, checked against the trainer's schema
    check_files: Callable[[Parallel], tuple[str, ...]]  # checks accelerate's and DeepSpeed's file; returns against what
    machine_info: Callable[[], MachineInfo] = MachineInfo  # called only where an overlay of `tune` is used
    read_structure: ReadStructure | None = None  # of local data; None: it is not read
    registries: Registries = locked_registries  # names that the trainer looks up while it runs
    model_faults: Callable[[Path], list[str]] = lambda folder: []  # what a model's folder lacks
    save_digests: Callable[[bool], None] = lambda is_planned: None  # a refused plan creates no folder for them


@dataclass(frozen=True)
class Plan:
    """One training job, ready to run."""

    stage: str
    name: str  # of the run's folder
    identity: str
    config: RootConfig
    resolved: Mapping[str, Any]  # the configuration as plain data, which the run folder records as config.yaml
    origins: Origins  # where each value of the configuration is set
    parallel: Parallel
    batch: Batch
    flags: Mapping[str, Flag]
    command: tuple[str, ...]  # the whole argument list
    env: Mapping[str, str]
    unset: tuple[str, ...]  # environment variables to remove
    patches: tuple[str, ...]
    upstream: UpstreamState
    inputs: Inputs
    runs: Path
    cache: Path
    files_checked: tuple[str, ...]
    data: tuple[DataStructure | None, ...] = ()  # of each entry of the mixture; None for one that is not local
    lora: Lora | None = None  # the adapter that is trained; None: all weights are
    attention: AttentionChoice | None = None  # of a TRL run on GPUs
    lengths_file: Path | None = None  # exists once the data is tokenised; see launch.planning.lengths
    warnings: tuple[Problem, ...] = field(default=())

    @property
    def trainer(self) -> str:
        return self.config.trainer.name

    @property
    def folder(self) -> Path:
        """Return the run's folder, `<runs>/<stage>/<name>`."""
        return self.runs / self.stage / self.name

    @property
    def model_dir(self) -> Path:
        return self.folder / "model"

    @property
    def data_facts(self) -> list[str]:
        """Describe each entry of the mixture in a line."""
        return describe_data(self.inputs, self.data)

    @property
    def only_tokenizes(self) -> bool:
        """Whether the plan only builds its tokenised data: it loads no model and writes none."""
        return f"--{TOKENIZE_ONLY_FLAG}" in self.command

    @property
    def files(self) -> tuple[Path, ...]:
        """The accelerate and DeepSpeed files that the command names; none for torchrun."""
        return tuple(path for path in (self.parallel.accelerate_file, self.parallel.deepspeed_file) if path)

    def renamed(self, name: str) -> Plan:
        """Return the same plan under another run name; `name` may hold slashes.

        The folder and whatever carries its name change: the output flag, the tracker's run name and folder, the
        command and the recorded configuration. The identity stays, and nothing is planned or checked again.
        """
        folder = self.runs / self.stage / name
        flags = with_output(self.flags, self.config.trainer, folder / "model")
        flags = with_run_name(flags, self.config, run_name(self.stage, name))
        changed = {flag: str(new.value) for flag, new in flags.items() if new.value != self.flags[flag].value}
        return replace(
            self,
            name=name,
            config=replace(self.config, name=name),
            resolved={**self.resolved, "name": name},
            flags=flags,
            command=with_flag_values(self.command, changed),
            env={**self.env, **tracking_environment(self.config, folder)},
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "stage": self.stage,
            "name": self.name,
            "identity": self.identity,
            "trainer": self.trainer,
            "parallel": {
                "mode": self.parallel.mode.value,
                "zero_stage": self.parallel.zero_stage,
                "precision": self.parallel.precision.value,
                "device": self.parallel.width.device.value,
            },
            "batch": self.batch.as_json(),
            "flags": {name: flag.as_json() for name, flag in self.flags.items()},
            "command": list(self.command),
            "env": dict(self.env),
            "unset": list(self.unset),
            "files": [str(path) for path in self.files],
            "files_checked": list(self.files_checked),
            "patches": list(self.patches),
            "data": [structure.as_json() if structure else None for structure in self.data],
            "lengths_file": str(self.lengths_file) if self.lengths_file else None,
            "upstream": self.upstream.as_json(),
            "folder": str(self.folder),
            "warnings": [warning.as_json() for warning in self.warnings],
        }


def build_plan(composed: Composed, machine: Machine) -> Plan:
    """Plan a composed stage.

    Pure: the same configuration, source and inputs give the same plan, byte for byte. Raises UserError for settings
    that cannot work.
    """
    try:
        plan = _build_plan(composed, machine)
    except UserError as error:
        machine.save_digests(False)
        raise UserError([locate_in_overlay(problem, composed.origins) for problem in error.problems]) from error
    machine.save_digests(True)
    return plan


def run_name(stage: str, name: str) -> str:
    """Return the name of a run in an experiment tracker."""
    return f"{stage}-{name}"


def _build_plan(composed: Composed, machine: Machine) -> Plan:
    config, origins = composed.config, composed.origins
    trainer, checkout = config.trainer, machine.upstream.checkout
    runs = machine.cwd / Path(config.runs).expanduser()
    cache = machine.cwd / Path(config.cache).expanduser() if config.cache else runs / ".cache"
    check_validation(config, origins)
    inputs = _complete_inputs(composed, cache, machine)
    width = resolve_width(config, origins)
    parallel = resolve_parallel(config, trainer, width)
    check_contradictions(config, parallel)
    shape = model_shape(config, inputs)
    lora = resolve_lora(config, origins, parallel, shape, inputs.model.adapter if continues_adapter(config) else None)
    batch = split_batch(config.recipe.global_batch_size, config.recipe.per_device_batch_size, width.world_size)
    data = read_local_data(config, inputs, batch, machine.read_structure)

    def read_content(digest: Digest) -> InputContent:
        content = digest_inputs(inputs, digest)
        tokenizer = config.flags.get("tokenizer_name_or_path")
        tokenized = content_key(digest_tokenized_inputs(inputs, tokenizer, content, digest, machine.cwd))
        reference = _reference_key(content, trainer.name, parallel)
        return InputContent(content, f"tokenized/{tokenized}", f"reference_logprobs/{reference}")

    content = read_content(machine.digest)
    env = build_environment(
        trainer,
        parallel,
        checkout,
        cache / content.reference,
        machine.environ,
        expandable_segments=config.expandable_segments,
    )
    # the default name holds the identity, which is a digest of the flags: the name is put into them afterwards
    output = runs / composed.stage / "{name}" / "model"
    paths = {"output": str(output), "tokenized_cache": str(cache / content.tokenized)}
    unnamed = build_flags(composed, batch, parallel, inputs, paths, lora=lora)
    attention = choose_attention(config, parallel, unnamed.flags, machine.machine_info)
    _check_flags(config, unnamed.flags, inputs, machine)
    patches = choose_patches(config, parallel, inputs, unnamed)
    check_template(config, origins, inputs.model, unnamed.flags, patches)
    own_files = digest_flag_files(
        config.flags, machine.digest, machine.cwd, inputs.model.content if config.model.trained_by else None
    )
    parts = {  # everything that decides what the run trains
        "trainer": [trainer.name, trainer.entry],
        "upstream": machine.upstream.commit,
        "flags": {name: flag.value for name, flag in unnamed.flags.items()},
        "batch": batch.as_json(),
        "parallel": [parallel.mode.value, parallel.precision.value, str(width)],
        "clip": config.recipe.max_grad_norm,
        "env": {name: value for name, value in env.items() if name not in ("PYTHONPATH", *ALLOCATOR_VARIABLES)},
        "patches": patches,
        "files": [machine.digest(path) for path in (parallel.accelerate_file, parallel.deepspeed_file) if path],
        **({"flag_files": own_files} if own_files else {}),
    }
    placeholders = {runs: "{runs}", cache: "{cache}", resources.ROOT: "{project}"}
    lengths = lengths_file(
        trainer,
        unnamed.flags,
        subset=unnamed.subset,
        commit=machine.upstream.commit,
        cache=cache,
        places=placeholders,
        content=content.digests,
    )
    if lengths is not None:  # not part of the identity, as it changes nothing in the training
        patches = (*patches, f"{lengths_patch(trainer)}={lengths}")
    if config.model.trained_by:  # the caches depend on the model itself, the identity on the run that makes it
        own, content = content, read_content(identify_by_run(inputs.model, config.model.trained_by, machine.digest))
        placeholders[cache / own.tokenized] = f"{{cache}}/{content.tokenized}"
        placeholders[cache / own.reference] = f"{{cache}}/{content.reference}"
    identity = compute_identity(parts, placeholders, content.digests)
    name = config.name or f"{width}-{identity}"
    folder = runs / composed.stage / name
    # an automatic choice is not part of the identity: the same plan may be made where the packages are not
    flags = with_output({**unnamed.flags, **attention_flags(attention)}, trainer, folder / "model")
    flags = add_tracking_flags(flags, config, origins, machine.environ, run_name(composed.stage, name))
    env |= tracking_environment(config, folder)
    warnings = (
        unnamed.warnings
        + contradiction_warnings(config)
        + tracking_warnings(config)
        + validation_warnings(config)
        + packing_warnings(config, parallel, batch, flags, machine_info=machine.machine_info, shape=shape)
    )
    if config.tuned:
        conditions = {
            "stage": composed.stage,
            "width": str(width),
            "trainer": trainer.name,
            "model": inputs.model.reference,
            "global batch": batch.global_,
            "max_seq_length": sequence_limit(config, flags),
        }
        warnings += tuned_warnings(config.tuned, conditions, machine.machine_info())
    trainer_argv = machine.render(flags)
    check_names(trainer, flags, machine.registries)
    command = build_command(
        python=machine.python,
        trainer=trainer,
        entry=trainer_entry(trainer, checkout),
        parallel=parallel,
        batch=batch,
        clip=config.recipe.max_grad_norm,
        patches=patches,
        expected=build_expectations(config, parallel),
        allowed=allowed_expectations(config),
        trainer_argv=trainer_argv,
    )
    return Plan(
        stage=composed.stage,
        name=name,
        identity=identity,
        config=config,
        resolved=composed.plain,
        origins=origins,
        parallel=parallel,
        batch=batch,
        flags=flags,
        command=command,
        env=env,
        unset=variables_to_unset(env),
        patches=patches,
        upstream=machine.upstream,
        inputs=inputs,
        runs=runs,
        cache=cache,
        files_checked=machine.check_files(parallel),
        data=data,
        lora=lora,
        attention=attention,
        lengths_file=lengths,
        warnings=warnings,
    )


def _complete_inputs(composed: Composed, cache: Path, machine: Machine) -> Inputs:
    """Resolve the inputs; those that are here are complete. Raises UserError."""
    inputs = resolve_inputs(composed.config, composed.origins, cache, machine.cwd, machine.digest)
    check_model_folder(composed.config, inputs.model, machine.model_faults)
    return inputs


def _check_flags(config: RootConfig, flags: Mapping[str, Flag], inputs: Inputs, machine: Machine) -> None:
    """Check what upstream would find out while it runs. Raises UserError."""
    check_packing(config.trainer.name, flags)
    check_model_preset(config.trainer.name, flags, machine.upstream.checkout)
    check_evaluation(config, flags, inputs.mixture)


def _reference_key(content: Mapping[Path, str], trainer: str, parallel: Parallel) -> str:
    """Return a folder name for reference log-probs, which upstream keys by names alone (dpo_utils.py:369-383).

    dpo.py's model is OLMo-core's and dpo_tune_cache.py's is transformers', and each reads the other's file. DeepSpeed's
    numerics differ, too: on two H200s the policy's first log-probs under ZeRO-3 were 0.4% off a reference that one GPU
    had computed without it, so that the first loss was not ln 2.
    """
    return f"{content_key(content)}-{trainer}-{'deepspeed' if parallel.zero_stage else 'plain'}"
