"""Messages on the pages: peeking, searching, tailing, publishing, replaying, moving a channel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.conftest import ARTEFACTS, HTML, address_of, until
from tests.support.browser import Browser
from tests.support.cluster import Cluster
from tests.support.process import Nsqadmin, Nsqd

pytestmark = pytest.mark.e2e


@pytest.fixture
def topic(cluster: Cluster, admin: Nsqadmin, request: pytest.FixtureRequest) -> Iterator[str]:
    """Make a topic on the first node, with a channel c and five messages: JSON, JSON with HTML, text, bytes."""
    name: str = request.node.name.partition("[")[0][-60:]
    node = cluster.nodes[0]
    node.post(f"/topic/create?topic={name}")
    node.post(f"/channel/create?topic={name}&channel=c")
    for body in (
        b'{"country":"DE","amount":5}',
        HTML,
        "grün und ☃".encode(),
        b"\x00\xff\x10",
        b'{"country":"FR","amount":150}',
    ):
        node.post(f"/pub?topic={name}", body)
    cluster.wait_for(name, 1)
    until(lambda: b"c</" in admin.http("GET", f"/topics/{name}/c?fresh=1").body, "nsqadmin knows the topic")
    until(lambda: node.http("GET", f"/topic/log?topic={name}").json["next"] == 5, "they are synced")
    yield name
    for daemon in (*cluster.nodes, *cluster.lookupds):
        daemon.http("POST", f"/topic/delete?topic={name}")


def depth(node: Nsqd, topic: str) -> int:
    found: int = node.channel(topic)["depth"]
    return found


def test_looking_at_messages_takes_nothing(page: Browser, cluster: Cluster, topic: str) -> None:
    for path in (f"/topics/{topic}?tab=messages&from=earliest", f"/topics/{topic}/c?tab=messages"):
        page.open(path)
        assert page.count("details.message") == 5
    page.screenshot(ARTEFACTS / "messages-peek.png")
    channel = cluster.nodes[0].channel(topic)
    assert (channel["depth"], channel["in_flight_count"], channel["requeue_count"]) == (5, 0, 0)


def test_html_in_a_message_is_text(page: Browser, topic: str) -> None:
    for form in ("auto", "json", "text"):
        page.open(f"/topics/{topic}?tab=messages&from=earliest&as={form}")
        page.run("document.querySelectorAll('details.message').forEach((it) => { it.open = true; })")
        assert "<img src=x onerror=alert(1)>" in page.text("main")
        assert page.count("main img, main pre script") == 0
        assert page.title != "1"
    page.screenshot(ARTEFACTS / "messages.png")


def test_bodies_are_shown_as_what_they_are(page: Browser, topic: str) -> None:
    page.open(f"/topics/{topic}?tab=messages&from=earliest")
    page.run("document.querySelectorAll('details.message').forEach((it) => { it.open = true; })")
    shown = page.text("main")
    assert '"country": "DE"' in shown
    assert "grün und ☃" in shown
    assert "00000000  00 ff 10" in shown


def test_messages_are_searched(page: Browser, topic: str) -> None:
    page.open(f"/topics/{topic}?tab=messages&from=earliest")
    page.fill("#filter", "country = FR and amount >= 100")
    page.click_text("Show", "button")
    page.wait_for_text("1 message that match", "#found")
    page.open(f"/topics/{topic}?tab=messages&from=earliest&filter=a+%3D+b+or")
    assert "not understood" in page.text("[role=alert]")


def test_messages_are_read_from_a_sequence(page: Browser, cluster: Cluster, topic: str) -> None:
    page.open(f"/topics/{topic}?tab=messages&from=3&node={address_of(cluster)}")
    assert page.count("details.message") == 2


def test_new_messages_are_tailed(page: Browser, cluster: Cluster, topic: str) -> None:
    page.open(f"/topics/{topic}?tab=messages")
    page.click("#tail-start")
    until(lambda: len(cluster.nodes[0].topic(topic)["channels"]) == 2, "the tail has subscribed")
    cluster.nodes[0].post(f"/pub?topic={topic}", b'{"fresh":"<b>yes</b>"}')
    page.wait_for_text('{"fresh":"<b>yes</b>"}', "#tail-list")
    assert page.count("#tail-list b") == 0
    page.click("#tail-start")
    page.wait_for_text("Stopped", "#tail-state")
    until(lambda: len(cluster.nodes[0].topic(topic)["channels"]) == 1, "the temporary channel is gone")
    assert depth(cluster.nodes[0], topic) == 6


def test_a_topic_without_a_channel_is_not_tailed(page: Browser) -> None:
    page.open("/topics/archive?tab=messages")
    assert page.count("#tail-start") == 0
    assert "Not possible" in page.text("section[aria-labelledby=tail]")


def test_messages_are_published_by_hand(page: Browser, cluster: Cluster, topic: str) -> None:
    page.open(f"/topics/{topic}?tab=messages")
    page.run("document.querySelector('#body').value = arguments[0]", "one\ntwo\n\nthree")
    page.run("document.querySelector('[name=lines]').click()")
    page.run("document.querySelector('#publish-node').value = arguments[0]", address_of(cluster))
    page.click_text("Publish", "section[aria-labelledby=publish] button")
    page.wait_for_text("3 messages", "#dialog [data-receipt=ok]")
    assert depth(cluster.nodes[0], topic) == 8


def test_a_range_is_published_again_to_another_topic(page: Browser, cluster: Cluster, topic: str) -> None:
    target = f"{topic[:50]}.again"
    page.open(f"/topics/{topic}?tab=messages")
    page.fill("#first", "1")
    page.fill("#end", "4")
    page.fill("#target", target)
    page.click_text("Replay", "section[aria-labelledby=replay] button")
    page.wait_for_text("3 messages", "#dialog h1")
    page.screenshot(ARTEFACTS / "dialog-replay.png")
    page.click("#dialog button.primary")
    page.wait_for_text("3 messages", "#dialog [data-receipt=ok]")
    assert cluster.nodes[0].topic(target)["message_count"] == 3
    for daemon in (*cluster.nodes, *cluster.lookupds):
        daemon.http("POST", f"/topic/delete?topic={target}")


def test_a_channel_is_moved_back(page: Browser, cluster: Cluster, topic: str) -> None:
    cluster.nodes[0].post(f"/channel/empty?topic={topic}&channel=c")
    page.open(f"/topics/{topic}/c?fresh=1")
    page.click_text("Move", "main .actions a")
    page.wait("document.querySelector('#dialog #place')")
    page.fill("#dialog #place", "earliest")
    page.click("#dialog button.final")
    page.wait("document.querySelector('#dialog [data-receipt=ok]')")
    assert depth(cluster.nodes[0], topic) == 5


def test_publishing_works_without_scripts(page: Browser, cluster: Cluster, topic: str) -> None:
    page.allow_scripts(False)
    page.open(f"/topics/{topic}?tab=messages")
    page.fill("#body", "by hand")
    page.run("document.querySelector('#publish-node').value = arguments[0]", address_of(cluster))
    page.click("section[aria-labelledby=publish] button.primary")
    page.wait_for_text("Done.", "#sheet")
    assert cluster.nodes[0].topic(topic)["message_count"] == 6
