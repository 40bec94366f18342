"""Which nodes are asked for their logs, for how long, and which are not worth waiting for."""

from __future__ import annotations

import threading

import pytest

from pyspark_nsq.cluster import Cluster, NoLog, Place
from pyspark_nsq.errors import NsqError, Refused, Unreachable
from pyspark_nsq.http import Http
from pyspark_nsq.lanes import Head, Lane, Offsets
from pyspark_nsq.options import source_options
from pyspark_nsq.source import watch
from tests.support.spark import patiently

HERE, THERE = Place("here:1", "orders"), Place("there:1", "orders")


class Nodes(Cluster):
    """Nodes that answer, or do not."""

    def __init__(self, where: str = "nsqd") -> None:
        options = source_options({where: "here:1,there:1", "topic": "orders"})
        super().__init__(options, Http(options.access))
        self.up = {HERE, THERE}
        self.hidden: set[Place] = set()
        self.nodes = {HERE: "here:1", THERE: "there:1"}
        self.refusal: NsqError | None = None  # what HERE answers instead, if anything

    def places(self, *, left_out: list[Unreachable] | None = None) -> list[Place]:
        for place in self.hidden:
            assert left_out is not None
            left_out.append(Unreachable(f"{place.address} is down"))
        return [place for place in (HERE, THERE) if place not in self.hidden]

    def head(
        self, place: Place, *, known: Head | None = None, wait: float = 0, timeout: float | None = None
    ) -> Head | NoLog:
        if place not in self.up:
            raise Unreachable(f"{place.address} is down")
        if place == HERE and self.refusal is not None:
            raise self.refusal
        return Head(Lane(self.nodes[place], place.topic, "log"), place.address, 0, 7)


class Discovered(watch.Watch):
    """A discovery whose nodes a test lists."""

    def list(self, *places: Place) -> None:
        self._watch_all(list(places))


def followed() -> set[str]:
    return {str(place) for place in (HERE, THERE)} & {thread.name for thread in threading.enumerate()}


def test_a_place_that_is_gone_for_good_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_RETRY_AFTER", 0.01)
    monkeypatch.setattr(watch, "_TRIES", 5)
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


class Unhurried(watch.Watch):
    """Starts no threads: a test tells it what it hears, and when it looks."""

    def _watch_all(self, places: list[Place]) -> None:
        pass

    def hear_of(self, *places: Place) -> None:
        for place in places:
            self._note(place, self._cluster.head(place))

    def look(self, times: int) -> None:
        for _ in range(times):
            try:
                self._discover()
            except Unreachable:
                pass


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
def here(nodes: Nodes) -> Unhurried:
    here = Unhurried(nodes, discovery_seconds=10)
    here.hear_of(HERE, THERE)
    return here


LANE = Lane("here:1", "orders", "log")  # the lane of all tests


def test_who_is_missing_is_left_out_of_batches_whichever_topic_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "_RETRY_AFTER", 0.01)
    nodes = Nodes()
    nodes.registered = frozenset({HERE.address, THERE.address})
    here = Discovered(nodes, discovery_seconds=10)
    try:
        here.list(THERE)
        here._note(HERE, nodes.head(HERE))  # and no thread follows it
        here._note_silence(HERE.address, Unreachable("here:1 is down", HERE.address))
        patiently(lambda: len(here.heads()) == 2)
        assert here.missing(Offsets({})).keys() == {HERE.address}
        assert here.down() == {LANE}
        here._note_answer(HERE.address)
        assert not here.missing(Offsets({}))
        assert not here.down()
    finally:
        nodes.up = set()
        here.list()
        patiently(lambda: not followed())


def test_a_node_that_refuses_to_answer_is_missing_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_RETRY_AFTER", 0.01)
    nodes = Nodes()
    nodes.registered = frozenset({HERE.address, THERE.address})
    here = Discovered(nodes, discovery_seconds=10)
    try:
        here.list(HERE, THERE)
        patiently(lambda: len(here.heads()) == 2)
        nodes.refusal = Refused(HERE.address, 403, "E_UNAUTHORIZED", {})
        patiently(lambda: here.missing(Offsets({})) == {HERE.address: "here:1 answers 403 E_UNAUTHORIZED"})
        assert here.down() == {LANE}
        nodes.refusal = None
        patiently(lambda: not here.missing(Offsets({})) and not here.down())
    finally:
        here.close()


def test_lanes_whose_nodes_swap_addresses_are_not_gone(nodes: Nodes, here: Unhurried) -> None:
    nodes.up = {HERE}
    nodes.nodes = {HERE: "there:1", THERE: "here:1"}
    here.hear_of(HERE)
    assert here.heads().keys() == {Lane("there:1", "orders", "log")}
    here.look(10)  # the other node is down all the time
    assert not here.vanished()
    nodes.up = {HERE, THERE}
    here.look(10)
    assert len(here.heads()) == 2
    assert here.heads()[LANE].address == THERE.address
    assert not here.vanished()


def test_a_lane_is_gone_when_some_looks_at_all_nodes_have_not_found_it(nodes: Nodes, here: Unhurried) -> None:
    nodes.nodes[HERE] = "new"
    here.hear_of(HERE)
    here.look(2)
    assert not here.vanished()
    here.look(1)
    assert here.vanished() == {LANE: "at here:1 there is new/orders/log now"}
    nodes.nodes[HERE] = "here:1"
    here.hear_of(HERE)
    assert not here.vanished()


def test_a_look_without_all_that_should_answer_does_not_count(nodes: Nodes, here: Unhurried) -> None:
    nodes.nodes[HERE] = "new"
    here.hear_of(HERE)
    nodes.hidden = {THERE}
    here.look(10)
    assert not here.vanished()


def test_by_nsqlookupd_it_takes_longer_as_it_knows_only_who_is_registered() -> None:
    nodes = Nodes("lookupd")
    here = Unhurried(nodes, discovery_seconds=10)
    here.hear_of(HERE, THERE)
    nodes.nodes[HERE] = "new"
    here.hear_of(HERE)
    here.look(29)
    assert not here.vanished()
    here.look(1)
    assert here.vanished().keys() == {LANE}


def test_a_lane_is_gone_at_once_when_its_own_node_says_so(here: Unhurried) -> None:
    here._note(HERE, NoLog("here:1"))
    assert here.vanished() == {LANE: "here:1 has no topic orders any more"}


def test_a_lane_that_has_moved_is_not_thought_to_be_where_it_was(nodes: Nodes, here: Unhurried) -> None:
    nodes.nodes = {HERE: "here:1", THERE: "here:1"}
    here.hear_of(THERE)  # its old address does not answer any more
    nodes.nodes[THERE] = "new"
    nodes.up = {THERE}
    here.hear_of(THERE)
    assert here.heads().keys() == {Lane("new", "orders", "log")}
