"""nsqds and nsqlookupds on real sockets, each in threads, that do what a test tells them: for clients on any loop."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

from bench.ports import HOST, take_port

_LIMIT: Final = 30.0  # seconds of any wait
_OK: Final = b"\0\0\0\x06\0\0\0\0OK"


class _Server:
    """Accepts connections at the same port whenever it is started."""

    def __init__(self) -> None:
        self.port = 0
        self._ports = ExitStack()
        self._listener: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self._lock = threading.Condition()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.port = take_port(self._ports)
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._ports.close()

    def start(self) -> None:
        self._listener = socket.create_server((HOST, self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def kill(self) -> None:
        """Close everything at once, as `kill -9` does."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        with self._lock:
            gone, self._connections = self._connections, set()
            self._lock.notify_all()
        for connection in gone:
            with suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def connections(self) -> int:
        return len(self._connections)

    def wait_until(self, condition: Callable[[], object]) -> None:
        with self._lock:
            assert self._lock.wait_for(condition, _LIMIT)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with self._lock:
                    self._connections.add(connection)
                    self._lock.notify_all()
                threading.Thread(target=self._serve_one, args=(connection,), daemon=True).start()

    def _serve_one(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, EOFError, struct.error):
            connection.settimeout(_LIMIT)
            self._serve(connection)
        with self._lock:
            self._connections.discard(connection)
            self._lock.notify_all()

    def _serve(self, connection: socket.socket) -> None:
        raise NotImplementedError


class SocketNsqd(_Server):
    """Takes PUB, MPUB and DPUB, with keys unless `extensions` lacks them, and forgets nothing when it is killed."""

    def __init__(self, *, extensions: Sequence[str] = ("keys", "headers")) -> None:
        super().__init__()
        self.bodies: list[bytes] = []
        self.commands: list[str] = []
        self.refusal = ""  # the text of an error instead of OK
        self.hangs = False  # publishes are not answered and not stored
        self.dies_before_answer = 0  # so many publishes are stored, and then it is killed
        self._extensions = extensions
        self._keys: set[str] = set()

    def _serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        if stream.read(4) != b"  V2":
            return
        while line := stream.readline():
            words = line.decode().split()
            if words[0] == "IDENTIFY":
                stream.read(*struct.unpack(">i", stream.read(4)))
                said = {"max_rdy_count": 2500, "version": "test", "extensions": list(self._extensions)}
                self._answer(connection, 0, json.dumps(said).encode())
            elif words[0].endswith("PUB"):
                (size,) = struct.unpack(">i", stream.read(4))
                if not self._publish(connection, words, stream.read(size)):
                    return

    def _publish(self, connection: socket.socket, words: list[str], content: bytes) -> bool:
        with self._lock:
            self.commands.append(" ".join(words))
            self._lock.notify_all()
            if self.hangs:
                return True
            if self.refusal:
                self._answer(connection, 1, self.refusal.encode())
                return False
            key = words[2] if len(words) > 2 else ""
            if not key or key not in self._keys:
                self._keys.add(key)
                self.bodies += _many(content) if words[0] == "MPUB" else [content]
            if self.dies_before_answer:
                self.dies_before_answer -= 1
                if not self.dies_before_answer:
                    threading.Thread(target=self.kill, daemon=True).start()
                return True
        connection.sendall(_OK)
        return True

    def _answer(self, connection: socket.socket, kind: int, data: bytes) -> None:
        connection.sendall(struct.pack(">ii", len(data) + 4, kind) + data)


def _many(content: bytes) -> list[bytes]:
    (count,) = struct.unpack_from(">i", content)
    bodies, at = [], 4
    for _ in range(count):
        (size,) = struct.unpack_from(">i", content, at)
        bodies.append(content[at + 4 : at + 4 + size])
        at += 4 + size
    return bodies


def entry(nsqd: SocketNsqd, **more: object) -> dict[str, object]:
    """Return the entry of an nsqd in `/nodes`."""
    return {"broadcast_address": "127.0.0.1", "tcp_port": nsqd.port, "http_port": 1, "topics": [], **more}


class SocketLookupd(_Server):
    """Answers every GET with its nodes. With `can_wait` it knows `wait` and `index`, as ours; otherwise as NSQ's."""

    def __init__(self, *nodes: SocketNsqd, can_wait: bool = True) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.is_hasty = False  # queries that wait are answered at once
        self._can_wait = can_wait
        self._version = 1
        self._body = _document([entry(nsqd) for nsqd in nodes])
        self._head = "HTTP/1.1 200 OK"

    def lists(self, *nodes: SocketNsqd | dict[str, object]) -> None:
        """Answer with these nodes from now on."""
        self.says(_document([entry(node) if isinstance(node, SocketNsqd) else node for node in nodes]))

    def says(self, body: bytes, head: str = "HTTP/1.1 200 OK") -> None:
        """Answer with this body from now on."""
        with self._lock:
            self._body, self._head = body, head
            self._version += 1
            self._lock.notify_all()

    def _has_news(self, connection: socket.socket, told: str) -> bool:
        return told != str(self._version) or connection not in self._connections

    def _serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        while line := stream.readline():
            while stream.readline().strip():
                pass
            target = line.decode().split()[1]
            query = parse_qs(urlsplit(target).query)
            with self._lock:
                self.asked.append(target)
                self._lock.notify_all()
                if self._can_wait and "wait" in query and not self.is_hasty:
                    limit = float(query["wait"][0].rstrip("s"))
                    told = query.get("index", [""])[0]
                    self._lock.wait_for(partial(self._has_news, connection, told), limit)
                head, body = self._head, self._body
                index = f"X-Nsq-Index: {self._version}\r\n" if self._can_wait else ""
            connection.sendall(f"{head}\r\n{index}Content-Length: {len(body)}\r\n\r\n".encode() + body)


def _document(nodes: Sequence[Any]) -> bytes:
    return json.dumps({"producers": nodes}).encode()
