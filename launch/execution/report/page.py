"""The page of runs or of a trial, one HTML file that loads nothing: its parts, its rendering, its
writing.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from launch.errors import refusal
from launch.execution.display import format_duration
from launch.execution.record.run import Run, mapping, objects
from launch.execution.record.steps import MetricCurves
from launch.execution.report.charts import build_charts, format_value
from launch.execution.report.document import Document
from launch.execution.report.drawing import DASHES, Drawing
from launch.execution.report.summary import (
    Figure,
    comparison,
    ending,
    figures,
    flag_rows,
    git_rows,
    guard_rows,
    labels,
    losses_that_are_not_finite,
    read_evaluation,
    read_samples,
    setup,
    single_values,
    verdict,
    version_figures,
)
from launch.execution.report.timeline import build_timelines
from launch.files import write_file
from launch.table import Table
from launch.terminal import printable

FILE = "report.html"
_FOLDER = Path(__file__).parent
_CHART_SCRIPTS = ("drawing.js", "charts.js")
_MAX_POINTS = 40_000  # of all curves of a page: about 2 MB


def render_runs(
    runs: Sequence[Run],
    tables: Sequence[Table] = (),
    notes: Sequence[str] = (),
    title: str | None = None,
) -> str:
    """Return the page of one run, or of several with their curves in the same charts.

    `tables` and `notes` compare them; they follow the figures of the runs. `title`: by default the
    names of the runs.
    """
    named = labels(runs)
    return _render(
        title or (runs[0].name if len(runs) == 1 else f"{len(runs)} runs: {', '.join(named)}"),
        {label: run.metrics for label, run in named.items()},
        runs=[_sections(label, run) for label, run in named.items()],
        comparison=comparison(named) if len(runs) > 1 else [],
        tables=tables,
        notes=notes,
    )


def render_document(document: Document) -> str:
    """Return the page of a trial, with the curves of its short runs."""
    return _render(document.title, document.runs, trial=document)


def _render(title: str, measured: Mapping[str, MetricCurves], **content: Any) -> str:
    """Return a page: its head, style and scripts, with the policy that allows nothing else, and its
    content.
    """
    for metrics in measured.values():
        metrics.thin(_MAX_POINTS // len(measured))
    charts = build_charts(measured)
    drawn = [chart for chart in charts if chart.is_drawn]
    style = _read("page.css")
    scripts = [_read(name) for name in ([*_CHART_SCRIPTS, "page.js"] if drawn else ["page.js"])]
    page = (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=title,
            style=style,
            colours=_light_colours(style),
            dashes=DASHES,
            scripts=scripts,
            policy="default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
            f"script-src {' '.join(map(_digest, scripts))}",
            written=time.time(),
            drawings=[Drawing(chart) for chart in drawn],
            single=[
                figure for chart in charts if not chart.is_drawn for figure in single_values(chart)
            ],
            data=[chart.as_json() for chart in drawn],
            **content,
        )
    )
    return str(page)


def _sections(label: str, run: Run) -> dict[str, Any]:
    return {
        "label": label,
        "record": run,
        "state": ending(run),
        "verdict": verdict(run),
        "figures": figures(run),
        "setup": setup(run),
        "not_finite": losses_that_are_not_finite(run),
        "timelines": build_timelines(
            run.event_summary.attempts, [at.get("resumed_from") for at in run.attempts]
        ),
        "warnings": sorted(run.event_summary.warnings.values(), key=lambda warned: -warned.count),
        "evaluation": read_evaluation(run.folder),
        "samples": read_samples(run),
        "guards": guard_rows(run.settings),
        "plan_warnings": [_describe(warning) for warning in objects(run.plan.get("warnings"))],
        "flags": flag_rows(run.plan),
        "versions": version_figures(run.versions),
        "git": git_rows(run.git),
    }


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _light_colours(style: str) -> Mapping[str, str]:
    """Return the colours by name: those of a drawing's attributes, which hold where the page's
    style does not.
    """
    return dict(re.findall(r"--(\w+): (#[0-9a-f]+)", style.partition("@media")[0]))


def _digest(script: str) -> str:
    """Return a script as the source of a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@cache
def _environment() -> Any:
    import jinja2
    from markupsafe import Markup

    def clean(value: object) -> object:
        """Escape codes and other control characters of a name or a log must not get into the
        page.
        """
        return value if isinstance(value, (Markup, jinja2.Undefined)) else printable(str(value))

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        finalize=clean,
        undefined=jinja2.Undefined,  # a key that a record lacks is shown as nothing
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["local_time"] = format_local_time
    environment.filters["utc"] = format_utc
    environment.filters["source"] = Markup
    environment.filters["value"] = format_value
    environment.filters["numbers"] = _numbers
    return environment


def format_local_time(moment: float) -> str:
    """Format unix seconds in this machine's zone: `2026-11-22 18:04:11 CET (+0100)`."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z (%z)", time.localtime(moment))


def format_utc(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def _numbers(guard: object) -> list[Figure]:
    numbers = mapping(mapping(guard).get("numbers"))
    return [
        Figure(
            name.replace("_", " "), format_value(value) if isinstance(value, float) else str(value)
        )
        for name, value in numbers.items()
    ]


def _describe(warning: Mapping[str, Any]) -> str:
    cure = f"; {warning['cure']}" if warning.get("cure") else ""
    return f"{warning.get('message')}{cure} [{warning.get('id')}]"


_LARGE = 100_000_000  # bytes of metrics.jsonl, which take some seconds to read
_BYTES_PER_SECOND = 25_000_000  # read by one core: 0.43 GB of eleven metrics took 11 s


def announce_reading(folders: Iterable[Path], notify: Callable[[str], None]) -> None:
    """Report how much there is to read of these runs, and about how long that takes, where it takes
    a while.
    """
    files = [folder / "metrics.jsonl" for folder in folders]
    size = sum(file.stat().st_size for file in files if file.is_file())
    if size > _LARGE:
        notify(
            f"reading {size / 1e9:.1f} GB of metrics, about "
            f"{format_duration(size / _BYTES_PER_SECOND)}"
        )


def write_run_report(folder: Path, notify: Callable[[str], None]) -> None:
    """Write report.html into a run's folder; whatever goes wrong with it is a warning and changes
    nothing else.
    """
    announce_reading([folder], notify)
    write_report(folder, lambda: render_runs([Run(folder)]), notify)


def write_report(folder: Path, render: Callable[[], str], notify: Callable[[str], None]) -> None:
    """Write what `render` returns as report.html into a folder, and print its path; a problem is a
    warning.
    """
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
        raise refusal("report_not_written", message) from None
