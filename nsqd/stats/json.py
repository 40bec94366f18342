"""`/stats?format=json`: the broker's snapshot, with NSQ's members in NSQ's order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeVar

from nsqcommon.nsq_json import dumps
from nsqcommon.wire.names import is_ephemeral
from nsqd.broker.stats_records import ChannelSnapshot, Json, TopicSnapshot, measures_of

if TYPE_CHECKING:
    from nsqd.broker.stats_records import BrokerSnapshot, ClientSnapshot, LatencySnapshot
    from nsqd.stats.memory import MemorySnapshot

Object = dict[str, object]


class _Numbers:
    """Writes the measures of topics or channels. A node may have thousands, and this is faster than `dumps`."""

    def __init__(self, record: type[TopicSnapshot | ChannelSnapshot]) -> None:
        measures = measures_of(record)
        nsqs = [name for name, it in measures.items() if it.json in (Json.ALWAYS, Json.IF_SET)]
        self._read_nsqs = attrgetter(*nsqs)
        self._nsqs = [(b'"%b":%%d,' % name.encode(), measures[name].json is Json.ALWAYS) for name in nsqs]
        self._ours = [name for name, it in measures.items() if it.json is Json.OURS]

    def nsqs(self, snapshot: TopicSnapshot | ChannelSnapshot) -> bytes:
        """Return NSQ's members, with a comma after each."""
        numbers = zip(self._nsqs, self._read_nsqs(snapshot), strict=True)
        return b"".join([member % number for (member, always), number in numbers if number or always])

    def ours(self, snapshot: TopicSnapshot | ChannelSnapshot) -> Object:
        return {name: number for name in self._ours if (number := getattr(snapshot, name))}


_OF_TOPICS: Final = _Numbers(TopicSnapshot)
_OF_CHANNELS: Final = _Numbers(ChannelSnapshot)


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


def _topic(ack_of: Callable[[str], str] | None, topic: TopicSnapshot) -> Iterator[bytes]:
    yield b'{"topic_name":%b,"channels":' % dumps(topic.topic_name)
    yield from _list(topic.channels, _channel)
    more: Object = {
        "paused": topic.paused,
        "e2e_processing_latency": _latency(topic.e2e_processing_latency),
        **_OF_TOPICS.ours(topic),
    }
    if topic.policy_counts:
        more["policy_counts"] = dict(topic.policy_counts)
    if topic.expires_at is not None:
        more["expires_at"] = topic.expires_at
    if ack_of is not None and not is_ephemeral(topic.topic_name):  # those are in memory only
        more["ack"] = ack_of(topic.topic_name)
    yield b",%b%b" % (_OF_TOPICS.nsqs(topic), dumps(more)[1:])


def _channel(channel: ChannelSnapshot) -> Iterator[bytes]:
    yield b'{"channel_name":%b,%b"clients":' % (dumps(channel.channel_name), _OF_CHANNELS.nsqs(channel))
    yield from _list(channel.clients, _client)
    more: Object = {
        "paused": channel.paused,
        "e2e_processing_latency": _latency(channel.e2e_processing_latency),
        **_OF_CHANNELS.ours(channel),
    }
    if channel.paused_why:
        more["paused_why"] = channel.paused_why
    if channel.in_flight_full_since is not None:
        more["in_flight_full_since"] = channel.in_flight_full_since
    if channel.held_full_since is not None:
        more["held_full_since"] = channel.held_full_since
    if channel.policy_counts:
        more["policy_counts"] = dict(channel.policy_counts)
    if channel.oldest_timestamp is not None:
        more["oldest_timestamp"] = channel.oldest_timestamp
    if channel.expires_at is not None:
        more["expires_at"] = channel.expires_at
    yield b"," + dumps(more)[1:]


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
    if client.touch_count:
        described |= {"touch_count": client.touch_count, "last_touch_at": client.last_touch_at}
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
