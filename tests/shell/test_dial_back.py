"""nsqlookupd connects back to nodes that register: how often, how many at a time, and what it makes of it."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps

import pytest
import trio
import trio.testing

from nsqcommon.wire.lookup import Identity
from nsqlookupd.dial_back import AT_ONCE, LIMIT, RETRY_INTERVAL, DialBack, Rules
from nsqlookupd.registry import Peer, Registry

SOON = 0.01


def jumping(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        async def limited() -> None:
            with trio.fail_after(10_000):
                await test()

        trio.run(limited, clock=trio.testing.MockClock(autojump_threshold=0))

    del run.__wrapped__  # otherwise pytest would look for the test's own arguments
    return run


class Directory:
    """A registry, and a network in which every host name is an IP address and every connection is noted."""

    def __init__(self) -> None:
        self.registry = Registry(inactive_timeout=300, tombstone_lifetime=45)
        self.dials: list[tuple[float, str]] = []
        self.refused = {"10.0.0.9"}
        self.hang = {"10.0.0.8"}
        self.busy = self.most_busy = 0
        self.dial_back = DialBack(self.registry, self, Rules(), resolve=self._resolve, connect=self._connect)
        self.registry.on_come = self.dial_back.add

    def begin(self) -> float:
        return 0.0

    def finish(self) -> None: ...

    async def _resolve(self, host: str, port: int) -> list[str]:
        await trio.lowlevel.checkpoint()
        if host.startswith("slow"):
            await trio.sleep_forever()
        if host.startswith("nosuch"):
            raise socket.gaierror(-2, "Name or service not known")
        return [host]

    async def _connect(self, ip: str, port: int) -> None:
        self.dials.append((trio.current_time(), ip))
        self.busy += 1
        self.most_busy = max(self.busy, self.most_busy)
        try:
            await trio.sleep(1000 if ip in self.hang else 0)
        finally:
            self.busy -= 1
        if ip in self.refused:
            raise ConnectionRefusedError(111, "Connection refused")

    def nsqd(self, ip: str, host: str = "", port: int = 4150) -> Peer:
        identity = Identity(
            broadcast_address=host or ip,
            hostname="",
            http_port=4151,
            tcp_port=port,
            topology_region="",
            topology_zone="",
            version="1.3.0",
        )
        return self.registry.connect(f"{ip}:51234", identity)

    @property
    def dialled(self) -> list[str]:
        return [ip for _, ip in self.dials]


@asynccontextmanager
async def directory() -> AsyncIterator[Directory]:
    made = Directory()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.dial_back.run)
        yield made
        nursery.cancel_scope.cancel()


@jumping
async def test_a_node_that_can_be_reached_is_tried_once() -> None:
    async with directory() as it:
        peer = it.nsqd("10.0.0.5")
        await trio.sleep(1000)
        assert (it.dialled, peer.unreachable) == (["10.0.0.5"], "")


@jumping
async def test_a_node_that_cannot_be_reached_is_tried_until_it_can() -> None:
    async with directory() as it:
        peer = it.nsqd("10.0.0.9")
        index = it.registry.nodes_index
        await trio.sleep(SOON)
        assert peer.unreachable == "dial 10.0.0.9:4150: connection refused"
        assert it.registry.nodes_index > index
        await trio.sleep(3 * RETRY_INTERVAL)
        assert len(it.dials) == 4
        it.refused.clear()
        await trio.sleep(RETRY_INTERVAL)
        assert peer.unreachable == ""
        await trio.sleep(1000)
        assert len(it.dials) == 5


@jumping
async def test_who_does_not_answer_is_given_up_after_a_moment() -> None:
    async with directory() as it:
        peer = it.nsqd("10.0.0.8")
        await trio.sleep(LIMIT + SOON)
        assert peer.unreachable == "dial 10.0.0.8:4150: i/o timeout"


@jumping
async def test_a_name_server_that_does_not_answer_is_told_from_a_node_that_does_not() -> None:
    async with directory() as it:
        peer = it.nsqd("10.0.0.5", "slow1")
        await trio.sleep(LIMIT + SOON)
        assert (it.dials, peer.unreachable) == ([], "lookup slow1: i/o timeout")


@jumping
async def test_a_name_that_does_not_resolve_is_no_address() -> None:
    async with directory() as it:
        peer = it.nsqd("10.0.0.5", "nosuch1")
        await trio.sleep(SOON)
        assert (it.dials, peer.unreachable) == ([], "lookup nosuch1: no such host")


@jumping
async def test_nobody_is_connected_to_because_somebody_else_says_so() -> None:
    async with directory() as it:
        peers = [it.nsqd("10.0.0.5", host) for host in ("10.0.0.6", "127.0.0.1", "169.254.169.254")]
        await trio.sleep(100)
        assert it.dials == []
        assert [peer.unreachable for peer in peers] == ["", "", ""], "nobody knows"


@jumping
async def test_a_port_that_cannot_be_is_not_connected_to() -> None:
    async with directory() as it:
        peers = [it.nsqd("10.0.0.5", port=port) for port in (-1, 70_000, 10**30)]
        await trio.sleep(100)
        assert it.dials == []
        assert all("no such port" in peer.unreachable for peer in peers)


@jumping
async def test_a_few_are_tried_at_a_time_and_new_ones_before_those_that_failed() -> None:
    async with directory() as it:
        it.hang = {f"10.0.1.{number}" for number in range(100)}
        for ip in sorted(it.hang):
            it.nsqd(ip)
        await trio.sleep(SOON)
        assert it.most_busy == AT_ONCE
        await trio.sleep(100)
        assert it.most_busy == AT_ONCE
        it.nsqd("10.0.0.5")
        await trio.sleep(LIMIT + SOON)
        assert "10.0.0.5" in it.dialled


@jumping
async def test_who_has_left_is_not_tried_again() -> None:
    async with directory() as it:
        it.registry.disconnect(it.nsqd("10.0.0.9"))
        peer = it.nsqd("10.0.0.9")
        await trio.sleep(SOON)
        it.registry.disconnect(peer)
        await trio.sleep(100)
        assert len(it.dials) == 1


def test_the_verdict_is_logged_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with directory() as it:
            it.nsqd("10.0.0.9")
            await trio.sleep(5 * RETRY_INTERVAL)
            it.refused.clear()
            await trio.sleep(5 * RETRY_INTERVAL)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [record.getMessage() for record in caplog.records] == [
        "client(10.0.0.9:51234) - cannot be reached at 10.0.0.9:4150, where clients will look for it: "
        "dial 10.0.0.9:4150: connection refused; it needs another --broadcast-address",
        "client(10.0.0.9:51234) - can be reached at 10.0.0.9:4150 now",
    ]
