"""The client's side of HTTP, without I/O: the bytes of a request, and a parser for the response.

httptools (llhttp) parses the responses; our servers parse requests with it too. It's strict: no bare LF, no folded
header lines, no second Content-Length, no Content-Length together with Transfer-Encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Self

import httptools

Headers = Sequence[tuple[str, str]]

MOST_BYTES: Final = 16 << 20  # of a body, unless the caller sets another limit

_MOST_OVERHEAD: Final = 256 * 1024  # bytes of head, chunk sizes and trailer
_MOST_OVERHEAD_PER_BYTE: Final = 8  # of the body, on top: a chunk may be as short as one byte


class BadResponse(Exception):
    """The response is malformed, too large or incomplete. The message says which."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response."""

    status: int
    body: bytes
    location: str = ""  # the URL of a redirect
    index: str = ""  # from nsqlookupd, which changes it whenever the response may have changed


def request_bytes(method: str, host: str, target: str, headers: Headers = (), body: bytes = b"") -> bytes:
    """Return a request; `host` is the Host header."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class ResponseReader:
    """Parses one response, however the network splits it: bytes go in, an Answer or BadResponse comes out.

    It skips interim responses (100, 102, 103). `most` limits the body. The limit on everything else grows with the body
    received so far, so we refuse an endless head, and short chunks with long extensions. Without `keeps_body` it reads
    the body to its end and discards it.

    Use it in a `with` block, because it and httptools' parser refer to each other until the block ends. The garbage
    collector may run too late, because it counts objects and not their megabytes. You can use the result afterwards.
    """

    def __init__(self, *, most: float = inf, keeps_body: bool = True) -> None:
        self.status = 0
        self.body = bytearray()  # one buffer: a list of two-byte chunks would take 20 times their size
        self.has_begun = False  # at least one byte was received
        self.has_head = False
        self.is_complete = False
        self._most = most
        self._keeps_body = keeps_body
        self._location = b""
        self._index = b""
        self._size = 0  # bytes of the body so far, kept or not
        self._overhead = 0  # received bytes outside the body
        self._announced = 0  # the body's Content-Length
        self._has_end = False  # the head says where the body ends
        self._stays_open = False
        self._has_surplus = False  # another response has begun
        self._parser: Any = httptools.HttpResponseParser(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._parser = None

    def receive(self, data: bytes | bytearray) -> None:
        """Parse more of the response. Pass empty `data` once the peer has closed the connection. Raises BadResponse."""
        if not data:
            # Without a length in the head, the body ends with the connection.
            if not self.has_head or self._has_end:
                raise BadResponse("connection closed within the response")
            self.is_complete = True
            return
        self.has_begun = True
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise BadResponse(f"malformed HTTP response: {error}{_hint(str(error))}") from error
        except httptools.HttpParserUpgrade as error:
            raise BadResponse("malformed HTTP response: an upgrade to another protocol") from error
        if self._overhead > _MOST_OVERHEAD + _MOST_OVERHEAD_PER_BYTE * self._size:
            raise BadResponse("response with too much besides its body")
        if max(len(self.body), self._announced) > self._most:
            raise BadResponse(f"response of more than {self._most} bytes")

    def take_body(self) -> bytes:
        """Return the part of the body that arrived since the last call."""
        body, self.body = self.body, bytearray()
        return bytes(body)

    def answer(self) -> Answer:
        """Return the complete response."""
        return Answer(self.status, bytes(self.body), self._location.decode("latin-1"), self._index.decode("latin-1"))

    @property
    def is_reusable(self) -> bool:
        """Whether the connection can serve another request. It can't if the server sent more than one response."""
        return self._stays_open and not self._has_surplus

    # httptools calls these, also for bytes after the response. We record only that there are such bytes.

    def on_message_begin(self) -> None:
        self._has_surplus = self.is_complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.is_complete:
            return
        name = name.lower()
        self._has_end |= name in (b"content-length", b"transfer-encoding")
        if name == b"location":
            self._location = value
        elif name == b"x-nsq-index":
            self._index = value
        elif name == b"content-length" and self._keeps_body:
            self._announced = int(value)  # the parser has checked it

    def on_headers_complete(self) -> None:
        status = int(self._parser.get_status_code())
        if not self.is_complete and not 100 <= status < 200:
            self.status = status
            self.has_head = True

    def on_body(self, body: bytes) -> None:
        if self.is_complete:
            return
        self._overhead -= len(body)
        self._size += len(body)
        if self._keeps_body:
            self.body += body

    def on_message_complete(self) -> None:
        if self.is_complete:
            return
        if self.has_head:
            self.is_complete = True
            self._stays_open = bool(self._parser.should_keep_alive())  # the parser forgets it later
        else:  # an interim response, which says nothing about the next one
            self._location = self._index = b""
            self._announced = 0
            self._has_end = False


def _hint(error: str) -> str:
    """Name the likely mistake if the peer doesn't speak HTTP at all."""
    if not error.startswith("Expected HTTP/"):
        return ""
    return " (is this a TCP port? HTTP is usually on port 4151 for nsqd, and on 4161 for nsqlookupd)"
