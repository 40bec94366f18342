"""Obvious defects of NSQ's own nsqadmin are not here: one test for each defect."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.browser.conftest import address_of, prepared, shot, until
from tests.support.browser import Browser
from tests.support.cluster import Cluster, a_cluster
from tests.support.process import PATIENT, Nsqadmin, Nsqlookupd

QUICK = ("sample-interval=1s", "discovery-interval=1s", PATIENT)


@contextmanager
def before(browser: Browser, *options: str) -> Iterator[tuple[Browser, Nsqadmin]]:
    """Open the browser on another nsqadmin."""
    with Nsqadmin(*QUICK, *options) as admin:
        for page in prepared(browser, admin):
            yield page, admin


def sees_both(admin: Nsqadmin, topic: str) -> bool:
    """Return whether nsqadmin knows the topic on both nodes. A sample does without a node that takes a second."""
    return len(admin.json("GET", f"/api/v2/topics/{topic}").json.get("nodes", ())) == 2


def test_a_partial_failure_is_told_once_and_the_rest_is_shown(chromium: Browser, tmp_path: Path) -> None:
    with a_cluster(tmp_path) as cluster:
        cluster.nodes[0].post("/pub?topic=here", b"1")
        cluster.nodes[1].post("/pub?topic=there", b"1")
        with before(chromium, *cluster.nsqd_options) as (page, admin):
            both = (b">here</", b">there</")
            until(lambda: all(it in admin.http("GET", "/topics?fresh=1").body for it in both), "both are seen")
            cluster.nodes[1].kill()
            page.open("/topics?fresh=1")
            page.wait("document.querySelectorAll('[data-live=notices] .notice').length === 1")
            assert f":{cluster.nodes[1].http_address[1]}" in page.text("[data-live=notices]")
            assert "here" in page.text("main table")
            shot(page, "node-killed")
            page.open("/nodes?fresh=1")
            page.wait_for_text("No answer", "main")


def test_an_nsqlookupd_that_does_not_know_a_topic_is_no_error(page: Browser, cluster: Cluster) -> None:
    page.open("/topics/planned?fresh=1")
    assert page.count("[data-live=notices] .notice") == 0
    assert "{" not in page.text("main h1")


def test_an_empty_cluster_has_its_first_steps_on_every_page(chromium: Browser) -> None:
    with (
        Nsqlookupd() as lookupd,
        before(chromium, f"lookupd-http-address=127.0.0.1:{lookupd.http_address[1]}") as (
            page,
            _,
        ),
    ):
        page.open("/nodes")
        headings = page.run(
            "return Promise.all(arguments[0].map((path) => fetch(path).then((it) => it.text()).then((text) => ["
            "new DOMParser().parseFromString(text, 'text/html').querySelectorAll('main h1').length, text.includes('UPSTREAM')])))",
            ["/", "/topics", "/nodes", "/counter", "/consumers", "/lookup"],
        )
        assert headings == [[1, False]] * 6
        assert "nsqd --lookupd-tcp-address" in page.text("main")
        shot(page, "empty-cluster")
        page.open("/counter")
        assert page.text(".odometer") == "0"


@pytest.mark.parametrize(
    ("path", "words"), [("/topics/none", "No such topic"), ("/topics/orders/none", "No such channel")]
)
def test_what_is_not_there_is_said_in_words(page: Browser, path: str, words: str) -> None:
    page.open(path)
    assert page.text("h1") == words
    assert "ERROR" not in page.text("main")
    assert all("404" in it for it in page.complaints())


def test_a_failed_deletion_says_so(chromium: Browser, tmp_path: Path) -> None:
    with a_cluster(tmp_path) as cluster:
        for node in cluster.nodes:
            node.post("/topic/create?topic=orders")
        cluster.wait_for("orders")
        with before(chromium, *cluster.lookupd_options) as (page, admin):
            until(lambda: sees_both(admin, "orders"), "both are seen")
            page.open("/topics/orders?fresh=1")
            page.click_text("Delete", "main .actions a")
            page.wait("document.querySelector('#dialog .final')")
            cluster.nodes[1].kill()
            cluster.wait_for("orders", count=1)
            page.click("#dialog .final")
            page.wait("document.querySelector('#dialog [data-receipt=partly]')")
            assert "Done in part" in page.text("#dialog")
            assert page.text("#dialog").count("✗") == 1
            assert "Nothing listens at" in page.text("#dialog")
            shot(page, "dialog-partly")


def test_the_dialog_names_the_node_that_it_waits_for(chromium: Browser, tmp_path: Path) -> None:
    with a_cluster(tmp_path) as cluster:
        for node in cluster.nodes:
            node.post("/topic/create?topic=orders")
            node.post("/channel/create?topic=orders&channel=c")
        cluster.wait_for("orders")
        options = (*cluster.lookupd_options, "http-client-request-timeout=5s", "sample-interval=500ms")
        with before(chromium, *options) as (page, admin):
            until(lambda: sees_both(admin, "orders"), "both are seen")
            page.open("/topics/orders/c")
            cluster.nodes[1].send_signal(signal.SIGSTOP)
            try:
                page.click_text("Empty", "main .actions a")
                page.wait("document.querySelectorAll('#dialog [data-asked]').length === 2")
                page.run("document.querySelector('#dialog form').requestSubmit()")
                page.wait_for_text(f"Waiting for {address_of(cluster, 1)}…", "#dialog [data-waiting]")
                assert page.text(f"#dialog [data-asked='{address_of(cluster)}']").endswith("✓ done")
                page.wait("document.querySelector('#dialog [data-receipt=partly]')")
                assert "did not answer in time" in page.text("#dialog")
                assert "net/http" not in page.text("#dialog .cross")
                page.click_text("Close", "#dialog a")
                page.click_text("Pause", "main .actions button")
                page.wait("document.querySelector('.toast')?.textContent.includes('done on 1 of 2 nodes')")
                assert address_of(cluster, 1) in page.text(".toast")
            finally:
                cluster.nodes[1].send_signal(signal.SIGCONT)


def test_a_partly_paused_topic_offers_both(page: Browser, cluster: Cluster) -> None:
    cluster.nodes[0].post("/topic/pause?topic=clicks")
    try:
        page.open("/topics/clicks?fresh=1")
        page.wait_for_text("Pause the rest", "[data-live=actions]")
        assert "Unpause" in page.text("[data-live=actions]")
    finally:
        cluster.nodes[0].post("/topic/unpause?topic=clicks")


def test_everything_is_found_below_a_base_path(chromium: Browser, cluster: Cluster) -> None:
    with before(chromium, *cluster.lookupd_options, "base-path=/nsq/admin") as (page, admin):
        until(lambda: b"orders" in admin.http("GET", "/nsq/admin/topics?fresh=1").body, "it is seen")
        page.open("/nsq/admin")
        page.wait("document.querySelector('#live').dataset.state === 'on'")
        assert page.run("return getComputedStyle(document.querySelector('.top')).position") == "sticky"
        for name in ("Topics", "Consumers", "Nodes", "Lookup", "Activity", "Overview"):
            page.click_text(name, ".menu a")
            page.wait("document.querySelector('.menu [aria-current]')?.innerText === arguments[0]", name)
        hrefs = page.run("return [...document.querySelectorAll('a[href]')].map((it) => it.getAttribute('href'))")
        assert all(it.startswith(("/nsq/admin", "#")) for it in hrefs)


def test_pictures_of_a_proxied_graphite_are_below_the_base_path(chromium: Browser, cluster: Cluster) -> None:
    options = ("base-path=/nsq", "graphite-url=http://127.0.0.1:1", "proxy-graphite")
    with before(chromium, *cluster.lookupd_options, *options) as (page, admin):
        until(lambda: b"orders" in admin.http("GET", "/nsq/topics?fresh=1").body, "it is seen")
        page.open("/nsq/topics/orders/billing")
        sources = page.run("return [...document.querySelectorAll('main img')].map((it) => it.getAttribute('src'))")
        assert len(sources) == 7
        assert all(it.startswith("/nsq/render?") for it in sources)
        page.open("/nsq/topics/orders/billing?t=off")
        assert page.count("main img") == 0
        assert all("/nsq/render" in it for it in page.complaints())  # there is no graphite in this test


def test_links_to_ephemeral_topics_lead_there(still_page: Browser) -> None:
    for path in ("/lookup", "/nodes/nsqd-1.example%3A4151", "/topics"):
        still_page.open(path)
        hrefs = still_page.run("return [...document.querySelectorAll('main a[href*=ephemeral]')].map((it) => it.hash)")
        assert set(hrefs) <= {""}
    still_page.open("/topics")
    still_page.click_text("clicks#ephemeral", "main a")
    still_page.wait("document.querySelector('h1').innerText === 'clicks#ephemeral'")


def test_an_unreachable_notification_endpoint_harms_nobody(chromium: Browser, cluster: Cluster) -> None:
    options = (*cluster.lookupd_options, "notification-http-endpoint=http://127.0.0.1:1/none")
    with before(chromium, *options) as (page, admin):
        until(lambda: sees_both(admin, "clicks"), "both are seen")
        page.open("/topics/clicks")
        for label in ("Pause", "Unpause"):
            page.click_text(label, "main .actions button")
            page.wait("document.querySelector('.toast')?.textContent.includes('done on 2 of 2 nodes')")
            page.open("/topics/clicks?fresh=1")
        assert admin.http("GET", "/ping").body == b"OK"


def test_the_page_of_topics_is_no_blank_page(page: Browser) -> None:
    page.open("/topics")
    assert "orders" in page.text("main")


def test_who_may_not_sees_why_and_is_refused(chromium: Browser, cluster: Cluster) -> None:
    with before(chromium, *cluster.lookupd_options, "admin-user=ana") as (page, admin):
        until(lambda: b"clicks" in admin.http("GET", "/topics?fresh=1").body, "it is seen")
        page.open("/topics/clicks")
        assert page.count("main .actions button:disabled") >= 3
        assert page.count("main .actions a") == 0
        assert "right" in page.run("return document.querySelector('main .actions button').title")
        shot(page, "viewer")
        assert admin.http("POST", "/actions/pause_topic", b"topic=clicks").status == 403
        allowed = admin.http("POST", "/actions/pause_topic", b"topic=clicks", headers={"X-Forwarded-User": "ana"})
        assert allowed.status == 200
        for node in cluster.nodes:
            node.post("/topic/unpause?topic=clicks")


def test_a_page_whose_nsqadmin_is_gone_says_so(chromium: Browser, cluster: Cluster) -> None:
    with before(chromium, *cluster.lookupd_options) as (page, admin):
        until(lambda: b"orders" in admin.http("GET", "/topics?fresh=1").body, "it is seen")
        page.open("/topics")
        page.wait("document.querySelector('#live').dataset.state === 'on'")
        assert page.run("return document.querySelector('#lost').hidden")
        admin.send_signal(signal.SIGSTOP)
        page.wait("!document.querySelector('#lost').hidden")
        assert re.fullmatch(r"nsqadmin no longer answers: numbers are of \d\d:\d\d:\d\d", page.text("#lost"))
        assert page.run("return document.querySelector('#live').dataset.state") == "lost"
        shot(page, "nsqadmin-gone")
        admin.send_signal(signal.SIGCONT)
        page.wait("document.querySelector('#lost').hidden")
        page.wait("document.querySelector('#live').dataset.state === 'on'")

        admin.kill()
        page.wait("!document.querySelector('#lost').hidden")
        admin.start()
        page.wait("document.querySelector('#lost').hidden")
        page.complaints()  # of connections that were refused until now


def test_charts_have_a_band_and_sums_stay_while_a_node_is_silent(chromium: Browser, tmp_path: Path) -> None:
    with a_cluster(tmp_path) as cluster:
        for node in cluster.nodes:
            node.post("/topic/create?topic=orders")
            node.post("/channel/create?topic=orders&channel=billing")
            node.post("/mpub?topic=orders", b"1\n2\n3")
        cluster.wait_for("orders")
        with before(chromium, *cluster.lookupd_options) as (page, admin):
            until(lambda: sees_both(admin, "orders"), "both are seen")
            until(lambda: admin.json("GET", "/api/v2/health").json["totals"]["depth"] == 6, "all messages are seen")
            page.open("/topics/orders/billing?fresh=1")
            page.wait("document.querySelector('#live').dataset.state === 'on'")
            cluster.nodes[1].kill()
            page.wait_for_text("3 messages, last seen", "[data-live=silent]")
            page.wait("document.querySelector('[data-k=\"topics/orders/billing/depth\"]').innerText === '6'")
            page.wait("document.querySelector('.chart .key.hatched').textContent.trim() === 'last known 3'")
            assert page.text(".chart .key b") == "6"
            page.wait("document.querySelector('.chart .band').getAttribute('d') !== ''")
            page.wait_for_text("artly unknown", "[data-live=state]")
            shot(page, "silent-node")
