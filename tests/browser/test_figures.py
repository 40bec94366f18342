"""What a page costs its viewer: nothing jumps, nothing piles up, and it is there at once.

NSQ_BROWSER_MINUTES=30 watches for half an hour instead of some seconds.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.support.browser import Browser
from tests.support.lateness import is_within

PAGES = ["/", "/topics", "/topics/orders", "/topics/orders/billing", "/topics/orders?tab=messages", "/nodes"]
MOST_SHIFT = 0.05
LATEST_PAINT = 2.0  # seconds, on a busy machine
MOST_GROWTH = 1_000_000  # bytes of scripts' memory
WATCHED = 60 * float(os.environ.get("NSQ_BROWSER_MINUTES", "0.2"))  # seconds

OBSERVE = """
window.shifted = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifted += entry.value;
}).observe({type: 'layout-shift', buffered: true});
"""


def wait(page: Browser, seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        page.run("return new Promise((done) => setTimeout(done, arguments[0]))", min(left, 5.0) * 1000)


def heap(page: Browser) -> int:
    page.command("HeapProfiler.collectGarbage", {})
    return int(page.command("Runtime.getHeapUsage", {})["usedSize"])


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("path", PAGES)
def test_nothing_jumps_while_numbers_move(page: Browser, path: str, width: int) -> None:
    page.look(width=width, height=900)
    page.open(path)
    page.run(OBSERVE)
    wait(page, 5.0)
    assert page.run("return window.shifted") < MOST_SHIFT


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
    wait(page, 5.0)  # until everything has been shown once
    before, nodes = heap(page), page.run("return document.querySelectorAll('*').length")
    wait(page, WATCHED)
    assert heap(page) - before < MOST_GROWTH
    assert page.run("return document.querySelectorAll('*').length") < 1.2 * nodes + 50
