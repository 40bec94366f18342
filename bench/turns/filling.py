"""A topic whose channel has all its messages in one state: what the walk calls each route on."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from bench import states
from bench.brokers import Broker
from bench.states import bury, defer, read
from nsqcommon.wire import commands
from nsqcommon.wire.headers import encode_headers

CHANNEL: Final = "ch"
KEY: Final = "batch"  # of each batch that a topic is filled with; the messages of `deferred` have keys k-0, k-1, ...
LATER: Final = 3_600_000  # ms
MOST_IN_BATCH: Final = 1_000_000  # messages of a byte: as many as fit a body of the default size
_AT_ONCE: Final = 10_000  # messages of one redelivery
_GROUPED_AT_ONCE: Final = 100_000  # messages of one HMPUB, with their headers
_READY: Final = 2_500
_FRAME: Final = 35  # bytes of a message of one byte, as a frame
_OK: Final = 10  # bytes of an answer
_HEARTBEATS: Final = 7_200_000  # ms; nobody answers them here


@dataclass
class Filled:
    """A topic with a channel in some state, and the consumers that hold its messages."""

    topic: str
    ids: list[str] = field(default_factory=list)  # of some messages
    held: ExitStack = field(default_factory=ExitStack)


class Filling:
    def __init__(self, broker: Broker, count: int) -> None:
        self.broker = broker
        self.count = count
        self._filled: dict[str, Filled] = {}
        self._made = 0

    def state(self, name: str) -> Filled:
        """Return a topic whose channel has all messages in this state."""
        if name not in self._filled:
            self._made += 1
            filled = self._filled[name] = Filled(f"{name}_{self._made}")
            STATES[name](self, filled)
        return self._filled[name]

    def forget(self, name: str) -> None:
        """Fill another topic the next time, because this one has been changed for good."""
        if (filled := self._filled.pop(name, None)) is not None:
            filled.held.close()
            # It may be gone already, which is as good.
            self.broker.send("POST", f"/topic/delete?topic={filled.topic}", b"")

    # States

    def waiting(self, filled: Filled) -> None:
        self.broker.make_channel(filled.topic, CHANNEL)
        self.parked(filled)

    def parked(self, filled: Filled, more: str = "") -> None:
        """Fill a topic that has no channel, unless it was given one before."""
        for start in range(0, self.count, MOST_IN_BATCH):
            count = min(self.count - start, MOST_IN_BATCH)
            body = count.to_bytes(4, "big") + b"\0\0\0\1x" * count
            self.broker.post(f"/mpub?topic={filled.topic}&binary=true&key={KEY}{start or ''}{more}", body)

    def delayed(self, filled: Filled) -> None:
        """Defer a batch: its messages share a time and a key."""
        self.broker.make_channel(filled.topic, CHANNEL)
        self.parked(filled, f"&defer={LATER}")

    def deferred(self, filled: Filled) -> None:
        """Defer messages one by one, each with a key of its own."""
        self.broker.make_channel(filled.topic, CHANNEL)
        self._defer_each(filled)
        listed = self.broker.get(f"/channel/deferred?topic={filled.topic}&channel={CHANNEL}&limit=100").splitlines()
        filled.ids = [json.loads(line)["id"] for line in listed]

    def paused(self, filled: Filled) -> None:
        """Defer messages one by one in a topic that is paused."""
        self.broker.make_channel(filled.topic, CHANNEL)
        self.broker.post(f"/topic/pause?topic={filled.topic}", b"")
        self._defer_each(filled)

    def unclaimed(self, filled: Filled) -> None:
        """Defer messages one by one in a topic that has no channel."""
        self._defer_each(filled)

    def _defer_each(self, filled: Filled) -> None:
        defer(self.broker, filled.topic, self.count, LATER, b"x")

    def retries(self, filled: Filled) -> None:
        self.waiting(filled)
        at = f"topic={filled.topic}&channel={CHANNEL}"
        self.broker.post(f"/channel/seek?{at}&from=latest", b"")
        for start in range(0, self.count, _AT_ONCE):
            self.broker.post(f"/channel/redeliver?{at}&from={start}&to={min(start + _AT_ONCE, self.count)}", b"")

    def in_flight(self, filled: Filled) -> None:
        self.waiting(filled)
        for start in range(0, self.count, _READY):
            connection = filled.held.enter_context(client(self.broker))
            connection.sendall(commands.sub(filled.topic, CHANNEL) + commands.rdy(_READY))
            read(connection, _OK + _FRAME * min(_READY, self.count - start))

    def buried(self, filled: Filled) -> None:
        self.waiting(filled)
        bury(self.broker, filled.topic, CHANNEL, self.count)
        path = f"/channel/buried?topic={filled.topic}&channel={CHANNEL}&limit=100&bodies=false"
        filled.ids = [json.loads(line)["id"] for line in self.broker.get(path).splitlines()]

    def grouped(self, filled: Filled) -> None:
        """Hold the messages of a thousand groups, each of which has one in flight."""
        self.broker.make_channel(filled.topic, CHANNEL)
        for start in range(0, self.count, _GROUPED_AT_ONCE):
            count = min(self.count - start, _GROUPED_AT_ONCE)
            body = b"".join([GROUPED[number % len(GROUPED)] for number in range(start, start + count)])
            self.broker.post(f"/hmpub?topic={filled.topic}", count.to_bytes(4, "big") + body)
        connection = filled.held.enter_context(client(self.broker))
        connection.sendall(commands.sub(filled.topic, CHANNEL) + commands.rdy(_READY))
        path = f"/channel/groups?topic={filled.topic}&channel={CHANNEL}&limit=0"
        while json.loads(self.broker.get(path))["held"] < self.count - len(GROUPED):
            time.sleep(0.05)


def _grouped(number: int) -> bytes:
    sized = encode_headers({"nsq-group": f"g{number}"}) + b"x"
    return len(sized).to_bytes(4, "big") + sized


GROUPED: Final = [_grouped(number) for number in range(1_000)]  # as in the body of an HMPUB
STATES: Final[Mapping[str, Callable[[Filling, Filled], None]]] = {
    "waiting": Filling.waiting,
    "parked": Filling.parked,
    "paused": Filling.paused,
    "unclaimed": Filling.unclaimed,
    "delayed": Filling.delayed,
    "deferred": Filling.deferred,
    "retries": Filling.retries,
    "in_flight": Filling.in_flight,
    "buried": Filling.buried,
    "grouped": Filling.grouped,
}
OF_CHANNELS: Final = tuple(name for name in STATES if name not in ("parked", "paused", "unclaimed", "grouped"))


def client(broker: Broker) -> socket.socket:
    return states.client(broker, _HEARTBEATS)
