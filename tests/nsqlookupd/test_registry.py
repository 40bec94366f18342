"""The directory: registrations, activity, tombstones, and what counts as a change."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.wire.lookup import NodeIdentity
from nsqlookupd.registry import CLIENT, Peer, Registration, Registry, in_order

SECOND = 1_000_000_000


class Directory(Registry):
    """A registry whose clock a test moves."""

    def __init__(
        self,
        on_change: Callable[[str], None] = lambda topic: None,
        *,
        on_nodes_change: Callable[[], None] = lambda: None,
        missing_lifetime: float = 0,
    ) -> None:
        super().__init__(
            inactive_timeout=300,
            tombstone_lifetime=45,
            missing_lifetime=missing_lifetime,
            first_index=1000,
            on_change=on_change,
            on_nodes_change=on_nodes_change,
        )
        self.at(0)

    def at(self, now: float) -> None:
        self.advance(now=now, timestamp=int(now) * SECOND)

    def nsqd(self, host: str = "a", http_port: int = 4151, node: str = "") -> Peer:
        identity = NodeIdentity(
            broadcast_address=host,
            hostname="",
            http_port=http_port,
            tcp_port=4150,
            topology_region="",
            topology_zone="",
            version="1.3.0",
            node=node,
        )
        return self.connect(f"10.0.0.1:{len(self._peers)}", identity)

    def named_missing(self) -> list[tuple[str, tuple[str, ...] | None, bool]]:
        return [(it.identity.broadcast_address, it.topics, it.has_drained) for it in self.missing()]

    def seen(self, topic: str = "t") -> list[str] | None:
        answer = self.lookup(topic)
        return None if answer is None else [peer.identity.broadcast_address for peer in answer.producers]


@pytest.fixture
def directory() -> Directory:
    return Directory()


def test_channel_brings_its_topic(directory: Directory) -> None:
    added = directory.register(directory.nsqd(), "t", "c")
    assert added == [Registration("channel", "t", "c"), Registration("topic", "t")]
    assert (directory.topics(), directory.channels("t"), directory.seen()) == (("t",), ["c"], ["a"])


def test_registering_again_adds_nothing(directory: Directory) -> None:
    nsqd = directory.nsqd()
    directory.register(nsqd, "t", "c")
    index = directory.index_of("t")
    assert directory.register(nsqd, "t", "c") == []
    assert directory.index_of("t") == index


def test_topic_and_channels_stay_when_the_last_producer_disconnects(directory: Directory) -> None:
    nsqd = directory.nsqd()
    directory.register(nsqd, "t", "c")
    assert directory.disconnect(nsqd) == len(["channel", "client", "topic"])
    assert (directory.topics(), directory.channels("t"), directory.seen()) == (("t",), ["c"], [])
    assert directory.active_peers() == []


def test_ephemeral_names_go_with_the_last_that_disconnects(directory: Directory) -> None:
    first, last = directory.nsqd("a"), directory.nsqd("b")
    for nsqd in (first, last):
        directory.register(nsqd, "t#ephemeral", "c#ephemeral")
    directory.disconnect(first)
    assert directory.channels("t#ephemeral") == ["c#ephemeral"]
    directory.disconnect(last)
    assert (directory.topics(), directory.channels("t#ephemeral"), directory.seen("t#ephemeral")) == ((), [], None)


def test_unregistered_channel_leaves_the_topic_alone(directory: Directory) -> None:
    nsqd = directory.nsqd()
    directory.register(nsqd, "t", "c")
    assert directory.unregister_channel(nsqd, "t", "c") == [Registration("channel", "t", "c")]
    assert (directory.channels("t"), directory.seen()) == (["c"], ["a"])


def test_unregistered_ephemeral_channel_goes_with_its_last_peer(directory: Directory) -> None:
    nsqd = directory.nsqd()
    directory.register(nsqd, "t", "c#ephemeral")
    directory.unregister_channel(nsqd, "t", "c#ephemeral")
    assert (directory.channels("t"), directory.seen()) == ([], ["a"])


def test_unregistered_topic_takes_the_peer_out_of_its_channels(directory: Directory) -> None:
    nsqd = directory.nsqd()
    directory.register(nsqd, "t", "c")
    assert list(directory.unregister_topic(nsqd, "t")) == [
        Registration("channel", "t", "c"),
        Registration("topic", "t"),
    ]
    assert (directory.topics(), directory.channels("t"), directory.seen()) == (("t",), ["c"], [])


def test_unregistered_ephemeral_topic_goes_and_its_lasting_channels_stay(directory: Directory) -> None:
    nsqd = directory.nsqd()
    directory.register(nsqd, "t#ephemeral", "c")
    list(directory.unregister_topic(nsqd, "t#ephemeral"))
    assert (directory.topics(), directory.channels("t#ephemeral"), directory.seen("t#ephemeral")) == ((), ["c"], None)


def test_unregistering_what_nobody_knows_is_fine(directory: Directory) -> None:
    nsqd = directory.nsqd()
    assert list(directory.unregister_topic(nsqd, "t")) == directory.unregister_channel(nsqd, "t", "c") == []
    assert directory.topics() == ()


# Activity


def test_producer_is_hidden_without_pings_and_back_with_one(directory: Directory) -> None:
    nsqd = directory.nsqd()
    directory.register(nsqd, "t")
    directory.at(299.9)
    assert directory.seen() == ["a"]
    directory.at(300)
    assert (directory.seen(), directory.active_peers(), directory.topics()) == ([], [], ("t",))
    assert directory.ping(nsqd) == 300
    assert (directory.seen(), directory.active_peers()) == (["a"], [nsqd])


def test_ping_moves_the_deadline(directory: Directory) -> None:
    early, late = directory.nsqd("a"), directory.nsqd("b")
    for nsqd in (early, late):
        directory.register(nsqd, "t")
    directory.at(100)
    directory.ping(early)
    assert directory.next_deadline == 300
    directory.at(300)
    assert (directory.seen(), directory.next_deadline) == (["a"], 400)
    directory.disconnect(early)
    assert directory.next_deadline == inf


# Tombstones


def test_tombstone_hides_one_topic_of_one_node_for_its_lifetime(directory: Directory) -> None:
    for host in "ab":
        nsqd = directory.nsqd(host)
        directory.register(nsqd, "t")
        directory.register(nsqd, "u")
    directory.tombstone("t", "a:4151")
    assert (directory.seen("t"), directory.seen("u")) == (["b"], ["a", "b"])
    directory.at(44.9)
    assert directory.seen("t") == ["b"]
    directory.at(45)
    assert directory.seen("t") == ["a", "b"]


def test_registering_again_does_not_unhide_but_after_unregistering_it_does(directory: Directory) -> None:
    nsqd = directory.nsqd()
    directory.register(nsqd, "t")
    directory.tombstone("t", "a:4151")
    directory.register(nsqd, "t", "c")
    assert directory.seen() == []
    list(directory.unregister_topic(nsqd, "t"))
    directory.register(nsqd, "t")
    assert directory.seen() == ["a"]


def test_repeated_tombstone_begins_its_lifetime_again(directory: Directory) -> None:
    directory.register(directory.nsqd(), "t")
    directory.tombstone("t", "a:4151")
    directory.at(40)
    directory.tombstone("t", "a:4151")
    directory.at(84)
    assert directory.seen() == []
    directory.at(85)
    assert directory.seen() == ["a"]


@pytest.mark.parametrize("node", ["::1:4151", "[::1]:4151"])
def test_ipv6_node_is_found_in_both_spellings(directory: Directory, node: str) -> None:
    directory.register(directory.nsqd("::1"), "t")
    directory.tombstone("t", node)
    assert directory.seen() == []


@pytest.mark.parametrize(("topic", "node"), [("t", "a:4150"), ("t", ""), ("u", "a:4151"), ("*", "a:4151")])
def test_tombstone_of_nobody_hides_nobody(directory: Directory, topic: str, node: str) -> None:
    directory.register(directory.nsqd(), "t")
    directory.tombstone(topic, node)
    assert directory.seen() == ["a"]


def test_node_tells_its_tombstones_in_the_order_of_its_topics(directory: Directory) -> None:
    nsqd = directory.nsqd()
    for topic in "cab":
        directory.register(nsqd, topic)
    directory.tombstone("b", "a:4151")
    assert nsqd.node()[1:] == (("a", "b", "c"), (False, True, False))
    directory.at(45)
    assert nsqd.node().tombstones == (False, False, False)


# What operators do


def test_deleted_topic_is_gone_for_everyone(directory: Directory) -> None:
    nsqd = directory.nsqd()
    directory.register(nsqd, "t", "c")
    directory.tombstone("t", "a:4151")
    directory.delete_topic("t")
    assert (directory.topics(), directory.channels("t"), directory.seen(), nsqd.node().topics) == (
        (),
        [],
        None,
        (),
    )
    assert directory.disconnect(nsqd) == len([CLIENT])
    assert directory.next_deadline == inf


def test_created_channel_creates_its_topic(directory: Directory) -> None:
    directory.create_channel("t", "c")
    assert (directory.topics(), directory.channels("t"), directory.seen()) == (("t",), ["c"], [])
    assert (directory.delete_channel("t", "c"), directory.delete_channel("t", "c")) == (True, False)
    assert (directory.topics(), directory.delete_channel("u", "c")) == (("t",), False)


# Changes


def test_index_tells_every_change_of_the_producers_and_no_other() -> None:
    heard: list[str] = []
    directory = Directory(on_change=heard.append)
    nsqd = directory.nsqd()
    assert directory.index_of("t") == directory.no_index == 1000
    seen = [1000]

    def changes() -> bool:
        seen.append(directory.index_of("t"))
        told, heard[:] = bool(heard), []
        assert told == (seen[-1] != seen[-2])
        return told

    directory.register(nsqd, "t")
    assert changes()
    directory.register(nsqd, "t", "c")  # a new channel is no change
    directory.register(nsqd, "t")
    assert not changes()
    directory.tombstone("t", "a:4151")
    assert changes()
    directory.at(45)
    assert changes()
    directory.at(300)
    assert changes()
    directory.ping(nsqd)
    assert changes()
    directory.disconnect(nsqd)
    assert changes()
    directory.delete_topic("t")
    assert changes()
    directory.create_topic("t")
    assert changes()
    directory.create_topic("t")
    assert not changes()


def test_answer_is_the_same_object_until_it_changes(directory: Directory) -> None:
    nsqd = directory.nsqd()
    directory.register(nsqd, "t")
    first = directory.lookup("t")
    directory.ping(nsqd)
    directory.register(nsqd, "u")
    assert directory.lookup("t") is first
    directory.create_channel("t", "c")
    assert directory.lookup("t") is not first


# Always


names = st.sampled_from(["t", "u", "e#ephemeral"])
steps = st.lists(
    st.tuples(
        st.sampled_from(["register", "unregister", "ping", "wait", "tombstone", "delete", "disconnect", "channel"]),
        st.integers(0, 2),
        names,
        st.sampled_from(["", "c", "d#ephemeral"]),
        st.sampled_from([1.0, 44.0, 200.0]),
    ),
    max_size=60,
)


@given(steps)
def test_what_is_asked_agrees_with_what_was_done(steps: list[tuple[str, int, str, str, float]]) -> None:
    changed: set[str] = set()
    directory = Directory(on_change=changed.add)
    nsqds = [directory.nsqd(host) for host in "abc"]
    indexes: dict[str, int] = {}
    answers: dict[str, list[str] | None] = {}
    now = 0.0
    for what, number, topic, channel, seconds in steps:
        nsqd = nsqds[number]
        match what:
            case "register":
                directory.register(nsqd, topic, channel)
                assert topic in directory.topics()
            case "unregister":
                if channel:
                    directory.unregister_channel(nsqd, topic, channel)
                else:
                    list(directory.unregister_topic(nsqd, topic))
            case "ping":
                directory.ping(nsqd)
                assert nsqd in directory.active_peers()
            case "wait":
                now += seconds
                directory.at(now)
            case "tombstone":
                directory.tombstone(topic, f"{nsqd.identity.broadcast_address}:4151")
                assert nsqd.identity.broadcast_address not in (directory.seen(topic) or ())
            case "delete":
                directory.delete_topic(topic)
                assert directory.seen(topic) is None
            case "channel" if channel:
                directory.create_channel(topic, channel)
            case "disconnect":
                directory.disconnect(nsqd)
                nsqds[number] = directory.nsqd("abc"[number])
        for name in ("t", "u", "e#ephemeral"):
            if directory.seen(name) != answers.get(name):
                assert directory.index_of(name) != indexes.get(name, directory.no_index)
                assert name in changed
            answers[name], indexes[name] = directory.seen(name), directory.index_of(name)
        changed.clear()
    for nsqd in nsqds:
        directory.disconnect(nsqd)
    assert directory.snapshot()[:2] == (0, 0)
    assert (directory.snapshot().producers, directory.next_deadline) == (0, inf)
    assert [row for row in directory.registrations() if row is not None] == []


MANY = 1000  # registrations of one peer: more than are cleared when it leaves


def crowded() -> tuple[Directory, Peer]:
    directory = Directory()
    nsqd = directory.nsqd("a")
    for number in range(MANY):
        directory.register(nsqd, f"t{number}", "c")
        directory.register(nsqd, f"t{number}", "e#ephemeral")
    return directory, nsqd


def test_who_leaves_with_very_much_is_gone_at_once_in_every_answer() -> None:
    directory, nsqd = crowded()
    stays = directory.nsqd("b")
    directory.register(stays, "t0", "c")
    directory.register(stays, "t1", "e#ephemeral")
    assert directory.disconnect(nsqd) == 1 + 3 * MANY
    assert directory.has_departed
    assert directory.active_peers() == [stays]
    assert directory.snapshot().producers == 2
    rows = dict(row for row in directory.registrations() if row is not None)
    assert {peer for peers in rows.values() for peer, _ in peers} == {stays}
    for number in range(MANY):
        answer = directory.lookup(f"t{number}")
        assert answer is not None
        assert answer.producers == ((stays,) if number < 2 else ())
        assert directory.channels(f"t{number}") == (["c", "e#ephemeral"] if number == 1 else ["c"])
    assert directory.snapshot().channels == MANY + 1


def test_what_somebody_has_left_is_cleared_a_little_at_a_time() -> None:
    directory, nsqd = crowded()
    directory.disconnect(nsqd)
    steps = 0
    while directory.has_departed:
        before = len(nsqd.channels) + len(nsqd.topics)
        directory.clear_some()
        assert before - len(nsqd.channels) - len(nsqd.topics) <= 100
        steps += 1
    assert 20 < steps < 40
    assert directory.channels("t0") == ["c"]
    assert [row for row in directory.registrations() if row is not None] == []
    assert directory.snapshot()[:5] == (0, 0, MANY, MANY, 0)


def test_who_comes_back_while_its_old_connection_is_cleared_stays() -> None:
    directory, nsqd = crowded()
    directory.disconnect(nsqd)
    again = directory.nsqd("a")
    for number in range(MANY):
        directory.register(again, f"t{number}", "e#ephemeral")
        directory.clear_some()
    assert not directory.has_departed
    for number in range(MANY):
        assert directory.seen(f"t{number}") == ["a"]
        assert directory.channels(f"t{number}") == ["c", "e#ephemeral"]
    assert directory.snapshot().producers == MANY


def test_very_many_are_sorted_in_steps() -> None:
    items = [str(number * 7919 % 10_007) for number in range(10_007)]
    steps = list(in_order(items, key=str))
    assert steps.count(None) == 5
    assert [it for it in steps if it is not None] == sorted(items)


def test_an_unregister_of_a_topic_removes_one_channel_at_a_time() -> None:
    directory = Directory()
    nsqd, stays = directory.nsqd("a"), directory.nsqd("b")
    for number in range(MANY):
        directory.register(nsqd, "t", f"c{number}#ephemeral")
    directory.register(stays, "t", "c")
    left = [len(directory.channels("t")) for _ in directory.unregister_topic(nsqd, "t")]
    assert all(before - after <= 1 for before, after in pairwise(left))
    assert (directory.channels("t"), directory.seen()) == (["c"], ["b"])


def test_a_topic_that_is_deleted_while_it_is_unregistered_is_gone() -> None:
    directory = Directory()
    nsqd = directory.nsqd()
    for name in ("c", "d"):
        directory.register(nsqd, "t", name)
    steps = directory.unregister_topic(nsqd, "t")
    assert next(steps) == Registration("channel", "t", "c")
    directory.delete_topic("t")
    assert [row for row in steps if row is not None] == []
    assert (directory.topics(), directory.snapshot().producers) == ((), 0)


@pytest.mark.parametrize("rest", [0, 1])
def test_the_rows_of_very_many_topics_come_in_small_steps(rest: int) -> None:
    """Some topics have no channels, and their rows come last; some have no producers, and no row."""
    directory = Directory()
    nsqd = directory.nsqd()
    for number in range(MANY):
        directory.register(nsqd, f"t{number}")
    if rest:
        for number in range(MANY):
            list(directory.unregister_topic(nsqd, f"t{number}"))
    steps = list(directory.registrations())
    at = steps.index((CLIENT, [(nsqd, None)]))
    assert at >= MANY
    assert len(steps) - at > MANY


@given(steps)
def test_whoever_is_in_a_channel_is_a_producer_of_its_topic(steps: list[tuple[str, int, str, str, float]]) -> None:
    directory = Directory()
    nsqds = [directory.nsqd(host) for host in "abc"]
    for what, number, topic, channel, _ in steps:
        if what == "register":
            directory.register(nsqds[number], topic, channel)
        elif what == "unregister":
            next(directory.unregister_topic(nsqds[number], topic), None)  # or a part of it, as if the peer leaves then
        elif what == "tombstone":
            directory.delete_topic(topic)
        for it in directory._topics.values():
            assert all(each.peers <= it.producers for each in it.channels.values())


# Missing nodes


@pytest.fixture
def remembering() -> Directory:
    return Directory(missing_lifetime=3600)


def test_who_has_gone_is_missing_with_its_topics_until_it_is_back(remembering: Directory) -> None:
    nsqd = remembering.nsqd()
    for topic in ("t", "hidden", "s"):
        remembering.register(nsqd, topic)
    remembering.tombstone("hidden", "a:4151")
    remembering.disconnect(nsqd)
    assert remembering.named_missing() == [("a", ("s", "t"), False)]
    remembering.nsqd("b")
    assert remembering.named_missing() == [("a", ("s", "t"), False)]
    remembering.nsqd("a")
    assert remembering.named_missing() == []


def test_who_is_connected_twice_is_not_missing_when_one_connection_ends(remembering: Directory) -> None:
    first, second = remembering.nsqd(), remembering.nsqd()
    remembering.disconnect(first)
    assert remembering.named_missing() == []
    remembering.disconnect(second)
    assert remembering.named_missing() == [("a", (), False)]


def test_a_node_that_comes_back_elsewhere_is_not_missing(remembering: Directory) -> None:
    remembering.disconnect(remembering.nsqd("a", node="n1"))
    remembering.disconnect(remembering.nsqd("b", node="n2"))
    remembering.nsqd("c", node="n1")
    assert remembering.named_missing() == [("b", (), False)]


def test_who_is_silent_is_missing_and_who_said_goodbye_is_called_drained(remembering: Directory) -> None:
    silent, leaving = remembering.nsqd("a"), remembering.nsqd("b")
    remembering.register(silent, "t")
    remembering.at(299)
    remembering.ping(leaving)
    leaving.is_leaving = True
    remembering.at(301)
    assert remembering.named_missing() == [("a", ("t",), False)]
    remembering.disconnect(leaving)
    assert remembering.named_missing() == [("b", (), True), ("a", ("t",), False)]
    remembering.ping(silent)
    assert remembering.named_missing() == [("b", (), True)]


def test_who_is_missing_for_long_is_forgotten(remembering: Directory) -> None:
    remembering.disconnect(remembering.nsqd())
    assert remembering.next_deadline == 3600
    remembering.at(3599)
    assert remembering.missing()
    remembering.at(3600)
    assert not remembering.missing()
    assert remembering.next_deadline == inf


def test_what_is_remembered_of_the_missing_is_bounded(remembering: Directory) -> None:
    nsqd = remembering.nsqd("large")
    for number in range(2001):
        remembering.register(nsqd, f"t{number}")
    remembering.disconnect(nsqd)
    assert remembering.named_missing() == [("large", None, False)]
    for number in range(1000):
        remembering.disconnect(remembering.nsqd(f"n{number}"))
    assert [name for name, _, _ in remembering.named_missing()] == [f"n{number}" for number in range(1000)]


def test_a_tombstone_forgets_who_is_missing(remembering: Directory) -> None:
    nsqd = remembering.nsqd()
    for topic in ("s", "t"):
        remembering.register(nsqd, topic)
    remembering.disconnect(nsqd)
    remembering.tombstone("t", "b:4151")
    remembering.tombstone("t", "a:4151")
    assert remembering.named_missing() == [("a", ("s",), False)]
    remembering.tombstone("s", "a:4151")
    assert remembering.named_missing() == []


# What is said of the nodes themselves


def test_the_index_of_the_nodes_changes_when_one_comes_goes_falls_silent_or_changes_its_state() -> None:
    changes: list[int] = []
    made = Directory(on_nodes_change=lambda: changes.append(made.nodes_index))
    peer, other = made.nsqd("a"), made.nsqd("b")
    assert len(changes) == 2
    made.register(peer, "t", "c")
    made.tombstone("t", "a:4151")
    made.ping(peer)
    assert len(changes) == 2, "topics are not asked about"
    assert made.set_state(peer, "full")
    assert not made.set_state(peer, "full")
    assert made.set_state(peer, "")
    assert len(changes) == 4
    made.at(300)
    assert len(changes) == 6, "both are silent"
    made.ping(other)
    made.disconnect(peer)
    assert len(changes) == 8
    assert changes == sorted({*changes}), "each index is new"
    assert changes[-1] == made.nodes_index


def test_a_new_state_is_a_change_of_the_topics_of_the_node() -> None:
    woken: list[str] = []
    made = Directory(on_change=woken.append)
    peer = made.nsqd("a")
    made.register(peer, "t")
    made.register(made.nsqd("b"), "u")
    woken.clear()
    made.set_state(peer, "full")
    assert woken == ["t"]
