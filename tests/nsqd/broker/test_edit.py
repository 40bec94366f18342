"""Edit and run: a copy runs in one channel instead of a message, whatever is interrupted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from pyroaring import BitMap64

from nsqcommon.wire.commands import fin, mpub
from nsqcommon.wire.edited_copy import CopyMark
from nsqcommon.wire.headers import encode_headers
from nsqd.broker import operator_actions
from nsqd.broker.batch import Receipt
from nsqd.broker.channel import Channel
from nsqd.broker.edit import Edit, MessagePlace, place_of
from nsqd.broker.rules import ChannelRules
from tests.nsqd.broker.burying import bury, channel_of, comes, node_with, node_with_two_buried, take
from tests.support.fake_store import FakeStore, changes_in
from tests.support.given_rules import GivenRules
from tests.support.node import Node


def begin(
    node: Node, sequence: int, body: bytes = b"A", *, again: bool = False, delay_ms: int = 0, key: bytes = b""
) -> Edit:
    """Begin an edit in channel c. The turn isn't over yet."""
    edit = Edit(channel_of(node), sequence, again=again, delay_ms=delay_ms)
    assert edit.refusal is None
    headers = encode_headers(CopyMark("c", 1, sequence, edit.replaces, "me").headers())
    node.broker.topics["t"].publish_copy(edit, len(body).to_bytes(4, "big") + body, key, headers)
    return edit


def run(node: Node, sequence: int, body: bytes = b"A", *, again: bool = False, delay_ms: int = 0) -> Edit:
    edit = begin(node, sequence, body, again=again, delay_ms=delay_ms)
    node.turn()
    assert receipt_of(edit).error is None
    return edit


def receipt_of(edit: Edit) -> Receipt:
    assert edit.receipt is not None
    return edit.receipt


def comes_to(node: Node, name: str) -> list[bytes]:
    """Take everything that the channel delivers now, finish it, and return the bodies."""
    node.load()
    consumer = node.consumer(channel=name, ready=50)
    node.load()
    messages = consumer.messages()
    consumer.say(b"RDY 0\n" + b"".join(fin(it.id) for it in messages))
    save(node)
    return [message.body for message in messages]


def save(node: Node) -> None:
    """Write everything to the journal, as nsqd does within a tenth of a second."""
    node.broker.record_progress()
    node.store.write_journal(force=True)


def other(node: Node, name: str = "d") -> Channel:
    return node.broker.topic("t").channel(name)


def buried_in(node: Node) -> list[int]:
    return [it.sequence for it in channel_of(node).buried_queue.buried.from_place(0)]


def rotate(node: Node) -> None:
    """Replace the journal by a snapshot."""
    save(node)
    node.store.journal = [("snapshot", "t"), *changes_in(node.broker.snapshot_topic("t"))]


# Which message runs


def test_a_copy_runs_instead_of_a_buried_message() -> None:
    node = node_with_two_buried()  # 0 and 2 are buried, 1 is finished, and 3 waits
    edit = run(node, 0)
    assert edit.copy == 4
    assert buried_in(node) == [2]
    assert sorted(comes(node)) == [(b"A", 1), (b"d", 1)]
    assert place_of(channel_of(node), 0) is MessagePlace.REPLACED


def test_a_copy_comes_before_new_messages() -> None:
    node = node_with_two_buried()
    run(node, 0)
    assert node.consumer(ready=1).messages()[0].body in (b"A", b"d")  # retries and new ones take turns
    assert channel_of(node).depth == 1


def test_a_copy_runs_instead_of_one_ahead_of_the_cursor() -> None:
    node = node_with(b"a", b"b", b"c")
    run(node, 1)
    assert channel_of(node).depth == 3
    assert sorted(comes(node)) == [(b"A", 1), (b"a", 1), (b"c", 1)]


def test_a_copy_runs_instead_of_a_requeued_message_and_its_attempts_begin_again() -> None:
    node = node_with(b"a")
    consumer = node.consumer()
    (message,) = consumer.messages()
    consumer.say(b"RDY 0\nREQ %b 0\n" % message.id)
    run(node, 0)
    assert comes(node) == [(b"A", 1)]


def test_a_copy_runs_at_once_instead_of_a_deferred_message() -> None:
    node = node_with()
    node.client().say(b"DPUB t 60000\n\0\0\0\1a")
    run(node, 0)
    assert channel_of(node).ledger.deferred.lowest() is None
    assert comes(node) == [(b"A", 1)]


def test_a_copy_can_wait_for_its_time() -> None:
    node = node_with(b"a")
    run(node, 0, delay_ms=5_000)
    node.pass_time(4.9)
    assert channel_of(node).depth == 0
    node.pass_time(0.2)
    assert comes(node) == [(b"A", 1)]


def test_a_copy_can_be_edited() -> None:
    node = node_with(b"a")
    first = run(node, 0)
    run(node, first.copy, b"B")
    assert comes(node) == [(b"B", 1)]


def test_a_finished_message_is_refused_unless_it_may_run_again() -> None:
    node = node_with(b"a")
    assert comes_to(node, "c") == [b"a"]
    assert Edit(channel_of(node), 0, again=False, delay_ms=0).refusal is MessagePlace.FINISHED
    run(node, 0, again=True)
    assert comes_to(node, "c") == [b"A"]


def test_a_message_in_flight_is_refused() -> None:
    node = node_with(b"a")
    node.consumer().messages()
    assert Edit(channel_of(node), 0, again=True, delay_ms=0).refusal is MessagePlace.IN_FLIGHT


def test_a_replaced_message_is_refused() -> None:
    node = node_with(b"a")
    run(node, 0)
    assert Edit(channel_of(node), 0, again=False, delay_ms=0).refusal is MessagePlace.REPLACED


def test_the_undo_of_a_kick_does_not_bury_a_message_that_was_replaced() -> None:
    node = node_with_two_buried()
    take(node, "kick", 0)
    kicked = channel_of(node).buried_queue.kicked
    assert kicked is not None
    run(node, 0)
    operator_actions.undo_kick(channel_of(node), kicked.number, who="me")
    node.turn()
    assert buried_in(node) == [2]


# The other channels


def test_no_other_channel_gets_anything_new() -> None:
    node = node_with_two_buried()
    for name in ("d", "e#ephemeral"):
        other(node, name)
    node.turn()
    before = [node.channel(channel=name) for name in ("d", "e#ephemeral")]
    run(node, 0)
    assert [node.channel(channel=name) for name in ("d", "e#ephemeral")] == before
    node.client().say(mpub("t", [b"n"]))
    assert [comes_to(node, name) for name in ("d", "e#ephemeral")] == [[b"n"], [b"n"]]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_channel_that_goes_back_passes_over_copies_for_another_one(restarts: bool) -> None:
    node = node_with_two_buried()
    run(node, 0)
    run(node, 1, again=True)
    if restarts:
        node.crash()
    operator_actions.seek(other(node), 0)
    node.turn()
    node.pass_time(1)
    assert comes_to(node, "d") == [b"a", b"b", b"c", b"d"]


def test_a_channel_that_gets_a_copy_by_a_request_passes_over_it() -> None:
    node = node_with(b"a")
    other(node)
    edit = run(node, 0)
    operator_actions.redeliver(other(node), [edit.copy])
    node.turn()
    assert comes_to(node, "d") == []
    assert node.channel(channel="d").depth == 0


def test_a_channel_with_groups_that_gets_a_copy_by_a_request_passes_over_it() -> None:
    node = Node(policy=GivenRules(ChannelRules(max_in_flight_per_group=1)))
    other(node, "c")
    node.client().say(mpub("t", [b"a"]))
    other(node)
    edit = run(node, 0)
    operator_actions.redeliver(other(node), [edit.copy])
    node.turn()
    assert comes_to(node, "d") == []
    assert node.channel(channel="d").depth == 0


# Going back in the same channel


@pytest.mark.parametrize("restarts", [False, True])
def test_a_channel_that_goes_back_runs_the_copy_and_not_what_it_has_replaced(restarts: bool) -> None:
    node = node_with(b"a", b"b")
    run(node, 0)
    assert sorted(comes_to(node, "c")) == [b"A", b"b"]
    rotate(node)
    if restarts:
        node.crash()
    operator_actions.seek(channel_of(node), 0)
    node.turn()
    if restarts:
        node.crash()
    node.pass_time(1)
    assert sorted(comes_to(node, "c")) == [b"A", b"b"]


def test_a_restored_backlog_leaves_out_what_was_replaced_since() -> None:
    node = node_with(b"a", b"b")
    backlog = operator_actions.backlog(channel_of(node), 100)
    assert backlog is not None
    run(node, 0)
    assert sorted(comes_to(node, "c")) == [b"A", b"b"]
    restored = operator_actions.restore_backlog(channel_of(node), backlog, 100)
    assert restored == (1, 1)
    node.turn()
    node.crash()
    assert comes_to(node, "c") == [b"b"]


def test_a_redelivery_leaves_out_what_was_replaced() -> None:
    node = node_with(b"a", b"b")
    run(node, 0)
    assert operator_actions.redeliver(channel_of(node), [0, 1, 2]) == (0, 2, 1)
    assert sorted(comes_to(node, "c")) == [b"A", b"b"]
    assert operator_actions.redeliver(channel_of(node), [0, 1, 2]) == (2, 0, 1)
    node.turn()
    node.crash()
    assert sorted(comes_to(node, "c")) == [b"A", b"b"]


@pytest.mark.parametrize("restarts", [False, True])
def test_what_was_replaced_does_not_run_again_while_a_compacted_file_has_it(restarts: bool) -> None:
    """Another channel still needs it, so it can be read although its segment has gone."""
    node = node_with(b"a", b"b", b"c")
    backlog = operator_actions.backlog(channel_of(node), 100)
    assert backlog is not None
    run(node, 0)
    assert sorted(comes_to(node, "c")) == [b"A", b"b", b"c"]
    log = node.store.logs["t"]
    log.first, log.compacted = 1, [0]
    if restarts:
        rotate(node)
        node.crash()
    else:
        run(node, 1, again=True)
    assert operator_actions.redeliver(channel_of(node), [0]).redelivered == 0
    operator_actions.restore_backlog(channel_of(node), backlog, 100)
    node.turn()
    assert b"a" not in comes_to(node, "c")


# A topic that is paused


def test_a_copy_runs_while_the_topic_is_paused() -> None:
    node = node_with(b"a")
    other(node)
    topic = node.broker.topics["t"]
    topic.pause()
    node.turn()
    run(node, 0)
    assert (topic.depth, comes_to(node, "c")) == (0, [b"A"])
    node.client().say(mpub("t", [b"n"]))
    assert (topic.depth, comes_to(node, "c"), comes_to(node, "d")) == (1, [], [])
    topic.unpause()
    node.turn()
    assert (comes_to(node, "c"), comes_to(node, "d")) == ([b"n"], [b"n"])


@pytest.mark.parametrize("rotates", [False, True])
def test_a_copy_in_a_paused_topic_survives_a_crash(rotates: bool) -> None:
    node = node_with(b"a")
    other(node)
    node.broker.topics["t"].pause()
    node.turn()
    run(node, 0)
    if rotates:
        rotate(node)
    node.crash()
    topic = node.broker.topics["t"]
    assert (topic.depth, node.channel(channel="c").depth, node.channel(channel="d").depth) == (0, 1, 0)
    topic.unpause()
    node.turn()
    node.crash()
    assert (comes_to(node, "c"), comes_to(node, "d")) == ([b"A"], [])


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("is_finished", [False, True])
def test_a_channel_of_a_paused_topic_that_goes_back_runs_the_copy_again(is_finished: bool, crashes: bool) -> None:
    """The cursor won't come to the copy: when the topic flows again, all channels skip it."""
    node = node_with(b"a", b"b", b"c")
    topic = node.broker.topics["t"]
    topic.pause()
    node.turn()
    run(node, 0)
    run(node, 1, b"B", delay_ms=50_000)
    if is_finished:
        assert sorted(comes_to(node, "c")) == [b"A", b"c"]
    operator_actions.seek(channel_of(node), 0)
    node.turn()
    if crashes:
        node.crash()
    node.broker.topics["t"].unpause()
    node.turn()
    assert sorted(comes_to(node, "c")) == [b"A", b"c"]
    node.pass_time(60)
    assert comes_to(node, "c") == [b"B"]


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("flows", [False, True])
def test_a_restored_backlog_of_a_paused_topic_has_its_copies(flows: bool, crashes: bool) -> None:
    node = node_with(b"a", b"b", b"c")
    topic = node.broker.topics["t"]
    topic.pause()
    node.turn()
    run(node, 0)
    run(node, 2, b"C", delay_ms=50_000)
    backlog = operator_actions.backlog(channel_of(node), 100)
    assert backlog is not None
    assert (backlog.count, [it[0] for it in backlog.copies]) == (3, [3, 4])
    operator_actions.empty(channel_of(node))
    node.turn()
    if flows:
        topic.unpause()
        node.turn()
    for _ in range(2):  # the second time, all of them wait already
        assert operator_actions.restore_backlog(channel_of(node), backlog, 100) == (3, 0)
        node.turn()
    if crashes:
        node.crash()
    node.broker.topics["t"].unpause()
    node.turn()
    assert sorted(comes_to(node, "c")) == [b"A", b"b"]
    node.pass_time(60)
    assert comes_to(node, "c") == [b"C"]


def test_a_restored_backlog_does_not_deliver_what_is_not_released() -> None:
    """A document that lists a message as a copy that isn't one must not bring it early or twice."""
    node = node_with(b"a")
    backlog = operator_actions.backlog(channel_of(node), 100)
    assert backlog is not None
    topic = node.broker.topics["t"]
    topic.pause()
    node.client().say(mpub("t", [b"n"]))
    assert operator_actions.restore_backlog(channel_of(node), replace(backlog, copies=[(1, 0, 0)]), 100) == (1, 1)
    node.turn()
    assert comes_to(node, "c") == [b"a"]
    topic.unpause()
    node.turn()
    assert comes_to(node, "c") == [b"n"]


def test_a_message_that_no_channel_has_yet_is_refused() -> None:
    node = node_with()
    node.broker.topics["t"].pause()
    node.client().say(mpub("t", [b"a"]))
    assert Edit(channel_of(node), 0, again=True, delay_ms=0).refusal is MessagePlace.NOT_RELEASED


def test_a_copy_that_a_consumer_has_finished_in_a_paused_topic_is_finished() -> None:
    node = node_with(b"a", b"b")
    topic = node.broker.topics["t"]
    topic.pause()
    node.turn()
    run(node, 0)
    run(node, 1, delay_ms=50_000)
    run(node, 3, b"B", delay_ms=60_000)
    assert [place_of(channel_of(node), it) for it in range(5)] == [
        "replaced",
        "replaced",
        "waiting",
        "replaced",
        "deferred",
    ]
    assert comes_to(node, "c") == [b"A"]
    for _ in range(2):
        assert place_of(channel_of(node), 2) is MessagePlace.FINISHED
        assert Edit(channel_of(node), 2, again=True, delay_ms=0).refusal is None
        node.crash()


# Crashes


class Died(Exception):
    """The process has ended in the middle of a turn."""


class DyingStore(FakeStore):
    """Dies before it writes the journal or the logs."""

    dies_at = ""

    def write_journal(self, *, force: bool = False) -> bool:
        self._may_die("journal")
        return super().write_journal(force=force)

    def write_logs(self) -> None:
        self._may_die("log")
        super().write_logs()

    def _may_die(self, at: str) -> None:
        if at == self.dies_at:
            raise Died


def dying_node(prepare: Callable[[Node], None]) -> Node:
    """Return a node with 0 to 2 in the channels c and d, and with a store that can die."""
    node = Node()
    node.store = DyingStore()
    node.broker = node._new_broker()
    for name in ("c", "d"):
        other(node, name)
    node.client().say(mpub("t", [b"a", b"b", b"c"]))
    prepare(node)
    return node


def nothing(node: Node) -> None:
    pass


def bury_first(node: Node) -> None:
    consumer = node.consumer(ready=1)
    (first,) = consumer.messages()
    consumer.say(b"RDY 0\n")
    assert bury(node, consumer, first.id) is None


def requeue_first(node: Node, delay_ms: int = 0) -> None:
    consumer = node.consumer(ready=1)
    (first,) = consumer.messages()
    consumer.say(b"RDY 0\nREQ %b %d\n" % (first.id, delay_ms))


def defer_first(node: Node) -> None:
    requeue_first(node, 50_000)


PLACES = pytest.mark.parametrize("prepare", [nothing, bury_first, requeue_first, defer_first])


@PLACES
@pytest.mark.parametrize(("at", "is_done"), [("journal", False), ("log", False), ("", True)])
def test_a_crash_leaves_either_the_message_where_it_was_or_the_copy(
    prepare: Callable[[Node], None], at: str, is_done: bool
) -> None:
    node = dying_node(prepare)
    node.store.write_journal(force=True)
    place = place_of(channel_of(node), 0)
    assert isinstance(node.store, DyingStore)
    edit = begin(node, 0)
    node.store.dies_at = at
    if at:
        with pytest.raises(Died):
            node.turn()
    else:
        node.turn()
    node.crash()
    channel = channel_of(node)
    if is_done:
        assert place_of(channel, edit.copy) is MessagePlace.WAITING
        assert place_of(channel, 0) is MessagePlace.REPLACED
    else:
        assert place_of(channel, 0) is place
        # What is published next gets the sequence that the copy should have had, and is an ordinary message.
        node.client().say(mpub("t", [b"n"]))
        assert sorted(comes_to(node, "d")) == [b"a", b"b", b"c", b"n"]
    if place is MessagePlace.BURIED and not is_done:
        assert buried_in(node) == [0]
        take(node, "kick", 0)
    node.pass_time(60)
    got = comes_to(node, "c")
    assert sorted(set(got) & {b"a", b"A"}) == [b"A" if is_done else b"a"]
    assert len(got) == len(set(got))


@PLACES
@pytest.mark.parametrize("rotates", [False, True])
def test_a_power_cut_that_loses_the_copy_brings_the_message_back(
    prepare: Callable[[Node], None], rotates: bool
) -> None:
    """The journal was synced, and may have a snapshot since the edit, and the log wasn't."""
    node = dying_node(prepare)
    node.store.write_journal(force=True)
    place, log = place_of(channel_of(node), 0), node.store.logs["t"]
    log.synced_before = log.tail
    run(node, 0)
    if rotates:
        rotate(node)
    log.lose_unsynced()
    node.crash()
    assert place_of(channel_of(node), 0) is place or (place, rotates) == (MessagePlace.WAITING, rotates)
    node.client().say(mpub("t", [b"n"]))
    assert sorted(comes_to(node, "d")) == [b"a", b"b", b"c", b"n"]
    if place is MessagePlace.BURIED:
        assert buried_in(node) == [0]
        take(node, "kick", 0)
    node.pass_time(60)
    assert sorted(comes_to(node, "c")) == [b"a", b"b", b"c", b"n"]


@pytest.mark.parametrize("rotates", [False, True])
def test_a_power_cut_that_loses_copy_and_message_leaves_no_trace(rotates: bool) -> None:
    """What gets the sequence of a replaced message must come when the channel goes back."""
    node = dying_node(nothing)
    run(node, 0)  # 3
    node.store.write_journal(force=True)
    log = node.store.logs["t"]
    log.synced_before = log.tail
    node.client().say(mpub("t", [b"x"]))  # 4
    run(node, 4, b"X")
    if rotates:
        rotate(node)
    log.lose_unsynced()
    node.crash()
    node.client().say(mpub("t", [b"n"]))  # 4 again
    node.pass_time(1)
    operator_actions.seek(channel_of(node), 0)
    node.turn()
    assert sorted(comes_to(node, "c")) == [b"A", b"b", b"c", b"n"]


def test_a_snapshot_does_not_bring_a_copy_back_that_was_finished() -> None:
    """The copy isn't synced yet, so the snapshot has how to undo the edit."""
    node = dying_node(bury_first)
    node.store.logs["t"].synced_before = 3
    run(node, 0)
    assert sorted(comes_to(node, "c")) == [b"A", b"b", b"c"]
    rotate(node)
    node.crash()
    assert comes_to(node, "c") == []
    assert buried_in(node) == []


def test_a_snapshot_while_a_copy_is_not_synced_keeps_what_was_cancelled() -> None:
    """The snapshot has a cursor and skip ranges, so nothing may move the cursor between the two."""
    node = dying_node(nothing)
    node.store.logs["t"].synced_before = 3
    run(node, 2)
    operator_actions.cancel(channel_of(node), BitMap64([0]))
    node.turn()
    rotate(node)
    node.crash()
    assert sorted(comes_to(node, "c")) == [b"A", b"b"]


@PLACES
@pytest.mark.parametrize("rotates", [False, True])
def test_an_earlier_version_does_not_run_what_was_replaced(prepare: Callable[[Node], None], rotates: bool) -> None:
    """It knows neither `edit` nor `edited`, and the snapshot may be older than the sync of the copy."""
    node = dying_node(prepare)
    node.store.logs["t"].synced_before = 3
    run(node, 0)
    save(node)
    if rotates:
        rotate(node)
    node.store.journal = [it for it in node.store.journal if it[0] not in ("edit", "edited")]
    node.crash()
    assert buried_in(node) == []
    node.pass_time(60)
    assert sorted(comes_to(node, "c")) == [b"A", b"b", b"c"]


@pytest.mark.parametrize("rotates", [False, True])
def test_an_earlier_version_does_not_run_a_deferred_message_that_was_replaced(rotates: bool) -> None:
    """Its cursor may not have come to it yet."""
    node = dying_node(nothing)
    node.broker.topics["t"].publish(b"\0\0\0\1x", (0, 5), delay_ms=50_000)
    node.turn()
    node.store.logs["t"].synced_before = 4
    run(node, 3)
    save(node)
    if rotates:
        rotate(node)
    node.store.journal = [it for it in node.store.journal if it[0] not in ("edit", "edited")]
    node.crash()
    node.pass_time(60)
    assert sorted(comes_to(node, "c")) == [b"A", b"a", b"b", b"c"]


def test_a_snapshot_keeps_a_copy_that_is_buried_or_in_flight() -> None:
    node = dying_node(nothing)
    node.store.logs["t"].synced_before = 3
    first, second = run(node, 0), run(node, 1, b"B")
    consumer = node.consumer(ready=50)
    messages = {it.body: it for it in consumer.messages()}
    consumer.say(b"RDY 0\n")
    assert bury(node, consumer, messages[b"A"].id) is None
    rotate(node)
    node.crash()
    assert buried_in(node) == [first.copy]
    assert place_of(channel_of(node), second.copy) is MessagePlace.WAITING
    assert sorted(comes(node)) == [(b"B", 2), (b"c", 2)]


def lose_edits(node: Node) -> None:
    """Let a power cut lose what the journal has of the edit and after it."""
    words = [change[0] for change in node.store.journal]
    del node.store.journal[words.index("edit") :]


@PLACES
def test_a_copy_whose_edit_the_journal_has_lost_replaces_the_message_if_that_has_not_run(
    prepare: Callable[[Node], None],
) -> None:
    node = dying_node(prepare)
    node.store.write_journal(force=True)
    is_buried = place_of(channel_of(node), 0) is MessagePlace.BURIED
    run(node, 0)
    lose_edits(node)
    node.crash()
    node.pass_time(1)
    is_new = prepare is nothing  # then the message comes before the cursor meets the copy
    got = comes_to(node, "c")
    if prepare is requeue_first:
        assert sorted(got) in ([b"A", b"b", b"c"], [b"a", b"b", b"c"])
    else:
        assert sorted(got) == ([b"a", b"b", b"c"] if is_new else [b"A", b"b", b"c"])
    assert comes_to(node, "d") == [b"a", b"b", b"c"]
    if is_buried:
        assert buried_in(node) == []
    node.pass_time(60)
    node.crash()
    node.pass_time(60)
    assert (comes_to(node, "c"), comes_to(node, "d")) == ([], [])
    operator_actions.seek(channel_of(node), 0)
    node.turn()
    assert sorted(set(comes_to(node, "c")) & {b"a", b"A"}) == [b"a" if b"a" in got else b"A"]


def test_a_copy_of_a_finished_message_whose_edit_the_journal_has_lost_runs() -> None:
    node = dying_node(nothing)
    assert comes_to(node, "c") == [b"a", b"b", b"c"]
    node.store.write_journal(force=True)
    run(node, 0, again=True)
    lose_edits(node)
    node.crash()
    node.pass_time(1)
    assert b"A" in comes_to(node, "c")


# Failures


def test_a_failed_write_leaves_the_message_where_it_was() -> None:
    node = dying_node(bury_first)
    node.store.error = "no space"
    edit = begin(node, 0)
    node.turn()
    node.store.error = None
    assert receipt_of(edit).error == "no space"
    assert buried_in(node) == [0]
    node.store.write_journal(force=True)
    node.crash()
    assert buried_in(node) == [0]
    run(node, 0)
    assert sorted(comes_to(node, "c")) == [b"A", b"b", b"c"]


def test_a_journal_that_cannot_be_written_leaves_the_message_where_it_was() -> None:
    node = dying_node(bury_first)
    node.store.journal_error = "no space"
    edit = begin(node, 0)
    node.turn()
    node.store.journal_error = None
    assert receipt_of(edit).error is not None
    node.turn()
    node.store.write_journal(force=True)
    assert buried_in(node) == [0]
    node.crash()
    assert buried_in(node) == [0]


def test_one_of_two_edits_of_a_message_in_a_turn_is_refused() -> None:
    node = node_with(b"a")
    first, second = begin(node, 0), begin(node, 0, b"B")
    node.turn()
    assert (receipt_of(first).error, first.refusal) == (None, None)
    assert (receipt_of(second).error is None, second.refusal) == (False, MessagePlace.REPLACED)
    assert comes(node) == [(b"A", 1)]


def test_an_edit_that_had_to_wait_is_refused_if_the_message_has_gone() -> None:
    node = node_with(b"a")
    edit = begin(node, 0)
    topic = node.broker.topics["t"]
    node.broker.turn.unsealed.clear()
    node.broker.turn.deferring.clear()
    node.broker.turn.postponed[topic] = None
    operator_actions.empty(channel_of(node))
    node.turn()
    assert (receipt_of(edit).error, edit.refusal) == ("the message is elsewhere by now", MessagePlace.FINISHED)
    assert comes(node) == []


def test_a_repeated_edit_does_nothing_more() -> None:
    node = node_with(b"a")
    begin(node, 0, key=b"edit:1")
    node.turn()
    again = Edit(channel_of(node), 0, again=True, delay_ms=0)
    topic = node.broker.topics["t"]
    assert topic.publish_copy(again, b"\0\0\0\1B", b"edit:1", b"").error is None
    assert again.receipt is None
    node.turn()
    assert comes_to(node, "c") == [b"A"]
    node.crash()
    found = node.broker.topics["t"].receipt_of(b"edit:1")
    assert found is not None
    assert found.error is None


# Groups


def test_a_copy_is_the_last_of_its_group() -> None:
    node = Node(policy=GivenRules(ChannelRules(order="group")))
    other(node, "c")
    for body in (b"a", b"b"):
        node.broker.topic("t").publish_one(b"\0\0\0\1" + body, headers=encode_headers({"nsq-group": "g"}))
        node.turn()
    edit = Edit(channel_of(node), 0, again=False, delay_ms=0)
    mark = CopyMark("c", 1, 0, True, "me").headers() | {"nsq-group": b"g"}
    node.broker.topics["t"].publish_copy(edit, b"\0\0\0\1A", b"", encode_headers(mark))
    node.turn()
    consumer = node.consumer(ready=50)
    got = []
    while messages := consumer.messages():
        got += [it.body for it in messages]
        consumer.say(b"".join(fin(it.id) for it in messages))
    assert got == [b"b", b"A"]
