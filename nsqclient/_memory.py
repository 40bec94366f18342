"""The messages of `nsqclient.testing.MemoryNSQD`: topics, channels, and lookup by key."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

Answer = tuple[int, bytes]


@dataclass
class Stored:
    id: bytes
    body: bytes
    timestamp: int
    attempts: int = 0
    headers: bytes = b""  # encoded
    key: str = ""


@dataclass
class InFlight:
    stored: Stored
    since: float
    deadline: float


class Client(Protocol):
    rdy: int
    is_closing: bool
    in_flight: dict[bytes, InFlight]

    def deliver(self, stored: Stored) -> None: ...


@dataclass
class Channel:
    waiting: deque[Stored] = field(default_factory=deque)
    deferred: list[tuple[float, Stored]] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)
    finished: list[bytes] = field(default_factory=list)
    buried: list[tuple[Stored, str]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.waiting and not self.deferred and not any(client.in_flight for client in self.clients)

    def take(self, key: str) -> tuple[list[Stored], str]:
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


def recall(topics: Mapping[str, Topic], keys: MutableMapping[tuple[str, str], int], target: str, now: float) -> Answer:
    """Answer `POST /message/cancel` or `/message/due` as nsqd does.

    `keys` counts the messages of the latest publish with each topic and key. 0 means that one cancel took all of them
    back from all channels, so the key is free again.
    """
    path, arguments = urlsplit(target).path, dict(parse_qsl(urlsplit(target).query))
    if path not in ("/message/cancel", "/message/due"):
        return 404, _code("NOT_FOUND")
    topic, key = topics.get(arguments["topic"]), arguments["key"]
    if topic is None:
        return 404, _code("TOPIC_NOT_FOUND")
    if "channel" in arguments and arguments["channel"] not in topic.channels:
        return 404, _code("CHANNEL_NOT_FOUND")
    if (arguments["topic"], key) not in keys:
        return 404, _code("MESSAGE_NOT_FOUND")
    changed = "cancelled" if path == "/message/cancel" else "moved"
    counts = dict.fromkeys((changed, "in_flight", "buried", "done", "unknown"), 0)
    channels = topic.channels or {"": topic.parked}
    emptied = 0  # channels that had all messages of the publish, and have none now
    for name, channel in channels.items():
        if arguments.get("channel", name) == name:
            taken, found = channel.take(key)
            counts[found or changed] += 1
            emptied += not found and len(taken) == keys[arguments["topic"], key]
            if changed == "moved":
                channel.deferred += [(now + int(arguments["defer"]) / 1000, it) for it in taken]
    if changed == "cancelled" and emptied == len(channels):
        keys[arguments["topic"], key] = 0
    return 200, json.dumps(counts).encode()


def _code(word: str) -> bytes:
    return json.dumps({"message": word}).encode()
