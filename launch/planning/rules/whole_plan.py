"""The rules of a finished plan: they warn before it is run, and stop nothing."""

from __future__ import annotations

from collections.abc import Iterator

from launch.config.kinds import Kind
from launch.config.origins import Origin
from launch.config.recipe_keys import Packing
from launch.config.schema import Device, Launcher
from launch.planning.attention import choose_attention, is_flash_or_unknown, packed_cost
from launch.planning.attention import upstream_choice as choose_as_upstream
from launch.planning.estimate.shape import shape_from_yaml, with_parameters
from launch.planning.flags import sequence_limit
from launch.planning.plan import Plan
from launch.planning.rules.plan_rule import plan_rule
from launch.planning.tuned_overlay import find_differences
from launch.rules.code import warned
from launch.upstream.rules.values import unverified_message
from launch.worker.finding import Finding, Fix
from launch.worker.wording import count_of

_GIB = 1 << 30
# Relative difference of two numbers of parameters that is tolerated. Biases and further norms, which
# are not counted, are far less.
_SHAPE_TOLERANCE = 0.05


@plan_rule("micro_batch_means", severity="warning")
def loss_is_independent_of_the_split(plan: Plan) -> Iterator[Finding]:
    """Some losses depend on how a global batch is split into micro batches and ranks."""
    weighting = plan.loss_weighting
    if weighting.reason:
        message = (
            f"{weighting.reason}, so the same global batch has another loss when it is split "
            "otherwise"
        )
        yield warned(message, weighting.cure, plan.origins.of("recipe.loss_averaging").where)


@plan_rule("shape_mismatch", severity="warning")
def shape_has_its_parameters(plan: Plan) -> Iterator[Finding]:
    """Memory and time are predicted from the sizes in a model's YAML and from its number of
    parameters, which may contradict each other.
    """
    model = plan.config.model
    shape = None if model.path else shape_from_yaml(model.shape)
    if shape is None:
        return
    given = shape.parameters
    counted = with_parameters(shape).parameters
    if abs(counted / given - 1) <= _SHAPE_TOLERANCE:
        return
    message = (
        f"the sizes in model.shape make {counted / 1e9:.3g}e9 parameters, but its parameters are "
        f"{given / 1e9:.3g}e9"
    )
    where = plan.origins.of("model.shape.parameters").where
    cure = "compare head_dim, intermediate and tied_embeddings with the model's config.json"
    yield warned(message, cure, where)


@plan_rule("unverified", severity="warning")
def flags_are_verified(plan: Plan) -> Iterator[Finding]:
    """Some flags belong to packages that are not here, so only the trainer's own parser can verify
    them.
    """
    schema = plan.machine.schemas[plan.trainer]
    cure = Fix.of(
        "{0} where its packages are asks its parser, as the job does first", "$ launch check"
    )
    for name, flag in plan.flags.items():
        if flag.value is not None and schema.is_unverified(name):
            yield warned(unverified_message(schema, name), cure, flag.provenance.where)


@plan_rule("visible_gpus", severity="warning")
def visible_gpus_are_used(plan: Plan) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES sets a width for other launchers, and none here."""
    width = plan.parallel.width
    devices = plan.machine.environ.get("CUDA_VISIBLE_DEVICES", "")
    visible = [name for name in devices.split(",") if name.strip()]
    # who sets `gpus` may leave some of the visible GPUs idle
    leaves_idle = plan.origins.of("gpus").where is not None and len(visible) > width.local
    is_other_width = bool(visible) and len(visible) != width.local and not leaves_idle
    if is_other_width and width.device == Device.cuda:
        count = count_of(len(visible), "GPU")
        message = f"it lists {count}, and the plan has {width.local} on each machine"
        yield warned(message, Fix.of("set {0}", f"gpus={len(visible)}"), "CUDA_VISIBLE_DEVICES")


@plan_rule("foreign_world_size", severity="warning")
def world_size_is_not_set(plan: Plan) -> Iterator[Finding]:
    """WORLD_SIZE sets a width for other launchers, and none here."""
    size = plan.parallel.width.world_size
    world = plan.machine.environ.get("WORLD_SIZE", "")
    if world.isdecimal() and int(world) not in (0, 1, size):
        message = f"{world} has no effect: gpus and nodes set the width, which is {size}"
        cure = Fix.of("unset it, or set {0}", f"gpus={world}")
        yield warned(message, cure, "WORLD_SIZE")


@plan_rule("packing_without_flash", severity="warning")
def packed_rows_have_flash_attention(plan: Plan) -> Iterator[Finding]:
    """Without flash attention a packed row of T tokens is computed as T x T.

    open-instruct's DPO passes no mask for it (dpo_utils.py:863), so that only half of the square is
    computed.
    """
    config = plan.config
    parallel = plan.parallel
    if config.recipe.packing == Packing.none or parallel.width.device != Device.cuda:
        return
    if config.trainer.launcher != Launcher.accelerate:  # OLMo-core has attention of its own
        return
    choice = choose_attention(config, parallel, plan.flags, plan.machine)
    if choice is None:
        choice = choose_as_upstream(parallel, plan.flags, plan.machine)
    if is_flash_or_unknown(choice):
        return
    is_dpo = config.stage.kind == Kind.dpo
    limit = sequence_limit(config, plan.flags)
    row = limit  # of a bin
    if config.recipe.packing == Packing.flatten:
        sequences = 2 if is_dpo else 1  # of a sample
        row = plan.batch.per_device * sequences * limit
    cost = ""
    if plan.shape is not None:
        factor = packed_cost(plan.shape, row, limit, masked=not is_dpo)
        cost = f": up to {factor:.1f} x the computation of a step"
        if not is_dpo:
            mask_bytes = 2 * row**2
            cost += f", and a mask of {mask_bytes / _GIB:.1f} GiB"
    message = (
        f"{choice.implementation} computes a packed row of up to {row:,} tokens as one square{cost}"
    )
    sentence = "install flash-attn (the extra `flash`), or set {0} or a smaller per-device batch"
    yield warned(message, Fix.of(sentence, "recipe.packing=none"), "recipe.packing")


@plan_rule("tuned_elsewhere", severity="warning")
def tuned_settings_were_measured_here(plan: Plan) -> Iterator[Finding]:
    """An overlay of `tune` is fast for the stage, the width, the GPU and the versions that it was
    measured with.
    """
    tuned = plan.config.tuned
    differences = find_differences(tuned, _measured_on(plan)) if tuned else []
    if tuned and differences:
        message = (
            f"tuned={tuned.name} was measured with {'; '.join(differences)}: it may be slower "
            "here, or not fit"
        )
        cure = Fix.of("{0} with the same overrides measures again", "$ launch tune")
        yield warned(message, cure, "tuned")


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


@plan_rule("no_effect", severity="warning")
def epochs_decide_the_end(plan: Plan) -> Iterator[Finding]:
    """recipe.max_steps ends a run, however many passes recipe.epochs sets."""
    recipe = plan.config.recipe
    epochs = plan.origins.of("recipe.epochs")
    if recipe.max_steps is None or epochs.origin != Origin.override:
        return
    message = (
        f"recipe.epochs={recipe.epochs} has no effect: recipe.max_steps={recipe.max_steps} ends "
        "the run"
    )
    cure = Fix.of("set {0} to train whole passes", "recipe.max_steps=null")
    yield warned(message, cure, epochs.where)


@plan_rule("repeated_rows", severity="warning")
def fraction_is_a_share(plan: Plan) -> Iterator[Finding]:
    """data.fraction is a share of the rows: above 1 each of them is trained on several times."""
    fraction = plan.config.data.fraction
    if fraction <= 1:
        return
    message = (
        f"data.fraction={fraction:g} is a share of the rows, not a number: an epoch has each row "
        f"{fraction:g} times"
    )
    cure = "set a share of at most 1; recipe.epochs repeats the data"
    yield warned(message, cure, plan.origins.of("data.fraction").where)
