"""What a trainer's file has to hold: a trainer that is half added is told everything that it
lacks. What the table of recipe keys lacks of one: test_recipe_keys.py.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch import resources
from launch.api.planning import plan_composed
from launch.config.compose import _notify_of_name, compose_once
from launch.config.kinds import Kind
from launch.config.line import CommandLine
from launch.config.recipe_keys import KEYS, recipe_mapping
from launch.config.schema import Family, Launcher, TrainerConfig
from launch.upstream.pin.lock import SCHEMAS, locked_schema
from launch.upstream.trainers import ENTRIES
from launch.worker.moves import UPSTREAM_NAMES
from launch.worker.patches import EVIDENCE_PATCHES, PATCHES, RESUME_PATCHES
from launch.worker.trl_scripts import SCRIPTS
from tests.test_registers import RENEW, lacks, page

FOLDER = resources.CONFIGS / "trainer"
SHIPPED = sorted(path.stem for path in FOLDER.glob("*.yaml"))
# a line that each trainer takes
SETTINGS_OF = {
    "finetune": ("stage=demo",),
    "olmo_core_finetune": ("stage=sft", "gpus=2", "model=olmo2_1b", "recipe.packing=bins"),
    "dpo_tune_cache": ("stage=demo_dpo",),
    "grpo_fast": ("stage=rlvr", "gpus=2"),
}
DATA = {Family.open_instruct: {"mixer"}, Family.trl: {"dataset"}}
REQUIRED = {"model", "per_device", "accumulation", "output"}


def lacking(name: str, content: Mapping[str, Any]) -> Iterator[str]:
    """Yield everything that the trainer `name` lacks, one sentence each."""
    fields = {field.name for field in dataclasses.fields(TrainerConfig)}
    yield from (f"there is no key {key}" for key in sorted(content.keys() - fields))
    if content.get("name") != name:
        yield f"its name is the file's: {name}"
    for key, values in (("kind", Kind), ("family", Family), ("launcher", Launcher)):
        if content.get(key) not in [value.value for value in values]:
            yield f"{key} is one of {', '.join(value.value for value in values)}"
    if ENTRIES.get(name) != content.get("entry"):
        yield f"launch/upstream/trainers.py does not map {name} to its entry {content.get('entry')}"
        return
    if not (SCHEMAS / f"{name}.json").is_file():
        yield (
            f"launch/upstream/data/schemas/{name}.json is missing: `relock --only {name}` reads "
            "its flags"
        )
        return
    if lacks(name, page("verbs.md"), r"\b{}\b"):
        yield f"docs/reference/verbs.md lacks {name}: {RENEW}"
    is_ray = content.get("launcher") == Launcher.ray  # planned and checked, not started
    yield from () if is_ray else _lacking_patches(content)
    flags = set(locked_schema(name).fields)
    yield from _lacking_flags(content, flags)
    yield from _lacking_of_family(name, content, flags)


def _lacking_patches(content: Mapping[str, Any]) -> Iterator[str]:
    patches = content.get("patches", [])
    yield from (f"there is no patch {patch}" for patch in patches if patch not in PATCHES)
    if sum(patch in EVIDENCE_PATCHES for patch in patches) != 1:
        yield f"patches has one that proves the settings: {' or '.join(EVIDENCE_PATCHES)}"
    if content.get("family") == Family.trl:
        if content.get("entry") not in SCRIPTS:
            yield f"launch's entry takes the flags of {', '.join(SCRIPTS)}: add the trainer there"
    else:
        if "preview" not in patches and "preview" not in content.get("unsupported_because", {}):
            yield (
                "patches has preview, or unsupported_because.preview the reason why its samples "
                "cannot be shown"
            )
        if content.get("resumable") and set(RESUME_PATCHES).isdisjoint(patches):
            yield f"resumable needs {' or '.join(RESUME_PATCHES)}"
    trainer = TrainerConfig(**{key: content[key] for key in ("name", "kind", "family", "launcher")})
    for key, value, patch in (
        ("balanced", "true", "balanced_batches"),
        ("loss_averaging", "tokens", "token_weighting"),
    ):
        offered = value in (recipe_mapping(trainer, key) or {})
        if trainer.family == Family.open_instruct and offered and patch not in patches:
            yield f"recipe.{key}={value} needs the patch {patch}"


def _lacking_flags(content: Mapping[str, Any], flags: set[str]) -> Iterator[str]:
    launch = content.get("launch", {})
    needed = REQUIRED | DATA[Family(content["family"])]
    needed -= {"accumulation"} if content.get("launcher") == Launcher.ray else set()
    yield from (f"launch.{key} is missing: name its flag" for key in sorted(needed - launch.keys()))
    yield from (
        f"launch.{key}: it has no flag {flag}" for key, flag in launch.items() if flag not in flags
    )


def _lacking_of_family(name: str, content: Mapping[str, Any], flags: set[str]) -> Iterator[str]:
    """What every other shipped trainer of its family says of a flag, and why they do, is there to
    read.
    """
    files = {path.stem: read(path) for path in FOLDER.glob("*.yaml")}
    others = [
        file
        for other, file in files.items()
        if other != name and file["family"] == content["family"]
    ]
    for section in ("flags", "cpu_flags"):
        for flag, value in (others[0].get(section, {}) if others else {}).items():
            everywhere = all(flag in other.get(section, {}) for other in others)
            if everywhere and flag in flags and flag not in content.get(section, {}):
                yield (
                    f"{section}.{flag} is missing: the other trainers of {content['family']} "
                    f"have it, as {value!r}"
                )


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_trainer_lacks_nothing(name: str) -> None:
    found = [f"{name}: {lack}" for lack in lacking(name, read(FOLDER / f"{name}.yaml"))]
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def test_a_half_added_trainer_is_told_everything() -> None:
    whole = read(FOLDER / "finetune.yaml")
    assert list(lacking("kto", {**whole, "name": "kto"})) == [
        "launch/upstream/trainers.py does not map kto to its entry open_instruct/finetune.py"
    ]
    half = {
        **whole,
        "kind": "sft",
        "patches": ["evidenc"],
        "colour": 1,
    }
    half["launch"] = {"model": "model_name", "mixer": "dataset_mixer_list"}
    assert list(lacking("finetune", half)) == [
        "there is no key colour",
        "there is no patch evidenc",
        "patches has one that proves the settings: evidence or olmo_core_evidence",
        (
            "patches has preview, or unsupported_because.preview the reason why its samples "
            "cannot be shown"
        ),
        "resumable needs exact_resume or olmo_core_resume",
        "recipe.balanced=true needs the patch balanced_batches",
        "recipe.loss_averaging=tokens needs the patch token_weighting",
        "launch.accumulation is missing: name its flag",
        "launch.output is missing: name its flag",
        "launch.per_device is missing: name its flag",
        "launch.model: it has no flag model_name",
    ]


def test_what_every_other_trainer_of_its_family_sets_is_missed() -> None:
    half = read(FOLDER / "trl_dpo.yaml")
    del half["flags"]["logging_nan_inf_filter"], half["cpu_flags"]
    flags, cpu = lacking("trl_dpo", half)
    assert (
        flags
        == "flags.logging_nan_inf_filter is missing: the other trainers of trl have it, as False"
    )
    assert cpu.startswith("cpu_flags.use_cpu is missing")


def test_a_trainer_without_a_schema_or_in_no_page_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = {**read(FOLDER / "trl_sft.yaml"), "name": "trl_own"}
    monkeypatch.setitem(ENTRIES, "trl_own", whole["entry"])
    assert list(lacking("trl_own", whole)) == [
        (
            "launch/upstream/data/schemas/trl_own.json is missing: `relock --only trl_own` reads "
            "its "
            "flags"
        )
    ]
    shutil.copy(SCHEMAS / "trl_sft.json", tmp_path / "trl_own.json")
    monkeypatch.setattr("tests.config.test_trainers.SCHEMAS", tmp_path)
    monkeypatch.setattr("launch.upstream.pin.lock.SCHEMAS", tmp_path)
    assert list(lacking("trl_own", whole)) == [f"docs/reference/verbs.md lacks trl_own: {RENEW}"]


def test_every_patch_is_of_a_trainer() -> None:
    used = {patch for name in SHIPPED for patch in read(FOLDER / f"{name}.yaml")["patches"]}
    assert used == set(PATCHES)


def line_of(*overrides: str) -> CommandLine:
    return CommandLine("plan", False, overrides)


@pytest.mark.parametrize(("upstream_name", "name"), UPSTREAM_NAMES.items())
def test_a_trainer_is_chosen_by_the_name_that_upstream_gives_it(
    upstream_name: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On the line and in a stage's file; the run is the same, and a notice names the trainer here."""
    settings = SETTINGS_OF[name]
    expected = plan_composed(compose_once(line_of(*settings, f"trainer={name}")))
    assert capsys.readouterr().err == ""
    _notify_of_name.cache_clear()
    by_line = plan_composed(compose_once(line_of(*settings, f"trainer={upstream_name}")))
    assert f"trainer={name}" in capsys.readouterr().err
    (tmp_path / "stage").mkdir()
    base = settings[0].partition("=")[2]
    text = f"defaults:\n  - {base}\n  - override /trainer: {upstream_name}\n  - _self_\n"
    (tmp_path / "stage" / f"{base}_own.yaml").write_text(f"# @package _global_\n{text}")
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path))
    by_file = compose_once(line_of(f"{settings[0]}_own", *settings[1:]))
    assert by_file.origins.choices["trainer"] == by_file.config.trainer.name == name
    place = by_file.origins.of("trainer.entry").where or ""
    assert place.startswith(f"configs/tulu/trainer/{name}.yaml:")
    assert by_line.plan.command == expected.plan.command
    assert by_line.plan.folder == expected.plan.folder
    assert by_file.config.trainer == expected.plan.config.trainer


def test_a_trainer_of_ones_own_keeps_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trainer").mkdir()
    text = (FOLDER / "trl_sft.yaml").read_text("utf-8")
    (tmp_path / "trainer" / "sft.yaml").write_text(text, "utf-8")
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path))
    assert compose_once(line_of("stage=demo", "trainer=sft")).config.trainer.name == "trl_sft"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", SHIPPED)
def test_the_checkpoints_of_a_run_without_the_key_are_those_of_the_trainers_default(
    name: str,
) -> None:
    """`checkpoint_steps` of a trainer is the default of the flag that recipe.checkpoint_steps sets."""
    content = read(FOLDER / f"{name}.yaml")
    trainer = TrainerConfig(
        name=name,
        kind=Kind(content["kind"]),
        family=Family(content["family"]),
        launcher=Launcher(content["launcher"]),
    )
    mapping = recipe_mapping(trainer, "checkpoint_steps")
    default = None
    if isinstance(mapping, str):  # null leaves the flag out
        default = locked_schema(name).fields[mapping].default
    assert content.get("checkpoint_steps") == default
    if default is not None:
        assert name in KEYS["checkpoint_steps"].help
