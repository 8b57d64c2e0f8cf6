"""The chat templates of the installed TRL, for tests, and installations of TRL that have nothing
else.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from launch import resources
from launch.upstream.trl_templates import load_templates

OWN = resources.ROOT / "launch" / "templates"  # this project's


def _find_installed() -> Path | None:
    spec = importlib.util.find_spec("trl")
    places = spec.submodule_search_locations if spec else None
    return Path(next(iter(places))) / "chat_templates" if places else None


INSTALLED = _find_installed()  # None: TRL is not installed


def read_texts() -> dict[str, str]:
    """The texts of the installed TRL's templates that launch takes, by name; none without TRL."""
    files = sorted(INSTALLED.glob("*.jinja")) if INSTALLED else []
    return {
        file.stem: file.read_bytes().decode()
        for file in files
        if load_templates().offers(file.stem)
    }


def install_trl(packages: Path, texts: Mapping[str, str], version: str = "1.16.0") -> Path:
    """Make a folder of packages with a TRL that cannot be imported: its version, and these
    templates.
    """
    about = packages / f"trl-{version}.dist-info" / "METADATA"
    about.parent.mkdir(parents=True)
    about.write_text(f"Metadata-Version: 2.1\nName: trl\nVersion: {version}\n", encoding="utf-8")
    folder = packages / "trl"
    (folder / "chat_templates").mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "raise RuntimeError('TRL was imported')\n", encoding="utf-8"
    )
    for name, text in texts.items():
        (folder / "chat_templates" / f"{name}.jinja").write_bytes(text.encode())
    return packages
