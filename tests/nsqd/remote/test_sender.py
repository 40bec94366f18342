"""Threads bring recorded changes into a store, whatever it answers, and ring when more is confirmed."""

from __future__ import annotations

import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from random import Random
from typing import ClassVar, Final

import pytest

from nsqcommon.remote.operations import OpenFile, Remove, Write
from nsqcommon.remote.slot import Claimant
from nsqd.remote.chain import MOST_REQUESTS, ChainRequest
from nsqd.remote.claim import Claim, Claimed
from nsqd.remote.claiming import claim_name
from nsqd.remote.object_store import Created, ObjectStore, OnUnknown, StoreFault, StoreFaultKind, ignore
from nsqd.remote.owner import Owner
from nsqd.remote.pacing import DEPTH, Pacing
from nsqd.remote.recorder import Recorded
from nsqd.remote.sender import Sender
from nsqd.remote.stores.folder import FolderStore
from tests.nsqd.remote.shelf import first_writer, writer
from tests.support.object_stores import MemoryStore, Objects
from tests.support.process import eventually

LIMIT: Final = 30.0  # seconds until a test gives up waiting


def claimed_by(letter: str, open_store: Callable[[OnUnknown], ObjectStore]) -> Claimed:
    claim = Claim(
        node="node",
        writer=writer(letter),
        first_writer=first_writer(letter),
        claimant=Claimant(f"machine-{letter}", 1, "boot"),
        time_ns=1,
    )
    return claim_name("orders", open_store, claim, save=lambda mark: None)


class Node:
    """An owner with its threads. What it appends to its only file is `written`."""

    def __init__(
        self,
        open_store: Callable[[OnUnknown], ObjectStore],
        *,
        interval: float = 0.001,
        depth: int = DEPTH,
        buffer: float = inf,
    ) -> None:
        self.owner = Owner(
            claimed_by("a", open_store), Pacing(interval=interval, delay=0.02, depth=depth), buffer=buffer
        )
        self.sender = Sender(self.owner, open_store, depth=depth)
        self.written = b""
        self.owner.record(Recorded(OpenFile(1, "a.log")))

    def append(self, data: bytes, *, is_awaited: bool = True) -> None:
        self.owner.record(Recorded(Write(1, len(self.written), len(data)), data))
        self.written += data
        if is_awaited:
            self.owner.expect_confirmation()
            self.owner.hurry()

    def wait_until(self, is_done: Callable[[], bool]) -> None:
        """Wait as the event loop does: for the doorbell."""
        poll = select.poll()
        poll.register(self.sender.doorbell.descriptor, select.POLLIN)
        until = time.monotonic() + LIMIT
        while not is_done():
            assert self.sender.bug is None, self.sender.bug
            assert poll.poll(max(0.0, until - time.monotonic()) * 1000), "the doorbell doesn't ring"
            self.sender.doorbell.answer()

    def wait_for_confirmation(self) -> None:
        self.wait_until(lambda: self.owner.confirmed == self.owner.position)


def content_in(open_store: Callable[[OnUnknown], ObjectStore]) -> bytes:
    """Return the content of the file for another machine that claims the name."""
    catalog = claimed_by("b", open_store).catalog
    store = open_store(ignore)
    found = b""
    for piece in catalog.files["a.log"].pieces:
        data = store.get(piece.part.object, piece.part.offset, piece.part.offset + piece.part.length)
        assert data is not None
        found += data
    return found


@contextmanager
def running(
    open_store: Callable[[OnUnknown], ObjectStore],
    *,
    interval: float = 0.001,
    depth: int = DEPTH,
    buffer: float = inf,
) -> Iterator[Node]:
    node = Node(open_store, interval=interval, depth=depth, buffer=buffer)
    node.sender.start()
    try:
        yield node
    finally:
        node.sender.close()


def in_memory(
    kind: type[MemoryStore] = MemoryStore, objects: Objects | None = None
) -> Callable[[OnUnknown], ObjectStore]:
    """Return what opens stores of this kind that share their objects."""
    shared = objects or Objects()
    return lambda on_unknown: kind(shared, on_unknown=on_unknown)


def test_appends_reach_a_folder_and_are_confirmed(tmp_path: Path) -> None:
    def open_store(on_unknown: OnUnknown) -> ObjectStore:
        return FolderStore(tmp_path, node="orders", on_unknown=on_unknown)

    with running(open_store) as node:
        for number in range(50):
            node.append(b"%d," % number)
            node.wait_for_confirmation()
        assert content_in(open_store) == node.written


class HangsAtFirst(MemoryStore):
    """Answers a create of all but the first slots only at the fourth try, as if its other servers hung."""

    tries: ClassVar[Counter[str]] = Counter()
    end: ClassVar[threading.Event] = threading.Event()

    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        if name.startswith("wal/0000000001") and int(name[-8:]) > 2:
            self.tries[name] += 1
            if self.tries[name] < MOST_REQUESTS:
                self.end.wait(10 * LIMIT)
                return Created.UNKNOWN
        return super().create(name, data)


def test_requests_that_hang_after_their_slots_were_stored_leave_threads_for_others() -> None:
    with running(in_memory(HangsAtFirst), depth=1) as node:
        try:
            for number in range(2 * MOST_REQUESTS):
                node.append(b"%d" % number)
                node.wait_for_confirmation()
        finally:
            HangsAtFirst.end.set()


class HangsForGood(MemoryStore):
    """Answers no request from some moment on, and a create only by saying that the slot exists."""

    waiting: ClassVar[threading.Semaphore] = threading.Semaphore(0)
    has_begun: ClassVar[threading.Event] = threading.Event()
    end: ClassVar[threading.Event] = threading.Event()
    says_exists: ClassVar[Counter[str]] = Counter()

    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        if self.has_begun.is_set():
            self.says_exists[name] += 1
            if self.says_exists[name] == MOST_REQUESTS:
                return Created.EXISTS
            self._hang()
        return super().create(name, data)

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        if self.has_begun.is_set():
            self._hang()
        return super().get(name, start, end)

    def _hang(self) -> None:
        self.waiting.release()
        self.end.wait(10 * LIMIT)


def test_a_thread_is_left_to_drop_what_waits_while_all_requests_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqd.remote.owner._HEARTBEAT", 0.01)
    with running(in_memory(HangsForGood), depth=1, buffer=1 << 20) as node:
        try:
            for number in range(6):
                node.append(b"%d" % number)
                node.wait_for_confirmation()
            HangsForGood.has_begun.set()
            assert HangsForGood.waiting.acquire(timeout=LIMIT), "the heartbeat of an idle owner"
            node.append(b"hangs")
            for _ in range(2 * MOST_REQUESTS - 1):  # the creates but one, and the comparisons
                assert HangsForGood.waiting.acquire(timeout=LIMIT), "there is no thread for the next request"
            node.append(bytes(9 << 20))
            assert wait_until(lambda: node.owner.is_stopped), "nothing bounds what waits in memory"
        finally:
            HangsForGood.end.set()


def wait_until(is_done: Callable[[], bool]) -> bool:
    """Wait for something that no doorbell rings for. Return False if it doesn't come."""
    until = time.monotonic() + LIMIT
    while not is_done() and time.monotonic() < until:
        time.sleep(0.001)
    return is_done()


def test_writes_that_are_left_out_because_their_file_is_gone_are_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqd.remote.owner._HEARTBEAT", inf)  # its answer would ring for them, ten seconds later
    with running(in_memory()) as node:
        node.owner.record(Recorded(Remove("a.log")))
        node.wait_for_confirmation()
        node.append(b"one")
        node.wait_for_confirmation()


def test_changes_for_which_no_publisher_waits_are_confirmed_as_well() -> None:
    open_store = in_memory()
    with running(open_store) as node:
        node.append(b"one", is_awaited=False)
        node.wait_for_confirmation()
        node.append(b"two", is_awaited=False)
        node.wait_for_confirmation()
        assert content_in(open_store) == node.written


class Troubled(MemoryStore):
    """Stores or doesn't, and answers or doesn't, late, in any order."""

    random: Final = Random(1)

    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        chance = self.random.random()
        time.sleep(self.random.random() * 0.004)
        if chance < 0.2:
            return self._unknown("it broke the connection")
        answer = super().create(name, data)
        return self._unknown("no answer in time") if chance < 0.4 else answer

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        if name.startswith("wal") and self.random.random() < 0.2:
            raise StoreFault("no answer in time", StoreFaultKind.UNREACHABLE)
        return super().get(name, start, end)

    def _unknown(self, text: str) -> Created:
        self.on_unknown(StoreFault(text, StoreFaultKind.UNREACHABLE))
        return Created.UNKNOWN


def test_a_store_that_fails_and_loses_answers_gets_everything_once_and_in_order() -> None:
    objects = Objects()
    with running(in_memory(Troubled, objects)) as node:
        for number in range(200):
            node.append(b"%d," % number, is_awaited=number % 3 == 0)
            if number % 20 == 0:
                node.wait_for_confirmation()
        node.wait_for_confirmation()
        assert content_in(in_memory(objects=objects)) == node.written


class NearlyDue(Owner):
    """Always has something to do at once, but for a fraction of a microsecond, and hears of something new now and then."""

    asked = 0

    def next_request(self, now: float) -> ChainRequest | float:
        self.asked += 1
        if self.asked % 2:
            self.wake()
        return now + 2e-7


def test_who_sleeps_for_a_microsecond_wakes_up() -> None:
    """A `SimpleQueue` may wait for ever instead, if the time is over while it looks whether it has to wait."""
    open_store = in_memory()
    owner = NearlyDue(claimed_by("a", open_store), Pacing(interval=0.001, delay=0.02))
    sender = Sender(owner, open_store, depth=DEPTH, clock=lambda: 0.0)
    sender.start()
    try:
        until = time.monotonic() + 2.0  # a busy machine doesn't let it sleep so often
        eventually(lambda: owner.asked > 10_000 or time.monotonic() > until)
        asked = owner.asked
        eventually(lambda: owner.asked > asked)
    finally:
        sender.close()


class Hanging(MemoryStore):
    """Doesn't answer creates while it is held."""

    may_answer: Final = threading.Event()
    waiting: Final = threading.Semaphore(0)

    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        if name.startswith("wal") and not self.may_answer.is_set():
            self.waiting.release()
            assert self.may_answer.wait(LIMIT)
        return super().create(name, data)


def test_several_slots_are_under_way_while_the_store_hangs() -> None:
    Hanging.may_answer.set()
    open_store = in_memory(Hanging)
    with running(open_store) as node:
        Hanging.may_answer.clear()
        for number in range(3):
            node.append(b"%d" % number)
            assert Hanging.waiting.acquire(timeout=LIMIT)
        assert node.owner.confirmed <= 1, "the file may have been opened before the store began to hang"
        Hanging.may_answer.set()
        node.wait_for_confirmation()
        assert content_in(open_store) == b"012"


def test_an_owner_learns_that_another_process_has_taken_the_name() -> None:
    open_store = in_memory()
    with running(open_store) as node:
        node.append(b"one")
        node.wait_for_confirmation()
        claimed_by("b", open_store)
        node.append(b"two")
        node.wait_until(lambda: node.owner.fenced is not None)
        assert node.owner.fenced == "the name was taken over by process 1 on machine-b"
        assert node.owner.confirmed < node.owner.position


class Broken(MemoryStore):
    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        if name.startswith("wal") and b"bad" in b"".join(data if not isinstance(data, bytes) else [data]):
            raise ZeroDivisionError
        return super().create(name, data)


def test_a_bug_in_a_thread_does_not_look_like_a_store_that_hangs() -> None:
    with running(in_memory(Broken)) as node:
        node.append(b"bad")
        with pytest.raises(AssertionError):
            node.wait_for_confirmation()
        assert isinstance(node.sender.bug, ZeroDivisionError)


class Busy(MemoryStore):
    is_busy: Final = threading.Event()
    has_refused: Final = threading.Event()

    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        if self.is_busy.is_set():
            self.on_unknown(StoreFault("the store asks for fewer requests", StoreFaultKind.BUSY))
            self.has_refused.set()
            return Created.UNKNOWN
        return super().create(name, data)


def test_a_fault_is_there_for_operators_until_the_store_answers() -> None:
    with running(in_memory(Busy)) as node:
        node.wait_for_confirmation()  # of the file: otherwise the store's answer to that could end the fault
        Busy.is_busy.set()
        node.append(b"one")
        assert Busy.has_refused.wait(LIMIT)
        assert node.sender.fault is not None
        assert node.sender.fault.text == "the store asks for fewer requests"
        Busy.is_busy.clear()
        node.wait_for_confirmation()
        assert node.sender.fault is None
