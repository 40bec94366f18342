"""A topic begins to flow where very much is parked: no turn looks at all of it, and no moment shows half of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
from pyroaring import BitMap64

from nsqcommon.wire.frames import OK_FRAME
from nsqd.broker import operator_actions
from nsqd.broker.channel import Channel
from nsqd.broker.operator_actions import CancelOutcome
from nsqd.broker.topic import Topic
from tests.support.fake_store import changes_in
from tests.support.node import Node
from tests.support.recalling import recalled

MANY = 12_000  # deferred batches, of which a turn may look at
MOST = 5_000
COUNT = 1_200  # these are more than the 500 whose entries are made at once
LATER = 60_000  # ms


@pytest.fixture
def node() -> Node:
    return Node()


def park(node: Node, count: int = COUNT, *, channels: tuple[str, ...] = ("c",)) -> Topic:
    """Return a topic that is paused, and has every other of its messages deferred: 0, 2, 4 and so on."""
    topic = node.broker.topic("t")
    for name in channels:
        topic.channel(name)
    topic.pause()
    for number in range(count):
        topic.publish_one(b"\0\0\0\1x", LATER + number % 7, b"k-%d" % number)
        topic.publish_one(b"\0\0\0\4%04d" % number)
    node.turn()
    return topic


def channel_of(node: Node, name: str = "c") -> Channel:
    return node.broker.topics["t"].channels[name]


def figures(node: Node, name: str = "c") -> tuple[int, int, int]:
    """Return what /stats shows: the deferred messages and the depth of the channel, and the depth of the topic."""
    channel = node.channel("t", name)
    return channel.deferred_count, channel.depth, node.topic("t").depth


def delays(channel: Channel) -> dict[int, int]:
    """Return, for each deferred message, in how many milliseconds it is due, as the journal would be told."""
    waiting = channel.ledger.waiting(channel.turn.wall_milliseconds)
    return {sequence: due_ms for sequence, _, due_ms in filter(None, waiting) if due_ms}


def settle(node: Node) -> None:
    """Let the turns come in which entries are made."""
    while any(channel.ledger.deferred.has_runs for channel in node.broker.topics["t"].channels.values()):
        node.pass_time(0.005)


def unpause(topic: Topic) -> None:
    topic.unpause()


def delete_and_come_first(topic: Topic) -> None:
    topic.delete_channel("c")
    topic.unpause()
    topic.channel("c")


BEGINNINGS = pytest.mark.parametrize("begin", [unpause, delete_and_come_first])


@contextmanager
def lines_run() -> Iterator[list[int]]:
    """Count the lines that run; there are none of compiled modules."""
    count, before = [0], sys.gettrace()

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        count[0] += event == "line"
        return trace

    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


@BEGINNINGS
def test_however_much_is_parked_no_turn_looks_at_all_of_it(node: Node, begin: Callable[[Topic], None]) -> None:
    topic = park(node, MANY)
    told = len(node.store.journal) + len(node.store.unwritten)
    with lines_run() as lines:
        begin(topic)
        node.turn()
    assert len(node.store.journal) + len(node.store.unwritten) - told < 10
    assert channel_of(node).ledger.deferred.entries < MOST
    assert lines[0] < MANY
    assert figures(node) == (MANY, MANY, 0)


def test_the_entries_of_all_channels_together_are_made_some_in_each_turn(node: Node) -> None:
    names = ("c", "d", "e")
    topic = park(node, MANY // 3, channels=names)
    topic.unpause()
    node.turn()
    entries = [sum(channel_of(node, name).ledger.deferred.entries for name in names)]
    while entries[-1] < MANY:
        node.pass_time(0.005)
        entries.append(sum(channel_of(node, name).ledger.deferred.entries for name in names))
    made = [after - before for before, after in pairwise(entries)]
    assert max(made) <= MOST
    assert min(made) > 0


@BEGINNINGS
def test_one_moment_begins_all_delays_and_shows_all_of_it(node: Node, begin: Callable[[Topic], None]) -> None:
    topic = park(node)
    node.pass_time(3600)
    begin(topic)
    assert figures(node) == (COUNT, COUNT, 0)
    found = delays(channel_of(node))
    assert found.keys() == set(range(0, 2 * COUNT, 2))
    settle(node)
    assert delays(channel_of(node)) == found
    node.pass_time(LATER / 1000 - 1)
    assert figures(node) == (COUNT, COUNT, 0)
    node.pass_time(2)
    assert figures(node) == (0, 2 * COUNT, 0)


def test_messages_come_in_order_and_what_is_published_meanwhile_behind_them(node: Node) -> None:
    topic = park(node)
    consumer = node.consumer(ready=2500)
    topic.unpause()
    topic.publish_one(b"\0\0\0\4last")
    topic.publish_one(b"\0\0\0\1x", LATER)
    node.turn()
    assert [message.body for message in consumer.messages()] == [*(b"%04d" % it for it in range(COUNT)), b"last"]
    assert figures(node) == (COUNT + 1, 0, 0)


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
@BEGINNINGS
def test_a_kill_leaves_all_of_it_or_nothing(node: Node, begin: Callable[[Topic], None], turns: int) -> None:
    topic = park(node)
    begin(topic)
    for number in range(turns):
        node.turn() if number == 0 else node.pass_time(0.005)
    if turns:
        node.store.write_journal(force=True)
    before = delays(channel_of(node))
    node.crash()
    if not turns:  # nobody was told that the pause has ended
        assert (node.topic("t").paused, node.topic("t").depth) == (True, 2 * COUNT)
        node.broker.topics["t"].unpause()
    else:
        assert delays(channel_of(node)).keys() == before.keys()
        assert all(before[it] <= due <= before[it] + 2 for it, due in delays(channel_of(node)).items())
    settle(node)
    assert figures(node) == (COUNT, COUNT, 0)
    node.pass_time(LATER / 1000 - 1)
    assert figures(node) == (COUNT, COUNT, 0)


def test_a_new_journal_that_is_written_meanwhile_tells_all_of_it(node: Node) -> None:
    topic = park(node)
    topic.unpause()
    node.turn()
    assert channel_of(node).ledger.deferred.has_runs
    told = topic.snapshot_changes()
    before = delays(channel_of(node))
    settle(node)
    node.store.journal = [("snapshot", "t"), *changes_in(told)]
    node.crash()
    assert delays(channel_of(node)).keys() == before.keys()
    assert figures(node) == (COUNT, COUNT, 0)


def test_a_channel_that_comes_meanwhile_gets_what_is_published_from_then_on(node: Node) -> None:
    topic = park(node)
    topic.unpause()
    topic.channel("later")
    node.turn()
    assert node.client().ask(b"PUB t\n\0\0\0\1x") == OK_FRAME
    for _ in range(2):
        settle(node)
        assert (figures(node), figures(node, "later")) == ((COUNT, COUNT + 1, 0), (0, 1, 0))
        node.store.write_journal(force=True)
        node.crash()


def test_a_channel_that_is_deleted_meanwhile_leaves_the_other_everything(node: Node) -> None:
    topic = park(node, channels=("c", "d"))
    topic.unpause()
    node.turn()
    topic.delete_channel("c")
    settle(node)
    assert figures(node, "d") == (COUNT, COUNT, 0)
    node.store.write_journal(force=True)
    node.crash()
    assert figures(node, "d") == (COUNT, COUNT, 0)


def test_a_topic_that_is_paused_again_meanwhile_has_handed_everything_over(node: Node) -> None:
    topic = park(node)
    topic.unpause()
    topic.pause()
    topic.publish_one(b"\0\0\0\1x", LATER)
    node.turn()
    settle(node)
    assert figures(node) == (COUNT, COUNT, 1)
    node.store.write_journal(force=True)
    node.crash()
    assert figures(node) == (COUNT, COUNT, 1)
    node.broker.topics["t"].unpause()
    assert figures(node) == (COUNT + 1, COUNT, 0)


@pytest.mark.parametrize("forget", [operator_actions.empty, lambda channel: operator_actions.seek(channel, 2 * COUNT)])
def test_a_channel_that_is_emptied_or_moved_meanwhile_gets_none_of_it(
    node: Node, forget: Callable[[Channel], object]
) -> None:
    topic = park(node)
    topic.unpause()
    node.turn()
    forget(channel_of(node))
    assert figures(node) == (0, 0, 0)
    node.pass_time(LATER / 1000 + 1)
    assert figures(node) == (0, 0, 0)
    node.store.write_journal(force=True)
    node.crash()
    assert figures(node) == (0, 0, 0)


def test_a_topic_that_is_emptied_or_deleted_meanwhile_leaves_channels_what_they_have(node: Node) -> None:
    topic = park(node)
    topic.unpause()
    node.turn()
    topic.empty()
    assert figures(node) == (COUNT, COUNT, 0)
    node.broker.delete_topic("t")
    park(node, 3)
    node.broker.topics["t"].unpause()
    node.pass_time(1)
    assert figures(node) == (3, 3, 0)


def test_what_is_taken_back_or_moved_meanwhile_has_no_other_entry(node: Node) -> None:
    topic = park(node)
    topic.unpause()
    node.turn()
    late = 2 * COUNT - 2  # its entry is made last
    place = topic.deferred_place(b"k-%d" % (COUNT - 1))
    assert place == (late, late + 1)
    assert recalled(topic, *place) == {"c": CancelOutcome.CANCELLED}
    assert recalled(topic, late - 2, late - 1, delay_ms=1_000) == {"c": CancelOutcome.MOVED}
    settle(node)
    assert figures(node) == (COUNT - 1, COUNT, 0)
    node.pass_time(2)
    assert figures(node) == (COUNT - 2, COUNT + 1, 0)
    node.pass_time(LATER / 1000)
    assert figures(node) == (0, 2 * COUNT - 1, 0)


def test_what_was_taken_back_singly_before_comes_to_no_channel(node: Node) -> None:
    topic = park(node, channels=("c", "d"))
    taken = BitMap64(range(0, 2 * COUNT, 6)) | BitMap64(range(1, 2 * COUNT, 6))
    assert topic.cancel_beyond(taken) == len(taken) == 2 * COUNT // 3
    node.turn()
    told = len(node.store.journal)
    topic.unpause()
    node.turn()
    assert len(node.store.journal) - told < 10
    left = COUNT - COUNT // 3
    for _ in range(2):
        assert figures(node) == figures(node, "d") == (left, left, 0)
        settle(node)
        assert not channel_of(node).ledger.deferred.among(taken)
        node.store.write_journal(force=True)
        node.crash()
    node.pass_time(LATER / 1000 + 1)
    assert figures(node) == (0, 2 * left, 0)


def test_what_was_taken_back_and_redelivered_meanwhile_waits_once(node: Node) -> None:
    topic = park(node)
    last = 2 * COUNT - 2
    topic.cancel_beyond(BitMap64([last]))
    topic.unpause()
    node.turn()
    assert operator_actions.redeliver(channel_of(node), [last]).redelivered == 1
    consumer = node.consumer(ready=1)
    while (message := consumer.messages()[0]).body != b"x":
        consumer.say(b"FIN %b\n" % message.id)
    consumer.say(b"RDY 0\nREQ %b %d\n" % (message.id, LATER // 2))
    assert channel_of(node).ledger.deferred.has_runs
    settle(node)
    assert node.channel().deferred_count == COUNT
    before = node.channel().depth
    node.pass_time(LATER / 1000 + 1)
    assert (node.channel().deferred_count, node.channel().depth) == (0, before + COUNT)


@pytest.mark.parametrize("topic_name", ["t", "t#ephemeral"])
def test_an_ephemeral_channel_gets_what_it_has_room_for_and_keeps_nothing_that_was_taken_back(topic_name: str) -> None:
    node = Node(mem_queue_size=4 * COUNT)
    topic = node.broker.topic(topic_name)
    channel = topic.channel("c#ephemeral")
    topic.pause()
    for _ in range(COUNT):
        topic.publish_one(b"\0\0\0\1x", LATER)
        topic.publish_one(b"\0\0\0\1x")
    node.turn()
    topic.cancel_beyond(BitMap64(range(0, 2 * COUNT, 4)))
    topic.unpause()
    node.turn()
    assert (len(channel.ledger.deferred), channel.depth) == (COUNT // 2, COUNT)
    assert channel.ledger.ephemeral_batches is not None
    assert channel.ledger.ephemeral_batches.messages == COUNT // 2 + COUNT
    while channel.ledger.deferred.has_runs:
        node.pass_time(0.005)
    node.pass_time(LATER / 1000 + 1)
    assert (len(channel.ledger.deferred), channel.depth) == (0, COUNT + COUNT // 2)


def test_what_is_few_is_told_in_words_that_earlier_versions_know(node: Node) -> None:
    topic = park(node, 40)
    topic.cancel_beyond(BitMap64([3, 4, 5]))
    topic.unpause()
    node.turn()
    words = {change[0] for change in node.store.journal}
    assert {"defer", "skip", "unpark"} <= words
    assert "start" not in words
    assert figures(node) == (39, 38, 0)
    node.crash()
    assert figures(node) == (39, 38, 0)
