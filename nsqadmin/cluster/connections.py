"""Reads the connections in a node's answer to /stats: consumers with their rates, and producers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from nsqadmin.cluster.model import Client, Producer
from nsqadmin.cluster.pace import Pace, pace_after
from nsqadmin.cluster.sane import MOST_CLIENTS, Json, by_our_clock, check_count, check_numbers, moment

if TYPE_CHECKING:
    from nsqadmin.upstream.slices import Slices

ClientKey = tuple[str, float]  # remote address, and when it connected

_OF_CLIENTS: Final = (
    "state",
    "ready_count",
    "in_flight_count",
    "message_count",
    "finish_count",
    "requeue_count",
    "connect_ts",
    "sample_rate",
    "touch_count",
)


def read_clients(
    node: str, raw: Any, known: Mapping[ClientKey, Pace], at: float, skew: float, *, reports_touches: bool
) -> tuple[tuple[Client, ...], dict[ClientKey, Pace]]:
    """Return the clients with their rates, and the paces for the next answer.

    `skew` is how many seconds the node's clock is ahead of ours.
    """
    clients = [read_client(node, it, skew, reports_touches=reports_touches) for it in raw or ()]
    paces = {key: pace for it in clients if (pace := known.get(key := _key_of(it))) is not None}
    return tuple(with_rates(client, paces, at) for client in clients), paces


def _key_of(client: Client) -> ClientKey:
    return client.remote_address, client.connect_time


def with_rates(client: Client, paces: dict[ClientKey, Pace], at: float) -> Client:
    """Return the client with its rates, and add this reading to its pace."""
    answered = client.finish_count + client.requeue_count
    counts = client.finish_count, client.requeue_count, client.message_count - answered - client.in_flight_count
    key = _key_of(client)
    pace = paces.get(key)
    rates = pace.rates(at, counts) if pace is not None else None
    paces[key] = pace_after(pace, at, counts)
    if rates is None:
        return client
    return replace(client, finish_rate=rates[0], requeue_rate=rates[1], timeout_rate=rates[2])


def read_client(node: str, raw: Json, skew: float = 0.0, *, reports_touches: bool = True) -> Client:
    counts = [raw.get(name) or 0 for name in _OF_CLIENTS]
    oldest = raw.get("oldest_in_flight_ms")
    check_numbers(*counts, oldest or 0)
    return Client(
        node=node,
        client_id=str(raw.get("client_id") or raw.get("name") or ""),
        hostname=str(raw.get("hostname") or ""),
        remote_address=str(raw.get("remote_address") or ""),
        user_agent=str(raw.get("user_agent") or ""),
        version=str(raw.get("version") or ""),
        state=raw.get("state") or 0,
        ready_count=raw.get("ready_count") or 0,
        in_flight_count=raw.get("in_flight_count") or 0,
        message_count=raw.get("message_count") or 0,
        finish_count=raw.get("finish_count") or 0,
        requeue_count=raw.get("requeue_count") or 0,
        connect_time=moment(raw.get("connect_ts")),
        sample_rate=raw.get("sample_rate") or 0,
        deflate=bool(raw.get("deflate")),
        snappy=bool(raw.get("snappy")),
        authed=bool(raw.get("authed")),
        auth_identity=str(raw.get("auth_identity") or ""),
        auth_identity_url=str(raw.get("auth_identity_url") or ""),
        region=str(raw.get("topology_region") or ""),
        zone=str(raw.get("topology_zone") or ""),
        tls=bool(raw.get("tls")),
        tls_version=str(raw.get("tls_version") or ""),
        tls_cipher_suite=str(raw.get("tls_cipher_suite") or ""),
        tls_negotiated_protocol=str(raw.get("tls_negotiated_protocol") or ""),
        tls_negotiated_protocol_is_mutual=bool(raw.get("tls_negotiated_protocol_is_mutual")),
        touch_count=raw.get("touch_count") or 0,
        last_touch=by_our_clock(raw.get("last_touch_at"), skew),
        reports_touches=reports_touches or "last_touch_at" in raw,
        oldest_in_flight=oldest / 1000 if oldest is not None else None,
    )


def read_producers(node: str, raw: Any, before: tuple[Producer, ...], seconds: float) -> Slices[tuple[Producer, ...]]:
    known = {(it.remote_address, it.connect_time): it for it in before}
    producers, counts = [], 0
    for raw_producer in raw or ():
        counts += 1 + len(raw_producer.get("pub_counts") or ())
        check_count(counts, MOST_CLIENTS, "producers")
        producers.append(_producer(node, raw_producer, known, seconds))
        yield
    return tuple(producers)


def _producer(node: str, raw: Json, known: Mapping[tuple[str, float], Producer], seconds: float) -> Producer:
    remote, connected = str(raw.get("remote_address") or ""), moment(raw.get("connect_ts"))
    before = known.get((remote, connected))
    counted = {topic: count for topic, count, _ in before.counts} if before is not None else {}
    counts = []
    for entry in raw.get("pub_counts") or ():
        topic, count = str(entry["topic"]), int(entry["count"])
        check_numbers(count)
        rate = max(count - counted.get(topic, 0), 0) / seconds if before is not None and seconds > 0 else None
        counts.append((topic, count, rate))
    return Producer(
        node=node,
        client_id=str(raw.get("client_id") or ""),
        hostname=str(raw.get("hostname") or ""),
        remote_address=remote,
        user_agent=str(raw.get("user_agent") or ""),
        connect_time=connected,
        counts=tuple(counts),
    )
