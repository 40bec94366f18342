"""The rules of Go's HTTP server for the head of a request, with Go's error texts. We check them before the path.

nsqd's fast path and `nsqcommon.web` share them. If a head breaks a rule, the fast path leaves the request to
`nsqcommon.web`, which serves all requests that the fast path doesn't.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from nsqcommon.http_api import Response, wire_head

# The whole head: request line, names and values.
MOST_HEAD_BYTES: Final = 64 * 1024
_CONTINUE: Final = b"100-continue"


def _refusal(words: bytes) -> bytes:
    """Return Go's response to a malformed request. It has neither date nor length."""
    return b"HTTP/1.1 " + words + b"\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n" + words


BAD_REQUEST: Final = _refusal(b"400 Bad Request")
HEADERS_TOO_LARGE: Final = _refusal(b"431 Request Header Fields Too Large")
_NO_HOST: Final = _refusal(b"400 Bad Request: missing required Host header")
_TWO_HOSTS: Final = _refusal(b"400 Bad Request: too many Host headers")
_EXPECTATION_FAILED: Final = Response(417, headers=((b"connection", b"close"),))


def refusal_of(version: str, headers: Iterable[tuple[bytes, bytes]], size: int, *, date: bytes) -> bytes | None:
    """Return the response to a head that breaks a rule, or None for a good head. Close the connection after sending it.

    `version` is "1.0" or "1.1", names in `headers` are lower case, and `size` is the whole head in bytes.
    """
    if size > MOST_HEAD_BYTES:
        return HEADERS_TOO_LARGE
    hosts = 0
    expects = b""
    is_chunked = False
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"expect":
            expects = expects or value.lower()
        elif name == b"transfer-encoding":
            is_chunked = True
    # An HTTP/1.0 client needn't name a host; for example, ab and some health checks don't.
    if not hosts and version != "1.0":
        return _NO_HOST
    if hosts > 1:
        return _TWO_HOSTS
    if is_chunked and version == "1.0":
        return BAD_REQUEST
    if expects and _CONTINUE not in (word.strip() for word in expects.split(b",")):
        return wire_head(_EXPECTATION_FAILED, date=date)
    return None


def keeps_open(version: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether the client wants to send another request on this connection, by the rules of Go's server.

    In HTTP/1.1, `close` in any `Connection` header ends the connection. In HTTP/1.0, the connection stays open only if
    the first `Connection` header contains `keep-alive`, even if it also contains `close`.
    """
    values = [value.lower() for name, value in headers if name == b"connection"]
    if version == "1.0":
        return _has_word(values[:1], b"keep-alive")
    return not _has_word(values, b"close")


def _has_word(values: Iterable[bytes], word: bytes) -> bool:
    return any(word == it.strip(b" \t") for value in values for it in value.split(b","))
