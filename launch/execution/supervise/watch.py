"""Runs the guards on the facts of a run, and ends the run when one of them fails.

The guards have a thread of their own, which neither the pump (it must keep reading while stacks are
dumped) nor the display (its terminal may block) can delay. A WatchConfig has what it needs of a plan.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import psutil

from launch.check.machine.disk import checkpoint_interval, nearest_existing, written_bytes
from launch.config.guards import GuardsConfig
from launch.config.kinds import Kind
from launch.config.line import CommandLine, override_key
from launch.execution.diagnosis.advice import Situation
from launch.execution.facts import (
    DiskUsage,
    Fact,
    FileUsed,
    GuardContext,
    GuardFinding,
    PhaseStarted,
    RankExited,
    Tick,
)
from launch.execution.guards import build_guards
from launch.execution.record.attempts import earlier_losses, has_several_widths, resumed_step
from launch.execution.record.checkpoints import (
    Checkpoint,
    Layout,
    RunLayouts,
    find_checkpoints,
    layout_of,
)
from launch.execution.record.written import read_layouts
from launch.execution.supervise.reaper import is_zombie
from launch.execution.supervise.stacks import PeerNodes, Stacks, dump_stacks
from launch.planning.build import plan_line
from launch.planning.estimate.out_of_memory import RunSettings
from launch.planning.estimate.planned_setting import UnknownMemoryError, planned_setting
from launch.planning.model_folder import weight_bytes
from launch.planning.plan import Plan
from launch.planning.read_files import CHANGED, LoadedFiles, describe_changes

_LOADED = ("reference_logprobs", "first_step", "training")  # phases after everything was loaded
_TICK = 0.5  # seconds between two checks of the processes
_DISK_EVERY = 5.0  # seconds between two checks of the free space
# Seconds between two checks of the sizes of checkpoint files, which load a network file system.
_CHECKPOINTS_EVERY = 60.0


def measure_checkpoint(checkpoint: Checkpoint) -> tuple[int, float]:
    """Return the bytes of a checkpoint's files, and when the last was written, in unix seconds.

    Files that disappear meanwhile do not count.
    """
    size = 0
    last_write = 0.0
    for path in checkpoint.path.rglob("*"):
        try:
            status = path.stat()
        except OSError:
            continue
        if path.is_file():
            size += status.st_size
            last_write = max(last_write, status.st_mtime)
    return size, last_write


def free_bytes(path: Path) -> int | None:
    """Return the bytes that this user may still write at `path`, which need not exist; None if
    unknown.
    """
    try:
        return shutil.disk_usage(nearest_existing(path)).free
    except OSError:
        return None


class Watch:
    """Passes the facts of one run to every guard, and ends it when one decides so.

    Each guard warns once and stops once; those in `allow` only warn.
    `stacks_folder`: where stack dumps are written. `end_run` starts to end every process and
    returns False if the run had ended already. `peers`: the other nodes of the run, if there are
    any.
    """

    def __init__(
        self,
        config: WatchConfig,
        stacks_folder: Path,
        end_run: Callable[[], bool],
        peers: PeerNodes | None = None,
    ) -> None:
        self.stopped_by: GuardFinding | None = None  # the finding that ended the run
        self.in_time = False  # whether the run was still alive when that finding was made
        self.stacks: Stacks | None = None
        self.messages: deque[str] = deque(maxlen=1000)  # lines to show
        # Findings to record, warnings included.
        self.findings: deque[GuardFinding] = deque(maxlen=1000)
        self.config = config
        self._stacks_folder = stacks_folder
        self._end_run = end_run
        self._peers = peers
        self._published = False  # whether this node has published its stacks
        self._guards = build_guards(config.guards, config.guard_context)
        self._issued: set[tuple[str, bool]] = set()  # guard, and whether it stopped
        self._facts: queue.SimpleQueue[Fact | None] = queue.SimpleQueue()
        self._processes: dict[int, psutil.Process] = {}  # the processes by rank
        self._exited: set[int] = set()  # ranks
        self._has_changes = False  # whether it was reported that an input is not the planned one
        self._notes_seen = 0  # reported changes of inputs after they were loaded
        self._disk_checked = -_DISK_EVERY
        self._checkpoint_bytes: int | None = None
        self._checkpoint_checked = -_CHECKPOINTS_EVERY
        self._thread = threading.Thread(target=self._run, name="launch-guards", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, fact: Fact) -> None:
        """Queue a fact for the guards; may be called from any thread."""
        self._facts.put(fact)

    def add_process(self, rank: int, pid: int) -> None:
        """Watch the process of a rank, which has reported its start."""
        try:
            self._processes[rank] = psutil.Process(pid)
        except psutil.NoSuchProcess:  # it has exited already, so polling would never notice
            self._exited.add(rank)
            self._facts.put(RankExited(time.monotonic(), rank))
        except psutil.Error:
            return

    def close(self) -> None:
        """Check the remaining facts and stop the thread; call it when no process of the run is
        left.
        """
        self._facts.put(None)
        self._thread.join()

    def last_good_checkpoint(self) -> tuple[Checkpoint | None, list[Checkpoint]]:
        """Return the newest complete checkpoint written before the last good step, and the complete
        ones after it.

        A good step that is logged after a checkpoint was written proves the checkpoint good: the
        loss of that step was computed with its weights or with later ones.
        """
        checkpoints = self.config.complete_checkpoints()
        good_until = self.stopped_by.good_until if self.stopped_by is not None else None
        if good_until is None:
            return (checkpoints[-1] if checkpoints else None), []
        wall_time = time.time() - (time.monotonic() - good_until)
        good = [
            checkpoint
            for checkpoint in checkpoints
            if measure_checkpoint(checkpoint)[1] <= wall_time
        ]
        later = [checkpoint for checkpoint in checkpoints if checkpoint not in good]
        return (good[-1] if good else None), later

    def _run(self) -> None:
        ticked = time.monotonic()
        while True:
            try:
                fact = self._facts.get(timeout=_TICK)
            except queue.Empty:
                pass
            else:
                if fact is None:
                    return
                self._check(fact)
            now = time.monotonic()
            if now - ticked >= _TICK and self.stopped_by is None and self._facts.empty():
                ticked = now
                self._poll(now)

    def _poll(self, now: float) -> None:
        for rank, process in list(self._processes.items()):
            if rank not in self._exited and not _is_alive(process):
                self._exited.add(rank)
                self._check(RankExited(now, rank))
        if now - self._disk_checked >= _DISK_EVERY:
            self._disk_checked = now
            self._check_disk(now)
        if self._peers is not None and not self._published and self._peers.progress == "stalled":
            self._published = True
            # If this fails, the requesting node reports this node as missing. No error may end
            # this thread, which still has to watch the ranks of this node.
            with contextlib.suppress(Exception):
                self._peers.publish_stacks(self._dump_local_stacks())
        self._check(Tick(now))

    def _check_disk(self, now: float) -> None:
        output = self.config.output
        if output is None:
            return
        free = free_bytes(output)
        if free is None:
            return
        if now - self._checkpoint_checked >= _CHECKPOINTS_EVERY:
            self._checkpoint_checked = now
            self._checkpoint_bytes = self._measure_newest_checkpoint()
        checkpoint_bytes = self._checkpoint_bytes or self.config.checkpoint_bytes
        model_bytes = self.config.model_bytes
        if model_bytes is not None:
            # The part that is written already needs no more space.
            model_bytes = max(0, model_bytes - weight_bytes(output))
        self._check(DiskUsage(now, free, checkpoint_bytes, model_bytes))

    def _measure_newest_checkpoint(self) -> int | None:
        checkpoints = self.config.complete_checkpoints()
        if not checkpoints:
            return None
        size, _ = measure_checkpoint(checkpoints[-1])
        return size

    def _check_inputs(self, fact: Fact) -> None:
        """End the run if what it has loaded is not what was planned; report later changes."""
        inputs = self.config.inputs
        if inputs is None:
            return
        if isinstance(fact, FileUsed):
            inputs.add(Path(fact.file.path), fact.file.state, fact.file.use)
        elif isinstance(fact, PhaseStarted) and fact.phase in _LOADED:
            inputs.compare()
        new = inputs.notes[self._notes_seen :]
        found = [GuardFinding.warning(CHANGED, note) for note in new]
        self._notes_seen = len(inputs.notes)
        if inputs.changes and not self._has_changes:
            self._has_changes = True
            changed = GuardFinding(CHANGED, describe_changes(inputs.changes))
            found.append(changed.apply_allow(self.config.allow))
        for finding in found:
            self._report(finding)

    def _report(self, finding: GuardFinding) -> None:
        """Record a finding, and end the run if it stops it."""
        self.findings.append(finding)
        if not finding.stops:
            self.messages.append(f"warning: {finding}")
        elif self.stopped_by is None:
            self._stop(finding)

    def _check(self, fact: Fact) -> None:
        self._check_inputs(fact)
        for guard in self._guards:
            found = guard.judge(fact)
            if found is None:
                continue
            finding = found.apply_allow(self.config.allow)
            if (guard.id, finding.stops) in self._issued:
                continue
            self._issued.add((guard.id, finding.stops))
            self._report(finding)

    def _stop(self, finding: GuardFinding) -> None:
        self.stopped_by = finding
        first = "dumping the stack of every rank, then " if finding.wants_stacks else ""
        if not finding.is_quiet:
            self.messages.append(f"guard {finding.id}: {first}ending every process of this run")
        if finding.wants_stacks:
            self.stacks = self._dump_all_stacks()
        self.in_time = self._end_run()

    def _dump_all_stacks(self) -> Stacks:
        """Return the stacks of every rank, or why there are none. The run ends in both cases."""
        try:
            if self._peers is None:
                return self._dump_local_stacks()
            self._peers.report_progress("stalled")
            local = self._dump_local_stacks()
            others = self._peers.collect_stacks()
        except Exception as error:  # of the disk, of psutil, or a fault of the dump itself
            return Stacks((), (f"no stacks: {str(error) or type(error).__name__}",))
        return Stacks((*local.files, *others.files), (*local.summary, *others.summary))

    def _dump_local_stacks(self) -> Stacks:
        living = {rank: process for rank, process in self._processes.items() if _is_alive(process)}
        return dump_stacks(living, self.config.guard_context.ranks, self._stacks_folder)


def _is_alive(process: psutil.Process) -> bool:
    return process.is_running() and not is_zombie(process)


@dataclass(frozen=True)
class WatchConfig:
    """The facts of a run that its supervisor needs besides the command."""

    guards: GuardsConfig | None = None  # None turns all guards off
    allow: Collection[str] = ()  # ids of guards that only warn
    guard_context: GuardContext = field(default_factory=GuardContext)
    inputs: LoadedFiles | None = None  # compares the loaded files; None: they are not compared
    output: Path | None = None  # the trainer's output folder
    # determines which checkpoints of this run are complete
    layout: Layout | RunLayouts | None = None
    checkpoint_bytes: int | None = None  # an estimate; None if unknown
    model_bytes: int | None = None  # an estimate; None if unknown
    situation: Situation = field(default_factory=Situation)

    def complete_checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints that the run could resume from, the newest last."""
        if self.output is None or self.layout is None:
            return []
        checkpoints = find_checkpoints(self.output, self.layout)
        return [checkpoint for checkpoint in checkpoints if checkpoint.complete]


def _can_be_planned(plan: Plan, overrides: str) -> bool:
    """Return whether the command line of a plan can be planned with other overrides."""
    changed = overrides.split()
    keys = [override_key(override) for override in changed]
    line = CommandLine("plan", False, plan.origins.overrides).without(*keys)
    try:
        plan_line(line.with_overrides(*changed))
    except Exception as error:  # a cure that can't be computed must not change the run's outcome
        return not any(key in str(error) for key in keys)
    return True


def build_watch_config(plan: Plan) -> WatchConfig:
    """Build the watch configuration of `plan` for a machine that runs all its ranks."""
    recipe = plan.config.recipe
    written = written_bytes(plan, os.environ)
    memory = None
    with contextlib.suppress(UnknownMemoryError):
        memory = planned_setting(plan, os.environ, flash=False)
    guards = plan.config.guards
    if guards is not None and plan.config.stage.kind == Kind.rlvr:
        guards = replace(guards, divergence=None)  # a GRPO loss is 0 by construction
    return WatchConfig(
        guards=guards,
        allow=tuple(plan.config.allow),
        guard_context=GuardContext(
            ranks=tuple(range(plan.batch.width)),
            checkpoint_every=checkpoint_interval(plan),
            total_steps=recipe.max_steps,
            losses=earlier_losses(plan.folder),
            resumed_step=resumed_step(plan.folder),
            repeats=plan.config.stage.kind != Kind.rlvr and not has_several_widths(plan.folder),
            model=plan.inputs.model.local,
        ),
        output=plan.model_dir,
        layout=read_layouts(plan.folder, layout_of(plan)),
        checkpoint_bytes=int(written[1]) if written else None,
        model_bytes=int(written[0]) if written else None,
        situation=Situation(
            trainer=plan.trainer,
            settings=RunSettings(
                batch=plan.batch,
                mode=plan.parallel.mode,
                device=plan.parallel.width.device,
                gradient_checkpointing=recipe.gradient_checkpointing,
                max_seq_length=recipe.max_seq_length,
                memory=memory,
                lengths=plan.lengths_file,
                plans=partial(_can_be_planned, plan),
            ),
            runs=plan.runs,
            cache=plan.cache,
            python=plan.command[0],
        ),
    )
