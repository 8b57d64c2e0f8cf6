"""What bench, rollout and tune share: one published shape in every state, one refusal, no
secret.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.errors import UserError
from launch.trials.record import State, TrialRecord, archive_other_format, read_earlier
from launch.trials.trial import describe_machine_changes
from launch.trials.tune.search import Stop
from tests.conftest import fixed_machine
from tests.trials.bench.benches import WORDS, benched, made_up, planned, steps
from tests.trials.bench.test_record import diverging, failing
from tests.trials.records import check, read
from tests.trials.rollout import plans
from tests.trials.rollout.test_record import WORDS as WIDTHS
from tests.trials.rollout.test_record import rolled
from tests.trials.tune.searches import failed, out_of_memory, record_in
from tests.trials.tune.test_record import fastest, own, with_probes


def bench_without_losses(home: Path) -> TrialRecord:
    return benched(
        home, run=lambda run: made_up(run, [{"step": s["step"], "seconds": 1.0} for s in steps()])
    )[0]


def tuned(home: Path) -> TrialRecord:
    record = record_in(home)
    second = record.estimates[1].prediction
    return with_probes(
        record, fastest(record), out_of_memory(second), failed(own(record).prediction)
    )


def tuned_with_nan(home: Path) -> TrialRecord:
    record = record_in(home)
    return with_probes(record, fastest(record, loss=math.nan), own(record))


def failed_search(home: Path) -> TrialRecord:
    record = record_in(home)
    return with_probes(record, failed(record.estimates[1].prediction), stop=Stop.all_failed)


RECORDS: dict[str, tuple[Callable[[Path], TrialRecord], State]] = {
    "bench_planned": (lambda home: planned(home, *WORDS), State.planned),
    "bench_done": (lambda home: benched(home, "repeats=2")[0], State.done),
    "bench_failed": (lambda home: benched(home, run=failing)[0], State.failed),
    "bench_nan": (lambda home: benched(home, run=diverging)[0], State.done),
    "bench_bare": (bench_without_losses, State.done),
    "bench_of_one_setting": (lambda home: benched(home, a=(), b=())[0], State.done),
    "rollout_planned": (lambda home: plans.record_of(plans.planned(home, *WIDTHS)), State.planned),
    "rollout_done": (rolled, State.done),
    "rollout_failed": (lambda home: rolled(home, {"gpu2": [3.0, 2.9, math.nan]}), State.failed),
    "rollout_not_run": (lambda home: rolled(home, cards=1), State.not_run),
    "tune_running": (record_in, State.running),
    "tune_done": (tuned, State.done),
    "tune_nan": (tuned_with_nan, State.done),
    "tune_failed": (failed_search, State.failed),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_fits_the_schema_in_every_state(name: str, tmp_path: Path) -> None:
    make, state = RECORDS[name]
    record = make(tmp_path)
    document = read(record)
    check(document)
    assert document["state"] == record.state == state and document["summary"]
    assert {path.suffix for path in record.folder.glob(f"{record.verb}.*")} == {
        ".json",
        ".txt",
        ".md",
    }
    text, markdown = (
        record.path.with_suffix(suffix).read_text(encoding="utf-8") for suffix in (".txt", ".md")
    )
    for sentence in document["summary"]:
        assert sentence in markdown and " ".join(sentence.split()) in " ".join(text.split())


def test_the_schema_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip(
        "jsonschema", reason="the `open-instruct` dependencies bring it"
    )
    document = read(rolled(tmp_path))
    runs = [{**document["runs"][0], "why": "no key of a run"}]
    for change in (
        {"extra": 1},
        {"state": "fine"},
        {"schema_version": 2},
        {"verb": "tune"},
        {"runs": runs},
    ):
        with pytest.raises(jsonschema.ValidationError):
            check({**document, **change})


def test_the_folder_of_another_trial_is_refused(tmp_path: Path) -> None:
    record = planned(tmp_path, *WORDS)
    subject = {"stage": "sft", "trainer": "trl_sft"}

    def earlier() -> dict[str, Any] | None:
        return read_earlier(record.folder, "bench", subject, restart=False)

    assert earlier() is None
    document = read(record)
    assert earlier() == document
    for key, other in (("stage", "dpo"), ("trainer", "finetune")):
        record.path.write_text(json.dumps({**document, key: other}))
        own = subject[key]
        with pytest.raises(UserError, match=rf"{key} {other}.*{key} {own}.*\[other_trial\]"):
            earlier()
    record.path.write_text("{")
    with pytest.raises(UserError, match=r"\[other_trial\]"):
        earlier()


def test_a_trial_of_another_format_is_archived_only_by_restart(tmp_path: Path) -> None:
    record, _, ran = benched(tmp_path)
    document = read(record)
    subject = {"stage": "sft"}
    lines: list[str] = []
    archive_other_format(record.folder, "bench", lines.append)
    assert lines == [] and record.path.exists()
    others = ([], {}, {**document, "schema_version": 2}, {**document, "verb": "tune"})
    for other in (*others, {key: document[key] for key in document if key != "schema_version"}):
        record.path.write_text(json.dumps(other))
        with pytest.raises(UserError, match=r"restart=true.*\[other_format\]"):
            read_earlier(record.folder, "bench", subject, restart=False)
        assert read_earlier(record.folder, "bench", subject, restart=True) is None
    archive_other_format(record.folder, "bench", lines.append)
    assert not record.folder.exists()
    (archive,) = record.folder.parent.glob(f"{record.folder.name}.*/")
    assert str(archive) in lines[0] and len(list(archive.glob("*/plan.json"))) == len(ran)


def test_a_run_of_another_format_is_neither_reused_nor_archived(tmp_path: Path) -> None:
    record, _, ran = benched(tmp_path)
    folder = record.runs[0].plan.folder
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    (folder / "plan.json").write_text(json.dumps({**plan, "schema_version": 2}))
    with pytest.raises(UserError, match=r"\[other_format\]"):
        benched(tmp_path)
    assert len(list(folder.parent.glob("*/plan.json"))) == len(ran)


@pytest.mark.parametrize("name", ["bench_failed", "rollout_not_run", "tune_failed"])
def test_no_secret_is_written(name: str, tmp_path: Path) -> None:
    secret = "hf_" + "PlantedTokenThatMustNeverBeWritten"
    record = RECORDS[name][0](tmp_path)
    record.runs[-1].message = f"the hub refused {secret}"
    record.write()
    for path in record.folder.glob(f"{record.verb}.*"):
        text = path.read_text(encoding="utf-8")
        assert secret not in text and "the hub refused" in text, path


@pytest.mark.parametrize(
    ("states", "combined"),
    [
        ([State.done, State.done], State.done),
        ([State.done, State.failed, State.planned], State.failed),
        ([State.failed, State.interrupted], State.interrupted),
        ([State.done, State.submitted, State.planned], State.submitted),
    ],
)
def test_the_state_of_a_trial_is_that_of_its_least_finished_run(
    states: list[State], combined: State, tmp_path: Path
) -> None:
    record = planned(tmp_path, *WORDS)
    record.runs = [
        replace(run, state=state) for run, state in zip(record.runs, states, strict=False)
    ]
    assert record.state == combined


def test_runs_of_another_card_or_version_are_not_reused(tmp_path: Path) -> None:
    first, _, ran = benched(tmp_path)
    assert len(ran) == 6
    plan = first.runs[2].plan
    path = plan.folder / "versions.json"
    path.write_text(json.dumps({"packages": {"trl": "1.16.0"}}))
    assert benched(tmp_path)[2] == ["B2"]
    today = {"trl": "1.17.0", "torch": "2.13.0"}
    here = replace(plan, machine=replace(fixed_machine(), versions=today))
    path.write_text(json.dumps({"packages": today}))
    assert describe_machine_changes(here) is None
    path.write_text(json.dumps({"packages": today, "gpus": [{"name": "NVIDIA H200"}]}))
    here = replace(plan, machine=replace(fixed_machine(), versions=today, card="NVIDIA A100"))
    assert describe_machine_changes(here) == "GPU was NVIDIA H200, is NVIDIA A100"
