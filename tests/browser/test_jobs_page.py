"""The pages about jobs in a browser: they fit, are accessible, and what people do there takes few clicks.

A test that runs or retries jobs has a queue of its own, because all others look at those of `a_shop`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from nsqcommon.job_reports import State
from tests.browser.conftest import prepared, shot
from tests.browser.test_pages import fits_and_is_accessible, serious_violations
from tests.nsqadmin.whole.test_jobs_page import (
    TRACEBACK,
    Shop,
    a_failed_job,
    a_shop,
    add_queue,
    celery_body,
    event,
    exactly,
    fail,
    headers,
    publish,
    report,
)
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


class Hand:
    """A hand on the mouse, which counts, from the overview on."""

    def __init__(self, page: Browser) -> None:
        self.page = page
        self.clicks = 0
        page.look()
        page.open("/")

    def click(self, text: str, selector: str, seen: str, where: str = "main") -> None:
        """Click, and wait for what that shows."""
        self.clicks += 1
        self.page.click_text(text, selector)
        self.page.wait_for_text(seen, where)


@pytest.fixture
def hand(page: Browser) -> Hand:
    return Hand(page)


def run(shop: Shop, topic: str, expected: int) -> list[bytes]:
    """Run what waits in a queue, and return the bodies: so many, and nothing comes twice."""
    having = [it for it in shop.nodes if it.channel(topic, "jobs")]
    eventually(lambda: sum(it.channel(topic, "jobs")["depth"] for it in having) == expected)
    bodies: list[bytes] = []
    for node in having:
        depth = node.channel(topic, "jobs")["depth"]
        with node.connect() as client:
            client.subscribe(topic, "jobs", ready=10)
            messages = client.messages(depth)
            assert client.stays_silent(0.1)
            client.finish(*messages)
            client.in_step()
        bodies += [it.body for it in messages]
    return bodies


def test_what_a_task_is_doing_takes_at_most_two_clicks(hand: Hand, shop: Shop) -> None:
    report(shop.nodes[0], event(State.STARTED, "shop.charge", "runs-1", "shop", worker="host-9:7"), worker="host-9:7")
    eventually(lambda: shop.tasks()["shop.charge"]["running"] == 1)
    hand.click("Jobs", "nav a", "shop.charge")
    hand.click("shop.charge", "main th a", "Running")
    for said in ("Failed", "ValueError: no such order", "Scheduled and retrying", "Done a minute", "p50, p95"):
        assert said in hand.page.text("main")
    assert hand.clicks <= 2


def test_edit_and_run_takes_at_most_five_clicks_and_runs_once(hand: Hand, shop: Shop) -> None:
    old = a_failed_job(shop, "shop.typo", "typo-1", celery_body(17, currency="EUR"))
    hand.click("Jobs", "nav a", "shop.typo")
    hand.click("shop.typo", "main th a", "typo-1")
    hand.click("typo-1", "main th a", "Arguments")
    hand.click("Edit and run…", "main .actions a", "discarded in edit-typo-1/jobs", "#dialog")
    assert serious_violations(hand.page) == []
    page = hand.page
    assert page.run("return document.activeElement.id") == "edit-args"  # so that one can type at once
    page.fill("#edit-args", "[18")
    page.run("document.querySelector('#dialog button.primary').click()")  # a slip, and not one of the five
    page.wait_for_text("args: line 1", "#dialog")
    assert len(page.complaints()) == 1  # the browser logs the status 400
    page.fill("#edit-args", "[18]")
    # A double click sends the form twice.
    hand.clicks += 1
    page.run("const it = document.querySelector('#dialog button.primary'); it.click(); it.disabled = false; it.click()")
    page.wait_for_text("Done.", "#dialog [data-receipt=ok]")
    page.click_text("Open the copy", "#dialog a")
    page.wait_for_text("shop.typo", "main")
    assert hand.clicks == 5
    (body,) = run(shop, "edit-typo-1", 1)
    assert json.loads(json.loads(body)["body"])[:2] == [[18], {"currency": "EUR"}]
    assert old not in page.text("main dl.pair")


def test_a_job_that_raised_after_its_acknowledgement_runs_again_in_three_clicks(hand: Hand, shop: Shop) -> None:
    one = shop.nodes[0]
    publish(one, "raised", celery_body("again"), headers("celery", "shop.early", "early-1"))
    one.post("/channel/create?topic=raised&channel=jobs")
    run(shop, "raised", 1)
    report(one, event(State.FAILED, "shop.early", "early-1", "raised", outcome="finished", error="ValueError: x"))
    eventually(lambda: shop.tasks().get("shop.early", {}).get("raised") == 1)
    eventually(lambda: one.http("GET", "/topic/log?topic=raised").json["next"] == 1)  # the dialog finds it there
    hand.click("Jobs", "nav a", "shop.early")
    hand.click("Run again…", "main tr:has(a[href*='shop.early']) td:last-child a", "Replay 1 message", "#dialog")
    hand.click("Replay", "#dialog button.primary", "1 message queued", "#dialog")
    assert hand.clicks <= 3
    assert len(run(shop, "raised", 1)) == 1


def test_failed_jobs_of_a_task_are_retried_in_three_clicks_and_run_once(hand: Hand, shop: Shop) -> None:
    add_queue(shop, "retried")
    for node, id in zip(shop.nodes, ("retried-1", "retried-2"), strict=True):
        publish(node, "retried", celery_body(), headers("celery", "shop.retried", id))
        fail(node, "retried", "ValueError: x")
    eventually(lambda: shop.tasks().get("shop.retried", {}).get("failed") == exactly(2))
    hand.click("Jobs", "nav a", "shop.retried")
    row = "main tr:has(a[href*='name=shop.retried']) td:last-child a"
    hand.click("Retry…", row, "Retry 2 failed jobs of shop.retried", "#dialog")
    hand.click("Retry", "#dialog button.primary", "2 jobs retried", "#dialog")
    assert hand.clicks <= 3
    assert sum(it.channel("retried", "jobs").get("buried_count", 0) for it in shop.nodes) == 0
    assert len(run(shop, "retried", 2)) == 2


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
    # Before, the answer to a part of the text may be there, which has other matches.
    page.wait("performance.getEntriesByType('resource').some((it) => it.name.includes('/jump?q=shop&'))")
    page.wait(f"{FIRST} === 'shop'")
    count = page.count("#palette-found > li")
    assert page.run("return document.querySelector('#palette [role=status]').textContent").endswith(" matches")
    chosen = "return document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))"
    for keys, place in (
        (("down",), 1),
        (("tab",), 2),
        (("down",) * count, count - 1),
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
