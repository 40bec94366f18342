"""What the portable way of waiting has to be careful about; tests/nsqcommon/test_poller.py has what both ways have to do."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Final

import pytest
import trio
import trio.testing

from nsqcommon import portable_readiness
from nsqcommon.portable_readiness import PortableReadiness
from nsqcommon.readiness import VARIABLE, EpollReadiness, make_readiness

IN: Final = select.POLLIN
OUT: Final = select.POLLOUT
HANGS: Final = 1000.0  # seconds on a clock that jumps

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def with_number(number: int, it: socket.socket) -> socket.socket:
    """Move a socket to this free descriptor, if it hasn't got it anyway, as the lowest one that is free."""
    got = it.detach()
    if got != number:
        os.dup2(got, number, inheritable=False)
        os.close(got)
    return socket.socket(fileno=number)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        with trio.fail_after(HANGS):
            await test()

    trio.run(limited, clock=trio.testing.MockClock(autojump_threshold=0))


class Waiter:
    """Notes what was ready, and expects nothing more of it."""

    def __init__(self, ready: PortableReadiness) -> None:
        self.ready = ready
        self.found: list[list[tuple[int, int]]] = []
        self.has_found = trio.Event()
        self.looks = 0

    def serve(self) -> None:
        self.looks += 1
        if events := self.ready.poll(0):
            self.found.append(events)
            self.has_found.set()
            for descriptor, event in events:
                if event & select.POLLHUP:  # it would be reported again and again
                    self.ready.unregister(descriptor)
                else:
                    self.ready.modify(descriptor, 0)


@asynccontextmanager
async def waiting() -> AsyncIterator[Waiter]:
    ready = PortableReadiness()
    waiter = Waiter(ready)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ready.run, waiter.serve)
        await trio.testing.wait_all_tasks_blocked()
        yield waiter
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("variable", "kind"), [("portable", PortableReadiness), ("", EpollReadiness)])
def test_the_environment_chooses(variable: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, variable)
    assert type(make_readiness()) is kind


def test_where_there_is_no_epoll_the_portable_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delattr(select, "epoll")
    assert type(make_readiness()) is PortableReadiness


def test_a_descriptor_that_comes_while_the_poller_sleeps_wakes_it(pair: Pair) -> None:
    async def test() -> None:
        ours, theirs = pair
        async with waiting() as waiter:
            waiter.ready.register(ours.fileno(), IN)
            await trio.testing.wait_all_tasks_blocked()
            assert waiter.found == []
            theirs.send(b"hello")
            await trio.testing.wait_all_tasks_blocked()
            assert waiter.found == [[(ours.fileno(), IN)]]

    run(test)


def test_a_descriptor_that_waits_for_both_is_reported_for_either(pair: Pair) -> None:
    async def test() -> None:
        ours, theirs = pair
        _fill(ours)
        async with waiting() as waiter:
            waiter.ready.register(ours.fileno(), IN | OUT)
            await trio.testing.wait_all_tasks_blocked()
            theirs.send(b"hello")
            await trio.testing.wait_all_tasks_blocked()
            waiter.ready.modify(ours.fileno(), IN | OUT)
            ours.recv(100)
            while _drain(theirs):
                await trio.testing.wait_all_tasks_blocked()
            await trio.testing.wait_all_tasks_blocked()
            assert waiter.found[0] == [(ours.fileno(), IN)]
            assert waiter.found[-1] == [(ours.fileno(), OUT)]

    run(test)


def test_somebody_else_may_wait_at_once_for_a_descriptor_that_is_given_up(pair: Pair) -> None:
    async def test() -> None:
        ours, theirs = pair
        async with waiting() as waiter:
            waiter.ready.register(ours.fileno(), IN)
            await trio.testing.wait_all_tasks_blocked()
            waiter.ready.unregister(ours.fileno())
            theirs.send(b"hello")
            await trio.lowlevel.wait_readable(ours)
            assert waiter.found == []

    run(test)


@pytest.mark.parametrize("closes_for_long", [False, True])
def test_a_number_that_another_socket_gets_is_waited_for_anew(closes_for_long: bool) -> None:
    async def test() -> None:
        async with waiting() as waiter:
            for _ in range(20):  # which of two tasks runs first is chance
                ours, theirs = socket.socketpair()
                with ours, theirs:
                    waiter.ready.register(number := ours.fileno(), IN)
                    await trio.lowlevel.checkpoint()  # the task that waits for it may not have begun yet
                    waiter.ready.unregister(number)
                    ours.close()
                    if closes_for_long:
                        await trio.testing.wait_all_tasks_blocked()
                    again, their_again = socket.socketpair()
                    with with_number(number, again), their_again:
                        waiter.ready.register(number, IN)
                        await trio.lowlevel.checkpoint()
                        their_again.send(b"hello")
                        await trio.testing.wait_all_tasks_blocked()
                        assert waiter.found.pop() == [(number, IN)]
                        waiter.ready.unregister(number)

    run(test)


def test_the_end_of_a_connection_of_which_nothing_is_expected_is_noticed(pair: Pair) -> None:
    async def test() -> None:
        ours, theirs = pair
        async with waiting() as waiter:
            waiter.ready.register(ours.fileno(), 0)
            await trio.testing.wait_all_tasks_blocked()
            theirs.close()
            await waiter.has_found.wait()
            assert waiter.found[0] == [(ours.fileno(), select.POLLHUP)]

    run(test)


def test_a_descriptor_for_which_the_system_has_no_room_is_served_all_the_same(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    async def test() -> None:
        ours, theirs = pair
        async with waiting() as waiter:
            monkeypatch.setattr(trio.lowlevel, "wait_readable", refuse)
            waiter.ready.register(ours.fileno(), IN)
            await trio.testing.wait_all_tasks_blocked()
            theirs.send(b"hello")
            await waiter.has_found.wait()
            assert waiter.found[0] == [(ours.fileno(), IN)]

    run(test)


def test_expectations_may_change_several_times_at_once(pair: Pair) -> None:
    async def test() -> None:
        ours, theirs = pair
        async with waiting() as waiter:
            waiter.ready.register(ours.fileno(), 0)
            for _ in range(50):  # which of two tasks runs first is chance
                for events in (IN, 0, IN, OUT | IN, IN):
                    waiter.ready.modify(ours.fileno(), events)
                await trio.testing.wait_all_tasks_blocked()
            theirs.send(b"hello")
            await trio.testing.wait_all_tasks_blocked()
            assert waiter.found == [[(ours.fileno(), IN)]]

    run(test)


def test_nobody_looks_for_what_was_closed() -> None:
    async def test() -> None:
        async with waiting() as waiter:
            ours, theirs = socket.socketpair()
            with ours, theirs:
                waiter.ready.register(ours.fileno(), IN)
                waiter.ready.unregister(ours.fileno())
            await trio.testing.wait_all_tasks_blocked()
            before = waiter.looks
            await trio.sleep(10)
            assert waiter.looks == before

    run(test)


def test_a_descriptor_may_come_before_the_wait_begins_and_go_after_it_has_ended(pair: Pair) -> None:
    async def test() -> None:
        ours, theirs = pair
        ready = PortableReadiness()
        ready.register(ours.fileno(), IN)
        theirs.send(b"hello")
        with trio.CancelScope() as scope:
            await ready.run(scope.cancel)
        assert scope.cancelled_caught
        assert ready.poll(0) == [(ours.fileno(), IN)]
        ready.modify(ours.fileno(), 0)
        ready.unregister(ours.fileno())

    run(test)


class MacPoll:
    """`select.poll` as macOS has it: a peer that has only stopped sending is reported as a hang-up, asked for or not."""

    def __init__(self) -> None:
        self._poll = _POLL()

    def register(self, descriptor: int, events: int) -> None:
        self._poll.register(descriptor, events | select.POLLRDHUP)

    modify = register

    def unregister(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        ended = select.POLLRDHUP
        found = self._poll.poll(timeout)
        return [(fd, (event & ~ended) | (select.POLLHUP if event & ended else 0)) for fd, event in found]


_POLL: Final = select.poll


def test_a_hang_up_as_macos_reports_it_does_not_end_a_connection_that_may_still_be_sent_to(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portable_readiness, "_HANG_UP_IS_THE_END", False)
    monkeypatch.setattr(select, "poll", MacPoll)
    ours, theirs = pair
    ready = PortableReadiness()
    ready.register(ours.fileno(), IN)
    theirs.shutdown(socket.SHUT_WR)
    assert ready.poll(0) == [(ours.fileno(), IN | select.POLLHUP)]  # read it, and find the end
    ready.modify(ours.fileno(), OUT)
    assert ready.poll(0) == [(ours.fileno(), OUT)]
    _fill(ours)
    assert ready.poll(0) == []
    ready.modify(ours.fileno(), 0)
    assert ready.poll(0) == []


def _fill(sock: socket.socket) -> None:
    try:
        while True:
            sock.send(bytes(65536))
    except BlockingIOError:
        pass


def _drain(sock: socket.socket) -> bytes:
    try:
        return sock.recv(1 << 20)
    except BlockingIOError:
        return b""
