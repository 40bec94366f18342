"""The pages about jobs in a browser: they fit, are accessible, and a failed job is retried in three clicks."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from nsqcommon.job_reports import State
from tests.browser.conftest import prepared
from tests.browser.test_pages import fits_and_is_accessible
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
