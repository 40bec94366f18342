"""How messages get into a state one by one: each is deferred or buried by a command of its own."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Final

from bench.brokers import Broker
from bench.work import HOST, Failed
from nsqcommon.wire import commands, extensions

REASONS: Final = 20
_HEARTBEATS: Final = 60_000  # ms; burying answers them
_WINDOW: Final = 2500
_TOGETHER: Final = 1_000  # publishes that are sent before their answers are read
_OK: Final = b"\0\0\0\6\0\0\0\0OK"
_MESSAGE: Final = b"\0\0\0\2"
_ID: Final = slice(18, 34)  # of a message's frame: behind size, type, timestamp and attempts


def client(broker: Broker, heartbeats: int = -1) -> socket.socket:
    """Return a connection that has identified itself and been granted all extensions.

    `heartbeats` are in milliseconds. Without them only answers come, but then nobody may subscribe.
    """
    connection = socket.create_connection((HOST, broker.tcp_port), timeout=600)
    wishes = {"feature_negotiation": True, "extensions": ["keys", "headers", "bury"], "heartbeat_interval": heartbeats}
    connection.sendall(b"  V2" + commands.identify(json.dumps(wishes).encode()))
    read(connection, int.from_bytes(read(connection, 4), "big"))
    return connection


def read(connection: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        more = connection.recv(count - len(got))
        if not more:
            raise Failed("nsqd has closed the connection")
        got += more
    return got


def defer(broker: Broker, topic: str, count: int, delay_ms: int, body: bytes) -> None:
    """Defer so many messages, with the keys k-0, k-1, ..."""
    sized = len(body).to_bytes(4, "big") + body
    with client(broker) as connection:
        for start in range(0, count, _TOGETHER):
            some = range(start, min(start + _TOGETHER, count))
            connection.sendall(b"".join(b"DPUB %b %d k-%d\n%b" % (topic.encode(), delay_ms, n, sized) for n in some))
            if (answers := read(connection, len(_OK) * len(some))) != _OK * len(some):
                raise Failed(f"a publish failed: {answers[:100]!r}")


def bury(broker: Broker, topic: str, channel: str, count: int, reasons: int = REASONS) -> None:
    """Bury so many messages of a channel, for so many different reasons."""
    with client(broker, _HEARTBEATS) as consumer:
        consumer.sendall(commands.sub(topic, channel) + commands.rdy(_WINDOW))
        data, buried = bytearray(), 0
        while buried < count:
            more = consumer.recv(1 << 18)
            if not more:
                raise Failed(f"nsqd has closed the connection after {buried} messages")
            data += more
            answers: list[bytes] = []
            place = 0
            while len(data) - place >= 4:
                end = place + 4 + int.from_bytes(data[place : place + 4], "big")
                if end > len(data):
                    break
                if data[place + 4 : place + 8] == _MESSAGE:
                    frame = bytes(data[place : place + 34])
                    answers.append(extensions.bury(frame[_ID], f"reason {buried % reasons}"))
                    buried += 1
                place = end
            del data[:place]
            consumer.sendall(b"".join(answers))
        while broker.channel(topic, channel)["in_flight_count"]:
            time.sleep(0.05)


class Waiting:
    """Asks /ping all the time, and records the longest wait for an answer."""

    def __init__(self, broker: Broker) -> None:
        self.longest = 0.0
        self._broker = broker
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Waiting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._ends.is_set():
            began = time.monotonic()
            self._broker.get("/ping")
            self.longest = max(self.longest, time.monotonic() - began)
            self._ends.wait(0.005)
