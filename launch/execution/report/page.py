"""Render the page of runs or of a trial: one HTML file that loads nothing, and write it."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from launch.errors import refusal
from launch.execution.completion import find_model_changes
from launch.execution.record.attempts import find_resumes
from launch.execution.record.evidence import (
    describe_unreached,
    fold_unreached,
    read_steps_before,
)
from launch.execution.record.run import Run, mapping, objects
from launch.execution.record.steps import MetricCurves
from launch.execution.report.charts import build_charts
from launch.execution.report.document import Document
from launch.execution.report.drawing import DASHES, Drawing
from launch.execution.report.evaluation import read_evaluation, read_samples
from launch.execution.report.summary import (
    Figure,
    collect_figures,
    describe_ending,
    describe_non_finite_metrics,
    find_state,
    flag_rows,
    git_rows,
    guard_rows,
    label_runs,
    single_value_figures,
    tabulate_runs,
    version_figures,
)
from launch.execution.report.timeline import build_timelines
from launch.files import write_file
from launch.table import Table, format_duration, format_measurement
from launch.terminal import printable
from launch.worker.evidence import Evidence
from launch.worker.finding import Finding
from launch.worker.json_codec import to_json

PAGE_FILE = "report.html"
_FOLDER = Path(__file__).parent
_CHART_SCRIPTS = ("drawing.js", "charts.js")
_MAX_POINTS = 40_000  # points of all curves of a page, which take about 2 MB


def render_runs(
    runs: Sequence[Run],
    tables: Sequence[Table] = (),
    notes: Sequence[str] = (),
    *,
    title: str | None = None,
    labels: Sequence[str] | None = None,
    lead: tuple[str, str] | None = None,
    is_sequence: bool = False,
) -> str:
    """Return the page of one run, or of several with their curves in the same charts.

    `tables` and `notes` compare the runs; they follow the figures of the runs. The default of
    `title` is the names of the runs, and that of `labels` the shortest names that differ. `lead` has
    the state of them all and a sentence about it. `is_sequence`: each run follows the one before it,
    and so do its steps in the charts.
    """
    run_by_label = dict(zip(labels, runs, strict=True)) if labels else label_runs(runs)
    default_title = runs[0].name
    comparison: list[list[str]] = []
    if len(runs) > 1:
        default_title = f"{len(runs)} runs: {', '.join(run_by_label)}"
        comparison = tabulate_runs(run_by_label)
    marks: list[tuple[int, str]] = []
    for label, run in run_by_label.items():
        name = f"{label}: " if len(runs) > 1 else ""
        if len(run.attempts) < 2:
            continue
        changes = find_resumes(run.attempts, read_steps_before(run))
        marks += [(step, f"{name}{text}") for step, text in changes]
    starts: dict[str, int] = {}
    if is_sequence:
        starts = _follow_each_other(run_by_label)
        marks = [(start, label) for label, start in starts.items() if start]
    return _render(
        title or default_title,
        {label: run.metrics for label, run in run_by_label.items()},
        {label: _kind_of(run) for label, run in run_by_label.items()},
        marks=marks,
        starts=starts,
        lead=lead,
        runs=[_run_sections(label, run) for label, run in run_by_label.items()],
        comparison=comparison,
        tables=tables,
        notes=notes,
    )


def render_document(document: Document) -> str:
    """Return the page of a trial, with the curves of its short runs."""
    return _render(document.title, document.runs, {}, trial=document)


def _follow_each_other(runs: Mapping[str, Run]) -> dict[str, int]:
    """Return the steps of the runs before each one, by its label."""
    starts = {}
    done = 0
    for label, run in runs.items():
        starts[label] = done
        done += run.metrics.last_step or 0
    return starts


def _kind_of(run: Run) -> str:
    return str(mapping(run.settings.get("stage")).get("kind") or "")


def _render(
    title: str,
    curves_by_run: Mapping[str, MetricCurves],
    kinds: Mapping[str, str],
    marks: Sequence[tuple[int, str]] = (),
    starts: Mapping[str, int] | None = None,
    **content: Any,
) -> str:
    """Return a page: its head, its style and its scripts, its charts, and the rest of its content.
    `kinds` has the kind of each run's stage, `marks` the steps after which a run was resumed
    or another one began, and `starts` the steps before each run of a pipeline.

    The page's content security policy allows these scripts and nothing else.
    """
    for curves in curves_by_run.values():
        curves.thin(_MAX_POINTS // len(curves_by_run))
    drawn = []
    always_0 = []
    single_values: list[Figure] = []
    for unmarked in build_charts(curves_by_run, kinds, starts):
        chart = replace(unmarked, marks=marks)
        if chart.is_always_0:
            always_0.append(chart.title)
        elif chart.is_drawn:
            drawn.append(chart)
        else:
            single_values.extend(single_value_figures(chart))
    style = _read("page.css")
    script_names = [*_CHART_SCRIPTS, "page.js"] if drawn else ["page.js"]
    scripts = [_read(name) for name in script_names]
    template = _environment().get_template("page.html.j2")
    page = template.render(
        title=title,
        style=style,
        colours=_light_colours(style),
        dashes=DASHES,
        scripts=scripts,
        policy=_content_security_policy(scripts),
        written=time.time(),
        drawings=[Drawing(chart) for chart in drawn],
        single=single_values,
        always_0=always_0,
        data=to_json(drawn),
        **content,
    )
    return str(page)


def _run_sections(label: str, run: Run) -> dict[str, Any]:
    """Return what the template shows of one run."""
    attempts = run.event_summary.attempts
    resumed_from = [attempt.get("resumed_from") for attempt in run.attempts]
    warnings = run.event_summary.warnings.values()
    plan_warnings = objects(run.plan.get("warnings"))
    guard_events = run.event_summary.guards
    evidence, unreached = fold_unreached([Evidence.read(item) for item in run.evidence])
    return {
        "evidence": evidence,
        "unreached": describe_unreached(unreached) if unreached else None,
        "label": label,
        "record": run,
        "state": find_state(run),
        "verdict": describe_ending(run),
        "figures": collect_figures(run),
        "setup": collect_figures(run, "plan"),
        "not_risen": run.outcome.reward.finding() if run.outcome and run.outcome.reward else None,
        "not_finite": describe_non_finite_metrics(run),
        "model_changes": [change.message for change in find_model_changes(run.folder)],
        "timelines": build_timelines(attempts, resumed_from),
        "warnings": sorted(warnings, key=lambda warning: -warning.count),
        "evaluation": read_evaluation(run.folder),
        "samples": read_samples(run),
        "guards": guard_rows(run.settings),
        "guard_findings": [(event.time, Finding.read(event.data)) for event in guard_events],
        "plan_warnings": [Finding.read(warning) for warning in plan_warnings],
        "flags": flag_rows(run.plan),
        "versions": version_figures(run.versions),
        "git": git_rows(run.git),
    }


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _light_colours(style: str) -> Mapping[str, str]:
    """Return the colours of the light style by name.

    A drawing has them as attributes, which count where the page's style does not: in a saved SVG.
    """
    light, _, _ = style.partition("@media")
    return dict(re.findall(r"--(\w+): (#[0-9a-f]+)", light))


def _content_security_policy(scripts: Sequence[str]) -> str:
    """Return the policy that allows inline styles, inline pictures, and these scripts by digest."""
    sources = []
    for script in scripts:
        digest = hashlib.sha256(script.encode()).digest()
        sources.append(f"'sha256-{base64.b64encode(digest).decode()}'")
    allowed_scripts = " ".join(sources)
    return (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src {allowed_scripts}"
    )


@cache
def _environment() -> Any:
    import jinja2
    from markupsafe import Markup

    def clean(value: object) -> object:
        """Remove the escape codes and other control characters of a name or a log."""
        if isinstance(value, (Markup, jinja2.Undefined)):
            return value
        return printable(str(value))

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
    environment.filters["value"] = format_measurement
    environment.filters["numbers"] = _guard_numbers
    environment.filters["sentence"] = lambda text: _mark_code(printable(str(text)))
    environment.filters["finding"] = lambda finding: Markup(printable(finding.html()))
    return environment


def _mark_code(text: str) -> Any:
    """Return a sentence as HTML, in which `a command` is marked as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def format_local_time(moment: float) -> str:
    """Format unix seconds in this machine's zone: `2026-11-22 18:04:11 CET (+0100)`."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z (%z)", time.localtime(moment))


def format_utc(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def _guard_numbers(finding: Finding) -> list[Figure]:
    """Return the numbers on which a guard based its finding."""
    figures = []
    for name, value in finding.numbers.items():
        text = format_measurement(value) if isinstance(value, float) else str(value)
        figures.append(Figure(name.replace("_", " "), text))
    return figures


_LARGE = 100_000_000  # bytes of metrics.jsonl, which take some seconds to read
_BYTES_PER_SECOND = 25_000_000  # one core's reading speed: 0.43 GB of eleven metrics took 11 s


def announce_reading(folders: Iterable[Path], notify: Callable[[str], None]) -> None:
    """Report how much there is to read of these runs, and about how long that takes.

    Nothing is reported where it takes a few seconds.
    """
    files = [folder / "metrics.jsonl" for folder in folders]
    size = sum(file.stat().st_size for file in files if file.is_file())
    if size > _LARGE:
        duration = format_duration(size / _BYTES_PER_SECOND)
        notify(f"reading {size / 1e9:.1f} GB of metrics, about {duration}")


def write_run_report(run: Run, notify: Callable[[str], None]) -> None:
    """Write report.html into a run's folder; any problem with it is a warning."""
    announce_reading([run.folder], notify)
    write_report(run.folder, lambda: render_runs([run]), notify)


def write_report(folder: Path, render: Callable[[], str], notify: Callable[[str], None]) -> None:
    """Write what `render` returns as report.html into a folder, and report its path.

    A problem is only a warning, because the outcome of the run has been recorded.
    """
    try:
        write_file(folder / PAGE_FILE, render())
    except KeyboardInterrupt:
        notify("the report was left out: interrupted")
    except Exception as error:
        notify(
            f"warning: {folder / PAGE_FILE} could not be written: {type(error).__name__}: {error}"
        )
    else:
        notify(f"report: {folder / PAGE_FILE}")


def save_page(path: Path, page: str) -> None:
    """Write a page that the user requested. Raises UserError: report_not_written."""
    try:
        write_file(path, page)
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror or error}"
        raise refusal("report_not_written", message) from None
