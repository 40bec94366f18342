"""The order and pace of handshakes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from math import inf

import pytest

from nsqcommon.handshake import FirstBytes, Handshake, TlsServer, classify_first_bytes
from nsqcommon.streams.layer import StreamError


class Tls:
    """A handshake that is done when it has received `done`; garbage is `?`."""

    has_more = False
    ended = False
    version = cipher_suite = peer_common_name = ""

    def __init__(self, take_time: Callable[[], None] = lambda: None) -> None:
        self.heard = b""
        self.answer = b""
        self._take_time = take_time

    def handshake(self, data: bytes) -> bool:
        self._take_time()
        self.heard += data
        if b"?" in data:
            raise StreamError("garbage")
        if data == WRONG_KEYS:
            self.answer = HELLO_RETRY
        return b"done" in self.heard

    def pending(self) -> bytes:
        answer, self.answer = self.answer, b""
        return answer

    goodbye = pending

    def encode(self, data: bytes) -> bytes:
        return data

    decode = encode


STEP = 0.001
HELLO = b"\x16\x03\x01\x00\x09" + b"\x01\x00\x00\x05" + b"hello"
WRONG_KEYS = b"\x16\x03\x01\x00\x09" + b"\x01\x00\x00\x05" + b"wrong"
# The beginning of OpenSSL's answer to a ClientHello without a key share.
HELLO_RETRY = bytes.fromhex("1603030058020000540303cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c20")


class Crowd:
    """The handshakes of one server. It records which ones are woken."""

    def __init__(self, most: int = 1000) -> None:
        self.layers: list[Tls] = []
        self.woken: list[int] = []
        self.now = 1.0
        self.server = TlsServer(self._make_layer, most=most, clock=lambda: self.now)
        self.came = 0

    def _make_layer(self) -> Tls:
        self.layers.append(Tls(self._take_time))
        return self.layers[-1]

    def _take_time(self) -> None:
        self.now += STEP

    def come(self, *, ends: float = 5.0) -> Handshake:
        number = self.came
        self.came += 1
        return self.server.handshake(ends=ends, wake=lambda: self.woken.append(number))


@pytest.mark.parametrize("count", range(len(HELLO)))
def test_a_part_of_a_hello_is_no_hello_yet(count: int) -> None:
    assert classify_first_bytes(HELLO[:count]) is FirstBytes.PART
    assert classify_first_bytes(HELLO) is FirstBytes.CLIENT_HELLO
    assert classify_first_bytes(HELLO + b"more") is FirstBytes.CLIENT_HELLO


def test_a_hello_may_come_in_several_records() -> None:
    records = b"".join(b"\x16\x03\x01\x00\x01" + HELLO[at : at + 1] for at in range(5, len(HELLO)))
    assert {classify_first_bytes(records[:count]) for count in range(len(records))} == {FirstBytes.PART}
    assert classify_first_bytes(records) is FirstBytes.CLIENT_HELLO


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1",
        b"\x17",
        b"\x16\x02",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\x40\x01",
        b"\x16\x03\x01\x00\x05\x02",
        b"\x16\x03\x01\x00\x05\x01\x01\x00\x00",
        HELLO[:8] + b"\x20" + HELLO[9:] + b"\x17",
        b"\x80\x05\x02",
    ],
)
def test_what_cannot_be_a_hello_is_garbage(said: bytes) -> None:
    assert classify_first_bytes(said) is FirstBytes.GARBAGE


def test_the_hello_of_ssl_2_is_one() -> None:
    assert classify_first_bytes(b"\x80\x03\x01") is FirstBytes.PART
    assert classify_first_bytes(b"\x80\x03\x01\x03\x03") is FirstBytes.CLIENT_HELLO


def test_a_crowd_signs_one_after_the_other_and_leaves_others_half_of_the_time() -> None:
    crowd = Crowd()
    waiting = [crowd.come(ends=inf) for _ in range(500)]
    for handshake in waiting:
        handshake.receive(HELLO, crowd.now)
    assert len(crowd.layers) == 1
    for handshake in waiting[1:]:
        crowd.now = handshake.next_deadline
        handshake.receive(b"", crowd.now)
    assert crowd.woken == list(range(2, 500))  # the second call finds the queue empty
    assert 0.99 < crowd.now - 1.0 < 1.01


def test_what_comes_before_the_slot_is_kept_for_it() -> None:
    crowd = Crowd()
    crowd.come().receive(HELLO, 1.0)
    waiting = crowd.come()
    assert not waiting.receive(HELLO + b"do", 1.0)
    assert not waiting.receive(b"ne", 1.0)
    assert len(crowd.layers) == 1
    slot = waiting.next_deadline
    assert slot == pytest.approx(1.002)
    assert waiting.receive(b"", slot)
    assert crowd.layers[1].heard == HELLO + b"done"
    assert waiting.next_deadline == inf


def test_one_slot_is_enough() -> None:
    shaking = Crowd().come()
    assert not shaking.receive(HELLO, 1.0)
    assert shaking.turn_at == inf
    assert shaking.next_deadline == 5.0
    assert shaking.receive(b"done", 1.0)


def test_who_goes_gives_the_place_in_the_queue_back() -> None:
    crowd = Crowd()
    first, *gone, last = [crowd.come() for _ in range(100)]
    for handshake in (first, *gone, last):
        handshake.receive(HELLO, 1.0)
    for handshake in gone:
        handshake.end()
    assert crowd.woken[-1] == 99
    assert last.turn_at == pytest.approx(1.002)
    last.receive(b"", last.turn_at)
    assert len(crowd.layers) == 2


def test_garbage_takes_no_place_in_the_queue() -> None:
    crowd = Crowd()
    for _ in range(100):
        with pytest.raises(StreamError):
            crowd.come().receive(b"garbage?", 1.0)
    honest = crowd.come()
    honest.receive(HELLO, 1.0)
    assert crowd.layers[-1].heard == HELLO


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"\x16\x03\x01\x00\x00" + HELLO, id="an empty record first"),
        pytest.param(b"\x15\x03\x01\x00\x02\x01\x5a" + HELLO, id="a warning first"),
        pytest.param(HELLO[:5] + b"\x01\x00\x80\x01", id="too large"),
    ],
)
def test_what_is_garbage_to_us_is_never_signed_out_of_turn(said: bytes) -> None:
    crowd = Crowd()
    with pytest.raises(StreamError):
        crowd.come().receive(said, 1.0)
    assert crowd.layers[0].heard == said[:5]


def test_a_hello_in_very_many_records_is_garbage() -> None:
    message = b"\x01\x00\x7f\x00" + bytes(100)
    records = b"".join(b"\x16\x03\x01\x00\x01" + message[at : at + 1] for at in range(len(message)))
    assert classify_first_bytes(records[: 16 * 6]) is FirstBytes.PART
    assert classify_first_bytes(records[: 16 * 6 + 1]) is FirstBytes.GARBAGE


def test_a_second_hello_waits_for_its_turn_as_well() -> None:
    crowd = Crowd()
    asked_again = crowd.come()
    assert not asked_again.receive(WRONG_KEYS, 1.0)
    assert asked_again.pending() == HELLO_RETRY
    crowd.come().receive(HELLO, 2.0)
    assert not asked_again.receive(HELLO, crowd.now)
    assert crowd.layers[0].heard == WRONG_KEYS
    assert crowd.now < asked_again.turn_at < inf
    assert not asked_again.receive(b"", asked_again.turn_at)
    assert crowd.layers[0].heard == WRONG_KEYS + HELLO
    assert asked_again.receive(b"done", crowd.now)


def test_a_part_of_a_hello_takes_no_place_either_and_costs_no_session() -> None:
    crowd = Crowd()
    slow = [crowd.come() for _ in range(100)]
    for handshake in slow:
        handshake.receive(HELLO[:10], 1.0)
    assert crowd.layers == []
    assert slow[0].next_deadline == 5.0
    honest = crowd.come()
    honest.receive(HELLO, 1.0)
    assert len(crowd.layers) == 1


def test_where_nothing_has_happened_for_the_longest_time_makes_room() -> None:
    crowd = Crowd(most=3)
    silent, answered, waiting = (crowd.come() for _ in range(3))
    answered.receive(HELLO, 1.0)
    waiting.receive(HELLO, 1.0)
    newest = [crowd.come() for _ in range(2)]
    assert crowd.server.under_way == 3
    assert (silent.next_deadline, answered.next_deadline) == (0.0, 0.0)
    assert crowd.woken == [0, 1]
    assert waiting.next_deadline > 1.0
    assert newest[0].next_deadline == 5.0


def test_who_waits_for_a_turn_makes_room_last() -> None:
    crowd = Crowd(most=4)
    answered, first, second = (crowd.come() for _ in range(3))
    for handshake in (answered, first, second):
        handshake.receive(HELLO, 1.0)
    silent = crowd.come()
    newest = [crowd.come() for _ in range(2)]
    assert (answered.next_deadline, silent.next_deadline) == (0.0, 0.0)
    assert first.turn_at == pytest.approx(1.002)
    for handshake in newest:
        handshake.receive(HELLO, 1.0)
    assert crowd.server.under_way == 4
    crowd.come()
    assert first.next_deadline == 0.0  # there was nobody else
    assert second.turn_at == pytest.approx(1.002)


def test_a_long_queue_is_told_until_it_is_shorter() -> None:
    crowd = Crowd()
    waiting = [crowd.come() for _ in range(501)]
    for handshake in waiting[:500]:
        handshake.receive(HELLO, 1.0)
    assert not crowd.server.queue_is_long()  # the first has had its turn
    waiting[500].receive(HELLO, 1.0)
    assert crowd.server.queue_is_long()
    waiting[1].end()
    assert not crowd.server.queue_is_long()


def test_half_as_many_as_may_be_under_way_are_a_long_queue() -> None:
    crowd = Crowd(most=4)
    for _ in range(3):
        crowd.come().receive(HELLO, 1.0)
    assert crowd.server.queue_is_long()  # one is answered, and two wait


@pytest.mark.parametrize("most", [1, 2])
def test_where_next_to_nothing_may_be_under_way_somebody_may(most: int) -> None:
    crowd = Crowd(most=most)
    assert not crowd.server.queue_is_long()


def test_too_much_before_the_answer_is_refused() -> None:
    crowd = Crowd()
    crowd.come().receive(HELLO, 1.0)
    waiting = crowd.come()
    with pytest.raises(StreamError):
        waiting.receive(HELLO + bytes(100_000), 1.0)


def test_garbage_is_told_and_how_it_began() -> None:
    shaking = Crowd().come()
    with pytest.raises(StreamError):
        shaking.receive(b"GET / HTTP?", 1.0)
    assert shaking.first_bytes == b"GET /"


def test_sessions_that_have_gone_are_counted() -> None:
    server = TlsServer(Tls, clock=lambda: 0.0)
    kept = [server.handshake(ends=inf, wake=lambda: None) for _ in range(3)]
    for number, handshake in enumerate(kept):
        assert handshake.receive(HELLO + b"done", float(number))
    del handshake
    assert server.sessions_gone == 0
    del kept[1:]
    gc.collect()
    assert server.sessions_gone == 2
