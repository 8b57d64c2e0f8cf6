"""What a drafted stage of RLVR has of its own: its verifier, and the numbers of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.config.yaml_nodes import write_scalar
from launch.data.truths import final_answer, find_truth, has_instructions, is_object
from launch.errors import refusal
from launch.worker.trl_options import BY_ROW, is_own, verifier_of
from launch.worker.verifiers import BUILT_IN

# A function that is still to be written, in the folder where the stage is drafted.
UNWRITTEN = "rewards.py:reward"
EXAMPLE = """\
def reward(completions, **columns):
    texts = [completion[0]["content"] for completion in completions]
    return [float(len(text.split()) <= 20) for text in texts]  # a higher number is better
"""
_CONTEXT_SHARE = 2  # an answer takes at most one part in so many of a short context
_STEPS = 200  # of a first run on a model that is not the demo's


def resolve_verifier(given: str, cwd: Path) -> str:
    """Return the verifier that `--verifier` names; a function with the absolute path of its file.

    Raises UserError: unknown_verifier, no_verifier_file.
    """
    if is_own(given):
        path, _, function = given.rpartition(":")
        file = cwd / Path(path).expanduser()
        if not file.is_file() or not function.isidentifier():
            message = f"--verifier {given}: {file} does not exist"
            if file.is_file():
                message = f"--verifier {given}: '{function}' is not the name of a function"
            raise refusal("no_verifier_file", message, "--verifier", "write PATH.py:FUNCTION")
        return f"{file}:{function}"
    names = (BY_ROW, *BUILT_IN)
    if given not in names:
        message = f"--verifier {given}: there is no such verifier"
        cure = f"choose from {', '.join(names)}, or name your own as PATH.py:FUNCTION"
        raise refusal("unknown_verifier", message, "--verifier", cure)
    return given


def choose_verifier(row: Mapping[str, object], cwd: Path) -> str:
    """Return the verifier that fits the first row, with the names of columns that launch knows.

    A row without a ground truth, or with one that no answer equals, needs a function of the user's,
    which is still to be written.
    """
    truth = find_truth(row)
    if isinstance(truth, list) and len(truth) == 1 and not has_instructions(truth):
        [truth] = truth
    if truth is not None and verifier_of(row.get("dataset")) in BUILT_IN:
        return BY_ROW
    if has_instructions(truth):
        return "ifeval"
    if not isinstance(truth, str | int | float) or is_object(truth):
        return str(cwd / UNWRITTEN)
    text = final_answer(str(truth)).strip()
    try:
        float(text.replace(",", ""))
    except ValueError:
        if "\\boxed" in text:
            return "math"
        return str(cwd / UNWRITTEN) if "\n" in text else "exact"
    return "math"


def is_unwritten(verifier: str) -> bool:
    """Return whether a verifier is a function whose file is not there yet."""
    return is_own(verifier) and not Path(verifier.rpartition(":")[0]).is_file()


def draft_verifier(verifier: str) -> str:
    """Return the line of the verifier below `recipe:`."""
    comment = "its own are exact, math, ifeval, rows; yours: PATH.py:FUNCTION"
    if is_own(verifier):
        comment = "your function: a higher number for a better answer"
    return f"  verifier: {write_scalar(verifier)} # {comment}"


def draft_steps(
    shipped: Mapping[str, Any], prompts: int, *, is_demo: bool, context: int | None
) -> list[str]:
    """Return the lines of the batch, the steps and the lengths below `recipe:`.

    Args:
        shipped: the recipe of the stage that the draft builds on.
        prompts: prompts of an optimizer step.
        is_demo: whether the stage builds on that of the demo's model.
        context: the number of positions of the model; None if it is unknown.
    """
    samples = shipped["samples_per_prompt"]
    completions = prompts * samples
    lines = [
        f"  prompts_per_step: {prompts} # each is answered {samples} times: {completions} a step",
        f"  # samples_per_prompt: {samples} # its answers are compared with each other",
    ]
    if completions < shipped["per_device_batch_size"]:
        lines.append(f"  per_device_batch_size: {completions}")
    steps = shipped["max_steps"] if is_demo else _STEPS
    lines.append(f"  max_steps: {steps} # go on as long as the reward rises")
    if is_demo:
        lines.append("  learning_rate: 1.0e-3 # the demo's model is tiny")
    else:
        rate = f"{shipped['learning_rate']:.1e}".replace("e-0", "e-")
        lines.append(f"  # learning_rate: {rate}")
    return [*lines, *_draft_lengths(shipped, context)]


def _draft_lengths(shipped: Mapping[str, Any], context: int | None) -> list[str]:
    """Return the lines of the lengths, which fit into the model's context."""
    response = shipped["response_length"]
    window = shipped["max_seq_length"]
    if context is None or context >= window:
        return [
            f"  # response_length: {response} # tokens of an answer",
            f"  # max_seq_length: {window} # tokens of a prompt and its answer",
        ]
    return [
        f"  response_length: {min(response, context // _CONTEXT_SHARE)} # tokens of an answer",
        f"  max_seq_length: {context} # tokens of a prompt and its answer: the model's context",
    ]
