"""A key stands for the batch that was published with it, for a while."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.broker.batch import Receipt
from nsqd.broker.keys import DeferredKeys, KeyMemory, TopicKeys
from nsqd.broker.topic import Topic
from tests.support.node import Node

SECOND = 1_000_000_000


def keys_of(memory: KeyMemory) -> TopicKeys:
    return TopicKeys(memory, lambda: None)


def settled(error: str | None = None) -> Receipt:
    receipt = Receipt()
    receipt.settle(error)
    return receipt


def test_a_key_is_known_for_the_window_and_at_most_an_eighth_longer() -> None:
    keys, receipt = keys_of(KeyMemory(80, 1000)), Receipt()
    keys.add(b"k", 100, receipt)
    assert keys.find(b"k", 179) is receipt
    assert keys.find(b"other", 100) is None
    assert keys.find(b"k", 190) is None
    assert keys.repeats == 1


def test_keys_whose_time_is_over_take_no_room() -> None:
    memory = KeyMemory(80, 1_000_000)
    keys = keys_of(memory)
    for number in range(1000):
        keys.add(b"%d" % number, number, settled())
    assert 80 <= len(keys) == memory.count <= 100
    assert memory.dropped_early == 0


@pytest.mark.parametrize("topics", [1, 3])
def test_there_is_a_bound_for_all_topics_together(topics: int) -> None:
    memory = KeyMemory(SECOND, 80)
    known = [keys_of(memory) for _ in range(topics)]
    for number in range(1000):
        known[number % topics].add(b"%d" % number, 5, settled())
    assert 70 <= memory.count == sum(map(len, known)) <= 80
    assert memory.dropped_early == 1000 - memory.count
    found = [number for number in range(1000) if known[number % topics].find(b"%d" % number, 5)]
    assert found == list(range(1000 - memory.count, 1000))


def test_keys_that_come_together_are_bounded_as_well() -> None:
    memory = KeyMemory(SECOND, 80)
    keys = keys_of(memory)
    keys.add_all([b"%d" % number for number in range(1000)], 5, settled())
    assert 70 <= memory.count == len(keys) <= 80
    assert memory.dropped_early == 1000 - memory.count
    assert [number for number in range(1000) if keys.find(b"%d" % number, 5)] == list(range(1000 - memory.count, 1000))


def test_a_clock_that_goes_back_costs_nothing() -> None:
    memory = KeyMemory(80, 1000)
    keys = keys_of(memory)
    for timestamp in (100, 50, 99, 20, 101):
        keys.add(b"%d" % timestamp, timestamp, settled())
    assert [keys.find(b"%d" % timestamp, 101) is not None for timestamp in (100, 50, 99, 101)] == [True] * 4
    assert memory.count == len(keys)


def test_long_keys_are_told_apart() -> None:
    keys = keys_of(KeyMemory(SECOND, 1000))
    long = [b"%064d" % number for number in range(100)]
    for key in long[::2]:
        keys.add(key, 5, settled())
    assert [keys.find(key, 5) is not None for key in long] == [True, False] * 50


def test_keys_of_the_log_are_known_and_settled() -> None:
    keys = keys_of(KeyMemory(80, 1000))
    keys.know([(b"k", 100)])
    receipt = keys.find(b"k", 105)
    assert receipt is not None
    assert (receipt.settled, receipt.error) == (True, None)


def test_a_topic_that_forgets_its_keys_leaves_those_of_others() -> None:
    memory = KeyMemory(SECOND, 1000)
    here, there = keys_of(memory), keys_of(memory)
    for keys in (here, there):
        keys.add(b"k", 5, Receipt())
    here.forget()
    assert (here.find(b"k", 5), len(here), memory.count) == (None, 0, 1)
    assert there.find(b"k", 5) is not None


def test_a_publish_that_failed_leaves_no_key_and_its_neighbours_do() -> None:
    memory = KeyMemory(SECOND, 1000)
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
    keys = keys_of(KeyMemory(SECOND, 10_000))
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

    keys = TopicKeys(KeyMemory(SECOND, 10_000), refusal)
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
    memory = KeyMemory(SECOND, 1000)
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
    keys, waits, good = TopicKeys(KeyMemory(SECOND, 1000), lambda: "disk on fire"), Receipt(), Receipt()
    keys.add(b"a", 5, waits)
    keys.add(b"b", 5, good)
    good.settle()
    answer = keys.find(b"b", 5)
    assert answer is not None
    assert (answer.settled, answer.error) == (True, None)


def test_all_keys_are_let_go_in_time_after_the_disk_has_hung() -> None:
    keys = keys_of(KeyMemory(SECOND, 1_000_000))
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
    memory = KeyMemory(window, most)
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


# Of deferred messages


def test_a_key_leads_to_its_messages_as_long_as_one_of_them_waits() -> None:
    waiting = set[int]()

    def waits(start: int, end: int) -> bool:
        return not waiting.isdisjoint(range(start, end))

    keys = DeferredKeys(is_complete=True)
    for number in range(2_000):
        waiting.update((2 * number, 2 * number + 1))
        keys.add(b"key-%d" % number * (number % 3 + 1), 2 * number, 2, waits)
        waiting.discard(2 * number - 20)
        waiting.discard(2 * number - 19)
        assert len(keys) <= 2 * 11
    for number in range(1_990, 2_000):
        assert keys.find(b"key-%d" % number * (number % 3 + 1)) == (2 * number, 2 * number + 2)
    keys.forget()
    assert (len(keys), keys.find(b"key-1999" * 2)) == (0, None)


def test_a_key_that_is_used_again_names_the_later_message() -> None:
    keys = DeferredKeys(is_complete=True)
    for start in (5, 9, 7_000_000_000):
        keys.add(b"k", start, 1, lambda start, end: True)
    assert (len(keys), keys.find(b"k")) == (1, (7_000_000_000, 7_000_000_001))


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
    assert (count(node), node.topic().repeat_count, node.broker.keys.count) == (2, 0, 2)


def test_a_deleted_topic_leaves_no_keys_of_its_last_turn(node: Node) -> None:
    pub(node.broker.topic("t"), 1, b"k")
    node.broker.delete_topic("t")
    node.turn()
    assert node.broker.keys.count == 0


def test_the_journal_is_not_told_that_there_are_no_keys_while_some_wait_for_the_end_of_the_turn(node: Node) -> None:
    topic = node.broker.topic("t")
    pub(topic, 1, b"k")
    node.broker.let_go(["t"])
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
    node.broker.let_go(["t"])
    node.turn()
    assert told() == [-1, 1, ~3]


@pytest.mark.parametrize("shape", ["%d", "AAAAAAAAAA:%04x", "%064d"])
def test_a_million_keys_of_any_length_take_less_than_100_megabytes(shape: str) -> None:
    keys, receipt = keys_of(KeyMemory(600 * SECOND, 1_000_000)), settled()
    tracemalloc.start()
    try:
        for number in range(125_000):  # as many as one slice of them has
            keys.add(shape.encode() % number, SECOND, receipt)
            if number % 1000 == 999:
                assert keys.find(b"the end of a turn", SECOND) is None
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(keys) == 125_000
    assert size < 12_500_000
