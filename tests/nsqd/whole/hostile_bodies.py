"""Bodies made to keep a parser busy, each as large as allowed, and the parser on the event loop that reads it.

`test_hostile_bodies.py` checks the limits.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from nsqcommon.http_api import HttpError, parse_query
from nsqcommon.option_kinds import STRINGS
from nsqcommon.streams.deflate import DeflateLayer
from nsqcommon.streams.layer import StreamError
from nsqcommon.streams.snappy import SnappyLayer
from nsqcommon.wire import commands, lookup
from nsqcommon.wire.commands import CommandReader
from nsqcommon.wire.faults import ProtocolError
from nsqcommon.wire.identify import decode_identify
from nsqcommon.wire.limits import SizeLimits
from nsqd.auth.grants import GrantError, decode_grant_stepwise
from nsqd.http.mpub_body import BinaryBody, LinesBody

IDENTIFY: Final = SizeLimits().max_identify
BODY: Final = SizeLimits().max_body
ONE_READ: Final = 120 * 1024  # what the poller reads at once
ANSWER: Final = 512 << 10  # largest answer of an authorization server


@dataclass(frozen=True)
class Hostile:
    """`work` is the longest stretch in which no other client is served; `most` is its limit in milliseconds."""

    parser: str
    body: str
    work: Callable[[], object]
    most: float

    @property
    def name(self) -> str:
        return f"{self.parser}: {self.body}"


def hostile_bodies() -> Iterator[Hostile]:
    for name, body in _documents(IDENTIFY):
        yield Hostile("IDENTIFY", name, partial(_quietly, decode_identify, body), 5)
        yield Hostile("IDENTIFY at nsqlookupd", name, partial(_quietly, lookup.decode_identify, body), 5)
    for name, body in _documents(ANSWER):
        yield Hostile("answer of an authorization server", name, _longest_step(body), 80)
    yield Hostile("answer of an authorization server", "10,000 names", _longest_step(_grant("^team-%d\\..*$")), 80)
    yield Hostile("answer of an authorization server", "10,000 expressions", _longest_step(_grant("^(a|b)%d+$")), 80)
    for name, pieces in _posted():
        yield Hostile("/mpub, one read", name, pieces, 25)
    yield from _commands()
    for name, query in _queries(64 * 1024):
        yield Hostile("query", name, partial(_quietly, parse_query, query), 15)
    put = STRINGS.put
    assert put is not None
    for name, body in _documents(64 * 1024):
        yield Hostile("PUT /config", name, partial(_quietly, put, body.decode("utf-8", "replace")), 10)
    yield from _streams()


def _quietly(parse: Callable[..., object], *arguments: object) -> None:
    with suppress(ProtocolError, GrantError, HttpError, StreamError, ValueError):
        parse(*arguments)


# Documents


def _documents(size: int) -> Iterator[tuple[str, bytes]]:
    """Return documents of at most `size` bytes."""
    yield "many keys", b"{%b}" % b",".join(b'"%05x":1' % number for number in range((size - 2) // len('"12345":1,')))
    yield "equal keys", _filled(b"{", b'"client_id":""', b"}", size)
    for name, item in {
        "{}": b"{}",
        "[]": b"[]",
        '"\\ud800"': b'"\\ud800"',
        "an object with a key": b'{"":0}',
        "0xff in short strings": b'"\xff"',
        "integers": b"1",
        "fractions": b"1.5",
        "1e9": b"1e9",
        "1e999999": b"1e999999",
        "long fractions": b"1." + b"9" * 800,
        "nested lists": b"[" * 400 + b"]" * 400,
        "nested objects": b'{"":' * 150 + b"0" + b"}" * 150,
    }.items():
        yield name, _filled(b'{"a":[', item, b"]}", size)
        yield f"{name}, and half a surrogate", _filled(b'{"a":["\\ud800",', item, b"]}", size)
    room = size - len(b'{"client_id":""}')
    yield "0xff in a name", b'{"client_id":"%b"}' % (b"\xff" * room)
    yield "half surrogates in a name", b'{"client_id":"%b"}' % (b"\\ud800" * (room // 6))
    yield "escapes", b'{"client_id":"%b"}' % (b"\\n" * (room // 2))
    yield "a long integer", b'{"heartbeat_interval":%b}' % (b"9" * (room - 10))
    yield "a long fraction", b'{"a":1.%b}' % (b"9" * (room - 10))
    yield "nesting without end", b"[" * size
    yield "spaces", b" " * size


def _filled(head: bytes, item: bytes, tail: bytes, size: int) -> bytes:
    room = size - len(head) - len(tail) + 1  # the last has no comma
    return head + b",".join([item] * (room // (len(item) + 1))) + tail


def _grant(pattern: str) -> bytes:
    entry = {"topic": ".*", "channels": [pattern % number for number in range(10_000)], "permissions": ["publish"]}
    return json.dumps({"ttl": 60, "authorizations": [entry]}).encode()


def _longest_step(body: bytes) -> Callable[[], None]:
    """Return the longest step. Other clients are served between two steps once a slice is over."""

    def work() -> None:
        with suppress(GrantError):
            decoding = decode_grant_stepwise(body)
            with suppress(StopIteration):
                for _ in range(10):
                    next(decoding)

    return work


# What clients send


def _posted() -> Iterator[tuple[str, Callable[[], None]]]:
    limits = SizeLimits()
    for name, line in {"lines of a byte": b"x\n", "empty lines": b"\n", "one line": b"x"}.items():
        piece = line * (ONE_READ // len(line))
        yield name, lambda piece=piece: LinesBody(limits).receive(piece)  # type: ignore[misc]
    count = (BODY - 4) // 5
    for name, message in {
        "equal messages": b"\0\0\0\1x",
        "unequal messages": b"\0\0\0\1x\0\0\0\2xy",
        "messages that are too small": b"\0\0\0\0",
    }.items():
        piece = struct.pack(">i", count) + message * (ONE_READ // len(message))
        yield name, lambda piece=piece: BinaryBody(limits).receive(piece)  # type: ignore[misc]


def _commands() -> Iterator[Hostile]:
    many = (BODY - 4) // 5
    head = b"MPUB t\n" + struct.pack(">ii", BODY, many)
    for name, data in {
        "MPUB of unequal messages": head + b"\0\0\0\1x\0\0\0\2xy" * (ONE_READ // 11),
        "a line without end": b"x" * ONE_READ,
        "FINs": commands.fin(b"0123456789abcdef") * (ONE_READ // 21),
        "spaces": b" " * 16_000 + b"\n",
        "one-byte PUBs, the first 1,024": commands.pub("t", b"x") * 1024,
        "NOPs, the first 1,024": commands.nop() * 1024,
    }.items():
        yield Hostile("commands, one turn", name, partial(_cut, data), 20)


def _cut(data: bytes) -> None:
    reader = CommandReader(SizeLimits(), lambda params: None)
    reader.receive(data)
    with suppress(ProtocolError, commands.LineTooLong):
        while reader.next_command() is not None:
            pass


def _queries(size: int) -> Iterator[tuple[str, bytes]]:
    yield "100,000 arguments", b"&".join(b"%x=" % number for number in range(100_000))
    yield "999 long arguments", b"&".join(b"a%d=" % number + b"%41" * (size // 3000) for number in range(999))
    yield "one long argument", b"topic=" + b"%41" * (size // 3)
    yield "ampersands", b"&" * size


def _streams() -> Iterator[Hostile]:
    nops = commands.nop() * (8 << 20)
    deflated = DeflateLayer(9).encode(nops)[:ONE_READ]
    yield Hostile("deflate, one step", "a bomb", lambda: DeflateLayer(6).decode(deflated), 10)
    framed = SnappyLayer().encode(nops)[:ONE_READ]
    yield Hostile("snappy, one read", "a bomb", lambda: SnappyLayer().decode(framed), 25)
    empty = SnappyLayer().encode(b"x")[:10] + b"\xfe\0\0\0" * (ONE_READ // 4)
    yield Hostile("snappy, one read", "empty chunks", lambda: SnappyLayer().decode(empty), 25)
