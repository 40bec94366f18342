"""The pages about jobs in a browser: they fit, are accessible, and a failed job is retried in three clicks."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from nsqcommon.job_reports import State
from tests.browser.conftest import prepared, shot
from tests.browser.test_pages import fits_and_is_accessible, serious_violations
from tests.nsqadmin.whole.test_jobs_page import TRACEBACK, Shop, a_shop, event, report
from tests.support.browser import Browser
from tests.support.process import eventually


@pytest.fixture(scope="module")
def shop(needs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with a_shop(tmp_path_factory.mktemp("shop")) as it:
        failed = event(
            State.FAILED, "shop.charge", "failed-1", "shop", ms=12.0, traceback=TRACEBACK, started_at=time.time()
        )
        report(it.nodes[0], failed, event(State.STARTED, "a" * 200, "i" * 200, "shop"), is_whole=True)
        eventually(lambda: "a" * 200 in it.tasks())
        yield it


@pytest.fixture
def page(chromium: Browser, shop: Shop) -> Iterator[Browser]:
    yield from prepared(chromium, shop.admin)


def test_pages_about_jobs_fit_and_are_accessible(page: Browser) -> None:
    for name, path in (
        ("jobs", "/jobs"),
        ("task", "/jobs/task?name=shop.charge"),
        ("job", "/jobs/job?topic=shop&id=failed-1"),
        ("find", "/find?q=shop.charge"),
    ):
        page.look()
        page.open(path)
        page.wait_for_text("shop.charge", "main")
        fits_and_is_accessible(page, f"jobs-page-{name}", narrow=390)


def test_failed_jobs_of_a_task_are_retried_in_three_clicks(page: Browser, shop: Shop) -> None:
    page.look()
    page.open("/")
    page.click_text("Jobs", "nav a")
    page.wait_for_text("shop.charge", "main")
    page.click_text("Retry…", "main a")
    page.wait_for_text("Kick 2 buried messages", "#dialog")
    page.click("#dialog button.primary")
    eventually(lambda: sum(it.channel("shop", "jobs").get("buried_count", 0) for it in shop.nodes) == 0)


def test_the_palette_finds_a_task(page: Browser) -> None:
    page.open("/")
    page.press("ctrl", "k")
    page.wait("document.querySelectorAll('#palette-found > li').length > 5")
    page.press("charge")
    page.wait("document.querySelector('#palette-found > li')?.innerText.startsWith('shop.charge')")
    page.press("enter")
    page.wait("location.pathname === '/jobs/task'")


FIRST = "document.querySelector('#palette-found > li .name')?.textContent"


def open_palette(page: Browser) -> None:
    page.press("ctrl", "k")
    page.wait("document.activeElement.getAttribute('role') === 'combobox'")


def test_with_keys_alone_a_channel_is_paused_and_a_message_and_a_job_are_found(page: Browser, shop: Shop) -> None:
    page.open("/")
    for typed, title, paused in (("pause channel shop", "Pause", True), ("resume shop", "Unpause", False)):
        open_palette(page)
        page.press(typed, "enter")  # at once, so Enter waits for the answer to the whole text
        page.wait_for_text(f"{title} channel shop/jobs", "#dialog")
        while not page.run("return document.activeElement.matches('#dialog button:not([type=button]), body')"):
            page.press("tab")
        page.press("enter")
        eventually(lambda paused=paused: all(it.channel("shop", "jobs")["paused"] is paused for it in shop.nodes))
        page.wait_for_text("Done", "#dialog")
        page.press("escape")
        page.wait("!document.querySelector('#dialog').open")
    message = shop.ids[shop.nodes[1].tcp]
    for typed, path in ((message, "/message"), ("job later-1", "/jobs/job")):
        open_palette(page)
        page.press(typed, "enter")
        page.wait("location.pathname === arguments[0]", path)
        page.wait_for_text(typed.rpartition(" ")[2], "main")


def test_the_palette_is_a_combobox_that_keeps_the_focus_and_says_what_it_has(page: Browser) -> None:
    page.open("/")
    open_palette(page)
    page.press("shop")
    page.wait(f"{FIRST} === 'shop'")
    assert page.run("return document.querySelector('#palette [role=status]').textContent").endswith(" matches")
    chosen = "return document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))"
    for keys, place in (
        (("down",), 1),
        (("tab",), 2),
        (("down", "down", "down", "down"), page.count("#palette-found > li") - 1),
    ):
        page.press(*keys)
        assert page.run(f"{chosen}.id") == f"palette-found-{place}"
        assert page.run(f"{chosen}.getAttribute('aria-selected')") == "true"
    assert page.run("return document.activeElement.getAttribute('aria-expanded')") == "true"
    assert serious_violations(page) == []
    page.look(scheme="dark")
    shot(page, "palette-dark")
    assert serious_violations(page, only_colours=True) == []
    page.look(width=390)
    shot(page, "palette-390")
    assert page.run("return document.querySelector('#palette').scrollWidth") <= 390
    page.look()
    page.press("zzz")
    page.wait_for_text("No match for “shopzzz”.", "#palette")
    assert page.run("return document.activeElement.getAttribute('aria-expanded')") == "false"
    assert serious_violations(page) == []
    page.press("enter")  # there is nothing to go to
    page.press("escape")
    page.wait("!document.querySelector('#palette').open")


def test_without_scripts_the_palette_is_a_page(page: Browser) -> None:
    page.allow_scripts(False)
    page.open("/")
    page.click("#jump")
    page.wait("location.pathname === '/find'")
    page.fill("#find", "pause channel shop")
    page.click("main form button")
    page.wait_for_text("Pause channel shop/jobs", "main")
    page.click_text("Pause channel shop/jobs", "main a")
    page.wait("location.pathname === '/actions/pause_channel'")
