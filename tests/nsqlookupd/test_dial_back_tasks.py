"""nsqlookupd connects back to nodes that register: how often, how many at a time, and what it makes of it."""

from __future__ import annotations

import gc
import logging
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial, wraps
from typing import Any

import pytest
import trio
import trio.testing

from nsqcommon.wire.lookup import NodeIdentity
from nsqlookupd.dial_back import (
    AT_ONCE,
    LIMIT,
    LOOKUPS,
    LOOKUPS_OF_ONE,
    RETRY_INTERVAL,
    DialBack,
    DialBackRules,
    NameLookup,
    resolve_in_thread,
)
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
        self.lookups: list[NameLookup] = []
        self.is_stuck = self.has_no_threads = False
        self.dial_back = DialBack(self.registry, self, DialBackRules(), resolve=self._resolve, connect=self._connect)
        self.registry.on_come = self.dial_back.add

    def begin(self) -> float:
        return 0.0

    def finish(self) -> None: ...

    async def _resolve(self, lookup: NameLookup) -> list[str]:
        if self.has_no_threads:
            lookup.on_end()
            raise RuntimeError("can't start new thread")
        await trio.lowlevel.checkpoint()
        lookup.has_begun = not self.is_stuck
        self.lookups.append(lookup)
        if lookup.host.startswith("slow") or self.is_stuck:
            await trio.sleep_forever()  # and its thread goes on
        lookup.on_end()
        if lookup.host.startswith("nosuch"):
            raise socket.gaierror(-2, "Name or service not known")
        return [lookup.host.removeprefix("at-")]

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
        identity = NodeIdentity(
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
        "client(10.0.0.9:51234) - unreachable at its broadcast address 10.0.0.9:4150: "
        "dial 10.0.0.9:4150: connection refused; set another --broadcast-address on this nsqd",
        "client(10.0.0.9:51234) - reachable again at 10.0.0.9:4150",
    ]


# Names that do not resolve: the look-ups of a dead name server go on for as long as the resolver is patient


@jumping
async def test_an_honest_node_is_judged_at_once_while_400_dead_names_come_from_elsewhere() -> None:
    async with directory() as it:
        attackers = [it.nsqd("10.0.6.6", f"slow{number}") for number in range(200)]
        await trio.sleep(LIMIT / 2)
        honest = it.nsqd("10.0.0.5", "at-10.0.0.5")
        broken = it.nsqd("10.0.0.9", "at-10.0.0.9")
        attackers += [it.nsqd("10.0.6.6", f"slow{number}") for number in range(200, 400)]
        await trio.sleep(SOON)
        assert it.dialled == ["10.0.0.5", "10.0.0.9"]
        assert (honest.unreachable, broken.unreachable) == ("", "dial 10.0.0.9:4150: connection refused")
        await trio.sleep(1000)
        assert honest.unreachable == ""
        assert len([lookup for lookup in it.lookups if lookup.host.startswith("slow")]) == LOOKUPS_OF_ONE
        verdicts = {peer.unreachable for peer in attackers}
        assert len(verdicts) == LOOKUPS_OF_ONE + 1, "nothing is said of those that nobody has looked up"


@jumping
async def test_those_who_share_an_address_with_dead_names_are_judged_when_a_look_up_has_ended() -> None:
    async with directory() as it:
        for number in range(LOOKUPS_OF_ONE):
            it.nsqd("10.0.0.5", f"slow{number}")
        named, numbered = it.nsqd("10.0.0.5", "at-10.0.0.5"), it.nsqd("10.0.0.5")
        await trio.sleep(LIMIT * AT_ONCE)
        assert it.dialled == ["10.0.0.5"], "an IP address needs no look-up"
        assert (named.unreachable, numbered.unreachable) == ("", "")
        it.lookups[0].on_end()
        await trio.sleep(SOON)
        assert it.dialled == ["10.0.0.5", "10.0.0.5"]


@jumping
async def test_dead_names_from_everywhere_delay_verdicts_and_make_none() -> None:
    async with directory() as it:
        for number in range(400):
            it.nsqd(f"10.1.{number // 200}.{number % 200}", f"slow{number}")
        honest = it.nsqd("10.0.0.5", "at-10.0.0.5")
        await trio.sleep(1000)
        assert (it.dialled, honest.unreachable) == ([], "")
        assert len(it.lookups) == LOOKUPS
        for lookup in it.lookups[:]:
            lookup.on_end()
        await trio.sleep(1000)
        assert len(it.lookups) == 2 * LOOKUPS


@jumping
async def test_one_network_of_ipv6_is_one_source() -> None:
    async with directory() as it:
        for number in range(100):
            it.nsqd(f"[2001:db8::{number:x}]", f"slow{number}")
        await trio.sleep(1000)
        assert len(it.lookups) == LOOKUPS_OF_ONE


@jumping
async def test_a_look_up_that_has_not_begun_in_time_is_no_verdict() -> None:
    async with directory() as it:
        it.is_stuck = True
        peer = it.nsqd("10.0.0.5", "at-10.0.0.9")
        await trio.sleep(LIMIT + SOON)
        assert (len(it.lookups), peer.unreachable) == (1, "")


@jumping
async def test_a_machine_without_a_thread_left_says_nothing_and_tries_again() -> None:
    async with directory() as it:
        it.has_no_threads = True
        peer = it.nsqd("10.0.0.5", "at-10.0.0.5")
        await trio.sleep(SOON)
        assert (it.dialled, peer.unreachable) == ([], "")
        it.has_no_threads = False
        await trio.sleep(RETRY_INTERVAL)
        assert it.dialled == ["10.0.0.5"]


@jumping
async def test_registrations_that_have_left_do_not_pile_up_behind_dead_names() -> None:
    async with directory() as it:
        for number in range(LOOKUPS_OF_ONE):
            it.nsqd("10.0.0.77", f"slow{number}")
        await trio.sleep(LIMIT * AT_ONCE)
        for number in range(5_000):
            it.registry.disconnect(it.nsqd("10.0.0.77", f"slow-again-{number}"))
        gc.collect()
        held = [peer for peer in gc.get_objects() if type(peer) is Peer and peer.id == "10.0.0.77:51234"]
        assert len(held) < 500


def test_threads_of_names_that_hang_take_no_place_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    dns_is_back = threading.Event()
    ask_the_system = socket.getaddrinfo

    def look_up(host: str, port: int, *rest: Any, **named: Any) -> list[Any]:
        if host.startswith("slow"):
            assert dns_is_back.wait(60)
        elif host != "good":  # a thread that another test has left
            return ask_the_system(host, port, *rest, **named)
        return [(0, 0, 0, "", ("10.0.0.5", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    ended: list[str] = []

    async def main() -> None:
        all_ended = trio.Event()

        def end(name: str) -> None:
            ended.append(name)
            if len(ended) > LOOKUPS:
                all_ended.set()

        async with trio.open_nursery() as nursery:
            for number in range(LOOKUPS):  # more than trio's own limit
                name = f"slow{number}"
                nursery.start_soon(resolve_in_thread, NameLookup(name, 4150, partial(end, name)))
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(60):
                assert await resolve_in_thread(NameLookup("good", 4150, partial(end, "good"))) == ["10.0.0.5"]
            nursery.cancel_scope.cancel()
        assert ended == ["good"]
        dns_is_back.set()
        with trio.fail_after(60):
            await all_ended.wait()

    try:
        trio.run(main)
    finally:
        dns_is_back.set()
