"""The plan: everything that is needed to run a stage, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch import resources
from launch.config.compose import Composed, compose_once
from launch.config.line import CommandLine
from launch.config.origins import Origins
from launch.config.schema import Family, Launcher, RootConfig
from launch.errors import Problem, UserError
from launch.planning.attention import (
    AttentionChoice,
    attention_flags,
    choose_attention,
    packing_warnings,
)
from launch.planning.chat_template import (
    STAGED,
    TEMPLATE_FLAG,
    ChatTemplate,
    check_template,
    find_earlier_texts,
    find_template,
    template_warnings,
)
from launch.planning.checks import (
    check_contradictions,
    check_model_preset,
    check_names,
    check_packing,
    checked_argv,
    contradiction_warnings,
    locate_in_overlay,
    shape_warnings,
    tuned_warnings,
    unverified_warnings,
)
from launch.planning.command import (
    ALLOCATOR_VARIABLES,
    build_command,
    build_environment,
    choose_options,
    choose_patches,
    is_decisive,
    variables_to_unset,
)
from launch.planning.data import (
    check_evaluation,
    check_validation,
    count_steps,
    few_steps_warnings,
    read_local_data,
    validation_warnings,
)
from launch.planning.estimate.shape import ModelShape
from launch.planning.flags import Flag, Flags, build_flags, sequence_limit, values_of
from launch.planning.identity import (
    IDENTITY_VERSIONS,
    NAME,
    InputContent,
    compute_identity,
    default_name,
    digest_flag_files,
    identify_by_run,
    read_content,
    run_folder,
    texts_with_name,
    tracked_name,
)
from launch.planning.inputs import Inputs, continues_adapter, model_shape, resolve_inputs
from launch.planning.lengths import lengths_file
from launch.planning.library_key_check import check_library_files
from launch.planning.lora import Adapter, Lora, resolve_lora
from launch.planning.loss import LossWeighting, weigh_loss, weighting_warnings
from launch.planning.machine import Machine, UpstreamState, this_machine
from launch.planning.model_folder import find_output_faults
from launch.planning.parallel import (
    Batch,
    Parallel,
    resolve_parallel,
    resolve_width,
    split_batch,
    width_warnings,
)
from launch.planning.recipe import use_nearest
from launch.planning.rlvr import check_continuous, check_ray, check_rlvr, check_vllm, uses_vllm
from launch.planning.saved_model import check_model_folder
from launch.planning.tracking import (
    TRACKING_VARIABLES,
    add_tracking_flags,
    tracking_environment,
    tracking_warnings,
)
from launch.resources import user_cache
from launch.upstream.schema import Schema
from launch.upstream.trl_templates import TemplateFinder, TrlTemplate
from launch.worker.json_codec import versioned

if TYPE_CHECKING:
    from launch.data.structure import DataStructure

# finetune.py:298, dpo_tune_cache.py:268, dpo.py:166, olmo_core_utils.py:202
TOKENIZE_ONLY_FLAG = "cache_dataset_only"


@dataclass(frozen=True)
class _Resolved:
    """What a stage's settings come to on a machine."""

    stage: str
    config: RootConfig
    # the configuration as plain data, which the run folder records as config.yaml
    resolved: Mapping[str, Any]
    origins: Origins  # where each value of the configuration is set
    machine: Machine = field(repr=False, compare=False)
    runs: Path
    cache: Path
    inputs: Inputs
    content: InputContent  # of the inputs that are local
    # of each entry of the mixture; None for one that is not local
    data: tuple[DataStructure | None, ...]
    parallel: Parallel
    batch: Batch
    shape: ModelShape | None  # of the model; None where it is unknown
    lora: Lora | None  # the adapter that is trained; None: all weights are
    template: ChatTemplate | None  # that the recipe sets
    finder: TemplateFinder = field(repr=False, compare=False)  # of TRL's templates
    # the stage's own values of the recipe in whose place the trainer's nearest are
    replaced: Mapping[str, Any]

    @property
    def upstream(self) -> UpstreamState:
        return self.machine.upstream

    @property
    def places(self) -> dict[Path, str]:
        """The folders that differ between machines, each with what stands for it in a digest."""
        return {self.runs: "{runs}", self.cache: "{cache}", resources.ROOT: "{project}"}


_ADAPTER_FLAGS = ("use_lora", "use_qlora", "use_peft")


@dataclass(frozen=True)
class _Rendered(_Resolved):
    """How the run is started, its name still open: NAME stands for it."""

    built: Flags  # without those of tracking and of an automatic choice
    flags: Mapping[str, Flag]
    command: tuple[str, ...]  # the whole argument list
    env: Mapping[str, str]
    patches: tuple[str, ...]
    options: tuple[str, ...]  # of launch's own entry
    attention: AttentionChoice | None  # of a TRL run on GPUs
    lengths_file: Path | None  # exists once the data is tokenised; see launch.planning.lengths
    files_checked: tuple[str, ...]
    warnings: tuple[Problem, ...]


@dataclass(frozen=True)
class Plan(_Rendered):
    """One training job, ready to run."""

    identity: str
    # of local inputs that the identity depends on, by path; of data, its first file's
    input_digests: Mapping[str, str]
    name: str  # of the run's folder
    named_flags: frozenset[str]  # those that carry the name
    is_pending: bool = False  # in a pipeline: the model that it starts from is still to be made

    @property
    def trainer(self) -> str:
        return self.config.trainer.name

    @property
    def identity_version(self) -> int:
        return IDENTITY_VERSIONS[self.config.trainer.family]

    @property
    def trains_adapter(self) -> bool:
        """Whether an adapter is trained, by recipe.lora or by flags of the trainer's own alone."""
        return any(self.flags[name].value for name in _ADAPTER_FLAGS if name in self.flags)

    @property
    def trl_template(self) -> TrlTemplate | None:
        """The template of TRL's that the trainer reads from its file; None where it reads none, or
        a flag's instead.
        """
        template = self.template
        is_read = template is not None and any(
            str(template.file) in argument for argument in self.command
        )
        return template.trl if template is not None and is_read else None

    @property
    def loss_weighting(self) -> LossWeighting:
        return weigh_loss(self.config, self.batch, values_of(self.flags))

    @property
    def unset(self) -> tuple[str, ...]:
        """Environment variables to remove."""
        return variables_to_unset(self.env)

    @property
    def folder(self) -> Path:
        return run_folder(self.runs, self.stage, self.name)

    @property
    def model_dir(self) -> Path:
        return self.folder / "model"

    @property
    def most_unlogged(self) -> int:
        """How many steps the run may have done since the last one that it logged."""
        interval = values_of(self.flags).get("logging_steps")
        return interval - 1 if isinstance(interval, int) else 0

    def next_checkpoint(self, step: int) -> int | None:
        """Return the step of the first checkpoint after a step; None if checkpoints are not written
        by steps.
        """
        interval = self.config.recipe.checkpoint_steps
        return (step // interval + 1) * interval if interval else None

    def find_output_faults(self) -> list[str]:
        """Return why what the trainer left is not a finished model, a sentence each."""
        return find_output_faults(self.model_dir, self.config.trainer.leaves)

    @property
    def started_from(self) -> str | None:
        """The digest of the model that another run made (model.trained_by); None where there is
        none yet.
        """
        local = self.inputs.model.local
        return self.content.digests.get(local) if local and self.config.model.trained_by else None

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
        return replace(
            self._placed(name),
            config=replace(self.config, name=name),
            resolved={**self.resolved, "name": name},
        )

    def _placed(self, name: str) -> Plan:
        """Return the plan with the folder of `name` in its flags, command and environment, in place
        of its own.
        """
        texts = dict(
            zip(
                *(texts_with_name(self.runs, self.stage, each) for each in (self.name, name)),
                strict=True,
            )
        )
        values = {flag: texts[self.flags[flag].value] for flag in self.named_flags}
        command = list(self.command)
        for flag, value in values.items():
            command[command.index(f"--{flag}", command.index("--")) + 1] = value
        return replace(
            self,
            name=name,
            flags={
                **self.flags,
                **{flag: replace(self.flags[flag], value=value) for flag, value in values.items()},
            },
            command=tuple(command),
            env={variable: texts.get(value, value) for variable, value in self.env.items()},
        )

    def as_json(self) -> dict[str, Any]:
        content = {
            "stage": self.stage,
            "name": self.name,
            "identity": self.identity,
            "identity_version": self.identity_version,
            "trainer": self.trainer,
            "parallel": {
                "mode": self.parallel.mode,
                "zero_stage": self.parallel.zero_stage,
                "precision": self.parallel.precision,
                "device": self.parallel.width.device,
            },
            "batch": self.batch,
            "loss": self.loss_weighting.text,
            **({"replaced": self.replaced} if self.replaced else {}),
            "flags": {
                name: {"value": flag.value, **vars(flag.provenance)}
                for name, flag in self.flags.items()
            },
            "command": self.command,
            "env": self.env,
            "unset": self.unset,
            "files": self.parallel.files,
            "files_checked": self.files_checked,
            "patches": self.patches,
            **({"options": self.options} if self.options else {}),
            "data": self.data,
            "inputs": self.input_digests,
            **({"started_from": self.started_from} if self.started_from else {}),
            **({"chat_template": self.trl_template.as_json()} if self.trl_template else {}),
            "lengths_file": self.lengths_file,
            "upstream": self.upstream,
            "folder": self.folder,
            "warnings": self.warnings,
        }
        return versioned(content)


@dataclass(frozen=True)
class PendingModel:
    """What is known of a model that another run is still to make."""

    shape: ModelShape | None = None
    adapter: Adapter | None = None  # None: that run trains all weights


_NOTHING_PENDING = PendingModel()


def build_plan(
    composed: Composed,
    machine: Machine,
    *,
    reads_rows: bool = True,
    pending: PendingModel = _NOTHING_PENDING,
) -> Plan:
    """Plan a composed stage: resolve its settings, render the command, identify the run by what was
    rendered.

    Pure: the same configuration, source and inputs give the same plan, byte for byte. Local data is
    not read without `reads_rows`. `pending`: a model that another run is still to make. Raises
    UserError for settings that cannot work.
    """

    def build(forms: Mapping[str, str]) -> Plan:
        resolved = _resolve(
            composed, machine, pending, replaced, reads_rows=reads_rows, forms=forms
        )
        rendered = _render(composed, resolved)
        identity, digests = _identify(rendered)
        texts = texts_with_name(rendered.runs, composed.stage, NAME)
        named = frozenset(name for name, flag in rendered.flags.items() if flag.value in texts)
        plan = Plan(
            **vars(rendered), identity=identity, input_digests=digests, name=NAME, named_flags=named
        )
        return plan._placed(composed.config.name or default_name(rendered.parallel.width, identity))

    try:
        composed, replaced = use_nearest(composed)
        plan = _take_earlier_text(build({}), build)
    except UserError as error:
        machine.digests.save(create_folder=False)  # a refused plan creates none
        raise UserError(
            [locate_in_overlay(problem, composed.origins) for problem in error.problems]
        ) from error
    machine.digests.save()
    if plan.trl_template is not None:
        plan.finder.keep(plan.trl_template)
    return plan


def _take_earlier_text(plan: Plan, build: Callable[[Mapping[str, str]], Plan]) -> Plan:
    """Return the plan of an unfinished run that began with another text of TRL's template, where
    only the text differs and is still here: an update of TRL changes no run that has begun. `build`
    plans with the digests of a text.
    """
    template = plan.trl_template
    if template is None or plan.config.restart:
        return plan
    runs = [plan.folder]
    if plan.config.name is None:
        is_begun = plan.folder.exists()
        runs = (
            []
            if is_begun
            else [run for run in plan.folder.parent.glob("*/") if not (run / "DONE").exists()]
        )
    for run, identity, forms in find_earlier_texts(plan.finder, template, runs):
        earlier = build(forms)
        if (earlier.folder, earlier.identity) == (run, identity):
            return earlier
    return plan


def plan_line(line: CommandLine) -> Plan:
    """Plan the one run of a line on this machine. Raises UserError."""
    composed = compose_once(line)
    return build_plan(composed, this_machine(composed))


def _resolve(
    composed: Composed,
    machine: Machine,
    pending: PendingModel,
    replaced: Mapping[str, Any],
    *,
    reads_rows: bool,
    forms: Mapping[str, str],
) -> _Resolved:
    """Resolve the inputs, and how the ranks share the model and the global batch. Raises UserError.

    `forms`: digests of TRL's template that an earlier run began with, by the names of its forms.
    """
    config, origins = composed.config, composed.origins
    runs = machine.cwd / Path(config.runs).expanduser()
    cache = machine.cwd / Path(config.cache).expanduser() if config.cache else runs / ".cache"
    check_validation(config, origins)
    packages = (*machine.packages, *machine.own_packages)
    finder = TemplateFinder(
        packages, user_cache(machine.environ) / "templates", cache / STAGED, forms
    )
    template = find_template(
        config, origins, machine.cwd, machine.registries.get(TEMPLATE_FLAG, ()), finder
    )
    if template is not None:
        config = replace(config, recipe=replace(config.recipe, chat_template=template.name))
    inputs = resolve_inputs(config, origins, cache, machine.cwd, machine.digests.of)
    check_model_folder(config, origins, inputs.model, machine.digests.of, machine.environ)
    width = resolve_width(config, origins)
    parallel = resolve_parallel(config, config.trainer, width)
    check_contradictions(config, parallel)
    check_rlvr(config, origins)
    shape = model_shape(config, inputs) or pending.shape
    adapter = inputs.model.adapter or pending.adapter
    lora = resolve_lora(
        config, origins, parallel, shape, adapter if continues_adapter(config) else None
    )
    per_device = config.recipe.per_device_batch_size
    # learners take packed rows of as many completions as fit
    if config.trainer.launcher == Launcher.ray:
        batch = Batch(config.recipe.global_batch_size, per_device, 1, 1)
    else:
        batch = split_batch(config.recipe.global_batch_size, per_device, width.world_size)
    data = read_local_data(config, inputs, batch) if reads_rows else (None,) * len(inputs.mixture)
    content = read_content(
        config, inputs, parallel, machine.cwd, machine.digests.of, template=template
    )
    return _Resolved(
        stage=composed.stage,
        config=config,
        resolved=composed.plain,
        origins=origins,
        machine=machine,
        runs=runs,
        cache=cache,
        inputs=inputs,
        content=content,
        data=data,
        parallel=parallel,
        batch=batch,
        shape=shape,
        lora=lora,
        template=template,
        finder=finder,
        replaced=replaced,
    )


def _render(composed: Composed, stage: _Resolved) -> _Rendered:
    """Render flags, command and environment, and check them. Raises UserError."""
    config, origins, machine, checkout = (
        stage.config,
        stage.origins,
        stage.machine,
        stage.upstream.checkout,
    )
    trainer, parallel, batch, inputs = config.trainer, stage.parallel, stage.batch, stage.inputs
    folder = run_folder(stage.runs, stage.stage, NAME)
    paths = {
        "output": str(folder / "model"),
        "tokenized_cache": str(stage.cache / stage.content.tokenized),
    }
    built = build_flags(
        composed, batch, parallel, inputs, paths, lora=stage.lora, template=stage.template
    )
    attention = choose_attention(config, parallel, built.flags, machine)
    check_packing(trainer.name, built.flags)
    check_model_preset(trainer, built.flags, checkout, machine.registries)
    check_evaluation(config, built.flags, inputs.mixture)
    patches = choose_patches(config, parallel, inputs, built)
    options = choose_options(config, parallel, inputs, built)
    check_template(
        config,
        origins,
        inputs.model,
        values_of(built.flags),
        (*options, *patches),
        environ=machine.environ,
        finder=stage.finder,
    )
    lengths = lengths_file(
        trainer,
        built.flags,
        subset=built.mixture or built.subset,
        commit=stage.upstream.commit,
        cache=stage.cache,
        places=stage.places,
        content=stage.content.digests,
    )
    measuring, is_trl = (f"lengths={lengths}",) if lengths else (), trainer.family == Family.trl
    options += measuring if is_trl else ()
    patches += () if is_trl else measuring
    flags = {**built.flags, **attention_flags(attention)}
    flags = add_tracking_flags(
        flags, config, origins, machine.environ, tracked_name(stage.stage, NAME)
    )
    env = build_environment(
        trainer,
        parallel,
        checkout,
        stage.cache / stage.content.reference,
        machine.environ,
        expandable_segments=config.expandable_segments and not uses_vllm(config),
    )
    schema = machine.schemas[trainer.name]
    trainer_argv = checked_argv(schema, trainer, origins, flags)
    known = dict(machine.registries)
    if stage.template is not None:
        known[TEMPLATE_FLAG] = (*known.get(TEMPLATE_FLAG, ()), stage.template.short_name)
    check_names(trainer, flags, known)
    command = build_command(
        config,
        parallel,
        batch,
        python=machine.python,
        checkout=checkout,
        patches=patches,
        options=options,
        trainer_argv=trainer_argv,
    )
    library_files = {"accelerate": parallel.accelerate_file, "deepspeed": parallel.deepspeed_file}
    return _Rendered(
        **vars(stage),
        built=built,
        flags=flags,
        command=command,
        env=env | tracking_environment(config, folder),
        patches=patches,
        options=options,
        attention=attention,
        lengths_file=lengths,
        files_checked=check_library_files(library_files, machine.packages),
        warnings=built.warnings + _find_warnings(stage, flags, schema),
    )


def _find_warnings(
    stage: _Resolved, flags: Mapping[str, Flag], schema: Schema
) -> tuple[Problem, ...]:
    config, machine, parallel, batch = stage.config, stage.machine, stage.parallel, stage.batch
    warnings = (
        contradiction_warnings(config) + tracking_warnings(config) + validation_warnings(config)
    )
    steps = count_steps(config, batch, stage.inputs.mixture, stage.data, None)
    warnings += few_steps_warnings(config, stage.origins, flags, steps)
    warnings += template_warnings(stage.template, stage.finder)
    warnings += weighting_warnings(weigh_loss(config, batch, values_of(flags)), stage.origins)
    warnings += shape_warnings(config.model, stage.origins) + unverified_warnings(schema, flags)
    warnings += width_warnings(parallel.width, stage.origins, machine.environ)
    values = values_of(flags)
    warnings += check_ray(config, parallel.width, values) + check_vllm(config, values)
    warnings += check_continuous(config, parallel, values)
    warnings += packing_warnings(config, parallel, batch, flags, machine=machine, shape=stage.shape)
    if not config.tuned:
        return warnings
    here: dict[str, object] = {
        "stage": stage.stage,
        "width": str(parallel.width),
        "trainer": config.trainer.name,
    }
    here |= {
        "model": stage.inputs.model.reference,
        "global batch": batch.global_,
        "card": machine.card,
    }
    here |= {"max_seq_length": sequence_limit(config, flags), **machine.versions}
    return warnings + tuned_warnings(config.tuned, here)


def _identify(stage: _Rendered) -> tuple[str, dict[str, str]]:
    """Return the identity, a digest of what was rendered, without the machine's paths and with its
    inputs by content; and the digests of those inputs, by path.

    The identity of a stage on a model that another run makes (model.trained_by) depends on that
    run; the caches, whose paths were rendered, depend on the model itself.
    """
    config, machine, own = stage.config, stage.machine, stage.content
    content, places = own, stage.places
    if config.model.trained_by:
        digest = identify_by_run(stage.inputs.model, config.model.trained_by, machine.digests.of)
        content = read_content(
            config, stage.inputs, stage.parallel, machine.cwd, digest, template=stage.template
        )
        places[stage.cache / own.tokenized] = f"{{cache}}/{content.tokenized}"
        places[stage.cache / own.reference] = f"{{cache}}/{content.reference}"
    made_later = stage.inputs.model.content if config.model.trained_by else None
    flag_files = digest_flag_files(config.flags, machine.digests.of, machine.cwd, made_later)
    files = {path: machine.digests.of(path) for path in stage.parallel.files}
    identity = compute_identity(
        _decisive_parts(stage, list(files.values()), flag_files), places, content.digests
    )
    staged = {
        entry.data.folder: entry.data.files.paths[0] for entry in stage.inputs.mixture if entry.data
    }
    digests = {
        str(staged.get(path, path)): key
        for path, key in (*content.digests.items(), *files.items())
        if key
    }
    return identity, digests | flag_files


def _decisive_parts(
    stage: _Rendered, files: Sequence[str | None], flag_files: Mapping[str, str]
) -> dict[str, Any]:
    """Return everything that decides what a run trains; whatever else was rendered is not part of
    its identity.

    Left out: an automatic choice of attention, as the same plan may be made where the packages are
    not; tracking and the measuring of lengths, which change nothing in the training; what a machine
    sets of paths and of the allocator.
    """
    config, parallel, trainer, batch = (
        stage.config,
        stage.parallel,
        stage.config.trainer,
        stage.batch,
    )
    not_decisive = ("PYTHONPATH", *ALLOCATOR_VARIABLES, *TRACKING_VARIABLES)
    return {
        "trainer": [trainer.name, trainer.entry],
        "upstream": stage.upstream.commit,
        "flags": values_of(stage.built.flags),
        "batch": {
            "global": batch.global_,
            "per_device": batch.per_device,
            "accumulation": batch.accumulation,
            "width": batch.width,
        },
        "parallel": [parallel.mode.value, parallel.precision.value, str(parallel.width)],
        "clip": config.recipe.max_grad_norm,
        "env": {name: value for name, value in stage.env.items() if name not in not_decisive},
        "patches": list(filter(is_decisive, stage.patches)),
        **(
            {"options": list(filter(is_decisive, stage.options))}
            if trainer.family == Family.trl
            else {}
        ),
        "files": list(files),
        **({"flag_files": flag_files} if flag_files else {}),
    }
