"""Start, follow and stop runs from Python."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import psutil

from launch.api.cures import check_advice
from launch.api.planning import overrides, pipeline_overrides, plan
from launch.config.compose import Composed
from launch.config.line import CommandLine
from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, UserError, refusal
from launch.execution.announcements import report_finished
from launch.execution.display import Display, SafeDisplay
from launch.execution.earlier_runs import note_earlier_run
from launch.execution.engine import build_cache, carry_out
from launch.execution.record.lock import (
    Holder,
    find_holder,
    lock_path,
    prove_launcher,
    run_lock,
    this_process,
)
from launch.execution.record.run import Run, command_for, is_running
from launch.execution.record.run_status import RunStatus
from launch.execution.report.page import save_page
from launch.execution.resume import describe_continuation, is_finished
from launch.external import wait_until
from launch.files import read_json_object
from launch.planning.build import plan_on_this_machine
from launch.planning.find_runs import find_runs, run_name
from launch.planning.parallel import require_one_machine
from launch.planning.plan import Plan
from launch.resources import ROOT
from launch.worker.finding import Finding

STOP_PATIENCE = 30.0  # seconds; a tear-down takes at most 15
_MESSAGE = re.compile(r"^launch: (?P<message>.*) \[(?P<id>\w+)\]$", re.MULTILINE)


@dataclass(frozen=True, repr=False)
class RunHandle:
    """A run, live or finished: follow it, wait for it, stop it, read what it recorded so far."""

    folder: Path

    def __repr__(self) -> str:
        return repr(self.status())

    @property
    def name(self) -> str:
        """`stage/name`, as the verbs take it."""
        return run_name(self.folder)

    @property
    def _run(self) -> Path:
        return self.folder

    @property
    def model(self) -> Path:
        return self._run / "model"

    def status(self) -> RunStatus:
        """Read the state, phase, step, loss and outcome."""
        return Run(self._run).status

    def metrics(self) -> Any:
        """Return the logged steps so far: a pandas DataFrame where pandas is installed, else a list
        of dicts.
        """
        steps = list(Run(self._run).steps())
        try:
            import pandas
        except ImportError:
            return steps
        return pandas.DataFrame(steps).drop(columns="schema_version", errors="ignore")

    def evidence(self) -> Mapping[str, Any] | None:
        """Return evidence.json: each requested setting, proven, refuted or unproven; None before
        the first step.
        """
        return read_json_object(self._run / "evidence.json") or None

    def report(self, path: str | Path | None = None) -> Path:
        """Write the run's page, into its folder or to `path`, and return where it is.

        Raises UserError: report_not_written.
        """
        from launch.execution.report.page import PAGE_FILE

        page = self.folder / PAGE_FILE if path is None else Path(path)
        save_page(page, self._render_page())
        return page

    def _render_page(self) -> str:
        from launch.execution.report.page import render_runs

        return render_runs([Run(self.folder)])

    def wait(self, seconds: float | None = None) -> RunStatus:
        """Wait until the run has ended, at most `seconds`, and return its status."""
        wait_until(lambda: not is_running(self.folder), seconds)
        return self.status()

    def stop(self) -> bool:
        """End every process of the run, as Ctrl-C does; return whether all have ended.

        Raises UserError: not_running, runs_elsewhere, launcher_mismatch.
        """
        lock = lock_path(self.folder)
        holder = self.holder
        if holder is None:
            raise refusal("not_running", f"{self.name} is not running")
        if holder.machine != this_process().machine:
            message = f"{self.name} runs on {holder.host} as process {holder.pid}"
            cure = f"there: {command_for('stop', self.folder)}"
            raise refusal("runs_elsewhere", message, None, cure)
        process = prove_launcher(lock, holder)
        if process is None:
            message = (
                f"{lock} names process {holder.pid}, which does not hold that file: "
                "no signal was sent"
            )
            cure = "remove the file if no launcher works on this run"
            raise refusal("launcher_mismatch", message, None, cure)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
            if process.status() == psutil.STATUS_STOPPED:  # a suspended process handles no signal
                process.resume()
        return wait_until(lambda: self.holder is None, STOP_PATIENCE)

    @property
    def holder(self) -> Holder | None:
        """The launcher that works on the run; None without one."""
        found = find_holder(lock_path(self.folder))
        return found[0] if found else None


@dataclass(frozen=True, repr=False)
class PipelineHandle(RunHandle):
    """A pipeline: `wait` and `stop` apply to all of it, and the rest to the last stage that has
    begun.
    """

    @property
    def stages(self) -> list[RunHandle]:
        """The runs of the stages, in order; one that has not started has no folder yet."""
        from launch.pipelines.record import stage_runs

        return [RunHandle(folder) for _, folder in stage_runs(self.folder)]

    @property
    def _run(self) -> Path:
        folders = [stage.folder for stage in self.stages]
        return next((folder for folder in reversed(folders) if folder.exists()), folders[0])

    def _render_page(self) -> str:
        from launch.pipelines.page import render_pipeline

        return render_pipeline(self.folder)


@overload
def run(stage: str, **keys: Any) -> RunHandle: ...
@overload
def run(*, pipeline: Sequence[str], **keys: Any) -> PipelineHandle: ...
def run(stage: str | None = None, *, pipeline: Sequence[str] = (), **keys: Any) -> RunHandle:
    """Start a run in a process of its own, which outlives this one, and return when it has started
    or is done.

    With `pipeline`, the names of stages, start them one after the other; a stage's name among the
    keys has a mapping of keys for it alone. The launcher's output is written to `logs/launch.log`
    of the run's folder. Raises UserError with what cannot work, and RuntimeError if the launcher
    ends otherwise before the run has started.
    """
    if (stage is None) != bool(pipeline):
        raise TypeError("run() takes a stage or a pipeline")
    if stage is None:
        from launch.pipelines.links import plan_pipeline

        line = pipeline_overrides(pipeline, keys)
        planned = plan_pipeline(CommandLine("run", False, tuple(line)), lambda text: None)
        assert planned is not None  # it has stages
        started: RunHandle = PipelineHandle(planned.folder)
    else:
        line = overrides(stage, keys)
        started = RunHandle(plan(stage, **keys).plan.folder)
    command = [sys.executable, "-P", "-m", "launch", "run", *line, "detach=true"]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryFile() as output:
        env = {**os.environ, "PYTHONPATH": path}
        launcher = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env
        )
        code = launcher.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    if code == EXIT_DONE:
        return started
    problems = [Finding.error(match["id"], match["message"]) for match in _MESSAGE.finditer(text)]
    if problems:
        raise UserError(problems)
    raise RuntimeError(f"the launcher ended with exit code {code}:\n{text[-2000:]}")


def run_composed(
    composed: Composed, make_display: Callable[[Path], Display], *, is_swept: bool = False
) -> int:
    """Run a composed stage in this process to its end and return the exit code; `make_display`
    takes the run folder, and a run of a sweep (`is_swept`) continues none of another width.

    This is what the verb `run` does. Raises UserError when it cannot be started.
    """
    require_one_machine(composed.config)
    notes: list[str] = []
    planned = plan_on_this_machine(composed, is_swept=is_swept)
    note_earlier_run(planned, notes.append)
    return run_with_display(planned, make_display, notes)


def run_with_display(
    planned: Plan, make_display: Callable[[Path], Display], notes: Sequence[str] = ()
) -> int:
    """Run a plan in this process to its end and return the exit code; the display, which
    `make_display` makes for the run folder, first shows the notes.

    Raises UserError when it cannot be started.
    """
    display = SafeDisplay(make_display(planned.folder), sys.stdout)
    for note in notes:
        display.say(f"note: {note}")
    code = run_planned(planned, display)
    if code == EXIT_INTERRUPTED:
        display.say(describe_continuation(planned))
    return code


def run_planned(planned: Plan, display: Display) -> int:
    """Run a plan in this process to its end, unless its run is done, evaluate its model, and return
    the exit code.

    Raises UserError when it cannot be started.
    """
    for warning in check_advice(planned, planned.warnings):
        display.say(f"warning: {warning}")
    if planned.config.cache_only:
        return build_cache(planned, display)
    if is_finished(planned):
        report_finished(planned, display)
        code = EXIT_DONE
    else:
        with run_lock(planned.folder, display.say):
            code = carry_out(planned, display)
    if planned.config.evaluate and code == EXIT_DONE:
        from launch.evaluation.evaluate import evaluate_finished_run

        evaluate_finished_run(planned, display.say)
    return code


def runs(folder: str | Path = "runs") -> list[RunHandle]:
    """Return every run below `folder`, live or finished, sorted by stage and name."""
    return [RunHandle(path) for path in find_runs(Path(folder).expanduser().absolute())]
