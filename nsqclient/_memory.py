"""The messages of `nsqclient.testing.MemoryNSQD`: topics, channels, and lookup by key.

Nothing here waits: times are those of trio's clock, as arguments.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from time import time_ns
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

Answer = tuple[int, bytes]


@dataclass
class MemoryMessage:
    id: bytes
    body: bytes
    timestamp: int
    attempts: int = 0
    headers: bytes = b""  # encoded
    key: str = ""


@dataclass
class InFlightMessage:
    stored: MemoryMessage
    since: float
    deadline: float


class MemoryClient(Protocol):
    rdy: int
    is_closing: bool
    in_flight: dict[bytes, InFlightMessage]

    def deliver(self, stored: MemoryMessage) -> None: ...


@dataclass
class Channel:
    waiting: deque[MemoryMessage] = field(default_factory=deque)
    deferred: list[tuple[float, MemoryMessage]] = field(default_factory=list)
    clients: list[MemoryClient] = field(default_factory=list)
    finished: list[bytes] = field(default_factory=list)
    buried: list[tuple[MemoryMessage, str]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.waiting and not self.deferred and not any(client.in_flight for client in self.clients)

    def take(self, key: str) -> tuple[list[MemoryMessage], str]:
        """Remove the waiting messages with this key. Return them and nsqd's word for how the key was found."""
        taken = [it for it in self.waiting if it.key == key] + [it for _, it in self.deferred if it.key == key]
        self.waiting = deque(it for it in self.waiting if it.key != key)
        self.deferred = [entry for entry in self.deferred if entry[1].key != key]
        if any(entry.stored.key == key for client in self.clients for entry in client.in_flight.values()):
            return taken, "in_flight"
        if taken:
            return taken, ""
        return taken, "buried" if any(it.key == key for it, _ in self.buried) else "done"


@dataclass
class Topic:
    bodies: list[bytes] = field(default_factory=list)
    channels: dict[str, Channel] = field(default_factory=dict)
    parked: Channel = field(default_factory=Channel)  # becomes the first channel


class MemoryBroker:
    """All topics, and the keys of their messages."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        # By topic and key, the messages of the latest publish. 0 means that one cancel took all of them back from all
        # channels, so the key is free again.
        self._keys: dict[tuple[str, str], int] = {}
        self._ids = count(1)

    def topic(self, name: str) -> Topic:
        return self.topics.setdefault(name, Topic())

    def channel(self, topic: str, channel: str) -> Channel:
        found = self.topic(topic)
        if channel not in found.channels:
            found.channels[channel], found.parked = found.parked, Channel()
        return found.channels[channel]

    def new_message(self, body: bytes, *, attempts: int = 0, headers: bytes = b"", key: str = "") -> MemoryMessage:
        return MemoryMessage(b"%016x" % next(self._ids), body, time_ns(), attempts, headers, key)

    def publish(self, topic: str, stored: MemoryMessage, due: float | None = None) -> None:
        """Give each channel a copy, to be delivered from `due` on."""
        found = self.topic(topic)
        found.bodies.append(stored.body)
        for channel in found.channels.values() or [found.parked]:
            copy = replace(stored)
            if due is not None:
                channel.deferred.append((due, copy))
            else:
                channel.waiting.append(copy)

    def take_key(self, topic: str, key: str, messages: int) -> bool:
        """Note that a publish of so many messages has this key. Return whether it is new."""
        if self._keys.get((topic, key), 0) > 0:
            return False
        self._keys[topic, key] = messages
        return True

    def hand_out(self) -> None:
        """Deliver what waits to clients that are ready."""
        for topic in self.topics.values():
            for channel in topic.channels.values():
                for client in channel.clients:
                    while channel.waiting and not client.is_closing and len(client.in_flight) < client.rdy:
                        client.deliver(channel.waiting.popleft())

    def deadlines(self) -> list[tuple[float, Callable[[], None]]]:
        """Return when deferred and timed-out messages return to their channels, each with a function that does it."""
        found: list[tuple[float, Callable[[], None]]] = []
        for topic in self.topics.values():
            for channel in topic.channels.values():
                found += [(entry[0], _bringing_back(channel, entry)) for entry in channel.deferred]
                for client in channel.clients:
                    found += [
                        (entry.deadline, _taking_back(channel, client, id)) for id, entry in client.in_flight.items()
                    ]
        return found

    def recall(self, target: str, now: float) -> Answer:
        """Answer `POST /message/cancel` or `/message/due` as nsqd does."""
        path, arguments = urlsplit(target).path, dict(parse_qsl(urlsplit(target).query))
        if path not in ("/message/cancel", "/message/due"):
            return 404, _code("NOT_FOUND")
        topic, key = self.topics.get(arguments["topic"]), arguments["key"]
        if topic is None:
            return 404, _code("TOPIC_NOT_FOUND")
        if "channel" in arguments and arguments["channel"] not in topic.channels:
            return 404, _code("CHANNEL_NOT_FOUND")
        if (arguments["topic"], key) not in self._keys:
            return 404, _code("MESSAGE_NOT_FOUND")
        changed = "cancelled" if path == "/message/cancel" else "moved"
        counts = dict.fromkeys((changed, "in_flight", "buried", "done", "unknown"), 0)
        channels = topic.channels or {"": topic.parked}
        emptied = 0  # channels that had all messages of the publish, and have none now
        for name, channel in channels.items():
            if arguments.get("channel", name) == name:
                taken, found = channel.take(key)
                counts[found or changed] += 1
                emptied += not found and len(taken) == self._keys[arguments["topic"], key]
                if changed == "moved":
                    channel.deferred += [(now + int(arguments["defer"]) / 1000, it) for it in taken]
        if changed == "cancelled" and emptied == len(channels):
            self._keys[arguments["topic"], key] = 0
        return 200, json.dumps(counts).encode()


def _bringing_back(channel: Channel, entry: tuple[float, MemoryMessage]) -> Callable[[], None]:
    def act() -> None:
        channel.deferred.remove(entry)
        channel.waiting.append(entry[1])

    return act


def _taking_back(channel: Channel, client: MemoryClient, id: bytes) -> Callable[[], None]:
    return lambda: channel.waiting.append(client.in_flight.pop(id).stored)


def _code(word: str) -> bytes:
    return json.dumps({"message": word}).encode()
