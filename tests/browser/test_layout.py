"""Nothing leaves its box: every page and tab, and every dialog, at four widths, with the longest names, also with two silent nodes.

A page is loaded once and then resized. Themes change nothing but colours (test_pages.py), so sizes are measured in one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.browser.conftest import prepared, shot
from tests.browser.test_pages import serious_violations
from tests.support.browser import Browser
from tests.support.crawl import Page, crawl
from tests.support.wide import STARTS, Wide, WideAdmin, wide_cluster

WIDTHS: Final = (1920, 1280, 1024, 390)
TALLEST: Final = 12_000  # pixels on a phone; each of its rows is a card
# Returns what leaves its box, sideways: the page, an element whose content is wider than it, or text that is cut. What
# scrolls by itself may be wider: a table in a narrow window, or code.
OVERFLOWS: Final = """
const root = document.querySelector(arguments[0]), bad = [];
const beyond = document.documentElement.scrollWidth - innerWidth;
if (beyond > 0) bad.push(`the page is ${beyond} too wide`);
const isPhone = innerWidth <= 640;
for (const it of root.querySelectorAll('*')) {
  const over = it.scrollWidth - it.clientWidth;
  if (!it.clientWidth || over <= 1 || it.closest('svg, .hush, option, select, input, textarea')) continue;
  if (over <= 6 && it.querySelector('.ask')) continue; // the question mark's target is larger than what is seen of it
  const { display, overflowX, textOverflow, webkitLineClamp } = getComputedStyle(it);
  if (display === 'inline' || textOverflow === 'ellipsis' || webkitLineClamp !== 'none') continue;
  if (overflowX !== 'visible' && overflowX !== 'hidden' && it.matches(isPhone ? 'pre' : 'pre, .scroll')) continue;
  if (isPhone && it.closest('thead') || !it.checkVisibility({ contentVisibilityAuto: true })) continue;
  bad.push(`${it.tagName.toLowerCase()}.${it.className} +${over}: ${it.textContent.trim().replace(/\\s+/g, ' ').slice(0, 60)}`);
}
return bad.slice(-4); // the innermost are the last
"""
OPEN: Final = """
const dialog = document.querySelector('#dialog'), path = arguments[0];
const closed = new Promise((done) => dialog.open ? dialog.addEventListener('close', () => setTimeout(done), {once: true}) : done());
dialog.close();
return closed.then(() => Page.open(path));
"""
DIALOG: Final = """
const dialog = document.querySelector('#dialog'), box = dialog.getBoundingClientRect();
const isInside = (it) => { const own = it.getBoundingClientRect(); return own.top >= box.top - 1 && own.bottom <= box.bottom + 1; };
const buttons = [...dialog.querySelectorAll('.sheet > .buttons > *, .sheet > form > .buttons > *')];
return {
  'begins at its top': dialog.scrollTop === 0 && isInside(dialog.querySelector('h1')),
  'has the focus on its title, or on a field in sight': document.activeElement.matches('h1, input, select, textarea') && dialog.contains(document.activeElement) && isInside(document.activeElement),
  'has buttons, and they are in sight': buttons.length > 0 && buttons.every(isInside),
  'fits the window': box.left >= 0 && box.right <= innerWidth && box.top >= 0 && box.bottom <= innerHeight,
  'does not scroll sideways': dialog.scrollWidth <= dialog.clientWidth + 1,
};
"""


@dataclass(frozen=True)
class State:
    """Accessibility is looked at where most is shown: with silent nodes."""

    is_silent: bool
    admin: WideAdmin
    pages: list[Page]


class Clusters:
    """One cluster, full until its nodes fall silent. Only tests in another order need a second one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._wide: Wide | None = None
        self._is_silent = False
        self._count = 0

    def state(self, *, is_silent: bool) -> State:
        if self._wide is None or (self._is_silent and not is_silent):
            self.close()
            self._count += 1
            folder = self._folder / str(self._count)
            folder.mkdir()
            # Nothing moves in it, and a page that is open does everything again for each sample.
            self._wide = self._stack.enter_context(wide_cluster(folder, sample_interval="2s"))
            self._is_silent = False
        if is_silent and not self._is_silent:
            self._wide.silence()
            self._is_silent = True
        admin = self._wide.admin
        return State(is_silent, admin, list(crawl(admin.html, STARTS, each=1)))

    def close(self) -> None:
        assert self._wide is None or "Traceback" not in self._wide.admin.log
        self._stack.close()


@pytest.fixture(scope="module")
def clusters(needs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    it = Clusters(tmp_path_factory.mktemp("wide"))
    with closing(it):
        yield it


@pytest.fixture(scope="module", params=["full", "silent"])
def state(clusters: Clusters, request: pytest.FixtureRequest) -> State:
    return clusters.state(is_silent=request.param == "silent")


@pytest.fixture
def page(chromium: Browser, state: State) -> Iterator[Browser]:
    yield from prepared(chromium, state.admin)


def test_nothing_leaves_its_box_on_any_page(page: Browser, state: State) -> None:
    pages = [it for it in state.pages if not it.is_dialog]
    assert len(pages) > 25
    bad: dict[str, list[str]] = {}
    for it in pages:
        page.look(width=WIDTHS[0])
        page.open(it.path)
        for width in WIDTHS:
            page.look(width=width)
            shot(page, f"layout-{len(bad)}-{width}")
            found: list[str] = page.run(OVERFLOWS, "body")
            if width == WIDTHS[-1] and (height := page.run("return document.documentElement.scrollHeight")) > TALLEST:
                found.append(f"{height} pixels high")
            if found:
                bad[f"{it.path[-90:]} at {width}"] = found
        for scheme in ("light", "dark") if state.is_silent else ():
            page.look(width=WIDTHS[1], scheme=scheme)
            if found := serious_violations(page, only_colours=scheme == "dark"):
                bad[f"{it.path[-90:]} in {scheme}"] = found
        page.complaints()  # of the pages that are not there
    assert bad == {}, json.dumps(bad, indent=1)


def test_each_dialog_begins_at_its_top_and_fits(page: Browser, state: State) -> None:
    dialogs = [it for it in state.pages if it.is_dialog and 'class="sheet message"' not in it.text]
    assert len(dialogs) > 15
    bad: dict[str, list[str]] = {}
    page.open("/topics/nope")  # a small page, as axe looks at what is below a dialog, too
    for it in dialogs:
        for width, height in ((1280, 720), (390, 600)):
            page.look(width=width, height=height)
            page.run(OPEN, it.path)
            page.wait("document.querySelector('#dialog[open] h1')")
            found = [what for what, is_so in page.run(DIALOG).items() if not is_so]
            found += page.run(OVERFLOWS, "#dialog")
            for scheme in ("light", "dark") if state.is_silent and width > 400 else ():
                page.look(width=width, height=height, scheme=scheme)
                found += serious_violations(page, only_colours=scheme == "dark")
            if found:
                bad[f"{it.path[-90:]} at {width}"] = found
            page.complaints()
    assert bad == {}, json.dumps(bad, indent=1)


def test_how_long_ago_wraps_in_a_phones_card(still_page: Browser) -> None:
    """A reader's last report is in a second line, and grows with time, so a cluster that has just begun doesn't show it."""
    still_page.look(width=WIDTHS[-1])
    still_page.open("/topics/orders?tab=nodes")
    fill = "const it = document.querySelector('td.n[data-label]'); [it.dataset.label, it.innerHTML] = arguments"
    still_page.run(fill, "Last committed", "13m 34s ago<br><span>last report 13m 34s ago</span>")
    assert still_page.run(OVERFLOWS, "body") == []
