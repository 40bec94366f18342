"""Bounds of topics and channels: who is refused, what is dropped, and what only counts."""

from __future__ import annotations

import pytest

from nsqcommon.wire.headers import encode_headers
from nsqd.broker.broker import MOST_POSTPONED
from nsqd.broker.limits import Headroom, Usage, excess, excess_with
from nsqd.broker.rules import ChannelRules, Overflow, TopicRules
from nsqd.broker.topic import PublishRefused
from nsqd.log.record import size_of
from tests.nsqd.broker.bounded_node import BURY, DROP, SIZE, Bounded, buried

BOUNDS = [
    (ChannelRules(max_messages=3), None, "channel t:c is full (max_messages = 3)"),
    (ChannelRules(max_bytes=3 * SIZE), None, f"channel t:c is full (max_bytes = {3 * SIZE})"),
    (None, TopicRules(max_messages=3), "topic t is full (max_messages = 3)"),
    (None, TopicRules(max_bytes=3 * SIZE), f"topic t is full (max_bytes = {3 * SIZE})"),
    (ChannelRules(max_messages=4), TopicRules(max_messages=3), "topic t is full (max_messages = 3)"),
]


@pytest.mark.parametrize(("of_channels", "of_topics", "words"), BOUNDS)
def test_a_publish_beyond_a_bound_is_refused_with_its_words(
    of_channels: ChannelRules | None, of_topics: TopicRules | None, words: str
) -> None:
    it = Bounded(of_channels, of_topics)
    it.topic.channel("c")
    it.publish(2)
    with pytest.raises(PublishRefused) as caught:
        it.publish(2)
    assert (caught.value.cause, caught.value.is_full) == (words, True)
    it.publish()
    with pytest.raises(PublishRefused):
        it.publish()
    assert it.waiting() == [10, 11, 14]


def test_the_bound_holds_within_a_turn() -> None:
    it = Bounded(of_topics=TopicRules(max_messages=3))
    it.topic.channel("c")
    for _ in range(3):
        it.topic.publish_one(b"\0\0\0\2xx")
    for _ in range(2):
        with pytest.raises(PublishRefused):
            it.topic.publish_one(b"\0\0\0\2xx")
    with pytest.raises(PublishRefused):
        it.topic.publish_one(b"\0\0\0\2xx", 1000)
    it.node.turn()
    assert it.topic.policy_counts == {"max_messages, rejected": 3}
    assert it.node.channel().depth == 3


@pytest.mark.parametrize("rules", [TopicRules(max_messages=3), TopicRules(max_bytes=3 * SIZE)])
def test_the_bound_holds_within_a_turn_in_which_a_channel_is_made(rules: TopicRules) -> None:
    it = Bounded(of_topics=rules)
    it.topic.channel("c")
    it.topic.publish_one(b"\0\0\0\2xx")
    it.topic.publish(b"\0\0\0\2xx", [0, SIZE])
    it.topic.channel("d")
    it.topic.publish_one(b"\0\0\0\2xx")
    with pytest.raises(PublishRefused):
        it.topic.publish_one(b"\0\0\0\2xx")


def test_consuming_makes_room() -> None:
    it = Bounded(ChannelRules(max_messages=2))
    consumer = it.node.consumer(ready=2)
    it.publish(2)
    messages = consumer.messages()
    it.publish(2)  # what is in flight does not wait
    with pytest.raises(PublishRefused):
        it.publish()
    consumer.say(b"".join(b"FIN %b\n" % message.id for message in messages))
    it.publish(2)


def test_what_is_deferred_waits_too() -> None:
    it = Bounded(ChannelRules(max_messages=2))
    it.topic.channel("c")
    it.publish(2, delay_ms=60_000)
    with pytest.raises(PublishRefused):
        it.publish()


def test_a_topic_without_a_channel_and_a_paused_one_are_bounded() -> None:
    it = Bounded(ChannelRules(max_messages=2), TopicRules(max_messages=3))
    it.publish(3)
    with pytest.raises(PublishRefused):
        it.publish()
    it.topic.channel("c")  # which gets the three
    it.topic.pause()
    it.follow(ChannelRules(max_messages=4))
    it.publish()
    with pytest.raises(PublishRefused, match="channel t:c is full"):
        it.publish()


def test_a_topic_holds_what_its_hindmost_channel_has_not_passed() -> None:
    it = Bounded(of_topics=TopicRules(max_messages=3))
    it.topic.channel("slow")
    consumer = it.node.consumer(ready=10)
    it.publish(3)
    consumer.say(b"".join(b"FIN %b\n" % message.id for message in consumer.messages()))
    with pytest.raises(PublishRefused):
        it.publish()
    it.topic.delete_channel("slow")
    it.node.turn()
    it.publish(3)


def test_a_key_of_a_refused_publish_is_free_and_a_repeat_is_not_refused() -> None:
    it = Bounded(of_topics=TopicRules(max_messages=2))
    it.topic.channel("c")
    it.publish(2, key=b"a")
    it.publish(2, key=b"a")  # it was published already
    with pytest.raises(PublishRefused):
        it.publish(key=b"b")
    it.follow()
    it.publish(key=b"b")
    assert it.node.channel().depth == 3


def test_a_bound_comes_and_goes_with_the_file_and_holds_after_a_crash() -> None:
    it = Bounded()
    it.topic.channel("c")
    it.publish(5)
    it.follow(ChannelRules(max_messages=5))
    with pytest.raises(PublishRefused):
        it.publish()
    it.node.crash()
    it.topic = it.node.broker.topics["t"]
    with pytest.raises(PublishRefused):
        it.publish()
    it.follow()
    it.publish()


def test_a_deleted_topic_is_exiting_whatever_its_bounds() -> None:
    it = Bounded(of_topics=TopicRules(max_messages=1))
    it.node.broker.delete_topic("t")
    with pytest.raises(PublishRefused, match="exiting"):
        it.topic.publish_one(b"\0\0\0\2xx")


@pytest.mark.parametrize("rules", [
    ChannelRules(max_messages=3, overflow=DROP),
    ChannelRules(max_bytes=3 * SIZE, overflow=DROP),
])  # fmt: skip
def test_a_channel_drops_its_oldest_messages(rules: ChannelRules) -> None:
    it = Bounded(rules)
    it.topic.channel("c")
    it.publish(2)
    it.publish(3)
    assert it.node.channel().policy_counts == {"overflow, dropped": 2}
    it.node.pass_time(1.0)
    it.node.broker.record_progress()
    it.node.turn()
    it.node.crash()
    assert it.waiting() == [12, 13, 14]


@pytest.mark.parametrize("rules", [
    TopicRules(max_messages=3, overflow=DROP),
    TopicRules(max_bytes=3 * SIZE, overflow=DROP),
])  # fmt: skip
def test_a_topic_drops_what_its_hindmost_channels_have_not_passed(rules: TopicRules) -> None:
    it = Bounded(of_topics=rules)
    it.topic.channel("a")
    it.publish(2)
    it.topic.channel("b")
    it.publish(3)
    counts = {name: it.node.channel(channel=name).policy_counts.get("overflow, dropped", 0) for name in "ab"}
    assert (counts, it.node.topic().policy_counts) == ({"a": 2, "b": 0}, {})
    assert (it.waiting("a"), it.waiting("b")) == ([12, 13, 14], [12, 13, 14])


def test_a_topic_drops_what_no_channel_got() -> None:
    it = Bounded(of_topics=TopicRules(max_messages=3, overflow=DROP))
    it.publish(2)
    it.publish(3)
    assert (it.node.topic().depth, it.node.topic().policy_counts) == (3, {"overflow, dropped": 2})
    it.node.crash()
    assert it.waiting() == [12, 13, 14]


def test_a_paused_topic_drops_for_its_channels_too() -> None:
    it = Bounded(of_topics=TopicRules(max_messages=3, overflow=DROP))
    it.topic.channel("c")
    it.publish(1)
    it.topic.pause()
    it.publish(4)
    assert it.node.channel().depth + it.node.topic().depth == 3
    it.topic.unpause()
    it.node.turn()
    assert it.waiting() == [12, 13, 14]


def test_what_a_paused_topic_was_emptied_of_makes_room() -> None:
    it = Bounded(of_topics=TopicRules(max_messages=3))
    it.topic.channel("c")
    it.topic.pause()
    it.publish(3)
    it.topic.empty()
    it.publish(3)
    it.topic.unpause()
    assert it.waiting() == [13, 14, 15]


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_rest_of_a_deferred_batch_keeps_its_delay_when_a_topic_drops_the_beginning(is_killed: bool) -> None:
    it = Bounded(of_topics=TopicRules(max_messages=3, overflow=DROP))
    it.publish(3, delay_ms=60_000)
    it.publish(1)
    it.node.pass_time(50.0)
    if is_killed:
        it.node.crash()
    topic = it.node.broker.topic("t")
    topic.channel("c")  # the delay begins now
    it.node.turn()
    it.node.pass_time(50.0)
    assert it.waiting() == [13]
    it.node.pass_time(10.1)
    it.node.load()
    assert it.node.channel().in_flight_count == 3


def test_a_new_file_does_not_drop_by_a_bound_that_it_takes_away() -> None:
    it = Bounded(ChannelRules(max_messages=2, overflow=DROP))
    it.topic.channel("c")
    it.publish(2)
    channel = it.node.broker.topics["t"].channels["c"]
    consumer = it.node.consumer(ready=1)
    it.publish(1)
    consumer.say(b"RDY 0\nREQ %b 0\n" % consumer.messages()[0].id)  # now three wait, until the next publish
    it.follow()
    assert (channel.depth, channel.policy_counts) == (3, {})


def test_a_new_bound_drops_at_once() -> None:
    it = Bounded()
    it.topic.channel("c")
    it.publish(5)
    it.follow(ChannelRules(max_messages=2, overflow=DROP))
    assert it.waiting() == [13, 14]


@pytest.mark.parametrize(("of_channels", "of_topics", "counted"), [
    (ChannelRules(max_messages=3), None, {"max_messages, dry run": 2}),
    (None, TopicRules(max_bytes=3 * SIZE), {"max_bytes, dry run": 2}),
    (None, TopicRules(max_messages=3, overflow=DROP), {"overflow, dry run": 2}),
])  # fmt: skip
def test_dry_run_bounds_count_and_do_nothing(
    of_channels: ChannelRules | None, of_topics: TopicRules | None, counted: dict[str, int]
) -> None:
    dry = frozenset({"max_messages", "max_bytes"})
    it = Bounded(
        ChannelRules(max_messages=of_channels.max_messages, dry=dry) if of_channels else None,
        TopicRules(
            max_messages=of_topics.max_messages, max_bytes=of_topics.max_bytes, overflow=of_topics.overflow, dry=dry
        )
        if of_topics
        else None,
    )
    it.topic.channel("c")
    for _ in range(5):
        it.publish()
    assert it.node.topic().policy_counts == counted
    assert it.waiting() == [10, 11, 12, 13, 14]


@pytest.mark.parametrize(("rules", "held", "beyond"), [
    (TopicRules(max_messages=10), Usage(10, 0), 0),
    (TopicRules(max_messages=10), Usage(13, 0), 3),
    (TopicRules(max_bytes=100), Usage(10, 100), 0),
    (TopicRules(max_bytes=100), Usage(10, 101), 1),
    (TopicRules(max_bytes=5), Usage(1, 100), 1),
    (TopicRules(max_messages=9, max_bytes=100), Usage(10, 200), 5),
    (TopicRules(), Usage(10, 200), 0),
])  # fmt: skip
def test_excess(rules: TopicRules, held: Usage, beyond: int) -> None:
    assert excess(rules, held) == beyond


def test_room_names_the_nearest_bound() -> None:
    room = Headroom()
    assert room.take(10**9, 10**12) is None
    room.narrow("a", TopicRules(max_messages=10, max_bytes=100), Usage(3, 90))
    room.narrow("b", TopicRules(max_messages=9), Usage(5, 0))
    room.narrow("c", TopicRules(max_messages=1, overflow=DROP), Usage(5, 0))
    assert room.take(5, 1) == ("max_messages", "b is full (max_messages = 9)")
    assert room.take(4, 11) == ("max_bytes", "a is full (max_bytes = 100)")
    assert room.take(4, 10) is None
    assert room.take(1, 0) == ("max_messages", "b is full (max_messages = 9)")


def test_a_channel_buries_its_oldest_messages() -> None:
    it = Bounded(BURY)
    it.topic.channel("c")
    it.publish(2)
    it.publish(3)
    assert (it.node.channel().depth, buried(it)) == (3, [(0, 0), (1, 0)])
    assert it.node.channel().policy_counts["overflow, buried"] == 2
    it.node.crash()
    assert buried(it) == [(0, 0), (1, 0)]
    assert it.waiting() == [12, 13, 14]


def test_what_has_to_be_read_from_disk_is_buried_when_it_was_read() -> None:
    it = Bounded()
    it.topic.channel("c")
    it.publish(5)
    it.node.store.logs["t"].cold_before = 5
    it.follow(BURY)
    assert buried(it) == []
    it.node.load()
    it.node.pass_time(0.1)
    assert (it.node.channel().depth, buried(it)) == (3, [(0, 0), (1, 0)])


def test_no_turns_are_spent_while_very_many_messages_that_are_too_much_are_read_from_disk() -> None:
    it = Bounded()
    it.topic.channel("c")
    for _ in range(30):
        it.publish(90)
    it.node.store.logs["t"].cold_before = 2_700
    it.follow(BURY)
    assert it.node.broker.turn.alarms.next > it.node.now
    for _ in range(60):
        it.node.load()
        it.node.pass_time(0.1)
    assert (it.node.channel().depth, len(buried(it))) == (3, 2_697)


def test_nothing_is_asked_of_the_log_beyond_its_end_when_messages_are_missing() -> None:
    it = Bounded()
    it.topic.channel("c")
    it.publish(5)
    it.node.store.logs["t"].first = 4
    it.follow(BURY)
    assert (it.node.channel().depth, buried(it)) == (0, [(4, 0)])


def test_a_channel_in_memory_drops_what_it_would_bury() -> None:
    it = Bounded(ChannelRules(max_messages=3, overflow=Overflow.BURY))
    it.topic.channel("c#ephemeral")
    it.publish(5)
    assert it.node.channel(channel="c#ephemeral").policy_counts == {"overflow, dropped": 2}


def test_a_full_channel_that_is_deleted_refuses_nobody_even_in_the_same_turn() -> None:
    it = Bounded(ChannelRules(max_messages=3))
    it.topic.channel("c")
    it.publish(2)
    payload = b"\0\0\0\2xx"
    it.topic.publish(payload, (0, SIZE))
    with pytest.raises(PublishRefused):
        it.topic.publish(payload, (0, SIZE))
    it.topic.delete_channel("c")
    it.topic.publish(payload, (0, SIZE))
    it.node.turn()
    assert it.topic.log.tail == 4


# Waiting for files to be removed


def test_the_oldest_messages_go_before_others_are_written() -> None:
    it = Bounded(ChannelRules(max_bytes=500, overflow=DROP))
    it.topic.channel("c")
    it.publish(50)
    it.log.waits = True
    it.publish(50)
    assert (it.log.tail, it.node.channel().depth) == (50, 22), "the second 50 need 300 bytes and the front of a record"


def test_publishes_wait_until_files_are_removed() -> None:
    it = Bounded(ChannelRules(max_messages=3, overflow=DROP))
    it.topic.channel("c")
    it.log.waits = True
    receipts = [it.topic.publish_one(b"\0\0\0\2ab"), it.topic.publish_one(b"\0\0\0\2cd", 3_600_000)]
    it.node.turn()
    receipts.append(it.topic.publish(b"\0\0\0\2ef", (0, 6)))
    it.node.turn()
    assert it.log.tail == 0
    assert not any(receipt.settled for receipt in receipts)
    it.log.waits = False
    it.node.turn()
    assert it.log.tail == 3
    assert [receipt.settled for receipt in receipts] == [True] * 3
    assert (it.node.channel().depth, it.node.channel().deferred_count) == (2, 1)


def test_other_topics_do_not_wait() -> None:
    it = Bounded(ChannelRules(max_messages=3, overflow=DROP))
    it.topic.channel("c")
    it.log.waits = True
    it.topic.publish_one(b"\0\0\0\2ab")
    it.node.broker.topic("other").publish_one(b"\0\0\0\2ab")
    it.node.turn()
    assert (it.log.tail, it.node.store.logs["other"].tail) == (0, 1)


def test_without_a_bound_that_drops_nothing_waits() -> None:
    it = Bounded(ChannelRules(max_messages=3))
    it.topic.channel("c")
    it.log.waits = True
    it.publish(3)
    assert it.log.tail == 3


def test_nothing_waits_for_a_dry_run_bound() -> None:
    it = Bounded(ChannelRules(max_messages=3, overflow=DROP, dry=frozenset({"max_messages"})))
    it.topic.channel("c")
    it.log.waits = True
    it.publish(3)
    assert it.log.tail == 3


def test_a_bound_that_ends_lets_what_waits_go_on() -> None:
    it = Bounded(ChannelRules(max_messages=3, overflow=DROP))
    it.topic.channel("c")
    it.log.waits = True
    it.publish(2)
    it.follow()
    assert it.log.tail == 2


def test_publishes_go_on_if_a_removal_takes_very_long() -> None:
    it = Bounded(ChannelRules(max_messages=3, overflow=DROP))
    it.topic.channel("c")
    it.log.waits = True
    it.publish(2)
    it.node.pass_time(5)
    assert it.log.tail == 0
    it.node.pass_time(6)
    assert it.log.tail == 2


def test_what_waits_in_memory_has_a_bound() -> None:
    it = Bounded(ChannelRules(max_messages=3, overflow=DROP))
    it.topic.channel("c")
    it.log.waits = True
    size = MOST_POSTPONED + 1
    receipt = it.topic.publish(size.to_bytes(4, "big") + bytes(size), (0, 4 + size))
    it.node.turn()
    assert receipt.error is not None
    assert "topic t is full" in receipt.error


def test_what_waits_goes_with_its_topic() -> None:
    it = Bounded(ChannelRules(max_messages=3, overflow=DROP))
    it.topic.channel("c")
    it.log.waits = True
    receipt = it.topic.publish_one(b"\0\0\0\2ab")
    it.node.turn()
    it.node.broker.delete_topic("t")
    it.node.turn()
    assert receipt.error == "exiting"


@pytest.mark.parametrize("key", [b"", b"k" * 20])
@pytest.mark.parametrize("headers", [b"", encode_headers({"a": "b"})])
def test_room_is_made_for_all_bytes_that_the_log_is_going_to_take(key: bytes, headers: bytes) -> None:
    it = Bounded(ChannelRules(max_messages=3, overflow=DROP))
    it.topic.publish(b"\0\0\0\2ab", (0, 6), 3_600_000, b"other")
    it.topic.publish_one(b"\0\0\0\2ab", key=key, headers=headers)
    for _ in range(1000):  # without a key or headers, for which the record has a place all the same
        it.topic.publish_one(b"\0\0\0\2ab")
    coming = it.topic.buffered()
    it.node.turn()
    taken = sum(map(size_of, it.log.batches))
    assert taken <= coming.size < taken + 100
    assert coming.messages == it.log.tail == 1002


def test_small_messages_before_large_ones_make_room_for_all_that_comes() -> None:
    held, coming = Usage(1000, 1_000_000), Usage(1, 900_000)
    assert excess_with(ChannelRules(max_bytes=1_000_000), held, coming) == 900
    assert excess_with(ChannelRules(max_bytes=1_900_000), held, coming) == 0
    assert excess_with(ChannelRules(max_messages=900), held, coming) == 0
    assert excess_with(ChannelRules(max_bytes=1), held, coming) == 1000
