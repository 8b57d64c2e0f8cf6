"""The facts of a plan, which `launch plan` prints above the flags and a notebook shows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from launch.api.cost_facts import cache_command, describe_disk, describe_steps, describe_time
from launch.config.kinds import Kind
from launch.config.origins import Origin
from launch.config.recipe_keys import Packing, Quantization
from launch.config.schema import Device, Launcher
from launch.planning.batches import UNKNOWN_TRL, TokenForecast, describe_tokens
from launch.planning.data import describe_data
from launch.planning.estimate.forecast import MemoryForecast, describe_forecast
from launch.planning.flags import values_of
from launch.planning.lengths import load_lengths
from launch.planning.packing import describe_packing, forecast_packing
from launch.planning.plan import Plan
from launch.planning.rlvr import ray_needs, uses_vllm
from launch.planning.validation import describe_schedule
from launch.planning.vllm_server import planned_server
from launch.upstream.rules.contradictions import describe_unchecked
from launch.upstream.trainers import OLMO_CORE_DPO
from launch.worker.patches import PATCHES
from launch.worker.wording import count_of


def plan_facts(
    plan: Plan,
    memory: MemoryForecast | None,
    tokens: TokenForecast | None,
    continues: str | None = None,
) -> list[tuple[str, str]]:
    """Return a name and a text for each fact; an empty name continues the previous fact.

    `continues`: how the run in the plan's folder is resumed.
    """
    description = plan.config.stage.description
    is_ray = plan.config.trainer.launcher == Launcher.ray
    sharing = f", parallel={plan.parallel.mode}"
    if is_ray:
        sharing = f"; Ray reserves {ray_needs(values_of(plan.flags))}"
    checked = ""
    if plan.files_checked:
        checked = f"their keys are known to {', '.join(plan.files_checked)}"
    forecast = describe_forecast(memory) if memory else []
    token_facts: Iterable[tuple[str, str]] = ()
    if plan.lengths_file:
        token_facts = describe_tokens(tokens, plan.batch, _describe_counting(plan))
    facts = [
        ("stage", f"{plan.stage}: {description}" if description else plan.stage),
        ("trainer", f"{plan.trainer}, {plan.upstream.description}"),
        ("", describe_unchecked(plan.upstream.unchecked)),
        ("ranks", f"{_describe_ranks(plan)}{sharing}, {plan.parallel.precision}"),
        ("generation", _describe_generation(plan)),
        ("server", _describe_server(plan)),
        *_batch_facts(plan, is_ray),
        *_name_first("data", describe_data(plan.inputs, plan.data)),
        ("validation", describe_schedule(plan.config) or ""),
        ("loss", _describe_loss(plan)),
        ("schedule", describe_steps(plan, tokens.samples if tokens else None)),
        ("adapter", _describe_adapter(plan)),
        ("template", _describe_template(plan)),
        ("attention", str(plan.attention) if plan.attention else ""),
        ("files", "  ".join(_relative(path) for path in plan.parallel.files) or "none"),
        ("", checked),
        *_name_first("patches", _describe_patches(plan)),
        ("options", ", ".join(_format_patch(option) for option in plan.options)),
        ("run folder", _relative(plan.folder)),
        ("continues", continues or ""),
        ("python", _describe_python(plan)),
        ("afterwards", _describe_evaluation(plan)),
        *_name_first("memory", forecast),
        *_name_first("time", describe_time(plan, memory)),
        *_name_first("disk", describe_disk(plan)),
        *token_facts,
        ("packing", _describe_packing(plan)),
    ]
    return [(name, text) for name, text in facts if text]


def _name_first(name: str, texts: Iterable[str]) -> list[tuple[str, str]]:
    """Return the texts as one fact, which has its name only once."""
    return [("" if number else name, text) for number, text in enumerate(texts)]


def _describe_generation(plan: Plan) -> str:
    """Describe what vLLM would save in RLVR on GPUs that generates without it; empty otherwise."""
    is_on_gpu = plan.parallel.width.device == Device.cuda
    if plan.config.trainer.kind != Kind.rlvr or not is_on_gpu or uses_vllm(plan.config):
        return ""
    # The figures are those of benchmarks/h200_rlvr_vllm.json and h200_rlvr_1b.json, without the
    # first steps.
    return (
        "transformers'; steps of 64 x 256 tokens took 7.7 to 23.3 s with it on an H200 (1b), and 2.0 "
        "to 2.9 s with vLLM: recipe.generation=vllm_colocate"
    )


def _describe_server(plan: Plan) -> str:
    server = planned_server(plan)
    return server.describe(plan.parallel.width.local) if server is not None else ""


def _batch_facts(plan: Plan, is_ray: bool) -> list[tuple[str, str]]:
    texts = [] if is_ray else [f"global {plan.batch}"]
    recipe = plan.config.recipe
    if recipe.prompts_per_step:
        groups = f"{recipe.prompts_per_step} prompts x {recipe.samples_per_prompt} samples"
        texts.append(f"completions = {groups}")
    if recipe.global_batch_tokens is not None:
        rows = f"rows of {recipe.max_seq_length:,} tokens"
        texts.append(f"{rows}: {recipe.global_batch_tokens:,} tokens")
    return _name_first("batch", texts)


def _describe_evaluation(plan: Plan) -> str:
    """Describe the evaluation after the training; empty without one."""
    if not plan.config.evaluate:
        return ""
    tasks = ", ".join(plan.config.stage.tasks) or "tulu3"
    return f"evaluated on {tasks}, compared with the starting checkpoint"


def _describe_loss(plan: Plan) -> str:
    """Describe how the loss weights its tokens or pairs.

    It also reports if the trainer lacks the averaging that the stage sets.
    """
    requested = plan.replaced.get("loss_averaging")
    text = plan.loss_weighting.text
    if requested is None:
        return text
    where = plan.origins.of("recipe.loss_averaging").where
    missing = f"{plan.trainer} has no recipe.loss_averaging={requested}"
    return f"{text}; this is the nearest to what {where} sets, as {missing}"


def _describe_patches(plan: Plan) -> list[str]:
    """Describe in a line each what the patches change, which they do only in the running process."""
    if not plan.patches:
        return ["none"]
    lines = ["changes of the running process; the files of open-instruct stay as they are"]
    for patch in plan.patches:
        id, _, _ = patch.partition("=")
        lines.append(f"{id}: {_describe_patch(PATCHES[id].reason, plan)}")
    return lines


def _describe_patch(reason: str, plan: Plan) -> str:
    """Return the reason of a patch without the clauses about an adapter where none is trained."""
    if plan.trains_adapter:
        return reason
    first, *others = reason.split("; ")
    return "; ".join([first, *(text for text in others if not text.startswith("an adapter"))])


def _describe_counting(plan: Plan) -> str:
    """Describe how the lengths of the data become known; TRL's trainers have no separate pass."""
    if plan.config.cache_only:
        return "unknown until this run has counted them"
    command = cache_command(plan)
    return f"unknown: {command} counts them, on a CPU" if command else UNKNOWN_TRL


def _describe_packing(plan: Plan) -> str:
    """Describe how full dpo.py's packed rows will be.

    The text is empty for another plan, or without the data's lengths.
    """
    recipe = plan.config.recipe
    if plan.trainer != OLMO_CORE_DPO or recipe.packing != Packing.bins:
        return ""
    lengths = load_lengths(plan.lengths_file)
    if lengths is None or not lengths.pairs:
        return ""
    packing = forecast_packing(lengths, recipe.max_seq_length, plan.batch)
    return describe_packing(packing, plan.batch)


def _describe_python(plan: Plan) -> str:
    """Describe the trainer's interpreter if a file names it; the plan has not started it."""
    provenance = plan.origins.of("python")
    if plan.config.python is None or provenance.origin == Origin.override:
        return ""
    packages = "its packages are unknown here"
    if plan.machine.packages:
        packages = "its packages are read from their folders"
    where = provenance.where or "a file"
    started_by = "`check` and `run` start it"
    return f"{plan.command[0]}, set in {where}; not started, {packages}: {started_by}"


def _describe_adapter(plan: Plan) -> str:
    """Describe the adapter that is trained; empty if all weights are trained."""
    lora = plan.lora
    if lora is None:
        return ""
    targets = lora.targets if isinstance(lora.targets, str) else ", ".join(lora.targets)
    is_4_bit = lora.quantize == Quantization.nf4
    base = "4-bit (nf4)" if is_4_bit else plan.parallel.precision.value
    text = f"LoRA of rank {lora.rank}, alpha {lora.alpha}, on {targets}; frozen weights in {base}"
    adapter = plan.inputs.model.adapter
    if adapter is not None and plan.inputs.model.build is None:
        text += f"; resumes training {adapter.folder}"
    return text


def _describe_template(plan: Plan) -> str:
    """Describe the source of the text of one of TRL's templates; empty for another template."""
    template = plan.trl_template
    if template is None:
        return ""
    text = f"{template.name} {template.source}"
    if template.text is None:
        text += ", by its digest in the lock: `check` and `run` read the text"
    return text


def _describe_ranks(plan: Plan) -> str:
    width = plan.parallel.width
    noun = "GPU" if width.device == "cuda" else "CPU process"
    text = count_of(width.world_size, noun)
    if width.nodes > 1:
        text += f" on {width.nodes} nodes, which $LAUNCH_NODE_RANK numbers from 0"
    device = plan.origins.of("device").where
    if width.device == "cuda" and device and plan.resolved.get("device") == Device.cpu:
        text += f" (gpus={width.local} takes precedence over device=cpu of {device})"
    return text


def _relative(path: Path) -> str:
    """Return a path relative to the current folder, if it is below that."""
    folder = Path.cwd()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _format_patch(patch: str) -> str:
    """Return a patch with its value, a path relative to the current folder."""
    name, equals, value = patch.partition("=")
    return f"{name}={_relative(Path(value))}" if equals else name
