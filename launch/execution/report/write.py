"""Write the page of a run or of a trial at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from launch.errors import Problem, UserError
from launch.execution.display.progress import format_duration
from launch.files import write_file

_LARGE = 100_000_000  # bytes of metrics.jsonl, which take some seconds to read
_BYTES_PER_SECOND = 25_000_000  # read by one core, as docs/how-to/report.md measured it


def announce_reading(folders: Iterable[Path], notify: Callable[[str], None]) -> None:
    """Report how much there is to read of these runs, and about how long that takes, where it takes a while."""
    files = [folder / "metrics.jsonl" for folder in folders]
    size = sum(file.stat().st_size for file in files if file.is_file())
    if size > _LARGE:
        notify(f"reading {size / 1e9:.1f} GB of metrics, about {format_duration(size / _BYTES_PER_SECOND)}")


def write_run_report(folder: Path, notify: Callable[[str], None]) -> None:
    """Write report.html into a run's folder; whatever goes wrong with it is a warning and changes nothing else."""

    def render() -> str:
        from launch.execution.report.page import render_runs
        from launch.execution.report.run import ReportedRun

        announce_reading([folder], notify)
        return render_runs([ReportedRun(folder)])

    write_report(folder, render, notify)


def write_report(folder: Path, render: Callable[[], str], notify: Callable[[str], None]) -> None:
    """Write what `render` returns as report.html into a folder, and print its path; a problem is a warning."""
    from launch.execution.report.page import FILE

    try:
        write_file(folder / FILE, render())
    except KeyboardInterrupt:
        notify("the report was left out: interrupted")
    except Exception as error:  # the outcome is recorded: no fault of a page may change it
        notify(f"warning: {folder / FILE} could not be written: {type(error).__name__}: {error}")
    else:
        notify(f"report: {folder / FILE}")


def save_page(path: Path, page: str) -> None:
    """Write a page that was asked for. Raises UserError: report_not_written."""
    try:
        write_file(path, page)
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror or error}"
        raise UserError(Problem("report_not_written", message)) from None
