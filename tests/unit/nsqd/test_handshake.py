"""Handshakes in step with each other."""

from __future__ import annotations

import gc
from math import inf

import pytest

from common.streams.layer import StreamError
from nsqd.handshake import Handshake, HandshakePace, TlsServer


class Tls:
    """Is done when it has heard `done`; garbage is `?`."""

    has_more = False
    ended = False
    version = cipher_suite = peer_common_name = ""

    def __init__(self) -> None:
        self.heard = b""

    def handshake(self, data: bytes) -> bool:
        self.heard += data
        if b"?" in data:
            raise StreamError("garbage")
        return b"done" in self.heard

    def pending(self) -> bytes:
        return b""

    goodbye = pending

    def encode(self, data: bytes) -> bytes:
        return data

    decode = encode


def handshake(tls: Tls, *, pace: HandshakePace | None = None) -> Handshake:
    return Handshake(tls, pace or HandshakePace(), ends=5.0)


def test_a_crowd_signs_one_after_the_other() -> None:
    pace = HandshakePace()
    slots = [pace.next_slot(100.0) for _ in range(500)]
    assert slots[0] == 100.0
    assert 0.9 < slots[-1] - slots[0] < 1.1
    assert pace.next_slot(200.0) == 200.0


def test_what_comes_before_the_slot_is_kept_for_it() -> None:
    pace, tls = HandshakePace(), Tls()
    pace.next_slot(1.0)
    waiting = handshake(tls, pace=pace)
    assert not waiting.receive(b"do", 1.0)
    assert not waiting.receive(b"ne", 1.0)
    assert tls.heard == b""
    slot = waiting.next_deadline
    assert 1.0 < slot < 1.1
    assert waiting.receive(b"", slot)
    assert tls.heard == b"done"
    assert waiting.next_deadline == inf


def test_one_slot_is_enough() -> None:
    shaking = handshake(Tls())
    assert not shaking.receive(b"d", 1.0)
    assert shaking.looks_at == inf
    assert shaking.next_deadline == 5.0
    assert shaking.receive(b"one", 1.0)


def test_garbage_is_told_and_how_it_began() -> None:
    shaking = handshake(Tls())
    shaking.receive(b"GE", 1.0)
    with pytest.raises(StreamError):
        shaking.receive(b"T / HTTP?", 1.0)
    assert shaking.first_bytes == b"GET /"


def test_sessions_that_have_gone_are_counted() -> None:
    server = TlsServer(Tls)
    kept = [server.handshake(ends=inf) for _ in range(3)]
    assert server.sessions_gone == 0
    del kept[1:]
    gc.collect()
    assert server.sessions_gone == 2
