"""Rules of the scripts, tested in a page: numbers as Python writes them, blocked storage, the security policy."""

from __future__ import annotations

import json
import random
import re
import time

from nsqadmin import numbers
from tests.browser.test_pages import serious_violations
from tests.support.browser import Browser

VALUES = [
    0,
    1,
    9_999,
    10_000,
    65_190,
    999_499,
    999_600,
    1_314_448,
    0.04,
    0.4,
    9.96,
    59.6,
    60,
    1200,
    3599.6,
    86_400,
    183_600,
    -4,
    -0.04,
    542_841_105.165,
]


def test_numbers_that_come_live_are_written_as_those_of_the_page(still_page: Browser) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    values = [None, *VALUES, *(round(10 ** chance.uniform(-4, 9), chance.randrange(4)) for _ in range(300))]
    still_page.open("/help")
    for form, write in numbers.FORMS.items():
        said = still_page.run("return arguments[0].map((it) => Numbers[arguments[1]](it))", values, form)
        wrong = [(value, text, write(value)) for value, text in zip(values, said, strict=True) if text != write(value)]
        assert [it for it in wrong if not _is_half(it[0])] == [], form


def _is_half(value: float | None) -> bool:
    """Is it between two numbers as they are shown? Python goes to the even one, and JavaScript up.

    That is decided for a share as percent, for a rate as what comes in a minute, for what is large by the thousand, and
    for a short time in microseconds.
    """
    return value is not None and any(
        value * factor / 1000**thousands * digits * 2 % 2 == 1
        for factor in (1, 60, 100, 1e6)
        for thousands in range(4)
        for digits in (1, 10, 100, 1000)
    )


def test_pages_work_where_storage_is_blocked(still_page: Browser) -> None:
    blocked = "Object.defineProperty(window, 'localStorage', {get() { throw new Error('blocked'); }});"
    added = still_page.command("Page.addScriptToEvaluateOnNewDocument", {"source": blocked})
    try:
        still_page.open("/")
        still_page.click("#theme")
        assert still_page.text("#theme-word") == "Light"
        assert still_page.count("svg.plot text") > 4
    finally:
        still_page.command("Page.removeScriptToEvaluateOnNewDocument", added)


def test_charts_have_a_cursor_that_the_keyboard_moves(still_page: Browser) -> None:
    still_page.open("/topics/orders/fraud")
    still_page.run("document.querySelector('svg.plot').focus()")
    still_page.press("\ue012", "\ue012")  # arrow left
    still_page.wait("!document.querySelector('.tip').hidden")
    assert "on disk" in still_page.text(".tip")
    assert still_page.run("return [...document.querySelectorAll('.tip')].filter((it) => !it.hidden).length") == 4


RANGES = "return [...document.querySelectorAll('[data-chart]')].map((it) => JSON.parse(it.dataset.chart)).map((it) => [it.begin, it.end])"
DRAWN = "[...document.querySelectorAll('svg.plot')].map((it) => it.textContent).join()"


def drag(browser: Browser, selector: str, first: float, last: float) -> None:
    """Drag the mouse over an element, between two shares of its width."""
    left, top, width, height = browser.run(
        "const it = document.querySelector(arguments[0]); it.scrollIntoView({block: 'center'});"
        "const box = it.getBoundingClientRect(); return [box.left, box.top, box.width, box.height]",
        selector,
    )
    for kind, share in (
        ("mousePressed", first),
        ("mouseMoved", (first + last) / 2),
        ("mouseMoved", last),
        ("mouseReleased", last),
    ):
        event = {"type": kind, "x": left + share * width, "y": top + height / 2, "button": "left", "buttons": 1}
        browser.command("Input.dispatchMouseEvent", {**event, "clickCount": 1})


def test_a_brush_on_one_chart_sets_the_time_of_all_and_the_url(still_page: Browser) -> None:
    """In a zone with half an hour, so that local time and UTC cannot be mixed up unseen."""
    still_page.command("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})
    try:
        still_page.open("/topics/orders/fraud")
        assert still_page.text(".zone") == "Times in GMT+5:30"
        assert "03:35" in still_page.run(f"return {DRAWN}")  # 22:05 UTC
        before = still_page.run(f"return {DRAWN}")
        drag(still_page, ".chart:nth-child(2) svg.plot", 0.4, 0.8)
        still_page.wait("location.search.includes('to=')")
        still_page.wait(f"{DRAWN} !== arguments[0]", before)
        url, drawn = still_page.path, still_page.run(f"return {DRAWN}")
        found = re.fullmatch(
            r"/topics/orders/fraud\?from=2023-11-14T(22:0[4-6]:\d\d)Z&to=2023-11-14T(22:(?:09|10|11):\d\d)Z", url
        )
        assert found is not None, url
        still_page.open(url)  # as somebody who got the link
        assert still_page.run(f"return {DRAWN}") == drawn
        asked = [found[1], found[2]]
        ranges = still_page.run(RANGES)
        assert len(ranges) == 4
        assert [time.strftime("%H:%M:%S", time.gmtime(at)) for at in ranges[0]] == asked
        assert all(it == ranges[0] for it in ranges)
        assert still_page.run("return document.querySelector('[name=from]').value").startswith("2023-11-15T03:3")
        # By the keyboard: Shift and arrows select, Enter zooms in, and the way back is the browser's.
        still_page.run("document.querySelector('svg.plot').focus()")
        for key, shift in (("ArrowLeft", 8), ("ArrowLeft", 8), ("ArrowLeft", 8), ("Enter", 0)):
            still_page.command("Input.dispatchKeyEvent", {"type": "keyDown", "key": key, "modifiers": shift})
        still_page.wait("location.href !== arguments[0]", still_page.base + url)
        assert still_page.path.endswith(f"{url.rpartition('&')[2]}")  # up to the last sample
        still_page.run("history.back()")
        still_page.wait(f"{DRAWN} === arguments[0]", drawn)
        assert still_page.path == url
        still_page.click_text("Live")
        still_page.wait("location.search === ''")
        still_page.wait(f"{DRAWN} === arguments[0]", before)
    finally:
        still_page.command("Emulation.setTimezoneOverride", {"timezoneId": ""})


def test_the_time_of_charts_is_chosen_in_a_form_that_knows_the_zone(still_page: Browser) -> None:
    still_page.command("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})
    try:
        still_page.open("/nodes/nsqd-1.example:4151")
        still_page.click_text("From–to", "summary")
        still_page.run(
            "const form = document.querySelector('[data-times]');"
            "form.elements.from.value = '2023-11-15T03:35'; form.elements.to.value = '2023-11-15T03:40'; form.requestSubmit()"
        )
        still_page.wait("location.search === '?from=2023-11-14T22:05:00Z&to=2023-11-14T22:10:00Z'")
        still_page.wait_for_text("03:35", ".range .chip")
        assert serious_violations(still_page) == []
    finally:
        still_page.command("Emulation.setTimezoneOverride", {"timezoneId": ""})


def test_the_security_policy_lets_nothing_inline_run(still_page: Browser) -> None:
    still_page.open("/")
    still_page.run(
        "const it = document.createElement('script'); it.textContent = 'window.broken = true'; document.body.append(it);"
    )
    assert still_page.run("return window.broken ?? null") is None
    assert any("Content Security Policy" in it for it in still_page.complaints())
    assert "style=" not in still_page.run("return fetch('/').then((it) => it.text())")
    # Ours above.
    assert json.dumps(still_page.run("return [...document.scripts].filter((it) => !it.src).length")) == "1"
