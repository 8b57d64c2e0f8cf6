"""What users see, recorded through the command line; `./scripts/golden` writes it anew.

A change here is a change for users: it comes in a commit that changes nothing else, and says why.
"""

from __future__ import annotations

import contextlib
import hashlib
import html
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from launch.api.cures import CURED_VERBS as CURED
from launch.commands.verbs import VERBS
from launch.config.line import parse_line
from launch.errors import UserError
from launch.trials.view import read_trial
from launch.upstream.trainers import ENTRIES
from tests.fixtures.pack import PACKED
from tests.golden.lines import MISTAKES
from tests.golden.recorder import Terminal, describe_json, mask_upstream, without_submodule
from tests.test_cures import follow_cures

Golden = Callable[[str, Sequence[str]], None]

# the places in them are placeholders
RECORDED_TRIALS = {
    kind: PACKED / kind / "demo" / f"{kind}-small" / f"{kind}.json"
    for kind in ("bench", "rollout", "tune")
}
# the trainer whose flags are recorded in full: required, renamed and not settable ones
SHOWN = "dpo_tune_cache"


@without_submodule
def test_mistakes(terminal: Terminal, golden: Golden) -> None:
    """The ids, places, values and exit codes of over a hundred bad lines, and of some that are
    meant to be good.
    """
    before = sorted(path.relative_to(terminal.folder) for path in terminal.folder.rglob("*"))
    printed = [terminal.run(*line) for line in MISTAKES]
    after = sorted(path.relative_to(terminal.folder) for path in terminal.folder.rglob("*"))
    assert len(MISTAKES) >= 100
    assert sum(one.code == 2 for one in printed) >= 100, "most of these lines are mistakes"
    assert before == after, "a refused line leaves nothing behind"
    assert [one.line for one in printed if "Traceback" in one.err] == []
    shown = [
        replace(one, out="(a plan)") if one.line.startswith("plan ") and one.out else one
        for one in printed
    ]
    golden("mistakes", [mask_upstream(line) for one in shown for line in one.answers()])


@pytest.mark.slow
def test_no_cure_of_a_mistake_leads_back(terminal: Terminal) -> None:
    followed, dead = 0, list[tuple[object, ...]]()
    for argv in MISTAKES:
        # what is no line of overrides: a misspelt verb, a key that stands twice
        with contextlib.suppress(UserError):
            line = parse_line(argv, list(VERBS))
            if line.verb in CURED and not line.sweeps and not line.asks_hydra:
                count, ends = follow_cures(line)
                followed, dead = followed + count, dead + ends
    print(f"{followed} cures followed")
    assert dead == [] and followed > 30


def test_flags(terminal: Terminal, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the trainers' source, so without help: one trainer in full, a line with a digest for
    each of the others.

    Lines of upstream's files are masked: the lock has them.
    """
    monkeypatch.setattr("launch.commands.flags.ROOT", terminal.folder)
    monkeypatch.setattr("launch.commands.flags.package_folders", lambda python: [])

    def flag_lines(*argv: str) -> list[str]:
        printed = terminal.run("flags", *argv)
        assert printed.code == 0, printed.err
        lines = describe_json(printed.out) if "--json" in argv else printed.lines()
        return [re.sub(r"(\.line = )\d+$", r"\1{line}", mask_upstream(line)) for line in lines]

    digests: list[str] = []
    for trainer in ENTRIES:
        text = "\n".join([*flag_lines(trainer), *flag_lines(trainer, "--json")])
        if trainer != SHOWN:
            digests.append(f"{trainer}: {hashlib.sha256(text.encode()).hexdigest()[:16]}")
    golden("flags", [*digests, "", *flag_lines(SHOWN), *flag_lines(SHOWN, "loss*", "--json")])


@pytest.mark.parametrize("kind", RECORDED_TRIALS)
def test_page_of_a_recorded_trial(kind: str, terminal: Terminal, golden: Golden) -> None:
    """The page of a recorded trial, without scripts and styles, and what its run writes as text and
    as Markdown.
    """
    folder = terminal.folder / "runs" / "sft" / kind
    folder.mkdir(parents=True)
    shutil.copy(RECORDED_TRIALS[kind], folder / f"{kind}.json")
    printed = terminal.run("report", f"runs/sft/{kind}")
    assert printed.code == 0, printed.err
    page = (folder / "report.html").read_text(encoding="utf-8")
    document = read_trial(folder)
    written = [
        f"== {kind}.txt",
        *document.text().splitlines(),
        "",
        f"== {kind}.md",
        *document.markdown().splitlines(),
    ]
    shown = [*printed.lines(), *_visible_text(page), "", *written]
    golden(f"trials/{kind}", [terminal.mask(line).rstrip() for line in shown])


def _visible_text(page: str) -> list[str]:
    text = re.sub(r"(?s)<(script|style)\b.*?</\1>", "", page)
    text = re.sub(r"</?(tr|p|div|h\d|li|table|section|details|summary|svg)\b[^>]*>", "\n", text)
    text = html.unescape(re.sub(r"<[^>]+>", " ", text))
    return [line for line in (" ".join(line.split()) for line in text.splitlines()) if line]
