"""How many messages a queue has, and its emptying: over HTTP, at the port that nsqd tells its producers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlencode

import trio

from common import http_client
from nsqclient import ConnectError
from nsqclient._dial import host_of
from nsqclient._recall import place_of, tls_for

if TYPE_CHECKING:
    from nsqclient import Producer
    from nsqclient._producer import _Node

_TIMEOUT: Final = 10.0  # seconds for all nsqds together
_OK: Final = 200
_NOT_FOUND: Final = 404

Method = Literal["GET", "POST"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The messages of a queue, at all nsqds."""

    waiting: int = 0
    deferred: int = 0
    in_flight: int = 0
    buried: int = 0

    @property
    def undone(self) -> int:
        """The jobs that are still to be done or being done."""
        return self.waiting + self.deferred + self.in_flight


async def counts_of(producer: Producer, topic: str, channel: str) -> Counts:
    """Return the sum of what all nsqds say. Raise NSQError if one of them gives no answer."""
    target = "/stats?" + urlencode(
        {"format": "json", "topic": topic, "include_clients": "false", "include_mem": "false"}
    )
    counts = [read_stats(body, channel) for body in await _ask_all(producer, "GET", target)]
    return Counts(
        waiting=sum(it.waiting for it in counts),
        deferred=sum(it.deferred for it in counts),
        in_flight=sum(it.in_flight for it in counts),
        buried=sum(it.buried for it in counts),
    )


async def empty(producer: Producer, topic: str, channel: str) -> None:
    """Drop the messages of a queue at all nsqds, but not the buried ones. Raise NSQError if one of them does not."""
    await _ask_all(producer, "POST", "/topic/empty?" + urlencode({"topic": topic}))
    await _ask_all(producer, "POST", "/channel/empty?" + urlencode({"topic": topic, "channel": channel}))


def read_stats(body: bytes, channel: str) -> Counts:
    """Return what an answer of /stats about one topic says about its channel. Nothing waits in a topic that is none."""
    said: dict[str, Any] = json.loads(body) if body else {}
    topic: dict[str, Any] = next(iter(said.get("topics") or ()), {})
    found: dict[str, Any] = next((it for it in topic.get("channels") or () if it["channel_name"] == channel), {})
    return Counts(
        waiting=int(topic.get("depth", 0)) + int(found.get("depth", 0)),
        deferred=int(found.get("deferred_count", 0)),
        in_flight=int(found.get("in_flight_count", 0)),
        buried=int(found.get("buried_count", 0)),
    )


async def _ask_all(producer: Producer, method: Method, target: str) -> Sequence[bytes]:
    """Return the bodies of all answers, empty for what an nsqd does not have."""
    try:
        with trio.fail_after(_TIMEOUT):
            await producer._wait_for_nodes()
            return [await _ask(producer, node, method, target) for node in producer._all_nodes()]
    except trio.TooSlowError:
        raise ConnectError(f"no answer over HTTP within {_TIMEOUT:g} seconds") from None


async def _ask(producer: Producer, node: _Node, method: Method, target: str) -> bytes:
    connection = await node.connected()
    place = place_of(connection, producer.config.server_hostname or host_of(node.target), producer.config)
    tls = tls_for(place, producer.config)
    try:
        if method == "GET":
            answer = await http_client.get(place.host, place.port, target, tls=tls, headers=place.headers)
        else:
            answer = await http_client.post(
                place.host, place.port, target, name=place.name, tls=tls, headers=place.headers
            )
    except http_client.HttpFailed as error:
        raise ConnectError(f"HTTP port {place.port} of {node.address}: {error}") from error
    if answer.status not in (_OK, _NOT_FOUND):
        raise ConnectError(f"{node.address} answers {answer.status} to {method} {target.partition('?')[0]}")
    return answer.body if answer.status == _OK else b""
