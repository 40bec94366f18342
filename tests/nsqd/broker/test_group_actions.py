"""What an operator does with one group: to held messages, new ones, retries, deferred and buried ones, and over a crash."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nsqcommon.wire.commands import fin
from nsqd.broker.buried_queue import BuriedSelection
from nsqd.broker.group_actions import SLICE, GroupAction, GroupVerb
from nsqd.broker.operator_actions import begin_job, empty
from tests.nsqd.broker.grouping import ORDER, SHARE, Grouped

VERBS: list[GroupVerb] = ["bury", "cancel", "due"]


def begin(it: Grouped, verb: GroupVerb, group: str = "a", delay_ms: int = 0) -> GroupAction:
    topic = it.node.broker.topics["t"]
    return GroupAction(topic, it.real, group.encode(), verb, delay_ms=delay_ms, who="ana", started_at=7)


def act(it: Grouped, verb: GroupVerb, group: str = "a", delay_ms: int = 0) -> GroupAction:
    """Do all of it, reading from disk where it has to."""
    action = begin(it, verb, group, delay_ms)
    while not action.is_over:
        action.step()
        it.node.turn()
        if action.waits:
            it.node.load()
    action.end()
    assert not it.real.recalls
    return action


def held_and_new() -> Grouped:
    """Return a channel with messages of groups a and b in flight, held and still ahead of the cursor."""
    it = Grouped(**ORDER)
    consumer = it.consumer(ready=3)
    it.publish("a1 a2 b1 a3 b2")
    assert it.got(consumer) == "a1 b1"
    assert it.held() == it.of("a2 a3 b2")
    consumer.say(b"RDY 2\n")
    it.publish("a4 b3 a5")
    assert it.held() == it.of("a2 a3 b2")  # the others are ahead, because no consumer has room
    return it


def drained(it: Grouped) -> str:
    """Deliver everything that waits, to a new consumer. Return it in order."""
    client = it.consumer(ready=100)
    found: list[str] = []
    it.node.load()
    while words := it.got(client).split():
        found += words
        client.say(b"".join(fin(it.ids[word]) for word in words))
        it.node.load()
    client.say(b"RDY 0\n")
    return " ".join(found)


def test_cancelled_ones_are_gone_wherever_they_wait_and_others_stay() -> None:
    it = held_and_new()
    action = act(it, "cancel")
    assert (action.acted, action.in_flight, action.unread) == (4, 1, 0)
    assert it.held() == it.of("b2")
    assert it.real.depth == 2
    it.crash()
    assert drained(it).split() == ["a1", "b1", "b2", "b3"]


def test_buried_ones_keep_their_attempts_and_a_kick_brings_them_back() -> None:
    it = held_and_new()
    action = act(it, "bury")
    assert action.acted == 4
    buried = [(one.sequence, one.attempts, *one.note) for one in it.real.buried_queue.buried.from_place(0)]
    assert buried == [(place, 0, "with its group a (request 7)", "ana") for place in it.of("a2 a3 a4 a5")]
    ids = {one.message_id for one in it.real.buried_queue.buried.from_place(0)}
    it.crash()
    assert len(it.real.buried_queue.buried) == 4
    assert drained(it).split() == ["a1", "b1", "b2", "b3"]
    begin_job(it.real, "kick", BuriedSelection(1 << 60, action.reason), rate=0.0, who="ana")
    assert drained(it).split() == ["a2", "a3", "a4", "a5"]
    assert {int(it.ids[word], 16) for word in ("a2", "a3", "a4", "a5")} == ids


def test_deferred_ones_wait_for_their_time_and_their_group_does_not() -> None:
    it = held_and_new()
    assert act(it, "due", delay_ms=60_000).acted == 4
    assert len(it.real.ledger.deferred) == 4
    it.crash()
    assert len(it.real.ledger.deferred) == 4
    assert drained(it).split() == ["a1", "b1", "b2", "b3"]
    assert act(it, "due").acted == 4
    assert drained(it).split() == ["a2", "a3", "a4", "a5"]


def test_due_now_leaves_what_is_due_already() -> None:
    it = held_and_new()
    assert act(it, "due").acted == 0
    assert it.held() == it.of("a2 a3 b2")


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("verb", VERBS)
def test_retries_and_deferred_messages_are_of_their_groups_too(verb: GroupVerb, crashes: bool) -> None:
    it = Grouped(max_in_flight_per_group=3)
    consumer = it.consumer(ready=4)
    it.publish("a1 b1 a2 b2")
    it.got(consumer)
    it.publish("a3 b3", delay_ms=60_000)
    consumer.say(b"RDY 0\n")
    it.requeue(consumer, "a1")
    it.requeue(consumer, "a2", delay_ms=60_000)
    it.requeue(consumer, "b1")
    it.requeue(consumer, "b2", delay_ms=60_000)
    if crashes:
        it.crash()
    action = act(it, verb)
    assert (action.acted, action.in_flight) == ({"bury": 3, "cancel": 3, "due": 2}[verb], 0)
    if verb == "bury":
        found = {one.sequence: one.attempts for one in it.real.buried_queue.buried.from_place(0)}
        assert found == dict(zip(it.of("a1 a2 a3"), (1, 1, 0), strict=True))
    it.crash()
    assert len(it.real.ledger.deferred) == 2
    assert it.real.depth == (4 if verb == "due" else 1)
    it.node.pass_time(61)
    words = drained(it).split()
    assert sorted(words) == (["a1", "a2", "a3"] if verb == "due" else []) + ["b1", "b2", "b3"]


def test_what_is_read_from_disk_is_found() -> None:
    it = held_and_new()
    it.crash()
    action = begin(it, "cancel")
    action.step()
    assert action.waits
    assert not action.is_over
    action.end()
    assert act(it, "cancel").acted == 5  # a1 isn't in flight any more
    assert drained(it).split() == ["b1", "b2", "b3"]


def test_buried_messages_of_the_group_stay_buried() -> None:
    it = held_and_new()
    consumer = it.consumer(ready=0)
    it.bury(consumer, "a1")
    action = act(it, "cancel")
    assert (action.acted, action.in_flight) == (3, 1)  # a2 was delivered when a1 was buried
    assert len(it.real.buried_queue.buried) == 1


def test_a_group_whose_messages_are_cancelled_is_forgotten_and_comes_back() -> None:
    it = Grouped(**ORDER)
    consumer = it.consumer()
    it.publish("a1 a2 a3 b1")
    assert it.got(consumer) == "a1 b1"
    act(it, "cancel")
    assert it.finish(consumer, "a1 b1") == ""
    assert len(it.groups) == 0
    it.publish("a4 a5")
    assert it.drain(consumer, it.got(consumer)) == "a5"


@pytest.mark.parametrize("verb", VERBS)
def test_many_are_done_in_slices_and_listed_and_stoppable(verb: GroupVerb) -> None:
    it = Grouped(**ORDER)
    consumer = it.consumer(ready=3)
    it.publish("b1 " + "a1 " * (3 * SLICE))
    it.got(consumer)
    action = begin(it, verb, delay_ms=60_000)
    assert it.real.recalls == [action]
    assert action.count == 3 * SLICE - 1
    action.step()
    assert action.acted == action.done == SLICE
    action.stop()
    action.step()
    assert action.is_over
    assert action.acted == SLICE
    action.end()
    assert not it.real.recalls
    rest = act(it, verb, delay_ms=60_000)
    assert rest.acted == {"due": 3 * SLICE - 1}.get(verb, 2 * SLICE - 1)


def test_what_arrives_meanwhile_is_left_alone() -> None:
    it = Grouped(**SHARE)
    it.publish("a1 " * (SLICE + 10))
    action = begin(it, "cancel")
    action.step()
    it.publish("a2 a3")
    while not action.is_over:
        action.step()
    action.end()
    assert action.acted == SLICE + 10
    assert it.real.depth == 2


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("with_new_rules", [False, True])
def test_what_is_sorted_or_delivered_meanwhile_is_done_once(verb: GroupVerb, *, with_new_rules: bool) -> None:
    it = Grouped(**ORDER)
    it.publish("b1 " + "a1 " * (2 * SLICE))
    action = begin(it, verb, delay_ms=60_000)
    action.step()
    if with_new_rules:
        it.follow(**ORDER, **SHARE)
    consumer = it.consumer(ready=10)
    assert it.got(consumer) == "b1 a1"
    while not action.is_over:
        action.step()
        it.node.turn()
    action.end()
    assert action.acted == 2 * SLICE - 1
    assert it.real.depth == 0


@pytest.mark.parametrize(
    ("meanwhile", "stops"),
    [
        (lambda it: empty(it.real), False),
        (lambda it: it.follow(max_in_flight_per_group=2), False),
        (lambda it: it.follow(), True),
        (lambda it: it.node.broker.topics["t"].delete_channel("c"), True),
    ],
)
def test_other_changes_meanwhile_are_no_trouble(meanwhile: Callable[[Grouped], object], stops: bool) -> None:
    it = Grouped(**ORDER)
    consumer = it.consumer(ready=3)
    it.publish("b1 " + "a1 " * (2 * SLICE))
    it.got(consumer)
    channel, action = it.real, begin(it, "bury")
    action.step()
    meanwhile(it)
    while not action.is_over:
        action.step()
    action.end()
    assert not channel.recalls
    assert action.is_stopped == stops
    if not stops:
        assert channel.depth == 0


def test_messages_that_the_disk_refuses_to_read_are_left_alone_and_counted() -> None:
    it = Grouped(**ORDER)
    consumer = it.consumer()
    for text in ("a1 a2", "a3", "a4 b1"):
        it.publish(text)
    assert it.got(consumer) == "a1 b1"
    assert it.held() == it.of("a2 a3 a4")
    log = it.node.store.logs["t"]
    log.refused = (2, 3)
    action = act(it, "bury")
    assert (action.acted, action.unread) == (1, 2)
    assert it.held() == it.of("a3 a4")
    log.refused = (0, 0)
    assert it.drain(consumer, "a1") == "a3 a4"  # still in order


def test_new_messages_that_the_disk_refuses_to_read_may_be_of_any_group() -> None:
    it = Grouped(**ORDER)
    it.publish("a1 b1 a2")
    it.node.store.logs["t"].refused = (0, 2)
    action = act(it, "cancel")
    assert (action.acted, action.unread) == (1, 2)
    assert it.real.depth == 2


def test_lost_messages_are_not_buried() -> None:
    it = held_and_new()
    it.node.store.logs["t"].first = it.sequences["b2"]
    action = act(it, "bury")
    assert (action.acted, action.unread) == (2, 0)
    assert sorted(one.sequence for one in it.real.buried_queue.buried.from_place(0)) == it.of("a4 a5")


def test_a_group_that_waits_for_the_cursor_is_not_confused_with_a_new_one_of_its_name() -> None:
    """The group was set aside until the cursor passes its next message, a due one, and is cancelled meanwhile."""
    it = Grouped(**ORDER)
    it.publish("a1", delay_ms=1_000)
    it.publish("b1 a2 a3")
    it.node.pass_time(2)
    consumer = it.consumer(ready=1)
    assert it.got(consumer)
    act(it, "cancel")
    it.publish("a4 a5")
    found = it.drain(consumer, " ".join(it.ids))
    assert found.split()[-2:] == ["a4", "a5"]
    assert len(it.groups) == 0
