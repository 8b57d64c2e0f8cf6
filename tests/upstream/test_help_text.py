"""Help texts: those of the real parsers and sources, and unknown wherever the source here may state
another.
"""

from __future__ import annotations

import ast
import inspect
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launch.upstream.capture.start import capture_schema
from launch.upstream.help_text import HelpTexts, read_help
from launch.upstream.pin.lock import SCHEMAS, locked_schema
from launch.upstream.schema import Schema
from launch.upstream.trainers import ENTRIES, TRL
from tests.upstream.captured import write_files
from tests.upstream.checkouts import SITE_PACKAGES, checkout
from tests.upstream.real_parsers import SYNTHETIC, RealParsers

TRAINERS = (
    "synthetic",
    *(pytest.param(trainer, marks=pytest.mark.slow) for trainer in ENTRIES),
)
FOLDERS = [SYNTHETIC, *([root] if (root := checkout()) else []), *SITE_PACKAGES]
SCRIPT = """
from dataclasses import dataclass, field
from transformers import HfArgumentParser

WHERE = "here"

@dataclass
class Common:
    shared: int = field(default=1, metadata={"help": "of the base class"})
    rate: float = field(default=1.0, metadata={"help": "of the base class too"})

@dataclass
class Args(Common):
    rate: float = 0.5
    \"\"\"overridden
       in two lines\"\"\"
    both: int = field(default=1, metadata={"help": "metadata"})
    \"\"\"docstring\"\"\"
    summed: int = field(default=1, metadata={"help": "one" + " and " + ("two " "three")})
    plain: int = field(default=1, metadata={"help": f"an f-string without a value"})
    as_call: int = field(default=1, metadata=dict(help="by dict()"))
    computed: int = field(default=1, metadata={"help": f"set {WHERE}"})
    named: int = field(default=1, metadata={"help": WHERE})
    empty: int = field(default=1, metadata={"help": ""})
    nothing: int = 1

if __name__ == "__main__":
    HfArgumentParser(Args).parse_args_into_dataclasses()
"""
READ = {
    "shared": "of the base class",
    "rate": "overridden\nin two lines",
    "both": "metadata",
    "summed": "one and two three",
    "plain": "an f-string without a value",
    "as_call": "by dict()",
}
COMPUTED = ("computed", "named")


def read(schema: Schema, *folders: Path) -> HelpTexts:
    return read_help(schema.fields.values(), folders)


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Schema, Path]:
    folder = write_files(tmp_path_factory.mktemp("script"), {"train.py": SCRIPT})
    return capture_schema("train.py", folder, sys.executable), folder


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_text_is_the_real_parsers(
    trainer: str, schema_of: Callable[[str], Schema], real_parsers: RealParsers
) -> None:
    """A flag without a text in its parser has the docstring behind its field, or none."""
    schema = schema_of(trainer)
    real = real_parsers.query(trainer=trainer, help=True)
    found = read_help(schema.fields.values(), FOLDERS)
    assert set(found.unknown) == ({"chosen"} if trainer == "synthetic" else set())
    from_parser = 0
    for field in schema.fields.values():
        text = found.texts.get(field.name)
        stated = real.get(field.name) or _text_behind(field.file, field.line)
        expected = inspect.cleandoc(stated).strip() if stated else None
        assert field.name in found.unknown or text == expected, field.name
        from_parser += text is not None and bool(real.get(field.name))
    assert len(found.texts) > (2 if trainer == "synthetic" else 30)
    if trainer in TRL:
        assert from_parser == len(found.texts) == len(schema.fields)


def _text_behind(file: str, line: int) -> str | None:
    """Return the text that stands alone behind the statement of a line."""
    (path,) = {folder / file for folder in FOLDERS if (folder / file).is_file()}
    statements = [
        node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.stmt)
    ]
    ends = [statement.end_lineno for statement in statements if statement.lineno == line]
    behind = [statement for statement in statements if statement.lineno - 1 == ends[0]]
    is_text = (
        behind and isinstance(behind[0], ast.Expr) and isinstance(behind[0].value, ast.Constant)
    )
    return ast.literal_eval(behind[0].value) if is_text else None


@pytest.mark.parametrize("trainer", ENTRIES)
def test_the_lock_has_no_text(trainer: str, schema_of: Callable[[str], Schema]) -> None:
    content = (SCHEMAS / f"{trainer}.json").read_text(encoding="utf-8")
    assert all("help" not in field for field in json.loads(content)["fields"].values())
    texts = read_help(schema_of(trainer).fields.values(), FOLDERS).texts
    assert len(texts) > 50
    assert [
        name
        for name, text in texts.items()
        if len(text.split()) > 4 and json.dumps(text)[1:-1] in content
    ] == []


def test_every_literal_form_is_read_and_a_computed_text_is_unknown(
    captured: tuple[Schema, Path],
) -> None:
    schema, folder = captured
    found = read(schema, folder)
    assert found.texts == READ
    assert found.unknown == dict.fromkeys(COMPUTED, "train.py does not state it as a literal text")
    assert (
        schema.fields["nothing"].help_digest is None and schema.fields["empty"].help_digest is None
    )


@pytest.mark.parametrize(
    ("old", "new", "unknown"),
    [
        ("# nothing", "# nothing", {}),
        ('"overridden\n', '"another text\n', {"rate"}),
        ('"metadata"', '"another text"', {"both"}),
        ("both: int", "other: int", {"both"}),
        ("class Args(", "class Others(", {*READ} - {"shared"}),
        ("WHERE =", "# moved by two lines\n\nWHERE =", {}),
        ('    """docstring"""\n', "    x: int = 1\n    both: int = 1\n", {}),
        ('"of the base class"}', '"of the base class too"}', {"shared"}),
        ("WHERE =", "WHERE = (", {*READ}),
    ],
)
def test_a_text_of_an_edited_file_is_shown_only_if_it_is_the_fields(
    captured: tuple[Schema, Path], tmp_path: Path, old: str, new: str, unknown: set[str]
) -> None:
    schema, folder = captured
    text = (folder / "train.py").read_text(encoding="utf-8")
    assert old in text or old == "# nothing"
    write_files(tmp_path, {"train.py": text.replace(old, new, 1).encode()})
    found = read(schema, tmp_path)
    assert set(found.unknown) == {*unknown, *COMPUTED}
    assert found.texts == {name: READ[name] for name in READ if name not in unknown}


def test_a_source_that_cannot_be_read_is_unknown(
    captured: tuple[Schema, Path], tmp_path: Path
) -> None:
    schema, folder = captured
    file = tmp_path / "train.py"
    for content, reason in (
        (None, "train.py is not here"),
        (b"x = (1,\n", "train.py can't be parsed"),
        (b"x = '\xff'\n", "train.py can't be parsed"),
        (b"x = 1\0\n", "train.py can't be parsed"),
        (b"-" * 200_000 + b"1", "train.py can't be parsed"),
        (b"", "train.py does not state it as a literal text"),
    ):
        if content is not None:
            file.write_bytes(content)
        found = read(schema, tmp_path)
        assert found.texts == {}
        assert set(found.unknown) == {*READ, *COMPUTED}
        assert all(text.startswith(reason) for text in found.unknown.values()), found.unknown[
            "both"
        ]
    file.unlink()
    file.mkdir()
    assert read(schema, tmp_path, folder).texts == READ, "the next folder has the file"


def test_a_generated_class_has_no_source(captured: tuple[Schema, Path]) -> None:
    schema, folder = captured
    field = replace(schema.fields["both"], file="", line=0)
    assert read_help([field], [folder]).unknown == {"both": "its source is not here"}


def test_every_folder_is_tried_in_order(captured: tuple[Schema, Path], tmp_path: Path) -> None:
    schema, folder = captured
    shutil.copy(folder / "train.py", tmp_path)
    assert read(schema, tmp_path / "none", tmp_path).texts == READ


def test_the_lock_of_the_trainers_that_share_a_class_has_the_same_digests() -> None:
    ours, theirs = locked_schema("dpo").fields, locked_schema("dpo_tune_cache").fields
    assert {name: field.help_digest for name, field in ours.items()} == {
        name: field.help_digest for name, field in theirs.items()
    }
