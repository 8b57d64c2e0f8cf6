"""Real processes with TRL's chat templates where no TRL is installed, or another version than when
a run began.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launch.host.interpreter import package_folders
from tests.integration import warm
from tests.integration.conftest import finish, launch_in, records, stop_once
from tests.integration.demo_kit import give_demo, make_once
from tests.trl_texts import INSTALLED, install_trl

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(INSTALLED is None, reason="TRL is not installed"),
]

OTHER = """{%- for turn in messages %}[{{ turn['role'] }}] {{ turn['content'] }}{{ eos_token }}
{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"""
FINETUNE = ("stage=demo", "trainer=finetune", "recipe.chat_template=qwen3")
TRL_SFT = ("stage=demo", "trainer=trl_sft", "recipe.chat_template=qwen3")
SHORT = (
    "data.fraction=0.02",
    "recipe.global_batch_size=4",
    "recipe.per_device_batch_size=2",
    "processes=1",
)


@pytest.fixture(scope="session")
def without_trl(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with every package of this one but TRL."""

    def make(folder: Path) -> None:
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", "--symlinks", folder], check=True
        )
        [own] = folder.glob("lib/python3*/site-packages")
        for package in [
            entry for folder in package_folders(sys.executable) for entry in folder.glob("*")
        ]:
            if package.name.partition("-")[0] != "trl" and package.parent.name == "site-packages":
                (own / package.name).symlink_to(package)

    return str(make_once(tmp_path_factory, "without-trl", make) / "bin" / "python")


@pytest.fixture
def home(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder for runs, with the demo, and a user's cache in which nothing is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return give_demo(tmp_path_factory, tmp_path)


def planned(home: Path, *words: str, python: str | None = None) -> tuple[str, bool, str]:
    """The identity of a plan, whether its template's text is here, and from where."""
    done = launch_in(home, "plan", *words, "--json", python=python or sys.executable)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    return plan["identity"], plan["chat_template"]["is_here"], plan["chat_template"]["source"]


@pytest.mark.thorough
def test_without_trl_a_name_is_planned_and_its_text_is_refused_until_one_has_it(
    home: Path, without_trl: str
) -> None:
    identity, is_here, _ = planned(home, *TRL_SFT, python=without_trl)
    assert not is_here
    for verb in ("check", "run"):
        done = launch_in(home, verb, *TRL_SFT, "allow=[missing_packages]", python=without_trl)
        assert done.returncode == 2
        assert "pip install trl==1.16.0" in done.stdout + done.stderr
        assert "no_template_text" in done.stdout + done.stderr
    assert not (home / "runs" / "demo").exists()

    of_trainer = planned(home, *TRL_SFT, f"python={sys.executable}", python=without_trl)
    assert (
        of_trainer[:2] == (identity, True)
        and str(INSTALLED and INSTALLED.parents[1]) in of_trainer[2]
    )
    kept = planned(home, *TRL_SFT, python=without_trl)  # by the plan before
    assert kept[:2] == (identity, True) and str(home / "caches") in kept[2]


@pytest.mark.thorough
def test_launchs_own_trl_serves_a_trainers_interpreter_without_one(
    home: Path, without_trl: str, open_instruct: Path
) -> None:
    words = (*FINETUNE, f"python={without_trl}")
    identity, is_here, source = planned(home, *words)
    assert is_here and str(INSTALLED and INSTALLED.parents[1]) in source
    assert planned(home, *FINETUNE)[0] == identity


@pytest.mark.thorough
def test_a_resumed_run_has_the_text_that_it_began_with(
    home: Path, without_trl: str, open_instruct: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*FINETUNE, *SHORT, "recipe.max_steps=30", "recipe.checkpoint_steps=2")
    other = install_trl(home / "other", {"qwen3": OTHER}, "1.17.0")
    (other / "trl" / "__init__.py").unlink()  # what imports TRL gets the installed one
    with monkeypatch.context() as first:
        first.setenv("PYTHONPATH", str(other))
        identity, _, source = planned(home, *words)
        assert str(other) in source
        run = home / "runs" / "demo" / f"cpu1-{identity}"

        def has_checkpoint() -> bool:
            steps = records(run / "metrics.jsonl")
            return (
                (run / "model" / "step_4" / "COMPLETED").is_file()
                and bool(steps)
                and steps[-1]["step"] > 4
            )

        stop_once(
            home, has_checkpoint, signal.SIGKILL, *words, python=warm.python_with_cold_ranks()
        )
    assert not (run / "DONE").exists()
    [staged] = (home / "runs" / ".cache" / "chat_templates").glob("*/qwen3.jinja")
    assert staged.read_text(encoding="utf-8") == OTHER

    # TRL 1.16 is installed in place of the other one, and then none
    assert planned(home, *words)[0] == identity != planned(home, *words, "restart=true")[0]
    shutil.rmtree(home / "caches")
    code, printed = finish(home, *words, python=without_trl)
    assert code == 0, printed
    assert "resumes from step_" in printed
    done = json.loads((run / "DONE").read_text(encoding="utf-8"))
    assert done["steps"] == 30
    evidence = json.loads((run / "evidence.json").read_text(encoding="utf-8"))
    [template] = [item for item in evidence["items"] if item["what"] == "chat_template"]
    assert (template["found"], template["verdict"]) == ("qwen3", "proven")
    tokenizer = run / "model" / "chat_template.jinja"
    assert tokenizer.read_text(encoding="utf-8") == OTHER


@pytest.mark.thorough
def test_trl_trains_with_the_staged_form_that_has_marks(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own version does not have this text, so that it has no form of it with marks."""
    body = "{{ turn['content'] }}{{ eos_token }}"
    marks = f"{{% generation %}}{body}{{% endgeneration %}}"
    answer = f"{{% if turn['role'] == 'assistant' %}}{marks}{{% else %}}{body}{{% endif %}}"
    other = install_trl(
        home / "other", {"qwen3": OTHER, "qwen3_training": OTHER.replace(body, answer)}, "1.16.1"
    )
    (other / "trl" / "__init__.py").unlink()
    monkeypatch.setenv("PYTHONPATH", str(other))
    words = (*TRL_SFT, *SHORT, "recipe.max_steps=2", "name=marked")
    code, printed = finish(home, *words, python=warm.python_with_cold_ranks())
    assert code == 0, printed
    model = home / "runs" / "demo" / "marked" / "model"
    assert (model / "chat_template.jinja").read_text(encoding="utf-8") == OTHER
