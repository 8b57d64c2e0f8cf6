"""The documentation's site, opened from a disk: the search finds a message by its id, and no other host is asked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.execution.report.browser import start_chromium, why_missing
from tests.paths import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the group docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    subprocess.run(build, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True, timeout=300)
    return folder


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    loaded = re.compile(r'<(?:script|img|link rel="(?:stylesheet|preconnect|icon)")[^>]+(?:src|href)="(?:https?:)?//')
    assert len(pages) > 40
    assert [page.name for page in pages if loaded.search(page.read_text(encoding="utf-8"))] == []


@pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))
def test_the_search_finds_a_message_without_a_server(site: Path) -> None:
    browser = start_chromium()
    browser.get((site / "index.html").as_uri())
    browser.execute_script("document.querySelector('#__search').click()")
    field = browser.find_element("css selector", ".md-search__input")
    end = time.monotonic() + 60
    while not field.is_displayed() and time.monotonic() < end:
        time.sleep(0.1)
    field.send_keys("batch_not_divisible")
    targets: list[str] = []
    while not targets and time.monotonic() < end:
        time.sleep(0.2)
        links = browser.find_elements("css selector", ".md-search-result__link")
        targets = [link.get_attribute("href") for link in links]
    assert any("reference/rules.html" in target for target in targets), targets
