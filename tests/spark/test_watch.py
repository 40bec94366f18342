"""Who is asked for its logs, for how long, and what is not worth waiting for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from pyspark_nsq import watch
from pyspark_nsq.cluster import Cluster, Nothing, Place
from pyspark_nsq.errors import Unreachable
from pyspark_nsq.http import Http
from pyspark_nsq.lanes import Head, Lane
from pyspark_nsq.options import source_options
from tests.support.process import Nsqd
from tests.support.spark import address, patiently, publish

HERE, THERE = Place("here:1", "orders"), Place("there:1", "orders")


class Nodes(Cluster):
    """Some that answer."""

    def __init__(self) -> None:
        options = source_options({"lookupd": "x:1", "topic": "orders"})
        super().__init__(options, Http(options.access))
        self.up = {HERE, THERE}
        self.nodes = {HERE: "here:1", THERE: "there:1"}

    def head(self, place: Place, *, known: Head | None = None, wait: float = 0) -> Head | Nothing:
        if place not in self.up:
            raise Unreachable(f"{place.address} is down")
        return Head(Lane(self.nodes[place], place.topic, "log"), place.address, 0, 7)


class Discovered(watch.Watch):
    """Places are listed by hand."""

    def list(self, *places: Place) -> None:
        self._watch_all(list(places))


def followed() -> set[str]:
    return {str(place) for place in (HERE, THERE)} & {thread.name for thread in threading.enumerate()}


def test_a_place_that_is_gone_for_good_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_AGAIN", 0.01)
    monkeypatch.setattr(watch, "_PATIENCE", 5)
    nodes = Nodes()
    here = Discovered(nodes, discovery_seconds=10)
    try:
        here.list(HERE, THERE)
        patiently(lambda: len(here.heads()) == 2)
        nodes.up = {HERE}
        here.list(HERE)
        patiently(lambda: followed() == {str(HERE)})
        assert len(here.heads()) == 2, "its lane stays where it is"
        assert not here.vanished()
        here.list(HERE, THERE)
        assert followed() == {str(HERE), str(THERE)}, "though it is down: it may come back"
    finally:
        nodes.up = set()
        here.list()
        patiently(lambda: not followed())


def test_a_node_that_is_down_does_not_hide_new_topics_of_the_others(nsqd: Nsqd) -> None:
    publish(nsqd, "click.a", [b"1"])
    options = source_options({"nsqd": f"127.0.0.1:1,{address(nsqd)}", "topic": "click.*"})
    cluster = Cluster(options, Http(options.access))
    down: list[Unreachable] = []
    assert cluster.places(left_out=down) == [Place(address(nsqd), "click.a")]
    assert len(down) == 1
    with pytest.raises(Unreachable, match="cannot be reached"):
        cluster.places()


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Nodes, Discovered]]:
    """Nodes that are followed, and looked for every half second."""
    monkeypatch.setattr(watch, "_AGAIN", 0.01)
    monkeypatch.setattr(watch, "_PATIENCE", 5)
    nodes = Nodes()
    here = Discovered(nodes, discovery_seconds=0.5)
    here.list(HERE, THERE)
    patiently(lambda: len(here.heads()) == 2)
    yield nodes, here
    nodes.up = set()
    here.list()
    patiently(lambda: not followed())


def test_lanes_whose_nodes_swap_addresses_are_not_gone(two: tuple[Nodes, Discovered]) -> None:
    nodes, here = two
    lanes = here.heads().keys()
    nodes.up = {HERE}
    nodes.nodes = {HERE: "there:1", THERE: "here:1"}
    patiently(lambda: len(here.heads()) == 1)  # both addresses have the one that has moved already
    assert not here.vanished()
    nodes.up = {HERE, THERE}
    patiently(lambda: here.heads().keys() == lanes)
    time.sleep(1.6)
    assert not here.vanished()


def test_a_lane_is_gone_when_some_looks_at_all_nodes_have_not_found_it(two: tuple[Nodes, Discovered]) -> None:
    nodes, here = two
    (lane,) = (lane for lane in here.heads() if lane.node == "here:1")
    nodes.nodes[HERE] = "new"
    patiently(lambda: here.vanished() == {lane: "at here:1 there is new/orders/log now"})


def test_a_lane_is_gone_at_once_when_its_own_node_says_so(two: tuple[Nodes, Discovered]) -> None:
    _, here = two
    lane = here.heads().keys() & {Lane("here:1", "orders", "log")}
    here._note(HERE, Nothing("here:1"))
    assert here.vanished().keys() == lane
