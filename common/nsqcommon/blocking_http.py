"""A blocking HTTP client, on the standard library alone: Spark's workers and driver, and parsers, ask by nothing else.

It waits in the thread that calls it, so it is for code without a loop. It takes no redirects, proxies or cookies, and
leaves it to the caller what a status means.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit

__all__ = ["FAILURES", "HTTPConnection", "HTTPResponse", "ask", "connection_to"]

FAILURES: Final = (OSError, HTTPException)  # raised by a connection and its answers: there is no answer, or half of one


def connection_to(
    scheme: str, host: str, port: int | None, *, timeout: float, context: ssl.SSLContext | None = None
) -> HTTPConnection:
    """Return a connection. It connects with its first request, and again after it was closed."""
    if scheme == "https":
        return HTTPSConnection(host, port, timeout=timeout, context=context)
    return HTTPConnection(host, port, timeout=timeout)


def ask(
    url: str, *, timeout: float, most: int, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """Return the status of an answer, and its body up to `most` bytes. Raises one of FAILURES.

    A user and a password in the URL are not sent.
    """
    parts = urlsplit(url)
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    with closing(connection_to(parts.scheme, parts.hostname or "", parts.port, timeout=timeout)) as connection:
        connection.request(method, target, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read(most)
