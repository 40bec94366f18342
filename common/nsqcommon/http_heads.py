"""The rules that the head of a request must keep before its path matters: those of Go's server, in its words.

Both ways into HTTP keep them: nsqd's fast path leaves a head that breaks one to `nsqcommon.web`, which serves everything
else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from nsqcommon.http_api import Response, wire_head

# Of the whole head: request line, names and values.
MOST_HEAD_BYTES: Final = 64 * 1024
_CONTINUE: Final = b"100-continue"


def _refusal(words: bytes) -> bytes:
    """Return Go's answer to a malformed request, which has neither date nor length."""
    return b"HTTP/1.1 " + words + b"\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n" + words


BAD_REQUEST: Final = _refusal(b"400 Bad Request")
HEADERS_TOO_LARGE: Final = _refusal(b"431 Request Header Fields Too Large")
_NO_HOST: Final = _refusal(b"400 Bad Request: missing required Host header")
_TWO_HOSTS: Final = _refusal(b"400 Bad Request: too many Host headers")
_EXPECTATION_FAILED: Final = Response(417, headers=((b"connection", b"close"),))


def refusal_of(version: str, headers: Iterable[tuple[bytes, bytes]], size: int, *, date: bytes) -> bytes | None:
    """Return the answer to a head that breaks a rule, after which the connection ends; None for a good head.

    `version` is "1.0" or "1.1", `headers` have names in lower case, and `size` is that of the whole head in bytes.
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
    # Clients that speak HTTP/1.0 need not name a host: ab and health checks do not.
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
    """Return whether the client wants to send another request on this connection, as Go's server reads it.

    In HTTP/1.1 a `close` in any `Connection` header ends it. In HTTP/1.0 only a `keep-alive` in the first one keeps it,
    whatever else stands there.
    """
    wishes = [value.lower() for name, value in headers if name == b"connection"]
    if version == "1.0":
        return _has_word(wishes[:1], b"keep-alive")
    return not _has_word(wishes, b"close")


def _has_word(values: Iterable[bytes], word: bytes) -> bool:
    return any(word == it.strip(b" \t") for value in values for it in value.split(b","))
