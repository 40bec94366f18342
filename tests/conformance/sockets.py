"""Servers of a conversation that are processes: ours, or NSQ's own."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

from nsqcommon.wire.frames import FrameReader, FrameType
from nsqcommon.wire.lookup import ReplyReader
from tests.conformance.script import Script
from tests.conformance.talk import Conversation, Frame
from tests.support.client import TIMEOUT
from tests.support.process import Daemon

# Small bounds, so that scripts can exceed them; and nothing that depends on the machine's name.
NSQD_OPTIONS: Final = ("max-msg-size=1024", "max-body-size=5120", "broadcast-address=127.0.0.1")
_MOST: Final = 1 << 20


class SocketConnection:
    def __init__(self, server: Daemon, limit: float) -> None:
        self._limit = limit
        self._socket = socket.create_connection(server.tcp, timeout=TIMEOUT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = FrameReader(_MOST) if server.program == "nsqd" else None
        self._replies = ReplyReader(_MOST)

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def no_more(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:  # the server has closed it already, and that is what is read next
            return

    def frame(self) -> Frame | None:
        deadline = time.monotonic() + self._limit
        while (found := self._next()) is None:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            (self._frames or self._replies).receive(data)
        return found

    def _next(self) -> Frame | None:
        if self._frames is not None:
            frame = self._frames.next_frame()
            return None if frame is None else (frame.type, frame.data)
        reply = self._replies.next_reply()
        return None if reply is None else (FrameType.RESPONSE, reply)


def talk(script: Script, server: Daemon, whose: str = "ours", *, limit: float = TIMEOUT) -> list[str]:
    """Run the script, and return what was said. `limit`: seconds for each answer."""
    with ExitStack() as connections:

        def connect() -> SocketConnection:
            made = SocketConnection(server, limit)
            connections.callback(made.close)
            return made

        def request(
            method: str, path: str, body: bytes | None, headers: Mapping[str, str]
        ) -> tuple[int, Mapping[str, str], bytes]:
            answer = server.http(method, path, body, headers=headers)
            return answer.status, answer.headers, answer.body

        ports = server.tcp[1], server.http_address[1]
        return Conversation(script, connect, request, ports).run(whose)
