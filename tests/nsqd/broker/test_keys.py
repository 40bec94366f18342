"""A key stands for the batch that was published with it, for a while."""

from __future__ import annotations

import tracemalloc
from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from nsqd.broker import operator_actions
from nsqd.broker.batch import Receipt
from nsqd.broker.deferred_keys import DeferredKeys
from nsqd.broker.keys import KeyMemory, TopicKeys
from nsqd.broker.operator_actions import CancelOutcome
from nsqd.broker.reclaimer import Reclaimer
from nsqd.broker.topic import Topic
from tests.support.fake_store import changes_in
from tests.support.node import Node
from tests.support.quick import unless_quick
from tests.support.recalling import recalled

SECOND = 1_000_000_000
SOME_KEYS = unless_quick(60_000, quick=15_000)  # one slice of a million has 125,000, with the same memory for each


def keys_of(memory: KeyMemory) -> TopicKeys:
    return TopicKeys(memory, lambda: None)


def settled(error: str | None = None) -> Receipt:
    receipt = Receipt()
    receipt.settle(error)
    return receipt


def test_a_key_is_known_for_the_window_and_at_most_an_eighth_longer() -> None:
    keys, receipt = keys_of(KeyMemory(80, 1000, Reclaimer())), Receipt()
    keys.add(b"k", 100, receipt)
    assert keys.find(b"k", 179) is receipt
    assert keys.find(b"other", 100) is None
    assert keys.find(b"k", 190) is None
    assert keys.repeats == 1


def test_keys_whose_time_is_over_take_no_room() -> None:
    memory = KeyMemory(80, 1_000_000, Reclaimer())
    keys = keys_of(memory)
    for number in range(1000):
        keys.add(b"%d" % number, number, settled())
    assert 80 <= len(keys) == memory.count <= 100
    assert memory.dropped_early == 0


@pytest.mark.parametrize("topics", [1, 3])
def test_there_is_a_bound_for_all_topics_together(topics: int) -> None:
    memory = KeyMemory(SECOND, 80, Reclaimer())
    known = [keys_of(memory) for _ in range(topics)]
    for number in range(1000):
        known[number % topics].add(b"%d" % number, 5, settled())
    assert 70 <= memory.count == sum(map(len, known)) <= 80
    assert memory.dropped_early == 1000 - memory.count
    found = [number for number in range(1000) if known[number % topics].find(b"%d" % number, 5)]
    assert found == list(range(1000 - memory.count, 1000))


def test_keys_that_come_together_are_bounded_as_well() -> None:
    memory = KeyMemory(SECOND, 80, Reclaimer())
    keys = keys_of(memory)
    keys.add_all([b"%d" % number for number in range(1000)], 5, settled())
    assert 70 <= memory.count == len(keys) <= 80
    assert memory.dropped_early == 1000 - memory.count
    assert [number for number in range(1000) if keys.find(b"%d" % number, 5)] == list(range(1000 - memory.count, 1000))


def test_a_clock_that_goes_back_costs_nothing() -> None:
    memory = KeyMemory(80, 1000, Reclaimer())
    keys = keys_of(memory)
    for timestamp in (100, 50, 99, 20, 101):
        keys.add(b"%d" % timestamp, timestamp, settled())
    assert [keys.find(b"%d" % timestamp, 101) is not None for timestamp in (100, 50, 99, 101)] == [True] * 4
    assert memory.count == len(keys)


def test_long_keys_are_told_apart() -> None:
    keys = keys_of(KeyMemory(SECOND, 1000, Reclaimer()))
    long = [b"%064d" % number for number in range(100)]
    for key in long[::2]:
        keys.add(key, 5, settled())
    assert [keys.find(key, 5) is not None for key in long] == [True, False] * 50


def test_keys_of_the_log_are_known_and_settled() -> None:
    keys = keys_of(KeyMemory(80, 1000, Reclaimer()))
    keys.know([(b"k", 100)])
    receipt = keys.find(b"k", 105)
    assert receipt is not None
    assert (receipt.settled, receipt.error) == (True, None)


def test_a_topic_that_forgets_its_keys_leaves_those_of_others() -> None:
    memory = KeyMemory(SECOND, 1000, Reclaimer())
    here, there = keys_of(memory), keys_of(memory)
    for keys in (here, there):
        keys.add(b"k", 5, Receipt())
    here.forget()
    assert (here.find(b"k", 5), len(here), memory.count) == (None, 0, 1)
    assert there.find(b"k", 5) is not None


def test_a_publish_that_failed_leaves_no_key_and_its_neighbours_do() -> None:
    memory = KeyMemory(SECOND, 1000, Reclaimer())
    keys, bad, good = keys_of(memory), Receipt(), Receipt()
    keys.add(b"a", 5, good)
    keys.add(b"b", 5, bad)
    keys.add(b"c", 5, bad)
    bad.settle("disk on fire")
    good.settle()
    assert [keys.find(key, 5) is not None for key in (b"a", b"b", b"c")] == [True, False, False]
    assert memory.count == len(keys) == 1


class CountedKey(bytes):
    """A key that counts how often any of its kind is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedKey.compared += 1
        return super().__eq__(other)

    __hash__ = bytes.__hash__


@pytest.mark.parametrize("count", [100, 2000])
def test_a_repeat_looks_at_its_own_key_however_many_publishes_wait_for_the_disk(count: int) -> None:
    keys = keys_of(KeyMemory(SECOND, 10_000, Reclaimer()))
    receipts = [Receipt() for _ in range(count)]
    for number, receipt in enumerate(receipts):
        keys.add(CountedKey(b"%d" % number), 5, receipt)
    CountedKey.compared = 0
    for number, receipt in enumerate(receipts):
        assert keys.find(CountedKey(b"%d" % number), 5) is receipt
    assert CountedKey.compared < 20 * count


@pytest.mark.parametrize("count", [100, 2000])
def test_a_repeat_asks_for_the_state_of_the_log_once_however_many_publishes_it_has_failed(count: int) -> None:
    asked = 0

    def refusal() -> str:
        nonlocal asked
        asked += 1
        return "disk on fire"

    keys = TopicKeys(KeyMemory(SECOND, 10_000, Reclaimer()), refusal)
    for number in range(count):
        receipt = Receipt()
        keys.add(b"%d" % number, 5, receipt)
        receipt.settle("not synced", stays=True)
    asked = 0
    for number in range(count):
        answer = keys.find(b"%d" % number, 5)
        assert answer is not None
        assert answer.error == "disk on fire"
    assert asked < 10 * count


def test_a_publish_that_fails_behind_one_that_waits_leaves_no_key() -> None:
    """Settled receipts are let go from the front only, so a failed one may lie behind another for a while."""
    memory = KeyMemory(SECOND, 1000, Reclaimer())
    keys, waits, failed, later = keys_of(memory), Receipt(), Receipt(), Receipt()
    keys.add(b"a", 5, waits)
    keys.add(b"b", 5, failed)
    failed.settle("disk on fire")
    assert keys.find(b"b", 5) is None
    keys.add(b"b", 5, later)
    waits.settle()
    assert keys.find(b"a", 5) is not None
    assert keys.find(b"b", 5) is later  # the earlier one, let go now, took nothing of the later one with it
    assert (memory.count, len(keys), keys.repeats) == (2, 2, 2)


def test_a_publish_that_succeeds_behind_one_that_waits_is_answered_ok_though_the_log_refuses_now() -> None:
    keys, waits, good = TopicKeys(KeyMemory(SECOND, 1000, Reclaimer()), lambda: "disk on fire"), Receipt(), Receipt()
    keys.add(b"a", 5, waits)
    keys.add(b"b", 5, good)
    good.settle()
    answer = keys.find(b"b", 5)
    assert answer is not None
    assert (answer.settled, answer.error) == (True, None)


def test_all_keys_are_let_go_in_time_after_the_disk_has_hung() -> None:
    keys = keys_of(KeyMemory(SECOND, 1_000_000, Reclaimer()))
    receipts = [Receipt() for _ in range(10_000)]
    for number, receipt in enumerate(receipts):
        keys.add(b"%d" % number, 5, receipt)
    for receipt in receipts:
        receipt.settle()
    for number in range(5_000):
        keys.add(b"later-%d" % number, 5, settled())
    assert keys.unsettled == 1


KeyOperation = tuple[str, int, int, int]


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "find", "forget", "fail"]), *[st.integers(0, 3)] * 2, st.integers(0, 30))
    ),
    st.sampled_from([8, 16, 1000]),
)
def test_it_never_forgets_what_it_may_not(operations: list[KeyOperation], most: int) -> None:
    """Compare with a dictionary: what is not older than the window and within the bound is known, nothing else is."""
    window, now = 80, 0
    memory = KeyMemory(window, most, Reclaimer())
    topics = [keys_of(memory) for _ in range(4)]
    expected: dict[tuple[int, bytes], int] = {}
    for what, place, number, seconds in operations:
        now += seconds
        topic, key = topics[place], b"%d" % number
        match what:
            case "add" if topic.find(key, now) is None:
                topic.add(key, now, settled())
                expected[place, key] = now
            case "fail" if topic.find(key, now) is None:
                topic.add(key, now, settled("no"))
                expected.pop((place, key), None)
            case "find":
                since = expected.get((place, key), -window * 2)
                is_known = topic.find(key, now) is not None
                if not memory.dropped_early and now - since < window:
                    assert is_known
                if now - since >= window + window // 8:
                    assert not is_known
            case "forget":
                topic.forget()
                expected = {it: since for it, since in expected.items() if it[0] != place}
        assert memory.count == sum(map(len, topics)) <= max(most, 1)


# Of deferred publishes


def test_a_key_leads_to_its_messages_as_long_as_one_of_them_waits() -> None:
    waiting = set[int]()

    def waits(start: int, end: int) -> bool:
        return not waiting.isdisjoint(range(start, end))

    keys, now = DeferredKeys(10 * SECOND, is_complete=True, reclaimer=Reclaimer()), 100 * SECOND
    for number in range(2_000):
        waiting.update((2 * number, 2 * number + 1))
        keys.drop_unneeded(2, now, waits)
        keys.add(b"key-%d" % number, 2 * number, 2, 0)
        waiting.discard(2 * number - 20)
        waiting.discard(2 * number - 19)
        assert len(keys) <= 2 * 11
    for number in range(1_990, 2_000):
        assert keys.find(b"key-%d" % number) == (2 * number, 2 * number + 2)
        assert keys.is_needed(b"key-%d" % number, now, waits)
    keys.clear()
    assert (len(keys), keys.find(b"key-1999")) == (0, None)


def all_wait(start: int, end: int) -> bool:
    return True


def none_waits(start: int, end: int) -> bool:
    return False


def test_a_key_that_is_used_again_names_the_later_message() -> None:
    keys = DeferredKeys(SECOND, is_complete=True, reclaimer=Reclaimer())
    for start in (5, 9, 7_000_000_000):
        keys.add(b"k", start, 1, SECOND)
    assert (len(keys), keys.find(b"k")) == (1, (7_000_000_000, 7_000_000_001))


def test_a_key_is_needed_for_the_window_and_while_its_message_waits() -> None:
    keys = DeferredKeys(10 * SECOND, is_complete=True, reclaimer=Reclaimer())
    keys.add(b"k", 5, 1, 100 * SECOND)
    assert keys.is_needed(b"k", 109 * SECOND, none_waits)
    assert not keys.is_needed(b"k", 111 * SECOND, none_waits)
    assert keys.is_needed(b"k", 111 * SECOND, all_wait)
    assert not keys.is_needed(b"other", 100 * SECOND, all_wait)


def test_a_look_at_keys_that_are_all_needed_is_short() -> None:
    asked = 0

    def waits(start: int, end: int) -> bool:
        nonlocal asked
        asked += 1
        return True

    keys = DeferredKeys(SECOND, is_complete=True, reclaimer=Reclaimer())
    for number in range(1000):
        keys.add(b"%d" % number, number, 1, 0)
    keys.drop_unneeded(500, 100 * SECOND, waits)
    assert (len(keys), asked < 20) == (1000, True)


def test_a_key_that_is_cancelled_and_set_again_takes_no_more_memory_each_time() -> None:
    keys = DeferredKeys(SECOND, is_complete=True, reclaimer=Reclaimer())
    for start in range(1000):
        keys.add(b"k", start, 1, 0)
        keys.remove(b"k")
    keys.add(b"k", 1000, 1, 0)
    asked = 0

    def waits(start: int, end: int) -> bool:
        nonlocal asked
        asked += 1
        return True

    keys.drop_unneeded(500, 100 * SECOND, waits)
    assert (len(keys), asked) == (1, 1)


def test_while_a_message_waits_its_key_is_known_beyond_the_window() -> None:
    memory = KeyMemory(10 * SECOND, 1000, Reclaimer())
    keys, published = keys_of(memory), 100 * SECOND
    keys.add(b"k", published, settled())
    keys.defer(b"k", 7, 1, published)
    assert (memory.count, len(keys)) == (1, 1)
    assert keys.find(b"k", 105 * SECOND, none_waits) is not None
    assert keys.find(b"k", 1000 * SECOND, all_wait) is not None
    assert keys.deferred_place(b"k") == (7, 8)
    assert keys.find(b"k", 1000 * SECOND, none_waits) is None
    assert (memory.count, len(keys), keys.repeats) == (0, 0, 2)
    assert (
        keys.deferred_place(b"k") is None
    )  # a publish with this key comes now, and its messages are meant from now on


def test_the_parts_of_a_publish_are_one_and_those_of_another_are_not() -> None:
    keys = keys_of(KeyMemory(SECOND, 1000, Reclaimer()))
    for start in (20, 7, 12):
        keys.defer_part(b"k" * 64, start, 2, 5 * SECOND)
    assert keys.deferred_place(b"k" * 64) == (7, 22)
    keys.defer_part(b"k" * 64, 100, 1, 9 * SECOND)
    assert (keys.deferred_place(b"k" * 64), len(keys)) == ((100, 101), 1)


def test_keys_of_deferred_publishes_count_and_go_last() -> None:
    memory = KeyMemory(SECOND, 80, Reclaimer())
    here, there = keys_of(memory), keys_of(memory)
    for number in range(40):
        here.add(b"later-%d" % number, 5, settled())
        here.defer(b"later-%d" % number, number, 1, 5)
    for number in range(1000):
        there.add(b"%d" % number, 5, settled())
        assert memory.count == len(here) + len(there) <= 80
    assert len(here) == 40
    assert len(there) >= 30
    assert memory.dropped_early == 1000 - len(there)
    assert here.deferred.is_complete


def test_the_oldest_keys_of_deferred_publishes_go_when_there_are_too_many_of_these_alone() -> None:
    memory = KeyMemory(SECOND, 80, Reclaimer())
    topics = [keys_of(memory) for _ in range(3)]
    for number in range(300):
        keys = topics[number % 3]
        keys.add(b"%d" % number, 5, settled())
        keys.defer(b"%d" % number, number, 1, 5)
        assert memory.count == sum(map(len, topics)) <= 80
    assert memory.count == 70  # an eighth is left to the latest publishes without a delay
    assert memory.dropped_early == 230
    found = [number for number in range(300) if topics[number % 3].find(b"%d" % number, 5, all_wait)]
    assert found == list(range(230, 300))
    assert not any(keys.deferred.is_complete for keys in topics)
    topics[0].add(b"new", 5, settled())
    assert topics[0].find(b"new", 5) is not None


def test_what_a_topic_forgets_leaves_the_room_to_others() -> None:
    memory = KeyMemory(SECOND, 80, Reclaimer())
    here, there = keys_of(memory), keys_of(memory)
    for number in range(70):
        here.defer(b"%d" % number, number, 1, 5)
    here.forget()
    assert memory.count == 0
    for number in range(70):
        there.defer(b"%d" % number, number, 1, 5)
    assert (memory.count, memory.dropped_early, len(here), len(there)) == (70, 0, 0, 70)


def test_keys_that_are_needed_no_longer_make_room_before_others_go() -> None:
    memory = KeyMemory(SECOND, 80, Reclaimer())
    keys = keys_of(memory)
    for number in range(70):
        keys.defer(b"%d" % number, number, 1, SECOND)
    keys.drop_unneeded(1000, 100 * SECOND, lambda start, end: start >= 60)
    assert (memory.count, memory.dropped_early) == (10, 0)


# Of publishes that were taken back


@pytest.mark.parametrize("key", [b"k", b"k" * 64])
def test_a_key_that_is_forgotten_is_new_and_leads_to_what_it_was(key: bytes) -> None:
    memory = KeyMemory(SECOND, 1000, Reclaimer())
    keys = keys_of(memory)
    for start in (7, 9, 20):
        assert keys.find(key, 5) is None
        keys.add(key, 5, settled())
        keys.forget_key(key, start, 2, 5)
        assert not keys.knows(key, 5)
        assert keys.forgotten_place(key) == (start, start + 2)
    assert sorted(keys.forgotten_starts()) == [7, 9, 20]
    assert memory.count == len(keys) == 3
    assert keys.find(key, 3 * SECOND) is None
    assert (memory.count, len(keys), keys.forgotten_starts(), keys.forgotten_place(key)) == (0, 0, [], None)


def test_a_publish_that_is_forgotten_before_it_is_synced_leaves_its_successor_alone() -> None:
    keys, first, second = keys_of(KeyMemory(SECOND, 1000, Reclaimer())), Receipt(), Receipt()
    keys.add(b"k", 5, first)
    keys.forget_key(b"k", 0, 1, 5)
    assert keys.find(b"k", 5) is None
    keys.add(b"k", 5, second)
    assert keys.find(b"k", 5) is second
    first.settle("not synced", stays=True)
    assert keys.find(b"k", 5) is second


def test_the_key_of_a_deferred_publish_is_forgotten_as_well() -> None:
    memory = KeyMemory(SECOND, 1000, Reclaimer())
    keys = keys_of(memory)
    keys.add(b"k", 5, settled())
    keys.defer(b"k", 7, 1, 5)
    keys.forget_key(b"k", 7, 1, 6)
    assert keys.find(b"k", 6, all_wait) is None
    assert (keys.deferred_place(b"k"), keys.forgotten_place(b"k")) == (None, (7, 8))
    assert memory.count == len(keys) == 1


# In a topic


def publish(topic: Topic, key: bytes) -> Receipt:
    return topic.publish(b"\0\0\0\1x", (0, 5), key=key)


@pytest.fixture
def node() -> Node:
    return Node(idempotence_window=60 * SECOND)


def count(node: Node) -> int:
    return node.topic().message_count


def test_the_same_key_publishes_once(node: Node) -> None:
    topic = node.broker.topic("t")
    first = publish(topic, b"k")
    assert publish(topic, b"k") is first  # even before it is written
    node.turn()
    assert first.settled
    again = publish(topic, b"k")
    node.turn()
    assert (again.settled, again.error, count(node)) == (True, None, 1)
    publish(topic, b"other")
    publish(node.broker.topic("u"), b"k")  # a key of another topic
    node.turn()
    assert (count(node), node.topic("u").message_count) == (2, 1)


def test_what_could_not_be_written_may_be_published_again(node: Node) -> None:
    topic = node.broker.topic("t")
    node.store.error = "disk on fire"
    assert publish(topic, b"k").error is None
    node.turn()
    node.store.error = None
    again = publish(topic, b"k")
    node.turn()
    assert (again.error, count(node)) == (None, 1)


def test_what_stays_in_the_log_is_not_published_again(node: Node) -> None:
    topic = node.broker.topic("t")
    receipt = publish(topic, b"k")
    receipt.settle("not synced", stays=True)
    node.turn()
    again = publish(topic, b"k")
    node.turn()
    assert (again.settled, again.error, count(node)) == (True, None, 0)


def pub(topic: Topic, number: int, key: bytes = b"") -> Receipt:
    return topic.publish_one(b"\0\0\0\1%d" % number, key=key)


def stored(node: Node) -> list[tuple[bytes, int, bytes]]:
    """Return what the log has: keys' place, flags, payload of each batch."""
    return [(batch.key, batch.flags, batch.payload) for batch in node.store.logs["t"].batches]


def test_pubs_of_one_turn_share_a_record_that_has_all_their_keys(node: Node) -> None:
    topic = node.broker.topic("t")
    receipts = [pub(topic, 1), pub(topic, 2, b"k"), pub(topic, 3, b"long-key"), pub(topic, 4, b"k")]
    assert len(set(map(id, receipts))) == 1
    node.turn()
    assert stored(node) == [(b"\0\1k\x08long-key", 2, b"\0\0\0\1" + b"1\0\0\0\1" + b"2\0\0\0\1" + b"3")]
    assert pub(topic, 5, b"long-key").settled
    pub(topic, 6, b"new")
    node.turn()
    assert stored(node)[1:] == [(b"new", 0, b"\0\0\0\1" + b"6")]
    assert (count(node), node.topic().repeat_count) == (4, 2)


def test_a_key_of_a_pub_is_known_to_the_mpub_behind_it_in_the_same_turn(node: Node) -> None:
    topic = node.broker.topic("t")
    receipt = pub(topic, 1, b"k")
    assert topic.knows_key(b"k")
    assert publish(topic, b"k") is receipt
    node.turn()
    assert (count(node), node.topic().repeat_count) == (1, 1)


def test_what_is_published_before_an_empty_in_the_same_turn_leaves_no_key(node: Node) -> None:
    topic = node.broker.topic("t")
    pub(topic, 1, b"k")
    topic.empty()
    assert not topic.knows_key(b"k")
    pub(topic, 2, b"k")
    node.turn()
    assert count(node) == 2


@pytest.mark.parametrize("what_fails", ["error", "journal_error"])
def test_pubs_that_could_not_be_written_together_may_be_published_again(node: Node, what_fails: str) -> None:
    topic = node.broker.topic("t")
    setattr(node.store, what_fails, "disk on fire")
    failed = [pub(topic, number, b"%064d" % number) for number in range(2)]
    node.turn()
    assert [receipt.error for receipt in failed] == ["disk on fire"] * 2
    setattr(node.store, what_fails, None)
    again = [pub(topic, number, b"%064d" % number) for number in range(2)]
    node.turn()
    assert [receipt.error for receipt in again] == [None, None]
    assert (count(node), node.topic().repeat_count, node.broker.turn.keys.count) == (2, 0, 2)


def test_a_deleted_topic_leaves_no_keys_of_its_last_turn(node: Node) -> None:
    pub(node.broker.topic("t"), 1, b"k")
    node.broker.delete_topic("t")
    node.turn()
    assert node.broker.turn.keys.count == 0


def test_the_journal_is_not_told_that_there_are_no_keys_while_some_wait_for_the_end_of_the_turn(node: Node) -> None:
    topic = node.broker.topic("t")
    pub(topic, 1, b"k")
    node.broker.apply_retention(["t"])
    node.turn()
    assert [change[2] for change in node.store.journal if change[0] == "keys"][-1] >= 0
    node.crash()
    pub(node.broker.topic("t"), 2, b"k")
    node.turn()
    assert len(stored(node)) == 1


def test_a_record_has_room_for_its_keys(node: Node) -> None:
    topic = node.broker.topic("t")
    for number in range(2000):
        topic.publish_one(b"\0\0\0\1x", key=b"%064d" % number)
    node.turn()
    assert count(node) == 2000
    assert all(len(key) < 1 << 16 for key, _, _ in stored(node))
    assert len(stored(node)) == 3


def test_a_refused_publish_leaves_no_key(node: Node) -> None:
    topic = node.broker.topic("t")
    node.broker.refusal = "draining"
    receipt = pub(topic, 1, b"k")
    node.turn()
    assert receipt.error == "draining"
    node.broker.refusal = None
    pub(topic, 1, b"k")
    node.turn()
    assert count(node) == 1


def test_a_deferred_publish_has_its_key_too(node: Node) -> None:
    topic = node.broker.topic("t")
    first = topic.publish_one(b"\0\0\0\1x", 5000, b"k")
    assert topic.publish_one(b"\0\0\0\1x", 5000, b"k") is first
    node.turn()
    assert pub(topic, 1, b"k").settled
    assert count(node) == 1


@pytest.mark.parametrize("empties", [True, False])
def test_after_empty_a_key_is_new_also_after_a_crash(node: Node, empties: bool) -> None:
    pub(node.broker.topic("t"), 1, b"k")
    node.turn()
    if empties:
        node.broker.topic("t").empty()
        node.turn()
    node.crash()
    pub(node.broker.topic("t"), 2, b"k")
    node.turn()
    assert len(stored(node)) == (2 if empties else 1)


def test_a_topic_made_anew_knows_no_key(node: Node) -> None:
    pub(node.broker.topic("t"), 1, b"k")
    node.turn()
    node.broker.delete_topic("t")
    node.turn()
    pub(node.broker.topic("t"), 2, b"k")
    node.turn()
    assert count(node) == 1


def test_the_journal_tells_from_where_on_a_start_looks_for_keys(node: Node) -> None:
    topic = node.broker.topic("t")

    def told() -> list[int]:
        return [change[2] for change in node.store.journal if change[0] == "keys" and change[1] == "t"]

    pub(topic, 1)
    node.turn()
    assert told() == [-1]
    pub(topic, 2, b"a")
    pub(topic, 3, b"b")
    node.turn()
    assert told() == [-1, 1]
    node.pass_time(75.0)
    node.broker.apply_retention(["t"])
    node.turn()
    assert told() == [-1, 1, ~3]


@pytest.mark.parametrize("shape", ["%d", "AAAAAAAAAA:%04x", "%064d"])
def test_a_million_keys_of_any_length_take_less_than_100_megabytes(shape: str) -> None:
    keys, receipt = keys_of(KeyMemory(600 * SECOND, 1_000_000, Reclaimer())), settled()
    tracemalloc.start()
    try:
        for number in range(SOME_KEYS):
            keys.add(shape.encode() % number, SECOND, receipt)
            if number % 1000 == 999:
                assert keys.find(b"the end of a turn", SECOND) is None
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(keys) == SOME_KEYS
    assert size < 100 * SOME_KEYS


def later(topic: Topic, number: int, key: bytes, delay_ms: int = 3_600_000) -> Receipt:
    return topic.publish_one(b"\0\0\0\1%d" % number, delay_ms, key)


def revive(node: Node, crashes: bool) -> Topic:
    if crashes:
        node.crash()
    return node.broker.topic("t")


crashes = pytest.mark.parametrize("crashes", [False, True])


@crashes
def test_a_repeat_is_stored_once_as_long_as_the_message_is_deferred(node: Node, crashes: bool) -> None:
    topic = node.broker.topic("t")
    topic.channel("c")
    later(topic, 1, b"k")
    node.turn()
    node.pass_time(3000.0)  # the window is one minute
    topic = revive(node, crashes)
    assert later(topic, 2, b"k").settled
    assert pub(topic, 3, b"k").settled
    node.turn()
    assert len(stored(node)) == 1
    node.pass_time(700.0)  # it is due
    pub(topic, 4, b"k")
    node.turn()
    assert [payload[-1:] for _, _, payload in stored(node)] == [b"1", b"4"]


@crashes
def test_a_key_that_is_parked_is_known_as_well(node: Node, crashes: bool) -> None:
    later(node.broker.topic("t"), 1, b"k")  # there is no channel
    node.turn()
    node.pass_time(3000.0)
    assert later(revive(node, crashes), 2, b"k").settled
    node.turn()
    assert len(stored(node)) == 1


@crashes
def test_the_last_deferred_message_keeps_the_topic_among_those_with_keys(node: Node, crashes: bool) -> None:
    topic = node.broker.topic("t")
    topic.channel("c")
    later(topic, 1, b"k")
    node.turn()
    node.pass_time(3000.0)
    node.broker.apply_retention(["t"])
    node.turn()
    assert [change[2] for change in node.store.journal if change[0] == "keys"][-1] >= 0
    topic = revive(node, crashes)
    node.pass_time(700.0)
    node.broker.apply_retention(["t"])
    node.turn()
    assert [change[2] for change in node.store.journal if change[0] == "keys"][-1] == ~1
    assert node.broker.turn.keys.count == 0


@crashes
@pytest.mark.parametrize("channels", [[], ["c"], ["c", "d"]])
@pytest.mark.parametrize("delay_ms", [0, 30_000, 3_600_000])
def test_a_key_whose_message_was_taken_back_may_be_used_again(
    node: Node, channels: list[str], delay_ms: int, crashes: bool
) -> None:
    topic = node.broker.topic("t")
    for name in channels:
        topic.channel(name)
    pub(topic, 0, b"other")
    node.turn()
    for number in range(1, 4):
        assert not topic.knows_key(b"k")
        later(topic, number, b"k", delay_ms)
        node.turn()
        found = recalled(topic, number, number + 1, key=b"k")
        assert list(found.values()) == [CancelOutcome.CANCELLED] * max(len(channels), 1)
        node.turn()
        topic = revive(node, crashes)
        assert topic.forgotten_place(b"k") == (number, number + 1)
        assert topic.knows_key(b"other")
    assert [payload[-1:] for _, _, payload in stored(node)] == [b"0", b"1", b"2", b"3"]


@crashes
def test_a_key_that_is_used_again_after_a_cancel_is_known_again(node: Node, crashes: bool) -> None:
    topic = node.broker.topic("t")
    topic.channel("c")
    later(topic, 1, b"k")
    node.turn()
    recalled(topic, 0, 1, key=b"k")
    later(topic, 2, b"k")
    node.turn()
    topic = revive(node, crashes)
    assert later(topic, 3, b"k").settled
    node.turn()
    assert len(stored(node)) == 2
    assert topic.deferred_place(b"k") == (1, 2)


@crashes
def test_a_key_stays_if_a_message_was_not_taken_back_everywhere(node: Node, crashes: bool) -> None:
    topic = node.broker.topic("t")
    channels = [topic.channel("c"), topic.channel("d")]
    later(topic, 1, b"one-channel")
    topic.publish(b"\0\0\0\1x" * 3, (0, 5, 10, 15), 3_600_000, b"batch")
    topic.publish(b"\0\0\0\1x" * 3, (0, 5, 10, 15), 3_600_000, b"part")
    node.turn()
    both = {"c": CancelOutcome.CANCELLED, "d": CancelOutcome.CANCELLED}
    assert recalled(topic, 0, 1, key=b"one-channel", channel="c") == {"c": CancelOutcome.CANCELLED}
    operator_actions.cancel(channels[0], BitMap64([2]))
    recalled(topic, 1, 4, key=b"batch")  # but one of them was taken back before, in one channel
    assert recalled(topic, 4, 5) == both  # by its id, say
    node.turn()
    topic = revive(node, crashes)
    assert [topic.knows_key(key) for key in (b"one-channel", b"batch", b"part")] == [True] * 3


def test_a_snapshot_of_the_journal_tells_which_keys_were_forgotten(node: Node) -> None:
    topic = node.broker.topic("t")
    topic.channel("c")
    for number in range(3):
        later(topic, number, b"k%d" % number)
    node.turn()
    recalled(topic, 1, 2, key=b"k1")
    node.turn()
    node.store.journal = [("snapshot", "t"), *changes_in(topic.snapshot_changes())]
    node.crash()
    assert [node.broker.topic("t").knows_key(b"k%d" % number) for number in range(3)] == [True, False, True]


def test_the_log_lets_go_of_keys_that_its_topic_has_learned(node: Node) -> None:
    topic = node.broker.topic("t")
    topic.channel("c")
    for number in range(2):
        later(topic, number, b"k%d" % number)
    node.turn()
    recalled(topic, 0, 1, key=b"k0")
    node.turn()
    node.crash()
    log = node.store.logs["t"]
    assert log.take_keys() == ([], [])
    assert [node.broker.topic("t").knows_key(b"k%d" % number) for number in range(2)] == [False, True]


def test_a_deleted_topic_takes_its_forgotten_keys_with_it(node: Node) -> None:
    for _ in range(2):
        topic = node.broker.topic("t")
        topic.channel("c")
        later(topic, 1, b"k")
        node.turn()
        recalled(topic, 0, 1, key=b"k")
        node.broker.delete_topic("t")
        node.turn()
    later(node.broker.topic("t"), 1, b"k")
    node.turn()
    node.crash()
    assert node.broker.topic("t").knows_key(b"k")


def test_keys_beyond_the_bound_are_learned_from_the_log_as_far_as_there_is_room(node: Node) -> None:
    node.settings = replace(node.settings, idempotence_keys=16)
    node.crash()
    topic = node.broker.topic("t")
    topic.channel("c")
    for number in range(100):
        later(topic, number % 10, b"%d" % number)
        node.turn()
    assert not topic.knows_deferred_keys
    assert topic.deferred_place(b"99") == (99, 100)
    assert topic.deferred_place(b"1") is None
    places = [(b"%d" % number, number, 1) for number in range(100)]
    list(topic.learn_deferred(places))
    assert not topic.knows_deferred_keys
    assert topic.waiting_place([(b"1", 1, 1)]) == (1, 2)
    assert node.broker.turn.keys.count <= 16


def test_keys_are_learned_from_the_log_some_thousands_at_a_time(node: Node) -> None:
    topic = node.broker.topic("t")
    topic.channel("c")
    places = iter([(b"%d" % number, number, 1) for number in range(20_000)])
    for _ in (learning := topic.learn_deferred(places)):
        break
    assert next(places)[1] <= 5_000
    list(learning)
    assert list(places) == []


def test_a_key_that_was_used_again_when_the_first_message_was_due_is_known_after_a_crash(node: Node) -> None:
    topic = node.broker.topic("t")
    topic.channel("c")
    topic.publish(b"\0\0\0\1x", (0, 5), 5_250, b"k")
    node.turn()
    node.pass_time(100.0)
    publish(topic, b"k")
    node.turn()
    topic = revive(node, True)
    assert topic.deferred_place(b"k") is None  # that of the first message would mislead
    node.pass_time(0.0)
    publish(topic, b"k")
    node.turn()
    assert len(stored(node)) == 2


def test_keys_that_are_cancelled_by_the_thousand_lie_in_no_single_set() -> None:
    """A set moves all of its entries when it grows, which takes tens of milliseconds at half a million."""
    reclaimer = Reclaimer()
    keys = DeferredKeys(SECOND, is_complete=True, reclaimer=reclaimer)
    for number in range(20_000):
        keys.add(b"%d" % number, number, 1, 0)
        keys.remove(b"%d" % number)
    keys.clear()
    assert max(len(it) for it in reclaimer._containers if not isinstance(it, deque)) < 1_000
