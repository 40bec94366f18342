"""Messages that fail: they are buried, kept, and come back to the one channel that buried them."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from pyroaring import BitMap64

from nsqcommon.wire.commands import fin, mpub, req
from nsqd.broker import operator_actions
from nsqd.broker.buried import BuriedMessage, Note
from nsqd.broker.buried_queue import BuriedSelection, KickUndo, Verb
from nsqd.broker.channel import NOT_ON_DISK
from nsqd.broker.in_flight import NOT_IN_FLIGHT, NOT_OWNER
from nsqd.broker.journal_replay import replay
from nsqd.broker.operator_actions import CancelOutcome
from tests.nsqd.broker.burying import bury, channel_of, comes, consumer_of, node_with, node_with_two_buried, take
from tests.support.fake_store import changes_in
from tests.support.node import Node

LATER = 1 << 47  # milliseconds: everything was buried before


def test_a_buried_message_is_delivered_to_nobody_and_counted() -> None:
    node = node_with_two_buried()
    shown = node.channel()
    assert (shown.depth, shown.in_flight_count, shown.buried_count) == (1, 0, 2)
    assert comes(node) == [(b"d", 1)]


def test_its_attempts_time_reason_and_client_are_kept() -> None:
    node = node_with_two_buried()
    first, second = channel_of(node).buried_queue.buried.from_place(0)
    assert (first.sequence, first.attempts, first.note.reason) == (0, 1, "bad")
    assert first.buried_at == node.broker.turn.timestamp // 1_000_000
    assert first.note.who == "127.0.0.1"
    assert second.note.reason == "worse"


@pytest.mark.parametrize(
    ("client_id", "kept"),
    [
        ("w" * 4_000, "w" * 128),
        ("\u00e9" * 100, "\u00e9" * 64),
        ("w" + "\u00e9" * 100, "w" + "\u00e9" * 63),  # the 128th byte is the first half of a character
        ("\u00e9" * 64, "\u00e9" * 64),
    ],
    ids=["ASCII", "two bytes each", "a character across the border", "just short enough"],
)
def test_a_client_is_named_with_up_to_128_bytes_in_whichever_way_it_buries(client_id: str, kept: str) -> None:
    node = node_with(b"buried", b"requeued", b"timed out", max_attempts=1)
    identify = json.dumps({"client_id": client_id}).encode()
    consumer = node.client(b"  V2IDENTIFY\n" + len(identify).to_bytes(4, "big") + identify)
    consumer.say(b"SUB t c\nRDY 3\n")
    buried, requeued, _ = consumer.messages()
    assert bury(node, consumer, buried.id) is None
    consumer.say(req(requeued.id, 0))
    assert node.channel().buried_count == 2
    consumer.say(b"RDY 0\n")
    node.pass_time(61.0)
    assert [it.note.who for it in channel_of(node).buried_queue.buried.from_place(0)] == [kept] * 3
    node.crash()
    assert [it.note.who for it in channel_of(node).buried_queue.buried.from_place(0)] == [kept] * 3


def test_a_consumer_that_buries_has_room_again() -> None:
    node = node_with(b"a", b"b")
    consumer = node.consumer(ready=1)
    (a,) = consumer.messages()
    bury(node, consumer, a.id)
    assert [message.body for message in consumer.messages()] == [b"b"]


def test_what_is_not_in_flight_or_belongs_to_another_is_not_buried() -> None:
    node = node_with(b"a")
    consumer = node.consumer(ready=1)
    (a,) = consumer.messages()
    other = node.consumer(ready=1)
    assert bury(node, other, a.id) == NOT_OWNER
    assert bury(node, consumer, b"0" * 16) == NOT_IN_FLIGHT
    assert node.channel().in_flight_count == 1


def test_a_channel_in_memory_buries_nothing() -> None:
    node = Node()
    node.broker.topic("t").channel("c#ephemeral")
    node.client().say(mpub("t", [b"a"]))
    consumer = node.consumer(channel="c#ephemeral")
    (a,) = consumer.messages()
    found = channel_of(node, "c#ephemeral")
    assert found.bury(consumer_of(found, consumer), a.id, "bad", node.now) == NOT_ON_DISK
    assert node.channel(channel="c#ephemeral").in_flight_count == 1


def test_a_kick_gives_the_message_back_with_attempts_from_the_beginning() -> None:
    node = node_with_two_buried()
    assert take(node, "kick", 0, 1, 3) == 1
    assert comes(node) == [(b"a", 1), (b"d", 1)]
    assert node.channel().buried_count == 1


def test_a_kick_reaches_no_other_channel() -> None:
    node = node_with(b"a")
    node.broker.topic("t").channel("other")
    node.client().say(mpub("t", [b"b"]))
    consumer = node.consumer(ready=2)
    messages = consumer.messages()
    consumer.say(b"RDY 0\n")
    for message in messages:
        bury(node, consumer, message.id)
    take(node, "kick", 0, 1)
    assert node.channel(channel="other").depth == 1
    assert node.channel().depth == 2


def test_a_discard_finishes_the_message() -> None:
    node = node_with_two_buried()
    assert take(node, "discard", 2) == 1
    assert node.channel().buried_count == 1
    node.crash()
    assert [it.sequence for it in channel_of(node).buried_queue.buried.from_place(0)] == [0]
    assert comes(node) == [(b"d", 1)]


@pytest.mark.parametrize("rotated", [False, True])
def test_a_crash_takes_nothing_away(rotated: bool) -> None:
    node = node_with_two_buried()
    before = [*channel_of(node).buried_queue.buried.from_place(0)]
    if rotated:
        node.store.journal[:] = [("topic", "t"), *changes_in(node.broker.snapshot_topic("t"))]
    node.crash()
    assert [*channel_of(node).buried_queue.buried.from_place(0)] == before
    assert comes(node) == [(b"d", 1)]


def test_an_older_nsqd_delivers_again_what_it_does_not_know_to_be_buried() -> None:
    node = node_with_two_buried()
    known = [change for change in node.store.journal if change[0] not in {"bury", "job"}]
    assert replay(known)["t"].channels["c"].waiting.keys() == {0, 2}


def test_emptying_leaves_what_is_buried() -> None:
    node = node_with_two_buried()
    operator_actions.empty(channel_of(node))
    node.turn()
    assert (node.channel().depth, node.channel().buried_count) == (0, 2)
    node.crash()
    assert (node.channel().depth, node.channel().buried_count) == (0, 2)


def test_a_cursor_that_goes_back_passes_over_what_is_buried() -> None:
    node = node_with_two_buried()
    operator_actions.seek(channel_of(node), 0)
    node.turn()
    assert node.channel().depth == 2
    node.crash()
    assert node.channel().depth == 2
    assert take(node, "kick", 2) == 1
    assert sorted(comes(node)) == [(b"b", 1), (b"c", 1), (b"d", 1)]


def test_a_restored_backlog_leaves_what_was_buried_then_and_waits_now() -> None:
    node = node_with_two_buried()
    backlog = operator_actions.backlog(channel_of(node), 100)
    assert backlog is not None
    assert backlog.count == 1
    operator_actions.empty(channel_of(node))
    take(node, "kick", 0)
    result = operator_actions.restore_backlog(channel_of(node), backlog, 10_000)
    assert result is not None
    node.turn()
    assert result == (1, 0)
    assert node.channel().buried_count == 1
    node.crash()
    assert comes(node) == [(b"a", 1), (b"d", 1)]


def test_a_kicked_message_that_the_log_has_lost_is_not_counted_against_the_restored_ones() -> None:
    node = node_with_two_buried()
    backlog = operator_actions.backlog(channel_of(node), 100)
    assert backlog is not None
    operator_actions.empty(channel_of(node))
    take(node, "kick", 0)
    node.store.logs["t"].first = 1  # the first of the two
    assert operator_actions.restore_backlog(channel_of(node), backlog, 10_000) == (1, 0)


def test_one_that_waits_again_because_the_channel_was_moved_back_is_left_as_well() -> None:
    node = node_with_two_buried()
    backlog = operator_actions.backlog(channel_of(node), 100)
    assert backlog is not None
    take(node, "kick", 0)
    operator_actions.seek(channel_of(node), 0)
    result = operator_actions.restore_backlog(channel_of(node), backlog, 10_000)
    assert result is not None
    node.turn()
    assert result == (1, 0)
    node.crash()
    assert comes(node) == [(b"a", 1), (b"d", 1)]


def test_what_is_buried_keeps_its_place_in_the_log() -> None:
    node = node_with_two_buried()
    consumer = node.consumer(ready=5)
    for message in consumer.messages():
        consumer.say(fin(message.id))
    node.broker.record_progress()
    assert node.store.logs["t"].released == 0
    take(node, "discard", 0, 2)
    node.broker.record_progress()
    assert node.store.logs["t"].released == 4


# Jobs


def node_with_many_buried(count: int) -> Node:
    node = node_with(*[b"%d" % it for it in range(count)], max_attempts=1)
    consumer = node.consumer(ready=count)
    consumer.messages()
    node.pass_time(61.0)
    assert node.channel().buried_count == count
    consumer.say(b"RDY 0\n")
    return node


def begin(node: Node, verb: Verb = "kick", *, rate: float = 0.0, limit: int = 0, reason: str = "") -> None:
    operator_actions.begin_job(channel_of(node), verb, BuriedSelection(LATER, reason, limit), rate=rate, who="ana")
    node.turn()


def test_a_job_goes_on_by_itself_at_its_rate() -> None:
    node = node_with_many_buried(40)
    begin(node, rate=10)
    counts = []
    for _ in range(5):
        node.pass_time(1.0)
        counts.append(node.channel().depth)
    assert counts == [10, 20, 30, 40, 40]
    burials = channel_of(node).buried_queue
    assert burials.job is None
    assert burials.ended is not None
    assert (burials.ended.done, burials.ended.who) == (40, "ana")


@pytest.mark.parametrize("moved", [False, True])
def test_a_job_goes_on_when_the_channel_is_emptied_or_moved(moved: bool) -> None:
    node = node_with_many_buried(40)
    begin(node, rate=10)
    if moved:
        operator_actions.seek(channel_of(node), 0)
    else:
        operator_actions.empty(channel_of(node))
    node.turn()
    node.pass_time(1.0)
    assert (node.channel().depth, node.channel().buried_count) == (10, 30)


def test_a_job_leaves_what_is_buried_after_it_began_even_within_the_same_millisecond() -> None:
    node = node_with(b"a")
    consumer = node.consumer(ready=1)
    (a,) = consumer.messages()
    operator_actions.begin_job(channel_of(node), "kick", BuriedSelection(LATER), rate=10, who="ana")
    bury(node, consumer, a.id)
    node.pass_time(1.0)
    assert channel_of(node).buried_queue.job is None
    assert node.channel().buried_count == 1


def test_a_job_goes_on_after_a_crash_where_it_was() -> None:
    node = node_with_many_buried(40)
    begin(node, rate=10, limit=25)
    node.pass_time(1.0)
    node.crash()
    assert channel_of(node).buried_queue.job is not None
    for _ in range(4):
        node.pass_time(1.0)
    assert (node.channel().depth, node.channel().buried_count) == (25, 15)
    assert channel_of(node).buried_queue.job is None
    node.crash()
    assert channel_of(node).buried_queue.job is None


def test_a_job_ends_when_it_is_told_to() -> None:
    node = node_with_many_buried(40)
    begin(node, rate=10)
    node.pass_time(1.0)
    channel_of(node).buried_queue.stop_job()
    node.turn()
    node.pass_time(5.0)
    assert node.channel().depth == 10
    node.crash()
    assert channel_of(node).buried_queue.job is None


def test_a_job_without_a_rate_takes_many_in_each_step_and_lets_others_have_their_turn() -> None:
    node = node_with(max_attempts=1)
    for _ in range(5):
        node.client().say(mpub("t", [b"x"] * 900))
    for _ in range(2):
        node.consumer(ready=2500).messages()
        node.pass_time(61.0)
        node.clients[-1].say(b"RDY 0\n")
    assert node.channel().buried_count == 4_500
    begin(node)
    assert node.channel().depth == 2_000
    node.pass_time(0.0)
    assert node.channel().depth == 4_000
    node.pass_time(0.0)
    assert (node.channel().depth, node.channel().buried_count) == (4_500, 0)


def test_a_job_takes_only_what_has_the_reason() -> None:
    node = node_with_two_buried()
    begin(node, "discard", reason="wor")
    assert [it.sequence for it in channel_of(node).buried_queue.buried.from_place(0)] == [0]


def test_a_message_that_fails_again_is_not_kicked_again_by_the_same_job() -> None:
    node = node_with_many_buried(10)
    found = channel_of(node)
    before = node.broker.turn.timestamp // 1_000_000 + 1
    operator_actions.begin_job(found, "kick", BuriedSelection(before), rate=5, who="ana")
    node.turn()
    node.pass_time(0.5)
    consumer = node.consumer(ready=10)
    kicked = consumer.messages()
    assert kicked
    consumer.say(b"RDY 0\n" + b"".join(req(it.id, 0) for it in kicked))  # buried again
    for _ in range(5):
        node.pass_time(1.0)
    assert found.buried_queue.job is None
    assert node.channel().buried_count == len(kicked)


# A kick that is taken back


def last_kick(node: Node) -> int:
    kicked = channel_of(node).buried_queue.kicked
    assert kicked is not None
    return kicked.number


def undo(node: Node, number: int) -> bool:
    is_begun = operator_actions.undo_kick(channel_of(node), number, who="ana") is not None
    node.turn()
    return is_begun


def buried_in(node: Node) -> list[BuriedMessage]:
    return list(channel_of(node).buried_queue.buried.from_place(0))


@pytest.mark.parametrize("delay_ms", [0, 1000])
def test_a_kicked_message_that_somebody_moved_stays_where_it_was_moved(delay_ms: int) -> None:
    node = node_with_two_buried()
    first, second = (it.sequence for it in buried_in(node))
    operator_actions.take_buried(channel_of(node), "kick", [first, second])
    assert operator_actions.move(channel_of(node), BitMap64([first]), delay_ms) == {CancelOutcome.MOVED: 1}
    assert undo(node, last_kick(node))
    assert [it.sequence for it in buried_in(node)] == [second]
    assert node.channel().deferred_count == (1 if delay_ms else 0)


@pytest.mark.parametrize("named", [False, True])
def test_a_kick_that_is_taken_back_leaves_all_as_it_was_also_over_a_crash(named: bool) -> None:
    node = node_with_two_buried()
    before = buried_in(node)
    if named:
        take(node, "kick", 0, 2)
    else:
        begin(node)
    assert node.channel().depth == 3
    assert undo(node, last_kick(node))
    assert (node.channel().depth, buried_in(node)) == (1, before)
    node.crash()
    assert buried_in(node) == before
    assert comes(node) == [(b"d", 1)]


def test_what_was_delivered_since_stays_where_it_is() -> None:
    node = node_with_two_buried()
    consumer = node.consumer(ready=0)
    take(node, "kick", 0, 2)
    consumer.say(b"RDY 1\n")
    (first,) = consumer.messages()
    consumer.say(b"RDY 0\n" + req(first.id, 0))  # it waits again, but somebody has had it
    node.turn()
    assert undo(node, last_kick(node))
    assert len(buried_in(node)) == 1
    assert node.channel().depth == 2


def test_a_kick_is_taken_back_only_once_and_only_the_last_one() -> None:
    node = node_with_two_buried()
    take(node, "kick", 0)
    first = last_kick(node)
    take(node, "kick", 2)
    assert not undo(node, first)
    second = last_kick(node)
    assert undo(node, second)
    assert not undo(node, second)
    assert [it.sequence for it in buried_in(node)] == [2]


def test_a_kick_is_forgotten_after_a_while() -> None:
    node = node_with_two_buried()
    take(node, "kick", 0)
    number = last_kick(node)
    node.pass_time(601.0)
    assert channel_of(node).buried_queue.kicked is None
    assert not undo(node, number)


@pytest.mark.parametrize("moved", [False, True])
def test_a_channel_that_was_emptied_or_moved_has_no_kick_to_take_back(moved: bool) -> None:
    node = node_with_two_buried()
    take(node, "kick", 0)
    number = last_kick(node)
    if moved:
        operator_actions.seek(channel_of(node), 0)
    else:
        operator_actions.empty(channel_of(node))
    node.turn()
    assert not undo(node, number)


def test_a_message_that_was_redelivered_since_is_not_buried_again() -> None:
    node = node_with_two_buried()
    consumer = node.consumer(ready=0)
    take(node, "kick", 0)
    consumer.say(b"RDY 1\n")
    (message,) = consumer.messages()
    consumer.say(b"RDY 0\n" + fin(message.id))
    node.turn()
    operator_actions.redeliver(channel_of(node), [0 if message.body == b"a" else 2])
    node.turn()
    assert undo(node, last_kick(node))
    assert node.channel().buried_count == 1  # the one that was never kicked
    assert node.channel().depth == 2


def test_a_kick_under_way_ends_when_it_is_taken_back() -> None:
    node = node_with_many_buried(40)
    begin(node, rate=10)
    node.pass_time(1.0)
    assert node.channel().depth == 10
    assert undo(node, last_kick(node))
    assert (node.channel().depth, node.channel().buried_count) == (0, 40)
    node.pass_time(5.0)
    node.crash()
    node.pass_time(5.0)
    assert (node.channel().depth, node.channel().buried_count) == (0, 40)


def test_an_undo_goes_on_in_steps_past_what_comes_and_goes_meanwhile() -> None:
    node = node_with(max_attempts=1)
    for _ in range(5):
        node.client().say(mpub("t", [b"x"] * 900))
    for _ in range(2):
        node.consumer(ready=2500).messages()
        node.pass_time(61.0)
        node.clients[-1].say(b"RDY 0\n")
    begin(node)
    node.pass_time(0.0)
    node.pass_time(0.0)
    assert node.channel().depth == 4_500
    number = last_kick(node)
    assert undo(node, number)
    job = channel_of(node).buried_queue.job
    assert job is not None
    consumer = node.consumer(ready=0)
    consumer.say(b"RDY 100\n")
    taken = consumer.messages()
    consumer.say(b"RDY 0\n")
    for _ in range(3):
        node.pass_time(0.0)
    assert channel_of(node).buried_queue.job is None
    assert job.done == node.channel().buried_count == 4_500 - len(taken)
    assert (len(taken), node.channel().depth) == (100, 0)


@pytest.mark.parametrize("delivered", [0, 2])
def test_a_burial_that_the_journal_loses_is_not_made_up_for_by_a_later_restore(delivered: int) -> None:
    node = node_with(b"a", b"b", b"c")
    consumer = node.consumer(ready=delivered)
    consumer.messages()
    node.turn()
    backlog = operator_actions.backlog(channel_of(node), 100)
    assert backlog is not None
    consumer.say(b"RDY 3\n")
    node.turn()
    places = [(sequence, 1, 1) for sequence, _ in channel_of(node).in_flight.positions()]
    assert len(places) == 3
    channel_of(node).in_flight.clear()
    channel_of(node)._bury(places, Note("bad", ""))
    operator_actions.restore_backlog(channel_of(node), backlog, 10_000)
    node.turn()
    complete = replay(node.store.journal)["t"].channels["c"]
    assert (len(complete.buried), complete.needed, complete.waiting) == (3, 3, {})
    state = replay([change for change in node.store.journal if change[0] != "bury"])["t"].channels["c"]
    ahead = set(range(state.cursor, 3)) - {place for start, end in state.skips for place in range(start, end)}
    assert ahead | state.waiting.keys() == {0, 1, 2}


def test_what_a_kick_has_left_over_is_freed_some_at_a_time() -> None:
    node = node_with_two_buried()
    channel = channel_of(node)
    sequences = range(8, 100_000, 8)
    channel.buried_queue.bury([(sequence, sequence, 1) for sequence in sequences], Note("bad", ""))
    operator_actions.take_buried(channel, "kick", sequences)
    operator_actions.empty(channel)
    assert channel.buried_queue.kicked is None
    left = [node.broker.turn.reclaimer.entries]
    while not node.broker.turn.reclaimer.is_empty:
        node.turn()
        left.append(node.broker.turn.reclaimer.entries)
    assert left[0] - left[-1] >= len(sequences)
    assert max(before - after for before, after in pairwise(left)) < 10_000


def test_a_message_that_is_kicked_twice_in_one_kick_counts_once() -> None:
    kicked = KickUndo(1)
    kicked.keep(5, 0, "once")
    kicked.keep(5, 0, "again")
    assert (len(kicked), list(kicked)) == (1, [5])
