"""nsqd's tasks for its nsqlookupd peers, over memory streams and with a clock that jumps."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import wraps
from math import inf

import pytest
import trio
import trio.testing

from nsqcommon.wire.lookup import MAGIC
from nsqd.broker.topic import Topic
from nsqd.lookup.dial import Place, resolve
from nsqd.lookup.lookup import Lookup
from nsqd.lookup.settings import LookupSettings
from nsqd.lookup.times import (
    FIRST_PING,
    FIRST_TRY_LIMIT,
    IO_LIMIT,
    LONGEST_BACKOFF,
    LONGEST_BACKOFF_OF_NEW,
    PING_INTERVAL,
    RESOLVE_INTERVAL,
)
from tests.support.fake_lookupd import FakeLookupd
from tests.support.node import Node, NodeTurn
from tests.support.quick import unless_quick

HANGS = 1000.0  # seconds on a clock that jumps
ME = b'{"broadcast_address":"me"}'
ONE = "10.0.0.1:4160"
SOON = 0.01


def jumping(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        async def limited() -> None:
            with trio.fail_after(HANGS):
                await test()

        trio.run(limited, clock=trio.testing.MockClock(autojump_threshold=0))

    del run.__wrapped__  # otherwise pytest would look for the test's own arguments
    return run


class Cluster:
    """A node, and the nsqlookupd that can be reached at each IP address."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.node = Node()
        self.lookupds = {"10.0.0.1": FakeLookupd()}
        self.names = {"10.0.0.1": ["10.0.0.1"]}
        self.down: set[str] = set()
        self.dials: list[str] = []
        self._nursery = nursery
        settings = LookupSettings(me=ME, most=1000, connect_timeout=1, request_timeout=1, tls=None)
        self.lookup = Lookup(self.node.broker, settings, dial_with=self._dial, resolve_with=self._resolve)
        self.node.announce = self.lookup.announce
        self.lookup.configure([ONE])

    @property
    def fake(self) -> FakeLookupd:
        return self.lookupds["10.0.0.1"]

    async def _dial(self, place: Place, name: str) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        self.dials.append(place[0])
        if place[0] in self.down:
            raise OSError("Connection refused")
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self.lookupds[place[0]].serve, theirs)
        return ours

    async def _resolve(self, host: str, port: int) -> list[Place]:
        await trio.lowlevel.checkpoint()
        if host not in self.names:
            raise OSError("no such host")
        return [(ip, port) for ip in self.names[host]]

    def new_topic(self, name: str) -> Topic:
        topic = self.node.broker.topic(name)
        self.node.turn()
        return topic

    def make(self, topic: str, *channels: str) -> None:
        made = self.node.broker.topic(topic)
        if made.learning:
            made.learned(())
            del self.node.broker.undiscovered[made]  # otherwise `Lookup` would ask over a real socket
        for channel in channels:
            made.channel(channel)
        self.node.turn()


@asynccontextmanager
async def cluster(*, topics: dict[str, list[str]] | None = None, down: Collection[str] = ()) -> AsyncIterator[Cluster]:
    """Run the cluster, and yield it when everything is registered where nsqlookupd is not down."""
    async with trio.open_nursery() as others, trio.open_nursery() as nursery:
        made = Cluster(others)
        made.down.update(down)
        for topic, channels in (topics or {}).items():
            made.make(topic, *channels)
        nursery.start_soon(made.lookup.run, NodeTurn(made.node))
        await trio.sleep(SOON)
        yield made
        nursery.cancel_scope.cancel()


@jumping
async def test_it_introduces_itself_and_registers_what_there_is() -> None:
    async with cluster(topics={"a": [], "b": ["x", "y#ephemeral"]}) as it:
        visit = it.fake.last
        assert (visit.magic, visit.identity) == (MAGIC, ME)
        assert visit.commands == ["REGISTER a", "REGISTER b x", "REGISTER b y#ephemeral"]


@jumping
async def test_news_are_told_as_they_happen() -> None:
    async with cluster() as it:
        it.make("t")
        await trio.sleep(SOON)
        it.make("t", "c")
        await trio.sleep(SOON)
        it.node.broker.delete_topic("t")
        it.node.turn()
        await trio.sleep(SOON)
        assert it.fake.last.commands == ["REGISTER t", "REGISTER t c", "UNREGISTER t c", "UNREGISTER t"]


@jumping
async def test_it_pings() -> None:
    async with cluster() as it:
        await trio.sleep(FIRST_PING - 1)
        assert it.fake.last.pings == 0
        await trio.sleep(1)
        assert it.fake.last.pings == 1, "early, as it may be told that it cannot be reached"
        await trio.sleep(10 * PING_INTERVAL)
        assert it.fake.last.pings == 11
        assert len(it.fake.visits) == 1


@jumping
async def test_it_pings_even_while_there_is_much_to_tell() -> None:
    async with cluster() as it:
        for number in range(200):
            it.make(f"t{number}")
            await trio.sleep(0.1)
        assert it.fake.last.pings == 2


@jumping
async def test_ten_thousand_topics_are_told_without_waiting_for_each_reply() -> None:
    count = unless_quick(10_000, quick=3_000)
    async with cluster(topics={f"t{number}": [] for number in range(count)}) as it:
        await trio.sleep(SOON)
        assert len(it.fake.last.commands) == count


@jumping
async def test_a_broken_connection_is_made_again_at_once_and_all_is_registered() -> None:
    """nsqd does not wait for the next event, and registers what has happened meanwhile, too."""
    async with cluster(topics={"a": ["x"]}) as it:
        await it.fake.last.stream.aclose()
        it.make("b")
        await trio.sleep(1)
        assert len(it.fake.visits) == 2
        assert it.fake.last.commands == ["REGISTER a x", "REGISTER b"]


@jumping
async def test_an_nsqlookupd_that_was_away_is_complete_within_one_ping() -> None:
    async with cluster(topics={"a": ["x"]}) as it:
        it.down.add("10.0.0.1")
        await it.fake.last.stream.aclose()
        await trio.sleep(300)
        attempts = len(it.dials)
        assert 300 / LONGEST_BACKOFF < attempts < 120
        it.down.clear()
        await trio.sleep(PING_INTERVAL)
        assert it.fake.last.told == ["REGISTER a x"]


@jumping
async def test_a_new_node_is_registered_soon_after_an_nsqlookupd_comes_back() -> None:
    """Nobody finds the node otherwise; and while all nsqlookupds are away, it asks once or twice a second."""
    async with cluster(topics={"a": ["x"]}, down={"10.0.0.1"}) as it:
        await trio.sleep(300)
        assert 300 / LONGEST_BACKOFF_OF_NEW < len(it.dials) < 2.1 * 300 / LONGEST_BACKOFF_OF_NEW
        it.down.clear()
        await trio.sleep(LONGEST_BACKOFF_OF_NEW + SOON)
        assert it.fake.last.told == ["REGISTER a x"]


@jumping
async def test_a_node_that_one_nsqlookupd_knows_gives_another_one_time() -> None:
    async with cluster() as it:
        it.lookupds["10.0.0.2"] = FakeLookupd()
        it.names["10.0.0.2"] = ["10.0.0.2"]
        it.down.add("10.0.0.2")
        it.lookup.configure([ONE, "10.0.0.2:4160"])
        await trio.sleep(300)
        assert it.dials.count("10.0.0.2") < 2.1 * 300 / LONGEST_BACKOFF + 10


@jumping
async def test_silence_closes_the_connection() -> None:
    async with cluster() as it:
        it.fake.answer = lambda command: None
        it.make("t")
        await trio.sleep(IO_LIMIT + SOON)
        assert it.fake.visits[0].ended
        it.fake.answer = lambda command: b"OK"
        await trio.sleep(1)
        assert it.fake.registered == {"t"}


@jumping
async def test_one_that_hangs_does_not_delay_the_others() -> None:
    async with cluster() as it:
        it.lookupds["10.0.0.2"] = FakeLookupd()
        it.names["10.0.0.2"] = ["10.0.0.2"]
        it.lookup.configure([ONE, "10.0.0.2:4160"])
        await trio.sleep(SOON)
        it.fake.answer = lambda command: None
        it.make("t", "c")
        await trio.sleep(SOON)
        assert it.lookupds["10.0.0.2"].registered == {"t", "t c"}


@pytest.mark.parametrize("reply", [b"E_INVALID", b"OK", None, b"x" * 1001])
def test_who_is_no_nsqlookupd_is_not_registered_with(reply: bytes | None) -> None:
    @jumping
    async def test() -> None:
        async with cluster(topics={"t": []}) as it:
            it.fake.identify_answer = reply
            await it.fake.last.stream.aclose()
            await trio.sleep(5)
            assert len(it.fake.visits) > 2
            assert not it.fake.last.commands

    test()


@jumping
async def test_replies_to_commands_are_read_and_mean_nothing() -> None:
    async with cluster() as it:
        it.fake.answer = lambda command: b"E_BAD_TOPIC REGISTER topic name 't' is not valid"
        it.make("t")
        await trio.sleep(SOON)
        it.make("u")
        await trio.sleep(SOON)
        assert it.fake.last.commands == ["REGISTER t", "REGISTER u"]


def test_an_outage_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    @jumping
    async def test() -> None:
        async with cluster() as it:
            it.down.add("10.0.0.1")
            await it.fake.last.stream.aclose()
            await trio.sleep(100)

    with caplog.at_level(logging.INFO, "nsqd.lookup.peer"):
        test()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [f"LOOKUPD({ONE}): connection closed by peer"]


# Addresses


@jumping
async def test_a_name_means_all_of_its_addresses() -> None:
    async with cluster(topics={"t": []}) as it:
        it.lookupds |= {"10.0.0.2": FakeLookupd(), "10.0.0.3": FakeLookupd()}
        it.names["lookup"] = ["10.0.0.2", "10.0.0.3"]
        it.lookup.configure(["lookup:4160"])
        await trio.sleep(SOON)
        assert it.lookupds["10.0.0.2"].registered == it.lookupds["10.0.0.3"].registered == {"t"}
        assert it.fake.last.ended


@jumping
async def test_addresses_of_both_families_are_all_meant() -> None:
    async with cluster(topics={"t": []}) as it:
        it.lookupds |= {"10.0.0.2": FakeLookupd("two"), "::3": FakeLookupd("three")}
        it.names["lookup"] = ["10.0.0.2", "::3"]
        it.lookup.configure(["lookup:4160"])
        await trio.sleep(SOON)
        assert it.lookupds["10.0.0.2"].registered == it.lookupds["::3"].registered == {"t"}


@jumping
async def test_an_nsqlookupd_that_is_reached_over_both_families_is_told_once() -> None:
    """Otherwise every node would be listed twice."""
    async with cluster(topics={"t": []}) as it:
        over = it.lookupds
        over |= {"10.0.0.2": FakeLookupd("same"), "::2": FakeLookupd("same")}
        it.names["lookup"] = ["10.0.0.2", "::2"]
        it.lookup.configure(["lookup:4160"])
        await trio.sleep(HANGS / 2)
        told, spare = sorted((over["10.0.0.2"], over["::2"]), key=lambda fake: fake.last.ended)
        assert told.registered == {"t"}
        assert len(spare.visits) == 1
        assert spare.last.ended
        assert not spare.last.commands


@jumping
async def test_when_one_family_fails_the_other_is_used() -> None:
    async with cluster(topics={"t": []}) as it:
        over = it.lookupds
        over |= {"10.0.0.2": FakeLookupd("same"), "::2": FakeLookupd("same")}
        it.names["lookup"] = ["10.0.0.2", "::2"]
        it.lookup.configure(["lookup:4160"])
        await trio.sleep(SOON)
        for used, other in (("10.0.0.2", "::2"), ("::2", "10.0.0.2")):
            it.down = {used}
            if not over[used].last.ended:
                await over[used].last.stream.aclose()
            await trio.sleep(2 * LONGEST_BACKOFF)
            assert over[other].registered == {"t"}


@jumping
async def test_new_addresses_of_a_name_are_found() -> None:
    async with cluster(topics={"t": []}) as it:
        it.lookupds["10.0.0.2"] = FakeLookupd()
        it.names["10.0.0.1"] = ["10.0.0.2"]
        await trio.sleep(RESOLVE_INTERVAL)
        assert it.lookupds["10.0.0.2"].registered == {"t"}
        assert not it.fake.last.ended  # a connection that works is kept,
        it.down.add("10.0.0.1")
        await it.fake.last.stream.aclose()
        await trio.sleep(2 * RESOLVE_INTERVAL)
        attempts = it.dials.count("10.0.0.1")
        await trio.sleep(100)
        assert it.dials.count("10.0.0.1") == attempts  # and tried no longer once it does not work


@jumping
async def test_an_address_under_two_names_is_one_peer() -> None:
    async with cluster() as it:
        it.names["lookup"] = ["10.0.0.1"]
        it.lookup.configure([ONE, "lookup:4160"])
        await trio.sleep(2 * RESOLVE_INTERVAL)
        assert it.dials == ["10.0.0.1"]


@jumping
async def test_a_name_that_cannot_be_resolved_yet() -> None:
    async with cluster(topics={"t": []}) as it:
        it.lookup.configure(["later:4160"])
        await trio.sleep(10)
        it.names["later"] = ["10.0.0.1"]
        await trio.sleep(1 + SOON)
        assert it.fake.registered == {"t"}


@pytest.mark.parametrize("name", ["a..b", "x" * 300, ".b", "\u2603" * 70, "\ud800"])
def test_a_name_that_can_be_none_is_reported_and_no_more(name: str, caplog: pytest.LogCaptureFixture) -> None:
    @jumping
    async def test() -> None:
        async with cluster(topics={"t": []}) as it:
            it.lookup._resolve = resolve
            it.lookup.configure([f"{name}:4160", "10.0.0.1:4160"])
            await trio.sleep(10)
            assert it.fake.registered == {"t"}

    test()
    assert [it.levelname for it in caplog.records if f"LOOKUP({name}:4160): no such host" in it.getMessage()][:1] == [
        "WARNING"
    ]


@jumping
async def test_a_name_whose_server_hangs_delays_new_topics_only_at_first() -> None:
    async with cluster() as it:
        it.lookup._resolve = _hang_resolving
        it.lookup.configure(["hangs:4160"])
        await trio.sleep(FIRST_TRY_LIMIT)
        for number in range(10):
            topic = it.new_topic(f"t{number}")
            await trio.sleep(SOON)
            assert not topic.learning


@jumping
async def test_the_list_changes_at_run_time() -> None:
    async with cluster(topics={"t": ["c"]}) as it:
        it.lookup.configure([])
        await trio.sleep(SOON)
        assert it.fake.last.ended
        assert it.fake.last.told == ["REGISTER t c"]  # nothing is sent at the end
        it.lookup.configure([ONE, "not an address", ONE])
        await trio.sleep(SOON)
        assert len(it.fake.visits) == 2
        assert it.fake.registered == {"t", "t c"}


@jumping
async def test_the_end_closes_connections_and_says_nothing() -> None:
    async with cluster(topics={"t": ["c"]}) as it:
        pass
    assert it.fake.last.ended
    assert it.fake.last.commands == ["REGISTER t c"]


@jumping
async def test_a_new_state_is_told_at_once_and_with_each_ping() -> None:
    async with cluster(topics={"t": []}) as it:
        it.lookup.set_health("full")
        await trio.sleep(SOON)
        assert it.fake.last.commands == ["REGISTER t", "PING full"]
        await trio.sleep(PING_INTERVAL)
        assert it.fake.last.commands[2:] == ["PING full"]
        it.lookup.set_health("")
        await trio.sleep(SOON)
        assert it.fake.last.commands[3:] == ["PING"]


@jumping
async def test_a_node_that_is_not_fine_says_so_before_it_registers_anything() -> None:
    async with cluster(topics={"t": []}) as it:
        it.lookup.set_health("unhealthy")
        await it.fake.last.stream.aclose()
        await trio.sleep(1)
        assert it.fake.last.commands == ["PING unhealthy", "REGISTER t"]


@jumping
async def test_a_drain_is_told_before_anything_else_that_is_wrong() -> None:
    async with cluster(topics={"t": []}) as it:
        assert it.lookup.set_draining(is_draining=True)
        it.lookup.set_health("full")
        await trio.sleep(SOON)
        it.lookup.set_draining(is_draining=False)
        await trio.sleep(SOON)
        it.lookup.set_draining(is_draining=True, for_good=True)
        await trio.sleep(SOON)
        assert it.fake.last.commands[1:] == ["PING draining", "PING full", "PING draining retired"]


@jumping
async def test_a_drain_that_no_nsqlookupd_can_hear_of_is_told_to_nobody() -> None:
    async with cluster() as it:
        it.down.add("10.0.0.1")
        await it.fake.last.stream.aclose()
        await trio.sleep(SOON)
        assert not it.lookup.set_draining(is_draining=True)


@jumping
async def test_who_leaves_for_good_says_so_and_is_not_connected_again() -> None:
    async with cluster(topics={"t": []}) as it:
        await it.lookup.leave(for_good=True)
        assert it.fake.last.ended
        assert it.fake.last.commands == ["REGISTER t", "PING retired"]
        await trio.sleep(10 * PING_INTERVAL)
        assert len(it.fake.visits) == 1


@jumping
async def test_one_that_hangs_is_left_without_a_goodbye() -> None:
    async with cluster(topics={"t": []}) as it:
        it.fake.answer = lambda command: None
        await it.lookup.leave(for_good=False)
        assert it.fake.last.ended
        assert len(it.fake.visits) == 1


def test_a_node_that_cannot_be_reached_logs_what_to_do_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with cluster() as it:
            it.fake.answer = lambda command: b"OK unreachable dial vm:4150: connection refused"
            await trio.sleep(FIRST_PING + SOON)
            assert "cannot be reached" in caplog.text
            await trio.sleep(5 * PING_INTERVAL)
            it.fake.answer = lambda command: b"OK"
            await trio.sleep(5 * PING_INTERVAL)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [record.getMessage() for record in caplog.records if "reached" in record.getMessage()] == [
        "LOOKUPD(10.0.0.1:4160): this node cannot be reached: dial vm:4150: connection refused. Clients will not reach it "
        "either: set --broadcast-address to a name or an address that others can reach",
        "LOOKUPD(10.0.0.1:4160): this node can be reached now",
    ]


# Learning without requests; those are in tests/nsqd/lookup/whole/test_new_topic_asks_for_channels.py


@jumping
async def test_a_topic_that_nobody_can_be_asked_about_flows_after_a_moment() -> None:
    async with cluster() as it:
        it.names["hangs"] = ["10.0.0.9"]
        it.lookup._dial = _hang
        it.lookup.configure(["hangs:4160"])
        topic = it.new_topic("t")
        await trio.sleep(1.9)
        assert topic.learning
        await trio.sleep(0.2)
        assert not topic.learning


@jumping
async def test_without_nsqlookupd_nothing_is_asked() -> None:
    async with cluster() as it:
        it.lookup.configure([])
        assert not it.new_topic("t").learning


@jumping
async def test_topics_that_were_learning_when_the_last_peer_went_flow() -> None:
    async with cluster() as it:
        topic = it.new_topic("t")
        assert topic.learning
        it.lookup.configure([])
        await trio.sleep(SOON)
        assert not topic.learning


async def _hang_resolving(host: str, port: int) -> list[Place]:
    await trio.sleep(inf)
    raise AssertionError


async def _hang(place: Place, name: str) -> trio.abc.Stream:
    await trio.sleep(inf)
    raise AssertionError
