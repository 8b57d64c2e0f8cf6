"""The plan: everything that is needed to run a stage, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch import resources
from launch.config.compose import Composed, compose_once
from launch.config.line import CommandLine
from launch.config.origins import Origin, Origins
from launch.config.schema import Family, Launcher, RootConfig
from launch.errors import UserError
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
    check_flags,
    check_model_preset,
    check_names,
    check_packing,
    contradiction_warnings,
    locate_in_overlay,
    render_argv,
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
from launch.planning.flags import Flag, build_flags, sequence_limit, values_of
from launch.planning.identity import (
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
from launch.planning.recipe import find_unsupported_values, replace_recipe_values
from launch.planning.rlvr import check_generation, check_rlvr, generation_warnings, uses_vllm
from launch.planning.saved_model import check_model_folder
from launch.planning.tracking import (
    TRACKING_VARIABLES,
    add_tracking_flags,
    tracking_environment,
    tracking_warnings,
)
from launch.resources import user_cache
from launch.upstream.trl_templates import TemplateFinder, TrlTemplate
from launch.worker.finding import Finding
from launch.worker.json_codec import versioned

if TYPE_CHECKING:
    from launch.data.structure import DataStructure

_NOT_DECISIVE = ("PYTHONPATH", *ALLOCATOR_VARIABLES, *TRACKING_VARIABLES)
# finetune.py:298, dpo_tune_cache.py:268, dpo.py:166, olmo_core_utils.py:202
TOKENIZE_ONLY_FLAG = "cache_dataset_only"


_ADAPTER_FLAGS = ("use_lora", "use_qlora", "use_peft")


@dataclass(frozen=True)
class Plan:
    """One training job, ready to run."""

    stage: str
    name: str  # of the run's folder
    identity: str
    config: RootConfig
    # the configuration as plain data, which the run folder records as config.yaml
    resolved: Mapping[str, Any]
    origins: Origins  # where each value of the configuration is set
    # values of the stage's recipe that the trainer does not have, in whose place its nearest are
    replaced: Mapping[str, Any]
    machine: Machine = field(repr=False, compare=False)
    runs: Path
    cache: Path

    inputs: Inputs
    content: InputContent  # of the inputs that are local
    # by path, the digests of the local inputs that the identity covers; of a data set that is staged
    # the path is its first file's
    input_digests: Mapping[str, str]
    # of each entry of the mixture; None for one that is not local
    data: tuple[DataStructure | None, ...]
    shape: ModelShape | None  # of the model; None where it is unknown
    lora: Lora | None  # the adapter that is trained; None: all weights are
    template: ChatTemplate | None  # that the recipe sets
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
    is_pending: bool = False  # in a pipeline: the model that it starts from is still to be made

    @property
    def upstream(self) -> UpstreamState:
        return self.machine.upstream

    @property
    def places(self) -> dict[Path, str]:
        """The folders that differ between machines, each with what stands for it in a digest."""
        return _places(self.runs, self.cache)

    @property
    def trainer(self) -> str:
        return self.config.trainer.name

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
        before = texts_with_name(self.runs, self.stage, self.name)
        texts = dict(zip(before, texts_with_name(self.runs, self.stage, name), strict=True))
        flags = {
            flag: replace(given, value=texts[given.value]) if _is_named(given, texts) else given
            for flag, given in self.flags.items()
        }
        return replace(
            self,
            name=name,
            config=replace(self.config, name=name),
            resolved={**self.resolved, "name": name},
            flags=flags,
            command=_command(
                self.config,
                self.machine,
                self.parallel,
                self.batch,
                flags=flags,
                patches=self.patches,
                options=self.options,
            ),
            env={variable: texts.get(value, value) for variable, value in self.env.items()},
        )

    def as_json(self) -> dict[str, Any]:
        content = {
            "stage": self.stage,
            "name": self.name,
            "identity": self.identity,
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

    try:
        supported, replaced = _use_nearest_values(composed)
        build = partial(_build, supported, machine, pending, replaced, reads_rows=reads_rows)
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


def _use_nearest_values(composed: Composed) -> tuple[Composed, dict[str, Any]]:
    """Replace values of a shipped stage that the trainer lacks by the nearest that it has.

    Returns the configuration, and the replaced values by key.
    """
    config = composed.config
    recipe = composed.plain["recipe"]
    replaced = find_unsupported_values(config.trainer, recipe, composed.origins)
    if not replaced:
        return composed, {}
    nearest = {key: config.trainer.nearest[key] for key in replaced}
    config = replace(config, recipe=replace_recipe_values(config.recipe, nearest))
    plain = {**composed.plain, "recipe": {**recipe, **nearest}}
    return replace(composed, config=config, plain=plain), replaced


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


def _build(
    composed: Composed,
    machine: Machine,
    pending: PendingModel,
    replaced: Mapping[str, Any],
    forms: Mapping[str, str],
    *,
    reads_rows: bool,
) -> Plan:
    """Build a plan step by step, from the inputs to the command. Raises UserError.

    `forms`: digests of TRL's template that an earlier run began with, by the names of its forms.
    """
    stage, origins = composed.stage, composed.origins
    environ, digest = machine.environ, machine.digests.of
    trainer = composed.config.trainer
    schema = machine.schemas[trainer.name]
    upstream = machine.upstream
    runs, cache = _folders(composed.config, machine)

    # the inputs: chat template, model and data
    check_validation(composed.config, origins)
    packages = (*machine.packages, *machine.own_packages)
    finder = TemplateFinder(packages, user_cache(environ) / "templates", cache / STAGED, forms)
    templates = machine.registries.get(TEMPLATE_FLAG, ())
    template = find_template(composed.config, origins, machine.cwd, templates, finder)
    config = _with_template(composed.config, template)
    inputs = resolve_inputs(config, origins, cache, machine.cwd, digest)
    check_model_folder(config, origins, inputs.model, digest, environ)

    # how the ranks share the model and the global batch
    width = resolve_width(config, origins)
    parallel = resolve_parallel(config, trainer, width)
    check_contradictions(config, parallel)
    check_rlvr(config, origins)
    shape = model_shape(config, inputs) or pending.shape
    continued = (inputs.model.adapter or pending.adapter) if continues_adapter(config) else None
    lora = resolve_lora(config, origins, parallel, shape, continued)
    batch = _share_batch(config, parallel)
    data = read_local_data(config, inputs, batch) if reads_rows else (None,) * len(inputs.mixture)
    content = read_content(config, inputs, parallel, machine.cwd, digest, template=template)

    # flags, patches, options and environment; the run has no name yet, so NAME stands for it
    unnamed = str(run_folder(runs, stage, NAME) / "model")
    paths = {"output": unnamed, "tokenized_cache": str(cache / content.tokenized)}
    built = build_flags(
        config,
        composed.plain,
        origins,
        batch=batch,
        parallel=parallel,
        inputs=inputs,
        paths=paths,
        lora=lora,
        template=template,
    )
    attention = choose_attention(config, parallel, built.flags, machine)
    _check_choices(config, inputs, built.flags, machine)
    patches = choose_patches(config, parallel, inputs, built)
    options = choose_options(config, parallel, inputs, built)
    check_template(
        config,
        origins,
        inputs.model,
        values_of(built.flags),
        (*options, *patches),
        environ=environ,
        finder=finder,
    )
    lengths = lengths_file(
        trainer,
        built.flags,
        subset=built.mixture or built.subset,
        commit=upstream.commit,
        cache=cache,
        places=_places(runs, cache),
        content=content.digests,
    )
    measured = (f"lengths={lengths}",) if lengths else ()
    options += measured if trainer.family == Family.trl else ()
    patches += measured if trainer.family != Family.trl else ()
    env = build_environment(
        trainer,
        parallel,
        upstream.checkout,
        cache / content.reference,
        environ,
        expandable_segments=config.expandable_segments and not uses_vllm(config),
    )

    # the identity, a digest of all of that, and the name that follows from it
    identity, digests = _identify(
        config,
        machine,
        inputs=inputs,
        content=content,
        content_by_run=_content_by_run(config, inputs, parallel, machine, template),
        parallel=parallel,
        batch=batch,
        flags=built.flags,
        env=env,
        patches=patches,
        options=options,
    )
    name = composed.config.name or default_name(width, identity)
    folder = run_folder(runs, stage, name)

    # the flags that carry the name, and the command
    flags = {
        flag: replace(given, value=str(folder / "model")) if given.value == unnamed else given
        for flag, given in built.flags.items()
    }
    flags |= attention_flags(attention)
    flags = add_tracking_flags(flags, config, origins, environ, tracked_name(stage, name))
    check_flags(schema, trainer, origins, flags)
    check_names(trainer, flags, _known_names(machine, template))
    check_generation(config, parallel, values_of(flags))
    library_files = {"accelerate": parallel.accelerate_file, "deepspeed": parallel.deepspeed_file}
    plan = Plan(
        stage=stage,
        name=name,
        identity=identity,
        config=config,
        resolved=composed.plain,
        origins=origins,
        replaced=replaced,
        machine=machine,
        runs=runs,
        cache=cache,
        inputs=inputs,
        content=content,
        input_digests=digests,
        data=data,
        shape=shape,
        lora=lora,
        template=template,
        finder=finder,
        parallel=parallel,
        batch=batch,
        flags=flags,
        patches=patches,
        options=options,
        attention=attention,
        command=_command(
            config, machine, parallel, batch, flags=flags, patches=patches, options=options
        ),
        env=env | tracking_environment(config, folder),
        lengths_file=lengths,
        files_checked=check_library_files(library_files, machine.packages),
        warnings=built.warnings,
    )
    return replace(plan, warnings=plan.warnings + _find_warnings(plan))


def _folders(config: RootConfig, machine: Machine) -> tuple[Path, Path]:
    """Return the folder of the runs, and that of the caches."""
    runs = machine.cwd / Path(config.runs).expanduser()
    if config.cache:
        return runs, machine.cwd / Path(config.cache).expanduser()
    return runs, runs / ".cache"


def _places(runs: Path, cache: Path) -> dict[Path, str]:
    return {runs: "{runs}", cache: "{cache}", resources.ROOT: "{project}"}


def _with_template(config: RootConfig, template: ChatTemplate | None) -> RootConfig:
    if template is None:
        return config
    return replace(config, recipe=replace(config.recipe, chat_template=template.name))


def _share_batch(config: RootConfig, parallel: Parallel) -> Batch:
    recipe = config.recipe
    # Ray's learners take packed rows of as many completions as fit
    if config.trainer.launcher == Launcher.ray:
        return Batch(recipe.global_batch_size, recipe.per_device_batch_size, 1, 1)
    ranks = parallel.width.world_size
    return split_batch(recipe.global_batch_size, recipe.per_device_batch_size, ranks)


def _command(
    config: RootConfig,
    machine: Machine,
    parallel: Parallel,
    batch: Batch,
    *,
    flags: Mapping[str, Flag],
    patches: Sequence[str],
    options: Sequence[str],
) -> tuple[str, ...]:
    return build_command(
        config,
        parallel,
        batch,
        python=machine.python,
        checkout=machine.upstream.checkout,
        patches=patches,
        options=options,
        trainer_argv=render_argv(machine.schemas[config.trainer.name], flags),
    )


def _is_named(flag: Flag, texts: Mapping[str, str]) -> bool:
    """Return whether a flag that launch computes carries the run's name."""
    is_own = flag.provenance.origin == Origin.launcher
    return is_own and isinstance(flag.value, str) and flag.value in texts


def _find_warnings(plan: Plan) -> tuple[Finding, ...]:
    """Return what is worth a look before the plan is run, and stops nothing."""
    config, origins, machine = plan.config, plan.origins, plan.machine
    parallel, batch = plan.parallel, plan.batch
    values = values_of(plan.flags)
    steps = count_steps(config, batch, plan.inputs.mixture, plan.data, None)
    warnings = (
        *contradiction_warnings(config),
        *tracking_warnings(config),
        *validation_warnings(config),
        *few_steps_warnings(config, origins, plan.flags, steps),
        *template_warnings(plan.template, plan.finder),
        *weighting_warnings(plan.loss_weighting, origins),
        *shape_warnings(config.model, origins),
        *unverified_warnings(machine.schemas[config.trainer.name], plan.flags),
        *width_warnings(parallel.width, origins, machine.environ),
        *generation_warnings(config, parallel, values),
        *packing_warnings(config, parallel, batch, plan.flags, machine=machine, shape=plan.shape),
    )
    return warnings + tuned_warnings(config.tuned, _measured_on(plan)) if config.tuned else warnings


def _measured_on(plan: Plan) -> dict[str, object]:
    """Return what a tuned setting must have in common with the plan to be as fast."""
    return {
        "stage": plan.stage,
        "width": str(plan.parallel.width),
        "trainer": plan.trainer,
        "model": plan.inputs.model.reference,
        "global batch": plan.batch.global_,
        "card": plan.machine.card,
        "max_seq_length": sequence_limit(plan.config, plan.flags),
        **plan.machine.versions,
    }


def _content_by_run(
    config: RootConfig,
    inputs: Inputs,
    parallel: Parallel,
    machine: Machine,
    template: ChatTemplate | None,
) -> InputContent | None:
    """Return the content of the inputs, with the model identified by the run that makes it
    (model.trained_by), on which the identity depends; None where no other run makes it.

    The caches, whose paths are rendered, depend on the model itself.
    """
    if not config.model.trained_by:
        return None
    digest = identify_by_run(inputs.model, config.model.trained_by, machine.digests.of)
    return read_content(config, inputs, parallel, machine.cwd, digest, template=template)


def _check_choices(
    config: RootConfig, inputs: Inputs, flags: Mapping[str, Flag], machine: Machine
) -> None:
    """Raise UserError for flags that are well formed and do not go with each other, the model or
    the data.
    """
    trainer = config.trainer
    check_packing(trainer.name, flags)
    check_model_preset(trainer, flags, machine.upstream.checkout, machine.registries)
    check_evaluation(config, flags, inputs.mixture)


def _known_names(machine: Machine, template: ChatTemplate | None) -> dict[str, Sequence[str]]:
    """Return the names that flags may take, by flag: those of the checkout, and of this plan's own
    template.
    """
    known = dict(machine.registries)
    if template is not None:
        known[TEMPLATE_FLAG] = (*known.get(TEMPLATE_FLAG, ()), template.short_name)
    return known


def _identify(
    config: RootConfig,
    machine: Machine,
    *,
    inputs: Inputs,
    content: InputContent,
    content_by_run: InputContent | None,
    parallel: Parallel,
    batch: Batch,
    flags: Mapping[str, Flag],
    env: Mapping[str, str],
    patches: Sequence[str],
    options: Sequence[str],
) -> tuple[str, dict[str, str]]:
    """Return the identity, a digest of everything that decides what a run trains, without the
    machine's paths and with its inputs by content; and the digests of those inputs, by path.

    `content_by_run`: see `_content_by_run`.

    Left out: an automatic choice of attention, as the same plan may be made where the packages are
    not; tracking and the measuring of lengths, which change nothing in the training; what a machine
    sets of paths and of the allocator.
    """
    trainer = config.trainer
    made_later = inputs.model.content if config.model.trained_by else None
    flag_files = digest_flag_files(config.flags, machine.digests.of, machine.cwd, made_later)
    files = {path: machine.digests.of(path) for path in parallel.files}
    decisive = {
        "trainer": [trainer.name, trainer.entry],
        "upstream": machine.upstream.commit,
        "flags": values_of(flags),
        "batch": {
            "global": batch.global_,
            "per_device": batch.per_device,
            "accumulation": batch.accumulation,
            "width": batch.width,
        },
        "parallel": [parallel.mode.value, parallel.precision.value, str(parallel.width)],
        "clip": config.recipe.max_grad_norm,
        "env": {name: value for name, value in env.items() if name not in _NOT_DECISIVE},
        "patches": list(filter(is_decisive, patches)),
        "files": list(files.values()),
    }
    if trainer.family == Family.trl:
        decisive["options"] = list(filter(is_decisive, options))
    if flag_files:
        decisive["flag_files"] = flag_files
    runs, cache = _folders(config, machine)
    identified = content_by_run or content
    places = _places(runs, cache)
    places[cache / content.tokenized] = f"{{cache}}/{identified.tokenized}"
    places[cache / content.reference] = f"{{cache}}/{identified.reference}"
    identity = compute_identity(decisive, places, identified.digests)
    return identity, _digests_by_path(inputs, identified.digests, files) | flag_files


def _digests_by_path(
    inputs: Inputs, content: Mapping[Path, str], files: Mapping[Path, str | None]
) -> dict[str, str]:
    """Return the digests of local inputs by path: of staged data, by the path of its first file."""
    staged = {
        entry.data.folder: entry.data.files.paths[0] for entry in inputs.mixture if entry.data
    }
    digests: dict[str, str] = {}
    for path, digest in (*content.items(), *files.items()):
        if digest:
            digests[str(staged.get(path, path))] = digest
    return digests
