"""Which nsqds a producer publishes to, whatever nsqlookupds say and connections do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqclient.core.membership import CONFIRM_AFTER, MOST_NODES, Membership, NodeEntry


def nodes(*addresses: str) -> list[NodeEntry]:
    return [NodeEntry(address) for address in addresses]


def with_nodes(*addresses: str) -> Membership:
    """Return a membership with these nodes, all connected, as one nsqlookupd, "a", has listed them."""
    membership = Membership()
    membership.answered("a", nodes(*addresses), 0)
    for address in addresses:
        membership.connected(address)
    return membership


def test_whoever_is_listed_joins() -> None:
    membership = with_nodes("n1", "n2")
    membership.answered("b", nodes("n2", "n3"), 1)
    assert list(membership.members) == ["n1", "n2", "n3"]


def test_an_empty_list_and_a_failure_remove_nobody() -> None:
    membership = with_nodes("n1", "n2")
    for now in range(1, 100):
        membership.answered("a", [], now)
        membership.failed("a", now)
        membership.disconnected("n1", now)
    assert list(membership.members) == ["n1", "n2"]


def test_a_dead_node_leaves_as_soon_as_it_is_unlisted() -> None:
    membership = with_nodes("n1", "n2")
    membership.disconnected("n1", 1)
    assert list(membership.members) == ["n1", "n2"]
    membership.answered("a", nodes("n2"), 1)
    assert list(membership.members) == ["n2"]


def test_an_unlisted_node_leaves_as_soon_as_it_is_dead() -> None:
    membership = with_nodes("n1", "n2")
    membership.answered("a", nodes("n2"), 1)
    assert list(membership.members) == ["n1", "n2"]
    membership.disconnected("n1", 2)
    assert list(membership.members) == ["n2"]


def test_an_unlisted_node_that_lives_leaves_when_a_later_answer_confirms_it() -> None:
    """When an nsqlookupd has started, nodes register one after another."""
    membership = with_nodes("n1", "n2", "n3")
    membership.answered("a", nodes("n1"), 1)
    membership.answered("a", nodes("n1", "n2"), 1.1)
    assert list(membership.members) == ["n1", "n2", "n3"]
    membership.answered("a", nodes("n1", "n2"), 1 + CONFIRM_AFTER)
    assert list(membership.members) == ["n1", "n2"]


def test_every_lookup_that_named_it_has_to_drop_it() -> None:
    membership = with_nodes("n1", "n2")
    membership.answered("b", nodes("n1", "n2"), 0)
    membership.disconnected("n1", 1)
    membership.answered("a", nodes("n2"), 1)
    membership.failed("b", 2)
    membership.answered("a", nodes("n2"), 100)
    assert list(membership.members) == ["n1", "n2"]
    membership.answered("b", nodes("n2"), 101)
    assert list(membership.members) == ["n2"]


def test_a_node_that_comes_back_is_a_member_again() -> None:
    membership = with_nodes("n1", "n2")
    membership.answered("a", nodes("n2"), 1)
    membership.answered("a", nodes("n1", "n2"), 2)
    membership.answered("a", nodes("n2"), 3)
    membership.answered("a", nodes("n2"), 3.5 + CONFIRM_AFTER - 1)  # unlisted since 3, and not since 1
    assert set(membership.members) == {"n1", "n2"}


def test_given_nodes_stay() -> None:
    membership = Membership(["g"])
    membership.answered("a", nodes("n1"), 0)
    membership.answered("a", nodes("n1"), 100)
    assert list(membership.members) == ["g", "n1"]


@pytest.mark.parametrize("state", ["draining", "full", "unhealthy"])
def test_a_node_with_a_state_gets_nothing_while_another_has_none(state: str) -> None:
    membership = with_nodes("n1", "n2")
    membership.answered("a", [NodeEntry("n1", state), NodeEntry("n2")], 1)
    assert membership.preferred() == ["n2"]
    membership.answered("a", [NodeEntry("n1", state), NodeEntry("n2", state)], 2)
    assert membership.preferred() == ["n1", "n2"]
    membership.answered("a", nodes("n1", "n2"), 3)
    assert membership.preferred() == ["n1", "n2"]


def test_the_best_kind_is_connected_and_fine() -> None:
    membership = Membership()
    membership.answered(
        "a", [NodeEntry("fine"), NodeEntry("far", is_reachable=False), NodeEntry("full", "full"), NodeEntry("ok")], 0
    )
    assert membership.preferred() == ["fine", "ok"]
    membership.connected("full")
    assert membership.preferred() == ["full"]
    membership.connected("far")  # from here it can be reached
    assert membership.preferred() == ["far"]
    membership.disconnected("full", 1)
    membership.disconnected("far", 1)
    assert membership.preferred() == ["fine", "ok"]


def test_a_state_counts_if_anybody_tells_it_who_still_answers() -> None:
    membership = with_nodes("n1", "n2")
    membership.answered("a", [NodeEntry("n1", "full"), NodeEntry("n2")], 1)
    membership.answered("nsq's own", nodes("n1", "n2"), 2)
    assert membership.preferred() == ["n2"]
    membership.failed("a", 3)
    assert membership.preferred() == ["n1", "n2"]
    membership.failed("nsq's own", 4)  # nobody answers: the states that were told last
    assert membership.preferred() == ["n2"]


def test_there_is_a_bound() -> None:
    membership = Membership(["g"])
    for lookupd in range(3):
        membership.answered(lookupd, nodes(*(f"{lookupd}-{number}" for number in range(MOST_NODES))), 0)
    assert len(membership.members) == MOST_NODES
    assert membership.left_out == 2 * MOST_NODES + 1
    assert "g" in membership.members


ADDRESSES = ["n1", "n2", "n3", "n4"]
STEPS = st.one_of(
    st.tuples(st.just("answer"), st.sampled_from("ab"), st.sets(st.sampled_from(ADDRESSES))),
    st.tuples(st.just("fail"), st.sampled_from("ab")),
    st.tuples(st.just("connect"), st.sampled_from(ADDRESSES)),
    st.tuples(st.just("disconnect"), st.sampled_from(ADDRESSES)),
    st.tuples(st.just("wait"), st.floats(0.1, 2 * CONFIRM_AFTER)),
)


@given(st.lists(STEPS, max_size=60))
def test_who_is_in_whatever_happens(steps: list[tuple[str, ...]]) -> None:
    membership, now, connected = Membership(), 0.0, set[str]()
    last: dict[str, set[str]] = {}  # the last answers with nodes
    for step in steps:
        before = set(membership.members)
        match step:
            case "answer", lookupd, listed:
                membership.answered(lookupd, nodes(*sorted(listed)), now)
                last |= {lookupd: set(listed)} if listed else {}
            case "fail", lookupd:
                membership.failed(lookupd, now)
            case "connect", address:
                if address in membership.members:
                    membership.connected(address)
                    connected.add(address)
            case "disconnect", address:
                membership.disconnected(address, now)
                connected.discard(address)
            case "wait", seconds:
                now += float(seconds)
        members = set(membership.members)
        listed_now = set[str]().union(*last.values())
        assert listed_now <= members
        gone = before - members
        assert not gone & listed_now
        if gone & connected:
            assert step[0] == "answer"
            assert step[2]
        if gone:
            assert members
            assert step[0] in ("answer", "disconnect", "fail")
        assert not (members - listed_now) - connected  # a dead node that nobody lists is no member
        assert set(membership.preferred()) <= members
        assert bool(membership.preferred()) == bool(members)
