"""Counts and empties a queue over HTTP, at the port in nsqd's answer to IDENTIFY."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlencode

from nsqclient import ConnectError, NSQError

if TYPE_CHECKING:
    from nsqclient.blocking import BlockingProducer

_OK: Final = 200
_NOT_FOUND: Final = 404
_BRIEFLY: Final = {"format": "json", "include_clients": "false", "include_mem": "false"}

Method = Literal["GET", "POST"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """The number of a queue's messages, on all nsqds."""

    waiting: int = 0
    deferred: int = 0
    in_flight: int = 0
    buried: int = 0

    @property
    def undone(self) -> int:
        """Jobs that are waiting or running."""
        return self.waiting + self.deferred + self.in_flight


def counts_of(producer: BlockingProducer, topic: str, channel: str) -> QueueCounts:
    """Return the sum over all nsqds. Raise NSQError if one of them doesn't answer."""
    counts = [read_stats(body, channel) for body in ask_stats(producer, topic=topic)]
    return QueueCounts(
        waiting=sum(it.waiting for it in counts),
        deferred=sum(it.deferred for it in counts),
        in_flight=sum(it.in_flight for it in counts),
        buried=sum(it.buried for it in counts),
    )


def empty(producer: BlockingProducer, topic: str, channel: str) -> None:
    """Drop a queue's messages on all nsqds, except buried ones. Raise NSQError if an nsqd fails."""
    ask_all(producer, "POST", "/topic/empty?" + urlencode({"topic": topic}))
    ask_all(producer, "POST", "/channel/empty?" + urlencode({"topic": topic, "channel": channel}))


def read_stats(body: bytes, channel: str) -> QueueCounts:
    """Read a channel's counts from an answer of /stats about its topic. All are 0 for a missing topic."""
    said: dict[str, Any] = json.loads(body) if body else {}
    topic: dict[str, Any] = next(iter(said.get("topics") or ()), {})
    found: dict[str, Any] = next((it for it in topic.get("channels") or () if it["channel_name"] == channel), {})
    return QueueCounts(
        waiting=int(topic.get("depth", 0)) + int(found.get("depth", 0)),
        deferred=int(found.get("deferred_count", 0)),
        in_flight=int(found.get("in_flight_count", 0)),
        buried=int(found.get("buried_count", 0)),
    )


def ask_stats(producer: BlockingProducer, **only: str) -> Sequence[bytes]:
    """Return the /stats of all nsqds, of all topics or `only` one. Raises the errors of `ask_all`."""
    return ask_all(producer, "GET", "/stats?" + urlencode({**_BRIEFLY, **only}))


def ask_all(producer: BlockingProducer, method: Method, target: str) -> Sequence[bytes]:
    """Return the bodies of all nsqds' answers, empty for a 404. Raise NSQError if one is missing."""
    return [_body_of(address, answer) for address, answer in producer.ask_all(method, target).items()]


def _body_of(address: str, answer: tuple[int, bytes] | NSQError) -> bytes:
    if isinstance(answer, NSQError):
        raise answer
    status, body = answer
    if status not in (_OK, _NOT_FOUND):
        raise ConnectError(f"{address} answers {status} over HTTP: {body[:200]!r}")
    return body if status == _OK else b""
