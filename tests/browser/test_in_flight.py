"""Messages in flight on the pages: who has what; without scripts, on a phone, beside its consumer, and as it changes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.conftest import prepared, shot
from tests.browser.test_pages import fits_and_is_accessible
from tests.nsqadmin.whole.test_in_flight import PATIENCE, TAB, Working, working
from tests.support.browser import Browser


@pytest.fixture(scope="module")
def it(needs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Working]:
    with working(tmp_path_factory.mktemp("working"), *PATIENCE, everyone="admin") as found:
        yield found


@pytest.fixture
def page(chromium: Browser, it: Working) -> Iterator[Browser]:
    yield from prepared(chromium, it.admin)


def test_the_tab_can_be_read_and_a_row_opens_the_message(page: Browser) -> None:
    page.open(TAB)
    page.wait_for_text("task-0-1", "#messages")
    fits_and_is_accessible(page, "inflight", narrow=390)
    page.look()
    page.run("document.querySelector('#messages details summary').click()")
    page.run("document.querySelector('#messages a[data-detail]').click()")
    page.wait_for_text("task-0-0", "#detail")
    shot(page, "inflight-detail")


def test_without_scripts_it_leads_to_the_consumer_and_back(page: Browser) -> None:
    page.allow_scripts(False)
    page.open(f"{TAB}&client=w1.lan")
    page.wait_for_text("2 messages of the consumer w1.lan")
    page.click("#messages td[data-label='Host (client id)'] a")
    page.wait_for_text("Only 127.0.0.1:")
    fits = page.run("return document.documentElement.scrollWidth <= innerWidth")
    assert fits
    page.click("td[data-label='In flight / ready'] a")
    page.wait_for_text("of the consumer 127.0.0.1:")
    assert page.run("return document.querySelectorAll('#messages tbody tr').length") == 2


def test_a_message_that_is_finished_leaves_the_open_page(page: Browser, it: Working) -> None:
    page.open(f"{TAB}&client=w1.lan")
    page.wait_for_text("task-1-1", "#messages")
    it.workers[1].finish(it.taken[1][1])
    page.wait("!document.querySelector('#messages').textContent.includes('task-1-1')")
    assert "task-1-0" in page.run("return document.querySelector('#messages').textContent")
    it.nodes[1].http("POST", "/pub?topic=t", b"xx", headers={"Nsq-Header-job-name": "task-1-1"})
    it.taken[1][1] = it.workers[1].message()  # for the tests after it
