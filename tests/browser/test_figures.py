"""What a page costs its viewer: nothing jumps, nothing piles up, and it is there at once.

NSQ_BROWSER_MINUTES=30 watches for half an hour instead of some samples.
"""

from __future__ import annotations

import os
import time
from itertools import count
from typing import NamedTuple

import pytest

from tests.browser.test_live import HEAR
from tests.support.browser import Browser
from tests.support.lateness import is_within

WITHOUT_NUMBERS = "/topics/orders?tab=messages"  # none that move
PAGES = ["/", "/topics", "/topics/orders", "/topics/orders/billing", WITHOUT_NUMBERS, "/nodes"]
MOST_SHIFT = 0.05
LATEST_PAINT = 2.0  # seconds, on a busy machine
MOST_GROWTH = 1_000_000  # bytes of scripts' memory
WATCHED = 60 * float(os.environ.get("NSQ_BROWSER_MINUTES", "0"))  # seconds

OBSERVE = (
    """
let shifted = 0;
const add = (entries) => { for (const it of entries) if (!it.hadRecentInput) shifted += it.value; };
const shifts = new PerformanceObserver((list) => add(list.getEntries()));
shifts.observe({type: 'layout-shift', buffered: true});
window.shifted = () => { add(shifts.takeRecords()); return shifted; };
window.moved = 0;
new MutationObserver((list) => {
  if (list.some((it) => it.target.closest?.('[data-k], .verdict, .chart .key'))) window.moved += 1;
}).observe(document.body, {childList: true, subtree: true});
"""
    + HEAR
)
# As the page does after some samples. A key that somebody presses would excuse what moves within half a second.
REFRESH = """
window.heard.length = 0;
document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'r', bubbles: true}));
"""
PAINTED = "return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def let_move(page: Browser, samples: int) -> None:
    """Wait until numbers have moved so often, and then until the page has replaced the parts that have changed."""
    page.wait("window.moved >= arguments[0]", page.run("return window.moved") + samples)
    page.run(REFRESH)
    page.wait("window.heard.includes('All nodes were asked')")  # something else may be said within milliseconds
    page.run(PAINTED)


class Shifted(NamedTuple):
    sum: float
    above: str  # what stands above the figures: the height of the diagnosis, notices, and which incidents


def shifted(page: Browser) -> Shifted:
    above = (
        "[document.querySelector('[data-live=findings]')?.offsetHeight,"
        " document.querySelectorAll('[data-live=notices] .notice').length,"
        " ...[...document.querySelectorAll('.incident .says > a')].map((it) => it.href)].join()"
    )
    return Shifted(*page.run(f"return [window.shifted(), {above}]"))


def heap(page: Browser) -> int:
    page.command("HeapProfiler.collectGarbage", {})
    return int(page.command("Runtime.getHeapUsage", {})["usedSize"])


@pytest.mark.parametrize("path", PAGES)
def test_nothing_jumps_while_numbers_move(page: Browser, path: str) -> None:
    page.open(path)
    page.run(OBSERVE)
    for width in (1400, 390):
        page.look(width=width, height=900)
        page.run(PAINTED)
        before, samples = shifted(page), 0 if path == WITHOUT_NUMBERS else 2
        let_move(page, samples)
        # It says something else now, which may take another line, or a node of a busy machine is slow for a moment.
        while (after := shifted(page)).above != before.above:
            before = after
            let_move(page, samples)
        assert after.sum - before.sum < MOST_SHIFT, width


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_painted_at_once(page: Browser, path: str) -> None:
    def painted_after() -> float:
        page.open(path)
        page.wait("performance.getEntriesByName('first-contentful-paint').length")
        return float(page.run("return performance.getEntriesByName('first-contentful-paint')[0].startTime")) / 1000

    assert is_within(LATEST_PAINT, painted_after)


@pytest.mark.parametrize("path", ["/", "/topics/orders/billing"])
def test_nothing_piles_up_while_a_page_is_open(page: Browser, path: str) -> None:
    page.open(path)
    page.wait("document.querySelector('#live').dataset.state === 'on'")
    page.run(OBSERVE)
    let_move(page, 2)  # everything has been shown once
    before, nodes = heap(page), page.run("return document.querySelectorAll('*').length")
    end = time.monotonic() + WATCHED
    for number in count():
        let_move(page, 1)
        if number >= 5 and time.monotonic() >= end:
            break
    assert heap(page) - before < MOST_GROWTH
    assert page.run("return document.querySelectorAll('*').length") < 1.2 * nodes + 50
