"""The thread that performs syncs: when one begins, and what the loop learns of its end."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from nsqd.broker.batch import Receipt
from nsqd.log.files import Files
from nsqd.log.store import DiskStore
from nsqd.log.sync.sync_thread import SyncThread
from nsqd.log.sync.syncer import QUICK
from tests.nsqd.log.batches import make_batch
from tests.support.log_settings import log_settings

LIMIT: Final = 30.0  # seconds


class SlowFiles(Files):
    """A disk that syncs when it is allowed to."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.answers.set()
        self.bug: Exception | None = None

    def sync(self, descriptor: int) -> None:
        assert self.answers.wait(LIMIT)
        if self.bug is not None:
            raise self.bug


class Node:
    """A store and its thread. The test decides when a turn ends, and what the clock says."""

    def __init__(self, path: Path) -> None:
        self.now = 0.0
        self.files = SlowFiles()
        self.store = DiskStore.open(path, log_settings(ack="synced"), files=self.files, clock=lambda: self.now)
        self.store.recover()
        self.syncer = self.store.syncer
        self.thread = SyncThread(self.files)
        self.thread.start()
        self.syncer.start(self.thread)

    def publish(self, body: bytes) -> Receipt:
        log, receipt = self.store.create_log("t"), Receipt()
        log.append(make_batch(log.tail, [body]), receipt)
        self.store.write_logs()
        return receipt

    def end(self) -> bool:
        """End the sync as soon as the thread has performed it."""
        poll = select.epoll()
        poll.register(self.thread.doorbell.descriptor, select.EPOLLIN | select.EPOLLET)
        while self.syncer.is_busy:
            assert poll.poll(LIMIT)
            if self.syncer.end():
                return True
        return False

    def close(self) -> None:
        self.files.answers.set()
        self.thread.close()
        self.store.abandon()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    node.syncer.begin()
    node.end()  # what the start has to sync
    yield node
    node.close()


def test_a_turn_begins_the_sync_that_a_publisher_waits_for(node: Node) -> None:
    receipt = node.publish(b"1")
    node.store.syncer.hurry()
    assert node.syncer.is_busy
    assert node.end()
    assert receipt.settled
    assert not node.syncer.holds_up_clients


def test_a_turn_begins_no_sync_when_nobody_waits(node: Node) -> None:
    node.store.syncer.hurry()
    assert not node.syncer.is_busy


def test_a_sync_has_not_ended_before_the_disk_has_answered(node: Node) -> None:
    node.files.answers.clear()
    receipt = node.publish(b"1")
    node.store.syncer.hurry()
    assert not node.syncer.end()
    assert node.syncer.is_busy
    assert not receipt.settled


def test_publishers_that_come_during_a_sync_share_the_next_one(node: Node) -> None:
    node.files.answers.clear()
    first = node.publish(b"1")
    node.store.syncer.hurry()
    later = []
    for body in (b"2", b"3"):
        later.append(node.publish(body))
        node.store.syncer.hurry()
    node.files.answers.set()
    assert node.end()
    assert (first.settled, [receipt.settled for receipt in later]) == (True, [False, False])
    assert node.syncer.holds_up_clients
    node.store.syncer.hurry()
    node.store.syncer.hurry()
    assert node.end()
    assert [receipt.settled for receipt in later] == [True, True]


def test_who_has_just_been_answered_can_share_the_next_sync(node: Node) -> None:
    node.files.answers.clear()
    node.publish(b"1")
    node.store.syncer.hurry()
    other = node.publish(b"2")
    node.files.answers.set()
    assert node.end()
    node.store.syncer.hurry()  # the turn that has answered the first publisher ends
    assert not node.syncer.is_busy
    again = node.publish(b"3")
    node.store.syncer.hurry()
    assert node.end()
    assert (other.settled, again.settled) == (True, True)


def test_an_answer_comes_soon_while_the_disk_is_quick(node: Node) -> None:
    node.publish(b"1")
    node.store.syncer.hurry()
    assert node.syncer.answers_soon()
    node.now += QUICK  # the disk has become slow
    node.end()
    assert not node.syncer.answers_soon()
    node.publish(b"2")
    node.store.syncer.hurry()
    assert not node.syncer.answers_soon()
    node.end()
    node.publish(b"3")
    node.store.syncer.hurry()
    assert node.syncer.answers_soon()
    node.end()


def test_no_answer_comes_soon_from_a_disk_that_hangs_although_it_was_quick_before(node: Node) -> None:
    node.files.answers.clear()
    node.publish(b"1")
    node.store.syncer.hurry()
    assert node.syncer.answers_soon()
    node.now += QUICK
    assert not node.syncer.answers_soon()


def test_a_bug_in_the_thread_is_raised_on_the_loop(node: Node) -> None:
    node.files.bug = ZeroDivisionError()
    node.publish(b"1")
    node.store.syncer.hurry()
    with pytest.raises(ZeroDivisionError):
        node.end()
    assert not node.syncer.is_busy
