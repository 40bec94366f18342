"""Short functions that make pictures of clusters for tests."""

from __future__ import annotations

from typing import Any

from nsqadmin.access import Identity, Right, Role
from nsqadmin.cluster.measures import measures_of
from nsqadmin.cluster.model import (
    Channel,
    ChannelNode,
    Client,
    Health,
    Lookupd,
    Node,
    Paused,
    Rates,
    Snapshot,
    Topic,
    TopicNode,
)

NOW = 1_700_000_000.0
OF_CHANNELS = measures_of(Channel)


def viewer(*topics: str) -> Identity:
    """Return a user who sees these topics only; "*" is all of them."""
    return Identity(roles=(Role(name="viewer", can=frozenset((Right.VIEW,)), topics=topics),))


def node(address: str = "n1:4151", **fields: Any) -> Node:
    host, _, port = address.rpartition(":")
    known: dict[str, Any] = {
        "hostname": host,
        "broadcast_address": host,
        "tcp_port": int(port) - 1,
        "http_port": int(port),
        "version": "1.3.0",
        "health": Health.OK,
        "since": NOW - 3600,
        "has_history": True,
        "lookupds": ("l1:4161",),
        "own_health": "OK",
    }
    return Node(address=address, **{**known, **fields})


def client(address: str = "n1:4151", **fields: Any) -> Client:
    known: dict[str, Any] = {"client_id": "c1", "hostname": "host-1", "remote_address": "10.0.0.1:5000"}
    return Client(node=address, **{**known, **fields})


def channel_node(address: str = "n1:4151", **fields: Any) -> ChannelNode:
    clients = fields.get("clients", ())
    return ChannelNode(node=address, **{"client_count": len(clients or ()), "clients": clients, **fields})


def channel(
    *rows: ChannelNode, topic: str = "t", name: str = "c", rates: Rates | None = None, **fields: Any
) -> Channel:
    rows = rows or (channel_node(),)
    paused = [row.paused for row in rows]
    sums = {it.name: sum(it.read(row) for row in rows) for it in OF_CHANNELS}
    flow = rates or Rates(incoming=0.0, finished=0.0, requeued=0.0, timed_out=0.0)
    known: dict[str, Any] = {
        **sums,
        "paused": Paused.YES if all(paused) else Paused.PARTLY if any(paused) else Paused.NO,
        "rates": flow,
        "net_rate": None if flow.incoming is None or flow.finished is None else flow.incoming - flow.finished,
        "ready_count": sum(it.ready_count for row in rows for it in row.clients or ()),
    }
    return Channel(topic=topic, name=name, nodes=rows, **{**known, **fields})


def topic(*channels: Channel, name: str = "t", nodes: tuple[TopicNode, ...] | None = None, **fields: Any) -> Topic:
    rows = (TopicNode(node="n1:4151", has_log=True),) if nodes is None else nodes
    paused = [row.paused for row in rows]
    known: dict[str, Any] = {
        "depth": sum(row.depth for row in rows),
        "backend_depth": sum(row.backend_depth for row in rows),
        "paused": Paused.NO if not any(paused) else Paused.YES if all(paused) else Paused.PARTLY,
        "rates": Rates(incoming=0.0, bytes=0.0),
        "lookupds": ("l1:4161",),
    }
    return Topic(name=name, nodes=rows, channels=channels, **{**known, **fields})


def snapshot(*topics: Topic, nodes: tuple[Node, ...] | None = None, **fields: Any) -> Snapshot:
    known: dict[str, Any] = {
        "index": 7,
        "taken_at": NOW,
        "interval": 5.0,
        "has_lookupds": True,
        "lookupds": (Lookupd(address="l1:4161", health=Health.OK, version="1.3.0"),),
    }
    return Snapshot(topics=topics, nodes=(node(),) if nodes is None else nodes, **{**known, **fields})
