"""An honest client: publishes and receives messages, and sends requests over HTTP, at a steady pace.

    python -m bench.attack.probe JSON

It prints "ready", and on SIGTERM its figures as JSON. The pace does not depend on the answers, and each time counts
from when the request was due: if a daemon stands still for a second, all requests of this second are late, not one.
"""

from __future__ import annotations

import http.client
import json
import select
import signal
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from bench.attack.sockets import LIMIT, client, hear_ok, read_frame
from bench.work import HOST
from nsqcommon.wire.commands import auth, fin, pub, rdy, sub

MESSAGES: Final = 100.0  # a second
REQUESTS: Final = 20.0
HANDSHAKES: Final = 3.0
TOPIC: Final = "probe#ephemeral"
_SERIAL: Final = struct.Struct(">q")
_FRAME_HEAD: Final = 8
_MESSAGE_HEAD: Final = 26  # timestamp, attempts, id


class Times:
    """Milliseconds of the requests that were answered in time; the others count as the limit."""

    def __init__(self) -> None:
        self.seen: list[float] = []
        self.failed = 0

    def add(self, seconds: float) -> None:
        self.seen.append(seconds * 1000)

    def fail(self) -> None:
        self.failed += 1
        self.seen.append(LIMIT * 1000)


class RoundTrips:
    """Messages through nsqd: one connection publishes, another consumes."""

    def __init__(self, port: int, secret: str) -> None:
        self.times = Times()
        self._producer, self._consumer = client(port), client(port)
        for sock in (self._producer, self._consumer):
            if secret:
                sock.sendall(auth(secret.encode()))
                read_frame(sock)  # the answer to IDENTIFY
        self._consumer.sendall(sub(TOPIC, "probe#ephemeral"))
        hear_ok(self._consumer)
        self._consumer.sendall(rdy(2000))
        self._waiting: dict[int, float] = {}
        self._received = bytearray()

    def run(self, ends: threading.Event) -> None:
        due, serial = time.monotonic(), 0
        with suppress(OSError):
            while not ends.is_set():
                while due <= time.monotonic():
                    self._waiting[serial] = due
                    self._producer.sendall(pub(TOPIC, _SERIAL.pack(serial)))
                    serial += 1
                    due += 1 / MESSAGES
                self._receive(due - time.monotonic())
            last = time.monotonic() + LIMIT
            while self._waiting and (left := last - time.monotonic()) > 0:
                self._receive(left)
        for _ in self._waiting:
            self.times.fail()

    def _receive(self, seconds: float) -> None:
        readable, _, _ = select.select((self._producer, self._consumer), (), (), max(0.0, seconds))
        for sock in readable:
            data = sock.recv(1 << 16)
            if not data:
                raise ConnectionError("closed by nsqd")
            if sock is self._consumer:
                self._take(data)

    def _take(self, data: bytes) -> None:
        now = time.monotonic()
        received = self._received
        received += data
        while len(received) >= _FRAME_HEAD:
            size = 4 + int.from_bytes(received[:4], "big")
            if len(received) < size:
                return
            frame = bytes(received[_FRAME_HEAD:size])
            del received[:size]
            if len(frame) != _MESSAGE_HEAD + _SERIAL.size:
                continue
            (serial,) = _SERIAL.unpack_from(frame, _MESSAGE_HEAD)
            if (due := self._waiting.pop(serial, None)) is not None:
                self.times.add(now - due)
            self._consumer.sendall(fin(frame[10:_MESSAGE_HEAD]))


class Asking:
    """Repeats a short request at a steady pace, in a thread of its own."""

    def __init__(self, rate: float, ask: Callable[[], None]) -> None:
        self.times = Times()
        self._rate = rate
        self._ask = ask

    def run(self, ends: threading.Event) -> None:
        due = time.monotonic()
        while not ends.wait(max(0.0, due - time.monotonic())):
            try:
                self._ask()
            except (OSError, http.client.HTTPException):
                self.times.fail()
            else:
                self.times.add(time.monotonic() - due)
            due += 1 / self._rate


def getter(port: int, path: str, tls: ssl.SSLContext | None = None) -> Callable[[], None]:
    """Return a function that sends one request on a new connection, as getting one is part of what is measured."""

    def get() -> None:
        with socket.create_connection((HOST, port), timeout=LIMIT) as plain:
            connection = http.client.HTTPConnection(HOST, port)
            connection.sock = plain if tls is None else tls.wrap_socket(plain)
            connection.request("GET", path, headers={"Connection": "close"})
            answer = connection.getresponse()
            answer.read()
            connection.close()
            if answer.status != 200:
                raise http.client.HTTPException(answer.status)

    return get


def main(text: str) -> None:
    """Probe until SIGTERM.

    `text`: {"tcp": PORT or 0, "secret": "...", "http": PORT, "path": "/ping", "https": PORT or 0}.
    """
    asked = json.loads(text)
    ends = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ends.set())
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    kinds: dict[str, RoundTrips | Asking] = {"request": Asking(REQUESTS, getter(asked["http"], asked["path"]))}
    if asked["tcp"]:
        kinds["message"] = RoundTrips(asked["tcp"], asked["secret"])
    if asked["https"]:
        kinds["handshake"] = Asking(HANDSHAKES, getter(asked["https"], "/ping", unverified))
    threads = [threading.Thread(target=kind.run, args=(ends,)) for kind in kinds.values()]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    while not ends.wait(1.0):  # a signal is noticed only between two waits
        pass
    for thread in threads:
        thread.join()
    print(json.dumps({name: {"times": it.times.seen, "failed": it.times.failed} for name, it in kinds.items()}))


if __name__ == "__main__":
    main(sys.argv[1])
