"""Comparing two schemas: renames are distinguished from removals, and unreadable parts are not
reported.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launch.upstream.capture.start import capture_schema
from launch.upstream.help_text import read_help
from launch.upstream.pin.lock import locked_schema
from launch.upstream.schema import Field, Schema, Unknown
from maintain.commit import extracted
from maintain.compare import FlagChange, compare_schemas, flag_similarity
from tests.upstream.checkouts import checkout, has_commit


def schema_of(folder: Path, body: str) -> Schema:
    """The schema of a small script with one dataclass of this body."""
    folder.mkdir(exist_ok=True)
    indented = "\n".join(f"    {line}" for line in body.strip().splitlines())
    text = (
        "from dataclasses import dataclass, field\nfrom typing import List, Literal, Optional\n"
        "from transformers import HfArgumentParser\n\n"
        f"@dataclass\nclass Args:\n{indented}\n\n"
        'if __name__ == "__main__":\n    HfArgumentParser((Args,)).parse_args_into_dataclasses()\n'
    )
    (folder / "script.py").write_text(text)
    return capture_schema("script.py", folder, sys.executable)


def changes_between(
    folder: Path, old: str, new: str, pairs: dict[str, str] | None = None
) -> list[FlagChange]:
    before, after = schema_of(folder / "old", old), schema_of(folder / "new", new)
    old_help = read_help(before.fields.values(), [folder / "old"]).texts
    new_help = read_help(after.fields.values(), [folder / "new"]).texts
    return compare_schemas(before, after, pairs, old_help, new_help)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("a: int = 1", "a: int = 1", []),
        ("a: int = 1", "a: int = 1\nb: str = 'x'", [FlagChange("added", "b")]),
        ("a: int = 1\nb: int = 2", "a: int = 1", [FlagChange("removed", "b")]),
        ("a: int = 1", "a: int = 2", [FlagChange("default", "a", None, 1, 2)]),
        ("a: int = 1", "a: float = 1", [FlagChange("type", "a", None, "int", "float")]),
        ("a: Optional[str] = None", "a: str | None = None", []),
        (
            "a: List[str] = field(default_factory=list)",
            "a: list[str] = field(default_factory=list)",
            [],
        ),
        (
            "a: str = 'x'",
            "a: str",
            [
                FlagChange("default", "a", None, "x", None),
                FlagChange("required", "a", None, False, True),
            ],
        ),
        (
            "a: Literal['x', 'y'] = 'x'",
            "a: Literal['x', 'z'] = 'x'",
            [FlagChange("choices", "a", None, ["x", "y"], ["x", "z"])],
        ),
        (
            "dataset_mixer: int = 1",
            "mixer: int = 1",
            [FlagChange("renamed", "dataset_mixer", "mixer", proposed=True)],
        ),
        (
            "shard: int = 1",
            "fsdp_shard: float = 1",
            [FlagChange("renamed", "shard", "fsdp_shard", "int", "float", proposed=True)],
        ),
        (
            "use_flash: bool = False",
            "use_fast: bool = False",
            [FlagChange("removed", "use_flash"), FlagChange("added", "use_fast")],
        ),
    ],
)
def test_changes(tmp_path: Path, old: str, new: str, expected: list[FlagChange]) -> None:
    assert changes_between(tmp_path, f"{old}\nz: int = 0", f"{new}\nz: int = 0") == expected


BEFORE = """
epochs_in_all: int = field(default=2, metadata={"help": "How often to go through the data."})
checkpointing: bool = field(default=False, metadata={"help": "Recompute activations."})
"""
AFTER = """
passes: int = field(default=1, metadata={"help": "How often to go through the data."})
memory_budget: float = field(default=1.0, metadata={"help": "Below 1.0 is on."})
"""


def test_renames_by_help_text_and_by_hint(tmp_path: Path) -> None:
    old, new = BEFORE, AFTER.replace("the data.", "the rows.")
    changes = changes_between(
        tmp_path, old, new, {"checkpointing": "memory_budget", "nothing": "passes"}
    )
    assert changes == [
        FlagChange("renamed", "epochs_in_all", "passes", proposed=True),
        FlagChange("renamed", "checkpointing", "memory_budget", "bool", "float"),
    ]


def test_an_equal_help_suggests_a_rename_without_the_texts_and_a_similar_one_does_not(
    tmp_path: Path,
) -> None:
    old, new = schema_of(tmp_path / "old", BEFORE), schema_of(tmp_path / "new", AFTER)
    assert FlagChange("renamed", "epochs_in_all", "passes", proposed=True) in compare_schemas(
        old, new
    )
    new = schema_of(tmp_path / "newer", AFTER.replace("the data.", "the rows."))
    assert {change.kind for change in compare_schemas(old, new)} == {"added", "removed"}


def test_a_person_says_what_was_renamed(tmp_path: Path) -> None:
    removed = changes_between(tmp_path, "mixer: int = 1", "dataset_mixer: int = 1", {"mixer": ""})
    assert removed == [FlagChange("removed", "mixer"), FlagChange("added", "dataset_mixer")]
    renamed = changes_between(
        tmp_path, "mixer: int = 1", "dataset_mixer: int = 1", {"mixer": "dataset_mixer"}
    )
    assert renamed == [FlagChange("renamed", "mixer", "dataset_mixer")]


def test_unknown_parts_are_neither_changed_nor_removed(tmp_path: Path) -> None:
    old = schema_of(tmp_path / "old", "a: int = 1\nb: int = 1")
    new = schema_of(tmp_path / "new", "a: int = field(default_factory=object)")
    assert new.fields["a"].unknown
    assert (
        compare_schemas(
            old, replace(new, unknown=(Unknown("options", "a base class can't be read"),))
        )
        == []
    )
    assert compare_schemas(old, new) == [FlagChange("removed", "b")]


def test_similarity_is_between_0_and_1_and_high_for_a_prefix() -> None:
    fields = list(locked_schema("finetune").fields.values())[:12]
    assert all(0 <= flag_similarity(one, other) <= 1 for one in fields for other in fields)
    assert all(flag_similarity(field, _renamed(field)) >= 0.9 for field in fields)


def _renamed(field: Field) -> Field:
    return replace(field, name=f"new_{field.name}")


@pytest.mark.thorough
@pytest.mark.slow
def test_an_older_commit() -> None:
    """finetune has the same flags at 45901fd0 and at the pin; DPO gained ten and changed two."""
    root = checkout()
    if root is None or not has_commit(root, "45901fd0"):
        pytest.skip("no open-instruct checkout with history: set OPEN_INSTRUCT_DIR")
    pin = locked_schema("finetune")
    with extracted(root, "45901fd0") as tree:
        assert (
            compare_schemas(capture_schema("open_instruct/finetune.py", tree, sys.executable), pin)
            == []
        )
        old = capture_schema("open_instruct/dpo_tune_cache.py", tree, sys.executable)
    dpo = compare_schemas(old, locked_schema("dpo_tune_cache"))
    assert sorted(change.flag for change in dpo if change.kind == "added") == [
        "activation_checkpointing_mode",
        "activation_checkpointing_modules",
        "cp_degree",
        "cp_strategy",
        "data_loader_seed",
        "loss_implementation",
        "rope_scaling_beta_fast",
        "rope_scaling_beta_slow",
        "rope_scaling_factor",
        "rope_scaling_old_context_len",
    ]
    others = {(change.kind, change.flag) for change in dpo if change.kind != "added"}
    assert ("default", "max_grad_norm") in others
    assert ("required", "model_name_or_path") in others
    assert not {flag for kind, flag in others if kind in ("renamed", "removed")}
