"""What `check` finds in a plan's data, when all of its rows are tokenised."""

from __future__ import annotations

from launch.check.machine.rule import as_finding
from launch.data.samples import find_sample_problems
from launch.errors import UserError
from launch.execution.preview import tokenize_samples
from launch.planning.plan import Plan
from launch.worker.finding import Finding

DATA_RULE = "data_tokens"
_DETAIL = 50  # samples of each data set whose template and masks are looked at


def inspect_data(plan: Plan, rows: int | None) -> list[Finding]:
    """Tokenise the rows of local data, at most `rows` of each data set, and describe them; hub data is not read."""
    findings = [
        Finding(DATA_RULE, "skipped", f"{entry.source.reference}: hub data, not read")
        for entry in plan.inputs.mixture
        if entry.source.local is None
    ]
    names = [", ".join(path.name for path in entry.data.files.paths[:3]) for entry in plan.inputs.mixture if entry.data]
    if names:
        findings += _inspect_local(plan, names, rows)
    return [finding.apply_allow(plan.config.allow) for finding in findings]


def _inspect_local(plan: Plan, names: list[str], rows: int | None) -> list[Finding]:
    try:
        data = tokenize_samples(plan, rows=rows, detail=_DETAIL, only_local=True)
    except UserError as error:
        return [as_finding(problem, "fail") for problem in error.problems]
    described = (f"{name}: {lengths.describe()}" for name, lengths in zip(names, data.lengths, strict=False))
    return [
        *(Finding(DATA_RULE, "pass", text) for text in described),
        *(as_finding(problem, "fail" if problem is data.refusal else "warn") for problem in find_sample_problems(data)),
    ]
