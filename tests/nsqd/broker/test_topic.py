"""Topics: what is handed over to which channel, what waits, and what the log may remove."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import chain

import pytest

from nsqcommon.wire.commands import dpub, fin, mpub, pub, req
from nsqcommon.wire.headers import NONE, encode_headers
from nsqcommon.wire.log_record import KEYS
from nsqd.broker.batch import Receipt
from nsqd.broker.channel import Channel
from nsqd.broker.journal_replay import replay
from nsqd.broker.topic import PublishRefused
from tests.nsqd.fake_broker import FakeStore, make_broker
from tests.support.node import Node


def publish(node: Node, *bodies: bytes) -> None:
    node.client().say(mpub("t", bodies))


def depths(node: Node) -> dict[str, int]:
    return {channel.channel_name: channel.depth for channel in node.topic().channels}


def test_first_channel_gets_the_backlog_and_later_ones_do_not() -> None:
    node = Node()
    publish(node, b"a", b"b", b"c")
    topic = node.broker.topic("t")
    topic.channel("first")
    topic.channel("second")
    assert depths(node) == {"first": 3, "second": 0}
    publish(node, b"d")
    assert depths(node) == {"first": 4, "second": 1}


def test_without_a_channel_the_topic_waits_again() -> None:
    node = Node()
    topic = node.broker.topic("t")
    topic.channel("c")
    publish(node, b"a")
    topic.delete_channel("c")
    publish(node, b"b", b"c")
    assert node.topic().depth == 2
    topic.channel("d")
    assert depths(node) == {"d": 2}


def test_paused_topic_hands_nothing_over_until_it_is_unpaused() -> None:
    node = Node()
    client = node.consumer(ready=5)
    topic = node.broker.topic("t")
    topic.pause()
    publish(node, b"a")
    assert (node.topic().depth, node.topic().message_count, client.messages()) == (1, 1, [])
    topic.channel("later")
    topic.unpause()
    node.turn()
    assert [m.body for m in client.messages()] == [b"a"]
    assert depths(node)["later"] == 1


def test_emptying_a_topic_drops_only_what_no_channel_has() -> None:
    node = Node()
    topic = node.broker.topic("t")
    topic.channel("c")
    publish(node, b"a")
    topic.pause()
    publish(node, b"b", b"c")
    topic.empty()
    assert (node.topic().depth, depths(node)) == (0, {"c": 1})
    topic.unpause()
    publish(node, b"d")
    client = node.consumer(ready=5)
    assert [m.body for m in client.messages()] == [b"a", b"d"]


def test_singles_of_one_turn_share_a_batch_and_a_receipt() -> None:
    node = Node()
    topic = node.broker.topic("t")
    receipts = {id(topic.publish_one(b"\x00\x00\x00\x01x")) for _ in range(3)}
    node.turn()
    batch = node.store.logs["t"].batch_at(0)
    assert batch is not None
    assert (len(receipts), batch.count) == (1, 3)


def payload_of(*bodies: bytes) -> tuple[bytes, list[int]]:
    payload, offsets = b"", [0]
    for body in bodies:
        payload += len(body).to_bytes(4, "big") + body
        offsets.append(len(payload))
    return payload, offsets


def published_bases(node: Node) -> list[tuple[int, int]]:
    node.turn()
    return [(batch.base_sequence, batch.count) for batch in node.store.logs["t"].batches]


def test_small_batches_of_one_turn_share_a_batch_and_a_receipt_with_singles() -> None:
    node = Node()
    topic = node.broker.topic("t")
    receipts = [
        topic.publish(*payload_of(b"a", b"bc")),
        topic.publish_one(b"\x00\x00\x00\x01d"),
        topic.publish(payload_of(b"e", b"f", b"g")[0], range(0, 16, 5)),
    ]
    assert published_bases(node) == [(0, 6)]
    assert len(set(map(id, receipts))) == 1
    batch = node.store.logs["t"].batch_at(0)
    assert batch is not None
    assert [batch.body(sequence) for sequence in range(6)] == [b"a", b"bc", b"d", b"e", b"f", b"g"]


def test_what_a_key_a_delay_or_headers_belong_to_has_a_batch_of_its_own() -> None:
    node = Node()
    topic = node.broker.topic("t")
    topic.publish(*payload_of(b"a", b"b"))
    topic.publish(*payload_of(b"c", b"d"), key=b"k")
    topic.publish(*payload_of(b"e", b"f"), delay_ms=5)
    topic.publish(*payload_of(b"g", b"h"), headers=NONE * 2)
    topic.publish(*payload_of(b"i", b"j"))
    assert published_bases(node) == [(0, 2), (2, 2), (4, 2), (6, 2), (8, 2)]


def test_large_batches_have_a_record_of_their_own() -> None:
    node = Node(mem_queue_size=100)
    topic = node.broker.topic("t")
    topic.publish(*payload_of(b"a"))
    topic.publish(*payload_of(b"b" * 20_000, b"c"))
    topic.publish(*payload_of(b"d"))
    assert published_bases(node) == [(0, 1), (1, 2), (3, 1)]


def test_batches_share_up_to_a_mebibyte() -> None:
    node = Node(mem_queue_size=1000, mem_queue_bytes=1 << 23)
    topic = node.broker.topic("t")
    for _ in range(130):
        topic.publish(*payload_of(b"x" * 12_000, b"y" * 4_000))
    node.turn()
    sizes = [len(batch.payload) for batch in node.store.logs["t"].batches]
    assert len(sizes) == 2
    assert sum(sizes) == 130 * 16_008
    assert (1 << 20) < sizes[0] < (1 << 20) + 16_009


def test_keys_of_singles_keep_their_places_beside_small_batches() -> None:
    node = Node()
    topic = node.broker.topic("t")
    topic.publish(*payload_of(b"a", b"b"))
    topic.publish_one(b"\x00\x00\x00\x01c", key=b"k")
    topic.publish(*payload_of(b"d"))
    topic.publish_one(b"\x00\x00\x00\x01e", headers=encode_headers({"n": b"v"}))
    node.turn()
    (batch,) = node.store.logs["t"].batches
    assert (batch.key, batch.flags) == (b"\0\0\x01k\0\0", KEYS)
    assert batch.headers_between(0, 4) == NONE * 4
    assert batch.headers_between(4, 5) == encode_headers({"n": b"v"})


def test_the_log_decides_about_the_answer_to_a_repeat() -> None:
    node = Node(idempotence_window=60 * 10**9)
    topic = node.broker.topic("t")
    topic.publish_one(b"\x00\x00\x00\x01a", key=b"k")
    node.turn()
    answer = node.store.logs["t"].answer_to_repeats = Receipt()
    assert topic.publish_one(b"\x00\x00\x00\x01a", key=b"k") is answer
    assert topic.publish(*payload_of(b"a", b"b"), key=b"k") is answer
    assert topic.publish_one(b"\x00\x00\x00\x01b", key=b"l") is not answer


@pytest.mark.parametrize("keys", [[b"k1", b"k2", b"k3"], [b"k", b"k2", b"k34"], [b"k1", b"", b"k3"], [b"", b"", b"k"]])
def test_each_single_of_a_batch_has_its_own_key(keys: list[bytes]) -> None:
    node = Node()
    for key in keys:
        node.broker.topic("t").publish_one(b"\x00\x00\x00\x01c", key=key)
    node.turn()
    (batch,) = node.store.logs["t"].batches
    assert (batch.key, batch.flags) == (b"".join(bytes([len(key)]) + key for key in keys), KEYS)


def test_messages_of_small_batches_count_for_the_place_of_the_keys() -> None:
    node = Node(mem_queue_size=100_000)
    topic = node.broker.topic("t")
    small = payload_of(*[b"x"] * 3_000)
    for number in range(20):
        topic.publish(*small)
        topic.publish_one(b"\x00\x00\x00\x01y", key=b"%d" % number)
    node.turn()
    assert all(len(batch.key) < 1 << 16 for batch in node.store.logs["t"].batches)
    assert node.store.logs["t"].tail == 20 * 3_001


def test_a_failed_write_fails_all_that_share_a_batch() -> None:
    node = Node()
    first, second = node.client(), node.client()
    node.store.error = "no space left on device"
    first.handler.receive(mpub("t", [b"a", b"b"]), node.now)
    second.handler.receive(mpub("t", [b"c"]) + pub("t", b"d"), node.now)
    node.turn()
    assert b"E_MPUB_FAILED" in first.hear()
    assert b"E_MPUB_FAILED" in second.hear()
    assert node.store.logs["t"].tail == 0


def test_what_is_published_in_one_turn_keeps_its_order() -> None:
    node = Node()
    client = node.consumer(ready=10)
    node.client().say(pub("t", b"a") + mpub("t", [b"b", b"c"]) + pub("t", b"d") + pub("t", b"e"))
    assert [m.body for m in client.messages()] == [b"a", b"b", b"c", b"d", b"e"]


def test_deleted_topic_refuses_what_was_published_in_the_same_turn() -> None:
    node = Node()
    topic = node.broker.topic("t")
    receipt = topic.publish_one(b"\x00\x00\x00\x01x")
    assert node.broker.delete_topic("t")
    assert receipt.error == "exiting"
    with pytest.raises(PublishRefused, match="exiting"):
        topic.publish_one(b"\x00\x00\x00\x01x")
    assert not node.broker.delete_topic("t")


def test_ephemeral_topic_that_is_full_drops_and_says_ok() -> None:
    node = Node(mem_queue_size=3)
    said = pub("t#ephemeral", b"0") * 2 + mpub("t#ephemeral", [b"1", b"22"]) + pub("t#ephemeral", b"3")
    assert node.client().answers(said) == [b"OK"] * 4
    told = node.topic("t#ephemeral")
    assert (told.depth, told.message_count, told.message_bytes) == (3, 5, 6)
    client = node.consumer("t#ephemeral", "c", ready=10)
    assert [m.body for m in client.messages()] == [b"0", b"0", b"1"]


def test_ephemeral_topic_without_memory_and_channel_keeps_nothing() -> None:
    node = Node(mem_queue_size=0)
    assert node.client().answers(pub("t#ephemeral", b"x")) == [b"OK"]
    told = node.topic("t#ephemeral")
    assert (told.depth, told.message_count) == (0, 1)


def test_emptied_ephemeral_topic_has_room_again() -> None:
    node = Node(mem_queue_size=2)
    publisher = node.client()
    publisher.say(mpub("t#ephemeral", [b"a", b"b"]))
    node.broker.topic("t#ephemeral").empty()
    publisher.say(mpub("t#ephemeral", [b"c", b"d"]))
    client = node.consumer("t#ephemeral", "c", ready=10)
    assert [m.body for m in client.messages()] == [b"c", b"d"]


def test_log_of_an_ephemeral_topic_lets_go_of_what_channels_have() -> None:
    node = Node()
    node.broker.topic("t#ephemeral").channel("c")
    node.client().say(mpub("t#ephemeral", [b"a", b"b"]))
    assert node.store.logs["t#ephemeral"].released == 2
    client = node.consumer("t#ephemeral", "c", ready=10)
    assert [m.body for m in client.messages()] == [b"a", b"b"]


# What the log may remove


def test_low_water_is_the_oldest_thing_that_somebody_needs() -> None:
    node = Node()
    client = node.consumer(ready=10)
    publish(node, b"a", b"b", b"c")
    topic = node.broker.topic("t")
    first, second, third = client.messages()
    assert topic.low_watermark() == 0
    client.say(fin(first.id) + fin(second.id) + fin(third.id))
    assert topic.low_watermark() == 3


def test_low_water_does_not_wait_for_ephemeral_channels() -> None:
    node = Node()
    client = node.consumer(ready=10)
    node.broker.topic("t").channel("e#ephemeral")
    publish(node, b"a")
    client.say(b"".join(fin(m.id) for m in client.messages()))
    assert node.broker.topic("t").low_watermark() == 1


def test_low_water_never_passes_what_waits_for_a_channel() -> None:
    node = Node()
    publish(node, b"a")
    assert node.broker.topic("t").low_watermark() == 0


def test_progress_lets_the_log_go() -> None:
    node = Node()
    client = node.consumer(ready=10)
    publish(node, b"a", b"b")
    client.say(b"".join(fin(m.id) for m in client.messages()))
    node.broker.record_progress()
    assert node.store.logs["t"].released == 2


# Deferral and crashes


def test_clock_of_a_deferral_starts_at_the_hand_over() -> None:
    node = Node()
    node.client().say(dpub("t", 5000, b"x"))
    node.pass_time(20)
    client = node.consumer()
    node.pass_time(4.9)
    assert client.messages() == []
    node.pass_time(0.2)
    assert [m.body for m in client.messages()] == [b"x"]


def test_deferral_keeps_its_time_across_a_crash() -> None:
    node = Node()
    node.broker.topic("t").channel("c")
    node.client().say(dpub("t", 5000, b"x"))
    node.now += 3
    node.crash()
    assert (node.channel().deferred_count, node.channel().depth) == (1, 0)
    client = node.consumer()
    node.pass_time(1.9)
    assert client.messages() == []
    node.pass_time(0.2)
    node.load()
    assert [m.body for m in client.messages()] == [b"x"]


def test_clock_that_is_set_forward_makes_nothing_early() -> None:
    node = Node()
    client = node.consumer()
    client.ask(dpub("t", 5000, b"x"))
    node.broker.turn.timestamp += 3600 * 10**9
    node.broker.expire()
    node.turn()
    assert client.messages() == []


def test_a_second_crash_leaves_alone_what_waits_for_a_channel() -> None:
    node = Node()
    node.consumer("t", "e#ephemeral")
    node.crash()
    publish(node, b"a")
    node.crash()
    assert node.topic().depth == 1


def test_topic_that_only_its_log_knows_has_its_backlog() -> None:
    node = Node()
    publish(node, b"a", b"b")
    node.store.journal.clear()
    node.crash()
    assert (node.topic().depth, node.topic().channels) == (2, ())


def test_topic_that_only_the_journal_knows_begins_anew() -> None:
    node = Node()
    client = node.consumer(ready=1)
    publish(node, b"a")
    client.say(b"".join(fin(m.id) for m in client.messages()))
    node.broker.record_progress()
    node.store.write_journal(force=True)
    del node.store.logs["t"]
    node.crash()
    client = node.consumer(ready=1)
    publish(node, b"b")
    assert [m.body for m in client.messages()] == [b"b"]


def test_batch_that_was_not_written_leaves_no_trace_in_the_journal() -> None:
    node = Node()
    node.broker.topic("t").channel("c")
    node.store.error = "no space left on device"
    node.client().say(dpub("t", 5000, b"lost"))
    node.store.error = None
    publish(node, b"a")
    node.crash()
    assert (node.channel().depth, node.channel().deferred_count) == (1, 0)


def test_nothing_of_what_is_ephemeral_reaches_the_journal() -> None:
    node = Node()
    client = node.consumer("t#ephemeral", "c")
    node.client().say(pub("t#ephemeral", b"x"))
    client.say(b"".join(fin(m.id) for m in client.messages()))
    node.broker.record_progress()
    node.store.write_journal(force=True)
    assert node.store.journal == []


def test_topology_names_what_is_durable() -> None:
    node = Node()
    topic = node.broker.topic("t")
    topic.channel("c").pause()
    topic.channel("e#ephemeral")
    node.broker.topic("x#ephemeral").channel("c")
    assert node.broker.topology() == {"t": {"paused": False, "channels": {"c": {"paused": True}}}}


@pytest.mark.parametrize("step", [Channel.pause, Channel.unpause])
def test_topology_json_is_due_when_a_channel_is_paused_or_unpaused(step: Callable[[Channel], None]) -> None:
    node = Node()
    channel = node.broker.topic("t").channel("c")
    if step is Channel.unpause:
        channel.pause()
    node.turn()
    node.broker.turn.shape_unsaved = False  # it was written
    step(channel)
    node.turn()
    assert node.broker.turn.shape_unsaved


def test_emptying_a_topic_without_channels_lets_go_of_its_log() -> None:
    node = Node()
    node.client().ask(pub("t", b"x"))
    node.broker.topics["t"].empty()
    node.broker.record_progress()
    assert node.store.logs["t"].released == 1


def test_what_was_finished_before_a_crash_is_let_go_after_it() -> None:
    node = Node()
    consumer = node.consumer()
    consumer.hear()
    node.client().ask(pub("t", b"x"))
    consumer.say(fin(consumer.messages()[0].id))
    node.broker.record_progress()
    node.store.write_journal(force=True)
    node.store.logs["t"].released = 0
    node.crash()
    assert node.store.logs["t"].released == 1


# Retention


def test_topic_without_channels_keeps_what_is_not_outdated() -> None:
    node = Node()
    publish(node, b"a", b"b", b"c")
    node.store.logs["t"].outdated_before = 2
    notes: list[str] = []
    node.broker.turn.note = notes.append
    node.broker.apply_retention(["t", "unknown"])
    node.turn()
    topic = node.broker.topic("t")
    assert (topic.high_watermark, topic.depth, topic.outdated_count) == (2, 1, 2)
    assert node.store.logs["t"].released == 2
    assert notes == ["TOPIC(t): retention drops 2 messages that no channel got, 2 since the start"]
    assert node.store.journal[-1] == ("freeze", "t", 2)
    node.crash()
    client = node.consumer(ready=5)
    node.load()
    assert [m.body for m in client.messages()] == [b"c"]


def test_what_time_lets_go_is_told_to_be_finished() -> None:
    node = Node()
    publish(node, b"a", b"b")
    client = node.consumer(ready=5)
    client.say(b"".join(fin(message.id) for message in client.messages()))
    node.broker.apply_retention(["t"])
    assert node.store.logs["t"].released == 2
    node.store.write_journal(force=True)
    assert replay(node.store.journal)["t"].channels["c"].cursor == 2


def test_outdated_deferred_messages_are_dropped_with_the_others() -> None:
    node = Node()
    publisher = node.client()
    publisher.say(dpub("t", 50, b"a") + dpub("t", 60, b"b"))
    node.store.logs["t"].outdated_before = 1
    node.broker.apply_retention(["t"])
    node.turn()
    node.crash()
    node.store.logs["t"].unlink()
    client = node.consumer(ready=5)
    assert node.channel().deferred_count == 1
    node.pass_time(0.1)
    node.load()
    assert [m.body for m in client.messages()] == [b"b"]


def test_nothing_is_outdated_that_a_channel_waits_for() -> None:
    node = Node()
    node.broker.topic("t").channel("c")
    node.broker.topic("t").pause()
    publish(node, b"a", b"b")
    node.store.logs["t"].outdated_before = 2
    node.broker.apply_retention(["t"])
    topic = node.broker.topic("t")
    assert (topic.high_watermark, topic.outdated_count) == (0, 0)


# What waits behind all cursors


def test_exceptions_are_all_that_waits_or_is_in_flight() -> None:
    node = Node()
    client = node.consumer(ready=10)
    publish(node, b"a", b"b", b"c", b"d", b"e")
    first, second, third, *_ = client.messages()
    client.say(fin(first.id) + req(second.id, 60_000) + b"RDY 0\n" + req(third.id, 0))
    topic = node.broker.topic("t")
    assert topic.passed() == 5
    assert sorted(chain.from_iterable(topic.exceptions())) == [1, 2, 3, 4]


def test_exceptions_are_as_of_the_moment_they_were_asked_for() -> None:
    node = Node()
    client = node.consumer(ready=10)
    publish(node, b"a", b"b")
    found = node.broker.topic("t").exceptions()
    client.say(b"".join(fin(message.id) for message in client.messages()))
    assert sorted(chain.from_iterable(found)) == [0, 1]


def test_what_is_no_exception_any_more_is_in_the_journal_before() -> None:
    node = Node()
    client = node.consumer(ready=10)
    publish(node, b"a")
    client.say(fin(client.messages()[0].id))
    assert list(node.broker.topic("t").exceptions()) == []
    assert node.store.unwritten[-1] == ("progress", "t", "c", 1, [0, 1])


def test_ephemeral_channels_have_no_say_in_what_is_passed() -> None:
    node = Node()
    node.broker.topic("t").channel("c#ephemeral")
    publish(node, b"a")
    topic = node.broker.topic("t")
    assert topic.passed() == 1
    assert list(topic.exceptions()) == []


def test_what_waits_and_is_nowhere_is_counted_when_the_broker_starts() -> None:
    node = Node()
    client = node.consumer(ready=10)
    publish(node, b"a")
    publish(node, b"b")
    client.say(b"".join(req(message.id, 60_000) for message in client.messages()))
    store = node.store.crash()
    store.logs["t"].first = 1
    broker = make_broker(FakeStore())
    broker.restore(replay(store.journal), dict(store.logs))
    assert broker.turn.lost == {"t": 1}
    assert len(broker.topic("t").channel("c").ledger.deferred) == 1


def of_a_topic(node: Node) -> None:
    client = node.client()
    client.say(dpub("t", 60_000, b"x") * 20_000)
    client.go_on()


def of_a_channel(node: Node) -> None:
    node.broker.topic("t").channel("c")
    of_a_topic(node)


@pytest.mark.parametrize("defer", [of_a_topic, of_a_channel])
def test_what_is_deferred_is_told_to_a_new_journal_bit_by_bit(defer: Callable[[Node], None]) -> None:
    """A million at once would keep other clients waiting for half a second, on either core."""
    node = Node()
    defer(node)
    before = sys.getallocatedblocks()
    changes = node.broker.topic("t").snapshot_changes()
    for _ in range(5):
        next(changes)
    assert sys.getallocatedblocks() - before < 10_000
    assert sum(1 for _ in changes) > 0
