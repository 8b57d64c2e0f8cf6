"""Plans the equivalent of another tool's file, or of a line in other tools' words, before it is
printed.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.config.compose import expand_sweep
from launch.config.kinds import KINDS, Kind
from launch.config.line import (
    SCRIPT_SUFFIXES,
    CommandLine,
    is_bare_word,
    override_key,
    stage_name,
)
from launch.config.other_commands import explain_command, is_command
from launch.config.other_tool_files import LINE, READ_AS_LINES, recognise_tool
from launch.config.other_tools import read_mixer
from launch.config.yaml_nodes import NotYamlError, load_yaml
from launch.errors import UserError, actions_of, nearest
from launch.planning.build import plan_line
from launch.planning.files_as_lines import words_of_file
from launch.planning.other_tool_files import names_in_tool, translate_file
from launch.planning.other_tool_kind import find_kind
from launch.planning.other_tool_values import Translation
from launch.planning.typed_line import PLAN_VERBS, TypedLine, read_line
from launch.planning.typed_values import is_sweep
from launch.worker.finding import Action, Finding, Fix

_MOST_CHANGES = 6  # cures that are followed until the line plans
_RESUMES = frozenset(("resume_from_checkpoint", "resume", "auto_resume_from_checkpoints"))
# What one wrong word beside a stage means depends on the whole line: a number is computed from it.
_OF_WHOLE_LINE = frozenset(
    (
        *("max_samples", "max_train_samples", "num_samples", "warmup_steps", "num_warmup_steps"),
        *("gradient_accumulation_steps", "eval_strategy", "evaluation_strategy", "output_dir"),
        *(
            "warmup",
            "reward_funcs",
            "reward",
            "reward_function",
            "num_generations_eval",
            "eval_dataset",
        ),
        *("resume_from_checkpoint",),
    )
)
_DEVICES = ("gpu_ids", "gpus", "devices", "cuda_visible_devices")  # whose lists are not a sweep
_WITHOUT_SLURM = (
    "`launch submit` is for Slurm; without it, `launch run` with the same keys is started on every "
    "machine, where LAUNCH_NODE_RANK is 0, 1 and so on"
)
_MESSAGE = "this line is in the words of other tools"


def explain_file(path: Path) -> tuple[str, Fix] | None:
    """Return the tool of a file, and the equivalent command as a cure; None for a file of no known
    tool.
    """
    read = _read_file(path)
    if read is None:
        return None
    argv = ["plan", str(path)]
    return read[0], _explain_file(read_line(argv), argv, *read)


def answer_line(argv: Sequence[str]) -> Finding | None:
    """Return the equivalent command of a line in the words of other tools.

    Returns None for a line in launch's own words, one of which may be wrong, and for a command
    about a run.
    """
    script = next(
        (word for word in argv[:2] if word.endswith(SCRIPT_SUFFIXES) and "=" not in word), None
    )
    if script is not None:
        return _answer_to_script(script)
    typed = read_line(argv)
    asks_of_run = bool(argv) and is_bare_word(argv[0]) and is_command(argv[0], PLAN_VERBS)
    if asks_of_run and not (typed.method == argv[0] and typed.names_data):  # `rm --data`
        return None
    return None if "pipeline" in typed.overrides else _answer_to_typed(typed, argv)


def _answer_to_typed(typed: TypedLine, argv: Sequence[str]) -> Finding | None:
    """Return the answer to a line by its file, or as a whole; None for a line in launch's own
    words.
    """
    read = _read_file(typed.file) if typed.file is not None else None
    if read is not None:
        message = f"this is a file of {read[0]}, which launch translates"
        cure = _explain_file(typed, argv, *read)
        return Finding.error("other_tool", message, f"{typed.file}:1", cure)
    if typed.file is not None:
        finding = _answer_to_own_file(typed, typed.file)
        if finding is not None:
            return finding
    if not _needs_rewriting(typed):
        return None
    message = _MESSAGE if typed.foreign else f"'{typed.verb}' needs a stage"
    has_data_alone = "dataset_name" in typed.settings and not typed.names_model
    is_draft = has_data_alone and "stage" not in typed.overrides
    cure = _draft(typed) if is_draft else _translate(typed, LINE, {})
    return Finding.error("other_tool", message, "command line", cure)


def _answer_to_script(script: str) -> Finding:
    cure = Fix.of("check the trainers that it starts: {0}", f"$ launch lint {shlex.quote(script)}")
    return Finding.error("other_tool", f"'{script}' is a script", "command line", cure)


def _explain_file(
    typed: TypedLine, argv: Sequence[str], tool: str, settings: Mapping[str, Any]
) -> Fix:
    """Return the equivalent of a line with another tool's file: a training, or a merge."""
    if "export_dir" in settings:
        merge = explain_command("merge", [str(typed.file)])
        if merge is not None:
            return merge
    if tool not in READ_AS_LINES:
        return _translate(typed, tool, settings)
    return _translate(read_line(argv, words_of_file(settings, tool)), LINE, {})


def _translate(typed: TypedLine, tool: str, settings: Mapping[str, Any]) -> Fix:
    """Return the line that a typed one is, with the settings of its file, as a cure."""
    translation = translate_line(typed, tool, settings)
    return _explain(translation, typed)


def translate_line(
    typed: TypedLine, tool: str = LINE, settings: Mapping[str, Any] | None = None
) -> Translation:
    """Translate a typed line, with the settings of its file."""
    for name in _RESUMES.intersection(typed.settings):
        typed.notes.append("the same command resumes an unfinished run")
        checkpoint = str(typed.settings[name])
        if "/" in checkpoint:
            typed.notes[-1] += f", that of {checkpoint} its own: this line starts another run"
    translation = plan_file(
        {**(settings or {}), **names_in_tool(typed.settings, tool)},
        tool,
        typed.file or Path("line"),
        [f"{key}={value}" for key, value in typed.overrides.items()],
        typed.method,
    )
    translation.differences[:0] = typed.notes
    return translation


def _answer_to_own_file(typed: TypedLine, path: Path) -> Finding | None:
    """Return the answer to a file that is not another tool's: it is missing, or a stage's file
    after another tool's word.

    With further words on the line, the file is the line's stage, and the answer is None.
    """
    if not path.is_file():
        return _missing_file(typed) if typed.foreign else None
    typed.overrides["stage"] = str(path)
    if len(typed.foreign) != 1 or typed.settings:
        return None
    command = shlex.join(["launch", typed.verb, str(path)])
    cure = Fix.of("a stage's file is given by itself: {0}", f"$ {command}")
    return Finding.error("other_tool", _MESSAGE, "command line", cure)


def _needs_rewriting(typed: TypedLine) -> bool:
    """Return whether a line has to be rewritten: it has no stage, or several words of other tools.

    A single wrong word beside a stage has its own message.
    """
    options = [word for word in typed.foreign if word.startswith("-")]
    is_foreign = len(options) > 1 or typed.is_dry or typed.is_as_in_file
    is_foreign = is_foreign or "n" in typed.overrides  # samples of a preview
    if not (typed.settings or typed.method or is_foreign):
        return False
    if "stage" in typed.overrides:
        lists = [name for name, value in typed.settings.items() if is_sweep(value)]
        has_list = any(name not in _DEVICES for name in lists)
        needs_line = not _OF_WHOLE_LINE.isdisjoint(typed.settings) or typed.is_dry
        needs_line = needs_line or is_foreign or _has_rows_here(typed)
        return len(typed.foreign) > 1 or ((has_list or needs_line) and bool(typed.foreign))
    names_method = bool(typed.method and typed.settings) and len(typed.foreign) > 1
    return typed.names_data or typed.names_model or names_method


def _has_rows_here(typed: TypedLine) -> bool:
    """Return whether a line names files of data, whose rows a batch has to suit."""
    data = typed.settings.get("dataset_name", "")
    names = (
        data if isinstance(data, list) else [name for name, _ in read_mixer(str(data))] or [data]
    )
    return any(Path(str(name)).is_file() for name in names)


def _missing_file(typed: TypedLine) -> Finding:
    """Return the problem of a missing file; the cure names a similar file in its folder."""
    path = typed.file or Path()
    beside = [item.name for item in path.parent.glob("*") if item.suffix == path.suffix]
    near = nearest(path.name, beside, limit=1, cutoff=0.8)
    cure: Fix | str = "give the path of the file"
    if near:
        verb = shlex.join(["launch", typed.verb, str(path.with_name(near[0]))])
        cure = Fix.of("did you mean {0}?", f"$ {verb}")
    return Finding.error("other_tool", f"there is no file {path}", "command line", cure)


def _draft(typed: TypedLine) -> Fix:
    """Return the cure for data without a model: draft a stage for the data, of the kind that the
    line names or its settings belong to.
    """
    data = str(typed.settings.get("dataset_name"))
    draft = Translation(LINE, Path("line"), dict(typed.settings), ranks=1)
    kind = find_kind(draft, typed.method)
    option = f" --kind {kind}" if kind != Kind.sft else ""
    command = f"$ launch new {stage_name(data)} --data {shlex.quote(data)}{option}"
    return Fix.of(
        "it names no model: add model=OWNER/NAME, or draft a stage for the data with {0}", command
    )


def _read_file(path: Path) -> tuple[str, dict[str, Any]] | None:
    """Return the tool and the settings of a file; None for a file of no known tool."""
    try:
        content = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, NotYamlError):
        return None
    settings = (
        {str(key): value for key, value in content.items()} if isinstance(content, dict) else {}
    )
    tool = recognise_tool(settings)
    return None if tool is None else (tool, settings)


def plan_file(
    settings: Mapping[str, Any],
    tool: str,
    path: Path,
    given: Sequence[str] = (),
    method: str = "",
) -> Translation:
    """Translate a file and plan its line.

    What had to be changed is recorded among the differences, and what cannot be planned as missing.
    """
    ranks = _ranks_of(given)
    stage = next((item[6:] for item in given if item.startswith("stage=")), "")
    if not method and stage:
        method = _kind_of_stage(stage)
    overrides = {
        override_key(override): override.partition("=")[2] for override in given if "=" in override
    }
    translation = translate_file(settings, tool, path, ranks, method, given=overrides)
    translation.overrides |= overrides
    if any(is_sweep(value) for value in translation.overrides.values()):
        translation.overrides.setdefault("sweep", "true")
    keeps_trainer = bool(stage) and not any(item.startswith("trainer=") for item in given)
    if keeps_trainer and _plans_with_its_trainer(translation):
        return translation
    tried: set[str] = set()
    for _ in range(_MOST_CHANGES):
        try:
            _plan(translation)
            translation.plans = True
            return translation
        except UserError as error:
            problem = error.problems[0]
        action = next((action for action in actions_of(problem.cure) if action.is_exact), None)
        if action is None or str(action) in tried:
            break
        tried.add(str(action))
        _follow(translation, action, problem)
    if translation.missing:
        return translation
    choices = f" ({problem.cure})" if problem.cure and not problem.cure.actions else ""
    translation.missing.append(f"{problem.statement}{choices}")
    return translation


def _plans_with_its_trainer(translation: Translation) -> bool:
    """Return whether the line plans with the trainer of the stage that it names, which is then
    kept.
    """
    trainer = translation.overrides.pop("trainer", None)
    try:
        _plan(translation)
    except UserError as error:
        if trainer is not None:
            _change_trainer(translation, trainer, error.problems[0])
        return False
    translation.plans = True
    return True


def _change_trainer(translation: Translation, trainer: str, problem: Finding) -> None:
    """Set a trainer for a line that does not plan with that of its stage, unless the problem is not the
    trainer's: it has the same one.
    """
    translation.overrides["trainer"] = trainer
    try:
        _plan(translation)
    except UserError as error:
        if error.problems[0].id == problem.id:
            del translation.overrides["trainer"]
            return
    translation.differences.append(f"trainer={trainer}, because {problem.message}")


def _plan(translation: Translation) -> None:
    """Plan the line; of a sweep its first run. Raises UserError."""
    of_verb = ("sweep=true", *(item for item in translation.lines if item.startswith("n=")))
    overrides = [item for item in translation.lines if item not in of_verb]
    line = CommandLine("plan", False, tuple(overrides))
    if "sweep=true" in translation.lines:
        line = expand_sweep(replace(line, argv=(*line.argv, "--multirun")))[0]
    plan_line(line)


def _kind_of_stage(stage: str) -> str:
    """Return the kind of a stage; "" for a stage that cannot be composed."""
    plain = stage.removeprefix("lora_")
    if plain in KINDS:
        return plain
    from launch.config.compose import compose_once

    try:
        return str(compose_once(CommandLine("plan", False, (f"stage={stage}",))).config.stage.kind)
    except UserError:
        return ""


def _ranks_of(given: Sequence[str]) -> int | None:
    """Return the ranks of the line, gpus x nodes; None where it sets neither."""
    values = {override_key(item): item.partition("=")[2] for item in given}
    counts = [values[key] for key in ("gpus", "nodes") if values.get(key, "").isdigit()]
    ranks = 1
    for count in counts:
        ranks *= max(1, int(count))
    return ranks if counts else None


def _follow(translation: Translation, action: Action, problem: Finding) -> None:
    """Change the line according to a cure, and record why."""
    if action.removes:
        translation.overrides.pop(override_key(action.removes), None)
    for override in action.sets:
        key, _, value = override.partition("=")
        translation.overrides[key] = value
    change = str(action) if action.sets else f"without {action}"
    translation.differences.append(f"{change}, because {problem.message}")


def _command(translation: Translation, typed: TypedLine) -> str:
    """Return the command; a line with settings of Slurm or of several machines is submitted."""
    keys = translation.overrides
    is_of_slurm = any(key.startswith("cluster.") for key in keys) or keys.get("nodes", "1") != "1"
    verb = "submit" if typed.verb == "run" and is_of_slurm else typed.verb
    if verb == "submit" and typed.verb == "run":
        translation.differences.append(_WITHOUT_SLURM)
    lines = translation.lines
    if typed.is_dry and verb == "submit":
        lines.append("dry_run=true")
    elif typed.is_dry and verb == "run":
        verb = "plan"
    return f"launch {verb} {shlex.join(lines)}"


def _explain(translation: Translation, typed: TypedLine) -> Fix:
    return translation.explain(_command(translation, typed))
