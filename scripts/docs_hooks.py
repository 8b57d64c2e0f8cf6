"""What mkdocs does after a build (mkdocs.yml): takes from the theme what asks another host or is
never loaded.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

# An address in a script, but in a comment (a licence) or as the name of a namespace. The theme has
# some for what this site does not use: diagrams, a repository's stars, browsers without
# ResizeObserver.
ADDRESS = re.compile(r"""(/\*.*?\*/)|https?://(?!www\.w3\.org/)[^\s"'`)]*""", re.DOTALL)


def on_post_build(config: Any) -> None:
    """Empty the theme's addresses; remove its source maps, and the stemmers of languages other than
    English.
    """
    site = Path(config.site_dir)
    shutil.rmtree(site / "assets" / "javascripts" / "lunr")
    for path in site.rglob("*.map"):
        path.unlink()
        built = path.with_suffix("")
        text = built.read_text(encoding="utf-8")
        built.write_text(re.sub(r"\n?(//|/\*)# sourceMappingURL=.*", "", text), encoding="utf-8")
    for script in (site / "assets" / "javascripts").rglob("*.js"):
        script.write_text(ADDRESS.sub(r"\1", script.read_text(encoding="utf-8")), encoding="utf-8")
