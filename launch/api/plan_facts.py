"""The facts of a plan: what `launch plan` prints above the flags, and what a notebook shows of a
planned run.
"""

from __future__ import annotations

from pathlib import Path

from launch.config.origins import Origin
from launch.config.schema import Launcher, Packing, Quantization
from launch.planning.batches import (
    TokenForecast,
    describe_packing,
    describe_tokens,
    forecast_packing,
)
from launch.planning.data import count_steps, describe_data, describe_schedule
from launch.planning.estimate.forecast import MemoryForecast, describe
from launch.planning.flags import values_of
from launch.planning.lengths import load_lengths
from launch.planning.plan import Plan
from launch.planning.rlvr import ray_needs
from launch.upstream.rules.contradictions import describe_unchecked
from launch.upstream.trainers import OLMO_CORE_DPO


def plan_facts(
    plan: Plan, memory: MemoryForecast | None, tokens: TokenForecast | None
) -> list[tuple[str, str]]:
    """Return a name and a text for each fact; a name is empty where the text continues the fact
    above.
    """
    description = plan.config.stage.description
    forecast = describe(memory) if memory else []
    tasks = ", ".join(plan.config.stage.tasks) or "tulu3"
    evaluation = f"evaluated on {tasks}, compared with the starting checkpoint"
    recipe, sharing = plan.config.recipe, f", parallel={plan.parallel.mode}"
    groups = (
        f"completions = {recipe.prompts_per_step} prompts x {recipe.samples_per_prompt} samples"
    )
    if is_ray := plan.config.trainer.launcher == Launcher.ray:
        sharing = f"; Ray reserves {ray_needs(values_of(plan.flags))}"
    facts = [
        ("stage", f"{plan.stage}: {description}" if description else plan.stage),
        ("trainer", f"{plan.trainer}, {plan.upstream.description}"),
        ("", describe_unchecked(plan.upstream.unchecked)),
        ("ranks", f"{_describe_ranks(plan)}{sharing}, {plan.parallel.precision}"),
        ("batch", "" if is_ray else f"global {plan.batch}"),
        ("batch" if is_ray else "", groups if recipe.prompts_per_step else ""),
        *(
            ("" if number else "data", text)
            for number, text in enumerate(describe_data(plan.inputs, plan.data))
        ),
        ("validation", describe_schedule(plan.config) or ""),
        ("loss", _describe_loss(plan)),
        ("schedule", _schedule(plan, tokens.samples if tokens else None)),
        ("adapter", _adapter(plan)),
        ("template", _describe_template(plan)),
        ("attention", str(plan.attention) if plan.attention else ""),
        ("files", "  ".join(_relative(path) for path in plan.parallel.files) or "none"),
        ("", f"keys checked against {', '.join(plan.files_checked)}" if plan.files_checked else ""),
        ("patches", ", ".join(_format_patch(patch) for patch in plan.patches) or "none"),
        ("options", ", ".join(_format_patch(option) for option in plan.options)),
        ("run folder", _relative(plan.folder)),
        ("python", _describe_python(plan)),
        ("afterwards", evaluation if plan.config.evaluate else ""),
        *(("" if number else "memory", text) for number, text in enumerate(forecast)),
        *(
            describe_tokens(tokens, plan.batch, plan.config.trainer.family)
            if plan.lengths_file
            else ()
        ),
        ("packing", _describe_packing(plan)),
    ]
    return [(name, text) for name, text in facts if text]


def _describe_loss(plan: Plan) -> str:
    """How the loss weights its tokens or pairs, and the stage's own value where the trainer lacks
    it.
    """
    text, own = plan.loss_weighting.text, plan.replaced.get("loss_averaging")
    if own is None:
        return text
    return (
        f"{text}; {plan.trainer} has no recipe.loss_averaging={own}, which {plan.stage} sets, "
        "and this is nearest"
    )


def _describe_packing(plan: Plan) -> str:
    """Describe how full dpo.py's packed rows will be; empty for another plan, or without the data's
    lengths.
    """
    recipe = plan.config.recipe
    lengths = load_lengths(plan.lengths_file)
    if (
        plan.trainer != OLMO_CORE_DPO
        or recipe.packing != Packing.bins
        or lengths is None
        or not lengths.pairs
    ):
        return ""
    return describe_packing(
        forecast_packing(lengths, recipe.max_seq_length, plan.batch), plan.batch
    )


def _describe_python(plan: Plan) -> str:
    """The trainer's interpreter if a file names it: nothing of it was executed."""
    provenance = plan.origins.of("python")
    if plan.config.python is None or provenance.origin == Origin.override:
        return ""
    packages = (
        "its packages are read from their folders"
        if plan.machine.packages
        else "its packages are unknown here"
    )
    return (
        f"{plan.command[0]}, set in {provenance.where or 'a file'}; not started, {packages}: "
        "`check` and `run` start it"
    )


def _schedule(plan: Plan, samples: int | None) -> str:
    """How long a run trains, and what DPO's strength is: settings that no key for speed may
    change.
    """
    recipe = plan.config.recipe
    beta = f", beta {recipe.beta:g}" if recipe.beta is not None else ""
    epochs = "1 epoch" if recipe.epochs == 1 else f"{recipe.epochs} epochs"
    steps = count_steps(plan.config, plan.batch, plan.inputs.mixture, plan.data, samples)
    end = epochs if steps is None else f"{epochs}, {steps:,} step{'s' if steps != 1 else ''}"
    end = f"at most {recipe.max_steps:,} steps" if recipe.max_steps else end
    packed = {
        Packing.none: "",
        Packing.flatten: "; packing leaves the number of steps as it is",
        Packing.bins: "; packing makes fewer, larger steps: a row counts as one sample",
    }
    return f"{end}{beta}{packed[recipe.packing] if plan.trainer != OLMO_CORE_DPO else ''}"


def _adapter(plan: Plan) -> str:
    """The adapter that is trained; nothing where all weights are."""
    if plan.lora is None:
        return ""
    targets = (
        plan.lora.targets if isinstance(plan.lora.targets, str) else ", ".join(plan.lora.targets)
    )
    base = (
        "4-bit (nf4)" if plan.lora.quantize == Quantization.nf4 else plan.parallel.precision.value
    )
    adapter = plan.inputs.model.adapter
    start = (
        f"; resumes training {adapter.folder}"
        if adapter is not None and plan.inputs.model.build is None
        else ""
    )
    return (
        f"LoRA of rank {plan.lora.rank}, alpha {plan.lora.alpha}, on {targets}; frozen weights "
        f"in {base}{start}"
    )


def _describe_template(plan: Plan) -> str:
    """Where the text of a template of TRL's is from; empty for another one."""
    template = plan.trl_template
    if template is None:
        return ""
    later = (
        ""
        if template.text is not None
        else ", by its digest in the lock: `check` and `run` read the text"
    )
    return f"{template.name} {template.source}{later}"


def _describe_ranks(plan: Plan) -> str:
    size = plan.parallel.width.world_size
    kind = "GPU" if plan.parallel.width.device == "cuda" else "CPU process"
    nodes = plan.parallel.width.nodes
    over = f" on {nodes} nodes, the place of each in $LAUNCH_NODE_RANK" if nodes > 1 else ""
    return f"{size} {kind}" + ("" if size == 1 else "es" if kind.endswith("s") else "s") + over


def _relative(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _format_patch(patch: str) -> str:
    """Return a patch with its value, a path relative to the current folder."""
    name, equals, value = patch.partition("=")
    return f"{name}={_relative(Path(value))}" if equals else name
