"""Pages: their text is the record's, nothing in a record gets out of its place, and no record is
too broken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from launch.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_STOPPED
from launch.execution.record.outcome import Outcome
from launch.execution.record.run import Run
from launch.execution.report.page import render_runs, write_report, write_run_report
from tests.execution.report.folders import START, write_run

STEPS = [
    {
        "loss": 5.0 - step / 100,
        "learning_rate": 1e-5,
        "tokens": 100,
        "tokens_padded": 125,
        "grad_norm": 1.5,
    }
    for step in range(1, 101)
]
NAMESPACE = ' xmlns="http://www.w3.org/2000/svg"'  # a name: nothing is loaded from it
HOSTILE = (
    "<script>alert(1)</script><img src=x "
    "onerror=alert(2)>\x1b[31mred\x1b]0;title\x07\u202e</title>&\"'"
)


class Page(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, Mapping[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(page)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.text += f" {data}"

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])


def page_of(*folders: Path) -> Page:
    return Page(render_runs([Run(folder) for folder in folders]))


def test_one_value_is_a_number_and_the_loss_the_large_chart(tmp_path: Path) -> None:
    steps: list[dict[str, object]] = [{**step} for step in STEPS]
    steps[-1]["eval_token_accuracy"] = 0.25
    page = page_of(write_run(tmp_path / "demo" / "x", steps))
    assert "Measured once Token accuracy 25 % at step 100 Phases" in page.text
    charts = [attributes for tag, attributes in page.tags if tag == "figure"]
    large = [str(chart["aria-label"]) for chart in charts if chart["class"] == "chart large"]
    assert (
        len(large) == 1
        and large[0].startswith("Loss")
        and not any("oken accuracy" in str(c) for c in charts)
    )


def test_what_the_model_wrote_while_it_trained(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo" / "x", STEPS[:3])
    with (folder / "events.jsonl").open("a") as stream:
        for step, text in ((20, "It is red."), (0, "It it it")):
            event = {
                "kind": "completion",
                "step": step,
                "prompt": "What colour?",
                "completion": text,
                "rewards": {},
            }
            stream.write(
                json.dumps({"schema_version": 1, "time": START, "rank": 0, **event}) + "\n"
            )
        stream.write('{"kind": "completion", "prompt": [3], "rewards": {"x": "y"}}\n')
    assert (
        "Samples while training What colour? step answer 0 It it it 20 It is red."
        in page_of(folder).text
    )


def test_a_finished_run(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "demo" / "first", STEPS))
    assert "done finished after 100 steps in 1 min" in page.text
    for part in (
        "demo/first",
        "loss at step 100 4",
        "padding 20 %",
        "128 samples",
        "8 ranks x 4 per device x 4 accumulation",
    ):
        assert part in page.text
    assert "divergence factor 2.0, window 10 stall off" in page.text
    assert "--learning_rate" in page.text
    loss = next(
        line for chart in page.data for line in chart["lines"] if line["label"] == "training"
    )
    recorded = [
        json.loads(line)
        for line in (tmp_path / "demo/first/metrics.jsonl").read_text().splitlines()
    ]
    assert loss["steps"] == [entry["step"] for entry in recorded]
    assert loss["values"] == pytest.approx([entry["loss"] for entry in recorded], rel=1e-6)


def test_the_phases_and_their_times(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "demo" / "first", STEPS))
    for part in ("importing the trainer 5.0 s (", "tokenizing 7.0 s (", "training 30.0 s ("):
        assert part in page.text
    moments = [fields["datetime"] for tag, fields in page.tags if tag == "time"]
    assert "2026-09-21T14:13:20Z" in moments


def test_a_failure_has_its_cause_and_cure(tmp_path: Path) -> None:
    outcome = Outcome(
        EXIT_FAILED, 5.0, 0, None, cause="rank 3: out of "
                                         "memory", cause_id="gpu_memory", cure="halve the batch",
        detail=("tried to allocate 2 GiB",),
    )  # fmt: skip
    page = page_of(write_run(tmp_path / "demo" / "x", STEPS[:3], outcome))
    for part in (
        "failed failed after 3 steps",
        "rank 3: out of memory gpu_memory",
        "Cure: halve the batch",
        "2 GiB",
    ):
        assert part in page.text


def test_a_run_that_a_guard_stopped(tmp_path: Path) -> None:
    guard = {
        "id": "divergence",
        "message": "the loss rose",
        "numbers": {"median": 9.25, "best_median": 2.5},
    }
    outcome = Outcome(
        EXIT_STOPPED,
        5.0,
        0,
        None,
        cause="the loss rose",
        cause_id="divergence",
        guard=guard,
        checkpoint="/m/step_40",
    )
    events = [{"kind": "guard", "time": START + 40, "rank": 0, **guard, "stop": True}]
    page = page_of(write_run(tmp_path / "demo" / "x", STEPS, outcome, events))
    for part in (
        "median 9.25",
        "best median 2.5",
        "Last good checkpoint: /m/step_40",
        "stopped stopped after 100 steps",
    ):
        assert part in page.text


def test_a_loss_that_is_nan(tmp_path: Path) -> None:
    steps = [*STEPS[:3], {"loss": float("nan")}, {"loss": float("inf")}]
    page = page_of(
        write_run(
            tmp_path / "demo" / "x", steps, Outcome(EXIT_INTERRUPTED, 5.0, 0, None, cause="SIGINT")
        )
    )
    assert "loss is nan at step 4, 2 times in all" in page.text
    assert page.data[0]["lines"][0]["values"][3:] == ["nan", "inf"]


def test_several_runs_share_the_charts(tmp_path: Path) -> None:
    faster = [{**step, "tokens": 200, "tokens_padded": 250} for step in STEPS]
    page = page_of(
        write_run(tmp_path / "demo" / "a", STEPS), write_run(tmp_path / "demo" / "b", faster[:50])
    )
    loss = next(chart for chart in page.data if chart["lines"][0]["label"] == "a")
    assert [(line["label"], len(line["steps"])) for line in loss["lines"]] == [
        ("a", 100),
        ("b", 50),
    ]
    assert "a done 100 4 " in page.text
    assert "b done 50 4.5 " in page.text


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    text = render_runs([Run(write_run(tmp_path / "demo" / "x", STEPS))])
    page = Page(text)
    assert {tag for tag, _ in page.tags} >= {"svg", "table", "details"}
    for tag, fields in page.tags:
        assert not {"src", "srcset", "action", "ping"} & set(fields)
        assert fields.get("href") in (None, "data:,"), tag
    own = text.replace(NAMESPACE, "")
    assert not re.search(r"https?://|url\(|@import|@font-face", own)
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|WebSocket|sendBeacon", own)
    policy = next(
        fields["content"]
        for _, fields in page.tags
        if fields.get("http-equiv") == "Content-Security-Policy"
    )
    assert str(policy).startswith("default-src 'none'")


def test_a_page_without_data_is_under_sixty_kilobytes(tmp_path: Path) -> None:
    bare = render_runs([Run(write_run(tmp_path / "demo" / "bare"))])
    drawn = render_runs(
        [Run(write_run(tmp_path / "demo" / "drawn", [{"loss": 1.0}, {"loss": 2.0}]))]
    )
    assert "<figure" in drawn and "<figure" not in bare
    assert len(bare.encode()) < len(drawn.encode()) < 60_000


def test_a_hundred_thousand_steps_are_under_five_megabytes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo" / "long")
    names = (
        "loss",
        "lr",
        "tokens",
        "tokens_padded",
        "grad_norm",
        "seconds",
        "rewards/chosen",
        "rewards/margin",
    )
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for step in range(1, 100_001):
            values = ", ".join(
                f'"{name}": {(step * 7919 + index) % 10007 / 7}' for index, name in enumerate(names)
            )
            file.write(f'{{"step": {step}, {values}}}\n')
    assert len(render_runs([Run(folder)]).encode()) < 5_000_000


def test_what_a_record_holds_stays_text(tmp_path: Path) -> None:
    plan = {
        "schema_version": 1, "stage": HOSTILE, "trainer": HOSTILE, "warnings": [HOSTILE, {"message": HOSTILE}],
        "flags": {HOSTILE: {"value": HOSTILE, "origin": HOSTILE, "where": HOSTILE}},
    }  # fmt: skip
    guard = {"id": HOSTILE, "message": HOSTILE, "numbers": {HOSTILE: HOSTILE}}
    outcome = Outcome(
        EXIT_FAILED, 1.0, 0, None, cause=HOSTILE, cause_id=HOSTILE, cure=HOSTILE, detail=(HOSTILE,)
    )
    events = [
        {"kind": "warning", "time": START, "rank": 0, "message": HOSTILE},
        {"kind": "guard", "time": START, "rank": 0, **guard},
    ]
    folder = write_run(
        tmp_path / "demo" / "a<b>&\x1b[31mc",
        [{"loss": 1.0, HOSTILE: 2.0}] * 2,
        outcome,
        events,
        plan,
    )
    items = [
        {
            "what": HOSTILE,
            "requested": HOSTILE,
            "found": [HOSTILE],
            "verdict": HOSTILE,
            "how": HOSTILE,
        }
    ]
    (folder / "evidence.json").write_text(json.dumps({"items": items}))
    (folder / "git.json").write_text(json.dumps({HOSTILE: {"commit": HOSTILE}}))
    (folder / "versions.json").write_text(
        json.dumps({"python": HOSTILE, "packages": {"torch": HOSTILE}})
    )
    (folder / "patches.json").write_text(json.dumps([{"id": HOSTILE, "reason": HOSTILE}]))
    (folder / "command.sh").write_text(HOSTILE)
    for folders in ((folder,), (folder, write_run(tmp_path / "demo" / "other"))):
        text = render_runs([Run(each) for each in folders])
        page = Page(text)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert not [tag for tag, _ in page.tags if tag == "img"]
        assert [fields.get("id") for tag, fields in page.tags if tag == "script"] == [
            "data",
            None,
            None,
            None,
        ]
        assert not [name for _, fields in page.tags for name in fields if name.startswith("on")]
        assert page.text.count("<script>alert(1)</script>") > 10


def test_a_running_run_and_one_whose_launcher_was_killed(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "demo" / "x", STEPS[:7], outcome=None))
    assert "unfinished its launcher ended without recording an outcome, after 7 steps" in page.text
    assert "saving the model its end was not recorded" in page.text


def test_a_resumed_run_has_a_timeline_for_each_attempt(tmp_path: Path) -> None:
    again = [{"kind": "phase", "phase": phase, "time": START + 100 + after, "rank": 0} for phase, after in
             (("import", 0), ("load", 4), ("training", 10))]  # fmt: skip
    folder = write_run(tmp_path / "demo" / "x", STEPS, outcome=None, events=again)
    entries = [{"attempt": 1, "resumed_from": None}, {"attempt": 2, "resumed_from": "step_40"}]
    (folder / "attempts.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    text = page_of(folder).text
    assert "Attempt 1, begun" in text
    assert re.search(r"Attempt 2, begun .*, resumed from step_40", text)


BROKEN = {
    "nothing": {},
    "an empty plan": {"plan.json": ""},
    "half a plan": {"plan.json": '{"schema_version": 1, "stage": "de'},
    "a plan of another type": {"plan.json": "[1, 2]"},
    "fields of other types": {
        "plan.json": '{"flags": 3, "batch": [1], "parallel": "x", "warnings": 4, "stage": {"a": '
        "1}}",
        "versions.json": '{"packages": 1, "gpus": [3, {"name": null}]}',
        "git.json": '{"launch": 3, "open-instruct": {}}',
        "patches.json": '[3, {"id": 4}]',
        "evidence.json": '{"items": [3, {}, {"what": 4, "verdict": ["x"]}]}',
        "attempts.jsonl": '3\n{"resumed_from": 4}\n',
        "config.yaml": "guards: 3",
        "DONE": '{"exit_code": 0, "seconds": "x"}',
    },
    "an outcome of other types": {
        "FAILED": '{"exit_code": 3, "seconds": 1, "steps": 1, "last_loss": null, '
        '"ended_processes": 0, "cause": 4,'
        ' "finished": "then", "guard": {"numbers": 3, "id": 4}, "detail": [1], "cure": 4, '
        '"checkpoint": 5}',
        "plan.json": "{}",
    },
    "events of other types": {
        "events.jsonl": '{"kind": "phase", "time": "x"}\n3\n'
        '{"kind": "phase", "time": 1e300, "phase": "load", "rank": 0}\n{"kind": "guard", "time": '
        "4}\n"
        '{"kind": "phase", "time": -5e300, "phase": "training", "rank": 0}\n{"kind": "guard", '
        '"time": NaN}\n'
        '{"kind": "warning", "time": 1, "rank": [1]}\n{"kind": "total_steps", "time": 2, "steps": '
        '"x"}\n',
    },
    "another format": {"plan.json": '{"schema_version": 0, "stage": "demo"}'},
    "YAML that is none": {"config.yaml": "guards: {a: [}\n\x00"},
    "bytes": dict.fromkeys(
        ("plan.json", "metrics.jsonl", "events.jsonl", "command.sh", "config.yaml"), "\0\udcff"
    ),
    "huge totals": {
        "metrics.jsonl": "".join(
            f'{{"step": {step}, "seconds": 1e308, "tokens": 1e308}}\n' for step in (1, 2)
        ),
        "DONE": '{"exit_code": 0, "seconds": Infinity, "steps": 1, "last_loss": null, '
        '"ended_processes": 0}',
        "events.jsonl": '{"kind": "phase", "time": Infinity, "phase": "load", "rank": 0}\n',
    },
    "huge values": {
        "metrics.jsonl": '{"step": 1, "loss": 1e308}\n{"step": 2, "loss": -1e308}\n{"step": 3, '
        '"loss": -1e308}\n'
    },
}


@pytest.mark.parametrize("files", BROKEN.values(), ids=BROKEN)
def test_a_broken_record_has_a_page(files: Mapping[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "demo" / "x"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    page = page_of(folder)
    assert any(
        state in page.text
        for state in ("unfinished its launcher", "stopped stopped", "done finished")
    )
    assert (
        "metrics.jsonl is missing" in page.text
        or "metrics.jsonl" in files
        or "plan.json" in page.text
    )


def test_another_format_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"schema_version": 0}')
    text = page_of(tmp_path).text
    assert "plan.json is not in format 1, which this version reads: its schema_version is 0" in text
    assert "[other_format]" in text


def test_a_page_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    folder, printed = write_run(tmp_path / "demo" / "x", STEPS[:2]), list[str]()
    (folder / "report.html").mkdir()
    before = sorted(path.name for path in folder.iterdir())
    write_run_report(Run(folder), printed.append)
    assert [line.partition(" could not")[0] for line in printed] == [
        f"warning: {folder}/report.html"
    ]
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_long_wait_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from launch.commands.reports import compare, report

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("launch.execution.report.page._LARGE", 100)
    folder, printed = write_run(tmp_path / "demo" / "x", STEPS), list[str]()
    write_run_report(Run(folder), printed.append)
    assert printed == ["reading 0.0 GB of metrics, about 0 s", f"report: {folder / 'report.html'}"]
    for verb in (report, compare):
        assert (
            verb(
                [
                    str(folder),
                    str(write_run(tmp_path / "demo" / f"{verb.__name__}-y", STEPS)),
                    f"runs={tmp_path}",
                ]
            )
            == 0
        )
        assert capsys.readouterr().err == "launch: reading 0.0 GB of metrics, about 0 s\n"


def test_a_fault_of_the_page_and_an_interrupt_are_warnings(tmp_path: Path) -> None:
    def fail(error: BaseException) -> str:
        raise error

    printed: list[str] = []
    write_report(tmp_path, lambda: fail(ZeroDivisionError("x")), printed.append)
    write_report(tmp_path, lambda: fail(KeyboardInterrupt()), printed.append)
    assert printed[0].endswith("could not be written: ZeroDivisionError: x")
    assert printed[1] == "the report was left out: interrupted"
    write_report(tmp_path, lambda: "<p>", printed.append)
    assert printed[2] == f"report: {tmp_path / 'report.html'}"
