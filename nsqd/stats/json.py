"""`/stats?format=json`: the broker's snapshot, with NSQ's members in NSQ's order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from nsqcommon.nsq_json import dumps
from nsqcommon.wire.names import is_ephemeral
from nsqd.broker.stats_records import CHANNEL_COUNTERS

if TYPE_CHECKING:
    from nsqd.broker.stats_records import (
        BrokerSnapshot,
        ChannelSnapshot,
        ClientSnapshot,
        LatencySnapshot,
        TopicSnapshot,
    )
    from nsqd.stats.memory import MemorySnapshot

Object = dict[str, object]

_ONLY_IF_SET: Final = tuple(name for name, counter in CHANNEL_COUNTERS if counter.in_json)


def stats_json(
    snapshot: BrokerSnapshot,
    memory: MemorySnapshot | None,
    *,
    version: str,
    more: Mapping[str, object] | None = None,
    ack_of: Callable[[str], str] | None = None,
) -> Iterator[bytes]:
    """Yield the document in small pieces, because it may be megabytes long. Ends with the members in `more`.

    With `ack_of`, each topic on disk has its --ack.
    """
    yield dumps({"version": version, "health": snapshot.health, "start_time": snapshot.start_time})[:-1]
    yield b',"topics":'
    yield from _list(snapshot.topics, partial(_topic, ack_of))
    if memory is not None:
        yield b',"memory":' + dumps(asdict(memory))
    yield b',"producers":'
    yield from _list(snapshot.producers, _client)
    yield b"," + dumps(more)[1:] if more else b"}"


_T = TypeVar("_T")


def _list(items: Sequence[_T] | None, pieces: Callable[[_T], Iterator[bytes]]) -> Iterator[bytes]:
    if items is None:
        yield b"null"
        return
    before = b"["
    for item in items:
        yield before
        yield from pieces(item)
        before = b","
    yield b"]" if items else b"[]"


def _around(described: Object, member: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield an object in pieces. `pieces` replace the null that `described` has for `member`."""
    name = b'"%b":' % member.encode()
    before, _, after = dumps(described).partition(name + b"null")
    yield before + name
    yield from pieces
    yield after


def _topic(ack_of: Callable[[str], str] | None, topic: TopicSnapshot) -> Iterator[bytes]:
    described: Object = {
        "topic_name": topic.topic_name,
        "channels": None,
        "depth": topic.depth,
        "backend_depth": topic.backend_depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": _latency(topic.e2e_processing_latency),
    }
    if topic.repeat_count:
        described["repeat_count"] = topic.repeat_count
    if topic.policy_counts:
        described["policy_counts"] = dict(topic.policy_counts)
    if topic.expires_at is not None:
        described["expires_at"] = topic.expires_at
    if ack_of is not None and not is_ephemeral(topic.topic_name):  # those are in memory only
        described["ack"] = ack_of(topic.topic_name)
    yield from _around(described, "channels", _list(topic.channels, _channel))


def _channel(channel: ChannelSnapshot) -> Iterator[bytes]:
    described: Object = {
        "channel_name": channel.channel_name,
        "depth": channel.depth,
        "backend_depth": channel.backend_depth,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "message_count": channel.message_count,
    }
    for name in _ONLY_IF_SET:
        if count := getattr(channel, name):
            described[name] = count
    described |= {
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": channel.client_count,
        "clients": None,
        "paused": channel.paused,
        "e2e_processing_latency": _latency(channel.e2e_processing_latency),
    }
    if channel.buried_count:
        described["buried_count"] = channel.buried_count
    if channel.paused_why:
        described["paused_why"] = channel.paused_why
    if channel.policy_counts:
        described["policy_counts"] = dict(channel.policy_counts)
    if channel.oldest_timestamp is not None:
        described["oldest_timestamp"] = channel.oldest_timestamp
    if channel.expires_at is not None:
        described["expires_at"] = channel.expires_at
    yield from _around(described, "clients", _list(channel.clients, _client))


def _client(client: ClientSnapshot) -> Iterator[bytes]:
    described: Object = {
        "client_id": client.client_id,
        "hostname": client.hostname,
        "version": client.version,
        "remote_address": client.remote_address,
        "state": client.state,
        "ready_count": client.ready_count,
        "in_flight_count": client.in_flight_count,
        "message_count": client.message_count,
        "finish_count": client.finish_count,
        "requeue_count": client.requeue_count,
        "connect_ts": client.connect_ts,
        "sample_rate": client.sample_rate,
        "deflate": client.deflate,
        "snappy": client.snappy,
        "user_agent": client.user_agent,
    }
    if client.authed:
        described["authed"] = True
    if client.auth_identity:
        described["auth_identity"] = client.auth_identity
    if client.auth_identity_url:
        described["auth_identity_url"] = client.auth_identity_url
    described |= {"topology_zone": client.topology_zone, "topology_region": client.topology_region}
    if client.pub_counts:
        described["pub_counts"] = [{"topic": topic, "count": count} for topic, count in client.pub_counts]
    described |= {
        "tls": client.tls,
        "tls_cipher_suite": client.tls_cipher_suite,
        "tls_version": client.tls_version,
        "tls_negotiated_protocol": client.tls_negotiated_protocol,
        "tls_negotiated_protocol_is_mutual": client.tls_negotiated_protocol_is_mutual,
    }
    if client.oldest_in_flight_ms is not None:
        described["oldest_in_flight_ms"] = client.oldest_in_flight_ms
    yield dumps(described)


def _latency(latency: LatencySnapshot) -> Object:
    percentiles = latency.percentiles
    return {
        "count": latency.count,
        "percentiles": None
        if percentiles is None
        else [{"quantile": quantile, "value": value} for quantile, value in percentiles],
    }
