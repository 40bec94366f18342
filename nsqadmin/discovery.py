"""What nsqlookupd and nsqd say about who is there, read and merged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from nsqadmin.answered import NotUnderstood, read_stats

Json = Mapping[str, Any]

_NO_REMOTE: Final = "N/A"


@dataclass(slots=True)
class Announced:
    """An nsqd, as it is announced. `sources` are the nsqlookupds that know it."""

    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str = ""
    region: str = ""
    zone: str = ""
    remote_address: str = ""  # as the first one said it
    remote_addresses: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    topics: dict[str, bool] = field(default_factory=dict)  # whether a tombstone hides it

    @property
    def address(self) -> str:
        """By which everything names it, and where it is asked."""
        return _joined(self.broadcast_address, self.http_port)

    @property
    def tcp_key(self) -> str:
        return _joined(self.broadcast_address, self.tcp_port)


def read_producer(raw: Json) -> Announced:
    """An element of `producers`, of /nodes and /lookup alike. A list of tombstones may be short: defects are not ours."""
    topics = [str(it) for it in raw.get("topics") or ()]
    tombstones = list(raw.get("tombstones") or ())
    return Announced(
        hostname=str(raw.get("hostname") or ""),
        broadcast_address=str(raw.get("broadcast_address") or raw.get("address") or ""),
        tcp_port=int(raw.get("tcp_port") or 0),
        http_port=int(raw.get("http_port") or 0),
        version=str(raw.get("version") or ""),
        region=str(raw.get("topology_region") or ""),
        zone=str(raw.get("topology_zone") or ""),
        remote_address=str(raw.get("remote_address") or ""),
        topics={topic: bool(tombstones[at]) if at < len(tombstones) else False for at, topic in enumerate(topics)},
    )


def read_info(raw: Json, configured: str) -> Announced:
    """What an nsqd says of itself; where it does not, it is what we were told to ask."""
    host, _, port = configured.rpartition(":")
    host = host.strip("[]")
    return Announced(
        hostname=str(raw.get("hostname") or host),
        broadcast_address=str(raw.get("broadcast_address") or host),
        tcp_port=int(raw.get("tcp_port") or 0),
        http_port=int(raw.get("http_port") or port) if raw.get("broadcast_address") else int(port),
        version=str(raw.get("version") or ""),
        region=str(raw.get("topology_region") or ""),
        zone=str(raw.get("topology_zone") or ""),
    )


def unwrapped(document: object) -> Json:
    """Without the envelope of NSQ before 1.0."""
    if not isinstance(document, dict):
        raise NotUnderstood(f"expected an object, got {type(document).__name__}")
    data = document.get("data")
    return data if isinstance(data, dict) and "status_code" in document else document


def info_in(document: object, configured: str) -> Announced:
    """Raises NotUnderstood."""
    try:
        return read_info(unwrapped(document), configured)
    except (TypeError, ValueError, AttributeError) as error:
        raise NotUnderstood(f"cannot be read: {error!r}") from error


def topics_in(document: object) -> list[dict[str, Any]]:
    """Of /stats, as the node says them. Raises NotUnderstood for what could not be shown."""
    stats = unwrapped(document)
    read_stats("", stats, at=0.0)
    return list(stats.get("topics") or ())


def producers_in(document: object) -> list[Announced]:
    """Raises NotUnderstood."""
    try:
        return [read_producer(raw) for raw in unwrapped(document).get("producers") or ()]
    except (TypeError, ValueError, AttributeError) as error:
        raise NotUnderstood(f"cannot be read: {error!r}") from error


def names_in(document: object, key: str) -> list[str]:
    names = unwrapped(document).get(key) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise NotUnderstood(f"{key}: expected a list of names")
    return names


def merged_nodes(answers: Iterable[tuple[str, Iterable[Announced]]]) -> list[Announced]:
    """Of several nsqlookupds: the first one's word counts, and each adds from where the node reaches it."""
    merged: dict[str, Announced] = {}
    for source, producers in answers:
        for it in producers:
            known = merged.setdefault(it.tcp_key, replace(it, remote_addresses=[], sources=[], topics=dict(it.topics)))
            known.remote_addresses.append(f"{source}/{it.remote_address or _NO_REMOTE}")
            known.sources.append(source)
            for topic, is_tombstoned in it.topics.items():
                known.topics[topic] = known.topics.get(topic, False) or is_tombstoned
    return list(merged.values())


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
