"""An asyncio protocol on the poller, without sockets and loops."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from math import inf

import pytest

from nsqcommon.polled_transport import ProtocolHandler


class Protocol(asyncio.Protocol):
    """Notes what happens to it, and stays connected after EOF if `stays`."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.stays = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.seen.append(data)

    def eof_received(self) -> bool:
        self.seen.append("eof")
        return self.stays

    def pause_writing(self) -> None:
        self.seen.append("pause")

    def resume_writing(self) -> None:
        self.seen.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.seen.append("lost")


class Peer:
    def __init__(self) -> None:
        self.protocol = Protocol()
        self.asked: list[str] = []
        self.handler = ProtocolHandler(
            self.protocol,
            context=copy_context(),
            wake=lambda: self.asked.append("wake"),
            poller=self,
            peername=("1.2.3.4", 5),
        )
        self.transport = self.protocol.transport

    def take_turn_soon(self) -> None:
        self.asked.append("turn")

    def let_others_run(self) -> None:
        self.asked.append("others")


@pytest.fixture
def peer() -> Peer:
    return Peer()


def test_bytes_pass_in_both_directions(peer: Peer) -> None:
    peer.handler.receive(b"question", 0.0)
    assert (peer.protocol.seen, peer.asked) == ([b"question"], ["others"])
    peer.transport.write(b"an ")
    peer.transport.write(bytearray(b"answer"))
    assert peer.asked[1:3] == ["wake", "turn"]
    assert peer.handler.bytes_to_send() == [b"an ", b"answer"]
    assert peer.handler.bytes_to_send() == []


def test_the_protocol_can_ask_about_its_peer(peer: Peer) -> None:
    assert peer.transport.get_extra_info("peername") == ("1.2.3.4", 5)


def test_a_peer_that_reads_slowly_makes_the_protocol_pause(peer: Peer) -> None:
    peer.transport.write(bytes(100_000))
    peer.transport.write(b"more")
    peer.handler.bytes_to_send()
    peer.handler.sent(100_000)
    assert peer.protocol.seen == ["pause"]
    peer.handler.sent(20_000)
    assert peer.protocol.seen == ["pause"]
    peer.handler.sent(10_000)
    peer.handler.sent(0)
    assert peer.protocol.seen == ["pause", "resume"]


def test_bytes_that_wait_behind_others_count_until_the_peer_has_them(peer: Peer) -> None:
    """While the socket is full, the poller takes new bytes without sending any."""
    peer.transport.write(bytes(100))
    peer.handler.bytes_to_send()
    peer.handler.sent(100)
    for _ in range(100):
        peer.transport.write(bytes(1000))
        peer.handler.bytes_to_send()
    assert peer.protocol.seen == ["pause"]


def test_a_protocol_that_is_busy_makes_the_poller_stop_reading(peer: Peer) -> None:
    peer.transport.pause_reading()
    assert not peer.handler.reading
    peer.asked.clear()
    peer.transport.resume_reading()
    assert peer.handler.reading
    assert peer.asked == ["wake", "turn"]


def test_closing_sends_the_rest_first(peer: Peer) -> None:
    peer.transport.write(b"the last words")
    peer.transport.close()
    peer.transport.write(b"too late")
    peer.handler.receive(b"too late", 0.0)
    assert peer.transport.is_closing()
    assert not peer.handler.finished
    assert peer.handler.bytes_to_send() == [b"the last words"]
    peer.handler.sent(0)
    assert (peer.handler.finished, peer.handler.aborted) == (True, False)
    peer.handler.abort()
    assert peer.protocol.seen == ["lost"]


def test_a_slow_peer_gets_the_last_bytes_too(peer: Peer) -> None:
    """The poller would drop it after five seconds if the handler had finished."""
    assert peer.handler.write_timeout == inf
    peer.transport.write(b"the last words")
    peer.transport.close()
    peer.handler.bytes_to_send()
    peer.handler.sent(10)
    assert (peer.handler.finished, peer.handler.reading, peer.handler.write_timeout) == (False, False, 60.0)
    peer.asked.clear()
    peer.handler.sent(0)
    assert (peer.handler.finished, peer.asked) == (True, ["wake"])


def test_half_closing_waits_for_all_bytes() -> None:
    peer = Peer()
    closed: list[str] = []
    peer.handler.half_close = lambda: closed.append("ours")
    peer.transport.write(b"before")
    peer.handler.bytes_to_send()
    peer.transport.write(b"the last words")
    peer.transport.write_eof()
    peer.handler.sent(0)  # of the bytes before
    assert closed == []
    peer.handler.bytes_to_send()
    peer.handler.sent(4)
    assert closed == []
    peer.handler.sent(0)
    assert closed == ["ours"]


def test_aborting_sends_nothing_more(peer: Peer) -> None:
    peer.transport.write(b"never sent")
    peer.transport.abort()
    assert peer.handler.aborted
    assert peer.protocol.seen == []  # the poller drops the connection in its next turn, and then says so
    peer.handler.abort()
    assert (peer.protocol.seen, peer.handler.bytes_to_send()) == (["lost"], [])


@pytest.mark.parametrize("stays", [False, True])
def test_the_protocol_decides_whether_eof_is_the_end(peer: Peer, stays: bool) -> None:
    peer.protocol.stays = stays
    peer.handler.end()
    assert (peer.protocol.seen, peer.handler.finished) == (["eof"], not stays)


def test_a_lost_connection_asks_for_nothing(peer: Peer) -> None:
    """The loop may have gone by then, so nothing could take the turn."""
    peer.handler.abort()
    peer.asked.clear()
    peer.transport.close()
    peer.transport.abort()
    peer.transport.write(b"lost")
    assert peer.asked == []


def test_a_half_close_without_bytes_to_send_happens_at_once(peer: Peer) -> None:
    closed: list[str] = []
    peer.handler.half_close = lambda: closed.append("ours")
    peer.transport.write_eof()
    assert closed == ["ours"]
    peer.handler.sent(0)
    assert closed == ["ours"]
