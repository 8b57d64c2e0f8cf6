"""Write the page of a run or of a trial at its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_LARGE = 100_000_000  # bytes of metrics.jsonl, which take some seconds to read


def write_run_report(folder: Path, notify: Callable[[str], None]) -> None:
    """Write report.html into a run's folder; whatever goes wrong with it is a warning and changes nothing else."""

    def render() -> str:
        from launch.execution.report.page import render_runs
        from launch.execution.report.run import read_run

        metrics = folder / "metrics.jsonl"
        size = metrics.stat().st_size if metrics.is_file() else 0
        if size > _LARGE:
            notify(f"writing the report of {size / 1e9:.1f} GB of metrics")
        return render_runs([read_run(folder)])

    write_report(folder, render, notify)


def write_trial_report(folder: Path, notify: Callable[[str], None]) -> None:
    """Write report.html into the folder of a rollout, a bench or a tune; a problem is a warning."""

    def render() -> str:
        from launch.execution.report.page import render_trial
        from launch.execution.report.trials import read_trial

        return render_trial(read_trial(folder))

    write_report(folder, render, notify)


def write_report(folder: Path, render: Callable[[], str], notify: Callable[[str], None]) -> None:
    """Write what `render` returns as report.html into a folder, and print its path; a problem is a warning."""
    from launch.execution.report.page import FILE, write_page

    try:
        write_page(folder / FILE, render())
    except KeyboardInterrupt:
        notify("the report was left out: interrupted")
    except Exception as error:  # the outcome is recorded: no fault of a page may change it
        notify(f"warning: {folder / FILE} could not be written: {type(error).__name__}: {error}")
    else:
        notify(f"report: {folder / FILE}")
