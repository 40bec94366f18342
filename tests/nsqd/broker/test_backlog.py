"""A channel gets back what it had: after an empty, a seek, a deletion; and single finished messages come once more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.wire.commands import dpub, fin, mpub, req
from nsqd.broker import operator_actions
from nsqd.broker.backlog import Backlog, RedeliveryCounts, Restored, from_place, is_in, joined, without
from nsqd.broker.channel import Channel
from nsqd.broker.journal_replay import replay
from tests.support.node import Client, Node


def channel_of(node: Node, name: str = "c") -> Channel:
    return node.broker.topics["t"].channels[name]


def backlog_of(node: Node) -> Backlog:
    backlog = operator_actions.backlog(channel_of(node), 10_000)
    assert backlog is not None
    return backlog


def restore(node: Node, backlog: Backlog) -> Restored:
    result = operator_actions.restore_backlog(channel_of(node), backlog, 10_000)
    assert result is not None
    node.turn()
    return result


def redeliver(node: Node, sequences: Iterable[int]) -> RedeliveryCounts:
    result = operator_actions.redeliver(channel_of(node), sequences)
    node.turn()
    return result


def bodies(client: Client) -> list[bytes]:
    return [message.body for message in client.messages()]


def comes(node: Node) -> list[tuple[bytes, int]]:
    """Take everything that the channel delivers now, and return the bodies and attempts."""
    node.load()
    consumer = node.consumer(ready=50)
    node.load()
    return [(message.body, message.attempts) for message in consumer.messages()]


def node_with(*messages: bytes) -> Node:
    node = Node()
    node.broker.topic("t").channel("c")
    node.client().say(mpub("t", messages))
    return node


def node_with_everything() -> Node:
    """Make a node on which 0 is requeued, 1 finished, 2 in flight, 3 deferred, 4 finished, and 5 and 6 wait."""
    node = node_with(b"a", b"b", b"c", b"d", b"e", b"f", b"g")
    consumer = node.consumer(ready=5)
    a, b, _, d, e = consumer.messages()
    consumer.say(b"RDY 0\n" + fin(b.id) + fin(e.id) + req(a.id, 0) + req(d.id, 10_000))
    return node


def test_a_backlog_tells_where_each_message_is() -> None:
    node = node_with_everything()
    backlog = backlog_of(node)
    assert (backlog.next, backlog.end, backlog.count) == (5, 7, 5)
    assert (backlog.finished, sorted(backlog.requeued)) == ([], [(0, 1), (2, 1)])
    ((sequence, attempts, due_ms),) = backlog.deferred
    assert (sequence, attempts) == (3, 1)
    assert due_ms == pytest.approx(node.broker.turn.timestamp / 1_000_000 + 10_000, abs=2)


def test_a_backlog_tells_what_is_finished_ahead_of_new_messages() -> None:
    node = node_with(b"a")
    node.client().say(dpub("t", 10_000, b"late"))
    node.client().say(mpub("t", [b"b"]))
    node.broker.topics["t"].pause()
    node.client().say(mpub("t", [b"c"]))
    node.broker.topics["t"].empty()
    node.broker.topics["t"].unpause()
    backlog = backlog_of(node)
    assert (backlog.next, backlog.end, backlog.finished, backlog.count) == (0, 4, [(3, 4)], 3)
    assert [entry[0] for entry in backlog.deferred] == [1]


def test_a_backlog_is_bounded() -> None:
    node = node_with_everything()
    assert operator_actions.backlog(channel_of(node), 2) is None
    assert operator_actions.backlog(channel_of(node), 3) is not None


def test_an_empty_can_be_undone() -> None:
    node = node_with_everything()
    before = backlog_of(node)
    operator_actions.empty(channel_of(node))
    node.client().say(mpub("t", [b"new"]))
    assert restore(node, before) == Restored(restored=5, gone=0)
    assert sorted(comes(node)) == [(b"a", 2), (b"c", 2), (b"f", 1), (b"g", 1), (b"new", 1)]
    node.pass_time(9.9)
    assert node.channel().deferred_count == 1
    node.pass_time(0.2)
    assert node.channel().deferred_count == 0


def test_a_seek_forwards_can_be_undone() -> None:
    node = node_with(b"a", b"b", b"c")
    before = backlog_of(node)
    operator_actions.seek(channel_of(node), 3)
    assert restore(node, before) == Restored(3, 0)
    assert comes(node) == [(b"a", 1), (b"b", 1), (b"c", 1)]


def test_a_seek_backwards_can_be_undone() -> None:
    node = node_with_everything()
    before = backlog_of(node)
    operator_actions.seek(channel_of(node), 0)
    node.client().say(mpub("t", [b"new"]))
    assert restore(node, before) == Restored(5, 0)
    assert sorted(comes(node)) == [(b"a", 2), (b"c", 2), (b"f", 1), (b"g", 1), (b"new", 1)]


def test_a_deletion_can_be_undone() -> None:
    node = node_with_everything()
    before = backlog_of(node)
    topic = node.broker.topics["t"]
    topic.delete_channel("c")
    topic.channel("other")
    node.client().say(mpub("t", [b"new"]))
    topic.channel("c", cursor=before.end)
    assert restore(node, before) == Restored(5, 0)
    assert sorted(comes(node)) == [(b"a", 2), (b"c", 2), (b"f", 1), (b"g", 1), (b"new", 1)]


def test_what_came_for_a_deleted_last_channel_is_delivered_once() -> None:
    node = node_with(b"a")
    before = backlog_of(node)
    topic = node.broker.topics["t"]
    topic.delete_channel("c")
    node.client().say(mpub("t", [b"new"]))
    node.client().say(dpub("t", 10_000, b"late"))
    topic.channel("c", cursor=before.end)
    restore(node, before)
    assert comes(node) == [(b"a", 1), (b"new", 1)]
    assert node.channel().deferred_count == 1


def test_what_is_in_flight_stays_in_flight() -> None:
    node = node_with(b"a", b"b", b"c")
    before = backlog_of(node)
    consumer = node.consumer(ready=1)
    (a,) = consumer.messages()
    assert restore(node, before) == Restored(3, 0)
    assert (node.channel().depth, node.channel().in_flight_count) == (2, 1)
    consumer.say(fin(a.id))
    assert bodies(consumer) == [b"b"]


def test_what_was_finished_then_and_is_in_flight_now_stays_in_flight() -> None:
    node = node_with(b"a", b"b")
    consumer = node.consumer(ready=2)
    for message in consumer.messages():
        consumer.say(fin(message.id))
    before = backlog_of(node)
    operator_actions.seek(channel_of(node), 0)
    node.turn()
    a, b = consumer.messages()
    assert restore(node, before) == Restored(0, 0)
    assert node.channel().in_flight_count == 2
    consumer.say(fin(a.id) + req(b.id, 0))
    assert [(m.body, m.attempts) for m in consumer.messages()] == [(b"b", 2)]


def test_later_messages_stay_as_they_are() -> None:
    node = node_with(b"a")
    before = backlog_of(node)
    node.client().say(mpub("t", [b"b", b"c", b"d"]))
    consumer = node.consumer(ready=4)
    a, b, c, d = consumer.messages()
    consumer.say(b"RDY 0\n" + fin(a.id) + fin(b.id) + req(c.id, 0) + req(d.id, 10_000))
    restore(node, before)
    assert (node.channel().depth, node.channel().deferred_count) == (2, 1)
    consumer.say(b"RDY 5\n")
    assert sorted((m.body, m.attempts) for m in consumer.messages()) == [(b"a", 1), (b"c", 2)]


def test_messages_that_the_log_has_no_longer_are_counted_and_left_out() -> None:
    node = node_with_everything()
    before = backlog_of(node)
    operator_actions.empty(channel_of(node))
    node.broker.record_progress()
    node.store.logs["t"].first = 6
    assert restore(node, before) == Restored(restored=1, gone=4)
    assert comes(node) == [(b"g", 1)]


def test_a_backlog_of_which_all_is_gone_leaves_the_rest() -> None:
    node = node_with(b"a", b"b")
    before = backlog_of(node)
    operator_actions.empty(channel_of(node))
    node.client().say(mpub("t", [b"c"]))
    node.store.logs["t"].first = 2
    assert restore(node, before) == Restored(0, 2)
    assert comes(node) == [(b"c", 1)]


def test_the_log_keeps_what_is_needed_again() -> None:
    node = node_with(b"a", b"b", b"c")
    before = backlog_of(node)
    operator_actions.empty(channel_of(node))
    node.broker.record_progress()
    assert node.store.logs["t"].released == 3
    operator_actions.restore_backlog(channel_of(node), replace(before, next=1, requeued=[]), 10_000)
    assert node.store.logs["t"].released == 1


def test_a_restored_backlog_survives_a_crash() -> None:
    node = node_with_everything()
    before = backlog_of(node)
    operator_actions.empty(channel_of(node))
    node.client().say(mpub("t", [b"new"]))
    restore(node, before)
    node.crash()
    assert (node.channel().depth, node.channel().deferred_count) == (5, 1)
    assert sorted(comes(node)) == [(b"a", 2), (b"c", 2), (b"f", 1), (b"g", 1), (b"new", 1)]


def test_what_was_in_flight_at_a_restore_survives_a_crash() -> None:
    node = node_with(b"a", b"b", b"c")
    before = backlog_of(node)
    node.consumer(ready=2).messages()
    node.broker.record_progress()
    restore(node, before)
    node.crash()
    assert sorted(comes(node)) == [(b"a", 2), (b"b", 2), (b"c", 1)]


def test_a_crash_before_the_journal_is_written_leaves_what_was() -> None:
    node = node_with(b"a")
    before = backlog_of(node)
    operator_actions.empty(channel_of(node))
    node.turn()
    operator_actions.restore_backlog(channel_of(node), before, 10_000)
    node.crash()
    assert node.channel().depth == 0


def test_it_can_be_restored_twice() -> None:
    node = node_with_everything()
    before = backlog_of(node)
    operator_actions.empty(channel_of(node))
    restore(node, before)
    assert restore(node, before) == Restored(5, 0)
    assert sorted(comes(node)) == [(b"a", 2), (b"c", 2), (b"f", 1), (b"g", 1)]


# The journal


def state_after(*changes: tuple[object, ...]) -> tuple[int, list[tuple[int, int]], dict[int, tuple[int, int]]]:
    channel = replay([("topic", "t"), ("channel", "t", "c", 0), *changes])["t"].channels["c"]
    return channel.cursor, list(channel.skips), channel.waiting


def test_replay_keeps_what_lies_behind_the_end() -> None:
    assert state_after(
        ("defer", "t", 8, 1, 99),
        ("progress", "t", "c", 6, [0, 3, 4, 6]),  # 3 is in flight
        ("restore", "t", "c", 1, 5, [2, 3], [0, 2, 0, 2, 1, 77]),
    ) == (1, [(2, 3), (5, 6), (8, 9)], {0: (2, 0), 2: (1, 77), 8: (0, 99)})


def test_replay_of_a_backlog_ahead_of_the_cursor() -> None:
    assert state_after(
        ("defer", "t", 2, 4, 99),
        ("restore", "t", "c", 4, 4, [], [1, 1, 0]),
    ) == (4, [(4, 6)], {1: (1, 0), 4: (0, 99), 5: (0, 99)})


def test_the_example_of_replay_is_true() -> None:
    assert state_after(
        ("progress", "t", "c", 6, [1, 3, 4, 5]),
        ("progress", "t", "c", 6, [3, 4]),
        ("defer", "t", 7, 1, 99),
        ("progress", "t", "c", 9, [6, 7]),
        ("restore", "t", "c", 2, 6, [3, 4], [1, 2, 0]),
    ) == (2, [(3, 4), (6, 9)], {1: (2, 0), 7: (0, 99), 8: (1, 0)})


def test_progress_after_a_restore_is_understood() -> None:
    assert state_after(
        ("progress", "t", "c", 6, [0, 6]),
        ("restore", "t", "c", 1, 5, [2, 3], []),
        ("progress", "t", "c", 7, [3, 4]),  # 1, 4 and 6 are in flight
    ) == (7, [], {1: (1, 0), 4: (1, 0), 6: (1, 0)})


def test_a_doubt_about_what_lies_behind_stays() -> None:
    cursor, skips, waiting = state_after(
        ("progress", "t", "c", 6, [0, 6]),
        ("doubt", "t", 4),
        ("restore", "t", "c", 1, 3, [], []),
        ("progress", "t", "c", 9, [1, 3, 6, 9]),
    )
    assert (cursor, joined(skips), waiting) == (1, [(1, 4), (6, 9)], {})


# Delivering finished messages once more


def node_with_finished() -> tuple[Node, Client]:
    node = node_with(b"a", b"b", b"c", b"d")
    consumer = node.consumer(ready=3)
    for message in consumer.messages():
        consumer.say(fin(message.id))
    (d,) = consumer.messages()
    consumer.say(fin(d.id))
    return node, consumer


def test_finished_messages_come_once_more_to_this_channel_alone() -> None:
    node, consumer = node_with_finished()
    node.broker.topic("t").channel("other")
    assert redeliver(node, [1, 2]) == RedeliveryCounts(redelivered=2, waiting=0, gone=0)
    again = consumer.messages()
    assert [(m.body, m.attempts) for m in again] == [(b"b", 1), (b"c", 1)]
    assert channel_of(node, "other").depth == 0
    consumer.say(b"".join(fin(m.id) for m in again))
    assert (node.channel().depth, node.channel().in_flight_count) == (0, 0)


def test_what_waits_anyway_does_not_come_twice() -> None:
    node = node_with_everything()
    assert redeliver(node, range(7)) == RedeliveryCounts(redelivered=2, waiting=5, gone=0)
    assert redeliver(node, range(7)) == RedeliveryCounts(redelivered=0, waiting=7, gone=0)
    assert sorted(comes(node)) == [(b"a", 2), (b"b", 1), (b"e", 1), (b"f", 1), (b"g", 1)]


def test_what_was_emptied_ahead_of_the_cursor_can_come_again() -> None:
    node = node_with(b"a")
    topic = node.broker.topics["t"]
    topic.pause()
    node.client().say(mpub("t", [b"b"]))
    topic.empty()
    topic.unpause()
    assert redeliver(node, [1]) == RedeliveryCounts(1, 0, 0)
    assert sorted(comes(node)) == [(b"a", 1), (b"b", 1)]


def test_redelivery_of_what_the_log_has_no_longer_is_counted_as_gone() -> None:
    node, _ = node_with_finished()
    node.store.logs["t"].first = 2
    assert redeliver(node, range(4)) == RedeliveryCounts(2, 0, gone=2)


def test_the_log_keeps_what_comes_once_more_until_it_is_finished() -> None:
    node, consumer = node_with_finished()
    node.broker.record_progress()
    assert node.store.logs["t"].released == 4
    redeliver(node, [2])
    node.broker.record_progress()
    assert node.store.logs["t"].released == 2
    (again,) = consumer.messages()
    consumer.say(fin(again.id))
    node.broker.record_progress()
    assert node.store.logs["t"].released == 4


def test_a_redelivery_is_told_to_the_log_like_a_cursor_that_goes_back() -> None:
    """Otherwise the log could remove a segment from which it copies what was needed before."""
    node, _ = node_with_finished()
    node.broker.record_progress()
    released = []
    node.store.logs["t"].release = lambda sequence, passed=None: released.append((sequence, passed))  # type: ignore[method-assign]
    redeliver(node, [2])
    assert released == [(2, None), (2, 4)]


def test_a_redelivery_survives_a_crash() -> None:
    node, consumer = node_with_finished()
    node.broker.record_progress()
    redeliver(node, [1])
    assert len(consumer.messages()) == 1
    node.crash()
    assert comes(node) == [(b"b", 2)]


def test_a_finished_redelivery_stays_finished_after_a_crash() -> None:
    node, consumer = node_with_finished()
    redeliver(node, [1])
    (again,) = consumer.messages()
    consumer.say(fin(again.id))
    node.broker.record_progress()
    node.store.write_journal(force=True)
    node.crash()
    assert comes(node) == []


# Ranges

PLACES = st.integers(0, 30)
RANGES = st.lists(st.tuples(PLACES, PLACES)).map(lambda pairs: joined((min(p), max(p)) for p in pairs))


def held(ranges: Iterable[tuple[int, int]]) -> set[int]:
    return {sequence for start, end in ranges for sequence in range(start, end)}


@given(st.lists(st.tuples(PLACES, PLACES)))
def test_joined_ranges_hold_the_same(ranges: list[tuple[int, int]]) -> None:
    found = joined(ranges)
    assert held(found) == held(ranges)
    assert all(end < start for (_, end), (start, _) in pairwise(found))
    assert all(start < end for start, end in found)


@given(RANGES, st.sets(PLACES))
def test_ranges_without_some_hold_the_others(ranges: list[tuple[int, int]], apart: set[int]) -> None:
    found = without(ranges, apart)
    assert held(found) == held(ranges) - apart
    assert all(start < end for start, end in found)


@given(RANGES, PLACES)
def test_ranges_from_a_place_on(ranges: list[tuple[int, int]], place: int) -> None:
    assert held(from_place(ranges, place)) == {s for s in held(ranges) if s >= place}
    assert is_in(place, ranges) == (place in held(ranges))


def test_a_backlog_counts_what_waits() -> None:
    backlog = Backlog(next=5, end=10, finished=[(6, 8)], requeued=[(1, 2), (9, 1)], deferred=[(3, 1, 99), (5, 0, 99)])
    assert backlog.count == 5
    assert backlog.count_among(range(20)) == 5
    assert backlog.count_among([0, 1, 6, 8]) == 2
