"""The fast path gives the same answers as the application, in order, whatever the packets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.http_api import HttpDate
from nsqcommon.wire.limits import SizeLimits
from nsqcommon.wire.unfinished import UnfinishedBodies
from nsqd.http import QuickHttp, QuickRoutes
from nsqd.http.mpub_body import LinesBody
from nsqd.http.publishing import Publishing
from tests.nsqd.fake_broker import FakeStore, FakeTurn, binary_mpub, bodies, make_broker
from tests.nsqd.http.conftest import LIMITS

DATE = b"Tue, 14 Nov 2023 22:13:20 GMT"
OK = (
    b"HTTP/1.1 200 OK\r\nX-Nsq-Content-Type: nsq; version=1.0\r\nDate: " + DATE + b"\r\n"
    b"Content-Length: 2\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nOK"
)
PONG = (
    b"HTTP/1.1 200 OK\r\nDate: " + DATE + b"\r\nContent-Length: 2\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nOK"
)


def failure(status: bytes, code: bytes, *, close: bool = False) -> bytes:
    body = b'{"message":"%s"}' % code
    return (
        b"HTTP/1.1 %s\r\nContent-Type: application/json; charset=utf-8\r\nX-Nsq-Content-Type: nsq; version=1.0\r\n"
        b"Date: %s\r\nContent-Length: %d\r\n%s\r\n%s"
    ) % (status, DATE, len(body), b"Connection: close\r\n" if close else b"", body)


def post(target: str, body: bytes, headers: bytes = b"", version: bytes = b"1.1") -> bytes:
    head = b"POST %s HTTP/%s\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n" % (
        target.encode(), version, headers, len(body)
    )  # fmt: skip
    return head + body


PING = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"


class Client:
    """A connection on the poller: answers are sent after each turn."""

    def __init__(self, limits: SizeLimits = LIMITS) -> None:
        self.store = FakeStore()
        self.broker = make_broker(self.store)
        publishing = Publishing(self.broker, limits, max_defer_ms=3_600_000)
        self.routes = QuickRoutes(self.broker, publishing, HttpDate(lambda: 1_700_000_000.5))
        self.connect()

    def connect(self) -> None:
        self.handed_off: bytes | None = None
        self.woken = 0
        self.quick = QuickHttp(self.routes, hand_off=self._hand_off, wake=self._wake)

    def _hand_off(self, received: bytes) -> None:
        assert self.handed_off is None
        self.handed_off = received

    def _wake(self) -> None:
        self.woken += 1

    def finish_turn(self) -> bytes:
        FakeTurn(self.broker).finish()
        return self.flush()

    def flush(self) -> bytes:
        sent = b""
        while pieces := self.quick.bytes_to_send():
            sent += b"".join(pieces)
            self.quick.sent(0)
        return sent

    def send(self, data: bytes) -> bytes:
        self.quick.receive(data, 100.0)
        return self.finish_turn()

    def send_in_pieces(self, data: bytes, cuts: Iterator[int]) -> bytes:
        answers = b""
        while data:
            cut = next(cuts, len(data))
            answers += self.send(data[:cut])
            data = data[cut:]
        return answers

    def let_others(self) -> bytes:
        """Let others have their turn, if it gives way, and go on."""
        self.quick.tick(self.quick.next_deadline)
        return self.finish_turn()


@pytest.fixture
def client() -> Client:
    return Client()


def test_pub(client: Client) -> None:
    assert client.send(post("/pub?topic=t", b"hello")) == OK
    assert bodies(client.store, "t") == [b"hello"]
    assert client.woken
    assert not client.quick.finished


UNREADABLE = failure(b"500 Internal Server Error", b"INTERNAL_ERROR", close=True)


@pytest.mark.parametrize("target", ["/pub?topic=t", "/pub?topic=", "/mpub?topic=t", "/mpub?topic=t&binary=0"])
def test_a_body_that_ends_too_early_is_an_error_that_can_be_seen(client: Client, target: str) -> None:
    assert client.send(post(target, b"a\nhalf")[:-2]) == b""
    client.quick.end()
    assert client.finish_turn() == UNREADABLE
    assert client.quick.finished
    topic = client.broker.find("t")
    assert topic is None or topic.message_count == 0


@pytest.mark.parametrize(
    ("target", "sent", "answer"),
    [
        ("/mpub", 6, failure(b"400 Bad Request", b"MISSING_ARG_TOPIC")),
        ("/mpub?topic=t&binary=1", 3, failure(b"413 Request Entity Too Large", b"BAD_BODY")),
        ("/mpub?topic=t&binary=1", 9, failure(b"413 Request Entity Too Large", b"BAD_MESSAGE")),
        ("/mpub?topic=t&binary=1", 14, OK),
    ],
)
def test_of_an_mpub_that_ends_too_early_the_usual_things_are_said_first(
    client: Client, target: str, sent: int, answer: bytes
) -> None:
    request = post(target, binary_mpub([b"aa"]) + b"what is behind it says nothing")
    client.send(request[: request.index(b"\r\n\r\n") + 4 + sent])
    client.quick.end()
    assert client.finish_turn() == answer
    assert client.quick.finished


def test_answers_that_are_owed_come_before_that_of_a_body_that_ends_too_early(client: Client) -> None:
    assert client.send(PING + post("/pub?topic=t", b"hello")[:-1]) == PONG
    client.quick.end()
    assert client.finish_turn() == UNREADABLE


def test_ping(client: Client) -> None:
    assert client.send(PING) == PONG


def test_ping_of_a_sick_broker(client: Client) -> None:
    client.store.health = "NOK - no space left on device"
    answer = client.send(PING)
    assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\nDate: ")
    assert answer.endswith(b"Content-Type: text/plain; charset=utf-8\r\n\r\nNOK - no space left on device")


def test_mpub_of_both_kinds(client: Client) -> None:
    text = post("/mpub?topic=t", b"a\nb\n")
    binary = post("/mpub?topic=t&binary=true", binary_mpub([b"c", b"d"]))
    assert client.send(text + binary) == OK * 2
    assert bodies(client.store, "t") == [b"a", b"b", b"c", b"d"]


def test_pubs_of_one_turn_share_a_batch(client: Client) -> None:
    assert client.send(post("/pub?topic=t", b"a") * 3) == OK * 3
    assert len(client.store.logs["t"].batches) == 1


@pytest.mark.parametrize(("request_", "answer"), [
    (post("/pub", b""), failure(b"400 Bad Request", b"MSG_EMPTY")),
    (b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\n\r\n", failure(b"400 Bad Request", b"MSG_EMPTY")),
    (post("/pub", b"x"), failure(b"400 Bad Request", b"MISSING_ARG_TOPIC")),
    (post("/pub?topic=%", b"x"), failure(b"400 Bad Request", b"INVALID_REQUEST")),
    (post("/mpub?topic=!", b"x"), failure(b"400 Bad Request", b"INVALID_TOPIC")),
    (post("/mpub?topic=t&binary=1", b"x"), failure(b"413 Request Entity Too Large", b"BAD_BODY")),
])  # fmt: skip
def test_errors_leave_the_connection_open(client: Client, request_: bytes, answer: bytes) -> None:
    assert client.send(request_ + PING) == answer + PONG


@pytest.mark.parametrize(("target", "size", "code"), [
    ("/pub", 101, b"MSG_TOO_BIG"),
    ("/mpub", 501, b"BODY_TOO_BIG"),
    ("/pub", 10**18, b"MSG_TOO_BIG"),
])  # fmt: skip
def test_long_body_is_refused_unread(client: Client, target: str, size: int, code: bytes) -> None:
    head = b"POST %s?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (target.encode(), size)
    assert client.send(head) == failure(b"413 Request Entity Too Large", code, close=True)
    assert client.send(b"x" * 1000 + PING) == b""
    assert not client.quick.finished  # bytes that still arrive would turn the close into a reset
    client.quick.tick(client.quick.next_deadline)
    assert client.quick.finished


def test_answer_waits_for_its_receipt_and_others_wait_behind_it(client: Client) -> None:
    client.store.hold = True
    assert client.send(post("/pub?topic=t", b"a") + PING) == b""
    woken = client.woken
    client.store.settle()
    assert client.woken == woken + 1
    assert client.flush() == OK + PONG


def test_failed_write_is_exiting(client: Client) -> None:
    client.store.error = "input/output error"
    assert client.send(post("/pub?topic=t", b"a")) == failure(b"503 Service Unavailable", b"EXITING")


def test_reading_pauses_while_much_is_owed(client: Client) -> None:
    client.store.hold = True
    client.send(post("/pub?topic=t", b"a") * 1500)
    for _ in range(2):
        client.let_others()
    assert (client.quick.reading, client.quick.next_deadline) == (False, inf)
    client.store.settle()
    assert client.flush() == OK * 1500
    assert client.quick.reading


QUICK = {
    "ping": b"GET /ping HTTP/%s\r\nHost: x\r\n%s\r\n",
    "ping with a query": b"GET /ping?a=b HTTP/%s\r\nHost: x\r\n%s\r\n",
    "pub": b"POST /pub?topic=t HTTP/%s\r\nHost: x\r\n%sContent-Length: 2\r\n\r\nhi",
    "pub of nothing": b"POST /pub?topic=t HTTP/%s\r\nHost: x\r\n%sContent-Length: 0\r\n\r\n",
    "pub without a length": b"POST /pub?topic=t HTTP/%s\r\nHost: x\r\n%s\r\n",
    "pub without a topic": b"POST /pub HTTP/%s\r\nHost: x\r\n%sContent-Length: 2\r\n\r\nhi",
    "mpub": b"POST /mpub?topic=t HTTP/%s\r\nHost: x\r\n%sContent-Length: 3\r\n\r\na\nb",
    "mpub of nothing": b"POST /mpub?topic=t HTTP/%s\r\nHost: x\r\n%sContent-Length: 0\r\n\r\n",
    "mpub that is broken": b"POST /mpub?topic=t&binary=true HTTP/%s\r\nHost: x\r\n%sContent-Length: 1\r\n\r\nx",
}
# What Go's server answers to these, measured on NSQ's nsqd: the Connection header, and whether the connection stays.
MANNERS: dict[tuple[bytes, bytes | None], tuple[bytes | None, bool]] = {
    (b"1.1", None): (None, True),
    (b"1.1", b"close"): (b"close", False),
    (b"1.1", b"Close"): (b"close", False),
    (b"1.1", b"keep-alive"): (None, True),
    (b"1.1", b"keep-alive, close"): (b"close", False),
    (b"1.1", b"TE,close"): (b"close", False),
    (b"1.1", b"keep-alive\r\nConnection: close"): (b"close", False),
    (b"1.1", b"other"): (None, True),
    (b"1.1", b'"close"'): (None, True),
    (b"1.1", b""): (None, True),
    (b"1.0", None): (None, False),
    (b"1.0", b"close"): (None, False),
    (b"1.0", b"keep-alive"): (b"keep-alive", True),
    (b"1.0", b"Keep-Alive"): (b"keep-alive", True),
    (b"1.0", b"keep-alive, close"): (b"keep-alive", True),
    (b"1.0", b"keep-alive\r\nConnection: close"): (b"keep-alive", True),
    (b"1.0", b"close\r\nConnection: keep-alive"): (None, False),
    (b"1.0", b"other"): (None, False),
    (b"1.0", b""): (None, False),
}


@pytest.mark.parametrize("asked", QUICK.values(), ids=QUICK)
@pytest.mark.parametrize(("version", "wish"), MANNERS)
def test_a_connection_is_closed_or_kept_as_the_client_wishes(
    client: Client, asked: bytes, version: bytes, wish: bytes | None
) -> None:
    request = asked % (version, b"" if wish is None else b"Connection: %b\r\n" % wish)
    said, stays = MANNERS[version, wish]
    for _ in range(2):  # the first head is parsed, the second one is known
        answer = client.send(request)
        status, *lines = answer.partition(b"\r\n\r\n")[0].split(b"\r\n")
        assert status.startswith(b"HTTP/%b " % version)
        assert [line for line in lines if line.startswith(b"Connection")] == ([b"Connection: " + said] if said else [])
        assert client.quick.finished is not stays
        assert (client.send(request) == answer) is stays
        assert client.handed_off is None
        client.connect()


def test_nothing_is_served_after_connection_close(client: Client) -> None:
    client.send(post("/pub?topic=t", b"a", b"Connection: close\r\n") + post("/pub?topic=t", b"b"))
    assert bodies(client.store, "t") == [b"a"]


OTHERS = [
    b"GET /stats HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /ping?x HTTP/1.1\r\nHost: x\r\n\r\n"[:-4] + b"\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
    b"HEAD /ping HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /pub HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /publish HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx",
    b"POST /pub/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx",
    b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
    b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n",
    b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxy",
    b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx",
    b"POST /pub?topic=t HTTP/1.1\nHost: x\nContent-Length: 9\n\nx\r\n\r\n",
    b"POST /pub?topic=t HTTP/1.1\r\nContent-Length: 1_0\r\n\r\n",
    b"POST /pub?topic=t HTTP/2.0\r\nHost: x\r\n\r\n",
    b"GET /ping HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx",
    b"POST /pub?topic=t HTTP/1.1\r\nX: " + b"x" * 20000 + b"\r\n\r\n",
    b"garbage\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\r\n\r\nGET /ping HTTP/1.1\r\nHost: x\r\n\r\n",
]


@pytest.mark.parametrize("other", OTHERS)
def test_everything_else_is_handed_off_whole(client: Client, other: bytes) -> None:
    assert client.send(PING + other + b"more") == PONG
    assert client.handed_off == other + b"more"
    assert not client.quick.reading


def test_handing_off_waits_until_all_is_answered_and_sent(client: Client) -> None:
    client.store.hold = True
    client.send(post("/pub?topic=t", b"a") + OTHERS[0])
    assert not client.quick.reading
    client.quick.receive(b"more", 101.0)  # arrived before the hand-over
    client.store.settle()
    assert client.quick.bytes_to_send() == [OK]
    client.quick.sent(5)
    assert client.handed_off is None
    client.quick.sent(0)
    assert client.handed_off == OTHERS[0] + b"more"


def test_others_have_their_turn_after_some_topics_of_a_long_pipeline(client: Client) -> None:
    requests = [post(f"/pub?topic=t{number}", b"hello") for number in range(80)]
    assert client.send(b"".join(requests)[:-2]) == 32 * OK
    assert not client.quick.reading
    assert client.send(requests[-1][-2:]) == b""  # what comes meanwhile waits behind the others
    client.quick.tick(100.0)
    assert client.finish_turn() == b""
    assert (client.let_others(), client.let_others()) == (32 * OK, 16 * OK)
    assert (client.quick.reading, client.quick.next_deadline) == (True, inf)
    assert all(bodies(client.store, f"t{number}") == [b"hello"] for number in range(80))


def test_others_have_their_turn_after_hundreds_of_requests_in_one_read(client: Client) -> None:
    assert client.send(1_100 * post("/pub?topic=t", b"x")) == 512 * OK
    assert (client.let_others(), client.let_others(), client.let_others()) == (512 * OK, 76 * OK, b"")
    assert len(bodies(client.store, "t")) == 1_100


@pytest.mark.parametrize("cut", [100, 60_000])
def test_others_have_their_turn_after_thousands_of_lines_of_an_arriving_body(cut: int) -> None:
    client = Client(replace(LIMITS, max_body=1 << 20))
    data = post("/mpub?topic=t", b"x\n" * 60_000) + PING
    assert client.send(data[:cut]) == b""
    answers = [client.send(data[cut:])]
    while client.quick.next_deadline < inf:
        assert not client.quick.reading
        answers.append(client.let_others())
    assert answers == [b"", b"", OK + PONG]
    assert len(bodies(client.store, "t")) == 60_000


def test_others_have_their_turn_after_some_bodies_of_lines() -> None:
    client = Client(replace(LIMITS, max_body=1 << 20))
    assert client.send(post("/mpub?topic=t", b"x\n" * 8_000) * 7) == 5 * OK
    assert (client.let_others(), client.let_others()) == (2 * OK, b"")
    assert len(bodies(client.store, "t")) == 56_000


def test_lines_at_the_beginning_of_a_piece_may_be_shorter_than_the_others() -> None:
    piece = b"x\n" * 30_000 + b"y" * 60_000
    size = LinesBody(LIMITS).first_part(piece)
    assert 10_000 < piece[:size].count(b"\n") <= 20_000


def test_a_connection_that_has_gone_publishes_nothing_that_had_to_wait(client: Client) -> None:
    assert client.send(post("/pub?topic=t", b"x") * 600) == 512 * OK
    client.quick.abort()
    client.quick.tick(inf)
    assert len(bodies(client.store, "t")) == 512


def test_a_body_of_many_lines_that_ends_too_early_is_an_error_after_others_had_their_turn() -> None:
    client = Client(replace(LIMITS, max_body=1 << 20))
    client.send(post("/mpub?topic=t", b"x\n" * 60_000)[:-1])
    client.quick.end()
    assert (client.let_others(), client.let_others()) == (b"", UNREADABLE)
    assert client.quick.finished


def test_a_peer_that_ends_meanwhile_gets_all_answers(client: Client) -> None:
    assert client.send(600 * PING + post("/pub?topic=t", b"half")[:-1]) == 512 * PONG
    client.quick.end()
    assert (client.finish_turn(), client.quick.finished) == (b"", False)
    assert client.let_others() == 88 * PONG + UNREADABLE
    assert client.quick.finished


def test_a_request_for_the_application_waits_for_those_before_it(client: Client) -> None:
    assert client.send(600 * PING + b"GET /stats HTTP/1.1\r\n\r\n") == 512 * PONG
    assert client.handed_off is None
    assert client.let_others() == 88 * PONG
    assert client.handed_off == b"GET /stats HTTP/1.1\r\n\r\n"


def test_peer_that_has_finished_sending_still_gets_its_answers(client: Client) -> None:
    client.store.hold = True
    client.send(post("/pub?topic=t", b"a") + b"POST /pu")
    client.quick.end()
    assert not client.quick.finished
    client.store.settle()
    assert client.flush() == OK
    assert client.quick.finished


def test_connection_that_has_nothing_is_finished_when_the_peer_is(client: Client) -> None:
    client.quick.end()
    assert client.quick.finished
    assert client.quick.next_deadline == inf


requests = st.sampled_from([
    PING,
    post("/pub?topic=t", b"one"),
    post("/pub?topic=t", b""),
    post("/pub?topic=u", b"\r\n\r\nGET /ping HTTP/1.1\r\n\r\n"),
    post("/pub?topic=!", b"x" * 100),
    post("/mpub?topic=t", b"a\nb"),
    post("/mpub?topic=t&binary=true", binary_mpub([b"\r\n\r\n", b"x" * 90])),
    post("/pub?topic=t", b"x" * 200),
    *OTHERS,
])  # fmt: skip


@given(st.lists(requests, max_size=8), st.lists(st.integers(1, 60), max_size=60))
def test_packet_borders_do_not_matter(sent: list[bytes], cuts: list[int]) -> None:
    whole, pieces = Client(), Client()
    stream = b"".join(sent)
    assert pieces.send_in_pieces(stream, iter(cuts)) == whole.send(stream)
    assert {name: bodies(pieces.store, name) for name in pieces.store.logs} == {
        name: bodies(whole.store, name) for name in whole.store.logs
    }
    assert (pieces.handed_off is None) == (whole.handed_off is None)
    if whole.handed_off is not None:
        assert stream.endswith(whole.handed_off)
    assert pieces.quick.finished == whole.quick.finished


@given(st.binary(max_size=200))
def test_no_garbage_breaks_it(garbage: bytes) -> None:
    Client().send(garbage)
    Client().send(b"POST /pub" + garbage)
    Client().send(post("/mpub?topic=t&binary=1", garbage))


def test_the_number_of_remembered_heads_is_bounded(client: Client) -> None:
    for number in range(5000):
        client.quick.receive(post("/pub?topic=t", b"a", b"X: %d\r\n" % number), 100.0)
    assert len(client.routes.heads) <= 4096
    client.send(post("/pub?topic=t", b"a", b"X: " + b"x" * 2000 + b"\r\n"))
    assert max(map(len, client.routes.heads)) < 1024


def test_the_request_whose_body_began_first_makes_room(client: Client) -> None:
    client.routes.unfinished = UnfinishedBodies(100)
    other = QuickHttp(client.routes, hand_off=lambda received: None, wake=lambda: None)
    request = post("/pub?topic=t", b"x" * 90)
    assert client.send(request[:-30]) == b""
    assert client.routes.unfinished.total == 64  # counted with the size in front, as in the log
    other.receive(request[:-30], 0.0)
    assert client.flush() == failure(b"503 Service Unavailable", b"TOO_MANY_UNFINISHED_BODIES", close=True)
    assert client.quick.finished
    other.receive(request[-30:], 0.0)
    assert client.routes.unfinished.total == 0
    client.broker.seal()
    assert bodies(client.store, "t") == [b"x" * 90]


def test_a_connection_that_has_gone_holds_no_body(client: Client) -> None:
    client.send(post("/pub?topic=t", b"x" * 90)[:-30])
    client.quick.abort()
    assert client.routes.unfinished.total == 0
