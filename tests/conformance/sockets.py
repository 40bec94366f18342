"""Servers of a conversation that are processes: ours, or NSQ's own."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from nsqcommon.wire.frames import FrameReader, FrameType
from nsqcommon.wire.lookup import ReplyReader
from tests.conformance.script import Script
from tests.conformance.talk import Conversation, Frame, WebAnswer
from tests.support.auth_server import EVERYTHING, AuthServer, granting
from tests.support.certificates import make_certificates
from tests.support.client import TIMEOUT
from tests.support.http_server import Reply, Request
from tests.support.process import Daemon, Nsqd, Nsqlookupd

_MOST: Final = 1 << 20
# Small bounds, so that scripts can exceed them; and nothing that depends on the machine's name.
_NSQD: Final = ("max-msg-size=1024", "max-body-size=5120", "broadcast-address=127.0.0.1")
# What the authorization server grants to each secret. To others it answers 403.
_GRANTS: Final = {
    "everything": granting(EVERYTHING, identity="<me>", identity_url="http://a/?b&c"),
    "twice": granting(EVERYTHING, EVERYTHING),
    "nothing": granting(),
    "publish": granting({"topic": "^script", "channels": [".*"], "permissions": ["publish"]}),
    "publish-no-channels": granting({"topic": ".*", "channels": [], "permissions": ["publish"]}),
    "publish-a-channel": granting({"topic": ".*", "channels": ["^c$"], "permissions": ["publish"]}),
    "subscribe": granting({"topic": ".*", "channels": ["c"], "permissions": ["subscribe"]}),
    "other-topic": granting({"topic": "^other$", "channels": [".*"], "permissions": ["subscribe", "publish"]}),
    "bad-expression": granting({"topic": "(", "channels": [".*"], "permissions": ["publish"]}),
    "bad-permission": granting({"topic": ".*", "channels": [".*"], "permissions": ["read"]}),
    "no-time": granting(EVERYTHING, ttl=0),
    "no-json": Reply(body=b"welcome"),
}


def _granted(asked: Request) -> Reply:
    return _GRANTS.get(asked.secret, Reply(status=403))


class Servers:
    """Starts a server for each folder of scripts when it is first asked for. `originals`: the folder of NSQ's own."""

    def __init__(self, folder: Path, running: ExitStack, *, originals: Path | None = None) -> None:
        self._folder = folder
        self._running = running
        self._originals = originals
        self._started: dict[str, Daemon] = {}

    def of(self, scripts: str) -> Daemon:
        if scripts not in self._started:
            daemon = self._made(scripts)
            if self._originals is not None:
                daemon.command = (str(self._originals / daemon.program),)
            self._started[scripts] = self._running.enter_context(daemon)
        return self._started[scripts]

    def _made(self, scripts: str) -> Daemon:
        if scripts.startswith("nsqlookupd"):
            # What ours finds out when it connects back is an addition to /nodes, and comes when it comes.
            return Nsqlookupd(*(("dial-back=false",) if self._originals is None else ()))
        options: tuple[str, ...] = ()
        if scripts == "nsqd-auth":
            server = self._running.enter_context(AuthServer(_granted))
            options = (f"auth-http-address={server.address}",)
        elif scripts == "nsqd-tls":
            made = make_certificates(self._folder)
            options = (
                f"tls-cert={made.certificate}",
                f"tls-key={made.key}",
                "tls-required",
                "https-address=127.0.0.1:0",
            )
        return Nsqd(self._folder / scripts, *_NSQD, *options)

    @property
    def logs(self) -> str:
        return "\n".join(daemon.log for daemon in self._started.values())


class Connection:
    """What both protocols have in common."""

    def __init__(self, address: tuple[str, int], timeout: float) -> None:
        self._socket = socket.create_connection(address, timeout=timeout)

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def no_more(self) -> None:
        _shut_down(self._socket)


class SocketConnection(Connection):
    def __init__(self, server: Daemon, limit: float) -> None:
        super().__init__(server.tcp, TIMEOUT)
        self._limit = limit
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = FrameReader(_MOST) if server.program == "nsqd" else None
        self._replies = ReplyReader(_MOST)

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


class HttpConnection(Connection):
    """A connection for HTTP. Its answers are read one by one, each before the next request is sent."""

    def __init__(self, server: Daemon, limit: float) -> None:
        super().__init__(server.http_address, limit)

    def answer(self) -> WebAnswer | None:
        with http.client.HTTPResponse(self._socket) as response:
            try:
                response.begin()
            except (http.client.RemoteDisconnected, ConnectionResetError):
                return None
            headers = {name.lower(): value for name, value in response.getheaders()}
            return WebAnswer(f"1.{response.version - 10}", response.status, headers, response.read())


def _shut_down(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_WR)
    except OSError:  # the server has closed it already, and that is what is read next
        return


def talk(script: Script, server: Daemon, whose: str = "ours", *, limit: float = TIMEOUT) -> list[str]:
    """Run the script, and return what was said. `limit`: seconds for each answer."""
    with ExitStack() as connections:

        def connect() -> SocketConnection:
            made = SocketConnection(server, limit)
            connections.callback(made.close)
            return made

        def connect_web() -> HttpConnection:
            made = HttpConnection(server, limit)
            connections.callback(made.close)
            return made

        def request(
            method: str, path: str, body: bytes | None, headers: Mapping[str, str]
        ) -> tuple[int, Mapping[str, str], bytes]:
            answer = server.http(method, path, body, headers=headers)
            return answer.status, answer.headers, answer.body

        ports = server.tcp[1], server.http_address[1]
        return Conversation(script, connect, request, connect_web, ports).run(whose)
