"""The poller on real sockets: what it reads, sends, bounds, drops and hands over.

Kernel buffers answer at once, so trio's clock may jump whenever all tasks wait; the poller uses that clock, too. Each test
runs on epoll, and in the portable way.
"""

from __future__ import annotations

import gc
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial, wraps
from math import inf
from time import monotonic
from typing import Final, TypeVar

import pytest
import trio
import trio.testing

from nsqcommon import poller as poller_module
from nsqcommon import readiness
from nsqcommon.budget import Budget
from nsqcommon.poller import Connection, Poller
from nsqcommon.wire.frames import Piece
from tests.support.quick import unless_quick

HANGS: Final = 1000.0  # seconds on a clock that jumps


@pytest.fixture(autouse=True, params=["epoll", "portable"] if hasattr(select, "epoll") else ["portable"])
def kind_of_readiness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(readiness.VARIABLE, request.param)


def jumping(test: Callable[[], Awaitable[None]]) -> Callable[[pytest.MonkeyPatch], None]:
    """Run the test under trio with a clock that jumps, which the poller reads as well."""

    @wraps(test)
    def run(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(poller_module, "monotonic", trio.current_time)

        async def limited() -> None:
            with trio.fail_after(HANGS):
                await test()

        trio.run(limited, clock=trio.testing.MockClock(autojump_threshold=0))

    del run.__wrapped__  # otherwise pytest would look for the test's own arguments
    return run


class FakeTurn:
    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush
        self.began = -inf
        self.room: float = inf  # for connections, in each turn
        self.read = 0  # in this turn
        self.reads: list[int] = []

    def begin(self) -> float:
        now = self.take_time()
        self.read = 0
        return now

    def take_time(self) -> float:
        self.read += 1
        self.began = trio.current_time()
        return self.began

    def is_full(self) -> bool:
        return self.read >= self.room

    def finish(self) -> None:
        self.reads.append(self.read)
        self._flush()


class Echo:
    """Echoes what it gets. `!` causes a fatal error, `?` a bug, `>` a flood."""

    def __init__(self, connection: Connection, wake: Callable[[], None]) -> None:
        self.connection = connection
        self.wake = wake
        self.out: list[bytes] = []
        self.heard = 0
        self.finished = False
        self.lingers = False
        self.aborted = False
        self.ended = False
        self.gone = False
        self.reading = True
        self.unsent = 0
        self.most_unsent = 0
        self.next_deadline = inf
        self.write_timeout = 30.0
        self.ticks: list[float] = []

    def receive(self, data: bytes, now: float) -> None:
        self.heard += len(data)
        if data == b"?":
            raise ZeroDivisionError
        self.finished |= data.endswith(b"!")
        self.say(b"x" * 100_000 if data == b">" else data)

    def say(self, data: bytes) -> None:
        self.out.append(data)
        self.wake()

    def end(self) -> None:
        self.ended = self.finished = True
        self.wake()

    def bytes_to_send(self) -> list[bytes]:
        out, self.out = self.out, []
        return out

    def sent(self, unsent: int) -> None:
        self.unsent = unsent
        self.most_unsent = max(self.most_unsent, unsent)

    def abort(self) -> None:
        self.gone = True

    def tick(self, now: float) -> None:
        self.ticks.append(now)
        self.next_deadline = now + 10 if len(self.ticks) < 3 else inf
        self.say(b"tick")


E = TypeVar("E", bound=Echo)


class Bench:
    def __init__(self, poller: Poller[FakeTurn], turn: FakeTurn) -> None:
        self.poller = poller
        self.turn = turn
        self.handlers: list[Echo] = []
        self.peers: list[socket.socket] = []

    def make(self, connection: Connection, wake: Callable[[], None], *, deadline: float = inf) -> Echo:
        self.handlers.append(Echo(connection, wake))
        self.handlers[-1].next_deadline = deadline
        return self.handlers[-1]

    def connect_to(self, kind: type[E], deadline: float) -> E:
        """Connect to a handler of another kind; its peer is the last one of `peers`."""
        ours, theirs = socket.socketpair()
        made: list[E] = []

        def make(connection: Connection, wake: Callable[[], None]) -> E:
            made.append(kind(connection, wake))
            made[-1].next_deadline = deadline
            return made[-1]

        self.poller.add(ours, "@", make)
        self.peers.append(theirs)
        return made[-1]

    def connect(self, deadline: float = inf) -> tuple[trio.SocketStream, Echo]:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        self.poller.add(ours, "@", partial(self.make, deadline=deadline))
        peer = trio.SocketStream(trio.socket.from_stdlib_socket(_nonblocking(theirs)))
        self.peers.append(theirs)
        return peer, self.handlers[-1]


def _nonblocking(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    return sock


@asynccontextmanager
async def bench(*, busy_poll: float = 0.0) -> AsyncIterator[Bench]:
    poller = Poller(FakeTurn, busy_poll=busy_poll)
    made = Bench(poller, poller.turn)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poller.run)
            yield made
            nursery.cancel_scope.cancel()
    finally:  # also of a test that failed, or the next one is blamed for its sockets
        poller.close_all()
        for peer in made.peers:
            peer.close()


async def hear(peer: trio.SocketStream, length: int) -> bytes:
    data = b""
    while len(data) < length and (more := await peer.receive_some(65536)):
        data += more
    return data


async def hear_the_end(peer: trio.SocketStream) -> bytes:
    data = b""
    try:
        while more := await peer.receive_some(65536):
            data += more
    except trio.BrokenResourceError:
        pass
    return data


@jumping
async def test_answers_come_back() -> None:
    async with bench() as b:
        peer, _ = b.connect()
        await peer.send_all(b"hello")
        assert await hear(peer, 5) == b"hello"


class Gatherer(Echo):
    """Answers with large pieces."""

    def __init__(self, connection: Connection, wake: Callable[[], None]) -> None:
        super().__init__(connection, wake)
        self.pieces: list[Piece] = []

    def send(self, pieces: list[Piece]) -> None:
        self.pieces += pieces
        self.wake()

    def bytes_to_send(self) -> list[Piece]:  # type: ignore[override]
        pieces, self.pieces = self.pieces, []
        return pieces


@pytest.mark.parametrize("count", [1, 2, 40, 700])
def test_large_pieces_arrive_whole_and_in_order(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    @jumping
    async def run() -> None:
        async with bench() as b:
            gatherer = b.connect_to(Gatherer, inf)
            bodies = [bytes([number % 256]) * (5000 + number) for number in range(count)]
            pieces: list[Piece] = []
            for body in bodies:
                pieces += [b"head", memoryview(body)]
            gatherer.send([*pieces])
            b.poller.flush()
            gatherer.send([b"small"])  # waits behind what the socket has not taken
            gatherer.send([*pieces])
            b.poller.flush()
            peer = trio.SocketStream(trio.socket.from_stdlib_socket(_nonblocking(b.peers[-1])))
            whole = b"".join(b"head" + body for body in bodies)
            assert await hear(peer, 2 * len(whole) + 5) == whole + b"small" + whole
            assert gatherer.unsent == 0

    run(monkeypatch)


@jumping
async def test_what_a_peer_does_not_read_keeps_no_view() -> None:
    async with bench() as b:
        gatherer = b.connect_to(Gatherer, inf)
        batch = bytearray(4_000_000)
        view = memoryview(batch)
        for _ in range(2):  # the socket takes a part of the first, and the second waits behind it
            gatherer.send([b"head", view[:2_000_000], b"head", view[2_000_000:]])
            b.poller.flush()
        assert gatherer.unsent > 3_000_000
        view.release()
        batch.clear()  # raises BufferError if a view is left


@jumping
async def test_peer_that_is_gone_is_dropped_when_large_pieces_are_sent() -> None:
    async with bench() as b:
        gatherer = b.connect_to(Gatherer, inf)
        b.peers[-1].close()
        gatherer.send([b"head", bytes(5000)])
        b.poller.flush()
        assert gatherer.gone


@jumping
async def test_new_connection_is_told_the_time() -> None:
    async with bench() as b:
        await trio.sleep(500)
        b.connect()
        assert b.turn.began == trio.current_time()


@jumping
async def test_what_is_read_late_in_a_turn_was_not_said_at_its_begin() -> None:
    times: list[float] = []
    turn_lasts = 0.5

    def receive(data: bytes, now: float) -> None:
        times.append(now)
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        clock.jump(turn_lasts)

    async with bench() as b:
        peers = [b.connect()[0] for _ in range(2)]
        for handler in b.handlers:
            handler.receive = receive  # type: ignore[method-assign]
        began = trio.current_time()
        for peer in peers:
            await peer.send_all(b"REQ")
        await trio.testing.wait_all_tasks_blocked()
        assert times == [began, began + turn_lasts]


@jumping
async def test_connections_wait_for_the_next_turn_when_this_one_is_full() -> None:
    async with bench() as b:
        b.turn.room = 8
        peers = [b.connect()[0] for _ in range(20)]
        for peer in b.peers:
            peer.send(b"hello")
        for one in peers:
            assert await hear(one, 5) == b"hello"
        assert [it for it in b.turn.reads if it] == [8, 8, 4]


@jumping
async def test_fatal_error_arrives_before_the_end() -> None:
    async with bench() as b:
        peer, handler = b.connect()
        await peer.send_all(b"E_INVALID!")
        assert await hear_the_end(peer) == b"E_INVALID!"
        assert handler.gone
        assert len(b.poller) == 0


@jumping
async def test_long_last_words_arrive_before_the_end() -> None:
    async with bench() as b:
        peer, handler = b.connect()
        handler.out.append(b"x" * 1_000_000)
        await peer.send_all(b"bye!")
        assert len(await hear_the_end(peer)) == 1_000_004


@jumping
async def test_last_words_reach_a_peer_that_is_still_sending() -> None:
    async with bench() as b:
        peer, handler = b.connect()
        handler.lingers = True
        await peer.send_all(b"E_INVALID!")
        await trio.testing.wait_all_tasks_blocked()
        assert handler.gone
        await peer.send_all(b"x" * 1_000_000)  # far more than the kernel buffers between the two
        assert handler.heard == len("E_INVALID!")
        assert await hear_the_end(peer) == b"E_INVALID!"
        await peer.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert len(b.poller) == 0


@jumping
async def test_peer_that_is_done_sending_is_not_waited_for() -> None:
    async with bench() as b:
        peer, handler = b.connect()
        handler.lingers = True
        await peer.send_all(b"bye!")
        await peer.send_eof()
        assert await hear_the_end(peer) == b"bye!"
        await trio.testing.wait_all_tasks_blocked()
        assert len(b.poller) == 0


@jumping
async def test_peer_that_neither_sends_nor_closes_is_left_after_a_while() -> None:
    async with bench() as b:
        peer, handler = b.connect()
        handler.lingers = True
        await peer.send_all(b"bye!")
        await trio.sleep(4.9)
        assert len(b.poller) == 1
        await trio.sleep(0.2)
        assert len(b.poller) == 0
        assert await hear_the_end(peer) == b"bye!"


@pytest.mark.parametrize("pause", [0.0, 1.0])
def test_peer_that_never_stops_sending_is_left(pause: float, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 32 << 20

    @jumping
    async def run() -> None:
        async with bench() as b:
            peer, handler = b.connect()
            handler.lingers = True
            began = trio.current_time()
            await peer.send_all(b"bye!")
            await trio.testing.wait_all_tasks_blocked()
            sent = 0
            with suppress(trio.BrokenResourceError):
                while True:
                    await peer.send_all(b"x" * 100_000)
                    sent += 100_000
                    await trio.sleep(pause)
            assert len(b.poller) == 0
            if pause:
                assert trio.current_time() - began == pytest.approx(30, abs=2 * pause)
            else:
                assert abs(sent - most) < 1_000_000

    run(monkeypatch)


@jumping
async def test_peer_that_does_not_read_its_last_words_is_dropped() -> None:
    async with bench() as b:
        peer, handler = b.connect()
        handler.out.append(b"x" * 1_000_000)
        await peer.send_all(b"bye!")
        await trio.sleep(4.9)
        assert not handler.gone
        await trio.sleep(0.2)
        assert handler.gone


@jumping
async def test_half_closed_peer_gets_its_answers() -> None:
    async with bench() as b:
        peer, handler = b.connect()
        handler.say(b"x" * 1_000_000)
        await peer.send_all(b"last")
        await peer.send_eof()
        assert (await hear_the_end(peer)).endswith(b"last")
        assert handler.ended


@jumping
async def test_connection_that_owes_nothing_yet_survives_the_end_of_the_stream() -> None:
    async with bench() as b:
        peer, handler = b.connect()
        handler.end = lambda: None  # type: ignore[method-assign] # its receipt has not settled
        await peer.send_eof()
        await trio.testing.wait_all_tasks_blocked()
        assert not handler.gone
        handler.say(b"OK")
        handler.finished = True
        b.poller.flush()
        assert await hear_the_end(peer) == b"OK"


@jumping
async def test_peer_that_vanishes_is_noticed() -> None:
    async with bench() as b:
        peer, handler = b.connect()
        await peer.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert handler.gone
        assert len(b.poller) == 0


def test_bug_ends_only_its_own_connection(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    @jumping
    async def run() -> None:
        async with bench() as b:
            victim, handler = b.connect()
            bystander, _ = b.connect()
            await victim.send_all(b"?")
            assert await hear_the_end(victim) == b""
            assert handler.gone
            await bystander.send_all(b"still here")
            assert await hear(bystander, 10) == b"still here"

    run(monkeypatch)
    assert "internal error" in caplog.text


@pytest.mark.parametrize("step", ["bytes_to_send", "sent", "end", "tick", "abort"])
def test_bug_in_any_step_is_contained(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    @jumping
    async def run() -> None:
        async with bench() as b:
            victim, handler = b.connect()
            bystander, _ = b.connect()
            setattr(handler, step, fail)
            handler.next_deadline = trio.current_time() + 1
            await victim.send_all(b"x")
            handler.wake()
            if step in ("end", "abort"):
                await victim.send_eof()
            await trio.sleep(2)
            assert handler.gone or step == "abort"
            assert len(b.poller) == 1
            await bystander.send_all(b"y")
            assert await hear(bystander, 1) == b"y"

    run(monkeypatch)


@jumping
async def test_slow_reader_is_bounded_in_memory() -> None:
    async with bench() as b:
        peer, handler = b.connect()
        with trio.move_on_after(20):
            while True:
                await peer.send_all(b">" * 1)
                await trio.testing.wait_all_tasks_blocked()
        assert handler.most_unsent < (1 << 20) + 200_000
        assert handler.heard < 10_000


@jumping
async def test_slow_reader_is_dropped_after_its_write_timeout() -> None:
    async with bench() as b:
        _, handler = b.connect()
        handler.say(b"x" * 1_000_000)
        b.poller.flush()
        await trio.sleep(29.9)
        assert not handler.gone
        await trio.sleep(0.2)
        assert handler.gone


@jumping
async def test_reader_that_is_slow_but_reads_is_kept() -> None:
    async with bench() as b:
        peer, handler = b.connect()
        handler.say(b"x" * 300_000)
        b.poller.flush()
        heard = 0
        while heard < 300_000:
            await trio.sleep(20)
            heard += len(await peer.receive_some(65536))
        assert trio.current_time() > 60
        assert not handler.gone


@jumping
async def test_client_that_is_held_back_is_not_read_until_it_is_let_go() -> None:
    async with bench() as b:
        peer, handler = b.connect()
        handler.reading = False
        await peer.send_all(b"a")
        assert await hear(peer, 1) == b"a"
        await peer.send_all(b"b")
        await trio.testing.wait_all_tasks_blocked()
        assert handler.heard == 1
        handler.reading = True
        handler.wake()
        b.poller.flush()
        assert await hear(peer, 1) == b"b"


@jumping
async def test_a_deadline_does_not_read_from_a_client_that_is_held_back() -> None:
    async with bench() as b:
        peer, handler = b.connect()
        handler.reading = False
        await peer.send_all(b"a")
        assert await hear(peer, 1) == b"a"
        handler.next_deadline = trio.current_time() + 5
        handler.wake()
        b.poller.flush()
        await peer.send_all(b"b")
        await trio.sleep(6)
        assert (len(handler.ticks), handler.heard) == (1, 1)


@jumping
async def test_deadlines_ring_when_they_are_due() -> None:
    async with bench() as b:
        peer, handler = b.connect()
        handler.next_deadline = start = trio.current_time() + 5
        handler.wake()
        b.poller.flush()
        await trio.sleep(100)
        assert handler.ticks == pytest.approx([start, start + 10, start + 20], abs=0.01)
        assert await hear(peer, 12) == b"tick" * 3


@jumping
async def test_deadline_that_moves_away_does_not_ring() -> None:
    async with bench() as b:
        _, handler = b.connect()
        handler.next_deadline = trio.current_time() + 5
        handler.wake()
        b.poller.flush()
        handler.next_deadline = trio.current_time() + 50
        await trio.sleep(49)
        assert handler.ticks == []
        await trio.sleep(2)
        assert len(handler.ticks) == 1


class Silence(Echo):
    """Keeps what it had received when its deadline came."""

    heard_by_then: int | None = None

    def tick(self, now: float) -> None:
        self.heard_by_then = self.heard
        self.next_deadline = inf


@jumping
async def test_what_came_while_the_process_stood_still_is_heard_before_a_deadline_rings() -> None:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    async with bench() as b:
        for _ in range(20):  # repeated, as it is chance which of two tasks runs first
            handler = b.connect_to(Silence, trio.current_time() + 5)
            b.peers[-1].send(b"alive")
            clock.jump(6)
            await trio.testing.wait_all_tasks_blocked()
            assert handler.heard_by_then == 5


@jumping
async def test_alarms_of_clients_that_have_gone_do_not_pile_up() -> None:
    async with bench() as b:
        deadline = trio.current_time() + 600
        _, first = b.connect(deadline)
        for _ in range(unless_quick(5000, quick=2500)):
            peer, _ = b.connect(deadline)
            await peer.aclose()
            await trio.testing.wait_all_tasks_blocked()
        del b.handlers[1:]
        assert len(b.poller) == 1
        assert sum(type(it) is Connection for it in gc.get_objects()) < 2000
        await trio.sleep(700)
        assert first.ticks[0] == pytest.approx(deadline, abs=0.01)


@jumping
async def test_abort_closes_without_sending() -> None:
    async with bench() as b:
        peer, handler = b.connect()
        handler.out.append(b"never sent")
        handler.aborted = True
        handler.wake()
        b.poller.flush()
        assert await hear_the_end(peer) == b""


@jumping
async def test_two_hundred_connections_at_once() -> None:
    async with bench() as b:
        listener = _nonblocking(socket.create_server(("127.0.0.1", 0), backlog=256))
        heard = []

        async def talk(number: int) -> None:
            async with await trio.open_tcp_stream(*listener.getsockname()) as stream:
                for turn in range(5):
                    said = b"%d:%d;" % (number, turn)
                    await stream.send_all(said)
                    assert await hear(stream, len(said)) == said
                heard.append(number)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(b.poller.accept, listener, b.make, Budget(100, "TCP"))
            async with trio.open_nursery() as talkers:
                for number in range(200):
                    talkers.start_soon(talk, number)
            nursery.cancel_scope.cancel()
        listener.close()
        assert sorted(heard) == list(range(200))
        await trio.testing.wait_all_tasks_blocked()
        assert len(b.poller) == 0


@pytest.mark.parametrize(("at_once", "come"), [(False, range(1, 6)), (True, [200])])
def test_a_crowd_is_let_in_together_where_nobody_has_to_shake_hands(
    monkeypatch: pytest.MonkeyPatch, at_once: bool, come: Sequence[int]
) -> None:
    @jumping
    async def run() -> None:
        async with bench() as b:
            listener = _nonblocking(socket.create_server(("127.0.0.1", 0), backlog=256))
            crowd = [socket.create_connection(listener.getsockname()) for _ in range(200)]
            async with trio.open_nursery() as nursery:
                accept = partial(b.poller.accept, at_once=at_once)
                nursery.start_soon(accept, listener, b.make, Budget(1000, "TCP"))
                for _ in range(5):
                    await trio.lowlevel.checkpoint()
                assert len(b.poller) in come
                nursery.cancel_scope.cancel()
            for peer in (listener, *crowd):
                peer.close()
            await trio.testing.wait_all_tasks_blocked()

    run(monkeypatch)


@jumping
async def test_nobody_is_let_in_while_there_is_a_crowd() -> None:
    is_crowded = True
    async with bench() as b:
        listener = _nonblocking(socket.create_server(("127.0.0.1", 0)))
        peer = socket.create_connection(listener.getsockname())
        async with trio.open_nursery() as nursery:
            accept = partial(b.poller.accept, is_crowded=lambda: is_crowded)
            nursery.start_soon(accept, listener, b.make, Budget(1000, "TCP"))
            await trio.sleep(1.0)
            assert len(b.poller) == 0
            is_crowded = False
            await trio.sleep(1.0)
            assert len(b.poller) == 1
            nursery.cancel_scope.cancel()
        listener.close()
        peer.close()
        await trio.testing.wait_all_tasks_blocked()


@jumping
async def test_one_who_joins_a_crowd_that_is_always_ready_waits_for_one_round() -> None:
    crowd = 20
    served: list[Echo] = []

    class Greedy(Echo):
        """Takes longer than a turn, and has more to do at once."""

        peer: socket.socket

        def receive(self, data: bytes, now: float) -> None:
            served.append(self)
            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, trio.testing.MockClock)
            clock.jump(0.003)
            self.peer.send(b"more")

    class Newcomer(Echo):
        served_before: int | None = None

        def receive(self, data: bytes, now: float) -> None:
            self.served_before = len(served)  # here, because a turn or two may pass before the test runs again

    async with bench() as b:
        for _ in range(crowd):
            ours, theirs = socket.socketpair()
            b.peers.append(_nonblocking(theirs))
            b.poller.add(ours, "@", Greedy)
            handler = b.poller._connections[ours.fileno()].handler
            assert isinstance(handler, Greedy)
            handler.peer = theirs
            theirs.send(b"first")
        while len(served) < 10 * crowd:
            await trio.lowlevel.checkpoint()
        assert {served.count(each) for each in served} <= {9, 10, 11}
        newcomer = b.connect_to(Newcomer, inf)
        before = len(served)
        b.peers[-1].send(b"hello")
        while newcomer.served_before is None:
            await trio.lowlevel.checkpoint()
        assert newcomer.served_before - before <= crowd


@jumping
async def test_less_is_read_at_once_while_turns_take_too_long() -> None:
    """Otherwise a read that is slow to handle would hold up other clients for all of it, again and again."""
    sizes: list[int] = []
    seconds_of_a_byte = 1e-6  # 120 ms for the longest read

    async with bench() as b:
        peer, handler = b.connect()

        def receive(data: bytes, now: float) -> None:
            sizes.append(len(data))
            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, trio.testing.MockClock)
            clock.jump(len(data) * seconds_of_a_byte)

        handler.receive = receive  # type: ignore[method-assign]
        b.peers[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        await peer.send_all(bytes(1 << 19))
        await trio.testing.wait_all_tasks_blocked()
        slow, seconds_of_a_byte = sizes.copy(), 0.0
        sizes.clear()
        await peer.send_all(bytes(1 << 19))
        await trio.testing.wait_all_tasks_blocked()
    smallest, longest = poller_module._SMALLEST_READ, poller_module._READ_SIZE
    assert slow[:4] == [longest, longest // 2, longest // 4, smallest]
    assert max(slow[4:]) == smallest
    assert sizes[0] < longest
    assert longest in sizes


@jumping
async def test_a_connection_that_cannot_be_watched_is_given_up() -> None:
    async with bench() as b:
        ours, theirs = socket.socketpair()
        b.peers.append(theirs)

        def make(connection: Connection, wake: Callable[[], None]) -> Echo:
            ours.close()  # so that it is refused, as epoll does when the user has too many watches
            handler = b.make(connection, wake)
            handler.say(b"hello")
            return handler

        with pytest.raises(OSError, match="Bad file descriptor"):
            b.poller.add(ours, "@", make)
        b.poller.flush()  # the handler had something to say, and nobody hears it
        (handler,) = b.handlers
        assert (handler.gone, len(b.poller)) == (True, 0)
        assert handler.out == [b"hello"]


def test_others_with_work_run_before_the_poller_polls_again() -> None:
    class HandedOn(Echo):
        def receive(self, data: bytes, now: float) -> None:
            super().receive(data, now)
            made[0].poller.let_others_run()

    made: list[Bench] = []

    async def main() -> None:
        async with bench(busy_poll=20.0) as b:
            made.append(b)
            b.connect_to(HandedOn, inf)
            b.peers[-1].send(b"a request")
            await trio.testing.wait_all_tasks_blocked()

    began = monotonic()
    trio.run(main)
    assert monotonic() - began < 10, "it went on polling"


@jumping
async def test_a_turn_can_be_taken_without_an_event() -> None:
    async with bench() as b:
        peer, handler = b.connect()
        await trio.testing.wait_all_tasks_blocked()
        handler.out.append(b"of itself")
        handler.wake()
        b.poller.take_turn_soon()
        assert await hear(peer, 9) == b"of itself"
