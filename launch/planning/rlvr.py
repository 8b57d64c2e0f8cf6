"""What a stage of RLVR adds to a plan: groups of completions, the window of prompt and response,
verifiers.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch import resources
from launch.config.guards import VerifierLimits
from launch.config.kinds import Kind
from launch.config.origins import Origins
from launch.config.ranges import VERIFIER_WEIGHT
from launch.config.schema import Launcher, RootConfig
from launch.errors import UserError, did_you_mean, path_problem, refusal, set_any
from launch.planning.parallel import Width
from launch.worker.finding import Fix
from launch.worker.json_codec import to_json, without_none
from launch.worker.trl_options import BY_ROW, VerifierOption, is_own


def resolve_verifiers(config: RootConfig, origins: Origins, cwd: Path) -> dict[str, float]:
    """Return the verifiers of a stage and their weights; a user's function as
    ABSOLUTE_PATH.py:FUNCTION.

    Raises UserError: unknown_verifier, no_verifier_file.
    """
    given = config.recipe.verifier
    if config.stage.kind != Kind.rlvr or given is None:
        return {}
    where = origins.of("recipe.verifier").where
    entries = given if isinstance(given, list) else [given]
    return dict(_resolve_verifier(entry, where, cwd) for entry in entries)


def needs_ground_truth(config: RootConfig) -> bool:
    """Return whether the answers to a row can't be judged without its ground truth.

    Functions of the user's own may judge the answer alone; no built-in verifier does.
    """
    given = config.recipe.verifier
    entries = given if isinstance(given, list) else [given]
    for entry in entries:
        name = entry.get("name") if isinstance(entry, Mapping) else entry
        if not is_own(str(name)):
            return True
    return False


def calls_open_instruct(config: RootConfig) -> bool:
    """Return whether rows may name functions of open-instruct, as those of the Tulu 3 mixture
    do.
    """
    given = str(config.recipe.verifier)
    names_functions = BY_ROW in given or "ifeval" in given
    return config.stage.kind == Kind.rlvr and names_functions


def verifier_option(config: RootConfig, verifiers: Mapping[str, float]) -> str | None:
    """Return the value of the entry's option `verifier`, a VerifierOption in JSON."""
    if not verifiers:
        return None
    recipe = config.recipe
    guard = config.guards.verifier if config.guards else None
    seconds = (guard or VerifierLimits()).seconds
    option = VerifierOption(verifiers, seconds, recipe.max_seq_length, recipe.truncated_reward)
    return json.dumps(without_none(to_json(option)), separators=(",", ":"))


def ray_flags(config: RootConfig, width: Width) -> dict[str, Any]:
    """Return what the recipe and the GPUs imply for open-instruct's GRPO, by flag; the user's own
    flags win.

    Three GPUs of eight train, and vLLM samples on the others, as on upstream's 6 and 10 GPUs
    (scripts/train/tulu3/grpo_fast_8b.sh:37-39).
    """
    if config.trainer.launcher != Launcher.ray:
        return {}
    recipe = config.recipe
    assert recipe.response_length
    learners = max(1, width.world_size * 3 // 8)
    first_ranks = range(0, learners, width.local)  # of each node
    learners_by_node = [min(width.local, learners - first) for first in first_ranks]
    needs = ray_needs({"num_learners_per_node": learners_by_node, **config.flags})
    sampling_gpus = width.world_size - needs.learners
    gpus_per_engine = needs.engines or 1  # of one engine, as the number of engines is not set yet
    implied = {
        "num_learners_per_node": learners_by_node,
        "vllm_num_engines": max(1, sampling_gpus // gpus_per_engine),
        "single_gpu_mode": width.world_size == 1,
        "max_prompt_token_length": recipe.max_seq_length - recipe.response_length,
    }
    if recipe.max_steps:
        implied["total_episodes"] = recipe.max_steps * recipe.global_batch_size
    return implied


@dataclass(frozen=True)
class RayNeeds:
    """What open-instruct's GRPO waits 1,200 s for (grpo_fast.py:161, its issue 1431), by
    grpo_fast_resource_plan.py.
    """

    learners: int  # GPUs that train
    engines: int  # GPUs on which vLLM alone samples

    @property
    def cpus(self) -> int:
        return 10 * self.learners + self.engines + 3

    def __str__(self) -> str:
        return (
            f"{self.cpus} CPUs: 10 for each of {self.learners} learners, {self.engines} for "
            "vLLM's GPUs, 3 more"
        )


def ray_needs(flags: Mapping[str, Any]) -> RayNeeds:
    """Return the needs of a run with these flags. A value that is not an integer counts as the
    default: the check of types refuses it.
    """
    given = flags["num_learners_per_node"]
    learners_by_node = given if isinstance(given, list) else [given]
    learners = sum(count for count in learners_by_node if isinstance(count, int))
    if flags.get("single_gpu_mode") is True:  # vLLM shares the learner's GPU
        return RayNeeds(learners, engines=0)
    engine_gpus = 1
    for name in ("vllm_num_engines", "vllm_tensor_parallel_size"):
        count = flags.get(name, 1)
        if isinstance(count, int):
            engine_gpus *= count
    return RayNeeds(learners, engine_gpus)


def refuse_untested_trainer(config: RootConfig) -> None:
    """Refuse to start what is only planned and checked. Raises UserError: untested_trainer."""
    trainer = config.trainer
    if not trainer.untested or config.cache_only:
        return
    message = f"launch plans and checks {trainer.name} but does not start it: {trainer.untested}"
    sentence = "{0} prints its command; {1} trains with TRL"
    cure = Fix.of(sentence, "$ launch plan", "trainer=trl_grpo")
    raise refusal("untested_trainer", message, "trainer", cure)


def uses_vllm(config: RootConfig) -> bool:
    """Return whether vLLM samples, in the trainer's process or on GPUs of its own."""
    generation = config.recipe.generation or ""
    return config.trainer.launcher == Launcher.ray or generation.startswith("vllm_")


def _resolve_verifier(entry: Any, where: str | None, cwd: Path) -> tuple[str, float]:
    """Return name and weight of a verifier, which is given as a name or as
    `{name: ..., weight: ...}`.

    Raises UserError: unknown_verifier, no_verifier_file.
    """
    # imported with what calls the verifiers, which other stages do not need
    from launch.worker.verifiers import BUILT_IN

    content = entry if isinstance(entry, Mapping) else {"name": entry}
    name = content.get("name")
    weight = content.get("weight", 1.0)
    has_other_keys = bool(set(content) - {"name", "weight"})
    if not isinstance(name, str) or has_other_keys or not VERIFIER_WEIGHT.contains(weight):
        message = f"recipe.verifier: {entry!r} is not a verifier"
        cure = (
            "write NAME, or a list such as '[exact, {name: rules.py:short, weight: 0.5}]' with "
            "weights above 0"
        )
        raise refusal("unknown_verifier", message, where, cure)
    if is_own(name):
        return _resolve_function(name, cwd, where), float(weight)
    names = (BY_ROW, *BUILT_IN)
    if name not in names:
        message = f"recipe.verifier: there is no '{name}'"
        others = f"choose from {', '.join(names)}, or name your own as PATH.py:FUNCTION"
        raise refusal("unknown_verifier", message, where, did_you_mean(name, names) or others)
    return name, float(weight)


def _resolve_function(name: str, cwd: Path, where: str | None) -> str:
    """Return a user's verifier, PATH.py:FUNCTION, with its absolute path. Raises UserError:
    no_verifier_file.
    """
    path, _, function = name.rpartition(":")
    try:
        file = cwd / Path(path.replace("{project}", str(resources.ROOT))).expanduser()
        exists = file.is_file()
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(path_problem(error, path)) from error
    reason = f"{file} does not exist"
    cure = Fix("write PATH.py:FUNCTION")
    if exists:
        names = names_in_module(file)
        if function.isidentifier() and (names is None or function in names):
            return f"{file}:{function}"
        reason = f"the file has no function {function}"
        public = public_functions(file)
        if public:
            cure = set_any(*(f"recipe.verifier={path}:{each}" for each in public))
    message = f"recipe.verifier={name}: {reason}"
    raise refusal("no_verifier_file", message, where, cure)


def public_functions(path: Path) -> list[str]:
    """Return the names of the functions of a Python file that do not begin with `_`; none if it cannot
    be read.
    """
    return [
        item.name
        for item in _parse_module(path)
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name[0] != "_"
    ]


def names_in_module(path: Path) -> set[str] | None:
    """Return every name that a Python file defines or imports at its top; None if these cannot be known
    without running it.
    """
    names: set[str] = set()
    for item in _parse_module(path):
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(item.name)
        elif isinstance(item, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in item.names)
        elif isinstance(item, ast.Assign | ast.AnnAssign):
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            names.update(ast.unparse(target) for target in targets)
        elif not isinstance(item, ast.Expr):
            return None  # `if`, `try`, a loop
    return None if "*" in names or not names else names


def _parse_module(path: Path) -> list[ast.stmt]:
    """Return the statements of a Python file; none if it cannot be parsed."""
    try:
        return ast.parse(path.read_text("utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return []
