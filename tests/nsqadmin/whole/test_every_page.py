"""The HTML of every page and dialog that nsqadmin can render, full, with two silent nodes, and empty."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest

from tests.support.crawl import Page, crawl, kind_of
from tests.support.process import ROOT, needs_module
from tests.support.wide import COUNT, STARTS, WideAdmin, host_of, wide_cluster

needs_module("starlette")
needs_module("jinja2")

STATIC: Final = ROOT / "nsqadmin" / "web" / "static"
SCRIPTS_IDS: Final = {
    name
    for file in STATIC.glob("*.js")
    for name in re.findall(r"\bid = [\"`]([\w-]+)", file.read_text(encoding="utf-8"))
}
OF_FRAME: Final = {"dialog-title"}  # the title of what the dialog shows, if it is open


def pages_of(admin: WideAdmin, *starts: str, each: int) -> list[Page]:
    """Return at most `each` pages of a kind; these are the first."""
    return list(crawl(admin.html, (*starts, *STARTS), each=each))


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Page]]:
    """Return the pages by the state of the cluster."""
    found = {}
    with wide_cluster(tmp_path_factory.mktemp("wide")) as it:
        found["full"] = pages_of(it.admin, each=2)
        it.silence()
        silent = f"{host_of(COUNT - 1)}:{it.nodes[-1].http_address[1]}"
        found["silent"] = pages_of(it.admin, f"/nodes/{quote(silent, safe='')}", each=1)
    with wide_cluster(tmp_path_factory.mktemp("empty"), count=1, is_filled=False) as it:
        found["empty"] = pages_of(it.admin, each=2)
    return found


@pytest.mark.parametrize("state", ["full", "silent", "empty"])
def test_no_page_has_an_id_twice_and_each_reference_leads_to_one(states: dict[str, list[Page]], state: str) -> None:
    pages = states[state]
    assert len(pages) > 30
    twice = {page.path: again for page in pages if (again := [it for it, n in Counter(page.ids).items() if n > 1])}
    lost = {page.path: left for page in pages if (left := set(page.references) - set(page.ids) - OF_FRAME)}
    assert (twice, lost) == ({}, {})


@pytest.mark.parametrize("state", ["full", "silent", "empty"])
def test_a_dialog_shares_no_id_with_the_page_below_nor_with_what_scripts_add(
    states: dict[str, list[Page]], state: str
) -> None:
    by_path = {page.path: page for page in states[state]}
    shared = {
        (page.path, link): both
        for page in by_path.values()
        if not page.is_dialog
        for link in page.dialogs
        if (dialog := by_path.get(link)) is not None and (both := set(page.ids) & set(dialog.sheet))
    }
    assert shared == {}
    assert "palette-found" in SCRIPTS_IDS
    of_scripts = {page.path: both for page in by_path.values() if (both := set(page.ids) & (SCRIPTS_IDS - OF_FRAME))}
    assert of_scripts == {}


def test_every_template_of_a_page_is_among_them(states: dict[str, list[Page]]) -> None:
    """Apart from answers to a POST: see the tests of the actions."""
    kinds = {kind_of(page.path).partition("?")[0] for pages in states.values() for page in pages}
    expected = {
        "/", "/activity", "/buried", "/consumers", "/counter", "/deferred", "/find", "/help", "/incidents", "/incidents/ONE",
        "/incidents/ONE/mark", "/lookup", "/message", "/nodes", "/nodes/ONE", "/nodes/drain", "/nodes/forget",
        "/topics", "/topics/TOPIC", "/topics/TOPIC/CHANNEL", "/actions/publish", "/actions/replay",
        "/actions/create_topic", "/actions/kick_buried", "/actions/bury_group", "/actions/forget_reader",
    }  # fmt: skip
    assert expected <= kinds


def test_docs_name_only_tabs_that_exist(states: dict[str, list[Page]]) -> None:
    """Docs set the name of a tab in bold, before the word or after it: **Buried** tab, the tab **Nodes**."""
    tabs = {tab for page in states["full"] for tab in page.tabs}
    assert {"Overview", "Channels", "Buried", "Deferred", "Groups"} <= tabs
    named = re.compile(r"\btabs? \*\*([^*]+)\*\*|\*\*([^*]+)\*\* tab\b")
    wrong = [
        (file.name, name)
        for file in sorted(Path(ROOT, "docs").rglob("*.md"))
        for match in named.finditer(file.read_text(encoding="utf-8"))
        if (name := match[1] or match[2]) not in tabs
    ]
    assert wrong == []
