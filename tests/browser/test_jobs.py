"""Jobs on the pages: a person sees tasks and times, opens a job beside the list, and unfolds its body."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.conftest import prepared, shot
from tests.browser.test_pages import fits_and_is_accessible, serious_violations
from tests.nsqadmin.whole.test_jobs import MESSAGES, TAB, Jobs, a_queue
from tests.support.browser import Browser


@pytest.fixture(scope="module")
def queue(needs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    with a_queue(tmp_path_factory.mktemp("jobs")) as it:
        yield it


@pytest.fixture
def page(chromium: Browser, queue: Jobs) -> Iterator[Browser]:
    yield from prepared(chromium, queue.admin)


def test_jobs_can_be_read(page: Browser) -> None:
    for name, path in (("messages", f"{MESSAGES}?tab=messages&from=earliest"), ("deferred", f"{TAB}deferred"),
                       ("buried", f"{TAB}buried")):  # fmt: skip
        page.look()
        page.open(path)
        page.wait_for_text("shop.", "#messages")
        fits_and_is_accessible(page, f"jobs-{name}", narrow=390)


@pytest.mark.parametrize(("where", "width"), [("#detail", 1400), ("#dialog", 390)])
def test_a_job_is_opened(page: Browser, where: str, width: int) -> None:
    page.look(width=width)
    page.open(f"{TAB}buried")
    page.click("#messages a[data-detail]")
    page.wait_for_text("shop.fails", f"{where} dl.job")
    assert not page.run(f"return document.querySelector('{where} pre').checkVisibility()")
    page.click(f"{where} details.job-body summary")
    page.wait_for_text("args", f"{where} pre")
    assert page.run(f"return document.querySelector('{where} pre').checkVisibility()")
    assert page.run(f"return document.querySelector('{where} pre').offsetWidth") > 200
    assert serious_violations(page) == []
    shot(page, f"jobs-detail-{width}")
