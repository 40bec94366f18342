"""Nodes that were registered and have gone."""

from __future__ import annotations

from math import inf

import pytest

from nsqcommon.wire.lookup import NodeIdentity
from nsqlookupd.missing import Missing, MissingNodes, is_at

LIFETIME = 100.0


def identity(host: str) -> NodeIdentity:
    return NodeIdentity(
        broadcast_address=host,
        hostname="",
        http_port=4151,
        tcp_port=4150,
        topology_region="",
        topology_zone="",
        version="1.3.0",
        node="",
    )


def gone(who: NodeIdentity, *topics: str) -> Missing:
    return Missing(who, topics, 0, has_drained=False, is_retired=False)


@pytest.fixture
def missing() -> MissingNodes:
    return MissingNodes(LIFETIME)


def hosts(missing: MissingNodes) -> list[str]:
    return [it.identity.broadcast_address for it in missing.nodes()]


def test_a_node_is_missing_when_its_last_connection_has_ended(missing: MissingNodes) -> None:
    missing.come(identity("a"))
    missing.come(identity("a"))
    assert not missing.leave(identity("a"))
    assert missing.leave(identity("a"))


def test_it_is_missing_until_it_is_back(missing: MissingNodes) -> None:
    missing.add(gone(identity("a"), "t"), 0.0)
    missing.add(gone(identity("b"), "t"), 1.0)
    assert hosts(missing) == ["a", "b"]
    missing.come(identity("a"))
    assert hosts(missing) == ["b"]


def test_it_is_missing_until_its_time_is_over(missing: MissingNodes) -> None:
    assert missing.next_deadline == inf
    missing.add(gone(identity("a"), "t"), 0.0)
    missing.add(gone(identity("b"), "t"), 1.0)
    assert missing.next_deadline == LIFETIME
    missing.expire(LIFETIME)
    assert hosts(missing) == ["b"]
    assert missing.next_deadline == LIFETIME + 1


def test_without_a_lifetime_nothing_is_remembered() -> None:
    missing = MissingNodes(0)
    missing.come(identity("a"))
    assert not missing.leave(identity("a"))
    assert not missing.remembers


def test_of_very_many_the_oldest_are_forgotten(missing: MissingNodes) -> None:
    for number in range(1001):
        missing.add(gone(identity(str(number)), "t"), float(number))
    assert len(missing.nodes()) == 1000
    assert hosts(missing)[0] == "1"


def test_a_node_may_be_given_up_topic_by_topic(missing: MissingNodes) -> None:
    who = identity("a")
    missing.add(gone(who, "t", "u"), 0.0)
    missing.forget("t", f"a:{who.http_port}")
    assert [it.topics for it in missing.nodes()] == [("u",)]
    missing.forget("u", "b:1")
    assert [it.topics for it in missing.nodes()] == [("u",)]
    missing.forget("u", f"a:{who.http_port}")
    assert missing.nodes() == []


@pytest.mark.parametrize(("host", "node"), [("a", "a:{port}"), ("::1", "[::1]:{port}"), ("::1", "::1:{port}")])
def test_a_node_is_named_by_its_http_side(host: str, node: str) -> None:
    who = identity(host)
    assert is_at(who, node.format(port=who.http_port))
    assert not is_at(who, node.format(port=who.tcp_port))
