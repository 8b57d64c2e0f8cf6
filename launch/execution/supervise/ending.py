"""Decides how a run ended: done, failed, stopped or interrupted; and renders its closing lines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from launch.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_STOPPED
from launch.execution.facts import GuardFinding
from launch.execution.record.folder import RunFolder
from launch.execution.record.outcome import Outcome
from launch.execution.supervise.observer import Observer
from launch.execution.supervise.streams import SERVER_LOG
from launch.execution.supervise.watch import Watch
from launch.worker.json_codec import to_json
from launch.worker.wording import count_of

SERVER_DIED = "vllm_server_died"


@dataclass(frozen=True)
class RunEnd:
    """The outcome of a run, and the facts that only its closing lines need."""

    outcome: Outcome
    rank: int | None = None  # the rank whose log shows the cause
    notes: tuple[str, ...] = ()  # lines about checkpoints


def conclude(
    run: Outcome,
    *,
    status: int | None,
    interrupted: str | None,
    removed: Path | None,
    observer: Observer,
    watch: Watch,
    server_failure: str | None = None,
) -> RunEnd:
    """Decide how the `run` ended, which is done if nothing else is known.

    `status`: the launcher's exit status, None if this process ended the run. `interrupted`: the
    name of the signal by which the user ended it. `removed`: the run folder, if it was removed
    while the run wrote to it. `server_failure`: what the server beside the ranks did, if that ended
    the run.
    """
    if interrupted is not None:
        return RunEnd(
            replace(run, exit_code=EXIT_INTERRUPTED, cause=f"interrupted by {interrupted}")
        )
    if removed is not None:
        message = f"{removed} was removed while the run wrote to it"
        return RunEnd(replace(run, exit_code=EXIT_FAILED, cause=message, cause_id="folder_removed"))
    if server_failure is not None:  # the server is the cause, whatever the ranks report after it
        cause = observer.server_log.find_cause(server_failure, watch.config.situation)
        failed = replace(run, exit_code=EXIT_FAILED, cause=cause.line, detail=cause.detail)
        cure = cause.cure.text if cause.cure is not None else None
        return RunEnd(replace(failed, cause_id=SERVER_DIED, cure=cure))
    finding = watch.stopped_by
    is_late = not watch.in_time and (status != 0 or finding is None or finding.good_until is None)
    if finding is not None and not finding.failed and not is_late:
        return _stopped_by_guard(run, finding, watch)
    if status == 0:
        return RunEnd(run)
    cause = observer.causes.find_cause(status, watch.config.situation)
    is_named = cause.rank is None or cause.line.startswith(f"rank {cause.rank} ")
    line = cause.line if is_named else f"rank {cause.rank}: {cause.line}"
    failed = replace(run, exit_code=EXIT_FAILED, cause=line, detail=cause.detail)
    if finding is not None and finding.failed and not finding.is_quiet:
        failed = replace(failed, guard=to_json(finding))
    unmet = observer.causes.unmet_expectation()
    if unmet is not None:
        # The worker's own message already contains the advice, and a cure would match an unrelated
        # line of the log.
        failed = replace(failed, exit_code=EXIT_STOPPED, cause_id=unmet)
    elif cause.cure is not None:
        failed = replace(failed, cause_id=cause.cure.id, cure=cause.cure.text)
    return RunEnd(failed, cause.rank)


def _stopped_by_guard(run: Outcome, finding: GuardFinding, watch: Watch) -> RunEnd:
    good, later = watch.last_good_checkpoint()
    if good is not None:
        notes = [f"last good checkpoint: {good.path}"]
    elif finding.good_until is not None:
        notes = ["there is no complete checkpoint from before that"]
    else:
        notes = ["there is no complete checkpoint"]
    if later:
        names = ", ".join(checkpoint.path.name for checkpoint in later)
        notes.append(f"written after the last known good step: {names}")
    stopped = replace(
        run,
        exit_code=EXIT_STOPPED,
        cause=finding.message,
        cause_id=finding.id,
        guard=to_json(finding),
        checkpoint=str(good.path) if good is not None else None,
    )
    if watch.stacks is not None:
        files = tuple(str(file) for file in watch.stacks.files)
        stopped = replace(stopped, detail=watch.stacks.summary, stacks=files)
    return RunEnd(stopped, notes=tuple(notes))


def end_lines(end: RunEnd, folder: RunFolder) -> list[str]:
    """Render the closing lines for the terminal; a finished run has none unless something is
    unusual.
    """
    outcome = end.outcome
    if outcome.exit_code == EXIT_DONE:
        ended = outcome.ended_processes
        return [f"ended {count_of(ended, 'process')} that the trainer left behind"] if ended else []
    detail = [f"  {line}" for line in outcome.detail]
    if outcome.exit_code == EXIT_INTERRUPTED:
        lines = [
            f"{outcome.cause}: {count_of(outcome.ended_processes, 'process')} ended, none left"
        ]
    elif outcome.exit_code == EXIT_STOPPED:
        cause = f": {outcome.cause}"
        if outcome.guard:
            cause = f" by a guard: {outcome.finding}"
        lines = [f"stopped {_format_progress(outcome)}{cause}", *detail, *end.notes]
        if outcome.stacks:
            folders = dict.fromkeys(str(Path(file).parent) for file in outcome.stacks)
            lines.append(f"stacks: {', '.join(folders)}")
    else:
        lines = [f"the run failed {_format_progress(outcome)}: {outcome.cause}", *detail]
        if outcome.cure_line:
            lines.append(outcome.cure_line)
        if outcome.ended_processes:
            lines.append(f"{count_of(outcome.ended_processes, 'process')} ended")
    logs = [folder.logs / "launcher.log"]
    if outcome.cause_id == SERVER_DIED:
        logs.insert(0, folder.logs / SERVER_LOG)
    if end.rank is not None:
        logs.insert(0, folder.logs / f"rank-{end.rank}.log")
    return [*lines, f"logs: {', '.join(str(log) for log in logs)}"]


def _format_progress(outcome: Outcome) -> str:
    return f"after step {outcome.steps}" if outcome.steps else "before its first logged step"
