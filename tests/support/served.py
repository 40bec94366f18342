"""Connections that a `Web` of `nsqcommon.web` serves."""

from __future__ import annotations

import socket
from collections.abc import Callable

from nsqcommon.poller import Connection, Handler
from nsqcommon.web import Web


def serve_socket(web: Web, sock: socket.socket, received: bytes = b"", *, has_ended: bool = False) -> None:
    """Have `web` serve a connection, from which these bytes, and perhaps EOF, have already been received."""

    def make(connection: Connection, wake: Callable[[], None]) -> Handler:
        connection.ended = has_ended
        web.take_over(connection, wake, received)
        return connection.handler

    web.poller.add(sock, "127.0.0.1:5000", make)
