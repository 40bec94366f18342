"""Channels: which consumer gets which message, in which order, and what becomes of it."""

from __future__ import annotations

from collections import Counter
from math import inf
from random import Random
from unittest.mock import Mock

import pytest

from nsqcommon.wire.commands import dpub, fin, mpub, nop, pub, req, touch
from nsqd.broker import operator_actions
from nsqd.broker.consumer import MOST_UNSENT_BYTES, Consumer
from nsqd.broker.in_flight import Delivery
from tests.nsqd.looks import Looks
from tests.support.node import Client, Message, Node


def publish(node: Node, *bodies: bytes, topic: str = "t") -> None:
    node.client().say(mpub(topic, bodies))


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("consumers", [2, 3, 7])
def test_new_messages_are_shared_between_those_who_are_ready(consumers: int) -> None:
    node = Node()
    clients = [node.consumer(ready=2500) for _ in range(consumers)]
    publish(node, *numbers(70))
    shares = [len(client.messages()) for client in clients]
    assert sum(shares) == 70
    assert max(shares) - min(shares) <= 1


def test_single_messages_go_round() -> None:
    node = Node()
    clients = [node.consumer(ready=100) for _ in range(3)]
    for _ in range(30):
        node.client().say(pub("t", b"x"))
    assert [len(client.messages()) for client in clients] == [10, 10, 10]


def test_small_ready_counts_leave_the_rest_to_others() -> None:
    node = Node()
    little, much = node.consumer(ready=1), node.consumer(ready=100)
    publish(node, *numbers(20))
    assert (len(little.messages()), len(much.messages())) == (1, 19)


def test_every_channel_gets_every_message_in_order() -> None:
    node = Node()
    first, second = node.consumer("t", "a", 100), node.consumer("t", "b", 100)
    publish(node, *numbers(20))
    for client in (first, second):
        assert [message.body for message in client.messages()] == numbers(20)


def requeue_all(client: Client, messages: list[Message]) -> None:
    client.say(b"".join(req(message.id, 0) for message in messages))


def test_endless_retries_do_not_starve_new_messages() -> None:
    node = Node()
    client = node.consumer(ready=1)
    publish(node, *[b"bad"] * 3, *[b"good"] * 5)
    got = Counter[bytes]()
    for _ in range(30):
        for message in client.messages():
            got[message.body] += 1
            client.say(req(message.id, 0) if message.body == b"bad" else fin(message.id))
    assert got[b"good"] == 5


def test_a_stream_of_new_messages_does_not_starve_retries() -> None:
    node = Node()
    client = node.consumer(ready=2)
    publish(node, b"again", *numbers(100))
    requeue_all(client, client.messages())
    retried = 0
    for _ in range(5):
        messages = client.messages()
        retried += sum(message.attempts == 2 for message in messages)
        client.say(b"".join(fin(message.id) for message in messages))
    assert retried == 2


def test_attempts_wrap_at_sixteen_bits() -> None:
    node = Node()
    client = node.consumer()
    publish(node, b"x")
    [message] = client.messages()
    channel = node.broker.topic("t").channel("c")
    delivery = channel.in_flight.find(channel.consumers[0], message.id)
    assert isinstance(delivery, Delivery)
    delivery.attempts = 65_534
    attempts = []
    for _ in range(3):
        client.say(req(message.id, 0))
        attempts += [message.attempts for message in client.messages()]
    assert attempts == [65_535, 0, 1]


def test_message_comes_back_when_nobody_finishes_it() -> None:
    node = Node()
    client = node.consumer()
    publish(node, b"x")
    assert [m.attempts for m in client.messages()] == [1]
    node.pass_time(30)
    client.ask(nop())
    node.pass_time(29.9)
    assert client.messages() == []
    node.pass_time(0.1)
    assert [m.attempts for m in client.messages()] == [2]
    assert node.channel().timeout_count == 1


def test_what_a_lost_client_had_waits_for_its_deadline() -> None:
    node = Node()
    client = node.consumer()
    publish(node, b"x")
    client.protocol.end()
    other = node.consumer()
    assert node.channel().in_flight_count == 1
    node.pass_time(30)
    other.ask(nop())
    node.pass_time(30)
    assert [m.attempts for m in other.messages()] == [2]


def test_emptying_drops_everything_and_frees_consumers() -> None:
    node = Node()
    client = node.consumer(ready=2)
    publish(node, *numbers(5))
    client.say(dpub("t", 5000, b"later"))
    messages = client.messages()
    operator_actions.empty(node.broker.topic("t").channel("c"))
    node.turn()
    told = node.channel()
    assert (told.depth, told.in_flight_count, told.deferred_count, told.message_count) == (0, 0, 0, 6)
    publish(node, b"new")
    assert client.answers(fin(messages[0].id)) == [
        b"<1> new",
        b"E_FIN_FAILED FIN " + messages[0].id + b" failed ID not in flight",
    ]


def test_paused_channel_delivers_nothing_until_it_is_unpaused() -> None:
    node = Node()
    client = node.consumer(ready=5)
    channel = node.broker.topic("t").channel("c")
    channel.pause()
    publish(node, b"x")
    assert client.messages() == []
    assert node.channel().depth == 1
    channel.unpause()
    node.turn()
    assert [m.body for m in client.messages()] == [b"x"]


def test_consumer_that_does_not_read_gets_no_more_than_a_bound() -> None:
    node = Node()
    client = node.consumer(ready=2500)
    size = 1000
    for _ in range(2000):
        publish(node, bytes(size))
        node.clients.pop()
    assert client.protocol.bytes_to_send()
    told = node.channel()
    assert MOST_UNSENT_BYTES <= told.in_flight_count * (size + 34) <= MOST_UNSENT_BYTES + 10 * size
    assert told.depth == 2000 - told.in_flight_count
    client.hear()
    assert node.channel().depth < told.depth


# Ephemeral channels

EPHEMERAL = [("t", "e#ephemeral"), ("t#ephemeral", "c"), ("t#ephemeral", "e#ephemeral")]


def test_ephemeral_channel_drops_the_newest_beyond_its_bound() -> None:
    node = Node()
    node.broker.topic("t").channel("e#ephemeral")
    publish(node, *numbers(8))
    publish(node, *numbers(8))
    told = node.channel("t", "e#ephemeral")
    assert (told.depth, told.message_count) == (10, 16)
    client = node.consumer("t", "e#ephemeral", ready=100)
    assert [m.body for m in client.messages()] == [*numbers(8), b"0", b"1"]


def test_ephemeral_channel_keeps_its_bound_beside_deferred_messages() -> None:
    node = Node()
    node.broker.topic("t").channel("e#ephemeral")
    publisher = node.client()
    publisher.say(mpub("t", numbers(12)) + dpub("t", 5000, b"later"))
    told = node.channel("t", "e#ephemeral")
    assert (told.depth, told.deferred_count) == (10, 1)


def test_ephemeral_channel_has_what_the_log_has_let_go_of() -> None:
    node = Node()
    client = node.consumer("t", "e#ephemeral", ready=1)
    publish(node, *numbers(5))
    messages = client.messages()
    log = node.store.logs["t"]
    log.release(node.broker.topic("t").low_watermark())
    log.evict()
    log.unlink()
    requeue_all(client, messages)
    client.say(b"RDY 10\n")
    assert sorted(m.body for m in client.messages()) == numbers(5)
    assert node.store.wanted == {}


def test_ephemeral_channel_reads_an_old_backlog_from_the_log_as_long_as_it_is_there() -> None:
    node = Node()
    publish(node, *numbers(8))
    log = node.store.logs["t"]
    log.evict()
    client = node.consumer("t", "e#ephemeral", ready=3)
    assert node.channel("t", "e#ephemeral").backend_depth == 0
    node.load()
    assert [m.body for m in client.messages()] == numbers(3)
    publish(node, b"8")
    log.release(8)
    log.unlink()
    client.say(b"RDY 10\n")
    assert [m.body for m in client.messages()] == [b"8"]


@pytest.mark.parametrize(("topic", "channel"), EPHEMERAL)
def test_long_message_does_not_block_what_follows_it(topic: str, channel: str) -> None:
    node = Node()
    client = node.consumer(topic, channel, ready=2)
    publisher = node.client()
    publisher.say(dpub(topic, 5000, b"deferred") + pub(topic, b"long"))
    (long,) = client.messages()
    got = []
    for number in range(40):
        publisher.say(pub(topic, b"%d" % number))
        (message,) = client.messages()
        client.say(fin(message.id))
        got.append(message.body)
    assert got == [b"%d" % number for number in range(40)]
    client.say(fin(long.id))
    node.pass_time(6)
    assert [m.body for m in client.messages()] == [b"deferred"]


@pytest.mark.parametrize(("topic", "channel"), EPHEMERAL)
def test_who_waits_is_served_before_anything_is_dropped(topic: str, channel: str) -> None:
    node = Node()
    client = node.consumer(topic, channel, ready=15)
    node.client().say(mpub(topic, numbers(40)))
    assert [m.body for m in client.messages()] == numbers(15)
    client.say(b"RDY 100\n")
    assert [m.body for m in client.messages()] == numbers(25)[15:]


@pytest.mark.parametrize(("topic", "channel"), EPHEMERAL)
def test_without_a_queue_size_what_is_published_goes_to_who_waits(topic: str, channel: str) -> None:
    node = Node(mem_queue_size=0)
    client = node.consumer(topic, channel, ready=2)
    node.client().say(mpub(topic, numbers(3)))
    client.say(b"RDY 10\n")
    assert [m.body for m in client.messages()] == numbers(2)
    told = node.channel(topic, channel)
    assert (told.depth, told.message_count) == (0, 3)


@pytest.mark.parametrize(("topic", "channel"), EPHEMERAL)
def test_what_waits_is_bounded_in_bytes_too(topic: str, channel: str) -> None:
    node = Node(mem_queue_bytes=4000)
    client = node.consumer(topic, channel, ready=3)
    publisher = node.client()
    bodies = [bytes([number]) * 1000 for number in range(10)]
    for body in bodies:
        publisher.say(pub(topic, body))
    got = client.messages()
    assert [m.body for m in got] == bodies[:3]  # in flight, and not counted
    assert node.channel(topic, channel).depth == 3
    client.say(b"".join(fin(m.id) for m in got))
    assert [m.body for m in client.messages()] == bodies[3:6]


@pytest.mark.parametrize(("topic", "channel"), EPHEMERAL)
def test_bytes_that_consumers_hold_are_known_whatever_they_do(topic: str, channel: str) -> None:
    random = Random(1)
    node = Node(mem_queue_size=100, mem_queue_bytes=2_000)
    clients = [node.consumer(topic, channel, ready=20), node.consumer(topic, channel, ready=3)]
    publisher, found = node.client(), node.broker.topics[topic].channels[channel]
    kept = found.ledger.ephemeral_batches
    assert kept is not None
    most = 0
    for _ in range(150):
        publisher.say(mpub(topic, [bytes(random.randint(1, 50)) for _ in range(random.randint(1, 9))]))
        for client in clients:
            for message in client.messages():
                answers = (fin(message.id), req(message.id, 0), req(message.id, 1000), touch(message.id), nop())
                client.say(random.choice(answers))
        node.now += random.choice((0.1, 0.1, 0.1, 61))
        node.broker.turn.now = node.now
        node.broker.expire()
        node.turn()
        found.ledger.record_progress()
        batches = [(sequence, kept.find(sequence)) for sequence, _ in found.in_flight.positions()]
        assert all(batch is not None for _, batch in batches)
        assert kept.in_hand == sum(4 + len(batch.body(sequence)) for sequence, batch in batches if batch is not None)
        most = max(most, kept.in_hand)
    assert most > 200


def test_a_publish_looks_at_no_message_that_consumers_hold() -> None:
    node = Node(mem_queue_size=20_000, mem_queue_bytes=10_000)
    channel = node.broker.topic("t").channel("c#ephemeral")
    consumer = Consumer(send=lambda pieces: None, close=lambda: None, describe=Mock(), msg_timeout=60.0)
    consumer.ready_count = 20_000
    channel.join(consumer)
    for _ in range(20):
        node.broker.topic("t").publish(b"\0\0\0\1x" * 1_000, range(0, 5_001, 5))
        node.turn()
        consumer.unsent_bytes = 0
        channel.schedule_delivery()
    node.turn()
    assert consumer.in_flight == 20_000
    looks = Looks()
    looks.watch(channel)
    node.broker.topic("t").publish_one(b"\0\0\0\1x")
    node.turn()
    assert looks.count == 0


def test_deferred_messages_of_an_ephemeral_topic_have_a_bound() -> None:
    node = Node()
    node.broker.topic("t#ephemeral").channel("c")
    publisher = node.client()
    publisher.say(dpub("t#ephemeral", 5000, b"later") * 8 + mpub("t#ephemeral", numbers(8)))
    told = node.channel("t#ephemeral", "c")
    assert (told.depth, told.deferred_count, told.message_count) == (2, 8, 16)
    publisher.say(dpub("t#ephemeral", 5000, b"no room"))
    assert node.channel("t#ephemeral", "c").deferred_count == 8


def test_deferred_messages_of_a_lasting_topic_leave_memory_to_the_others() -> None:
    node = Node(mem_queue_bytes=4000)
    client = node.consumer("t", "e#ephemeral", ready=0)
    publisher = node.client()
    for _ in range(10):
        publisher.say(dpub("t", 5000, bytes(1000)))
    publisher.say(pub("t", b"now"))
    told = node.channel("t", "e#ephemeral")
    assert (told.depth, told.deferred_count) == (1, 10)
    node.pass_time(6)
    client.say(b"RDY 100\n")
    assert len(client.messages()) == 11  # the log still had them


def test_ephemeral_channel_ends_with_its_last_consumer() -> None:
    node = Node()
    first, second = node.consumer("t", "e#ephemeral"), node.consumer("t", "e#ephemeral")
    first.protocol.end()
    assert node.topic().channels
    second.protocol.end()
    assert not node.topic().channels


def test_ephemeral_topic_ends_with_its_last_channel() -> None:
    node = Node()
    topic = node.broker.topic("t#ephemeral")
    assert node.broker.find("t#ephemeral")
    topic.channel("c")
    topic.delete_channel("c")
    assert node.broker.find("t#ephemeral") is None


# Cold reads


def test_what_is_not_in_memory_is_delivered_when_it_was_fetched() -> None:
    node = Node()
    publish(node, *numbers(5))
    node.store.logs["t"].evict()
    client = node.consumer(ready=3)
    assert client.messages() == []
    assert node.channel().backend_depth == 5
    node.load()
    assert [m.body for m in client.messages()] == numbers(3)


def test_cold_retry_does_not_hold_up_what_is_warm() -> None:
    node = Node()
    client = node.consumer(ready=2)
    publish(node, b"a")
    messages = client.messages()
    node.store.logs["t"].evict()
    requeue_all(client, messages)
    assert client.messages() == []
    publish(node, b"b")
    assert [m.body for m in client.messages()] == [b"b"]
    node.load()
    assert [(m.body, m.attempts) for m in client.messages()] == [(b"a", 2)]


def test_damage_is_passed_over() -> None:
    node = Node()
    publish(node, *numbers(5))
    node.store.logs["t"].first = 3
    client = node.consumer(ready=10)
    assert [m.body for m in client.messages()] == [b"3", b"4"]
    assert node.channel().depth == 0


def test_damage_may_swallow_a_deferred_message() -> None:
    node = Node()
    node.broker.topic("t").channel("c")
    publish(node, b"a")
    node.client().say(dpub("t", 5000, b"later"))
    publish(node, b"b", b"c")
    node.store.logs["t"].first = 3
    client = node.consumer(ready=1)
    assert [m.body for m in client.messages()] == [b"c"]
    assert node.channel().depth == 0
    node.pass_time(6)
    assert client.answers(b"RDY 5\n") == []
    told = node.channel()
    assert (told.depth, told.deferred_count, told.in_flight_count) == (0, 0, 1)


def test_damage_that_reaches_beyond_what_was_handed_over_takes_no_more_than_that() -> None:
    node = Node()
    topic = node.broker.topic("t")
    topic.channel("c")
    publish(node, b"a")
    topic.pause()
    publish(node, b"b", b"c")
    node.store.logs["t"].first = 2
    client = node.consumer(ready=5)
    assert (client.messages(), node.channel().depth, node.topic().depth) == ([], 0, 2)
    topic.unpause()
    node.turn()
    assert [m.body for m in client.messages()] == [b"c"]


def refusing_node() -> Node:
    """Make a node with ten messages on disk, of which the disk refuses three."""
    node = Node()
    node.consumer(ready=0)
    for number in numbers(10):
        publish(node, number)
    log = node.store.logs["t"]
    log.evict()
    log.refused = (2, 5)
    return node


def finish_all(node: Node) -> list[bytes]:
    """Return what a new consumer gets and finishes."""
    client = node.consumer(ready=100)
    node.load()
    node.pass_time(0.1)  # deferred messages let others go first
    node.load()
    messages = client.messages()
    client.say(b"".join(fin(message.id) for message in messages))
    return [message.body for message in messages]


def test_what_the_disk_refuses_to_read_is_deferred_and_what_lies_behind_goes_on() -> None:
    node = refusing_node()
    assert finish_all(node) == numbers(2) + numbers(10)[5:]
    channel = node.broker.topics["t"].channels["c"]
    assert (len(channel.ledger.deferred), channel.depth, channel.ledger.low_watermark()) == (3, 0, 2)
    node.pass_time(61)
    assert finish_all(node) == []
    assert (len(channel.ledger.deferred), channel.depth) == (3, 0)
    node.store.logs["t"].refused = (0, 0)
    node.pass_time(61)
    assert sorted(finish_all(node)) == numbers(10)[2:5]


def test_what_the_disk_refuses_to_read_is_still_owed_after_a_crash() -> None:
    node = refusing_node()
    finish_all(node)
    node.crash()
    node.pass_time(61)
    assert set(numbers(10)[2:5]) <= set(finish_all(node))


def test_a_time_that_comes_for_thousands_of_messages_comes_in_several_passes() -> None:
    node = Node()
    topic = node.broker.topic("t")
    channel = topic.channel("c")
    for sequence in range(12_000):
        channel.ledger.deferred.add(int((node.now + 1) * 1_000_000), sequence, 1)
    node.now += 1.5
    moved: list[int] = []
    while channel.ledger.deferred:
        node.broker.turn.now = node.now
        channel.expire(node.now)
        moved.append(len(channel.ledger.retries))
        node.now = max(node.now, min(channel.alarm, node.now + 1))
    assert moved == [5_000, 10_000, 12_000]
    assert channel.alarm == inf


@pytest.mark.parametrize("ready", [0, 1])
def test_a_channel_that_may_not_deliver_keeps_no_batch(ready: int) -> None:
    """With thousands of such channels, the batches would take more memory than the log's cache may."""
    node = Node()
    node.consumer(ready=ready)
    channel = node.broker.topics["t"].channels["c"]
    if ready:
        channel.pause()
    node.client().say(pub("t", b"a"))
    assert node.channel().depth == 1
    assert channel.ledger.batch is None
