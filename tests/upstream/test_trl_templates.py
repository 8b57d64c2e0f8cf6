"""TRL's templates are found without importing it: of the trainer's TRL or launch's, in a cache, or
by the lock.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from launch.digests import digest_text
from launch.upstream.trl_templates import (
    TemplateFinder,
    load_templates,
    staged_name,
)
from tests.trl_texts import install_trl, read_texts

PLAIN, MARKED = "{{ messages }}", "{% generation %}{{ messages }}{% endgeneration %}"
OTHER = {"qwen3": PLAIN, "qwen3_training": MARKED}


def finder(root: Path, *packages: Path) -> TemplateFinder:
    return TemplateFinder(packages, root / "kept", root / "staged")


@pytest.fixture
def texts() -> dict[str, str]:
    return read_texts() or pytest.skip("TRL is not installed")


def test_the_trainers_trl_comes_before_launchs_own_and_both_before_the_lock(
    tmp_path: Path, texts: dict[str, str]
) -> None:
    empty, trainers = tmp_path / "empty", install_trl(tmp_path / "trainer", OTHER, "1.17.0")
    own = install_trl(tmp_path / "own", texts)
    found = finder(tmp_path, trainers, own).find("qwen3")
    assert found and (found.text, found.is_locked) == (PLAIN, False)
    assert found.source == f"of TRL 1.17.0 in {trainers}"
    found = finder(tmp_path, empty, own).find("qwen3")
    assert found and (found.text, found.is_locked) == (texts["qwen3"], True)
    assert found.source == f"of TRL 1.16.0 in {own}"
    # a version that lacks a name does not hide it
    other = finder(tmp_path, trainers, own).find("gemma")
    assert other and other.text == texts["gemma"]


def test_every_name_is_planned_by_the_digest_of_its_installed_text(
    tmp_path: Path, texts: dict[str, str]
) -> None:
    installed, nowhere = finder(tmp_path, install_trl(tmp_path / "own", texts)), finder(tmp_path)
    assert nowhere.names() == installed.names() == set(texts)
    for name, text in texts.items():
        here, locked = installed.find(name), nowhere.find(name)
        assert here and locked
        assert (here.text, locked.text) == (text, None)
        assert (here.digest, here.marks_answers) == (locked.digest, locked.marks_answers)
        assert here.file_below(installed.staged) == locked.file_below(nowhere.staged)
        assert staged_name(here.file_below(installed.staged)) == name


def test_what_was_read_is_kept_by_digest_and_found_without_trl(
    tmp_path: Path, texts: dict[str, str]
) -> None:
    here = finder(tmp_path, install_trl(tmp_path / "own", texts))
    template = here.find("qwen3")
    assert template
    here.keep(template)
    kept = {digest_text(texts[name]): texts[name] for name in ("qwen3", "qwen3_training")}
    assert {file.stem: file.read_text(encoding="utf-8") for file in here.kept.iterdir()} == kept
    found = finder(tmp_path).find("qwen3_training")
    assert found and found.text == texts["qwen3_training"]
    assert str(here.kept) in found.source
    assert finder(tmp_path / "elsewhere").find("qwen3").text is None  # type: ignore[union-attr]


def test_a_damaged_text_of_a_cache_is_not_used(tmp_path: Path, texts: dict[str, str]) -> None:
    here = finder(tmp_path, install_trl(tmp_path / "own", texts))
    template = here.find("qwen3")
    assert template
    here.keep(template)
    staged = here.stage(template)
    for file in (*here.kept.iterdir(), staged):
        file.write_text(file.read_text(encoding="utf-8")[:-3], encoding="utf-8")
    found = finder(tmp_path).find("qwen3")
    assert found and (found.text, found.digest) == (None, template.digest)
    assert here.stage(template).read_text(encoding="utf-8") == texts["qwen3"]  # written again
    again = finder(tmp_path).find("qwen3")
    assert again and again.text == texts["qwen3"]


def test_a_cache_that_cannot_be_written_keeps_nothing(
    tmp_path: Path, texts: dict[str, str]
) -> None:
    (tmp_path / "kept").write_text("", encoding="utf-8")
    here = finder(tmp_path, install_trl(tmp_path / "own", texts))
    template = here.find("gemma")
    assert template
    here.keep(template)
    assert (tmp_path / "kept").read_text(encoding="utf-8") == ""


def test_a_run_keeps_the_texts_that_it_began_with(tmp_path: Path) -> None:
    before = finder(tmp_path, install_trl(tmp_path / "a", OTHER, "1.17.0"))
    began = before.find("qwen3")
    assert began
    before.stage(began)
    later = install_trl(tmp_path / "b", {"qwen3": "{{ 1 }}"}, "1.18.0")
    for packages in ((later,), ()):
        resumed = TemplateFinder(
            packages, tmp_path / "kept", tmp_path / "staged", began.digests
        ).find("qwen3")
        assert resumed and resumed.texts == OTHER and resumed.digest == began.digest


def test_both_forms_are_the_content_of_a_template(tmp_path: Path) -> None:
    first = finder(tmp_path, install_trl(tmp_path / "a", OTHER)).find("qwen3")
    second = finder(
        tmp_path, install_trl(tmp_path / "b", OTHER | {"qwen3_training": MARKED + " "})
    ).find("qwen3")
    alone = finder(tmp_path, install_trl(tmp_path / "c", {"qwen3": PLAIN})).find("qwen3")
    assert first and second and alone
    assert len({first.digest, second.digest, alone.digest}) == 3
    assert first.marks_answers and not alone.marks_answers


def test_names_that_are_no_template_of_trls(tmp_path: Path, texts: dict[str, str]) -> None:
    packages = install_trl(
        tmp_path / "own", {**texts, "idefics3": "x", "brand_new": "{% generation %}"}, "1.17.0"
    )
    here = finder(tmp_path, packages)
    for name in ("idefics3", "../chat_templates/qwen3", "", "qwen", "tulu", str(packages)):
        assert here.find(name) is None
    new = here.find("brand_new")  # of a later version
    assert (
        new and new.marks_answers and "brand_new" in here.names() and "idefics3" not in here.names()
    )
    assert finder(tmp_path).find("brand_new") is None


def test_the_form_with_marks_of_an_equal_text(tmp_path: Path, texts: dict[str, str]) -> None:
    assert finder(tmp_path).has_training_form(texts["qwen3"])
    assert not finder(tmp_path).has_training_form(texts["qwen3"] + " ")
    assert not finder(tmp_path).has_training_form(texts["llama3_1"])
    assert finder(tmp_path, install_trl(tmp_path / "own", OTHER)).has_training_form(PLAIN)
    assert not finder(tmp_path).has_training_form(PLAIN)


def test_nothing_of_trl_is_imported(tmp_path: Path) -> None:
    packages = install_trl(tmp_path / "own", OTHER)
    program = (
        "import sys; from pathlib import Path; from launch.upstream.trl_templates import "
        "TemplateFinder\n"
        f"folder = {str(packages)!r}; sys.path.insert(0, folder)\n"
        "finder = TemplateFinder([Path(folder)], Path('a'), Path('b'))\n"
        "assert finder.find('qwen3').text == '{{ messages }}' and 'trl' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_lock_names_both_forms_of_most() -> None:
    locked = load_templates()
    plain = {name for name in locked.digests if not name.endswith("_training")}
    assert {f"{name}_training" for name in plain} >= {
        name for name in locked.digests if name.endswith("_training")
    }
    assert {"llama3", "qwen2_5", "qwen3", "gemma3", "phi3"} < plain
