"""What users see, recorded through the command line; `./scripts/golden` writes it anew.

A change here is a change for users: it comes in a commit that changes nothing else, and says why.
"""

from __future__ import annotations

import contextlib
import hashlib
import html
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from launch import resources
from launch.api.cures import VERBS as CURED
from launch.commands.verbs import VERBS
from launch.config.line import parse_line
from launch.errors import UserError
from launch.trials.view import read_trial
from launch.upstream.trainers import ENTRIES
from tests.fixtures.pack import PACKED
from tests.golden.lines import FILES, MISTAKES, OWN_STAGES
from tests.golden.recorder import Terminal, describe_json
from tests.test_cures import follow_cures

Golden = Callable[[str, Sequence[str]], None]

CONFIGS = resources.ROOT / "configs" / "tulu"
STAGES = sorted(path.stem for path in (CONFIGS / "stage").glob("*.yaml"))
TRAINERS = sorted(path.stem for path in (CONFIGS / "trainer").glob("*.yaml"))
WIDTHS = ("device=cpu", "gpus=1", "gpus=8")
TEXTS = (
    ("demo", "device=cpu"),
    ("demo", "device=cpu", "trainer=trl_sft"),
    ("demo_dpo", "device=cpu"),
    ("demo_lora", "device=cpu", "trainer=trl_sft"),
    ("sft_25pct", "gpus=8"),
    ("sft", "nodes=2", "gpus=8"),
    ("lora_sft", "gpus=1"),
    ("dpo", "gpus=8", "parallel=zero3"),
    ("rm", "gpus=2"),
    ("sft", "gpus=8", "trainer=olmo_core_finetune", "model=olmo2_1b", "recipe.packing=bins"),
)
RECORDED_TRIALS = {
    "bench": resources.ROOT / "benchmarks" / "h200x4_bench_sft_8b.json",
    "rollout": PACKED / "rollout" / "demo" / "rollout-627f24cb" / "rollout.json",  # its places are placeholders
    "tune": resources.ROOT / "benchmarks" / "h200x4_tune_dpo_8b.json",
}
SHOWN = "dpo_tune_cache"  # the trainer whose flags are recorded in full: required, renamed and not settable ones
UPSTREAM_SCRIPTS = Path(os.environ.get("OPEN_INSTRUCT_DIR", "/nonexistent"), "scripts")
SUBMODULE = resources.ROOT / "external" / "open-instruct" / "open_instruct"

without_submodule = pytest.mark.skipif(
    SUBMODULE.exists(), reason="the plans are recorded without a checkout, and the submodule is one"
)


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    place = Terminal(tmp_path, monkeypatch)
    for name, text in FILES.items():
        path = place.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    stages = Path(os.environ["XDG_CONFIG_HOME"]) / "launch" / "stage"
    stages.mkdir(parents=True)
    for name, text in OWN_STAGES.items():
        (stages / f"{name}.yaml").write_text(text, encoding="utf-8")
    return place


@without_submodule
@pytest.mark.parametrize("stage", STAGES)
def test_every_trainer_and_width(stage: str, terminal: Terminal, golden: Golden) -> None:
    """`plan --json`: the first plan of a trainer in full, then what differs at the other widths."""
    lines: list[str] = []
    accepted = 0
    for trainer in TRAINERS:
        base: dict[str, str] | None = None
        for width in WIDTHS:
            printed = terminal.run("plan", f"stage={stage}", f"trainer={trainer}", width, "--json")
            if printed.code:
                assert printed.err.strip(), printed.line
                lines += printed.lines()
                continue
            accepted += 1
            described, leaves = describe_json(printed.out, base)
            shown = f"$ launch {printed.line}" + ("" if base is None else "   (what differs from the first)")
            lines += [shown, *described, *(f"stderr: {line}" for line in printed.err.splitlines()), ""]
            base = base or leaves
    assert accepted, f"no trainer plans {stage}"
    golden(f"plans/{stage}", lines)


@without_submodule
@pytest.mark.parametrize("line", TEXTS, ids="-".join)
def test_plan_as_text(line: tuple[str, ...], terminal: Terminal, golden: Golden) -> None:
    printed = terminal.run("plan", f"stage={line[0]}", *line[1:])
    assert printed.code == 0, printed.err
    name = "-".join(word.replace("=", "_") for word in line)
    golden(f"plan_text/{name}", printed.lines())


@without_submodule
def test_mistakes(terminal: Terminal, golden: Golden) -> None:
    """The messages of over a hundred bad lines, and of some that are meant to be good."""
    before = sorted(path.relative_to(terminal.folder) for path in terminal.folder.rglob("*"))
    printed = [terminal.run(*line) for line in MISTAKES]
    after = sorted(path.relative_to(terminal.folder) for path in terminal.folder.rglob("*"))
    assert len(MISTAKES) >= 100
    assert sum(one.code == 2 for one in printed) >= 100, "most of these lines are mistakes"
    assert before == after, "a refused line leaves nothing behind"
    assert [one.line for one in printed if "Traceback" in one.err] == []
    golden("mistakes", [line for one in printed for line in one.lines()])


@pytest.mark.slow
def test_no_cure_of_a_mistake_leads_back(terminal: Terminal) -> None:
    followed, dead = 0, list[tuple[object, ...]]()
    for argv in MISTAKES:
        with contextlib.suppress(UserError):  # what is no line of overrides: a misspelt verb, a key that stands twice
            line = parse_line(argv, list(VERBS))
            if line.verb in CURED and not line.sweeps and not line.asks_hydra:
                count, ends = follow_cures(line)
                followed, dead = followed + count, dead + ends
    print(f"{followed} cures followed")
    assert dead == [] and followed > 30


def test_flags(terminal: Terminal, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the trainers' source, so without help: one of them in full, some of its flags as JSON, all by digest."""
    monkeypatch.setattr("launch.commands.flags.ROOT", terminal.folder)
    monkeypatch.setattr("launch.commands.flags.package_folders", lambda python: [])
    lines: list[str] = []
    for trainer in ENTRIES:
        printed = terminal.run("flags", trainer)
        as_json = terminal.run("flags", trainer, "--json")
        assert printed.code == as_json.code == 0, printed.err + as_json.err
        shown = "\n".join([*printed.lines(), *describe_json(as_json.out)[0]])
        flags, sentence = len(json.loads(as_json.out)["flags"]), printed.err.splitlines()[-1]
        lines.append(f"{trainer}: {flags} flags, {hashlib.sha256(shown.encode()).hexdigest()[:16]}; {sentence}")
    single = terminal.run("flags", SHOWN, "loss*", "--json")
    golden("flags", [*lines, "", *terminal.run("flags", SHOWN).lines(), *describe_json(single.out)[0]])


@pytest.mark.parametrize("kind", RECORDED_TRIALS)
def test_page_of_a_recorded_trial(kind: str, terminal: Terminal, golden: Golden) -> None:
    """The page of a recorded trial, without scripts and styles, and what its run writes as text and as Markdown."""
    folder = terminal.folder / "runs" / "sft" / kind
    folder.mkdir(parents=True)
    shutil.copy(RECORDED_TRIALS[kind], folder / f"{kind}.json")
    printed = terminal.run("report", f"runs/sft/{kind}")
    assert printed.code == 0, printed.err
    page = (folder / "report.html").read_text(encoding="utf-8")
    document = read_trial(folder)
    written = [f"== {kind}.txt", *document.text().splitlines(), "", f"== {kind}.md", *document.markdown().splitlines()]
    shown = [*printed.lines(), *_visible_text(page), "", *written]
    golden(f"trials/{kind}", [terminal.mask(line).rstrip() for line in shown])


@without_submodule
@pytest.mark.skipif(
    not (UPSTREAM_SCRIPTS / "train").is_dir(), reason="OPEN_INSTRUCT_DIR names no checkout with scripts/"
)
def test_lint_of_upstreams_own_scripts(terminal: Terminal, golden: Golden) -> None:
    """Against the lock: lint's sentences about every script that open-instruct ships at the pin."""
    terminal.name_place(UPSTREAM_SCRIPTS, "scripts")
    printed = terminal.run("lint", str(UPSTREAM_SCRIPTS))
    assert "commands:" in printed.err
    golden("lint/upstream_scripts", printed.lines())


def _visible_text(page: str) -> list[str]:
    text = re.sub(r"(?s)<(script|style)\b.*?</\1>", "", page)
    text = re.sub(r"</?(tr|p|div|h\d|li|table|section|details|summary|svg)\b[^>]*>", "\n", text)
    text = html.unescape(re.sub(r"<[^>]+>", " ", text))
    return [line for line in (" ".join(line.split()) for line in text.splitlines()) if line]
