"""A turn that publishes to very many topics writes to some of their logs, and leaves the others to the next turns."""

from __future__ import annotations

import pytest

from nsqcommon.wire.commands import dpub, pub
from nsqcommon.wire.frames import OK_FRAME
from tests.support.node import Client, Node

TOPICS = 250
MOST = 100  # that one turn may write to


class Watched(Node):
    """A node that notes how many logs each turn has written to."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[int] = []

    def turn(self) -> None:
        before = sum(log.tail > 0 for log in self.store.logs.values())
        super().turn()
        self.written.append(sum(log.tail > 0 for log in self.store.logs.values()) - before)


@pytest.fixture
def node() -> Watched:
    node = Watched()
    for number in range(TOPICS):
        node.broker.topic(f"t{number}").channel("c")
    node.turn()
    return node


def publish_to_all(node: Watched, client: Client) -> None:
    client.say(b"".join(pub(f"t{number}", b"x") for number in range(TOPICS)))
    client.go_on()


def finish(node: Watched) -> None:
    while node.broker.put_off:
        node.turn()


def test_one_connection_that_publishes_to_many_topics_has_some_of_them_written_in_each_turn(node: Watched) -> None:
    client = node.client()
    publish_to_all(node, client)
    assert 0 < client.hear().count(OK_FRAME) < TOPICS
    finish(node)
    assert max(node.written) <= MOST
    assert all(log.tail == 1 for log in node.store.logs.values())
    assert all(topic.channels["c"].depth == 1 for topic in node.broker.topics.values())


def test_every_publish_is_answered_when_its_topic_and_those_before_it_are_written(node: Watched) -> None:
    client, heard = node.client(), b""
    publish_to_all(node, client)
    while node.broker.put_off:
        heard += client.hear()
        assert heard.count(OK_FRAME) <= sum(log.tail > 0 for log in node.store.logs.values())
        node.turn()
    assert heard + client.hear() == OK_FRAME * TOPICS


def test_many_connections_have_no_more_topics_written_in_a_turn_than_one(node: Watched) -> None:
    clients = [node.client() for _ in range(5)]
    for place, client in enumerate(clients):
        topics = range(place * 50, place * 50 + 50)
        client.handler.receive(b"".join(pub(f"t{number}", b"x") for number in topics), node.now)
    node.turn()
    finish(node)
    assert max(node.written) <= MOST
    assert [client.hear() for client in clients] == [OK_FRAME * 50] * 5


def test_a_publisher_to_one_topic_does_not_wait_behind_hundreds(node: Watched) -> None:
    publish_to_all(node, node.client())
    assert node.broker.put_off
    assert node.client().ask(pub("other", b"x")) == OK_FRAME


def test_messages_of_a_topic_keep_their_order_when_it_is_put_off(node: Watched) -> None:
    client = node.client()
    publish_to_all(node, client)
    topic = next(reversed(node.broker.put_off)).name
    client.say(b"".join(pub(topic, b"%d" % number) for number in range(3)))
    finish(node)
    consumer = node.consumer(topic, ready=10)
    assert [message.body for message in consumer.messages()] == [b"x", b"0", b"1", b"2"]


def test_a_deferral_that_is_put_off_is_in_the_journal_before_its_message_is_in_the_log(node: Watched) -> None:
    client = node.client()
    client.say(b"".join(dpub(f"t{number}", 60_000, b"x") for number in range(TOPICS)))
    client.go_on()
    assert node.broker.put_off
    while node.broker.put_off:
        node.turn()
        told = {change[1] for change in node.store.journal if change[0] == "defer"}
        assert told == {name for name, log in node.store.logs.items() if log.tail}
    node.crash()
    channels = [topic.channels["c"] for topic in node.broker.topics.values()]
    assert sum(len(channel.deferred) for channel in channels) == TOPICS
    assert not any(channel.depth for channel in channels)


def test_a_topic_that_is_deleted_while_it_is_put_off_fails_its_publishers(node: Watched) -> None:
    client = node.client()
    publish_to_all(node, client)
    gone = next(reversed(node.broker.put_off)).name
    node.broker.delete_topic(gone)
    finish(node)
    assert client.hear().endswith(b"E_PUB_FAILED PUB failed exiting")
    assert node.broker.find(gone) is None


def test_what_is_put_off_is_refused_when_the_journal_breaks_meanwhile(node: Watched) -> None:
    client = node.client()
    publish_to_all(node, client)
    node.store.journal_error = "no space"
    finish(node)
    assert client.hear().endswith(b"E_PUB_FAILED PUB failed no space")
    assert 0 < sum(log.tail for log in node.store.logs.values()) < TOPICS
