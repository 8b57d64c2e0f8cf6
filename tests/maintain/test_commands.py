"""`python -m maintain`: what another commit changes and breaks, and moving the pin, completely or
not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.config.recipe_keys import KEYS
from launch.errors import UserError
from launch.resources import CONFIGS, ROOT
from launch.upstream.pin.checkout import DIR_VARIABLE, SUBMODULE
from launch.upstream.pin.lock import load_lock, locked_schema
from launch.upstream.schema import Schema
from launch.upstream.trainers import OPEN_INSTRUCT
from launch.worker.finding import Finding
from maintain import impact as module
from maintain.__main__ import main
from maintain.bump import apply_move
from maintain.commit import commits_without
from maintain.compare import FlagChange
from maintain.impact import Impact, TrainerImpact, assess_impact
from maintain.report import describe_impact, impact_json
from tests.integration import warm
from tests.messages import outlines, values_of
from tests.upstream.checkouts import checkout, has_commit

OLDER = "45901fd0"
IDENTITY = ("-c", "user.name=test", "-c", "user.email=test@localhost")


@pytest.fixture
def history() -> Path:
    root = checkout()
    if root is None or not has_commit(root, OLDER):
        pytest.skip("no open-instruct checkout with history: set OPEN_INSTRUCT_DIR")
    return root


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    """A copy of the project's trainer and stage files, for a test to break."""
    return Path(shutil.copytree(CONFIGS, tmp_path / "configs"))


def edit(path: Path, old: str, new: str) -> int:
    """Replace a text that the file contains; return the 1-based line of the replacement."""
    text = path.read_text(encoding="utf-8")
    assert old in text, (path, old)
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return text.replace(old, new, 1)[: text.index(old)].count("\n") + 1


def impact(root: Path, commit: str, *trainers: str, configs: Path = CONFIGS) -> Impact:
    """Assess a commit for `trainers` alone, each of which is started; all of them if none is named.

    In forks with the libraries' imports done; `maintain` below starts each anew.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            module,
            "OPEN_INSTRUCT",
            {name: OPEN_INSTRUCT[name] for name in trainers or OPEN_INSTRUCT},
        )
        return assess_impact(root, commit, warm.python(), configs)


@pytest.mark.slow
def test_the_pin_changes_and_breaks_nothing(history: Path) -> None:
    result = impact(history, load_lock().pin)
    assert result.breaks == ()
    assert all(item.changes == () and item.schema for item in result.trainers)
    assert describe_impact(result)[-1] == "nothing in this project would break"


@pytest.mark.thorough
@pytest.mark.slow
def test_an_older_commit_as_text_and_as_json(history: Path) -> None:
    result = impact(history, OLDER, "finetune", "dpo", "olmo_core_finetune")
    text = "\n".join(describe_impact(result))
    assert "finetune: no change" in text
    assert "  - data_loader_seed" in text
    assert "  ~ max_grad_norm: default null -> -1" in text
    assert "  ~ model_name_or_path: no longer required" in text
    content = json.loads(json.dumps(impact_json(result)))
    assert content["schema_version"] == 1
    assert content["changes"]["finetune"] == []
    assert content["unreadable"]["olmo_core_finetune"]["id"] == "trainer_script_missing"
    assert {"kind": "removed", "flag": "cp_degree"} in content["changes"]["dpo"]
    broken = {problem["id"] for problem in content["breaks"]}
    assert broken == {
        "patch_source_changed",
        "rule_source_changed",
        "stale_row",
        "trainer_script_missing",
    }


@pytest.mark.thorough
@pytest.mark.slow
def test_the_oldest_commit_names_the_yaml_line_and_the_old_name(history: Path) -> None:
    result = impact(history, "6b3964bc", "dpo_tune_cache")
    lines = (CONFIGS / "trainer" / "dpo_tune_cache.yaml").read_text(encoding="utf-8").splitlines()
    (mixer,) = (
        p
        for p in result.breaks
        if p.id == "stale_allowlist" and "'mixer_list' at that commit" in p.message
    )
    assert str(mixer.cure) == "write 'dataset_mixer_list'"
    file, _, line = str(mixer.where).rpartition(":")
    assert file.endswith("configs/tulu/trainer/dpo_tune_cache.yaml")
    assert "mixer_list" in lines[int(line) - 1]
    assert any(
        p.id == "patch_source_changed" and p.where == "open_instruct/finetune.py:903"
        for p in result.breaks
    )


def test_a_function_that_has_changed_is_named_for_its_rules() -> None:
    locked = locked_schema("finetune")
    code = locked.post_init["FlatArguments"]
    (place,) = code["functions"]
    changed = replace(
        locked, post_init={"FlatArguments": {**code, "functions": [{**place, "digest": "0" * 40}]}}
    )
    assert (
        list(
            module.find_stale_rules(
                [TrainerImpact("finetune", locked, ()), TrainerImpact("dpo", None, ())]
            )
        )
        == []
    )
    (problem,) = module.find_stale_rules([TrainerImpact("finetune", changed, ())])
    assert (problem.id, problem.where) == ("rule_source_changed", "open_instruct/finetune.py:327")


def test_every_flag_that_a_yaml_names_has_its_line(tmp_path: Path) -> None:
    """At a commit whose finetune.py has one flag, `impl`: a choice that the YAML does not set."""
    configs = tmp_path / "configs" / "tulu"
    file = configs / "trainer" / "finetune.yaml"
    file.parent.mkdir(parents=True)
    text = "tracking: {x: {impl: torch, n: '{value}'}}\nlaunch: {x: y}\n"
    file.write_text(f"{text}flags:\n  impl: '{{value}}'\n")
    impl = replace(
        locked_schema("dpo").fields["attn_implementation"],
        name="impl",
        choices=["sdpa"],
        required=True,
    )
    schema = replace(locked_schema("finetune"), fields={"impl": impl, "b": replace(impl, name="b")})
    problems = list(module.find_broken_configs([TrainerImpact("finetune", schema, ())], configs))
    place = "configs/tulu/trainer/finetune.yaml"
    assert [(problem.id, problem.where, problem.message.split("'")[1]) for problem in problems] == [
        ("stale_allowlist", f"{place}:2", "y"),
        ("bad_choice", f"{place}:1", "torch"),
        ("stale_allowlist", f"{place}:1", "n"),
        ("missing_required", place, "b"),
    ]
    file.write_text("a: [\n")
    with pytest.raises(UserError, match="bad_config"):
        list(module.find_broken_configs([], configs))


def test_a_row_of_the_table_of_rules_needs_its_flag() -> None:
    locked = locked_schema("finetune")
    assert list(module.find_stale_rows([TrainerImpact("finetune", locked, ())])) == []
    fields = {name: field for name, field in locked.fields.items() if name != "packing"}
    problems = module.find_stale_rows(
        [TrainerImpact("finetune", replace(locked, fields=fields), ())]
    )
    assert {problem.where for problem in problems} == {
        "table.yaml: packing_flag",
        "table.yaml: packing_with_sequence_parallel",
    }


def test_every_kind_of_break_is_reported_with_its_line(
    history: Path, configs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = configs / "trainer" / "finetune.yaml"
    row = replace(KEYS["epochs"], flags={"finetune": "no_such_epochs", **KEYS["epochs"].flags})
    monkeypatch.setitem(KEYS, "epochs", row)
    choice = edit(trainer, "\nflags:\n", "\nflags:\n  dataset_cache_mode: s3\n") + 2
    stage = configs / "stage" / "sft.yaml"
    stage.write_text(
        stage.read_text(encoding="utf-8") + "flags:\n  no_such_flag: 1\n", encoding="utf-8"
    )
    (configs / "stage" / "mine.yaml").write_text(
        "defaults:\n  - sft\nflags:\n  another: 1\n", encoding="utf-8"
    )
    result = impact(history, load_lock().pin, "finetune", "dpo_tune_cache", configs=configs)
    reported = {(problem.id, str(problem.where).rpartition("/")[2]) for problem in result.breaks}
    length = len(stage.read_text(encoding="utf-8").splitlines())
    assert reported == {
        ("stale_allowlist", row.place.rpartition("/")[2]),
        ("bad_choice", f"finetune.yaml:{choice}"),
        ("stale_allowlist", f"sft.yaml:{length}"),
        ("stale_allowlist", "mine.yaml:4"),
    }


@pytest.mark.thorough
@pytest.mark.slow
def test_a_newly_required_flag_that_nothing_gives(
    history: Path, configs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.locked_schema

    def before(name: str) -> Schema:
        schema = real(name)
        fields = dict(schema.fields)
        fields["model_name_or_path"] = replace(fields["model_name_or_path"], required=False)
        return replace(schema, fields=fields)

    monkeypatch.setattr(module, "locked_schema", before)
    assert impact(history, load_lock().pin, "dpo", configs=configs).breaks == ()
    # a run that pushes sets it, and no other
    edit(configs / "trainer" / "dpo.yaml", "model: model_name_or_path", "model: config_name")
    edit(configs / "trainer" / "dpo.yaml", "push: {", "push: { model_name_or_path: own,")
    (problem,) = impact(history, load_lock().pin, "dpo", configs=configs).breaks
    assert problem.id == "missing_required"
    assert "'model_name_or_path'" in problem.message


def test_every_kind_of_change_has_a_line_and_its_values(
    history: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = (
        FlagChange("removed", "a"),
        FlagChange("renamed", "b", "c", "int", "float", proposed=True),
        FlagChange("added", "d"),
        FlagChange("default", "e", old=1, new=None),
        FlagChange("required", "f", old=False, new=True),
    )
    schema, gone = (
        locked_schema("finetune"),
        Finding.error("trainer_script_missing", "it has no dpo.py"),
    )
    trainers = (TrainerImpact("finetune", schema, changes), TrainerImpact("dpo", None, (), gone))
    broken = Finding.error("stale_allowlist", "finetune has no 'a'", "finetune.yaml:3")
    found = Impact(
        load_lock().pin, (*trainers, TrainerImpact("reward_modeling", schema, ())), (broken,)
    )
    monkeypatch.setattr("maintain.__main__.assess_impact", lambda *_, **__: found)
    monkeypatch.setenv(DIR_VARIABLE, str(history))
    assert main(["diff", "HEAD"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        *(
            "",
            "finetune:",
            "  - a",
            "  > b -> c (int -> float) (proposed)",
            "  + d",
            "  ~ e: default 1 -> null",
        ),
        *("  ~ f: now required", "", "dpo:", "  ! it has no dpo.py [trainer_script_missing]"),
        *(
            "",
            "reward_modeling: no change",
            "",
            "1 thing in this project would break:",
            f"  {broken}",
        ),
    ]
    assert main(["diff", "HEAD", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["changes"]["finetune"][3] == {"kind": "default", "flag": "e", "old": 1}
    assert (
        content["changes"]["reward_modeling"] == []
        and content["unreadable"]["dpo"]["message"] == gone.message
    )


def test_a_bump_to_the_pin_starts_no_parser(
    history: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("maintain.__main__.assess_impact", None)
    monkeypatch.setenv(DIR_VARIABLE, str(history))
    monkeypatch.setattr("maintain.__main__.read_gitlink", lambda root: load_lock().pin)
    assert main(["bump", load_lock().pin]) == 0 and "already" in capsys.readouterr().out
    monkeypatch.setattr("maintain.__main__.read_gitlink", lambda root: None)
    assert main(["bump", load_lock().pin]) == 2 and "[no_gitlink]" in capsys.readouterr().err


def test_the_commits_of_the_pin_that_a_branch_lacks_are_named(
    history: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A patch for their lines does not fit the branch, however new it is."""
    pin = load_lock().pin
    assert commits_without(history, pin, pin) == []
    assert commits_without(history, pin, "0" * 40) == []
    *newer, oldest = commits_without(history, pin, f"{pin}~7")
    assert [commit.id for commit in newer][:1] == [pin] and len(newer) == 6
    lines = describe_impact(Impact(f"{pin}~7", (), (), lacks=(*newer, oldest)))
    start = lines.index("it lacks 7 commits of the pin:")
    assert lines[start + 1].startswith(f"  {pin[:9]} ") and newer[0].subject in lines[start + 1]
    assert lines[start + 6] == "  and 2 more"
    assert impact_json(Impact(pin, (), (), lacks=(oldest,)))["lacks"] == [
        {"commit": oldest.id, "subject": oldest.subject}
    ]


def test_a_rename_that_names_nothing_is_refused(
    history: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(DIR_VARIABLE, str(history))
    assert main(["diff", "HEAD", "--rename", "timeout"]) == 2
    assert outlines(capsys.readouterr().err.splitlines()) == [
        "bad_value at command line, --rename, OLD=, OLD=NEW, timeout"
    ]


@pytest.mark.parametrize(
    "arguments",
    [[], ["status"], ["diff"], ["diff", "HEAD", "--force"], ["bump", "HEAD", "--json"]],
)
def test_arguments_that_a_command_does_not_take(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


@pytest.mark.parametrize("arguments", [["diff", "HEAD"], ["bump", "HEAD"], ["relock"]])
def test_without_a_checkout(
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv(DIR_VARIABLE, raising=False)
    monkeypatch.setattr("maintain.__main__.ROOT", tmp_path)
    assert main(arguments) == 2
    assert "[no_upstream]" in capsys.readouterr().err


def test_a_commit_whose_name_no_file_can_have(
    history: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(DIR_VARIABLE, str(history))
    for name in ("a" * 5000, "~nosuchuser/x", "/dev/null/x"):
        assert main(["diff", name]) == 2
        error = capsys.readouterr().err
        assert "[unknown_commit]" in error and len(error) < 1500


def test_unknown_commits_are_refused(history: Path) -> None:
    for commit in ("nothing", "", "-x", "HEAD:open_instruct"):
        with pytest.raises(UserError) as refusal:
            impact(history, commit)
        assert refusal.value.problems[0].id == "unknown_commit"


# Moving the pin, in a copy of the project with its own git index.


@pytest.fixture
def whole_project(tmp_path: Path) -> Path:
    copy = tmp_path / "project"
    copy.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", ".git", "runs")
    packages = ("launch", "maintain", "configs")
    for name in packages:
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    (copy / SUBMODULE).mkdir(parents=True)
    git(copy, "init", "-q")
    git(copy, "add", *packages)
    git(copy, "update-index", "--add", "--cacheinfo", f"160000,{load_lock().pin},{SUBMODULE}")
    commit(copy, "all")
    return copy


@pytest.fixture
def project(whole_project: Path) -> Path:
    """The same with two trainers, each of which is started for a bump; the older commit lacks the
    second's script.
    """
    names = ",\n        ".join(f'"{name}"' for name in OPEN_INSTRUCT)
    edit(whole_project / "launch/upstream/trainers.py", names, '"finetune", "olmo_core_finetune"')
    commit(whole_project, "fewer trainers")
    return whole_project


def git(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout


def commit(folder: Path, message: str) -> None:
    """Commit what git knows of the files in `folder`."""
    git(
        folder,
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.org",
        "commit",
        "-q",
        "-a",
        "-m",
        message,
    )


def run_module(
    project: Path, history: Path, module: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run a module of the copied project, with `history` as its open-instruct."""
    environment: Mapping[str, str] = {
        **os.environ,
        "PYTHONPATH": str(project),
        "PYTHONDONTWRITEBYTECODE": "1",
        DIR_VARIABLE: str(history),
    }
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def maintain(project: Path, history: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_module(project, history, "maintain", *arguments)


def checkout_status(project: Path, history: Path) -> dict[str, Any]:
    """Return what `launch upstream` shows after a move."""
    shown = run_module(project, history, "launch", "upstream", "status", "--json")
    content: dict[str, Any] = json.loads(shown.stdout)
    return content


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        # starts the parser of each trainer
        pytest.param(OLDER, "trainer_script_missing", marks=pytest.mark.slow),
        ("nothing", "unknown_commit"),
    ],
)
def test_a_bump_that_cannot_be_made_changes_nothing(
    project: Path, history: Path, target: str, problem: str
) -> None:
    """The older commit lacks a trainer's script, which not even --force can lock."""
    run = maintain(project, history, "bump", target, "--force")
    assert run.returncode == 2
    assert f"[{problem}]" in run.stderr and "Traceback" not in run.stderr
    assert git(project, "status", "--porcelain") == ""


@pytest.mark.thorough
@pytest.mark.slow
def test_a_bump_moves_gitlink_lock_and_ledger_together_and_back(
    whole_project: Path, history: Path
) -> None:
    # The commit before the last one that changed a schema: both the lock and the ledger differ
    # there.
    last = json.loads((ROOT / "launch/upstream/data/ledger.json").read_text(encoding="utf-8"))[
        "entries"
    ][-1]["commit"]
    target = git(history, "rev-parse", f"{last}^1").strip()
    run = maintain(whole_project, history, "bump", target, "--force")
    assert run.returncode == 0, run.stderr
    data = whole_project / "launch/upstream/data"
    assert json.loads((data / "lock.json").read_text(encoding="utf-8"))["pin"] == target
    moved = json.loads((data / "ledger.json").read_text(encoding="utf-8"))
    assert moved["tip"] == target
    assert last not in {entry["commit"] for entry in moved["entries"]}
    assert target in git(whole_project, "ls-files", "--stage", SUBMODULE)
    status = checkout_status(whole_project, history)
    assert (status["pin"], status["gitlink"]) == (target, target)
    assert status["checkout"]["matches_pin"] is False
    back = maintain(whole_project, history, "bump", load_lock().pin, "--force")
    assert back.returncode == 0, back.stderr
    again = json.loads((data / "ledger.json").read_text(encoding="utf-8"))
    assert again["tip"] == load_lock().pin
    assert last in {entry["commit"] for entry in again["entries"]}, "found again by the flag's name"
    locked = json.loads((data / "lock.json").read_text(encoding="utf-8"))
    assert (locked["pin"], locked["files"]) == (load_lock().pin, dict(load_lock().files))
    assert git(whole_project, "diff", "--cached", "--name-only") == ""


@pytest.mark.thorough
def test_a_bump_under_another_trl_captures_its_parsers_too(
    project: Path, history: Path, tmp_path: Path
) -> None:
    """An interpreter whose TRL has another version, and a flag more; the pin stays."""
    trl = Path(pytest.importorskip("trl").__file__).parent
    python = tmp_path / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(python)], check=True)
    [packages] = python.glob("lib/python3*/site-packages")
    (packages / "rest.pth").write_text(f"{trl.parent}\n")
    shutil.copytree(trl, packages / "trl", ignore=shutil.ignore_patterns("__pycache__"))
    [info] = trl.parent.glob("trl-*.dist-info")
    other = packages / "trl-99.0.dist-info"
    shutil.copytree(info, other)
    edit(other / "METADATA", f"Version: {load_lock().packages['trl']}", "Version: 99.0")
    edit(
        packages / "trl/trainer/sft_config.py",
        "    packing: bool = field(",
        "    wrapping: bool = False\n    packing: bool = field(",
    )
    target = git(history, "rev-parse", f"{load_lock().pin}^1").strip()
    done = maintain(
        project, history, "bump", target, "--force", "--python", str(python / "bin/python")
    )
    assert done.returncode == 0, done.stderr
    data = project / "launch/upstream/data"
    assert json.loads((data / "lock.json").read_text(encoding="utf-8"))["packages"]["trl"] == "99.0"
    assert (
        "wrapping"
        in json.loads((data / "schemas/trl_sft.json").read_text(encoding="utf-8"))["fields"]
    )
    assert "+ wrapping" in done.stdout and "trl" not in git(
        project, "diff", "--", "launch/upstream/data/ledger.json"
    )


@pytest.mark.thorough
def test_a_person_confirms_what_was_renamed(project: Path, history: Path, tmp_path: Path) -> None:
    """A commit on top of the pin that renames a flag of finetune.py, in a clone."""
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--shared", "--no-checkout", str(history), str(clone))
    git(clone, "checkout", "-q", load_lock().pin)
    edit(clone / "open_instruct/finetune.py", "    timeout: int", "    nccl_timeout: int")
    commit(clone, "Rename it (#9)")
    target = git(clone, "rev-parse", "HEAD").strip()
    refused = maintain(project, clone, "bump", target)
    assert refused.returncode == 2
    assert "> timeout -> nccl_timeout (proposed)" in refused.stdout
    assert "confirm it with --rename timeout=nccl_timeout" in refused.stderr
    assert "[rename_unconfirmed]" in refused.stderr
    assert git(project, "status", "--porcelain") == ""
    denied = maintain(project, clone, "diff", target, "--rename", "timeout=")
    assert "- timeout" in denied.stdout
    done = maintain(project, clone, "bump", target, "--rename", "timeout=nccl_timeout")
    assert done.returncode == 0, done.stderr
    entry = json.loads((project / "launch/upstream/data/ledger.json").read_text(encoding="utf-8"))[
        "entries"
    ][-1]
    assert (entry["kind"], entry["flag"], entry["renamed_to"]) == (
        "renamed",
        "timeout",
        "nccl_timeout",
    )
    assert entry["trainers"] == ["finetune"]
    assert entry["commit"] == target
    assert checkout_status(project, clone)["checkout"]["matches_pin"] is True


@pytest.mark.thorough
def test_a_break_refuses_the_bump_until_forced(project: Path, history: Path) -> None:
    table = project / "launch/config/recipe_keys.py"
    edit(table, '"finetune": "clip_grad_norm"', '"finetune": "clip_norm"')
    line = edit(table, "    max_grad_norm: float", "    max_grad_norm: float")
    commit(project, "break")
    target = git(history, "rev-parse", f"{load_lock().pin}^1").strip()
    run = maintain(project, history, "bump", target)
    assert run.returncode == 2
    assert f"launch/config/recipe_keys.py:{line}: finetune has no 'clip_norm'" in run.stdout
    assert "nothing was changed" in run.stderr
    assert git(project, "status", "--porcelain") == ""


@pytest.mark.thorough
def test_a_git_that_fails_puts_everything_back(project: Path, history: Path) -> None:
    (project / ".git/index.lock").write_text("")
    target = git(history, "rev-parse", f"{load_lock().pin}^1").strip()
    run = maintain(project, history, "bump", target, "--force")
    (project / ".git/index.lock").unlink()
    assert run.returncode == 2
    assert "git_failed" in run.stderr
    assert git(project, "status", "--porcelain") == ""


def test_a_gitlink_that_cannot_be_staged_puts_the_submodule_back(tmp_path: Path) -> None:
    def repository(folder: Path) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "--quiet")
        (folder / "file").write_text("1")
        git(folder, "add", ".")
        git(folder, *IDENTITY, "commit", "--quiet", "-m", "first")
        return git(folder, "rev-parse", "HEAD").strip()

    repository(tmp_path)
    checkout = tmp_path / SUBMODULE
    before = repository(checkout)
    git(checkout, *IDENTITY, "commit", "--quiet", "--allow-empty", "-m", "second")
    after = git(checkout, "rev-parse", "HEAD").strip()
    git(checkout, "checkout", "--quiet", "--detach", before)
    (tmp_path / ".git/index.lock").write_text("")
    with pytest.raises(UserError):
        apply_move({tmp_path / "file": "2"}, after, tmp_path, checkout)
    assert git(checkout, "rev-parse", "HEAD").strip() == before
    assert (tmp_path / "file").read_text() == "1"
    (tmp_path / ".git/index.lock").unlink()
    apply_move({tmp_path / "file": "2"}, after, tmp_path, checkout)
    assert git(checkout, "rev-parse", "HEAD").strip() == after


def test_what_this_interpreter_cannot_read_of_a_flag_would_be_lost() -> None:
    locked = locked_schema("dpo")
    lacks = replace(
        locked.fields["attn_implementation"], choices=None, unknown={"choices": "no olmo_core"}
    )
    lost = replace(locked, fields={**locked.fields, "attn_implementation": lacks})
    whole = [TrainerImpact("dpo", locked, ()), TrainerImpact("finetune", None, ())]
    assert list(module._find_losses(whole)) == []
    (problem,) = module._find_losses([TrainerImpact("dpo", lost, ())])
    assert problem.id == "lock_would_lose" and "--python" in str(problem.cure)
    assert values_of(problem.message) == ["attn_implementation", "olmo_core"]


def test_without_git_the_command_is_refused(
    history: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(DIR_VARIABLE, str(history))
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["diff", "HEAD"]) == 2
    assert outlines(capsys.readouterr().err.splitlines()) == ["git_missing"]
