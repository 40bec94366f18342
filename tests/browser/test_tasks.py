"""What somebody on call has to do at three in the morning, from the first page on, with every click counted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from tests.browser.conftest import prepared, shot, until
from tests.support.browser import Browser
from tests.support.client import Client, Disconnected, Refused
from tests.support.cluster import name_of
from tests.support.process import Nsqadmin, Nsqd, Nsqlookupd, eventually

WAITING = 100  # messages on each node
STUCK_AFTER = 90.0  # seconds; nsqadmin waits half a minute until it calls consumers stuck, on an idle machine


@dataclass
class Trouble:
    """Three nodes: billing keeps up, fraud has no consumer, the mailer hangs, and the ledger was paused by ana."""

    nodes: list[Nsqd]
    lookupd: Nsqlookupd
    clients: list[Client] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def begin(self) -> None:
        for node in self.nodes:
            for topic, channel in (
                ("orders", "billing"),
                ("orders", "fraud"),
                ("mail", "post"),
                ("payments", "ledger"),
            ):
                node.post(f"/topic/create?topic={topic}")
                node.post(f"/channel/create?topic={topic}&channel={channel}")
            for topic in ("orders", "mail", "payments"):
                node.post(f"/mpub?topic={topic}", b"\n".join(b"%d" % number for number in range(WAITING)))
            self._connect(node, "mailer-01", msg_timeout=1000).subscribe("mail", "post", ready=5)

    def _connect(self, node: Nsqd, name: str, **asked: object) -> Client:
        client = Client(node.tcp)
        known = {"client_id": name, "hostname": f"{name}.example", "user_agent": "tests/1.0"}
        client.identify(heartbeat_interval=600_000, **known, **asked)
        self.clients.append(client)
        return client

    def pause(self) -> None:
        for node in self.nodes:
            node.http("POST", "/channel/pause?topic=payments&channel=ledger", b"", headers={"Nsqadmin-User": "ana"})

    def work(self) -> None:
        """Publish orders and bill them until the end."""
        producers = [self._connect(node, "web-01") for node in self.nodes]
        consumers = [self._connect(node, "billing-01") for node in self.nodes]
        for consumer in consumers:
            consumer.subscribe("orders", "billing", ready=50)
        while not self.stopping.wait(0.5):  # for a minute or so, on three nodes
            for producer, consumer in zip(producers, consumers, strict=True):
                try:
                    producer.publish("orders", b"{}")
                    consumer.finish(consumer.message(timeout=0.05))
                except (TimeoutError, AssertionError, Disconnected, Refused, OSError):
                    continue  # a test has stopped or drains the node


@pytest.fixture(scope="module")
def trouble(needs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trouble]:
    folder = tmp_path_factory.mktemp("trouble")
    with ExitStack() as stack:
        lookupd = stack.enter_context(Nsqlookupd())
        options = ["broadcast-address=127.0.0.1", f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}"]
        options.append("max-heartbeat-interval=10m")  # or the mailer, which answers none, would be gone after a minute
        nodes = [stack.enter_context(Nsqd(folder / name, *options)) for name in ("n1", "n2", "n3")]
        found = Trouble(nodes, lookupd)
        found.begin()
        worker = threading.Thread(target=found.work)
        worker.start()
        yield found
        found.stopping.set()
        worker.join()
        for client in found.clients:
            client.close()


@pytest.fixture(scope="module")
def watching(trouble: Trouble) -> Iterator[Nsqadmin]:
    options = (f"lookupd-http-address=127.0.0.1:{trouble.lookupd.http_address[1]}", "sample-interval=1s")
    with Nsqadmin(*options, "discovery-interval=1s", "http-client-request-timeout=2s") as admin:
        eventually(lambda: len(admin.json("GET", "/api/v2/nodes").json["nodes"]) == 3)
        eventually(lambda: b"ledger" in admin.http("GET", "/topics").body)
        trouble.pause()
        eventually(lambda: _problems(admin) >= 3, STUCK_AFTER)
        yield admin
        assert "Traceback" not in admin.log


def _problems(admin: Nsqadmin) -> int:
    subjects = {it["subject"] for it in admin.json("GET", "/api/v2/incidents").json["incidents"]}
    return len(subjects & {"orders/fraud", "mail/post", "payments/ledger"})


class Hand:
    """A hand on the mouse, which counts."""

    def __init__(self, page: Browser) -> None:
        self.page = page
        self.clicks = 0

    def click(self, text: str, selector: str) -> None:
        self.clicks += 1
        self.page.click_text(text, selector)


@pytest.fixture
def hand(chromium: Browser, watching: Nsqadmin) -> Iterator[Hand]:
    for page in prepared(chromium, watching):
        page.open("/")
        yield Hand(page)


def test_what_is_wrong_is_seen_without_a_click(hand: Hand) -> None:
    text = hand.page.text("main")
    for said in (
        "orders/fraud · No consumer is connected",
        "mail/post · Consumers are stuck",
        "payments/ledger · No consumer is connected",
    ):
        assert said in text
    shot(hand.page, "tasks-overview")
    assert hand.clicks == 0


def test_why_a_depth_grows_takes_one_click(hand: Hand) -> None:
    hand.click("Show the channel", ".incident a")
    for said in (
        "No consumer is connected",
        "Start a consumer, or delete the channel if it is no longer needed.",
        "growing",
    ):
        hand.page.wait_for_text(said, "main")
    assert hand.clicks == 1


def test_which_consumer_is_stuck_takes_one_click(hand: Hand) -> None:
    hand.click("Show its consumers", ".incident a")
    hand.page.wait_for_text("Stuck", "main table")  # the consumer is new for some seconds
    rows = hand.page.run("return [...document.querySelectorAll('main tbody tr')].map((it) => it.innerText)")
    assert "Stuck" in rows[0]
    assert "mailer-01" in rows[0]
    assert hand.clicks == 1


def test_who_has_paused_a_channel_takes_one_click(hand: Hand) -> None:
    hand.click("payments/ledger", ".incident a")
    hand.page.wait_for_text("ana, outside nsqadmin", "main")
    assert hand.clicks == 1
    hand.page.open("/")
    hand.click("payments/ledger", ".tops a")
    hand.page.wait_for_text("by ana", "main .head")
    assert hand.clicks == 2  # one on each way


def test_many_topics_are_paused_with_three_clicks_and_their_selection(hand: Hand, trouble: Trouble) -> None:
    names = ("mail", "orders")

    def paused() -> list[bool]:
        return [node.topic(name)["paused"] for node in trouble.nodes for name in names]

    hand.click("Topics", "header nav a")
    for name in names:
        hand.page.click(f"input[name=pick][value={name}]")
    hand.click("Pause…", "[data-picked] button")
    hand.page.wait_for_text("Pause 2 topics", "#dialog h1")
    shot(hand.page, "tasks-pause-several")
    hand.click("Pause", "#dialog button.primary")
    hand.page.wait_for_text("2 of 2 done", "#dialog [data-receipt=ok]")
    assert hand.clicks == 3
    assert set(paused()) == {True}
    hand.page.click_text("Undo", "#dialog button")
    hand.page.wait_for_text("Unpause 2 topics: 2 of 2 done", "#dialog")
    assert set(paused()) == {False}


def test_a_node_is_drained_in_three_clicks_and_taken_back(hand: Hand, trouble: Trouble) -> None:
    node = trouble.nodes[1]
    hand.click("Nodes", "header nav a")
    hand.page.wait_for_text(name_of(node), "main")
    row = f"tr:has(th a[href*='{node.http_address[1]}'])"
    hand.click("Drain node…", f"{row} a")
    hand.page.wait_for_text("wait for", "#dialog")
    hand.page.wait_for_text("that finish nothing at present", "#dialog")
    hand.click("Drain", "#dialog button.final")
    hand.page.wait_for_text("done", "#dialog [data-receipt=ok]")
    assert hand.clicks == 3
    assert eventually(lambda: node.http("GET", "/stats?format=json").json.get("draining"))
    hand.page.open(f"/nodes/{name_of(node)}")
    hand.page.wait_for_text("Not yet safe to stop", "main")
    shot(hand.page, "tasks-drain")
    hand.page.click_text("Undrain", "main .actions button")
    until(lambda: not node.http("GET", "/stats?format=json").json.get("draining"), "the drain is taken back")
    until(lambda: node.http("POST", "/pub?topic=orders", b"{}").status == 200, "it takes messages again")


def test_a_node_that_hangs_makes_no_open_page_look_better(
    hand: Hand, watching: Nsqadmin, trouble: Trouble, chromium: Browser
) -> None:
    node = trouble.nodes[2]
    depth = "return Number(document.querySelector('[data-k=\"topics/payments/ledger/depth\"]').textContent.replace(/\\D/g, ''))"
    for path in ("/topics/payments", "/topics/payments/ledger"):
        hand.page.open(path)
        hand.page.wait("document.querySelector('#live').dataset.state === 'on'")
    hand.page.open("/topics/payments/ledger")
    before = hand.page.run(depth)
    assert before == 3 * WAITING
    node.send_signal(signal.SIGSTOP)
    try:
        hand.page.wait_for_text(name_of(node), "main [data-live]")
        hand.page.wait_for_text("does not answer: ", "main")
        for _ in range(10):
            assert hand.page.run(depth) >= before
            assert "Paused" in hand.page.text("main")
            hand.page.run("return new Promise((done) => setTimeout(done, 300))")
        hand.page.open("/")
        hand.page.wait_for_text("does not answer", "main .incidents")
        assert name_of(node) in hand.page.text("main .incidents")
        assert "payments/ledger · No consumer is connected" in hand.page.text("main")
        hand.page.open("/nodes")
        assert "last known values" in hand.page.text("main")
    finally:
        node.send_signal(signal.SIGCONT)
    hand.page.open("/topics/payments/ledger")
    hand.page.wait("!document.querySelector('main').innerText.includes('does not answer')")
    assert hand.page.run(depth) == before
