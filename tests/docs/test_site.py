"""The site that scripts/site builds: whole, found by its search, and in need of no other host."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit

import pytest

from scripts.site_hooks import CLIENT_PAGE, indented, is_in_site, navigation

pytestmark = pytest.mark.skipif(
    "NSQ_TEST_PYTHON" in os.environ, reason="the site is the same whatever the daemons run on"
)

ROOT: Final = Path(__file__).resolve().parents[2]
INDEX: Final = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
TIMEOUT: Final = 280.0  # less than tests.support.hangs.LIMIT
# What a browser fetches by itself, by tag and attribute; `link` needs its `rel` besides.
FETCHED: Final = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "srcset"), ("link", "href")}
# Left over from Markdown that the site does not take for what the hosting takes it for.
LEFT_OVER: Final = re.compile(r"^(?:[-*] |\d+\. |```|\|.*\|$|#+ )", re.MULTILINE)


class Page(HTMLParser):
    """What a page links to, what it can be linked to by, and its paragraphs."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.names: set[str] = set()
        self.paragraphs: list[str] = []
        self._in_paragraph = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.names |= {given[name] for name in ("id", "name") if name in given}
        for name, value in given.items():
            if (tag, name) in FETCHED and given.get("rel") not in ("canonical", "next", "prev"):
                self.fetched.append(value)
            elif (tag, name) == ("a", "href"):
                self.links.append(value)
        if tag == "p":
            self._in_paragraph = True
            self.paragraphs.append("")
        elif tag in ("code", "pre", "a"):
            self._in_paragraph = False

    def handle_endtag(self, tag: str) -> None:
        self._in_paragraph = tag in ("code", "a") and bool(self.paragraphs)

    def handle_data(self, data: str) -> None:
        if self._in_paragraph:
            self.paragraphs[-1] += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site. `--strict` makes an error of each warning, such as a link that leads nowhere."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def test_every_document_is_a_page(site: Path) -> None:
    docs = ROOT / "docs"
    for document in docs.rglob("*.md"):
        name = document.with_name("index.md") if document.name == "README.md" else document
        assert (site / name.relative_to(docs).with_suffix(".html")).exists()


def test_links_and_anchors_lead_somewhere(pages: dict[Path, Page]) -> None:
    broken = []
    for page in pages.values():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or page.path.name == "404.html":  # which any address may be answered with
                continue
            target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
            target = target / "index.html" if target.is_dir() else target
            names = pages[target].names if target in pages else None
            if not target.exists() or (parts.fragment and names is not None and unquote(parts.fragment) not in names):
                broken.append(f"{page.path.name}: {link}")
    assert broken == []


def test_nothing_is_fetched_from_another_host(site: Path, pages: dict[Path, Page]) -> None:
    assert {it for page in pages.values() for it in page.fetched if "//" in it} == set()
    for sheet in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)\"']*", sheet.read_text(encoding="utf-8")) == []


def test_no_markdown_is_left_over(pages: dict[Path, Page]) -> None:
    left = [
        f"{page.path.name}: {paragraph[:100]}"
        for page in pages.values()
        for paragraph in page.paragraphs
        if LEFT_OVER.search(paragraph)
    ]
    assert left == []


def test_the_search_finds_documents_endpoints_and_names_of_the_client(site: Path) -> None:
    found = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    titles = {it["location"]: it["title"] for it in found}
    assert titles["how-to/deploy.html"] == "Deploy"
    assert "GET /channel/buried" in titles["reference/openapi/nsqd.html#get-channelburied"]
    assert "open_consumer" in titles["reference/nsqclient.html#nsqclient.open_consumer"]


def entries(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for it in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from entries(it)


def test_navigation_is_that_of_the_index() -> None:
    nav = navigation(INDEX)
    assert [next(iter(it)) for it in nav] == re.findall(r"^## (\w[\w-]*(?: \w+)*)", INDEX, re.MULTILINE)
    linked = dict.fromkeys(re.findall(r"\]\(([\w./-]+\.(?:md|yaml))\)", INDEX))
    assert [it for it in entries(nav) if it != CLIENT_PAGE] == [re.sub(r"yaml$", "md", it) for it in linked]


def test_a_link_that_leaves_the_documents_is_no_link_in_the_site() -> None:
    here = PurePosixPath("how-to")
    assert all(
        is_in_site(here, it)
        for it in ("deploy.md", "../README.md", "../reference/http.md#nsqd", "#here", "https://nsq.io")
    )
    assert not any(is_in_site(here, it) for it in ("../../README.md#numbers", "../../deploy/helm/nsq/README.md"))


def test_what_belongs_to_an_item_is_indented_by_four_spaces() -> None:
    given = "1. One:\n\n   ```sh\n   if x\n     y\n   ```\n   More.\n2. Two\n\n```text\n   as it is\n```\n   no list"
    expected = (
        "1. One:\n\n    ```sh\n    if x\n      y\n    ```\n    More.\n\n2. Two\n\n```text\n   as it is\n```\n   no list"
    )
    assert "\n".join(indented(given)) == expected
