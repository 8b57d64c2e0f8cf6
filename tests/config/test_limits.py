"""A YAML or JSON file of any size, nesting or number of aliases is refused in a sentence, in
bounded time; a setting of Hydra itself is refused in every file and by every way in.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.config.yaml_nodes import YamlLimitError, load_yaml
from launch.execution.record.run import Run
from tests.conftest import Launch
from tests.execution.record.records import write_run

GLOBAL = "# @package _global_\n"
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 12)
)
BOMBS = {
    "a list of lists of aliases": LAUGHS,
    "maps of aliases": "a0: &a0 {x: 1}\n"
    + "".join(
        f"a{n}: &a{n} {{{', '.join(f'k{k}: *a{n - 1}' for k in range(9))}}}\n" for n in range(1, 12)
    ),
    "merged maps": "a0: &a0 {x: 1}\n"
    + "".join(f"a{n}: &a{n} {{l: *a{n - 1}, r: *a{n - 1}}}\n" for n in range(1, 40)),
    "a list inside itself": "a: &a [*a]\n",
    "a map inside itself": "a: &a\n  b: {c: *a}\n",
    "deep lists": f"a: {'[' * 5000}{']' * 5000}\n",
    "a chain of deep lists": "a0: &a0 1\n"
    + "".join(f"a{n}: &a{n} {'[' * 50}*a{n - 1}{']' * 50}\n" for n in range(1, 40)),
    "deep maps": f"a: {'{b: ' * 5000}1{'}' * 5000}\n",
    "deep lines": "".join(f"{' ' * depth}a:\n" for depth in range(800)),
    "dashes": f"a:\n{'- ' * 4000}x\n",
    "many keys": "".join(f"k{number}: 1\n" for number in range(150_000)),
    "a long text": f"a: {'x' * (5 << 20)}\n",
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the tests' own stages, in which `launch` runs."""
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", BOMBS)
def test_a_reader_of_plain_data(name: str, tmp_path: Path) -> None:
    with pytest.raises(YamlLimitError):
        load_yaml(BOMBS[name])
    run = write_run(tmp_path / "runs" / "demo" / "mine", steps=1)
    (run / "config.yaml").write_text(BOMBS[name], encoding="utf-8")
    assert Run(run).settings == {}


def test_what_people_write_is_read() -> None:
    assert load_yaml("base: &b {x: 1}\nall: [*b, *b]\nown: {<<: *b, y: 2}\n") == {
        "base": {"x": 1},
        "all": [{"x": 1}, {"x": 1}],
        "own": {"x": 1, "y": 2},
    }
    assert load_yaml("text: &t word\nlist: [*t]\n") == {"text": "word", "list": ["word"]}


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("a list of lists of aliases", "stage"),
        ("maps of aliases", "cluster"),
        ("merged maps", "model"),
        ("a map inside itself", "stage"),
        ("a list inside itself", "data"),
        ("deep lists", "tuned"),
        ("a chain of deep lists", "stage"),
        ("deep lines", "stage"),
        ("a long text", "cluster"),
    ],
)
def test_a_file_that_is_composed(config: Path, launch: Launch, name: str, group: str) -> None:
    (config / group).mkdir()
    (config / group / "mine.yaml").write_text(GLOBAL + BOMBS[name], encoding="utf-8")
    plus = "+" if group == "tuned" else ""
    stage = () if group == "stage" else ("stage=demo",)
    done = launch("plan", "trainer=trl_sft", *stage, f"{plus}{group}=mine")
    assert done.returncode == 2 and "[yaml_limit]" in done.stderr, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and f"{group}/mine.yaml:" in done.stderr


@pytest.mark.parametrize("text", ['a: "\\uDC85"', 'a: "\\ud83d"', 'a: "\\U00110000"', "a: \x01"])
def test_a_character_that_only_some_readers_of_yaml_accept(
    config: Path, launch: Launch, text: str
) -> None:
    (config / "stage").mkdir()
    (config / "stage" / "mine.yaml").write_text(f"{GLOBAL}{text}\n", encoding="utf-8")
    done = launch("plan", "trainer=trl_sft", "stage=mine")
    assert done.returncode == 2 and "[bad_yaml]" in done.stderr, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and "stage/mine.yaml:" in done.stderr


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_file_of_accelerate(config: Path, launch: Launch, suffix: str) -> None:
    text = LAUGHS if suffix == "yaml" else "[" * 100_000
    (config / f"mine.{suffix}").write_text(text, encoding="utf-8")
    done = launch(
        "plan",
        "trainer=trl_sft",
        "stage=demo",
        "parallel=zero3",
        "processes=2",
        f"parallel.accelerate_file=mine.{suffix}",
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize("text", [LAUGHS, BOMBS["deep lists"], BOMBS["a map inside itself"]])
def test_lint(config: Path, launch: Launch, text: str) -> None:
    (config / "job.yaml").write_text(
        f"run: python open_instruct/finetune.py\n{text}", encoding="utf-8"
    )
    done = launch("lint", "job.yaml")
    assert "Traceback" not in done.stderr and done.returncode in (0, 1, 2)


CALLS = "{x: {_target_: runpy.run_path, path_name: evil.py}}"
LOGS = (
    '{version: 1, handlers: {h: {"()": runpy.run_path, path_name: evil.py}}, root: {handlers: [h]}}'
)
HYDRA = {
    "a stage": (
        "stage/mine.yaml",
        f"{GLOBAL}defaults: [demo, _self_]\nhydra:\n  callbacks: {CALLS}\n",
        "stage=mine",
    ),
    "a cluster": ("cluster/mine.yaml", f"{GLOBAL}hydra:\n  callbacks: {CALLS}\n", "cluster=mine"),
    "a header": (
        "cluster/mine.yaml",
        f"# @package hydra.callbacks\n{CALLS[1:-1]}\n",
        "cluster=mine",
    ),
    "a global header": (
        "model/mine.yaml",
        f"# @package _global_.hydra\ncallbacks: {CALLS}\n",
        "model=mine",
    ),
    "logging": ("cluster/mine.yaml", f"{GLOBAL}hydra:\n  job_logging: {LOGS}\n", "cluster=mine"),
    "a group of Hydra": (
        "hydra/job_logging/default.yaml",
        f"# @package hydra.job_logging\n{LOGS[1:-1]}\n",
        "",
    ),
    "a package of the defaults": (
        "stage/mine.yaml",
        f"{GLOBAL}defaults: [demo, {{/data@hydra.callbacks: evil}}, _self_]\n",
        "stage=mine",
    ),
    "an override of the defaults": (
        "stage/mine.yaml",
        f"{GLOBAL}defaults: [demo, {{override /hydra/job_logging: evil}}, _self_]\n",
        "stage=mine",
    ),
    "a merged key": (
        "cluster/mine.yaml",
        f"{GLOBAL}<<: {{hydra: {{callbacks: {CALLS}}}}}\n",
        "cluster=mine",
    ),
    "the root": ("config.yaml", f"defaults: [_self_]\nhydra:\n  callbacks: {CALLS}\n", ""),
    "a name": ("cluster/hydra.yaml", f"# @package _name_\ncallbacks: {CALLS}\n", "cluster=hydra"),
}


@pytest.mark.parametrize("name", HYDRA)
def test_no_file_sets_hydra(config: Path, launch: Launch, name: str) -> None:
    """Under --multirun Hydra itself starts what is composed, with callbacks and logging that a
    configuration names.
    """
    file, text, override = HYDRA[name]
    (config / file).parent.mkdir(parents=True, exist_ok=True)
    (config / file).write_text(text, encoding="utf-8")
    for extra in ("data/evil.yaml", "hydra/job_logging/evil.yaml"):
        (config / extra).parent.mkdir(parents=True, exist_ok=True)
        (config / extra).write_text(
            CALLS[1:-1] if extra.startswith("data") else LOGS[1:-1], encoding="utf-8"
        )
    (config / "evil.py").write_text("open('executed', 'w')\n", encoding="utf-8")
    stage = [] if override.startswith("stage") else ["stage=demo"]
    for option in ([], ["--multirun"]):
        chosen = [override] if override else []
        done = launch("plan", "trainer=trl_sft", *stage, *chosen, *option)
        assert not (config / "executed").exists(), done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        # which Hydra reads from its own package
        if name != "a group of Hydra" and (option or override):
            assert done.returncode == 2 and "[reserved_key]" in done.stderr, (
                done.stdout + done.stderr
            )
