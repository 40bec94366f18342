"""nsqd registers a new topic at nsqlookupd before it answers the first publish."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import trio

from nsqcommon.wire.commands import pub, sub
from nsqd.lookup.dial import Place
from nsqd.lookup.lookup import Lookup
from nsqd.lookup.settings import LookupSettings
from nsqd.turn import Turn
from tests.support.fake_lookupd import FakeLookupd
from tests.support.fake_store import FakeStore
from tests.support.jumping import jumping
from tests.support.node import Client, Node, NoSyncer

LIMIT = 30.0
SETTINGS = LookupSettings(me=b"{}", most=1000, connect_timeout=LIMIT, request_timeout=LIMIT, tls=None)


class Disk:
    """What a turn asks of the disk."""

    journal_error: str | None = None
    publishing_error: str | None = None

    def __init__(self, store: FakeStore) -> None:
        self._store = store
        self.syncer = NoSyncer()

    def write_logs(self) -> None:
        self._store.write_logs()

    def write_journal(self, *, force: bool = False) -> bool:
        self._store.write_journal()
        return True

    async def sync(self) -> None: ...


class Announcing:
    """A node that is registered at an nsqlookupd behind a real socket."""

    def __init__(self) -> None:
        self.node = Node()
        self.lookupd = FakeLookupd(broadcast_address="")  # so nsqd cannot ask it over HTTP
        self.lookup = Lookup(self.node.broker, SETTINGS, dial_with=self._dial)
        self.lookup.configure(["10.0.0.1:4160"])
        disk = Disk(self.node.store)
        self.turn = Turn(self.node.broker, disk, announce=self.lookup.announce, flush=self._flush)
        self.on_its_way = b""  # bytes sent to nsqlookupd when answers were last sent
        self._ours, self._theirs = socket.socketpair()

    async def _dial(self, place: Place, name: str) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        return trio.SocketStream(trio.socket.from_stdlib_socket(self._ours))

    async def run(self, nursery: trio.Nursery) -> None:
        """Run, and return when it is registered."""
        nursery.start_soon(self.lookupd.serve, trio.SocketStream(trio.socket.from_stdlib_socket(self._theirs)))
        nursery.start_soon(self.lookup.run, self.turn)
        await until(lambda: any(peer.connected for peer in self.lookup.peers))

    def _flush(self) -> None:
        # The fake nsqlookupd has no time to read within one turn.
        try:
            self.on_its_way = self._theirs.recv(1 << 16, socket.MSG_PEEK)
        except BlockingIOError:
            self.on_its_way = b""

    def do(self, client: Client, data: bytes) -> bytes:
        client.handler.receive(data, self.node.now)
        self.turn.finish()
        return self.on_its_way


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  # nsqd and the fake tell nobody
        await trio.sleep(0.01)


@jumping  # both ends of the socket are in this process, and nsqd waits a second for each reply, however busy it is
async def in_a_cluster(test: Callable[[Announcing], Awaitable[None]]) -> None:
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            it = Announcing()
            await it.run(nursery)
            await test(it)
            nursery.cancel_scope.cancel()


def test_a_topic_is_on_its_way_to_nsqlookupd_when_its_first_publish_is_answered() -> None:
    async def test(it: Announcing) -> None:
        client = it.node.client()
        for number in range(5):  # also while replies to the ones before are awaited
            assert it.do(client, pub(f"t{number}", b"x")).endswith(b"REGISTER t%d\n" % number)
        assert it.do(client, pub("t0", b"x")).endswith(b"REGISTER t4\n"), "there is nothing new to say"
        await until(lambda: it.lookupd.last.told == [f"REGISTER t{number}" for number in range(5)])

    in_a_cluster(test)


def test_a_channel_is_on_its_way_too_and_the_topic_is_not_told_twice() -> None:
    async def test(it: Announcing) -> None:
        assert it.do(it.node.client(), sub("t", "c")) == b"REGISTER t c\n"

    in_a_cluster(test)


def test_more_than_may_be_on_its_way_at_once_is_told_by_and_by() -> None:
    async def test(it: Announcing) -> None:
        for number in range(1000):
            it.node.broker.topic(f"t{number}")
        it.turn.finish()
        assert it.on_its_way.count(b"REGISTER ") == 256
        await until(lambda: len(it.lookupd.last.told) == 1000)
        assert it.lookupd.registered == {f"t{number}" for number in range(1000)}

    in_a_cluster(test)


def test_a_socket_that_takes_no_more_delays_no_publish_and_loses_nothing() -> None:
    async def test(it: Announcing) -> None:
        client = it.node.client()
        write = os.write
        taken = iter((5, 0, 1, 0, 0, 3))

        def write_little(descriptor: int, data: bytes) -> int:
            if not (size := next(taken)):
                raise BlockingIOError
            return write(descriptor, data[:size])

        with patch("nsqd.lookup.conversation.os.write", write_little):
            for number in range(6):
                it.do(client, pub(f"t{number}", b"x"))
        await until(lambda: len(it.lookupd.last.told) == 6)
        assert it.lookupd.last.told == [f"REGISTER t{number}" for number in range(6)]

    in_a_cluster(test)
