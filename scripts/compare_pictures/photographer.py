"""Opens pages, performs a user's steps there, and takes pictures in all looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.browser import Browser

Step = Callable[[Browser], None]
LOOKS: Final = {
    f"{width}-{scheme}": (width, scheme)
    for width, scheme in ((400, "light"), (400, "dark"), (1400, "dark"), (1400, "light"))
}  # in this order, because the browser draws again only if the look has changed

_STILL_CLOCK: Final = """
{
  const Running = Date, now = %d;
  Date = class extends Running {
    constructor(...given) { given.length ? super(...given) : super(now); }
    static now() { return now; }
  };
}
"""
# A page is finished when its fonts are loaded and it hasn't changed for a while. The browser limits the wait.
_FINISHED: Final = """
return document.fonts.ready.then(() => new Promise((done) => {
  let timer = setTimeout(finish, 150);
  const watcher = new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(finish, 150); });
  function finish() { watcher.disconnect(); requestAnimationFrame(() => requestAnimationFrame(done)); }
  watcher.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
}));
"""
# Masks texts that always differ: durations, and the ports of nsqadmin and of the browser's connections to it.
_MASK: Final = """
for (const it of document.querySelectorAll("[data-label='Response time'], [data-label='Took']")) it.textContent = "1 ms";
for (const it of document.querySelectorAll("[data-label='Who'] .muted")) it.textContent = it.textContent.replace(/:\\d+$/, "");
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) walk.currentNode.data = walk.currentNode.data.replaceAll(location.host, "nsqadmin.example");
"""


@dataclass(frozen=True, slots=True)
class Page:
    name: str
    path: str
    steps: tuple[Step, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


def press(selector: str) -> Step:
    """Click the first element that a user can see."""
    find = f"[...document.querySelectorAll({selector!r})].find((it) => it.getClientRects().length && !it.disabled)"

    def step(browser: Browser) -> None:
        if not browser.run(f"return Boolean({find})"):
            raise LookupError(f"nothing to press: {selector}")
        browser.run(f"{find}.click()")
        _finish(browser)

    return step


def write(selector: str, text: str) -> Step:
    def step(browser: Browser) -> None:
        if not browser.count(selector):
            raise LookupError(f"no field: {selector}")
        browser.fill(selector, text)

    return step


def follow(selector: str) -> Step:
    """Open the page of the first such link. A click would open a dialog instead."""

    def step(browser: Browser) -> None:
        path = browser.run("return document.querySelector(arguments[0])?.getAttribute('href')", selector)
        if not path:
            raise LookupError(f"no link: {selector}")
        browser.open(path)
        _finish(browser)

    return step


def confirm(browser: Browser) -> None:
    """Type the words that a confirmation asks for, and press its button."""
    browser.run("for (const it of document.querySelectorAll('[data-must]')) it.value = it.dataset.must")
    browser.run(
        "for (const it of document.querySelectorAll('[data-must]')) it.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    press("form[data-confirm] .buttons button, #sheet form[method=post] .buttons button")(browser)


def prepare(browser: Browser, now: float) -> None:
    """Stop the clock of all pages from now on."""
    browser.command("Network.enable", {})
    browser.command("Emulation.setTimezoneOverride", {"timezoneId": "UTC"})
    browser.command("Page.addScriptToEvaluateOnNewDocument", {"source": _STILL_CLOCK % (now * 1000)})


def take(browser: Browser, page: Page, base: str, folder: Path) -> tuple[int, str]:
    """Take the pictures of a page. Return its HTTP status, and "" or the reason why it could not be shown."""
    browser.base = base
    browser.command("Network.setExtraHTTPHeaders", {"headers": page.headers})
    browser.look(width=1400, scheme="light")
    browser.open(page.path)
    _finish(browser)
    try:
        for step in page.steps:
            step(browser)
    except (AssertionError, LookupError) as error:
        return _status(browser), str(error).partition("\n")[0]
    browser.run(_MASK)
    for look, (width, scheme) in LOOKS.items():
        browser.look(width=width, scheme=scheme)
        _finish(browser)
        browser.run("document.activeElement?.blur()")
        browser.screenshot(folder / f"{page.name}.{look}.png")
    return _status(browser), ""


def _status(browser: Browser) -> int:
    return int(browser.run("return performance.getEntriesByType('navigation')[0].responseStatus"))


def _finish(browser: Browser) -> None:
    browser.wait("document.readyState === 'complete'")
    browser.run(_FINISHED)
