"""Reads records of version 1, which bench, rollout and tune wrote in three shapes, as records of
version 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launch.execution.record.run import mapping, number, objects
from launch.execution.report.document import texts

_RENAMED = {
    "why": "message",
    "said": "message",
    "words": "overrides",
    "differs": "differences",
    "alike": "identical_settings",
    "padding_share": "padding",
    "last_loss": "loss",
    "minutes_allowed": "minutes",
    "probes_allowed": "probes",
    "run": "label",
    "setting": "label",
    "figures": "measured",
    "widths": "runs",
    "probes": "runs",
}
_STATES = {
    "passed": "done",
    "measured": "done",
    "predicted": "planned",
    **dict.fromkeys(("stopped", "out_of_memory", "host_memory", "refused"), "failed"),
}
_OPTIONS = (
    "steps",
    "warmup",
    "repeats",
    "order",
    "max_minutes",
    "loss_tolerance",
    "then",
    "price_per_gpu_hour",
    "minutes",
    "probes",
)


def upgrade(verb: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record, whatever it holds, with the keys of version 2 that a page, `compare` and a
    later call read.
    """
    if record.get("schema_version") == 2:
        return {**record, "verb": verb}
    new = mapping(_rename(dict(record)))
    new["schema_version"], new["verb"] = 2, verb
    new["options"] = {key: new.pop(key) for key in _OPTIONS if key in new}
    new["state"] = _STATES.get(str(new.get("state")), new.get("state", "unreadable"))
    {"bench": _upgrade_bench, "rollout": _upgrade_rollout, "tune": _upgrade_tune}[verb](new)
    for run in objects(new.get("runs")):
        run["state"] = _STATES.get(str(run.get("state")), run.get("state"))
    return new


def _rename(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            _RENAMED.get(key, key): _rename(item)
            for key, item in value.items()
            if key != "schema_version"
        }
    return [_rename(item) for item in value] if isinstance(value, list) else value


def _upgrade_bench(new: dict[str, Any]) -> None:
    sides = {side: mapping(new.pop(side, None)) for side in "ab"}
    new["settings"] = [{"label": side.upper(), **fields} for side, fields in sides.items()]
    new["trainer"] = sides["a"].get("trainer")
    for run in objects(new.get("runs")):
        run.update(sides.get(str(run.get("side")), {}))
    new["summary"] = texts(mapping(new.get("verdict")).get("message")) or [
        "no pair of runs is complete"
    ]
    new["summary"] += [str(new["message"])] if new.get("message") else []
    new["notes"] = [str(note.get("message")) for note in objects(new.get("notes"))]


def _upgrade_rollout(new: dict[str, Any]) -> None:
    runs = objects(new.get("runs"))
    passed = sum(run.get("state") == "passed" for run in runs)
    summary = [f"{passed} of {len(runs)} widths passed"]
    for run in runs:
        run["label"] = run.get("width")
        summary += [f"{run['label']}: {run['message']}"] if run.get("message") else []
        failed = [
            gate
            for gate in objects(run.get("gates"))
            if gate.get("verdict") == "fail" and not gate["allowed"]
        ]
        summary += [f"{run['label']}: {gate.get('message')} [{gate.get('id')}]" for gate in failed]
    new["summary"] = summary
    new["notes"] = [str(difference.get("what")) for difference in objects(new.get("differences"))]


def _upgrade_tune(new: dict[str, Any]) -> None:
    for run in objects(new.get("runs")):
        verdict, losses = str(run.get("verdict")), run.get("losses")
        run["state"], run["cause_id"] = (
            verdict,
            verdict if _STATES.get(verdict) == "failed" else None,
        )
        if isinstance(losses, list) and losses:
            run |= {"first_loss": losses[0], "loss": losses[-1]}
        run["measured"] = dict(run)
    best = new.get("best")
    summary = [f"the fastest setting measured is {best}" if best else "no setting was measured"]
    if new.get("overlay"):
        summary.append(f"+tuned={new.get('name')} applies it ({new['overlay']})")
    if new.get("stop"):
        summary.append(f"the search ended: {str(new['stop']).replace('_', ' ')}")
    median = number(mapping(new.get("loss_change")).get("median"))
    if median is not None:
        summary.append(
            f"its loss differs from the recipe's own by a median of {100 * median:.2g} %"
        )
    new["summary"] = summary
    new["notes"] = [f"left out: {reason}" for reason in texts(new.get("left_out"))]
