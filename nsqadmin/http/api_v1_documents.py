"""The documents of `/api/*`, built from the nodes' answers, with NSQ's keys in NSQ's order.

We don't copy two defects of NSQ: summing doesn't change a node's own numbers, and the minimum of several latencies is
the lowest one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from nsqadmin.upstream.discovery import Announced

Json = dict[str, Any]
Stats = Sequence[tuple[Announced, Sequence[Mapping[str, Any]]]]  # each node's topics

_EVERYWHERE: Final = "*"
_SECOND: Final = 1_000_000_000
_LOCALITIES: Final = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")
_OF_TOPIC: Final = ("depth", "memory_depth", "backend_depth", "message_count", "delivery_msg_count", *_LOCALITIES)
_OF_CHANNEL: Final = (
    "depth",
    "memory_depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "message_count",
    "delivery_msg_count",
    *_LOCALITIES,
    "client_count",
)


def topic_document(topic: str, stats: Stats, *, now: float) -> Json:
    rows = [_topic_row(node, raw, now) for node, topics in stats for raw in topics if raw["topic_name"] == topic]
    channels: dict[str, list[Json]] = {}
    for row in rows:
        for channel in row["channels"] or ():
            channels.setdefault(channel["channel_name"], []).append(channel)
    return _topic_keys(
        node=_EVERYWHERE,
        hostname="",
        topic=topic,
        counts=_sums(rows, _OF_TOPIC),
        nodes=rows,
        channels=[_channel_of_all(topic, name, parts) for name, parts in channels.items()],
        paused=any(row["paused"] for row in rows),
        latency=_merged_latency([row["e2e_processing_latency"] for row in rows], topic=topic),
    )


def channel_document(topic: str, channel: str, stats: Stats, *, now: float) -> Json | None:
    """Return the channel's document, or None if no node has the channel."""
    rows = [
        _channel_row(node, topic, raw, now)
        for node, topics in stats
        for raw_topic in topics
        if raw_topic["topic_name"] == topic
        for raw in raw_topic.get("channels") or ()
        if raw["channel_name"] == channel
    ]
    return _channel_of_all(topic, channel, rows) if rows else None


def node_document(node: Announced, topics: Sequence[Mapping[str, Any]], *, now: float) -> Json:
    rows = [_topic_row(node, raw, now) for raw in topics]
    return {
        "node": node.address,
        "topics": rows,
        "total_messages": sum(row["message_count"] for row in rows),
        "total_clients": sum(len(channel["clients"] or ()) for row in rows for channel in row["channels"] or ()),
    }


def nodes_document(nodes: Iterable[tuple[Announced, bool]], *, has_lookupds: bool) -> list[Json]:
    return [_node(node, is_out_of_date, has_lookupds) for node, is_out_of_date in nodes]


def counter_document(stats: Stats) -> Json:
    return {
        f"{topic['topic_name']}:{channel['channel_name']}:{node.address}": {
            "node": node.address,
            "topic_name": topic["topic_name"],
            "channel_name": channel["channel_name"],
            "message_count": channel.get("message_count") or 0,
        }
        for node, topics in stats
        for topic in topics
        for channel in topic.get("channels") or ()
    }


def _node(node: Announced, is_out_of_date: bool, has_lookupds: bool) -> Json:
    document: Json = {
        "remote_addresses": node.remote_addresses if has_lookupds else None,
        "remote_address": node.remote_address,
        "hostname": node.hostname,
        "broadcast_address": node.broadcast_address,
        "tcp_port": node.tcp_port,
        "http_port": node.http_port,
        "version": node.version,
    }
    document |= _unless_empty(topology_zone=node.zone, topology_region=node.region)
    document["topics"] = [{"topic": topic, "tombstoned": node.topics[topic]} for topic in sorted(node.topics)]
    document["out_of_date"] = is_out_of_date
    return document


# Topics and channels


def _topic_row(node: Announced, raw: Mapping[str, Any], now: float) -> Json:
    topic = str(raw["topic_name"])
    channels = [_channel_row(node, topic, it, now) for it in raw.get("channels") or ()]
    return _topic_keys(
        node=node.address,
        hostname=node.hostname,
        topic=topic,
        counts={name: _topic_count(raw, name) for name in _OF_TOPIC},
        nodes=None,
        channels=channels,
        paused=bool(raw.get("paused")),
        latency=_latency(raw.get("e2e_processing_latency")),
    )


def _topic_count(raw: Mapping[str, Any], name: str) -> int:
    if name == "memory_depth":
        return _count(raw, "depth") - _count(raw, "backend_depth")
    if name == "delivery_msg_count":
        return sum(_count(raw, it) for it in _LOCALITIES)
    return _count(raw, name)


def _count(raw: Mapping[str, Any], name: str) -> int:
    return int(raw.get(name) or 0)


def _topic_keys(
    *,
    node: str,
    hostname: str,
    topic: str,
    counts: Mapping[str, int],
    nodes: list[Json] | None,
    channels: list[Json],
    paused: bool,
    latency: Json,
) -> Json:
    return {
        "node": node,
        "hostname": hostname,
        "topic_name": topic,
        **{name: counts[name] for name in _OF_TOPIC if name not in _LOCALITIES},
        **_unless_empty(**{name: counts[name] for name in _LOCALITIES}),
        "nodes": nodes,
        "channels": channels,
        "paused": paused,
        "e2e_processing_latency": latency,
    }


def _channel_row(node: Announced, topic: str, raw: Mapping[str, Any], now: float) -> Json:
    clients = [_client(node, it, now) for it in raw["clients"]] if raw.get("clients") is not None else None
    counts = {name: _topic_count(raw, name) for name in _OF_CHANNEL}
    if raw.get("client_count") is None:
        counts["client_count"] = len(clients or ())
    return _channel_keys(
        node=node.address,
        hostname=node.hostname,
        topic=topic,
        channel=str(raw["channel_name"]),
        counts=counts,
        nodes=None,
        clients=sorted(clients, key=_by_distance(node)) if clients is not None else None,
        paused=bool(raw.get("paused")),
        latency=_latency(raw.get("e2e_processing_latency")),
    )


def _channel_of_all(topic: str, channel: str, rows: list[Json]) -> Json:
    clients = [client for row in rows for client in row["clients"] or ()]
    return _channel_keys(
        node=_EVERYWHERE,
        hostname="",
        topic=topic,
        channel=channel,
        counts=_sums(rows, _OF_CHANNEL),
        nodes=rows,
        clients=clients,
        paused=any(row["paused"] for row in rows),
        latency=_merged_latency([row["e2e_processing_latency"] for row in rows], topic=topic, channel=channel),
    )


def _channel_keys(
    *,
    node: str,
    hostname: str,
    topic: str,
    channel: str,
    counts: Mapping[str, int],
    nodes: list[Json] | None,
    clients: list[Json] | None,
    paused: bool,
    latency: Json,
) -> Json:
    if_not_zero = ("delivery_msg_count", *_LOCALITIES)
    before = _OF_CHANNEL[: _OF_CHANNEL.index("delivery_msg_count")]
    return {
        "node": node,
        "hostname": hostname,
        "topic_name": topic,
        "channel_name": channel,
        **{name: counts[name] for name in before},
        **_unless_empty(**{name: counts[name] for name in if_not_zero}),
        "client_count": counts["client_count"],
        "nodes": nodes,
        "clients": clients,
        "paused": paused,
        "e2e_processing_latency": latency,
    }


def _sums(rows: Iterable[Mapping[str, Any]], names: Iterable[str]) -> dict[str, int]:
    rows = list(rows)
    return {name: sum(row.get(name, 0) for row in rows) for name in names}


# Clients


def _client(node: Announced, raw: Mapping[str, Any], now: float) -> Json:
    connected = int(raw.get("connect_ts") or 0)
    return {
        "node": node.address,
        "remote_address": _text(raw, "remote_address"),
        "version": _text(raw, "version"),
        "client_id": _text(raw, "client_id") or _text(raw, "name"),
        "hostname": _text(raw, "hostname"),
        "user_agent": _text(raw, "user_agent"),
        "connect_ts": connected,
        "connected": (int(now) - connected) * _SECOND,
        "in_flight_count": _count(raw, "in_flight_count"),
        "ready_count": _count(raw, "ready_count"),
        "finish_count": _count(raw, "finish_count"),
        "requeue_count": _count(raw, "requeue_count"),
        "message_count": _count(raw, "message_count"),
        "sample_rate": _count(raw, "sample_rate"),
        "deflate": bool(raw.get("deflate")),
        "snappy": bool(raw.get("snappy")),
        "authed": bool(raw.get("authed")),
        "auth_identity": _text(raw, "auth_identity"),
        "auth_identity_url": _text(raw, "auth_identity_url"),
        **_unless_empty(
            node_topology_region=node.region,
            node_topology_zone=node.zone,
            topology_region=_text(raw, "topology_region"),
            topology_zone=_text(raw, "topology_zone"),
        ),
        "tls": bool(raw.get("tls")),
        "tls_cipher_suite": _text(raw, "tls_cipher_suite"),
        "tls_version": _text(raw, "tls_version"),
        "tls_negotiated_protocol": _text(raw, "tls_negotiated_protocol"),
        "tls_negotiated_protocol_is_mutual": bool(raw.get("tls_negotiated_protocol_is_mutual")),
    }


def _text(raw: Mapping[str, Any], name: str) -> str:
    return str(raw.get(name) or "")


def _by_distance(node: Announced) -> Callable[[Json], tuple[int, str, str]]:
    """Return a sort key for clients: first those in the node's zone, then those in its region, then the others."""

    def key(client: Json) -> tuple[int, str, str]:
        region, zone = client.get("topology_region", ""), client.get("topology_zone", "")
        if node.region and region == node.region:
            return (0 if zone == node.zone else 1), "", ""
        return 2, region, zone

    return key


# Latencies


def _latency(raw: object) -> Json:
    """Return a node's latencies with the keys that NSQ adds when it reads them."""
    if not isinstance(raw, dict):
        raw = {}
    count = raw.get("count") or 0
    percentiles = [
        {
            "average": percentile.get("value") or 0,
            "count": count,
            "max": percentile.get("value") or 0,
            "min": percentile.get("value") or 0,
            "quantile": percentile.get("quantile") or 0,
            "value": percentile.get("value") or 0,
        }
        for percentile in raw.get("percentiles") or ()
    ]
    return {"count": count, "percentiles": percentiles or None, "topic": "", "channel": "", "host": ""}


def _merged_latency(parts: Iterable[Json], *, topic: str, channel: str = "") -> Json:
    merged: dict[float, Json] = {}
    total = 0
    for part in parts:
        total += part["count"]
        for added in part["percentiles"] or ():
            quantile = added["quantile"]
            known = merged.get(quantile)
            if known is None:
                merged[quantile] = {name: added[name] for name in ("average", "count", "max", "min", "quantile")}
                continue
            known["count"] += added["count"]
            share = added["count"] / known["count"] if known["count"] else 0
            known["average"] += (added["average"] - known["average"]) * share
            known["max"] = max(known["max"], added["max"])
            known["min"] = min(known["min"], added["min"])
    return {
        "count": total,
        "percentiles": list(merged.values()) or None,
        "topic": topic,
        "channel": channel,
        "host": _EVERYWHERE,
    }


def _unless_empty(**values: object) -> Json:
    return {name: value for name, value in values.items() if value}
