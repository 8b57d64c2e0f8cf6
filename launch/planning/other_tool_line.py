"""Plans the equivalent of another tool's file, or of a line in other tools' words, before it is
printed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.config.compose import expand_sweep
from launch.config.kinds import KINDS, Kind
from launch.config.line import (
    OTHER_COMMANDS,
    SCRIPT_SUFFIXES,
    CommandLine,
    is_bare_word,
    override_key,
    stage_name,
)
from launch.config.other_commands import explain_command, is_command
from launch.config.other_tool_files import LINE, READ_AS_LINES, recognise_tool
from launch.config.other_tools import read_mixer
from launch.config.typed_values import is_sweep
from launch.config.yaml_nodes import NotYamlError, load_yaml
from launch.errors import UserError, actions_of, nearest, refusal
from launch.planning.build import plan_line
from launch.planning.files_as_lines import words_of_file
from launch.planning.other_tool_files import names_in_tool, translate_file
from launch.planning.other_tool_kind import find_kind
from launch.planning.other_tool_values import Translation, as_override, shorten_value
from launch.planning.typed_line import PLAN_VERBS, TypedLine, read_line
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
        *("resume_from_checkpoint", "load_best_model_at_end", "train_on_inputs", "streaming"),
        *("quantization_bit", "use_dora", "use_rslora", "modules_to_save", "additional_target"),
        *("lora_modules_to_save", "scale_rewards", "checkpointing_steps", "lora_alpha"),
        *("deepspeed", "deepspeed_config", "deepspeed_config_file", "loss_type"),
    )
)
# The overrides that a line can do without: its stage has others.
_OF_NUMBERS = re.compile(
    r"recipe\.|flags\.|cluster\.|tracking|parallel$|data\.(?:validation|fraction)"
)
_DEVICES = ("gpu_ids", "gpus", "devices", "cuda_visible_devices")  # whose lists are not a sweep
_OF_OUTPUT = re.compile(r"\s(?:--(?:output|error|open-mode|chdir|job-name|comment)\b|-[oeDJ]\b)")
_STARTS_TRAINER = re.compile(r"\.py\b|axolotl|llamafactory-cli|\btrl\b|\btune run\b|\bswift\b")
_OF_TRL = (
    "TRL's, whose loss is the mean over the tokens of a step, as with the tools of these words"
)
_TIME = re.compile(r"(?:\d+-)?\d+(?::\d\d){0,2}")
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
        return _answer_to_script(script, argv)
    typed = read_line(argv)
    if typed.script:
        return _answer_to_own_script(typed, argv)
    first = next((word for word in argv if word not in OTHER_COMMANDS), "=")
    asks_of_run = is_bare_word(first) and is_command(first, PLAN_VERBS)
    if asks_of_run and not (typed.method == first and typed.names_data):  # `rm --data`
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


def _answer_to_own_script(typed: TypedLine, argv: Sequence[str]) -> Finding:
    """Return the answer to a line that starts a program of the reader's own."""
    message = f"{typed.script} is a program of your own, and launch starts its own trainers"
    whole = _answer_to_typed(typed, argv) if typed.names_data or typed.names_model else None
    if whole is not None and whole.cure is not None:
        return replace(whole, message=message)
    cure = Fix.of(
        "what it trains is a stage: {0} drafts one for your data, and {1} lists the keys for its "
        "numbers; without launch the line runs as it is",
        *("$ launch new NAME --data FILE", "$ launch help keys"),
    )
    return Finding.error("other_tool", message, "command line", cure)


def _answer_to_script(script: str, argv: Sequence[str]) -> Finding:
    """Return the line that a script's #SBATCH lines and the trainer that it starts are."""
    message = f"'{script}' is a script, and launch starts and submits stages"
    quoted = shlex.quote(script)
    own = [f"$ launch lint {quoted}", f"$ sbatch {quoted}"]
    checks = "{%d} checks the script's trainers, {%d} submits it as it is"
    options, command, unread = _read_script(Path(script))
    rest = [word for word in argv if word not in (script, *argv[:1])]
    verb = "submit" if options or argv[0] in ("sbatch", "srun", "submit") else "run"
    typed = read_line([verb, *options, *command, *rest])
    typed.notes += [f"{name}: its value is a variable of the script" for name in unread]
    answer = _answer_to_typed(typed, [verb, *options, *command, *rest]) if command else None
    if answer is None or answer.cure is None or not answer.cure.actions:
        keys = [f"{key}={value}" for key, value in typed.overrides.items() if key != "stage"]
        line = f"$ {shlex.join(['launch', verb, 'stage=NAME', *keys])}"
        cure = Fix.of(f"a stage is started by {{0}}; {checks % (1, 2)}", line, *own)
    else:
        count = len(answer.cure.actions)
        sentence = f"{answer.cure.sentence}. {checks % (count, count + 1)}"
        cure = Fix.of(sentence, *answer.cure.actions, *own)
    return Finding.error("other_tool", message, "command line", cure)


def _read_script(path: Path) -> tuple[list[str], list[str], list[str]]:
    """Return the options of a script's #SBATCH lines, the words of the first trainer that it starts,
    and the names whose values are variables.
    """
    try:
        lines = path.read_text("utf-8").replace("\\\n", " ").splitlines()
    except (OSError, ValueError):
        return [], [], []
    options: list[str] = []
    command: list[str] = []
    for line in lines:
        if line.startswith("#SBATCH") and not _OF_OUTPUT.search(line):
            options += line.removeprefix("#SBATCH").partition(" #")[0].split()
        elif not line.lstrip().startswith("#") and not command and _STARTS_TRAINER.search(line):
            with suppress(ValueError):
                command = shlex.split(line, comments=True)
    kept: list[str] = []
    unread: list[str] = []
    for word in command:
        if "$" not in word:
            kept.append(word)
        elif "=" in word:
            unread.append(word.partition("=")[0])
        elif kept and kept[-1].startswith("-"):
            unread.append(kept.pop())
    return options, [word for word in kept if word not in ("&&", "&", ";", "\\")], unread


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
    trainer = translation.overrides.get("trainer")
    is_chosen = tool == LINE and not {"stage", "trainer"} & typed.overrides.keys()
    if is_chosen and trainer in ("trl_sft", "trl_dpo"):
        translation.differences.append(f"trainer={trainer}, {_OF_TRL}")
    return _explain(translation, typed)


def translate_line(
    typed: TypedLine, tool: str = LINE, settings: Mapping[str, Any] | None = None
) -> Translation:
    """Translate a typed line, with the settings of its file."""
    for name in sorted(_RESUMES.intersection(typed.settings)):
        checkpoint = str(typed.settings.pop(name))
        typed.notes.append(f"{name}: the same command resumes an unfinished run of launch")
        if "/" in checkpoint:
            typed.notes[-1] += (
                f"; this line starts anew, and model.path={checkpoint} starts from its weights alone"
            )
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
    is_foreign = len(options) > 1 or typed.is_dry or typed.is_incomplete
    is_foreign = is_foreign or "n" in typed.overrides  # samples of a preview
    if not (typed.settings or typed.method or is_foreign):
        return False
    if "stage" in typed.overrides:
        lists = [name for name, value in typed.settings.items() if is_sweep(value)]
        has_list = any(name not in _DEVICES for name in lists)
        needs_line = not _OF_WHOLE_LINE.isdisjoint(typed.settings) or typed.is_dry
        needs_line = needs_line or _has_no_length(typed) or is_foreign or _has_rows_here(typed)
        return len(typed.foreign) > 1 or ((has_list or needs_line) and bool(typed.foreign))
    names_method = bool(typed.method and typed.settings) and len(typed.foreign) > 1
    return typed.names_data or typed.names_model or names_method


def _has_no_length(typed: TypedLine) -> bool:
    """Return whether a line sets no limit of a sample's length, which every run here has."""
    named = [name for name, value in typed.settings.items() if str(value).lower() == "none"]
    return any("len" in name for name in named)


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
    sentence = "it names no model: add model=OWNER/NAME, or draft a stage for the data with {0}"
    kept = {name: value for name, value in typed.settings.items() if name != "dataset_name"}
    remarks = [*draft.differences, *typed.notes]
    if kept:
        remarks.append(
            f"{', '.join(kept)} are keys of a line with model= or of the stage's own line"
        )
    return Fix.of("; ".join([sentence, *remarks]), command)


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
    _name_lost(translation, settings, method)
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
        if action is not None and str(action) not in tried:
            tried.add(str(action))
            _follow(translation, action, problem)
        elif not _leave_out(translation, problem):
            break
    if not translation.missing:
        translation.missing.append(_statement(problem))
    return translation


def _statement(problem: Finding) -> str:
    """Return a problem with the words of its cure."""
    return f"{problem.statement} ({problem.cure})" if problem.cure else problem.statement


def _leave_out(translation: Translation, problem: Finding) -> bool:
    """Take the override that a problem is about out of the line, and record it as missing; return
    whether there is one.
    """
    place = problem.where or ""
    about = place.removeprefix("override ") if place in translation.overrides else problem.statement
    for key in list(translation.overrides):
        is_named = re.match(rf"(?:override )?-*{re.escape(key)}\b(?![.\w])", about)
        if is_named and _OF_NUMBERS.match(key):
            del translation.overrides[key]
            translation.missing.append(_statement(problem))
            return True
    return False


def _name_lost(translation: Translation, settings: Mapping[str, Any], method: str) -> None:
    """Name each setting without which the line is the same, unless a remark has it."""
    for name, value in settings.items():
        remarks = " ".join([*translation.lines, *translation.remarks, *translation.missing])
        text = as_override(value)
        is_kept = not isinstance(value, bool) and text in _values_of(translation)
        is_kept = is_kept or (len(text) > 5 and text in remarks)
        if is_kept or value is None or re.search(rf"(?<!\w){re.escape(name)}(?!\w)", remarks):
            continue
        others = {other: each for other, each in settings.items() if other != name}
        without = translate_file(
            others,
            translation.tool,
            translation.file,
            translation.ranks,
            method,
            given=translation.given,
        )
        if without.overrides | translation.given == translation.overrides:
            translation.unneeded.append(f"{name}={shorten_value(text)}")


def _values_of(translation: Translation) -> set[str]:
    """Return the values of a line, without those that many keys have."""
    return set(translation.overrides.values()) - {"0", "1", "none", "null", "auto"}


def _plans_with_its_trainer(translation: Translation) -> bool:
    """Return whether the line plans with the trainer of the stage that it names, which is then
    kept.
    """
    trainer = translation.overrides.pop("trainer", None)
    try:
        _plan_with_alternatives(translation)
    except UserError as error:
        if trainer is not None:
            _change_trainer(translation, trainer, error.problems[0])
        return False
    translation.plans = True
    return True


def _plan_with_alternatives(translation: Translation) -> None:
    """Plan the line, with the other value of a key that its trainer does not support. Raises UserError."""
    try:
        _plan(translation)
    except UserError as error:
        problem = error.problems[0]
        key = (problem.where or "").removeprefix("override ")
        if translation.alternatives.get(key) in (None, translation.overrides.get(key)):
            raise
        translation.overrides[key] = translation.alternatives[key]
        translation.differences.append(
            f"{key}={translation.alternatives[key]}, because {problem.message}"
        )
        _plan(translation)


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
    time = translation.overrides.get("cluster.time")
    if time is not None and not _TIME.fullmatch(time):
        message = f"cluster.time={time} is not a time limit"
        raise refusal("bad_time_limit", message, "cluster.time", "HH:MM:SS or D-HH:MM:SS")
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
