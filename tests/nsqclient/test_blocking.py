"""Where a producer on plain sockets publishes messages with a group. Its nsqds are only addresses here."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from nsqclient import ConnectError, PublishRejected
from nsqclient.blocking import BlockingProducer
from nsqclient.core.hostpool import weight_of

ADDRESSES = ("a:4150", "b:4150", "c:4150")
GROUPS = [f"customer-{number}" for number in range(60)]


class FakeLink:
    """A connection that takes everything while its nsqd is up and not full."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.log_id = ""
        self.rests_until = 0.0
        self.is_up = True
        self.is_full = False
        self.published: list[str] = []

    @property
    def is_open(self) -> bool:
        return self.is_up

    def open(self) -> None:
        if not self.is_up:
            raise ConnectError(f"dial {self.address}: connection refused")

    def publish(self, topic: str, command: bytes, key: bytes) -> None:
        self.open()
        if self.is_full:
            raise PublishRejected("E_PUB_FAILED", "E_PUB_FAILED full")
        self.published.append(topic)

    def abandon(self) -> None: ...

    def close(self) -> None: ...


class Cluster:
    def __init__(self, *addresses: str) -> None:
        self.states = dict.fromkeys(addresses, "")
        self.asked = 0
        self.producer = BlockingProducer(self._nodes, retry_timeout=0.0)
        self.links = {address: FakeLink(address) for address in addresses}
        self.producer._links = self.links  # type: ignore[assignment]

    def _nodes(self) -> dict[str, str]:
        self.asked += 1
        return self.states

    def publish(self, group: str | None) -> str:
        """Publish, and return where it went."""
        before = {address: len(link.published) for address, link in self.links.items()}
        self.producer.publish("t", b"x", group=group)
        (where,) = (address for address, link in self.links.items() if len(link.published) > before[address])
        return where


def test_a_group_goes_where_other_producers_send_it() -> None:
    places = {group: Cluster(*ADDRESSES).publish(group) for group in GROUPS}
    assert places == {group: Cluster(*reversed(ADDRESSES)).publish(group) for group in GROUPS}
    assert places == {group: max(ADDRESSES, key=lambda it: weight_of(it, group.encode())) for group in GROUPS}
    assert min(Counter(places.values()).values()) > 10


def test_while_its_nsqd_is_away_it_goes_to_the_next_and_then_comes_back() -> None:
    cluster = Cluster(*ADDRESSES)
    before = {group: cluster.publish(group) for group in GROUPS}
    cluster.links["a:4150"].is_up = False
    during = {group: cluster.publish(group) for group in GROUPS}
    assert {group for group in GROUPS if during[group] != before[group]} == {
        group for group in GROUPS if before[group] == "a:4150"
    }
    cluster.links["a:4150"].is_up = True
    assert {group: cluster.publish(group) for group in GROUPS} == during, "it is left alone for a while"
    cluster.links["a:4150"].rests_until = time.monotonic()
    assert {group: cluster.publish(group) for group in GROUPS} == before


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_full_one_is_the_last_to_be_asked(is_listed: bool) -> None:
    cluster = Cluster(*ADDRESSES)
    group = next(it for it in GROUPS if max(ADDRESSES, key=lambda at: weight_of(at, it.encode())) == "a:4150")
    if is_listed:
        cluster.states["a:4150"] = "full"
    else:
        cluster.links["a:4150"].is_full = True
    assert cluster.publish(group) != "a:4150"


def test_all_of_them_are_tried_before_it_fails() -> None:
    cluster = Cluster(*ADDRESSES)
    for link in cluster.links.values():
        link.is_up = False
    with pytest.raises(ConnectError, match="connection refused"):
        cluster.publish("ana")
    cluster.links["b:4150"].is_up = True
    assert cluster.publish("ana") == "b:4150"


def test_nsqlookupd_is_not_asked_for_each_message() -> None:
    cluster = Cluster(*ADDRESSES)
    for group in GROUPS:
        cluster.publish(group)
    assert cluster.asked == 1


def test_messages_without_a_group_stay_at_one_nsqd() -> None:
    cluster = Cluster(*ADDRESSES)
    assert len({cluster.publish(None) for _ in range(20)}) == 1
