"""The bytes of a request, and responses whatever their packet borders."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.wire.http_exchange import Answer, BadResponse, ResponseReader, request_bytes

OK: Final = b"HTTP/1.1 200 OK\r\n"
LENGTH: Final = b"Content-Length: 5\r\n"
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"
HELLO: Final = OK + LENGTH + b"\r\nhello"
CHUNKS: Final = b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
HINTS: Final = b"HTTP/1.1 103 Early Hints\r\nLocation: /hint\r\nX-NSQ-Index: 7\r\nContent-Length: 99\r\n\r\n"


def test_request_has_a_head_only() -> None:
    assert request_bytes("GET", "h:1", "/x?y=z", [("A", "b")]) == b"GET /x?y=z HTTP/1.1\r\nHost: h:1\r\nA: b\r\n\r\n"


def test_request_with_a_body_names_its_length() -> None:
    assert request_bytes("POST", "h", "/", body=b"ab") == b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab"


# Reading


def read(pieces: Iterable[bytes], reader: ResponseReader) -> ResponseReader:
    """Give the pieces to the reader until the response is complete, and then the end of the connection."""
    with reader:
        for piece in (*filter(None, pieces), b""):
            if reader.is_complete:
                break
            reader.receive(piece)
    return reader


def read_whole(stream: bytes, *, most: float = inf) -> ResponseReader:
    return read([stream], ResponseReader(most=most))


def bytewise(stream: bytes) -> list[bytes]:
    return [bytes([byte]) for byte in stream]


ACCEPTED: Final = [
    (HELLO, Answer(200, b"hello")),
    (OK + CHUNKED + b"\r\n" + CHUNKS, Answer(200, b"hello")),
    (OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKS, Answer(200, b"hello")),
    (OK + CHUNKED + b"\r\n5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n", Answer(200, b"hello")),
    (OK + b"\r\nuntil the end", Answer(200, b"until the end")),
    (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", Answer(200, b"until the end")),
    (OK + b"Upgrade: x\r\nConnection: Upgrade\r\n" + LENGTH + b"\r\nhello", Answer(200, b"hello")),
    (b"HTTP/1.1 200\r\n" + LENGTH + b"\r\nhello", Answer(200, b"hello")),
    (b"\r\n" + HELLO, Answer(200, b"hello")),
    (b"HTTP/1.1 204 No Content\r\n\r\n", Answer(204, b"")),
    (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", Answer(304, b"")),
    (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", Answer(404, b"")),
    (b"HTTP/1.1 302 Found\r\nLOCATION: /\xe4\r\nContent-Length: 0\r\n\r\n", Answer(302, b"", "/\xe4")),
    (OK + b"x-nsq-index: 12\r\n" + LENGTH + b"\r\nhello", Answer(200, b"hello", index="12")),
    # Interim responses say nothing of the one that follows.
    (CONTINUE + HELLO, Answer(200, b"hello")),
    (HINTS + CONTINUE + HELLO, Answer(200, b"hello")),
    (HINTS + OK + b"\r\nuntil the end", Answer(200, b"until the end")),
]  # fmt: skip


@pytest.mark.parametrize(("stream", "answer"), ACCEPTED)
def test_response_is_read(stream: bytes, answer: Answer) -> None:
    assert read_whole(stream, most=13).answer() == answer


@pytest.mark.parametrize(("stream", "answer"), ACCEPTED)
def test_response_is_read_byte_by_byte(stream: bytes, answer: Answer) -> None:
    assert read(bytewise(stream), ResponseReader(most=13)).answer() == answer


CUT: Final = "connection closed within the response"
REFUSED: Final = [
    (b"", CUT),
    (OK, CUT),
    (HELLO[:-1], CUT),
    (OK + CHUNKED + b"\r\n" + CHUNKS[:-2], CUT),
    (OK + b"Transfer-Encoding: gzip\r\n\r\nhello", CUT),
    (CONTINUE, CUT),
    (CONTINUE + OK, CUT),
    (b"HTTP/1.1 2x0 OK\r\n", "malformed HTTP response: Invalid status code"),
    (b"HTTP/1.1 2000 OK\r\n", "malformed HTTP response: Invalid response status"),
    (b"HTTP/1.2 200 OK\r\n", "malformed HTTP response: Invalid HTTP version"),
    (b"ICY 200 OK\r\n", "malformed HTTP response: Expected HTTP/"),
    (b"GET / HTTP/1.1\r\n", "malformed HTTP response: Expected HTTP/"),
    (
        b"\0\0\0\x0eE_BAD_PROTOCOL",
        "malformed HTTP response: Expected HTTP/, RTSP/ or ICE/ (is this a TCP port? HTTP is usually on port 4151 for nsqd, "
        "and on 4161 for nsqlookupd)",
    ),
    (b"HTTP/1.1 200 OK\nX: y\r\n", "malformed HTTP response: Missing expected CR after response line"),
    (OK + b"X: y\n", "malformed HTTP response: Missing expected CR after header value"),
    (OK + b"X: a\r\n b\r\n", "malformed HTTP response: Unexpected whitespace after header value"),
    (OK + b"X : y\r\n", "malformed HTTP response: Invalid header token"),
    (OK + b"X\r\n", "malformed HTTP response: Invalid header token"),
    (OK + b"X: a\0b\r\n", "malformed HTTP response: Invalid header value char"),
    (OK + LENGTH + LENGTH, "malformed HTTP response: Duplicate Content-Length"),
    (OK + LENGTH + b"Content-Length: 6\r\n", "malformed HTTP response: Duplicate Content-Length"),
    (OK + b"Content-Length: 5, 5\r\n", "malformed HTTP response: Invalid character in Content-Length"),
    (OK + b"Content-Length: +5\r\n", "malformed HTTP response: Invalid character in Content-Length"),
    (OK + b"Content-Length: -5\r\n", "malformed HTTP response: Invalid character in Content-Length"),
    (OK + b"Content-Length: \r\nX", "malformed HTTP response: Empty Content-Length"),
    (OK + b"Content-Length: " + b"9" * 30, "malformed HTTP response: Content-Length overflow"),
    (OK + LENGTH + CHUNKED, "malformed HTTP response: Transfer-Encoding can't be present with Content-Length"),
    (OK + CHUNKED + LENGTH, "malformed HTTP response: Content-Length can't be present with Transfer-Encoding"),
    (OK + CHUNKED + b"\r\nx\r\n", "malformed HTTP response: Invalid character in chunk size"),
    (OK + CHUNKED + b"\r\n-1\r\n", "malformed HTTP response: Invalid character in chunk size"),
    (OK + CHUNKED + b"\r\n" + b"f" * 17, "malformed HTTP response: Chunk size overflow"),
    (OK + CHUNKED + b"\r\n1\r\nab\r\n", "malformed HTTP response: Expected LF after chunk data"),
    (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
        "malformed HTTP response: an upgrade to another protocol",
    ),
    (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "malformed HTTP response: Pause on CONNECT/Upgrade"),
]  # fmt: skip


@pytest.mark.parametrize(("stream", "error"), REFUSED)
def test_response_is_refused(stream: bytes, error: str) -> None:
    with pytest.raises(BadResponse) as refused:
        read_whole(stream)
    assert str(refused.value).startswith(error)


@pytest.mark.parametrize(("stream", "error"), REFUSED)
def test_response_is_refused_byte_by_byte(stream: bytes, error: str) -> None:
    with pytest.raises(BadResponse) as refused:
        read(bytewise(stream), ResponseReader())
    assert str(refused.value).startswith(error)


# Bounds


def test_body_of_the_largest_size_is_read() -> None:
    assert read_whole(HELLO, most=5).answer() == Answer(200, b"hello")


@pytest.mark.parametrize(
    "stream",
    [
        OK + LENGTH + b"\r\n",  # nothing of the body has to arrive
        OK + CHUNKED + b"\r\n" + CHUNKS,
        OK + b"\r\nhello",
    ],
)
def test_body_that_is_too_large_is_refused(stream: bytes) -> None:
    with pytest.raises(BadResponse, match="response of more than 4 bytes"):
        read_whole(stream, most=4)


@pytest.mark.parametrize(
    ("start", "again"),
    [
        (OK, b"X: " + b"x" * 1000 + b"\r\n"),
        (OK + b"X: ", b"x" * 1000),
        (b"HTTP/1.1 200 ", b"x" * 1000),
        (b"", b"\r\n" * 500),
        (b"", CONTINUE),
        (b"", HINTS),
        (OK + CHUNKED + b"\r\n", b"1;" + b"x" * 1000 + b"\r\na\r\n"),
        (OK + CHUNKED + b"\r\n", b"0" * 1000),
        (OK + CHUNKED + b"\r\n0\r\n", b"X: " + b"x" * 1000 + b"\r\n"),
    ],
)
def test_endless_response_without_a_body_is_refused(start: bytes, again: bytes) -> None:
    with pytest.raises(BadResponse, match="response with too much besides its body"):
        read([start, *[again] * (300 * 1024 // len(again))], ResponseReader())


def test_chunks_of_one_byte_are_read() -> None:
    stream = OK + CHUNKED + b"\r\n" + b"1\r\na\r\n" * 100_000 + b"0\r\n\r\n"
    assert len(read_whole(stream).body) == 100_000


# Bodies that are not kept, and bodies that are taken away as they arrive


def test_body_that_is_not_kept_is_read_to_its_end() -> None:
    reader = read(bytewise(HELLO), ResponseReader(most=1, keeps_body=False))
    assert reader.is_complete
    assert reader.answer() == Answer(200, b"")


def test_body_is_taken_in_pieces() -> None:
    with ResponseReader() as reader:
        taken = []
        for piece in (OK + CHUNKED + b"\r\n", b"3\r\nhe", b"l\r\n", b"2\r\nlo\r\n", b"0\r\n\r\n"):
            reader.receive(piece)
            taken.append(reader.take_body())
        assert taken == [b"", b"he", b"l", b"lo", b""]
        assert reader.is_complete


# The connection afterwards


@pytest.mark.parametrize(
    ("stream", "is_reusable"),
    [
        (HELLO, True),
        (HELLO + b"\r\n", True),
        (HINTS + HELLO, True),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + LENGTH + b"\r\nhello", True),
        (b"HTTP/1.0 200 OK\r\n" + LENGTH + b"\r\nhello", False),
        (OK + b"Connection: close\r\n" + LENGTH + b"\r\nhello", False),
        (OK + b"\r\nuntil the end", False),
        (HELLO + HELLO, False),
        (HELLO + b"HTTP", False),
        (HELLO + CONTINUE, False),
        (HELLO[:-1], False),
    ],
)
def test_another_request_may_follow(stream: bytes, is_reusable: bool) -> None:
    with ResponseReader() as reader:
        reader.receive(stream)
        assert reader.is_reusable == is_reusable


def test_what_follows_a_response_changes_nothing_of_it() -> None:
    other = b"HTTP/1.1 302 Found\r\nLocation: /x\r\nX-NSQ-Index: 1\r\nContent-Length: 3\r\n\r\nabc"
    assert read_whole(HELLO + other, most=5).answer() == Answer(200, b"hello")


def test_garbage_that_comes_with_a_response_is_refused() -> None:
    with pytest.raises(BadResponse, match="malformed HTTP response"):
        read_whole(HELLO + b"garbage")


def test_reader_has_begun_with_the_first_byte() -> None:
    with ResponseReader() as reader:
        with pytest.raises(BadResponse):
            reader.receive(b"")
        assert not reader.has_begun
        reader.receive(b"H")
        assert reader.has_begun


def test_head_is_there_before_the_body_and_not_after_an_interim_one() -> None:
    with ResponseReader() as reader:
        reader.receive(CONTINUE)
        assert not reader.has_head
        reader.receive(OK + LENGTH + b"\r\n")
        assert reader.has_head
        assert reader.status == 200
        assert not reader.is_complete


def test_no_cycle_keeps_a_response_that_was_left() -> None:
    gc.disable()
    try:
        with ResponseReader() as reader:
            reader.receive(HELLO[:-1])
        alive = weakref.ref(reader)
        del reader
        assert alive() is None
    finally:
        gc.enable()


# Whatever the packet borders

NAMES = st.sampled_from(["X-A", "Location", "x-nsq-index", "Date"])
TEXTS = st.text("abc /=;", max_size=8).map(str.strip)
HEADERS = st.lists(st.builds("{}: {}\r\n".format, NAMES, TEXTS), max_size=4).map(lambda lines: "".join(lines).encode())
BODIES = st.lists(st.binary(min_size=1, max_size=20), max_size=5)


def with_length(head: bytes, body: Sequence[bytes]) -> bytes:
    return OK + head + b"Content-Length: %d\r\n\r\n" % len(b"".join(body)) + b"".join(body)


def with_chunks(head: bytes, body: Sequence[bytes]) -> bytes:
    return OK + head + CHUNKED + b"\r\n" + b"".join(b"%x\r\n%b\r\n" % (len(it), it) for it in body) + b"0\r\n\r\n"


def until_the_end(head: bytes, body: Sequence[bytes]) -> bytes:
    return OK + head + b"\r\n" + b"".join(body)


WELL_FORMED = st.builds(
    lambda interim, write, head, body: (b"".join(interim) + write(head, body), b"".join(body)),
    st.lists(st.sampled_from([CONTINUE, HINTS]), max_size=2),
    st.sampled_from([with_length, with_chunks, until_the_end]),
    HEADERS,
    BODIES,
)


def cut(stream: bytes, borders: Iterable[int]) -> list[bytes]:
    places = [0, *sorted(border % (len(stream) + 1) for border in borders), len(stream)]
    return [stream[start:end] for start, end in pairwise(places)]


BORDERS = st.lists(st.integers(0, 10_000), max_size=20)


@given(WELL_FORMED, BORDERS)
def test_packet_borders_do_not_matter(response: tuple[bytes, bytes], borders: list[int]) -> None:
    stream, body = response
    whole, pieces = read_whole(stream), read(cut(stream, borders), ResponseReader())
    assert pieces.answer() == whole.answer()
    assert (whole.answer().status, whole.answer().body) == (200, body)
    assert pieces.is_reusable == whole.is_reusable


@given(WELL_FORMED, BORDERS, st.integers(0, 10_000))
def test_response_that_is_cut_off_is_never_taken_for_a_whole_one(
    response: tuple[bytes, bytes], borders: list[int], end: int
) -> None:
    stream, _ = response
    with ResponseReader() as reader:
        for piece in filter(None, cut(stream[: end % len(stream)], borders)):
            reader.receive(piece)
            assert not reader.is_complete


def outcome(pieces: Iterable[bytes]) -> Answer | str:
    try:
        return read(pieces, ResponseReader()).answer()
    except BadResponse as error:
        return str(error)


BROKEN = st.builds(
    lambda response, place, junk, length: (
        response[0][: place % len(response[0])] + junk + response[0][place % len(response[0]) + length :]
    ),
    WELL_FORMED,
    st.integers(0, 10_000),
    st.binary(max_size=3) | st.sampled_from([b"\r\n", b"\n", b":", b" ", b"0", b"f", CONTINUE, LENGTH, CHUNKED]),
    st.integers(0, 5),
)


@given(BROKEN, BORDERS)
def test_packet_borders_make_no_other_answer_of_what_is_broken(stream: bytes, borders: list[int]) -> None:
    whole, pieces = outcome([stream]), outcome(cut(stream, borders))
    # Only what follows a response in the same packet is seen, and refused if it is none.
    assert pieces == whole or (isinstance(whole, str) and outcome(bytewise(stream)) == pieces)
