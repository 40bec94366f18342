"""The way of a publish with --ack=synced: from a socket through a turn, the disk's thread and the poller to its answer."""

from __future__ import annotations

import errno
import select
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Final

import pytest
import trio

from nsqcommon.poller import Connection, Poller
from nsqd.broker.batch import Receipt
from nsqd.log.store_tasks import StoreTasks
from tests.nsqd.log.harness import OpenStore, TroubledFiles

LIMIT: Final = 30.0  # seconds


class HangingFiles(TroubledFiles):
    """A disk that hangs in a sync while the test wants it to."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.answers.set()

    def sync(self, descriptor: int) -> None:
        assert self.answers.wait(LIMIT)
        super().sync(descriptor)


class Turn:
    """What a node's turn does for its store."""

    def __init__(self, opened: OpenStore, flush: Callable[[], None]) -> None:
        self._store = opened.store
        self._flush = flush

    def begin(self) -> float:
        return self.take_time()

    def take_time(self) -> float:
        return trio.current_time()

    def is_full(self) -> bool:
        return False

    def finish(self) -> None:
        self._store.write_logs()
        self._flush()
        self._store.syncer.hurry()


class Publisher:
    """Publishes what it receives and says `OK` or `NO` when the disk has answered; `?` is answered at once."""

    finished = lingers = aborted = False
    reading = True
    next_deadline = inf
    write_timeout = LIMIT

    def __init__(self, opened: OpenStore, wake: Callable[[], None]) -> None:
        self._opened = opened
        self._wake = wake
        self._out: list[bytes] = []

    def receive(self, data: bytes, now: float) -> None:
        if data == b"?":
            self._say(b"!")
            return
        receipt: Receipt = self._opened.append(data)
        receipt.when_settled(lambda: self._say(b"NO" if receipt.error else b"OK"))

    def _say(self, data: bytes) -> None:
        self._out.append(data)
        self._wake()

    def bytes_to_send(self) -> list[bytes]:
        out, self._out = self._out, []
        return out

    def end(self) -> None: ...
    def sent(self, unsent: int) -> None: ...
    def abort(self) -> None: ...
    def tick(self, now: float) -> None: ...


class Node:
    def __init__(self, opened: OpenStore, poller: Poller[Turn]) -> None:
        self._opened = opened
        self._poller = poller
        self._peers: list[trio.SocketStream] = []

    def connect(self) -> trio.SocketStream:
        def make(connection: Connection, wake: Callable[[], None]) -> Publisher:
            return Publisher(self._opened, wake)

        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self._poller.add(ours, "@", make)
        self._peers.append(trio.SocketStream(trio.socket.from_stdlib_socket(theirs)))
        return self._peers[-1]

    async def close(self) -> None:
        self._poller.close_all()
        for peer in self._peers:
            await peer.aclose()


@asynccontextmanager
async def running(path: Path, files: TroubledFiles, *, watches: bool = True) -> AsyncIterator[Node]:
    """`watches`: the poller ends syncs; otherwise only the task does."""
    opened = OpenStore(path, files, ack="synced")
    poller = Poller(lambda flush: Turn(opened, flush), busy_poll=0.0001)
    tasks = StoreTasks(opened.store, opened, on_loaded=opened.on_loaded, on_settled=poller.turn.finish)
    syncer = opened.store.syncer
    if watches:
        poller.watch(tasks.thread.doorbell.descriptor, syncer.end, is_soon=syncer.answers_soon)
    node = Node(opened, poller)
    async with trio.open_nursery() as nursery:
        await nursery.start(tasks.run)
        async with trio.open_nursery() as serving:
            serving.start_soon(poller.run)
            yield node
            serving.cancel_scope.cancel()
        await node.close()
        nursery.cancel_scope.cancel()
    opened.kill()


async def heard(peer: trio.SocketStream) -> bytes:
    with trio.fail_after(LIMIT):
        return bytes(await peer.receive_some(2))


@pytest.mark.parametrize("watches", [True, False])
def test_each_publish_is_answered_after_its_sync(tmp_path: Path, watches: bool) -> None:
    files = HangingFiles()

    async def test() -> None:
        async with running(tmp_path, files, watches=watches) as node:
            peer = node.connect()
            for number in range(50):
                files.calls.clear()
                await peer.send_all(b"%d" % number)
                assert await heard(peer) == b"OK"
                assert ("sync", f"{0:020}.log") in files.calls

    trio.run(test)


def test_publishers_on_many_connections_are_all_answered(tmp_path: Path) -> None:
    async def publish(peer: trio.SocketStream) -> None:
        for number in range(20):
            await peer.send_all(b"%d" % number)
            assert await heard(peer) == b"OK"

    async def test() -> None:
        async with running(tmp_path, HangingFiles()) as node, trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(publish, node.connect())

    trio.run(test)


def test_a_disk_that_hangs_holds_up_only_those_who_wait_for_it(tmp_path: Path) -> None:
    files = HangingFiles()

    async def test() -> None:
        async with running(tmp_path, files) as node:
            publisher, other = node.connect(), node.connect()
            await publisher.send_all(b"quick")
            assert await heard(publisher) == b"OK"
            files.answers.clear()
            try:
                await publisher.send_all(b"slow")
                for _ in range(10):
                    await other.send_all(b"?")
                    assert await heard(other) == b"!"
                assert not select.select([publisher.socket], [], [], 0)[0]
            finally:
                files.answers.set()
            assert await heard(publisher) == b"OK"

    trio.run(test)


def test_a_failed_sync_is_no_ok(tmp_path: Path) -> None:
    files = HangingFiles()

    async def test() -> None:
        async with running(tmp_path, files) as node:
            peer = node.connect()
            await peer.send_all(b"x")
            assert await heard(peer) == b"OK"
            files.fail("sync", errno.EIO)
            await peer.send_all(b"y")
            assert await heard(peer) == b"NO"

    trio.run(test)


def test_an_end_waits_for_a_sync_that_a_turn_has_begun(tmp_path: Path) -> None:
    files = HangingFiles()
    opened = OpenStore(tmp_path, files, ack="synced")
    syncer = opened.store.syncer
    tasks = StoreTasks(opened.store, opened, on_loaded=opened.on_loaded, on_settled=lambda: None)

    async def test() -> Receipt:
        async with trio.open_nursery() as nursery:
            await nursery.start(tasks.run)
            with trio.fail_after(LIMIT):
                await opened.store.sync()
                while syncer.is_busy:
                    await opened.store.sync()
            files.answers.clear()  # nothing is awaited between this and the end of the node
            receipt = opened.append(b"x")
            opened.store.write_logs()
            opened.store.syncer.hurry()
            assert syncer.is_busy
            nursery.cancel_scope.cancel()
            files.answers.set()
        return receipt

    receipt = trio.run(test)
    assert (receipt.settled, receipt.error) == (True, None)
    assert not syncer.is_busy
    opened.kill()
