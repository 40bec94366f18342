"""Bodies that cost their reader more than their sender."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Mapping
from itertools import count
from typing import Final

from nsqcommon.streams.snappy import SnappyLayer

_I32: Final = struct.Struct(">i")


def _filled(head: bytes, unit: bytes, tail: bytes, size: int) -> bytes:
    return head + unit * ((size - len(head) - len(tail)) // len(unit)) + tail


def _keys(size: int) -> bytes:
    made: list[bytes] = []
    left = size - 2
    for number in count():
        made.append(b'"%x":1' % number)
        left -= len(made[-1]) + 1
        if left < 16:
            return b"{" + b",".join(made) + b"}"
    raise AssertionError


# Each makes a JSON body of at most this many bytes.
JSON: Final[Mapping[str, Callable[[int], bytes]]] = {
    "surrogates": lambda size: _filled(rb'{"a":"\ud800","x":[', b"{},", b"{}]}", size),
    "keys": _keys,
    "objects": lambda size: _filled(b'{"x":[', b"{},", b"{}]}", size),
    "arrays": lambda size: _filled(b'{"x":[', b"[],", b"[]]}", size),
    "bad-utf8": lambda size: _filled(b'{"client_id":"', b"\xff", b'"}', size),
    "integers": lambda size: _filled(b'{"x":[', b"1,", b"1]}", size),
    "nesting": lambda size: _filled(b'{"x":', b"[", b"", size),
    "exponents": lambda size: _filled(b'{"x":[', b"1e999999,", b"1]}", size),
    "long number": lambda size: _filled(b'{"x":', b"9", b"}", size),
    "same key": lambda size: _filled(b"{", b'"a":1,', b'"a":1}', size),
}


def honest_mpub(size: int, message: int = 5000) -> bytes:
    """Return a command with this many bytes of messages."""
    return mpub("honest#ephemeral", size, message)


def tiny_mpub(size: int) -> bytes:
    return mpub("tiny#ephemeral", size, 1)


def mpub(topic: str, size: int, message: int) -> bytes:
    messages = (size - 4) // (message + 4)
    unit = _I32.pack(message) + b"x" * message
    return b"MPUB %s\n" % topic.encode() + _I32.pack(messages * len(unit) + 4) + _I32.pack(messages) + unit * messages


def half_mpub(size: int) -> bytes:
    """Return the first half of a command whose messages have 100 kB each."""
    whole = mpub("half", size, 100_000)
    return whole[: len(whole) // 2]


def half_pub(size: int) -> bytes:
    """Return a command whose body lacks its last byte, so that it never ends."""
    return b"PUB half\n" + _I32.pack(size) + b"x" * (size - 1)


def deflated(data: bytes) -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    return compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)


def snapped(data: bytes) -> bytes:
    return SnappyLayer().encode(data)


def gzip_bomb(head: bytes, unit: bytes, tail: bytes, size: int) -> bytes:
    return gzip.compress(_filled(head, unit, tail, size), 9)
