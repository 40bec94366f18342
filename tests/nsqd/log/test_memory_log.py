from __future__ import annotations

from nsqd.broker.batch import Receipt
from nsqd.broker.store import TopicLog
from nsqd.log.memory_log import MemoryLog
from tests.nsqd.log.batches import make_batch
from tests.support.log_settings import log_settings


def log_with_room_for(messages: int, size: int = 1 << 20) -> MemoryLog:
    return MemoryLog("t#ephemeral", log_settings(mem_queue_size=messages, mem_queue_bytes=size))


def publish(log: MemoryLog, *bodies: bytes) -> Receipt:
    receipt = Receipt()
    log.append(make_batch(log.tail, bodies), receipt)
    return receipt


def test_it_is_a_topic_log() -> None:
    log: TopicLog = log_with_room_for(1)
    assert (log.first, log.tail, log.cached_from) == (0, 0, 0)


def test_receipt_is_settled_at_once() -> None:
    receipt = publish(log_with_room_for(10), b"a")
    assert receipt.settled
    assert receipt.error is None


def test_messages_are_a_bound() -> None:
    log = log_with_room_for(3)
    publish(log, b"a", b"b")
    assert log.has_room(1, 5)
    assert not log.has_room(2, 10)


def test_what_is_handed_on_at_once_is_taken_beyond_the_bound() -> None:
    log = log_with_room_for(0)
    publish(log, b"a", b"b")
    batch = log.batch_at(1)
    assert batch is not None
    assert batch.body(1) == b"b"


def test_bytes_are_a_bound_too() -> None:
    log = log_with_room_for(100, 2000)
    assert log.has_room(1, 1000)
    publish(log, bytes(996))
    assert not log.has_room(1, 1000)


def test_released_batches_make_room() -> None:
    log = log_with_room_for(2)
    publish(log, b"a", b"b")
    log.release(2)
    assert log.has_room(2, 10)
    publish(log, b"c")
    assert (log.first, log.tail) == (2, 3)
    batch = log.batch_at(2)
    assert batch is not None
    assert batch.body(2) == b"c"


def test_batch_stays_until_all_of_it_is_released() -> None:
    log = log_with_room_for(10)
    publish(log, b"a", b"b")
    log.release(1)
    assert log.first == 0
    assert log.batch_at(1) is not None


def test_who_comes_late_reads_on_at_the_first() -> None:
    log = log_with_room_for(10)
    publish(log, b"a")
    publish(log, b"b")
    log.release(1)
    assert log.next_readable(0) == 1
