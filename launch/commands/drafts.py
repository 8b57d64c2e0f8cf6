"""The verbs that draft a user's file: `new` a stage for their data, `cluster` their cluster's."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from launch.commands.tool_parsers import build_cluster_parser, build_new_parser
from launch.config.compose import compose_once
from launch.config.json_schema import stage_schema
from launch.config.kinds import KINDS, DataFormat, Kind
from launch.config.line import CommandLine
from launch.config.schema import TrainOn
from launch.config.yaml_nodes import load_yaml
from launch.data.draft import SCHEMA_FILE, DraftedData, draft_of_hub, draft_stage, read_for_draft
from launch.data.rl_draft import EXAMPLE, is_unwritten, resolve_verifier
from launch.data.sources import file_format
from launch.errors import EXIT_DONE, UserError, did_you_mean, refusal
from launch.execution.record.run import Run, mapping
from launch.files import create_file, write_json
from launch.host.nvidia import find_gpus
from launch.pipelines.links import FINAL_KINDS
from launch.planning.adapter import read_adapter
from launch.planning.chat_template import read_template
from launch.planning.estimate.shape import read_shape
from launch.planning.find_runs import find_run, find_runs, resolve_run
from launch.planning.saved_model import read_context
from launch.redact import process_redactor
from launch.resources import (
    CONFIGS,
    ROOT,
    USER_DIR_VARIABLE,
    default_user_folder,
    free_stage_name,
    group_options,
)
from launch.slurm.draft import ClusterFacts, choose_partition, draft_config
from launch.slurm.partitions import list_accounts, list_partitions, unknown_partition
from launch.slurm.slurm_cli import query_slurm, try_command
from launch.terminal import echo
from launch.upstream.pin.checkout import find_checkout
from launch.worker.finding import Fix


def new(argv: list[str]) -> int:
    """Write a stage file for local data.

    Raises UserError: those of VerbParser.parse, `read_for_draft`, `_find_verifier` and
    `_choose_start`; stage_exists, unreadable_columns, not_writable.
    """
    parser = build_new_parser()
    options = parser.parse(argv)
    name: str = options.name
    path = locate_option("stage", name, parser.usage)
    shipped = (CONFIGS / "stage" / path.name).is_file()
    if (path.exists() and not options.print) or shipped:
        message = f"{name} is a stage of launch" if shipped else f"{path} already exists"
        words = [free_stage_name(name) if word == name else word for word in argv]
        command = f"$ {shlex.join(['launch', 'new', *words])}"
        cure = Fix.of("choose another name: {0}, or use --print", command)
        raise refusal("stage_exists", message, None, cure)
    kind = Kind(options.kind) if options.kind else None
    form = _choose_format(options.format, is_text=options.text)
    if form == DataFormat.text:
        kind = _kind_of_text(kind)
    columns = _parse_columns(options.columns)
    verifier = _find_verifier(options.verifier, kind)
    if _is_hub_id(options.data):
        default = Kind.rlvr if verifier else Kind.sft
        data = draft_of_hub(options.data, columns, kind or default, form, verifier)
    else:
        file = Path.cwd() / Path(options.data).expanduser()
        data = read_for_draft(file, columns, kind, form, verifier)
    start = _choose_start(options.model, options.after, Path("runs"))
    on_cpu = start.on_cpu
    if on_cpu is None and not find_gpus(os.environ).seen:
        on_cpu = "there is no GPU here"
    text = draft_stage(
        data,
        group=start.group,
        path=start.path,
        trainer=_choose_trainer(data),
        on_cpu=on_cpu,
        after=start.stage,
        context=start.context,
        lacks_template=start.lacks_template,
    )
    if options.print:
        echo(text, end="")
        return EXIT_DONE
    write_option(path, text, {SCHEMA_FILE: stage_schema()})
    echo(data.structure.describe())
    echo(f"wrote {path}")
    for line in _describe_next(name, data, start):
        echo(line)
    return EXIT_DONE


def _choose_format(given: str | None, *, is_text: bool) -> DataFormat:
    """Return the format that `--format` or `--text` names. Raises UserError (usage) for two of them."""
    form = DataFormat(given) if given else DataFormat.auto
    if not is_text:
        return form
    if form in (DataFormat.auto, DataFormat.text):
        return DataFormat.text
    message = f"--text is --format text, and --format is {form}"
    raise refusal("usage", message, "command line", "leave one of them out")


def _kind_of_text(kind: Kind | None) -> Kind:
    """Return the kind of a stage that learns plain text. Raises UserError (usage) for pairs."""
    if kind in (None, Kind.sft):
        return Kind.sft
    message = f"plain text is for SFT, and --kind is {kind}"
    raise refusal("usage", message, "command line", "leave one of them out")


def _describe_next(name: str, data: DraftedData, start: _Start) -> list[str]:
    """Return the lines about the next steps with a drafted stage; the last one is a command."""
    lines = []
    if data.verifier is not None and is_unwritten(data.verifier):
        path, _, function = data.verifier.rpartition(":")
        lines += [f"write the function {function} in {path}, such as", "", EXAMPLE]
    command = f"launch preview stage={name}"
    if data.kind == Kind.rlvr:
        command = f"launch check stage={name}"
    if start.stage:
        command = f"launch plan pipeline={start.stage},{name}"
    return [*lines, f"next: {command}"]


def _find_verifier(given: str | None, kind: Kind | None) -> str | None:
    """Return the verifier that `--verifier` names; None without one.

    Raises UserError: usage, for a stage that has none; those of `resolve_verifier`.
    """
    if given is None:
        return None
    if kind not in (None, Kind.rlvr):
        message = f"--verifier is for RLVR, and --kind is {kind}"
        raise refusal("usage", message, "command line", "leave one of them out")
    return resolve_verifier(given, Path.cwd())


def _choose_start(model: str | None, after: str | None, runs: Path) -> _Start:
    """Return the starting model that `--model` or `--after` names.

    Raises UserError: usage, when both are set; those of `_find_model` and `_find_start`.
    """
    if after is None:
        return _find_model(model, runs)
    if model is None:
        return _find_start(after, runs)
    source = "the stage or the run whose model it starts from"
    message = f"--after names {source}, and --model another one"
    raise refusal("usage", message, "command line", "leave one of them out")


def _parse_columns(text: str | None) -> dict[str, str]:
    """Parse KNOWN=YOURS,...; raises UserError: unreadable_columns."""
    columns: dict[str, str] = {}
    for item in text.split(",") if text else []:
        known, _, name = item.partition("=")
        if not known or not name:
            message = f"'{text}' is not a list of KNOWN=YOURS"
            example = "for example prompt=frage,completion=antwort"
            raise refusal("unreadable_columns", message, "--columns", example)
        columns[known] = name
    return columns


@dataclass(frozen=True)
class _Start:
    """The model that a drafted stage starts from."""

    group: str | None = None  # the model group whose recipe suits it
    path: str | None = None  # a hub id or a folder, which is trained instead of the group's model
    stage: str | None = None  # the stage of a pipeline that makes it
    # The settings of the stage or the run that makes it.
    settings: Mapping[str, Any] = field(default_factory=dict)
    context: int | None = None  # maximum number of tokens in its context, if known
    lacks_template: bool = False  # whether its tokenizer has no chat template

    @property
    def on_cpu(self) -> str | None:
        """Why the drafted stage should train on the CPU, if the stage or the run did."""
        was_on_cpu = self.settings.get("device") == "cpu" or self.settings.get("gpus") == 0
        return "its base was trained on the CPU" if was_on_cpu else None


def _find_start(name: str, runs: Path) -> _Start:
    """Return the starting model that `--after` names: that of a stage, or else of a run.

    Raises UserError: unknown_run, ambiguous_run, pipeline_model; those of the stage.
    """
    if name in group_options("stage"):
        composed = compose_once(CommandLine("new", False, (f"stage={name}",)))
        start = _Start(composed.origins.choices.get("model"), stage=name, settings=composed.plain)
    else:
        start = _start_from_folder(resolve_run(name, runs))
    kind = str(mapping(start.settings.get("stage")).get("kind"))
    for final_kind, model in FINAL_KINDS.items():
        if str(final_kind) == kind:
            message = f"no stage can start from {name}, which trains {model}"
            raise refusal("pipeline_model", message, "--after", "name an SFT or DPO stage or run")
    return start


def _find_model(given: str | None, runs: Path) -> _Start:
    """Return the starting model that `--model` names.

    The name is a model group, a folder, a finished run as in `model.path`, or a hub id.

    Raises UserError: unknown_model, ambiguous_run.
    """
    groups = group_options("model")
    if given is None or given in groups:
        return _Start(given)
    folder = _find_model_folder(given, runs)
    if folder is not None:
        return _start_from_folder(folder)
    if _is_hub_id(given):
        return _Start(path=given)
    message = f"'{given}' is neither a model group, a run, a hub id nor a folder"
    cure = f"choose {', '.join(groups)}, a run, a hub id or a folder"
    suggestion = did_you_mean(given, groups, limit=1)
    raise refusal("unknown_model", message, "--model", suggestion or cure)


def _find_model_folder(name: str, runs: Path) -> Path | None:
    """Return the folder of this path or of this run, None if there is none.

    The folder of a stage, which holds its runs, stands for the one that is finished.
    """
    given = Path.cwd() / Path(name).expanduser()
    if given.is_dir():
        return given
    below_runs = Path.cwd() / runs / name
    if below_runs.is_dir() and _find_run_above(below_runs):
        return below_runs
    finished = [run for run in find_runs(runs.absolute()) if (run / "DONE").is_file()]
    return find_run(name, finished, "--model")


_DEPTH = 3  # levels of a checkpoint below its run


def _find_run_above(folder: Path) -> Path | None:
    """Return the run folder that a folder is or is in, None if it is in none."""
    for path in (folder, *folder.parents[:_DEPTH]):
        if (path / "plan.json").is_file():
            return path
    return None


def _start_from_folder(folder: Path) -> _Start:
    """Return the starting model in a run, in a folder below a run, or in any other folder."""
    run = _find_run_above(folder)
    settings = Run(run).settings if run else {}
    model = folder / "model" if folder == run else folder
    adapter = read_adapter(model)
    base = adapter.local_base if adapter else model
    trained_from = mapping(settings.get("model"))
    builds_demo = str(trained_from.get("build")).startswith("demo")
    is_demo = builds_demo and not trained_from.get("path")
    if base is not None and _has_demo_shape(base):
        is_demo = True
    has_tokenizer = (model / "tokenizer_config.json").is_file()
    return _Start(
        group="demo" if is_demo else None,
        path=str(folder),
        settings=settings,
        context=read_context(base) if base else None,
        lacks_template=has_tokenizer and read_template(model) is None,
    )


def _has_demo_shape(model: Path) -> bool:
    """Whether a model has the layers and the width of the demo's model.

    The recipes of the demo were chosen for that shape.
    """
    demo = load_yaml((CONFIGS / "model" / "demo.yaml").read_text(encoding="utf-8"))["shape"]
    shape = read_shape(model)
    if shape is None:
        return False
    return bool(shape.layers == demo["layers"] and shape.hidden == demo["hidden"])


def _is_hub_id(name: str) -> bool:
    """Return whether a name is `owner/name` of the hub, and not the path of a file.

    A path whose folder exists is taken for a misspelt file.
    """
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        return False
    data_format, *_ = file_format(Path(name))
    return not data_format and not Path(name).parent.is_dir()


def _choose_trainer(data: DraftedData) -> str | None:
    """Return TRL's trainer for plain text, for marked answers, or if open-instruct is missing; None
    to keep the stage's trainer.

    A reward model has open-instruct's trainer alone, KTO and RLVR have TRL's already.
    """
    if data.is_text or data.train_on == TrainOn.marked:
        return "trl_sft"
    if find_checkout(None, os.environ, ROOT) is not None or data.kind not in (Kind.sft, Kind.dpo):
        return None
    return KINDS[data.kind].trainer


_NETWORK_FILE_SYSTEM = re.compile(
    r"nfs4?|lustre|gpfs|beegfs|ceph|wekafs|panfs|pvfs2|glusterfs|cifs"
    r"|fuse\.(ceph|juicefs|glusterfs)\b.*"
)
_FAST_INTERFACE = re.compile(r"(ib|hsn|roce)\w*\d")  # the names of InfiniBand, Slingshot and RoCE


def cluster(argv: list[str]) -> int:
    """Draft `cluster/NAME.yaml` from Slurm's output; write it to the user's folder, or print it.

    Raises UserError: those of VerbParser.parse; no_slurm, slurm_unresponsive, unknown_partition,
    cluster_exists, not_writable.
    """
    parser = build_cluster_parser()
    options = parser.parse(argv)
    path = locate_option("cluster", options.name, parser.usage)
    if path.exists() and not options.print:
        cure = "choose another name, or use --print"
        raise refusal("cluster_exists", f"{path} already exists", None, cure)
    sinfo = query_slurm(["sinfo", "--noheader"])  # raises if Slurm is missing or does not answer
    available = list_partitions() or []
    if not available:
        message = "sinfo reports no partitions"
        if sinfo.status:
            message = f"{message}: {sinfo.message}"
        raise refusal("slurm_unresponsive", message, None, "contact the cluster's admins")
    facts = _collect_facts()
    named = [partition for partition in available if partition.name == options.partition]
    if options.partition and not named:
        raise UserError(unknown_partition(options.partition, available, "--partition"))
    partition = named[0] if named else choose_partition(available, facts.accounts)
    text = draft_config(partition, available, facts)
    if options.print:
        echo(text, end="")
        return EXIT_DONE
    write_option(path, text)
    line = f"launch submit stage=demo trainer=trl_sft cluster={path.stem} dry_run=true"
    echo(f"wrote {path}; review it, then try: {line}")
    return EXIT_DONE


def _collect_facts() -> ClusterFacts:
    """Collect what Slurm and this machine report about the cluster; a missing tool adds nothing."""
    settings = {}
    slurm_config = try_command(["scontrol", "show", "config"]) or ""
    for line in slurm_config.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            settings[name.strip()] = value.strip()
    containers = []
    srun_help = try_command(["srun", "--help"]) or ""
    if "--container-image" in srun_help:
        containers.append("pyxis")
    if shutil.which("apptainer"):
        containers.append("apptainer")
    mount_points: set[str] = set()
    with contextlib.suppress(OSError):
        for mount in psutil.disk_partitions(all=True):
            if _NETWORK_FILE_SYSTEM.fullmatch(mount.fstype):
                mount_points.add(mount.mountpoint)
    interfaces = [path.name for path in Path("/sys/class/net").glob("*")]
    return ClusterFacts(
        settings=settings,
        accounts=list_accounts(),
        shared=sorted(mount_points),
        containers=containers,
        interfaces=sorted(name for name in interfaces if _FAST_INTERFACE.match(name)),
    )


def locate_option(group: str, name: str, usage: str | None) -> Path:
    """Return where the file of a group's option is written.

    Raises UserError: usage, secret_on_line.
    """
    if not re.fullmatch(r"\w[\w.-]*", name):
        message = f"names must match [A-Za-z0-9_][A-Za-z0-9_.-]*, got '{name}'"
        raise refusal("usage", message, "command line", usage)
    if process_redactor().redact_text(name) != name:
        message = "the name holds a secret, which the name of the file would show"
        raise refusal("secret_on_line", message, "command line", "use another name")
    return default_user_folder(os.environ) / group / f"{name}.yaml"


def write_option(path: Path, text: str, beside: Mapping[str, object] | None = None) -> None:
    """Write a new file, after renewing the JSON files `beside` it, which are given by name.

    Raises UserError: not_writable.
    """
    try:
        for name, content in (beside or {}).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path.parent / name, content)
        create_file(path, text)
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror or error}"
        cure = "set another folder, or use --print"
        raise refusal("not_writable", message, USER_DIR_VARIABLE, cure) from error
