"""Renders batch scripts: Slurm's options, the environment, and one srun of `launch node`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from launch.config.cluster import ClusterConfig, Container, GpuSpelling
from launch.config.schema import Device
from launch.errors import refusal
from launch.planning.estimate.cards import slurm_type
from launch.planning.parallel import Width
from launch.redact import process_redactor
from launch.slurm.queue import folder_tag

_TEMPLATE = Path(__file__).with_name("job.sbatch.j2")
REQUEUE = Path(__file__).with_name("requeue.bash")  # also run by a node whose batch script is lost
_ARRAY_TEMPLATE = Path(__file__).with_name("array.sbatch.j2")
_COMMENT = re.compile(r"--comment[= ]\s*(?P<text>.*)")
_GPU_OPTIONS = {
    GpuSpelling.gres: "--gres=gpu:",
    GpuSpelling.gpus_per_node: "--gpus-per-node=",
    GpuSpelling.gpus_per_task: "--gpus-per-task=",
}


@dataclass(frozen=True)
class BatchScript:
    """The content of a batch script."""

    name: str
    title: str
    width: Width
    cluster: ClusterConfig
    overrides: Sequence[str]  # overrides of `launch node`, or the arguments of another verb
    cwd: str
    python: str
    folder: str  # the job folder
    output: str  # the log's path, in which Slurm fills in %x and %j (%A and %a in an array)
    exports: Mapping[str, str]
    verb: str = "node"
    server_gpus: int = 0  # of a server beside the ranks

    @property
    def gpus(self) -> int:
        """GPUs of each node."""
        return self.width.local + self.server_gpus


def _render(template: Path, **values: object) -> str:
    """Render a script.

    Raises UserError: secret_in_job, for what `cluster_problems` and the checks of the configuration
    do not see, such as the path of an interpreter.
    """
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    text = environment.from_string(template.read_text(encoding="utf-8")).render(**values)
    if process_redactor().redact_text(text) != text:
        message = (
            "the batch script would contain what looks like a secret, which must not be "
            "written into a job folder"
        )
        cure = "export it before you submit: the job inherits your environment"
        raise refusal("secret_in_job", message, None, cure)
    return text


def render_array_sbatch(script: BatchScript, scripts: Sequence[Path]) -> str:
    """Render the script of an array that runs one of `scripts` in each task.

    All tasks have the options of `script`.

    Raises UserError: secret_in_job.
    """
    limit = f"%{script.cluster.array_limit}" if script.cluster.array_limit else ""
    return _render(
        _ARRAY_TEMPLATE,
        title=script.title,
        options=[*_options(script), f"--array=0-{len(scripts) - 1}{limit}"],
        has_literals=_has_shell_signs(str(path) for path in scripts),
        scripts=[shlex.quote(str(path)) for path in scripts],
    )


def render_sbatch(script: BatchScript) -> str:
    """Render a job's script, which ends in a newline. Raises UserError: secret_in_job."""
    command = [*_container_command(script), script.python, "-m", "launch", script.verb]
    cluster = script.cluster
    modules = [f"module load {shlex.quote(name)}" for name in cluster.modules]
    exports = _export_lines(script)
    literals = [*cluster.setup, *modules, *exports, *script.overrides, script.cwd, *command]
    return _render(
        _TEMPLATE,
        has_literals=_has_shell_signs(literals),
        title=script.title,
        options=_options(script),
        setup=cluster.setup,
        modules=modules,
        exports=exports,
        requeue=REQUEUE.read_text(encoding="utf-8"),
        cwd=shlex.quote(script.cwd),
        folder=shlex.quote(script.folder),
        srun=_srun_options(script),
        command=shlex.join(command),
        overrides=[shlex.quote(override) for override in script.overrides],
        records_end=script.verb == "node",
    )


def _has_shell_signs(texts: Iterable[str]) -> bool:
    """Return whether a text contains a sign that the shell would expand outside single quotes."""
    return any("$" in text or "`" in text for text in texts)


def _options(script: BatchScript) -> list[str]:
    """Return the options of the #SBATCH lines."""
    cluster = script.cluster
    width = script.width
    options = [f"--job-name={script.name}", f"--nodes={width.nodes}", "--ntasks-per-node=1"]
    if cluster.cpus_per_rank is not None:
        options.append(f"--cpus-per-task={cluster.cpus_per_rank * width.local}")
    if width.device == Device.cuda:
        gpu_type = f"{slurm_type(cluster.gpu_type)}:" if cluster.gpu_type else ""
        options.append(f"{_GPU_OPTIONS[cluster.gpus]}{gpu_type}{script.gpus}")
    if cluster.memory is not None:
        options.append(f"--mem={cluster.memory}")
    if cluster.exclusive:
        options.append("--exclusive")
    for name in ("partition", "account", "qos", "time", "constraint", "exclude", "reservation"):
        value = getattr(cluster, name)
        if value is not None:
            options.append(f"--{name}={value}")
    if cluster.warn_before:  # the nodes' tasks get the signal; NCCL uses USR1
        options.append(f"--signal=USR2@{cluster.warn_before}")
    requeue = "--requeue" if cluster.requeues else "--no-requeue"
    options += [f"--output={script.output}", "--open-mode=append", requeue]
    comment: list[str] = []
    for option in cluster.options:
        user_comment = _COMMENT.fullmatch(option)
        if user_comment:
            comment = [user_comment["text"]]
        else:
            options.append(option)
    comment.append(folder_tag(Path(script.folder)))
    options.append(f"--comment={' '.join(comment)}")
    return [_quote_option(option) for option in options]


def _quote_option(text: str) -> str:
    """Quote an option of an #SBATCH line, where blanks split words and `#` begins a comment."""
    name, equals, value = text.partition("=")
    if not any(sign in value for sign in " #'&|()"):
        return text
    return f'{name}{equals}"{value}"'


def _export_lines(script: BatchScript) -> list[str]:
    lines = []
    prefixes = [""]
    if script.cluster.container == Container.apptainer:
        # Without the prefix the variables of the image take precedence.
        prefixes.append("APPTAINERENV_")
    for prefix in prefixes:
        for name, value in _variables(script).items():
            lines.append(f"export {prefix}{name}={shlex.quote(value)}")
    return lines


def _variables(script: BatchScript) -> dict[str, str]:
    variables = dict(script.exports)
    if script.cluster.interface:
        variables["NCCL_SOCKET_IFNAME"] = script.cluster.interface
        variables["GLOO_SOCKET_IFNAME"] = script.cluster.interface
    return variables | script.cluster.env


def _srun_options(script: BatchScript) -> list[str]:
    """Return the options of srun, quoted for the shell.

    `--mpi=none`: nothing here uses MPI, and a cluster's default plugin may not work.
    `--export=ALL`: what the script exports reaches the nodes even if the job was submitted with
    --export=NONE, which srun inherits. `--wait=120`: the nodes end together, so a node that lags
    far behind hangs. Since 22.05 srun does not inherit --cpus-per-task. The numbers of nodes and of
    tasks are those of this start: after `scontrol update` SLURM_NTASKS is still that of the first.
    """
    options = ["--mpi=none", "--export=ALL", "--kill-on-bad-exit=1", "--wait=120"]
    options += ['--nodes="$SLURM_JOB_NUM_NODES"', '--ntasks="$SLURM_JOB_NUM_NODES"']
    if script.cluster.cpus_per_rank is not None:
        # The value of the job may come from sbatch's command line, and may be missing.
        options.append('${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"}')
    if script.cluster.container == Container.pyxis:
        options.append(shlex.quote(f"--container-image={script.cluster.image}"))
        # pyxis starts in the image's working directory, but `runs` may be relative to this one.
        options.append(f"--container-workdir={shlex.quote(script.cwd)}")
        if script.cluster.mounts:
            options.append(shlex.quote(f"--container-mounts={','.join(script.cluster.mounts)}"))
        variables = _variables(script)
        if variables:  # without the option the values of the image take precedence
            options.append(f"--container-env={','.join(variables)}")
    return options


def _container_command(script: BatchScript) -> list[str]:
    if script.cluster.container != Container.apptainer:
        return []
    argv = ["apptainer", "exec", "--nv", "--pwd", script.cwd]
    for mount in script.cluster.mounts:
        argv += ["--bind", mount]
    return [*argv, str(script.cluster.image)]
