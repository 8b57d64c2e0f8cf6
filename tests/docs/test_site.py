"""The documentation's site, opened from a disk: the search finds pages, and no other host is
asked.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.execution.report.browser import Browser, start_chromium, wait_for, why_missing
from tests.paths import ROOT

pytestmark = pytest.mark.slow
in_chromium = pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))
ADDRESS = re.compile(r"(?:https?:)?//[\w-]+\.[\w.-]+")
# of a script or sheet, and of a drawing inside a sheet
COMMENT = re.compile(r"/\*.*?\*/|\\3c !--.*?-->", re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the group docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    subprocess.run(
        build, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True, timeout=300
    )
    return folder


class Attributes(HTMLParser):
    """Collects the addresses that a page has outside its text and the links that a reader may
    follow.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if (tag, name) != ("a", "href") and not name.startswith("xmlns"):
                self.addresses += ADDRESS.findall(value or "")


def test_no_file_names_another_host_but_in_links_and_licences(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        assert Attributes(page.read_text(encoding="utf-8")).addresses == [], page
    loaded = [
        path for path in (site / "assets").rglob("*") if path.suffix in (".js", ".css", ".svg")
    ]
    assert len(loaded) > 6
    for path in loaded:
        text = COMMENT.sub("", path.read_text(encoding="utf-8"))
        assert set(re.findall(r"https?://[\w.-]+", text)) <= {"http://www.w3.org"}, path
        assert "sourceMappingURL" not in text


@pytest.fixture
def browser() -> Browser:
    return Browser(start_chromium())


def open_page(browser: Browser, page: Path) -> None:
    """Open a page, which may ask for files only, and write nothing to the console."""
    browser.driver.get(page.as_uri())
    requested = browser.run(
        "return performance.getEntriesByType('resource').map(entry => entry.name)"
    )
    assert [address for address in requested if not address.startswith(("file:", "data:"))] == []
    assert [entry["message"] for entry in browser.driver.get_log("browser")] == []


@in_chromium
def test_every_page_opens_without_a_server(site: Path, browser: Browser) -> None:
    for page in site.rglob("*.html"):
        if page.name != "404.html":  # a server's
            open_page(browser, page)
            assert browser.run("return document.documentElement.classList.contains('js')")
            assert (
                browser.run(
                    "return [...document.images].filter(i => !i.naturalWidth).map(i => i.src)"
                )
                == []
            )


@in_chromium
@pytest.mark.parametrize(
    ("page", "words", "target"),
    [
        ("index.html", "batch_not_divisible", "reference/rules.html"),
        ("how-to/slurm.html", "requeue preempted", "how-to/slurm.html"),
        # the end of a word is not typed yet
        ("reference/verbs.html", "gradient accumul", "explanation/batches.html"),
    ],
)
def test_the_search_finds_a_page_without_a_server(
    site: Path, browser: Browser, page: str, words: str, target: str
) -> None:
    open_page(browser, site / page)
    browser.run("document.querySelector('#__search').click()")
    field = browser.find(".md-search__input")
    wait_for(field.is_displayed)
    field.send_keys(words)

    def find_targets() -> list[str]:
        return [link.get_attribute("href") for link in browser.find_all(".md-search-result__link")]

    wait_for(lambda: bool(find_targets()), seconds=60)
    (address, *_) = [address for address in find_targets() if target in address] or [""]
    assert address, find_targets()
    assert browser.find_all(".md-search-result__item mark")
    assert [entry["message"] for entry in browser.driver.get_log("browser")] == []
    browser.driver.get(address)
    assert browser.run("return location.pathname").endswith(target)


@in_chromium
def test_a_worker_from_a_disk_answers_in_order_and_ends(
    site: Path, browser: Browser, tmp_path: Path
) -> None:
    (tmp_path / "echo.js").write_text(
        "addEventListener('message', ({data}) => { data.seen = true; "
        "postMessage(data.text.toUpperCase()); });"
    )
    page = tmp_path / "page.html"
    page.write_text(
        f'<body><script src="{(site / "assets" / "iframe-worker.js").as_uri()}"></script></body>'
    )
    browser.driver.get(page.as_uri())
    browser.run(
        "window.answers = []; window.sent = {text: 'c'}; window.worker = new Worker('echo.js');"
        "worker.addEventListener('message', (event) => answers.push(event.data));"
        "for (const text of ['a', 'b']) worker.postMessage({text}); worker.postMessage(sent);"
    )
    wait_for(lambda: bool(browser.run("return answers.length === 3")))
    assert browser.run("return [answers, sent]") == [["A", "B", "C"], {"text": "c"}]
    browser.run("worker.terminate()")
    assert browser.find_all("iframe") == []
