"""The nsqds of a producer while nsqlookupd lists others."""

from __future__ import annotations

from random import Random

from nsqclient import Config, Strategy
from nsqclient.core.membership import CONFIRM_AFTER, Membership, NodeEntry
from nsqclient.core.roster import Roster


class FakeNode:
    def __init__(self, address: str, number: int) -> None:
        self.address = address
        self.number = number
        self.users = 0
        self.pending = 0
        self.log_id = ""
        self.is_connected = False
        self.is_dropped = False

    def begin(self) -> None: ...

    def hurry(self) -> None: ...

    def drop(self) -> None:
        self.is_dropped = True


class Cluster:
    """A roster whose nodes one nsqlookupd lists."""

    def __init__(self, strategy: Strategy = "hostpool") -> None:
        self.membership = Membership()
        self.roster: Roster[FakeNode] = Roster(
            [],
            FakeNode,
            self.membership,
            strategy=strategy,
            config=Config(),
            random=Random(1),
            emit=lambda event: None,
        )
        self.roster.begin()

    def lists(self, *addresses: str, now: float) -> None:
        self.membership.answered("lookupd", map(NodeEntry, addresses), now)
        self.roster.update()

    def node(self, address: str) -> FakeNode:
        (found,) = (node for node in self.roster.nodes if node.address == address)
        return found

    @property
    def active(self) -> list[str]:
        return [node.address for node in self.roster.active]


def of_two(strategy: Strategy = "hostpool") -> Cluster:
    """Return a cluster of two connected nodes."""
    cluster = Cluster(strategy)
    cluster.lists("n1", "n2", now=0)
    for node in cluster.roster.nodes:
        cluster.roster.connection_changed(node, is_open=True, now=0)
    return cluster


def without_n2(cluster: Cluster) -> None:
    cluster.lists("n1", now=1)
    cluster.lists("n1", now=1 + CONFIRM_AFTER)


def test_a_node_that_comes_back_after_it_was_dropped_has_to_connect_first() -> None:
    """It was connected when it was dropped. Taken for connected, it would get publishes that wait for it in vain."""
    cluster = of_two()
    gone = cluster.node("n2")
    without_n2(cluster)
    assert gone.is_dropped
    cluster.roster.connection_changed(gone, is_open=False, now=20)
    cluster.lists("n1", "n2", now=30)
    assert cluster.active == ["n1"]
    cluster.roster.connection_changed(cluster.node("n2"), is_open=True, now=31)
    assert cluster.active == ["n1", "n2"]


def test_a_node_that_comes_back_while_it_is_used_is_still_connected() -> None:
    cluster = of_two()
    cluster.node("n2").users = 1
    without_n2(cluster)
    assert cluster.active == ["n1"]
    cluster.lists("n1", "n2", now=30)
    assert cluster.active == ["n1", "n2"]


def test_a_node_with_an_unanswered_publish_is_dropped_after_the_answer() -> None:
    cluster = of_two()
    node = cluster.node("n2")
    node.pending = 1
    without_n2(cluster)
    assert not node.is_dropped
    node.pending = 0
    cluster.lists("n1", now=40)
    assert node.is_dropped


def test_nothing_is_remembered_of_nodes_that_were_dropped() -> None:
    cluster = of_two()
    node = cluster.node("n2")
    without_n2(cluster)
    cluster.roster.succeeded(node, 0.1, now=21)  # the publish that it was kept for
    cluster.roster.failed(node, now=21)
    assert not cluster.roster._pool._hosts  # type: ignore[attr-defined]


def test_the_log_of_a_lost_node_is_where_another_connection_says_it_is() -> None:
    cluster = of_two()
    former, other = cluster.node("n1"), cluster.node("n2")
    former.log_id = other.log_id = "log"
    other.is_connected = True
    assert cluster.roster.successor(former) is other
    former.is_connected = True
    assert cluster.roster.successor(former) is former
    former.is_connected, other.log_id = False, "another"
    assert cluster.roster.successor(former) is former
    former.log_id = other.log_id = ""
    assert cluster.roster.successor(former) is former, "a node of NSQ doesn't say whose log it has"


def test_the_node_of_a_group_does_not_depend_on_connections_but_that_of_other_messages_does() -> None:
    cluster = of_two("by_group")
    for node in cluster.roster.nodes:
        node.is_connected = True
    groups = [b"%d" % number for number in range(20)]
    before = {group: cluster.roster.pick(0.0, (), group).address for group in groups}
    assert set(before.values()) == {"n1", "n2"}
    lost = cluster.node("n2")
    lost.is_connected = False
    cluster.roster.connection_changed(lost, is_open=False, now=1)
    assert {group: cluster.roster.pick(1.0, (), group).address for group in groups} == before
    assert {cluster.roster.pick(1.0).address for _ in range(10)} == {"n1"}
    cluster.roster.failed(lost, 1.0)
    assert {cluster.roster.pick(2.0, (), group).address for group in groups} == {"n1"}
    assert cluster.roster.pick(40.0, (), next(it for it in groups if before[it] == "n2")).address == "n2", (
        "it comes back"
    )


def test_who_has_refused_a_message_without_a_group_is_avoided_even_if_only_it_is_connected() -> None:
    cluster = of_two("by_group")
    one, two = cluster.node("n1"), cluster.node("n2")
    one.is_connected = True
    assert {cluster.roster.pick(0.0, (one.number,)).address for _ in range(4)} == {"n2"}
    assert two.is_connected is False
