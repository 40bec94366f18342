"""Rules of the scripts, tested in a page: numbers as Python writes them, blocked storage, the security policy."""

from __future__ import annotations

import json
import random

from nsqadmin import numbers
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
