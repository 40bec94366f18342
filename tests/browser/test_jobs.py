"""Jobs on the pages: a person sees tasks and times, opens a job beside the list, and unfolds its body."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.conftest import prepared, shot
from tests.browser.test_pages import axe_core, serious_violations
from tests.nsqadmin.whole.test_jobs import MESSAGES, TAB, Jobs, a_queue
from tests.support.browser import Browser


@pytest.fixture(scope="module")
def queue(needs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    with a_queue(tmp_path_factory.mktemp("jobs")) as it:
        yield it


@pytest.fixture
def page(chromium: Browser, queue: Jobs) -> Iterator[Browser]:
    yield from prepared(chromium, queue.admin)


@pytest.mark.parametrize("look", ["light", "phone"])
def test_jobs_can_be_read_and_opened(page: Browser, look: str) -> None:
    page.look(width=390 if look == "phone" else 1400, scheme="light")
    for name, path in (("messages", f"{MESSAGES}?tab=messages&from=earliest"), ("deferred", f"{TAB}deferred"),
                       ("buried", f"{TAB}buried")):  # fmt: skip
        page.open(path)
        page.wait_for_text("shop.", "#messages")
        assert page.run("return document.documentElement.scrollWidth <= innerWidth")
        assert serious_violations(page, axe_core()) == []
        shot(page, f"jobs-{name}-{look}")
    where = "#dialog" if look == "phone" else "#detail"
    page.click("#messages a[data-detail]")
    page.wait_for_text("shop.fails", f"{where} dl.job")
    assert not page.run(f"return document.querySelector('{where} pre').checkVisibility()")
    page.click(f"{where} details.job-body summary")
    page.wait_for_text("args", f"{where} pre")
    assert page.run(f"return document.querySelector('{where} pre').checkVisibility()")
    assert page.run(f"return document.querySelector('{where} pre').offsetWidth") > 200
    assert serious_violations(page, axe_core()) == []
    shot(page, f"jobs-detail-{look}")
