"""The list of DeepSpeed's keys is renewed from a source that differs from the installed one."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.upstream.libraries.library_keys import library_keys_file
from maintain.relock import renewed_library_keys
from tests.messages import values_of
from tests.upstream.checkouts import SITE_PACKAGES


@pytest.fixture
def changed_deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site-packages folder, first on the path, with a DeepSpeed 9.9.9 that has the installed
    one's source.
    """
    package = next(
        (folder / "deepspeed" for folder in SITE_PACKAGES if (folder / "deepspeed").is_dir()), None
    )
    if package is None:
        pytest.skip("DeepSpeed is not installed in this interpreter")
    shutil.copytree(package, tmp_path / "deepspeed", ignore=shutil.ignore_patterns("__pycache__"))
    info = tmp_path / "deepspeed-9.9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 9.9.9\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_a_renewed_list_has_the_new_fields_lines_and_removals(changed_deepspeed: Path) -> None:
    runtime = changed_deepspeed / "deepspeed/runtime"
    replace_in(runtime / "zero/config.py", "    stage: ", "    shiny: bool = False\n    stage: ")
    replace_in(runtime / "constants.py", "GRADIENT_CLIPPING =", "\n\nGRADIENT_CLIPPING =")
    table = (
        '_REMOVED_TOP_LEVEL_CONFIG_KEYS = {\n    "dump_state": f"gone, use \'bf16\': '
        '{_REMOVED_FEATURES_ISSUE}.",'
    )
    replace_in(runtime / "config.py", "_REMOVED_TOP_LEVEL_CONFIG_KEYS = {", table)
    old = json.loads(library_keys_file("deepspeed").read_text(encoding="utf-8"))["spec"]["keys"]
    renewed = renewed_library_keys("deepspeed", sys.executable)
    assert renewed["version"] == "9.9.9"
    new = renewed["spec"]["keys"]
    assert new["zero_optimization"]["keys"]["shiny"] == {"types": ["bool"], "lenient": True}
    assert "shiny" not in old["zero_optimization"]["keys"]
    lines = [int(spec["gradient_clipping"]["source"].rpartition(":")[2]) for spec in (old, new)]
    assert lines[1] == lines[0] + 2
    line = (runtime / "config.py").read_text(encoding="utf-8").splitlines().index(
        table.splitlines()[1]
    ) + 1
    issue = "https://github.com/deepspeedai/DeepSpeed/issues/8489"
    assert new["dump_state"] == {
        "removed": f"deepspeed/runtime/config.py:{line}, {issue}",
        "instead": ["bf16"],
    }
    assert set(new) == set(old)


def test_a_key_that_left_the_source_must_leave_the_list(changed_deepspeed: Path) -> None:
    replace_in(
        changed_deepspeed / "deepspeed/runtime/constants.py", "'wall_clock_breakdown'", "'clock'"
    )
    with pytest.raises(UserError) as refused:
        renewed_library_keys("deepspeed", sys.executable)
    [problem] = refused.value.problems
    assert problem.id == "library_unreadable"
    assert {"wall_clock_breakdown", "constants.py"} <= set(values_of(problem.message))


def replace_in(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
